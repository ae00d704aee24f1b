"""Every shipped model card: it loads, comes from a named config, and agrees with what was counted elsewhere."""

import json
from pathlib import Path

import pytest

from capplan.cards.kv import kv_bytes, kv_bytes_per_token
from capplan.cards.model_card import card_json, import_card, load_model, model_from_card
from capplan.cards.store import card_names, card_root
from capplan.errors import UnknownNameError

TRUTH = Path(__file__).parent.parent / "truth"
COUNTED = json.loads((TRUTH / "model_truth.json").read_text())["models"]
NAMES = card_names("models")


def card(name):
    return json.loads((card_root() / "models" / f"{name}.json").read_text())


def config_of(data):
    """The config a card was made from, where the tests have it."""
    stem = (data["provenance"].get("repository") or "").replace("/", "__")
    for folder in ("card_configs", "model_configs"):
        if (path := TRUTH / folder / f"{stem}.json").is_file():
            return path
    return None


SOURCED = [name for name in NAMES if config_of(card(name)) is not None]


def test_there_are_enough():
    assert len(NAMES) >= 100


@pytest.mark.parametrize("name", NAMES)
def test_a_card_comes_back(name):
    data, model = card(name), load_model(name)
    again = model_from_card(json.loads(card_json(data)))
    assert (again.layers, again.embedding, again.lm_head) == (model.layers, model.embedding, model.lm_head)
    assert again.parameters_total == model.parameters_total == sum(model.parameters_by_part.values())
    assert 0 < model.parameters_active <= model.parameters_total
    assert model.weight_bytes("bf16") == pytest.approx(2 * model.parameters_total, rel=1e-3)
    assert model.weight_bytes() < 2.001 * model.parameters_total
    assert kv_bytes(model, 1000) > 0
    assert model.name == name == data["name"]


@pytest.mark.parametrize("name", NAMES)
def test_a_card_says_where_it_is_from(name):
    provenance = card(name)["provenance"]
    assert provenance["repository"].count("/") == 1
    assert provenance["url"].startswith("https://huggingface.co/" + provenance["repository"])
    assert provenance["retrieved_from"]
    assert provenance["fields_read"]


@pytest.mark.parametrize("name", SOURCED)
def test_a_card_is_what_the_importer_makes_of_its_config(name):
    data = card(name)
    provenance = data["provenance"]
    assumed = provenance.get("assumed") or {}
    taken = {field: json.loads(note.partition(" (config: ")[0]) for field, note in assumed.items()}
    origin = {key: provenance.get(key) for key in ("repository", "url", "commit", "retrieved_from")}
    origin["notes"] = [note for note in provenance.get("notes") or [] if not note.endswith("not counted")]
    made = import_card(config_of(data), name, taken, aliases=data.get("aliases"), **origin)
    made["provenance"]["file"] = "config.json"
    assert json.loads(card_json(made)) == data


@pytest.mark.parametrize("name", SOURCED)
def test_a_card_agrees_with_what_was_counted(name):
    truth = COUNTED.get(config_of(card(name)).stem, {})
    if name in APART or "kv_bytes_per_token_bf16" not in truth:
        pytest.skip(APART.get(name, "nobody counted this one"))
    model = load_model(name)
    assert model.parameters_total == truth.get("parameters_total", model.parameters_total)
    short = truth["kv_bytes_per_token_bf16"].get("all_layers_short_context", kv_bytes_per_token(model))
    assert kv_bytes_per_token(model) == short


APART = {
    "minimax-m3": "its class was counted without indexers, see test_model_truth.py",
    "glm-5.2-fp8": "the config counted lacks indexer_types",
    "grok-1": "counted with two of its four norms, see test_model_truth.py",
}
"""Cards whose count elsewhere is not of their checkpoint."""


def test_no_alias_means_two_models():
    found = {name: name for name in NAMES}
    for name in NAMES:
        for alias in card(name).get("aliases", []):
            assert found.setdefault(alias.lower(), name) == name, alias


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("r1", "deepseek-r1"),
        ("llama3-70b", "llama-3.1-70b"),
        ("LLAMA3-8B", "llama-3.1-8b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.3-70b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "llama-3.3-70b"),
        ("deepseek-r1-distill-qwen-1.5b", "r1-distill-qwen-1.5b"),
        ("qwq", "qwq-32b"),
        ("glm-4.6", "glm-4.7"),
        ("kimi-k2-instruct", "kimi-k2"),
        ("minimax-m2", "minimax-m2.5"),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct", "qwen3-coder-480b-a35b"),
    ],
)
def test_other_names(alias, name):
    assert load_model(alias).name == name


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("deepsek-r1", "deepseek-r1"), ("llama-3.1-80b", "llama-3.1-8"), ("qwen3-7b", "qwen3-"), ("gpt-oss", "gpt-oss-")],
)
def test_did_you_mean(wrong, near):
    with pytest.raises(UnknownNameError, match="did you mean") as caught:
        load_model(wrong)
    assert near in str(caught.value)
