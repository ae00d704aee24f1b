"""Hostile and careless input: one clear line, in bounded time and memory, or the right answer."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from capplan import (
    Empirical,
    Layout,
    Workload,
    decode_step,
    kv_bytes,
    kv_bytes_per_token,
    kv_pressure,
    load_engine,
    load_hardware,
    load_model,
    load_workload,
    memory,
    prefill,
)
from capplan.cards.hardware import Kernels
from capplan.cards.store import MAX_CARD_BYTES, card_names, card_root, read_json, read_text
from capplan.cards.trace import load_trace
from capplan.cards.workload_card import length_law
from capplan.errors import InputError, UnitError
from capplan.formulas.length_laws import Fixed, Gamma, Histogram, LogNormal, Mixture
from capplan.formulas.overflow import demand_quantile, overflow_probability
from capplan.formulas.queueing_numeric import mgk_queue
from capplan.quantities.chain import Chain
from capplan.quantities.registry import all_quantities, override_value
from capplan.serving.stationary import concurrency

# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="the host has no /dev/zero")
def test_an_endless_device_is_no_card(tmp_path):
    with pytest.raises(InputError, match="no regular file"):
        read_json(Path("/dev/zero"))
    (link := tmp_path / "card.json").symlink_to("/dev/zero")
    with pytest.raises(InputError, match="no regular file"):
        read_text(link)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the host has no named pipes")
def test_a_pipe_nobody_writes_to_does_not_block(tmp_path):
    os.mkfifo(pipe := tmp_path / "card.json")
    with pytest.raises(InputError, match="no regular file"):
        read_json(pipe)


def test_reading_is_bounded_and_says_why(tmp_path):
    (large := tmp_path / "large.json").write_text("[" * (MAX_CARD_BYTES + 1))
    with pytest.raises(InputError, match="larger than 4 MB"):
        read_json(large)
    with pytest.raises(InputError, match="larger than 100 bytes"):
        read_text(large, 100)
    with pytest.raises(InputError, match=r"cannot be read \(is a folder\)"):
        read_text(tmp_path)
    with pytest.raises(InputError, match="No such file"):
        read_text(tmp_path / "missing.json")
    with pytest.raises(InputError, match="null"):
        read_text(Path("a\0b"))
    (binary := tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        read_text(binary)


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    (marked := tmp_path / "card.json").write_bytes(b'\xef\xbb\xbf{"name": "card"}')
    assert read_json(marked) == {"name": "card"}
    assert read_text(marked, 20)[0] == "{"


# ---- laws at their limits --------------------------------------------------------------------------------------------

EQUAL = Workload(1, 2)


def test_overflow_without_variance_is_a_step():
    assert overflow_probability(100.0, 99.0, 0.0, 0.0) == 0.0
    assert overflow_probability(100.0, 101.0, 0.0, 0.0) == 1.0
    assert overflow_probability(np.array([98.0, 100.0]), 99.0, 0.0, 0.0).tolist() == [1.0, 0.0]
    assert overflow_probability(100.0, 99.0, 1e-300, 0.0) == 0.0
    assert demand_quantile(0.99, 99.0, 0.0, 0.0) == 99.0


def test_equal_requests_have_answers():
    for workload in (EQUAL, Workload(joint=[(1, 2)] * 5)):
        state = concurrency(workload, 10.0, (0.01, 1e-4, 0.0), cap=8)
        assert state.step_quantile(0.99) >= 0.01
        assert state.tpot_quantile(0.99) == pytest.approx(0.0101, rel=0.01)
        pressure = kv_pressure(workload, 1000, concurrency=8)
        assert pressure.recompute_per_token == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("rate", [5e-324, 1e-300, 1e-20])
@pytest.mark.parametrize("step_time", [(0.01, 1e-4, 1e-8), (0.01, 1e-4, 0.0), lambda n: 0.01 + 1e-4 * n])
def test_a_tiny_rate_is_an_idle_rank(rate, step_time):
    state = concurrency(Workload(100, 200), rate, step_time, cap=40, dispersion=4.0)
    assert state.quantile(0.99) == 0.0
    assert state.step_quantile(0.99) == pytest.approx(0.01, rel=0.02)
    assert state.wait_quantile(0.999) == 0.0
    assert state.wait_probability < 1e-90
    assert state.mean == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("law", [Gamma, LogNormal])
def test_lengths_that_hardly_vary_are_fixed(law):
    narrow = Workload(law(1000, 1e-9), law(100, 1e-9))
    assert (narrow.input, narrow.output) == (Fixed(1000), Fixed(100))
    assert Workload(10, law(100, 1e-7, max=50)).output == Fixed(50)
    assert law(1000, 1e-12).quantile(0.99) == pytest.approx(1000, rel=1e-5)
    assert law(1000, 1e-12).pdf(999.0) == 0.0
    assert Mixture([(1, law(100, 1e-8)), (1, 300)]).mean == pytest.approx(200)
    fixed = concurrency(Workload(1000, 100), 10.0, (0.01, 1e-4, 1e-9))
    assert concurrency(narrow, 10.0, (0.01, 1e-4, 1e-9)).tpot_quantile(0.99) == fixed.tpot_quantile(0.99)


# ---- overrides -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("attention_stream_bandwidth", 0, "above zero"),
        ("attention_stream_bandwidth", "0GB/s", "above zero"),
        ("gemm_flops_bf16", 0, "above zero"),
        ("kv_block_tokens", 0, "above zero"),
        ("kv_block_tokens", 16.5, "whole"),
        ("num_gpu_blocks", 0.5, "whole"),
        ("step_seconds", 0, "above zero"),
        ("prefill_seconds", 0, "above zero"),
        ("expert_rows", 0, "above zero"),
        ("distinct_experts", 0, "above zero"),
        ("prefill_distinct_experts_per_rank", 0, "above zero"),
        ("gpu_memory_utilization", 1.5, "at most 1"),
        ("sustained_share", 1.01, "at most 1"),
        ("kv_pool_gib", 1e31, "at most 1e+30"),
        ("gemm_floor_seconds", 1e300, "at most 1e+30 s"),
        ("gemm_floor_seconds", 1e-300, "too small"),
    ],
)
def test_an_override_outside_its_range_is_refused(name, value, problem):
    with pytest.raises(UnitError) as caught:
        override_value(name, value)
    assert caught.value.key == f"override.{name}"
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_rate_is_above_zero_and_every_part_of_a_step_may_be_zero():
    for known in all_quantities().values():
        if known.unit in ("B/s", "FLOP/s"):
            assert known.positive, known.name
    assert override_value("attention_seconds", 0) == 0.0
    assert override_value("gemm_floor_seconds", "0s") == 0.0


@pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-r1"])
@pytest.mark.parametrize("value", [0, 1e-30, 0.4, 1, 1e6, 1e30])
def test_any_override_that_is_taken_gives_a_number(model, value):
    loaded, gpu, layout = load_model(model), load_hardware("h800"), Layout(tp=2, dp=8)
    names = [name for name in Kernels.__dataclass_fields__ if name in all_quantities()] + [
        "expert_rows",
        "step_seconds",
    ]
    for name in names:
        try:
            chain = Chain({name: override_value(name, value)})
        except UnitError:
            continue
        for answer in (
            decode_step(loaded, gpu, layout, 64, 4096, chain=chain),
            prefill(loaded, gpu, layout, 4096, chain=chain),
        ):
            assert 0.0 <= answer.seconds < math.inf, name


def test_more_distinct_experts_than_a_layer_has_are_refused():
    loaded, gpu = load_model("deepseek-r1"), load_hardware("h800")
    chain = Chain({"distinct_experts": override_value("distinct_experts", 1000)})
    with pytest.raises(InputError, match=r"override.distinct_experts: 1000 experts: a layer has 256"):
        decode_step(loaded, gpu, Layout(tp=2, dp=8), 64, 4096, chain=chain)


@pytest.mark.parametrize("name", ["step_seconds", "attention_seconds", "linear_seconds", "gemm_floor_seconds"])
def test_an_override_takes_the_shape_of_the_answer(name):
    loaded, gpu, batch = load_model("llama-3.1-8b"), load_hardware("h200"), np.array([[1.0, 8.0], [64.0, 256.0]])
    step = decode_step(loaded, gpu, Layout(), batch, 4096, chain=Chain({name: 0.01}))
    assert step.seconds.shape == batch.shape
    assert step.tokens_per_second_per_gpu.shape == batch.shape
    assert all(np.shape(part) == batch.shape for part in step.parts.values())


@pytest.mark.parametrize("name", ["prefill_seconds", "prefill_attention_seconds", "gemm_floor_seconds"])
def test_an_override_of_a_prefill_takes_the_shape_of_the_answer(name):
    loaded, gpu, tokens = load_model("llama-3.1-8b"), load_hardware("h200"), np.array([128.0, 4096.0])
    for cached in (0, np.array([[0], [64]])):
        answer = prefill(loaded, gpu, Layout(), tokens, cached, chain=Chain({name: 0.01}))
        assert answer.seconds.shape == np.broadcast_shapes(tokens.shape, np.shape(cached))


def test_overrides_of_the_stationary_batch_stay_numbers():
    workload = Workload(LogNormal(1000, 1), LogNormal(800, 1))
    for name, value in (("batch_variance", 1e-30), ("dispersion_per_rank", 1e12), ("heavy_load_factor", 1e12)):
        chain = Chain({name: override_value(name, value)})
        state = concurrency(workload, 2.0, (0.012, 1e-4, 1e-8), cap=40, dispersion=4.0, chain=chain)
        assert 0.012 <= state.tpot_quantile(0.99) < math.inf
    with pytest.raises(UnitError, match="above zero"):
        override_value("decode_load", 0)


# ---- arguments of the public functions -------------------------------------------------------------------------------


def test_shapes_that_do_not_fit_together_are_named():
    loaded, gpu = load_model("llama-3.1-8b"), load_hardware("h200")
    with pytest.raises(InputError, match=r"batch \(3,\), context \(2,\)"):
        decode_step(loaded, gpu, Layout(), np.ones(3), np.ones(2))
    with pytest.raises(InputError, match=r"tokens \(3,\), cached \(2,\)"):
        prefill(loaded, gpu, Layout(), np.ones(3), cached=np.ones(2))
    for wrong in ("yes", 1, None, np.array([True, False])):
        with pytest.raises(InputError, match="overlap"):
            decode_step(loaded, gpu, Layout(), 8, 1024, overlap=wrong)


# ---- cards -----------------------------------------------------------------------------------------------------------


def changed_card(tmp_path, kind, name, change):
    card = read_json(card_root() / kind / f"{name}.json")
    change(card)
    (file := tmp_path / "card.json").write_text(json.dumps(card))
    return file


@pytest.mark.parametrize("name", ["gemm_stream_bandwidth", "gemm_flops_bf16", "internode_bandwidth", "sustained_share"])
def test_a_rate_of_zero_on_a_hardware_card_is_refused(tmp_path, name):
    file = changed_card(tmp_path, "hardware", "h200", lambda card: card["kernels"][name].update(value=0))
    with pytest.raises(UnitError, match=rf"kernels\.{name}\.value: 0 must be above zero"):
        load_hardware(file)
    floor = changed_card(
        tmp_path, "hardware", "h200", lambda card: card["kernels"]["gemm_floor_seconds"].update(value=0)
    )
    assert load_hardware(floor).kernels.gemm_floor_seconds == 0.0


def test_negative_numbers_of_any_version_of_an_engine_are_refused(tmp_path):
    def change(card):
        numbers = card["versions"][0]["numbers"]
        numbers[next(iter(numbers))]["value"] = -1

    file = changed_card(tmp_path, "engines", "vllm", change)
    with pytest.raises(UnitError, match=r"versions\.0\.numbers\.\w+\.value: -1 must be"):
        load_engine(file)

    def change_of_all(card):
        card["numbers"]["step_gap_seconds"] = {"value": -1, "unit": "ms", "source": "nobody", "kind": "assumed"}

    with pytest.raises(UnitError, match=r"numbers\.step_gap_seconds\.value: -1 must be 0 or more"):
        load_engine(changed_card(tmp_path, "engines", "vllm", change_of_all))


@pytest.mark.parametrize("name", card_names("engines"))
def test_every_version_of_a_shipped_engine_is_checked(tmp_path, name):
    assert load_engine(changed_card(tmp_path, "engines", name, lambda card: card)).name == name


def test_a_negative_target_of_a_workload_card_is_refused(tmp_path):
    name = "chat-azure-2023"
    file = changed_card(tmp_path, "workloads", name, lambda card: card["targets"]["input_mean"].update(value=-5))
    with pytest.raises(InputError, match=r"targets\.input_mean\.value: -5 must lie between 0 and"):
        load_workload(file)


# ---- traces and laws -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.csv", "input_tokens,output_tokens,input_tokens\n5,6,7\n", "line 1: column 'input_tokens' occurs twice"),
        ("a.csv", "input_tokens,output_tokens,prompt_tokens\n5,6,7\n", "'input_tokens' and 'prompt_tokens' both give"),
        ("a.csv", "isl,osl,ISL\n5,6,7\n", "'isl' and 'ISL' both give input tokens"),
        ("a.jsonl", '{"isl": 5, "osl": 6, "output_tokens": 7}\n', "both give output tokens"),
        ("a.jsonl", '{"isl": 5, "osl": 6}\n{"isl": 5, "isl": 6, "osl": 7}\n', "line 2: key 'isl' occurs twice"),
        ("a.csv", "isl,osl\n5,6\n5,6,7\n", "line 3: 3 cells under 2 columns"),
        ("a.csv", "isl,osl\n\u0665,6\n", "line 2, isl: '\u0665' must be a whole token count"),
        ("a.csv", "isl,osl\n5,1_000\n", "line 2, osl: '1_000' must be a whole token count"),
        ("a.csv", "isl,osl\n5,6.5\n", "line 2, osl: '6.5' must be a whole token count"),
        ("a.jsonl", '{"isl": 5, "osl": 6.5}\n', "line 1, osl: '6.5' must be a whole token count"),
        ("a.jsonl", '{"isl": 5, "osl": true}\n', "line 1, osl: 'True' must be a whole token count"),
        ("a.jsonl", '{"isl": 5, "osl": 1e400}\n', "line 1, osl: 'inf' must be a whole token count"),
        ("a.csv", "isl,osl,reasoning_tokens\n5,6,7\n", "line 2, reasoning_tokens: 7 is more than the 6 output tokens"),
        ("a.csv", "field,value,expected_requests\ninput_tokens,1,1\nzzz,1,1\n", "line 3, field: unknown field 'zzz'"),
        ("a.csv", "field,value,expected_requests\ninput_tokens,1,1\ninput_tokens,1,2\n", "line 3, value"),
        ("a.csv", "field,value,expected_requests\ninput_tokens,1_0,1\n", "line 2, value"),
    ],
)
def test_a_doubtful_trace_is_refused_with_its_place(tmp_path, name, text, told):
    (path := tmp_path / name).write_text(text)
    with pytest.raises(InputError) as caught:
        load_workload(path)
    assert told in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_whole_counts_may_be_written_as_decimals(tmp_path):
    (path := tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfisl, osl \r\n5.0, 6\r\n7,8.\r\n\r\n")
    assert load_workload(path).moment(1, 1) == (30 + 56) / 2


def test_a_trace_of_one_token_answers_names_its_file(tmp_path):
    (path := tmp_path / "ones.csv").write_text("isl,osl\n" + "5,1\n" * 9)
    with pytest.raises(InputError, match="nothing decodes") as caught:
        concurrency(load_workload(path), 1.0, (0.01, 1e-4, 0.0))
    assert str(caught.value).startswith(str(path))


def test_lines_end_wherever_a_block_ends(tmp_path, monkeypatch):
    rows = "isl,osl,note\n" + "".join(f'{n},{n + 1},"caf\u00e9, {n}"\n' for n in range(200))
    (path := tmp_path / "a.csv").write_text(rows, encoding="utf-8")
    whole = load_workload(path).moment(1, 1)
    for size in (1, 7, 64):
        monkeypatch.setattr("capplan.cards.trace_rows.BLOCK", size)
        assert load_trace(path).moment(1, 1) == whole
    monkeypatch.setattr("capplan.cards.trace_rows.MAX_LINE", 50)
    (path := tmp_path / "b.csv").write_text("isl,osl\n5,6\n" + "x" * 200)
    with pytest.raises(InputError, match="line 3 is too long"):
        load_trace(path)
    monkeypatch.setattr("capplan.cards.trace_rows.MAX_ROWS", 10)
    (path := tmp_path / "c.csv").write_text("isl,osl\n" + "5,6\n" * 20)
    with pytest.raises(InputError, match="more than 10 requests"):
        load_trace(path)


@pytest.mark.parametrize(
    ("law", "key"),
    [
        ({"law": "fixed", "tokens": {"value": 5, "unit": "token", "zzz": 1}}, "law.tokens.zzz"),
        ({"law": "fixed", "tokens": {"values": [5], "unit": "token"}}, "law.tokens.values"),
        ({"law": "fixed", "tokens": {"unit": "token"}}, "law.tokens.value"),
        ({"law": "fixed", "tokens": {"value": 5, "unit": "kB"}}, "law.tokens.unit"),
        ({"law": "empirical", "values": {"value": 5, "unit": "token"}}, "law.values.value"),
        ({"law": "lognormal", "mean": 5, "cv": 1, "zzz": 1}, "law.zzz"),
        ({"law": "mixture", "parts": [{"weight": 1, "law": 5}, {"weight": 0, "law": 5}]}, "law.parts.1.weight"),
        (
            {"law": "mixture", "parts": [{"weight": 1, "law": 5}, {"weight": -(10**400), "law": 5}]},
            "law.parts.1.weight",
        ),
        ({"law": "mixture", "parts": [{"weight": 1, "law": {"law": "fixed", "tokens": -1}}]}, "law.parts.0.law.tokens"),
        ({"law": "lognormal", "mean": 10**400, "cv": 1}, "law.mean"),
        ({"law": "gamma", "mean": 10, "cv": 10**400}, "law.cv"),
        ({"law": "histogram", "edges": [0, 5, 10], "shares": [1, -1]}, "law.shares.1"),
        ({"law": "histogram", "edges": [0, 5, 10**12], "shares": [1, 1]}, "law.edges.2"),
        ({"law": "empirical", "values": [5, 6], "weights": [1, -1]}, "law.weights.1"),
        ({"law": "empirical", "values": [5, 10**12]}, "law.values.1"),
    ],
)
def test_a_law_names_the_place_of_a_bad_number(law, key):
    with pytest.raises(InputError) as caught:
        length_law(law)
    assert caught.value.key == key
    assert len(str(caught.value)) < 200


HUGE = 10**400
STEP = (0.012, 1e-4, 1e-8)
TRAFFIC = Workload(LogNormal(1000, 1), LogNormal(800, 1))


def refused(function, key=None):
    """The error of a call that must be refused in one short line."""
    with pytest.raises(InputError) as caught:
        function()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250
    if key is not None:
        assert caught.value.key == key
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"kv": 5}, "kv"),
        ({"kv": lambda _: "x"}, "kv"),
        ({"kv": lambda context: -context}, "kv"),
        ({"concurrency": 1e300}, "concurrency"),
        ({"concurrency": "8"}, "concurrency"),
        ({"concurrency": b"8"}, "concurrency"),
        ({"concurrency": HUGE}, "concurrency"),
        ({"concurrency": np.array([8.0, 9.0])}, "concurrency"),
        ({"reserve_tokens": 1e300, "policy": "reserve"}, "reserve_tokens"),
        ({"block_size": 1e300}, "block_size"),
        ({"block_size": "16"}, "block_size"),
        ({"kv_capacity": "90000"}, "kv_capacity"),
        ({"max_num_seqs": True}, "max_num_seqs"),
        ({"watermark": "0.1"}, "watermark"),
        ({"prefix_caching": 1}, "prefix_caching"),
        ({"policy": ["swap"]}, "policy"),
        ({"token_budget": float("nan")}, "token_budget"),
        ({"step_time": "fast"}, "step_time"),
        ({"step_time": 5}, "step_time"),
        ({"step_time": []}, "step_time"),
        ({"step_time": {}}, "step_time"),
        ({"step_time": np.array([[1.0, 2.0]])}, "step_time"),
        ({"step_time": (0.01, "x", 0.0)}, "step_time"),
        ({"step_time": lambda _: -1.0}, "step_time"),
        ({"step_time": lambda _: "fast"}, "step_time"),
        ({"request_rate": 1.0}, "concurrency"),
        ({"concurrency": None}, "concurrency"),
        ({"concurrency": None, "request_rate": 1.0}, "step_time"),
    ],
)
def test_kv_pressure_refuses_what_is_no_number(change, key):
    refused(lambda: kv_pressure(**({"workload": TRAFFIC, "kv_capacity": 90_000, "concurrency": 60} | change)), key)


@pytest.mark.parametrize(
    ("change", "key", "told"),
    [
        ({"request_rate": HUGE}, "request_rate", "at most"),
        ({"request_rate": 10**5000}, "request_rate", "a number of 5001 digits"),
        ({"request_rate": np.array([1.0, 2.0])}, "request_rate", "one number each"),
        ({"cap": np.array([1, 2])}, "cap", "one number each"),
        ({"dispersion": np.array([1.0, 2.0])}, "dispersion", "one number each"),
        ({"instances": np.array([1, 2])}, "instances", "one number each"),
        ({"routing": np.array(["random", "least-kv"])}, "routing", "none of random"),
        ({"method": ["closed"]}, "method", "none of closed"),
        ({"cap": "8"}, "cap", ""),
        ({"step_time": lambda _: -1.0}, "step_time", "positive finite"),
        ({"step_time": lambda _: float("nan")}, "step_time", "positive finite"),
        ({"step_time": lambda _: None}, "step_time", "one number"),
        ({"step_time": np.array([[0.01, 0.02]])}, "step_time", ""),
        ({"step_time": (0.01, "1e-4", 0)}, "step_time", ""),
    ],
)
def test_concurrency_refuses_what_is_no_number(change, key, told):
    given = {"workload": TRAFFIC, "request_rate": 1.0, "step_time": STEP}
    assert told in refused(lambda: concurrency(**(given | change)), key)
    if key == "step_time":
        refused(lambda: concurrency(**(given | change), cap=16), key)


def test_one_number_may_be_any_kind_of_one():
    expected = concurrency(TRAFFIC, 2.0, STEP, cap=40).tpot_quantile(0.99)
    for rate, cap in ((np.float64(2), np.int64(40)), (2, 40), (np.array(2.0), np.array(40))):
        assert concurrency(TRAFFIC, rate, STEP, cap=cap).tpot_quantile(0.99) == expected


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"weight_dtype": []}, "weight_dtype"),
        ({"weight_dtype": 8}, "weight_dtype"),
        ({"kv_dtype": []}, "kv_dtype"),
        ({"engine": np.array(["vllm"])}, "engine"),
        ({"engine": np.array(["vllm", "sglang"])}, "engine"),
        ({"engine": 5}, "engine"),
        ({"overlap": "no"}, "overlap"),
        ({"layout": []}, "layout"),
        ({"layout": "tp2"}, "layout"),
        ({"batch": "8"}, "batch"),
        ({"batch": HUGE}, "batch"),
        ({"model": "llama-3.1-8b"}, "model"),
        ({"hardware": "h200"}, "hardware"),
    ],
)
def test_decode_step_refuses_what_is_of_another_kind(change, key):
    given = {"model": load_model("llama-3.1-8b"), "hardware": load_hardware("h200"), "layout": Layout()}
    refused(lambda: decode_step(**({**given, "batch": 8, "context": 1024} | change)), key)


def test_a_name_in_place_of_a_model_says_how_to_load_it():
    model, gpu = load_model("llama-3.1-8b"), load_hardware("h100")
    assert "load_model(name)" in refused(lambda: memory("llama-3.1-8b", gpu, Layout()), "model")
    assert "load_hardware(name)" in refused(lambda: memory(model, "h100", Layout()), "hardware")
    assert "load_model(name)" in refused(lambda: kv_bytes("llama-3.1-8b", 1024), "model")
    assert "load_model(name)" in refused(lambda: kv_bytes_per_token("llama-3.1-8b"), "model")
    refused(lambda: memory(model, gpu, "tp2"), "layout")
    refused(lambda: memory(model, gpu, Layout(), 5), "engine")


@pytest.mark.parametrize("mtp", ["8", float("nan"), -1, True, None, 1.5, np.array([1, 2])])
def test_memory_takes_whole_numbers_of_drafts(mtp):
    refused(lambda: memory(load_model("llama-3.1-8b"), load_hardware("h100"), Layout(), mtp=mtp), "mtp")


def test_kv_bytes_refuse_what_is_no_context_and_no_type():
    model = load_model("llama-3.1-8b")
    for context in (HUGE, 1e300, "8k", True, np.array(["8"]), float("nan"), -1):
        refused(lambda context=context: kv_bytes(model, context), "context")
    for kv_dtype in ([], 8, np.array(["bf16", "fp8"])):
        refused(lambda kv_dtype=kv_dtype: kv_bytes(model, 1024, kv_dtype), "kv_dtype")
        refused(lambda kv_dtype=kv_dtype: kv_bytes_per_token(model, kv_dtype), "kv_dtype")
    refused(lambda: kv_bytes(model, 1024, mtp=1), "mtp")
    refused(lambda: memory(model, load_hardware("h100"), Layout()).max_sequences(HUGE), "context")


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: Workload(5, 5, reasoning_share="8"), "reasoning_share"),
        (lambda: Workload(5, 5, reasoning_share=True), "reasoning_share"),
        (lambda: Workload(classes=5), "classes"),
        (lambda: Workload(classes="abc"), "classes"),
        (lambda: Workload(classes=[(1, 5, 5), ("1", 5, 5)]), "classes.1.share"),
        (lambda: Workload(joint=[("5", "6")]), "joint"),
        (lambda: Workload(joint=5), "joint"),
        (lambda: Workload(b"8", 5), "input"),
        (lambda: Workload(HUGE, 5), "input"),
        (lambda: Empirical(5), "values"),
        (lambda: Empirical("5"), "values"),
        (lambda: Empirical(b"5"), "values"),
        (lambda: Empirical([1, "2"]), "values.1"),
        (lambda: Empirical([1, 2], weights=5), "weights"),
        (lambda: Empirical([1, 2], ["1", "1"]), "weights.0"),
        (lambda: Mixture(5), "parts"),
        (lambda: Mixture([5]), "parts.0"),
        (lambda: Mixture([(1, 5), (HUGE, 5)]), "parts.1.weight"),
        (lambda: Mixture([(1, 5), (1, "5")]), "parts.1.law"),
        (lambda: LogNormal(10, 1, max=np.array([1.0, 2.0])), "max"),
        (lambda: Gamma(10, 1, max=np.array([1.0, 2.0])), "max"),
        (lambda: LogNormal(HUGE, 1), "mean"),
        (lambda: Histogram(5, [1]), "edges"),
        (lambda: Histogram([1, 2], 5), "shares"),
        (lambda: Fixed(5).quantile("0.5"), None),
        (lambda: TRAFFIC.with_budget(10**5000), "budget"),
        (lambda: mgk_queue(1.0, 1.0), "servers"),
        (lambda: mgk_queue(1.0, [0.5, 1.5]), "servers"),
        (lambda: mgk_queue(1.0, float(np.nextafter(1, 0))), "servers"),
        (lambda: mgk_queue("1", 0.5), "request_rate"),
        (lambda: mgk_queue(1.0, "0.5"), "service_seconds"),
        (lambda: concurrency(TRAFFIC, 1.0, STEP).tpot_quantile(["0.5"]), "p"),
        (lambda: concurrency(TRAFFIC, 1.0, STEP).tpot_quantile([]), "p"),
        (lambda: kv_pressure(TRAFFIC, 90_000, 60).gap_quantile("0.5"), "probability"),
    ],
)
def test_laws_and_workloads_refuse_what_is_of_another_kind(make, key):
    refused(make, key)


def test_errors_are_short():
    assert "a number of 401 digits is no token count" in refused(lambda: length_law({"law": "fixed", "tokens": HUGE}))
    with pytest.raises(InputError, match=r"and \d+ more$") as caught:
        load_model("qqqqqqqq")
    assert str(caught.value).count(",") <= 13
    assert "at most 100,000" in refused(lambda: Layout(tp=200_000), "layout.tp")
    assert "at most 100,000" in refused(lambda: Layout(dp=HUGE), "layout.dp")
