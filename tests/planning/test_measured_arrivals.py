"""Dispersion of a trace at the horizon of the plan that uses it."""

from pathlib import Path

import pytest

from capplan.planning.plan import plan

TRACE = Path(__file__).parents[1] / "truth" / "traces" / "azure2023_conv.csv.gz"
SCENARIO = {"model": "llama-3.1-70b", "hardware": {"gpu": "h100"}, "slo": {"tpot_p99": "60ms", "ttft_p99": "3s"}}


@pytest.mark.parametrize("rate", [3, 8, 24])
@pytest.mark.parametrize("mode", ["aggregated", "disaggregated"])
def test_a_plan_uses_the_dispersion_of_its_own_horizon(rate: int, mode: str) -> None:
    """At 3, 8 and 24 requests/s one pool takes 4, 12 and 28 GPUs; with the index over a minute it took up to twice."""
    answer = plan({**SCENARIO, "workload": {"trace": str(TRACE), "rate": f"{rate}/s"}, "serving": {"mode": mode}})
    assert answer.outcome.pools is not None
    arrivals = answer.problem.workload.arrivals
    assert arrivals is not None
    index = arrivals.dispersion_at(answer.outcome.pools.decode.stationary.dispersion_horizon_seconds)
    assert answer.problem.scenario.workload.dispersion == pytest.approx(index, rel=0.03)
    assert index < 0.5 * arrivals.dispersion_at(60.0)


def test_pools_whose_sizes_jump_over_the_fixed_point_err_high(monkeypatch: pytest.MonkeyPatch) -> None:
    """No index is that of its own plan where it has to be below 3 % of it: the search ends, on the safe side."""
    monkeypatch.setattr("capplan.planning.measured_arrivals.CLOSE_ENOUGH", 0.0)
    answer = plan({**SCENARIO, "workload": {"trace": str(TRACE), "rate": "8/s"}, "serving": {"mode": "aggregated"}})
    assert answer.outcome.pools is not None
    arrivals = answer.problem.workload.arrivals
    assert arrivals is not None
    index = arrivals.dispersion_at(answer.outcome.pools.decode.stationary.dispersion_horizon_seconds)
    assert index <= answer.problem.scenario.workload.dispersion < 1.1 * index
