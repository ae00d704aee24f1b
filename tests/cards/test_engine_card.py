"""Engine cards: ranges of versions, defaults by GPU, sources, flags and refusals."""

import json

import jsonschema
import pytest

from capplan.cards.engine_card import engine_card_schema, load_engine
from capplan.cards.hardware_card import load_hardware
from capplan.cards.store import card_names, card_root, read_json
from capplan.errors import InputError, UnknownNameError

NAMES = card_names("engines")


@pytest.mark.parametrize("name", NAMES)
def test_every_card_loads_and_fulfils_the_schema(name):
    card = read_json(card_root() / "engines" / f"{name}.json")
    jsonschema.validate(card, engine_card_schema())
    engine = load_engine(name)
    assert engine.name == name
    assert all(number.source and number.kind for number in engine.sources.values())
    for part in card["versions"]:
        assert load_engine(f"{name}@{part['since']}").sources


def test_the_newest_range_is_the_default_and_the_answer_names_it():
    assert load_engine("vllm").version == "0.21 and later"
    assert load_engine("vllm") == load_engine("vllm@0.33")
    assert load_engine("vllm@0.19").version == "0.17 until before 0.21"


@pytest.mark.parametrize(
    ("asked", "per_logit"),
    [("0.7.3", 38.4), ("0.11", 38.4), ("v0.16.9", 38.4), ("0.17", 15.0), ("0.19.0rc1", 15.0), ("0.20.9", 15.0)],
)
def test_activation_peaks_moved_between_releases(asked, per_logit):
    """Qwen3-14B went from 5.64 GiB on 0.15 to 2.23 on 0.17: the constant belongs to a range of versions."""
    assert load_engine(f"vllm@{asked}").activation_bytes_per_logit == per_logit


def test_defaults_of_the_engines():
    assert load_engine("vllm").memory_fraction == 0.92
    assert load_engine("vllm@0.11").memory_fraction == 0.9
    assert load_engine("sglang").memory_fraction is None  # computed from the GPU
    assert load_engine("trtllm").memory_fraction == 0.9
    assert [load_engine(name).scheduler_policy for name in ("vllm", "sglang", "tensorrt-llm")] == [
        "recompute",
        "recompute",
        "reserve",
    ]


def test_batch_limits_depend_on_the_gpu():
    """vLLM: 1,024 sequences on GPUs of 70 GiB and more, but not on the A100."""
    vllm = load_engine("vllm")
    limits = {name: vllm.batch_defaults_on(load_hardware(name)).max_sequences for name in ("h100", "a100", "l40s")}
    assert limits == {"h100": 1024, "a100": 256, "l40s": 256}
    sglang = load_engine("sglang")
    chunks = {n: sglang.batch_defaults_on(load_hardware(n)).max_batched_tokens for n in ("l40s", "h200", "b200")}
    assert chunks == {"l40s": 4096, "h200": 8192, "b200": 16384}


def test_no_engine_costs_nothing():
    none = load_engine("none")
    assert none.step_gap_seconds == none.layer_overhead_seconds == none.other_bytes == 0


def test_command_line_leaves_out_what_was_not_set():
    settings = {"tp": 8, "dp": 1, "ep": True, "max_num_seqs": 64, "kv_dtype": None, "dcp": False, "nothing": 3}
    assert load_engine("vllm").command_line(settings) == [
        "--tensor-parallel-size 8",
        "--data-parallel-size 1",
        "--enable-expert-parallel",
        "--max-num-seqs 64",
    ]


def test_events_before_the_first_token_are_in_order():
    assert load_engine("vllm").ttft_order == ("queue", "prefill", "transfer", "decode-admission", "first-step")
    assert load_engine("vllm").ttft_order_aggregated == ("queue", "prefill")


def test_versions_nobody_covers_are_refused():
    with pytest.raises(InputError, match=r"no range of vllm holds version '0\.2'"):
        load_engine("vllm@0.2")
    with pytest.raises(InputError, match="is no version"):
        load_engine("vllm@newest")
    with pytest.raises(UnknownNameError, match="vllm"):
        load_engine("vlm@0.11")


def changed(tmp_path, change=dict):
    card = read_json(card_root() / "engines" / "sglang.json")
    change(card)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(card), encoding="utf-8")
    return path


def test_a_card_file_takes_a_version_too(tmp_path):
    path = changed(tmp_path)
    assert load_engine(f"{path}@0.5.1").ttft_linear_factor == pytest.approx(0.37, abs=0.01)
    assert load_engine(path).ttft_linear_factor == pytest.approx(0.076, abs=0.01)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda card: card["numbers"].pop("block_tokens"), "numbers.block_tokens: is missing"),
        (lambda card: card["numbers"].update(block=card["numbers"]["block_tokens"]), "unknown key 'block'"),
        (lambda card: card["numbers"]["other_bytes"].update(unit="s"), "numbers.other_bytes.unit"),
        (lambda card: card["numbers"]["block_tokens"].update(value=1.5), "must be a whole number"),
        (lambda card: card["numbers"].update(memory_fraction=fraction(1.5)), "at most 1"),
        (lambda card: card["numbers"]["kernel_time_factor"].update(value=0), "must be above zero"),
        (lambda card: card.update(memory_formula="magic"), "memory_formula"),
        (lambda card: card.update(versions=[]), "versions"),
    ],
)
def test_bad_cards_are_refused_in_one_line(tmp_path, change, words):
    with pytest.raises(InputError, match=words) as refused:
        load_engine(changed(tmp_path, change))
    assert "\n" not in str(refused.value)


def fraction(value):
    return {"value": value, "unit": "1", "kind": "spec", "source": "a test"}
