"""The error band of a plan: solved again at both ends, and the pools of the plan looked at there."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from capplan.cards.hardware_card import load_hardware
from capplan.errors import InputError
from capplan.planning import decode_pool
from capplan.planning.band import plan_band, with_times
from capplan.planning.deploy import reload
from capplan.planning.links import decode_links
from capplan.planning.plan import plan
from capplan.planning.problem import resolve
from capplan.planning.scenario import load_scenario
from capplan.serving.layout import Layout

EXAMPLE = Path(__file__).parents[2] / "examples" / "reasoning-r1-h800.toml"
SMALL = {
    "model": "llama-3.1-8b",
    "hardware": {"gpu": "h100"},
    "workload": {
        "input": {"law": "lognormal", "mean": "1k", "cv": 1.0, "max": "16k"},
        "output": {"law": "lognormal", "mean": "1k", "cv": 1.0, "max": "16k"},
        "rate": "30/s",
    },
    "slo": {"tpot_p99": "25ms", "ttft_p99": "2s"},
}
BANDS = load_hardware("h100").bands


@pytest.fixture(scope="module")
def example():
    return plan(EXAMPLE)


def test_gpus_of_the_example_rise_with_the_step_times(example):
    assert example.band.low.gpus_total < example.gpus_total < example.band.high.gpus_total
    data = json.loads(json.dumps(example.to_dict()))
    assert (data["gpus_total_low"], data["gpus_total_high"]) == (
        example.band.low.gpus_total,
        example.band.high.gpus_total,
    )
    bands, factors = load_hardware("h800").bands, data["band"]["factors"]
    assert set(factors) == {"decode_mixture", "prefill", "ttft"}
    for kind, factor in factors.items():
        assert (factor["low"], factor["high"]) == (bands[kind].low, bands[kind].high)
        assert factor["source_kind"] == load_hardware("h800").sources[f"bands.{kind}.high"].kind
    for name in ("ttft", "tpot", "itl", "answer", "e2e"):
        for label in ("p50", "p99"):
            key = f"{name}_{label}_seconds"
            assert data["band"]["low"][key] < data[key] < data["band"]["high"][key]


@pytest.mark.parametrize("changes", [{"mode": "disaggregated"}, {"mode": "aggregated"}, {"attainment": 0.99}])
def test_each_end_is_the_plan_with_the_factors_as_overrides(changes):
    answer = plan(SMALL, **changes)
    for end in ("low", "high"):
        factors = {
            "decode_time_factor": getattr(BANDS["decode_dense"], end),
            "prefill_time_factor": getattr(BANDS["prefill"], end),
        }
        there = plan(SMALL, **changes, **factors)
        assert there.feasible
        assert getattr(answer.band, end).gpus_total == there.gpus_total
    assert answer.band.low.gpus_total <= answer.gpus_total <= answer.band.high.gpus_total


def test_factors_of_one_change_no_number():
    plain = plan(SMALL, mode="disaggregated").to_dict()
    same = plan(SMALL, mode="disaggregated", decode_time_factor=1, prefill_time_factor=1).to_dict()
    named = [line for line in same["assumptions"] if "time_factor" in line]
    assert named == ["override.decode_time_factor = 1", "override.prefill_time_factor = 1"]
    same["assumptions"] = [line for line in same["assumptions"] if line not in named]
    assert json.dumps(same, default=float) == json.dumps(plain, default=float)


def test_what_is_kept_from_the_plan_is_what_a_fresh_look_gives(example):
    asked = with_times(example.problem, 1.2, 1.1)
    fresh = replace(asked, store={})
    assert {what for what, _ in asked.store} >= {"memory", "step table", "prompt cost"}
    kept, new = (reload(problem, example.outcome.pools, 18.0) for problem in (asked, fresh))
    assert kept.decode.stationary.tpot_quantile(0.99) == pytest.approx(
        new.decode.stationary.tpot_quantile(0.99), rel=1e-9
    )
    assert kept.prefill.ttft.quantile(0.99) == pytest.approx(new.prefill.ttft.quantile(0.99), rel=1e-9)


@pytest.mark.parametrize("factor", [0.7, 1.3])
def test_slower_steps_are_faster_arrivals_in_another_unit_of_time(example, factor):
    """All times of decode being longer by a factor is the same as the requests coming faster by it."""
    problem, layout = example.problem, Layout(dp=32)
    moved = decode_pool.evaluate(with_times(problem, factor, 1.0), layout, 2, 20.0)
    plain = decode_pool.evaluate(problem, layout, 2, 20.0 * factor)
    assert moved.stationary.mean == pytest.approx(plain.stationary.mean, rel=1e-6)
    assert moved.stationary.load == pytest.approx(plain.stationary.load, rel=1e-6)
    assert moved.kv.overflow_probability == pytest.approx(plain.kv.overflow_probability, rel=1e-4)
    for quantile in ("tpot_quantile", "itl_quantile", "step_quantile", "e2e_quantile"):
        there, here = (getattr(pool.stationary, quantile)(0.99) for pool in (moved, plain))
        assert there == pytest.approx(factor * here, rel=1e-6)
    there, here = decode_links(with_times(problem, factor, 1.0), moved), decode_links(problem, plain)
    assert there["hbm"].bytes_per_second == pytest.approx(here["hbm"].bytes_per_second / factor, rel=1e-6)


def test_the_factor_reaches_search_margins_and_naive_answer():
    plain, slow = (plan(SMALL, mode="disaggregated", decode_time_factor=factor) for factor in (1.0, 1.3))
    assert slow.gpus_total > plain.gpus_total
    assert slow.naive.decode_gpus >= plain.naive.decode_gpus
    fixed = {"mode": "disaggregated", "rate": "5/s", "tp": 1, "tpot_p99": "40ms"}
    plain, slow = (plan(SMALL, **fixed, decode_time_factor=factor) for factor in (1.0, 1.05))
    assert slow.gpus_total == plain.gpus_total
    assert slow.margins.output.factor < plain.margins.output.factor
    slow = plan(SMALL, **fixed, prefill_time_factor=2.0)
    assert slow.view.percentile("ttft", 0.5) > 1.5 * plain.view.percentile("ttft", 0.5)


def test_an_end_that_cannot_be_met_says_so():
    answer = plan(SMALL, mode="disaggregated")
    tight = plan(SMALL, mode="disaggregated", max_gpus=answer.gpus_total)
    assert tight.feasible
    assert tight.band.high.gpus_total is None
    assert tight.to_dict()["gpus_total_high"] is None
    assert f"infeasible with {answer.gpus_total} at the slow end" in tight.to_text()
    short = plan(SMALL, mode="disaggregated", max_gpus=answer.gpus_total - 1)
    assert not short.feasible
    assert short.band.low.gpus_total == answer.band.low.gpus_total
    assert "feasible at the fast end of the 80 % error band" in short.to_text()


def test_pools_that_cannot_keep_up_at_the_slow_end_have_no_latency_there():
    loose = {"tpot_p99": "1s", "ttft_p99": "60s", "headroom": 0.02}
    answer = plan(SMALL, mode="disaggregated", rate="35/s", **loose)
    assert answer.pools[0].utilization * BANDS["prefill"].high > 1
    low, high = answer.band.latency("ttft", 0.99)
    assert answer.band.high.view is None
    assert high is None
    assert low < answer.view.percentile("ttft", 0.99)
    assert "to without bound" in answer.to_text()
    assert answer.to_dict()["band"]["high"]["ttft_p99_seconds"] is None


def test_ttft_has_at_least_its_own_band(example):
    low, high = example.band.latency("ttft", 0.99)
    own, nominal = load_hardware("h800").bands["ttft"], example.view.percentile("ttft", 0.99)
    assert low <= own.low * nominal
    assert high >= own.high * nominal


def test_a_measured_step_time_has_no_band():
    answer = plan(SMALL, mode="disaggregated", tp=1, **{"override.step_seconds": "12ms"})
    assert answer.band.latency("tpot", 0.5) == pytest.approx((answer.view.percentile("tpot", 0.5),) * 2, rel=1e-9)


def test_a_closed_loop_is_solved_again_for_its_requests_in_flight():
    answer = plan(SMALL, mode="disaggregated", concurrency=400)
    # Faster steps make more requests of as many in flight, for which more prefill GPUs may be needed.
    low, high = (end.outcome.pools.decode for end in (answer.band.low, answer.band.high))
    assert low.rank_rate * low.ranks > high.rank_rate * high.ranks
    tpot = answer.band.latency("tpot", 0.5)
    assert tpot[0] < answer.view.percentile("tpot", 0.5) < tpot[1]


def test_a_card_without_bands_gives_none_and_says_so():
    problem = resolve(load_scenario(SMALL, mode="disaggregated"))
    bare = replace(problem, hardware=replace(problem.hardware, bands={"prefill": BANDS["prefill"]}))
    answer = plan(SMALL, mode="disaggregated")
    assert plan_band(replace(answer, problem=bare), None, None) is None
    without = replace(answer, problem=bare)
    assert "no error band of decode_dense, ttft, so the plan has none" in "\n".join(without.assumptions)
    assert without.to_dict()["gpus_total_low"] is None
    assert "over the 80 %" not in without.to_text()


def test_assumed_bands_are_assumptions(example):
    (line,) = [line for line in example.assumptions if "error bands" in line]
    assumed = [kind for kind in ("decode_mixture", "prefill", "ttft") if load_hardware("h800").bands[kind].assumed]
    assert line == f"hardware card h800: error bands of {', '.join(assumed)} assumed"


def test_a_plan_does_not_pay_for_its_band_until_asked():
    answer = plan(SMALL, mode="disaggregated")
    answer.view.percentile("tpot", 0.99)
    assert "band" not in vars(answer)
    assert answer.band is answer.band


def test_a_factor_that_is_none_is_refused():
    for bad in (0, -1, float("nan"), 1e9):
        with pytest.raises(InputError, match="decode_time_factor"):
            plan(SMALL, decode_time_factor=bad)
