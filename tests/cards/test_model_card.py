"""Model cards: shipped files, names, sources that arrive, one-line errors."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from capplan.cards.model_card import card_json, load_model, model_card_schema, model_from_card
from capplan.cards.model_reader import model_from_data
from capplan.cards.number import Number
from capplan.cards.store import card_names, card_root
from capplan.errors import InputError, UnknownNameError

NAMES = card_names("models")
CONFIGS = Path(__file__).parent.parent / "truth" / "model_configs"


def raw(name):
    return json.loads((card_root() / "models" / f"{name}.json").read_text())


def test_the_cards_of_the_first_families_are_shipped():
    assert {
        "deepseek-v3", "deepseek-r1", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "llama-2-7b", "qwen3-8b",
        "qwen3-32b", "qwen3-30b-a3b", "qwen3-235b-a22b", "qwq-32b", "gpt-oss-120b",
    } <= set(NAMES)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_card_is_valid_by_both_readers_and_by_the_published_schema(name):
    data = raw(name)
    jsonschema.validate(data, model_card_schema())
    text = (card_root() / "models" / f"{name}.json").read_text(encoding="utf-8")
    assert card_json(data) + "\n" == text
    assert model_from_data(data) == load_model(name)
    assert data["name"] == name == load_model(name).name


@pytest.mark.parametrize("name", NAMES)
def test_every_number_of_a_card_arrives_with_its_source(name):
    model = load_model(name)
    assert all(isinstance(number, Number) and number.source for number in model.sources.values())
    assert model.sources["hidden_size"].value == model.hidden_size
    assert model.sources["hidden_size"].source.startswith("config.json: ")
    assert len(model.sources) == str(raw(name)).count("'source'")
    assert model.provenance["url"].startswith("https://huggingface.co/")
    assert any(field.endswith("hidden_size") for field in model.fields_read)
    assert not set(model.fields_read) & set(model.fields_unread)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("r1", "deepseek-r1"),
        ("R1", "deepseek-r1"),
        ("llama3-70b", "llama-3.1-70b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("Qwen3-32B", "qwen3-32b"),
    ],
)
def test_aliases(alias, name):
    assert load_model(alias) is load_model(name)


def test_no_alias_names_two_models():
    names = [alias.lower() for name in NAMES for alias in [name, *raw(name)["aliases"]]]
    assert len(names) == len(set(names))


def test_an_unknown_name_gets_the_nearest_one():
    with pytest.raises(UnknownNameError, match=r"unknown model card.* did you mean .deepseek-"):
        load_model("deepseek-r2")


def test_what_was_assumed_is_said():
    assert load_model("gpt-oss-120b").provenance["fields_assumed"] == {"dtype": "bf16 (none given)"}


def test_weights_in_other_formats():
    model = load_model("deepseek-v3")
    assert model.weight_bytes("bf16") == 2 * model.parameters_total
    everything_else = 1_960_795_136  # embedding, lm_head, router and norms in bf16: tests/truth/model_truth.json
    assert model.weight_bytes("fp8") == 669_065_609_216 + 2 * everything_else
    assert model.weight_bytes("nvfp4") < model.weight_bytes("mxfp4") * 1.06 < model.weight_bytes("fp8")
    assert model.weight_bytes("fp8") < model.weight_bytes() < model.weight_bytes("fp8") * 1.001
    with pytest.raises(UnknownNameError, match="unknown weight format 'fp9'; did you mean 'fp8'"):
        model.weight_bytes("fp9")
    with pytest.raises(UnknownNameError, match="weight_dtype: unknown weight format"):
        model.weight_bytes(["fp8"])
    assert model.with_weight_dtype("fp8") is model.with_weight_dtype("fp8")


def test_a_16_bit_format_takes_all_matrices_of_a_quantised_checkpoint():
    model = load_model("gpt-oss-120b")
    assert model.weight_bytes("bf16") == model.weight_bytes("fp16") == 2 * model.parameters_total
    formats = {matmul.format.name for _, matmul in model.with_weight_dtype("fp16").matmuls()}
    assert formats == {"fp16"}


def test_totals_over_matrices_agree():
    model = load_model("deepseek-v3")
    matrices = sum(times * matmul.parameters for times, matmul in model.matmuls())
    assert matrices == 670_098_718_720 + model.embedding.parameters  # tests/truth: matrices without the look-up
    assert model.is_mixture
    assert not load_model("llama-3.1-8b").is_mixture
    assert model.n_layers == 61
    assert model.state_bytes_per_sequence == 0


def test_shapes_of_latent_attention():
    attention = load_model("deepseek-v3").layers[0].attention
    shapes = {matmul.name: (matmul.inputs, matmul.outputs, matmul.shard) for matmul in attention.matmuls}
    assert shapes == {
        "qkv_a": (7168, 1536 + 512 + 64, "replicated"),
        "q_b": (1536, 128 * 192, "column"),
        "kv_b": (512, 128 * 256, "column"),
        "o": (128 * 128, 7168, "row"),
    }
    assert (attention.head_dim, attention.qk_nope_head_dim, attention.q_lora_rank) == (192, 128, 1536)


def test_without_query_compression_the_query_is_its_own_matrix():
    data = raw("deepseek-v3")
    for layer in data["layers"]:
        del layer["attention"]["q_lora_rank"]
    attention = model_from_card(data).layers[0].attention
    assert [matmul.name for matmul in attention.matmuls] == ["kv_a", "q", "kv_b", "o"]
    assert attention.matmuls[0].outputs == 576
    assert attention.matmuls[1].outputs == 128 * 192


def test_shapes_of_a_mixture_with_a_shared_expert():
    dense, mixture = load_model("deepseek-v3").layers
    assert [(m.name, m.inputs, m.outputs, m.shard) for m in dense.feed_forward.matmuls] == [
        ("gate_up", 7168, 2 * 18432, "column"),
        ("down", 18432, 7168, "row"),
    ]
    assert [m.name for m in mixture.feed_forward.matmuls] == ["router", "shared_gate_up", "shared_down"]
    assert [(m.name, m.inputs, m.outputs) for m in mixture.feed_forward.expert_matmuls] == [
        ("gate_up", 7168, 4096),
        ("down", 2048, 7168),
    ]
    assert (mixture.count, mixture.feed_forward.n_experts, mixture.feed_forward.top_k) == (58, 256, 8)


def put(data, path, value):
    *place, last = path
    for key in place:
        data = data[key]
    if value is None:
        del data[last]
    else:
        data[last] = value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["hiden_size"], 3, r"hiden_size: unknown key 'hiden_size'; did you mean 'hidden_size'\?"),
        (["layers", 0, "attention", "windo"], {}, r"layers\.0\.attention\.windo: unknown key 'windo'; did you mean"),
        (["layers", 0, "attention", "n_heads"], None, r"layers\.0\.attention\.n_heads: is missing"),
        (["layers", 0, "attention", "kind"], "gqaa", r"layers\.0\.attention: .*'gqaa'"),
        (["layers", 0, "attention", "n_heads", "source"], None, r"layers\.0\.attention\.n_heads\.source: is missing"),
        (["layers", 0, "attention", "n_heads", "unit"], "GiB", r"n_heads: unit 'GiB' must be 'head'"),
        (["layers", 0, "attention", "n_heads", "value"], 0, r"n_heads: 0 must be a whole number from 1"),
        (["layers", 0, "attention", "n_heads", "value"], 32.5, r"n_heads: 32.5 must be a whole number from 1"),
        (["layers", 0, "attention", "n_kv_heads", "value"], 7, r"n_kv_heads: 7 must divide n_heads 32"),
        (["layers", 0, "attention", "n_heads", "value"], 1e300, r"n_heads: 1e\+300 must be a whole number"),
        (["layers", 0, "attention", "n_heads", "value"], "32", r"n_heads\.value: '32': should be a valid number"),
        (["layers", 0, "attention", "format"], "fp7", r"unknown weight format 'fp7'; did you mean 'fp"),
        (["kv_dtype"], "fp9", r"unknown KV cache type or layout 'fp9'; did you mean 'fp8'"),
        (["layers"], [], r"layers: .*at least 1"),
        (["schema"], "capplan.hardware/1", r"schema: 'capplan.hardware/1': should be 'capplan.model/1'"),
        (["provenance", "fields_red"], [], r"provenance\.fields_red: unknown key 'fields_red'; did you mean"),
        (["tied_embeddings"], "no", r"tied_embeddings: 'no': should be a valid boolean"),
    ],
)
def test_a_bad_card_gives_one_line(tmp_path, path, value, message):
    data = copy.deepcopy(raw("llama-3.1-8b"))
    put(data, path, value)
    file = tmp_path / "card.json"
    file.write_text(json.dumps(data))
    with pytest.raises(InputError, match=message) as caught:
        load_model(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


def test_experts_must_cover_top_k():
    data = raw("qwen3-30b-a3b")
    data["layers"][0]["feed_forward"]["top_k"]["value"] = 129
    with pytest.raises(InputError, match=r"top_k: 129 must not exceed n_experts 128"):
        model_from_card(data, "card.json")


def test_a_number_written_as_a_float_is_read_all_the_same():
    data = raw("llama-3.1-8b")
    data["hidden_size"]["value"] = 4096.0
    assert model_from_card(data) == load_model("llama-3.1-8b")


def test_an_edited_card_is_read_again(tmp_path):
    file = tmp_path / "card.json"
    data = raw("llama-3.1-8b")
    file.write_text(json.dumps(data))
    assert load_model(file).n_layers == 32
    data["layers"][0]["count"]["value"] = 1600
    file.write_text(json.dumps(data))
    assert load_model(file).n_layers == 1600


def test_reading_a_card_imports_no_heavy_package():
    code = (
        "import sys; from capplan.cards.model_card import load_model; from capplan.cards.kv import kv_bytes;"
        "kv_bytes(load_model('r1'), 8192);"
        "print([name for name in ('numpy', 'sympy', 'scipy', 'rich', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


NASTY = [
    None,
    [],
    {},
    "x",
    "",
    -1,
    0,
    1.5,
    1e308,
    float("nan"),
    True,
    False,
    [1, "a", None],
    {"a": {"b": [1]}},
    "9" * 400,
]


def places(part, path=()):
    """Every place in a nested document."""
    items = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


@pytest.mark.parametrize("name", ["deepseek-v3", "gpt-oss-20b"])
def test_a_spoiled_card_is_refused_or_gives_a_sane_model(name):
    data = raw(name)
    for number, path in enumerate(places(data)):
        spoiled = copy.deepcopy(data)
        place = spoiled
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = NASTY[number % len(NASTY)]
        line, model = outcome(spoiled)
        assert model is not None or line.startswith("card.json: "), path
        assert len(line.splitlines()) <= 1, path
        assert model is None or 0 < model.parameters_active <= model.parameters_total < 1e15, path


def outcome(data):
    try:
        return "", model_from_card(data, "card.json")
    except InputError as error:
        return str(error), None
