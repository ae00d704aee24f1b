"""A warning reaches the rows it is about and no other, and excuses no more than it says."""

from dataclasses import replace
from pathlib import Path

import pytest

from capplan.planning.plan import plan
from capplan.simulation.intervals import Estimate
from capplan.verification.comparison import LATENCY_TOLERANCES
from capplan.verification.doubts import Doubt, doubts, judged
from capplan.verification.verdict import Row, Tolerance

CHAT = Path(__file__).parents[2] / "examples" / "chat-llama-70b-h100.toml"
ROWS = (
    *(f"{name}_{label}_seconds" for name in LATENCY_TOLERANCES for label in ("p50", "p90", "p99")),
    "batch_mean", "batch_p99", "kv_use_mean", "kv_use_p99", "kv_overflow_probability", "preemptions_per_request",
    "recompute_share", "largest_gap_p99_seconds", "prefill_load",
)  # fmt: skip
PRESSURE = {"kv_overflow_probability", "preemptions_per_request", "recompute_share", "largest_gap_p99_seconds"}
FIVE_PERCENT = Tolerance(0.05)


def _row(name, closed=1.0, tolerance=FIVE_PERCENT):
    return Row(name, name, closed, Estimate(1.0, 0.0), tolerance)


def _reached(found):
    """Rows flagged, and rows widened with their tolerance."""
    rows = [judged(_row(name), found) for name in ROWS]
    return {row.name for row in rows if row.flagged}, {row.name: row.tolerance.relative for row in rows if row.widened}


@pytest.mark.parametrize(
    ("name", "closed", "verdict"),
    [
        ("tpot_p99_seconds", 1.16, "agrees"),
        ("tpot_p99_seconds", 1.18, "disagrees"),
        ("tpot_p50_seconds", 1.06, "disagrees"),
        ("ttft_p99_seconds", 9.0, "flagged"),
        ("prefill_load", 9.0, "disagrees"),
    ],
)
def test_a_figure_widens_and_the_lack_of_one_flags(name, closed, verdict):
    listed = (Doubt("within 17 %", ("tpot_p99",), 0.17), Doubt("heavy", ("ttft",)))
    assert judged(_row(name, closed), listed).verdict == verdict


def test_a_figure_below_the_tolerance_changes_nothing():
    row = _row("preemptions_per_request", tolerance=Tolerance(0.25, 0.05))
    assert judged(row, (Doubt("within 25 %", ("preemptions",), 0.25),)) == row


def test_the_shipped_chat_plan_can_fail():
    flagged, widened = _reached(doubts(plan(CHAT)))
    assert flagged <= PRESSURE
    assert widened == dict.fromkeys(("step_p99_seconds", "tpot_p99_seconds", "itl_p99_seconds"), 0.17)


def test_huge_requests_cast_no_doubt_on_means_and_on_the_prefill_pool():
    scenario = {
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "h100", "max_gpus": 64},
        "workload": {
            "input": {"law": "lognormal", "mean": 20_000, "cv": 3.0, "max": "128k"},
            "output": {"law": "lognormal", "mean": 100, "cv": 2.0, "max": "8k"},
            "rate": "1/s",
        },
        "serving": {"mode": "disaggregated"},
    }
    answer = plan(scenario)
    assert answer.pools_at_rate.decode.stationary.shape_index < 2
    flagged, _ = _reached(doubts(answer))
    assert {"step_p50_seconds", "tpot_p99_seconds", "e2e_p90_seconds", "batch_p99"} <= flagged
    assert flagged.isdisjoint({"batch_mean", "kv_use_mean", "prefill_load"})


def test_a_short_pool_touches_the_percentiles_beyond_its_share_of_time_alone():
    scenario = {
        "model": "llama-3.1-70b",
        "hardware": {"gpu": "h100"},
        "workload": {"card": "reasoning-r1-production", "rate": "1.5/s"},
        "slo": {"kv_overflow": 0.2},
        "serving": {"layout": {"tp": 4}, "mode": "disaggregated"},
        "override": {"kv_pool_gib": 5.0},
    }
    answer = plan(scenario)
    assert 0.01 < answer.pools[-1].kv_overflow_probability < 0.1
    short = [doubt for doubt in doubts(answer) if "KV overflow" in doubt.reason]
    flagged, _ = _reached(short)
    assert {"tpot_p99_seconds", "ttft_p99_seconds", "batch_p99", "kv_use_p99"} <= flagged
    assert not any("p90" in name or "p50" in name or "mean" in name for name in flagged)


def test_equal_outputs_are_about_kv_pressure_where_they_are_not_fixed():
    answer = plan(CHAT)
    convoys = [doubt for doubt in doubts(answer) if "convoys" in doubt.reason]
    assert len(convoys) == 1
    assert _reached(convoys)[0] == PRESSURE


def test_what_the_laws_of_one_pool_say_reaches_its_ttft():
    answer = plan(CHAT)
    heavy = replace(answer.pools_at_rate.both.rank, prompts=answer.pools_at_rate.both.rank.prompts * 8)
    decode = answer.pools_at_rate.both
    state = replace(decode.stationary, rank=heavy)
    pools = replace(answer.pools_at_rate, decode=replace(decode, stationary=state))
    flagged, _ = _reached(doubts(replace(answer, pools_at_rate=pools)))
    assert {"ttft_p99_seconds", "itl_p50_seconds"} <= flagged
    assert flagged.isdisjoint({"batch_mean", "prefill_load"})
