"""Spoiled configs: never a traceback, never a hang, never a number that looks right and is not.

Real configs are changed field by field. A change ends in one line of refusal, in another answer, or in the same
answer with the field reported: as not read, as assumed, or as one that means nothing in this model.
"""

import json
import random
import time
from pathlib import Path

import pytest

from capplan.cards.huggingface import import_config
from capplan.cards.kv import kv_bytes
from capplan.cards.kv_summary import attention_summary
from capplan.cards.model_card import load_model
from capplan.errors import InputError

CONFIGS = Path(__file__).parent.parent / "truth" / "model_configs"
SLOWEST_SECONDS = 2.0
ALL_CASES = 5_000
"""Over all configs, drawn with a fixed seed."""


def loaded(path):
    data = json.loads(path.read_text())
    try:
        return path.stem, data, import_config(data, name="x", file="my.json")
    except InputError:
        return None


MODELS = [
    found for path in sorted(CONFIGS.glob("*.json")) if "hf_quant_config" not in path.name if (found := loaded(path))
]


def signature(model):
    """Everything a planner takes from a model."""
    sizes = tuple(sorted(model.parameters_by_part.items()))
    held = tuple(float(kv_bytes(model, context, None)) for context in (1, 5_000, 300_000))
    work = (model.flops_per_token(0), model.flops_per_token(20_000), model.parameters_active)
    limits = (model.max_context, model.vocab_size, model.hidden_size, model.n_layers)
    return (
        attention_summary(model),
        sizes,
        held,
        work,
        limits,
        model.weight_bytes(),
        model.weight_bytes(mtp=True),
        model.tied_embeddings,
    )


def sane(model):
    _, sizes, held, work, _, *weights, _ = signature(model)
    numbers = [*(size for _, size in sizes), *work, *weights]
    return all(0 < number < 1e18 for number in numbers) and all(0 <= size < 1e15 for size in held)


JUNK = [
    None, [], {}, "x", "", -1, 0, 1.5, 1e308, float("nan"), float("inf"), True, False, [1, "a", None], 10**30,
    -(10**30), {"a": {"b": [1]}}, "9" * 400, [[[[1]]]], "Infinity", 2**63, [float("inf")], "\u0000\u202e", 3.0,
]  # fmt: skip


def changed_values(value, rng):
    """Values a field could be spoiled with: junk, and near ones of its own type."""
    near = list(JUNK)
    if type(value) is int:
        near += [2 * value, value + 1, -value, float(value), str(value), [value], {"value": value}]
    elif isinstance(value, float):
        near += [2 * value, -value, int(value)]
    elif isinstance(value, bool):
        near += [not value, int(value), str(value)]
    elif isinstance(value, str):
        near += [value + "x", value.upper(), [value]]
    elif isinstance(value, list) and value:
        near += [value[:-1], [*value, value[-1]], [*value[:-1], "junk"], [*value[:-1], None], value * 3, value[0]]
        near += [[10**12] * len(value), [{"a": 1}] * len(value)]
    elif isinstance(value, dict) and value and "quant_method" not in value:
        key = rng.choice(sorted(value))
        near += [
            {k: v for k, v in value.items() if k != key},
            {**value, key: rng.choice(JUNK)},
            {**value, "odd_rank": 7},
        ]
    return [one for one in near if repr(one) != repr(value)]


def text_part(data):
    return next((key for key in ("text_config", "language_config") if isinstance(data.get(key), dict)), None)


def spoiled(data, rng):
    """Field, spoiled config: of the file itself and of its text part."""
    part = text_part(data)
    for field in data:
        for value in changed_values(data[field], rng):
            yield field, {**data, field: value}
        yield field, {key: value for key, value in data.items() if key != field}
        yield field, {(key + "_" if key == field else key): value for key, value in data.items()}
    for field in data[part] if part else ():
        inner = data[part]
        for value in changed_values(inner[field], rng):
            yield f"{part}.{field}", {**data, part: {**inner, field: value}}
        yield f"{part}.{field}", {**data, part: {key: value for key, value in inner.items() if key != field}}
    for extra in ("attention_sink_size", "num_kv_shared_layers", "expert_rank", "odd_latent_dim"):
        yield extra, {**data, extra: 4}


