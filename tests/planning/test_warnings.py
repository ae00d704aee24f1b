"""Every law that leaves the range it was checked in says so in the plan, in its text and in its JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from capplan.cards.workload import Workload
from capplan.errors import InputError
from capplan.formulas.length_laws import LogNormal
from capplan.planning.decode_pool import pool_memory
from capplan.planning.plan import plan
from capplan.planning.residents import residents, running_size_moments

CALM: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "hardware": {"gpu": "h100"},
    "workload": {
        "input": {"law": "lognormal", "mean": "1k", "cv": 1.0, "max": "16k"},
        "output": {"law": "lognormal", "mean": "1k", "cv": 1.0, "max": "16k"},
        "rate": "40/s",
    },
    "slo": {"tpot_p99": "30ms", "ttft_p99": "2s"},
}
HEAVY = {"law": "lognormal", "mean": 1269, "cv": 5.0, "max": "100k"}
LONG = {"law": "lognormal", "mean": "16k", "cv": 1.0, "max": "60k"}
SHORT = {"law": "lognormal", "mean": 64, "cv": 0.5, "max": 512}
NARROW = {"law": "lognormal", "mean": 1000, "cv": 0.5, "max": 4000}
LOOSE = {"serving.headroom": 0.0, "slo.ttft_p99": "100s", "slo.tpot_p99": "10s"}
SMALL_POOL = {"override.kv_pool_gib": 2.0, "slo.kv_overflow": 0.5}
FIXED = {"law": "fixed", "tokens": 2000}


def test_a_calm_plan_warns_of_nothing() -> None:
    assert plan(CALM).warnings == ()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"workload.input": HEAVY, "workload.output": SHORT, "serving.mode": "aggregated", **LOOSE}, "heaviness"),
        ({"workload.output": SHORT, "workload.rate": "500/s", "serving.mode": "aggregated", **LOOSE},
         "of the largest rate"),
        ({"workload.output": SHORT, "workload.rate": "196/s", "serving.mode": "aggregated", **LOOSE},
         "sits on a cliff"),
        ({"workload.rate": "500/s", "serving.mode": "disaggregated", **LOOSE}, "prefill load"),
        ({"workload.output": LONG, "workload.rate": "0.1/s"}, "shape index"),
        ({"workload.dispersion": 8, "workload.dispersion_window": "10s"}, "a sixth of the record"),
        ({"workload.input": NARROW, "workload.output": NARROW, "serving.layout": {"tp": 1}, **SMALL_POOL},
         "mean requests; checked from"),
        ({"workload.rate": "20/s", "hardware.max_gpus": 8, **SMALL_POOL}, "once full it stays full"),
        ({"workload.rate": "6/s", **SMALL_POOL}, "latencies leave out preemption"),
        ({"workload.output": FIXED, **SMALL_POOL}, "convoys"),
    ],
)  # fmt: skip
def test_a_law_out_of_range_is_named(changed: dict[str, Any], words: str) -> None:
    answer = plan(CALM, **changed)
    assert any(words in text for text in answer.warnings), answer.warnings
    assert list(answer.warnings) == answer.to_dict()["warnings"]
    assert words in answer.to_text()


def test_preemption_reaches_the_pools_of_a_plan() -> None:
    answer = plan(CALM, **{"override.kv_pool_gib": 8.0, "slo.kv_overflow": 0.3})
    pool = answer.to_dict()["pools"][-1]
    assert 0 < pool["preempted_share"] < pool["kv_overflow_probability"] * 3
    assert pool["recompute_time_share"] > 0
    assert pool["preemption_gap_p99_seconds"] > 0
    assert 0 < pool["preempted_swap_seconds"] < pool["preempted_recompute_seconds"]
    assert "of requests preempted, largest gap P99" in answer.to_text()
    assert "of requests preempted" not in plan(CALM).to_text()


def test_a_rank_that_would_stay_full_is_no_answer() -> None:
    """Twenty requests a second on 8 small pools overflow rarely enough, but once full they never recover."""
    allowed = plan(CALM, **{"workload.rate": "20/s", **SMALL_POOL, "slo.kv_overflow": 0.9})
    assert allowed.feasible
    assert not any("stays full" in text for text in allowed.warnings)
    tight = plan(CALM, **{"workload.rate": "20/s", "hardware.max_gpus": 8, **SMALL_POOL, "slo.kv_overflow": 0.9})
    assert not tight.feasible
    assert any(check.name == "kv_saturated_load" and check.value > 0.97 for check in tight.outcome.missed)


def test_windows_are_counted_in_bytes() -> None:
    """Requests beyond the window hold less than tokens at the mean context would say."""
    answer = plan(CALM, model="gemma-3-27b")
    decode = answer.outcome.pools.decode
    held = residents(answer.problem, decode.layout, decode.budget)
    by_mean = decode.budget.max_sequences(answer.problem.workload.mean_context)
    assert held.capacity / held.mean > 1.03 * by_mean


def test_bytes_and_tokens_agree_where_the_cache_grows_evenly() -> None:
    problem = plan(CALM).problem
    layout = plan(CALM).outcome.pools.decode.layout
    budget = pool_memory(problem, layout)
    held = residents(problem, layout, budget)
    assert held.capacity == budget.capacity_tokens
    workload = Workload(LogNormal(1024, 1.0, max=16_384), LogNormal(1024, 1.0, max=16_384))
    mean, variance, third = running_size_moments(workload)
    assert held.sizes == pytest.approx((mean + 7.5, variance, third), rel=0.02)


def test_round_robin_ranks_wait_for_each_other_more_than_balanced_ones() -> None:
    """What dealing in turn leaves of the batch part; balanced ranks leave none of it, a random split all."""
    scenario = {**CALM, "model": "qwen3-30b-a3b", "hardware": {"gpu": "h200"}}
    empty = {}
    for routing in ("least-loaded", "round-robin", "random"):
        fixed = {"serving.routing": routing, "serving.mode": "disaggregated"}
        fixed["serving.decode_layout"] = {"tp": 1, "dp": 8}
        found = plan(scenario, **fixed)
        empty[routing] = found.outcome.pools.decode.coefficients[0]
    assert np.all(np.diff([empty[name] for name in ("least-loaded", "round-robin", "random")]) > 0)


def test_a_time_to_answer_of_a_workload_that_says_nothing_of_reasoning_is_named() -> None:
    asked = {"slo.answer_p99": "60s"}
    silent = plan(CALM, **asked)
    told = [text for text in silent.warnings if "says nothing of reasoning tokens" in text]
    assert len(told) == 1
    assert "answer_p99" in told[0]
    assert told[0] in silent.to_dict()["warnings"]
    assert f"warning: {told[0]}" in silent.to_text()
    assert silent.view is not None
    assert silent.view.percentile("answer", 0.99) == silent.view.percentile("ttft", 0.99)
    for share in (0.5, 0.0):
        assert plan(CALM, **asked, **{"workload.reasoning_share": share}).warnings == ()


def test_the_share_of_reasoning_of_a_scenario() -> None:
    view = plan(CALM, reasoning_share="50%").view
    assert view is not None
    steps = plan(CALM).problem.workload.output.quantile(0.9) / 2
    beyond = view.percentile("answer", 0.9) - view.percentile("ttft", 0.5)
    assert beyond == pytest.approx(steps * view.percentile("tpot", 0.5), rel=0.05)
    card = {**CALM, "workload": {"card": "chat-azure-2023", "rate": "5/s", "reasoning_share": 0.5}}
    assert plan(card).problem.workload.reasoning_share == 0.5
    with pytest.raises(InputError, match=r"reasoning_share: reasoning-r1-production says itself"):
        plan(card, **{"workload.card": "reasoning-r1-production", "workload.reasoning_share": 0.5})
    # A card in the place of the file's laws does without the share the file gave for them.
    assert plan(card, workload="fixed-1k-1k").problem.workload.reasoning_share is None
    with pytest.raises(InputError, match=r"workload\.reasoning_share"):
        plan(CALM, reasoning_share=1.5)
