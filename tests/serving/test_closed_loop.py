"""A benchmark with fixed concurrency: limits, Little's law, bad input, and the table the engine constants come from."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import end_to_end
import end_to_end_rows

from capplan import Layout, decode_step, load_engine, load_hardware, load_model, prefill
from capplan.errors import InputError, UnknownNameError
from capplan.serving.closed_loop import Load, client_seconds, closed_loop

LLAMA, H100 = load_model("llama-3.1-8b"), load_hardware("h100")
PLACES = {
    "dense": (LLAMA, H100, Layout()),
    "stages": (load_model("llama-3.1-70b"), H100, Layout(tp=4, pp=2)),
    "mixture": (load_model("qwen3-30b-a3b"), load_hardware("h200"), Layout(tp=2, dp=2)),
    "latents": (load_model("deepseek-r1"), load_hardware("h200"), Layout(dp=8, ep=8)),
}


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_one_request_is_a_prefill_and_decode_steps(name, engine):
    place, card = PLACES[name], load_engine(engine)
    run = closed_loop(*place, 2000, 500, 1, engine=engine)
    assert run.tpot_seconds == pytest.approx(decode_step(*place, 1, 2250, engine=engine).seconds, rel=1e-12)
    alone = prefill(*place, 2000, engine=engine).seconds
    assert run.ttft_seconds == pytest.approx(card.ttft_base_seconds + alone, rel=1e-12)
    assert (run.running, run.slot_wait_seconds) == (1, 0)


@pytest.mark.parametrize("name", ["mixture", "latents"])
def test_as_many_requests_as_ranks_do_not_wait_for_each_other(name):
    *place, layout = PLACES[name]
    run = closed_loop(*place, layout, 2000, 500, layout.dp)
    assert run.tpot_seconds == run.decode_seconds
    assert run.ttft_seconds == pytest.approx(load_engine("vllm").ttft_base_seconds + run.prompt_seconds)


@pytest.mark.parametrize("name", PLACES)
def test_more_requests_never_lower_a_time(name):
    runs = [closed_loop(*PLACES[name], 2000, 500, concurrency) for concurrency in (*range(1, 40), 64, 128, 256, 512)]
    assert [run.tpot_seconds for run in runs] == sorted(run.tpot_seconds for run in runs)
    assert [run.ttft_seconds for run in runs] == sorted(run.ttft_seconds for run in runs)


def test_long_answers_are_decode_steps_alone():
    run = closed_loop(LLAMA, H100, Layout(), 100, 1_000_000, 16)
    assert run.tpot_seconds == pytest.approx(run.decode_seconds, rel=1e-4)


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("slots", [None, 16, 40.5])
def test_littles_law_holds_over_all_requests(name, slots):
    run = closed_loop(*PLACES[name], 2000, 500, 96, slots=slots)
    rate = run.tokens_per_second / 500
    request = run.ttft_seconds + 499 * run.tpot_seconds
    assert rate * request == pytest.approx(96, rel=1e-12)
    assert rate * (request - run.slot_wait_seconds) == pytest.approx(run.running, rel=1e-12)
    assert run.running == (slots or 96)


def test_more_slots_than_requests_change_nothing():
    assert closed_loop(LLAMA, H100, Layout(), 2000, 500, 8, slots=1000) == closed_loop(
        LLAMA, H100, Layout(), 2000, 500, 8
    )


def test_a_wait_for_slots_takes_nothing_from_the_others():
    few = closed_loop(LLAMA, H100, Layout(), 2000, 500, 16)
    many = closed_loop(LLAMA, H100, Layout(), 2000, 500, 48, slots=16)
    assert (many.tpot_seconds, many.tokens_per_second) == (few.tpot_seconds, few.tokens_per_second)
    assert many.slot_wait_seconds == pytest.approx(2 * (few.ttft_seconds + 499 * few.tpot_seconds), rel=1e-12)


def test_loads_as_arrays():
    loads = [(1, 1, 1, 99), (32, 32, 4, 127), (64, 40, 2, 511), (3, 3, 8, 20)]
    constants = {"ttft_base_seconds": 0.03, "ttft_sqrt_factor": 0.4, "ttft_linear_factor": 0.05}
    ttft, tpot, slot_wait = client_seconds(0.2, 0.02, 0.1, Load(*np.array(loads, float).T), **constants)
    each = [client_seconds(0.2, 0.02, 0.1, Load(*map(float, load)), **constants) for load in loads]
    assert np.column_stack([ttft, tpot, slot_wait]) == pytest.approx(np.array(each), rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "key", "error"),
    [
        ({"prompt": 0}, "prompt", InputError),
        ({"prompt": math.nan}, "prompt", InputError),
        ({"prompt": "1k"}, "prompt", InputError),
        ({"prompt": np.array([1.0, 2.0])}, "prompt", InputError),
        ({"output": 1}, "output", InputError),
        ({"output": math.inf}, "output", InputError),
        ({"concurrency": 0.5}, "concurrency", InputError),
        ({"concurrency": -4}, "concurrency", InputError),
        ({"slots": 0}, "slots", InputError),
        ({"slots": math.nan}, "slots", InputError),
        ({"skew": 0.5}, "skew", InputError),
        ({"engine": "none"}, "engine", InputError),
        ({"engine": "fastest"}, None, UnknownNameError),
        ({"kv_dtype": 8}, "kv_dtype", InputError),
        ({"weight_dtype": "bf17"}, None, UnknownNameError),
        ({"layout": Layout(ep=2, tp=2)}, "layout.ep", InputError),
    ],
)
def test_bad_input_is_told(changes, key, error):
    arguments = {"model": LLAMA, "hardware": H100, "layout": Layout(), "prompt": 1024, "output": 128, "concurrency": 4}
    with pytest.raises(error) as told:
        closed_loop(**{**arguments, **changes})
    assert key is None or told.value.key == key
    assert "\n" not in str(told.value)


# ---- the table of benchmarks/end_to_end.py ---------------------------------------------------------------------------


def chosen_rows():
    """Kept rows of the three engines, with data-parallel ranks and with fewer slots than requests among them."""
    gpus = (*end_to_end_rows.HOPPER, "b200")
    kept, _ = end_to_end_rows.kept_rows([row for row in end_to_end_rows.read_rows() if row.gpu in gpus])
    spread = [row for engine in ("vllm", "sglang", "tensorrt-llm")
              for row in [row for row in kept if row.engine == engine][5::97]]  # fmt: skip
    ranks = [row for row in kept if row.dp > 1][::25][:3]
    waiting = [row for row in kept if row.ttft_ms > 30_000][::6][:3]
    return list(dict.fromkeys([*spread[::2], *ranks, *waiting]))


ROWS = chosen_rows()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_the_table_of_published_rows_is_closed_loop(row):
    pieces, card = end_to_end.pieces_of(row), load_engine(row.engine)
    assert card.kernel_time_factor == end_to_end.free_engine(row.engine).kernel_time_factor
    constants = {name: getattr(card, name) for name in end_to_end.START}
    tpot, ttft = end_to_end.Table.of([pieces]).predicted(constants)
    share = row.range_share
    run = closed_loop(row.card, row.hardware, row.layout, share * row.isl, share * row.osl, row.concurrency,
                      engine=row.engine, slots=pieces.slots, kv_dtype=row.kv_dtype)  # fmt: skip
    assert (tpot[0], ttft[0]) == pytest.approx((run.tpot_seconds, run.ttft_seconds), rel=1e-9)


def test_those_rows_have_something_of_everything():
    assert 10 <= len(ROWS) <= 20
    assert {row.engine for row in ROWS} == {"vllm", "sglang", "tensorrt-llm"}
    assert sum(row.dp > 1 for row in ROWS) >= 2
    assert sum(end_to_end.pieces_of(row).slots < row.concurrency for row in ROWS) >= 2