def reported(field, model):
    """Whether the card says that the field was not used, or what was taken in its place."""
    names = {field, field.rpartition(".")[2]}
    assumed = model.provenance["fields_assumed"]
    if any(field.rpartition(".")[2] in note for note in model.provenance.get("notes", [])):
        return True
    unread = {one.rpartition(".")[2] for one in model.fields_unread} | set(model.fields_unread)
    return bool(names & unread) or any(one.rpartition(".")[2] in names for one in assumed)


MEANINGLESS = {
    "architectures", "auto_map", "dtype", "torch_dtype", "max_window_layers", "use_sliding_window", "sliding_window",
    "attention_chunk_size", "mla_use_nope", "attn_res_block_size", "multi_query",
}  # fmt: skip
"""Fields that are read for what they rule out: a name that is absent, a window that is off."""


def meaningless(field, model):
    """Whether a field that was read changes nothing in this model."""
    name = field.rpartition(".")[2]
    kinds = {group.attention.kind for group in model.layers if group.attention is not None}
    dense = any(g.feed_forward is not None and not g.feed_forward.n_experts for g in model.layers)
    if name in MEANINGLESS or name.endswith(("_offset", "_period")):  # a shift may leave the counts
        return True
    if name in ("num_key_value_heads", "head_dim", "qk_head_dim", "qk_rope_head_dim"):
        return "mla" in kinds or "compressed" in kinds
    return name == "intermediate_size" and model.is_mixture and not dense


def outcome(data):
    """The refusal, or the model; slow ones and tracebacks fail."""
    start = time.perf_counter()
    try:
        return "", import_config(data, name="x", file="my.json")
    except InputError as error:
        return str(error), None
    finally:
        assert time.perf_counter() - start < SLOWEST_SECONDS


def test_enough_real_configs_are_read():
    assert len(MODELS) >= 20


@pytest.mark.parametrize(("name", "data", "model"), MODELS, ids=[name for name, _, _ in MODELS])
def test_spoiled_fields(name, data, model):
    rng = random.Random(name)
    cases = list(spoiled(data, rng))
    before = signature(model)
    for field, document in rng.sample(cases, min(ALL_CASES // len(MODELS), len(cases))):
        line, read = outcome(document)
        if read is None:
            assert len(line.splitlines()) == 1, field
            assert len(line) < 1200, field
            continue
        assert sane(read), (field, document.get(field))
        known = reported(field, read) or reported(field, model) or meaningless(field, model)
        silent = signature(read) == before and not known
        assert not silent or equivalent(field, data, document), (field, str(document.get(field))[:80])


def equivalent(field, data, document):
    """Whether the change says the same.

    A field that is gone and had the value its class takes, null for false, an entry of a list that has no layer, an
    inner field that is reported by its own name.
    """
    part, _, name = field.rpartition(".")
    before = (data.get(part) or {}) if part else data
    after = (document.get(part) or {}) if part else document
    empty = (None, False, 0, [], {}, "")
    if isinstance(before.get(name), (dict, list)) and isinstance(after.get(name), type(before[name])):
        return True
    return after.get(name) in (None, before.get(name)) or (after.get(name) in empty and before.get(name) in empty)


def write(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    return path


LLAMA = (CONFIGS / "meta-llama__Meta-Llama-3.1-8B.json").read_text()
GPT_OSS = (CONFIGS / "openai__gpt-oss-20b.json").read_text()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LLAMA.replace('"vocab_size"', '"hidden_size": 4096, "vocab_size"'), "occurs twice"),
        (LLAMA.replace("4096", "Infinity", 1), "inf"),
        (LLAMA.replace("4096", "-Infinity", 1), "-inf"),
        (LLAMA.replace("4096", "NaN", 1), "nan"),
        (LLAMA.replace("4096", "9" * 5000, 1), ""),
        (LLAMA.replace('"llama"', f'"{"x" * 10_000_000}"'), "larger than"),
        (LLAMA.replace('"llama"', f'"{"x" * 3_000_000}"'), "is not modelled"),
        (LLAMA.replace("4096", "[" * 100_000 + "]" * 100_000, 1), ""),
        (LLAMA.replace("4096", '{"a":' * 20_000 + "1" + "}" * 20_000, 1), ""),
        (LLAMA[: len(LLAMA) // 2], "not valid JSON"),
        (LLAMA.encode("utf-16"), ""),
        ("[" + LLAMA + "]", "one JSON object"),
        ("", "not valid JSON"),
        ('{"model_type": "\\ud800"}', "is not modelled"),
    ],
)  # fmt: skip
def test_hostile_files(tmp_path, text, words):
    start = time.perf_counter()
    with pytest.raises(InputError) as caught:
        load_model(write(tmp_path, text))
    assert time.perf_counter() - start < SLOWEST_SECONDS
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 1200


def test_a_bare_infinity_in_a_field_that_does_not_matter_is_fine(tmp_path):
    """Nemotron's ``time_step_limit`` has one."""
    text = LLAMA.replace('"vocab_size"', '"rope_theta_limit": [0.0, Infinity], "vocab_size"')
    with pytest.raises(InputError, match="rope_theta_limit"):
        load_model(write(tmp_path, text))
    text = LLAMA.replace('"vocab_size"', '"rms_norm_limit_note": "Infinity", "initializer_range_": NaN, "vocab_size"')
    with pytest.raises(InputError):
        load_model(write(tmp_path, text))
    text = LLAMA.replace('"vocab_size"', '"temperature": Infinity, "vocab_size"')
    assert load_model(write(tmp_path, text)).parameters_total == 8_030_261_248


SIDE_CARS = [
    {}, {"quantization": []}, {"quantization": {}}, {"quantization": {"quant_algo": None}},
    {"quantization": {"quant_algo": ["FP8"]}}, {"quantization": {"quant_algo": "FP8", "exclude_modules": "lm_head"}},
    {"quantization": {"quant_algo": "FP8", "exclude_modules": [1]}},
    {"quantization": {"quant_algo": "FP8", "exclude_modules": ["*" * 150, "re:" + "(a?)" * 40]}},
    {"quantization": {"quant_algo": "FP8", "exclude_modules": [f"layers.{i}.*.q*{i}*" for i in range(5_000)]}},
    {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": {}}}}},
    {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"x" * 300: {"quant_algo": "FP8"}}}},
    {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": {"type": ["float"], "num_bits": 8}}},
    {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": {"type": "float", "num_bits": [8]}}},
    {"quantization": {"quant_algo": "FP8", "group_size": -1, "secret_bits": 3}},
]  # fmt: skip


@pytest.mark.parametrize("side_car", SIDE_CARS, ids=range(len(SIDE_CARS)))
def test_hostile_side_cars(tmp_path, side_car):
    config = write(tmp_path, LLAMA)
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(side_car))
    start = time.perf_counter()
    with pytest.raises(InputError) as caught:
        load_model(config)
    assert time.perf_counter() - start < SLOWEST_SECONDS
    assert len(str(caught.value).splitlines()) == 1


OPTIONS = [
    "quant_method", "quant_algo", "weight_block_size", "config_groups", "ignore", "bits", "group_size", "dynamic",
    "kv_cache_scheme", "modules_to_not_convert", "quantized_layers", "extra_config", "fmt", "lm_head",
    "exclude_modules",
]  # fmt: skip
METHODS = [
    {"quant_method": "fp8", "weight_block_size": [128, 128]},
    {"quant_method": "awq", "bits": 4, "group_size": 128},
    {"quant_method": "mxfp4"},
    {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    {"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"], "weights":
     {"num_bits": 8, "type": "float", "strategy": "channel"}}}},
]  # fmt: skip


@pytest.mark.parametrize("options", METHODS, ids=lambda options: options["quant_method"])
def test_spoiled_quantisation(options):
    """Junk in any option is refused, or means the same as if it were absent."""
    data = json.loads(GPT_OSS if options["quant_method"] == "mxfp4" else LLAMA)
    before = import_config({**data, "quantization_config": options}).weight_bytes()
    for field in OPTIONS:
        for value in JUNK:
            line, model = outcome({**data, "quantization_config": {**options, field: value}})
            assert model is not None or len(line.splitlines()) == 1
            if model is not None and field in options and value is not None:
                assert model.weight_bytes() != before, (field, value)


@pytest.mark.parametrize("seed", range(4))
def test_spoiled_groups_of_compressed_tensors(seed):
    rng, data = random.Random(seed), json.loads(LLAMA)
    for _ in range(60):
        weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
        weights[rng.choice(sorted(weights))] = rng.choice(JUNK)
        group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
        group[rng.choice(["targets", "weights", "input_activations", "extra"])] = rng.choice([*JUNK, weights])
        options = {"quant_method": "compressed-tensors", "config_groups": {"g": group}}
        line, model = outcome({**data, "quantization_config": options})
        assert model is not None or len(line.splitlines()) == 1
        assert model is None or sane(model)
