"""The rows of a verification: every quantity of a plan that the simulation measures too."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from capplan.planning.latency import PERCENTILES
from capplan.planning.plan import Plan
from capplan.planning.pressure import pool_pressure
from capplan.planning.report import LABELS, TITLES
from capplan.serving.pressure import KvPressure
from capplan.simulation.intervals import mean, quantile, ratio
from capplan.verification.doubts import doubts, judged
from capplan.verification.latencies import simulated_latency
from capplan.verification.pools import SimulatedPlan
from capplan.verification.verdict import Row, Tolerance

SHOWN = ("p50", "p90", "p99")
LATENCY_TOLERANCES = {
    "ttft": {"p50": Tolerance(0.15, 1e-3), "p90": Tolerance(0.20, 1e-3), "p99": Tolerance(0.30, 1e-3)},
    "tpot": dict.fromkeys(SHOWN, Tolerance(0.05)),
    "itl": dict.fromkeys(SHOWN, Tolerance(0.05)),
    "step": dict.fromkeys(SHOWN, Tolerance(0.05)),
    "answer": dict.fromkeys(SHOWN, Tolerance(0.10)),
    "e2e": dict.fromkeys(SHOWN, Tolerance(0.10)),
}
"""TTFT: what the queueing laws were checked to (a millisecond where it is tiny). Sums of TTFT and decode time: 10 %."""
BATCH = Tolerance(0.05, 0.1)
KV_SHARE = Tolerance(absolute=0.02)
OVERFLOW = Tolerance(absolute=0.02)
PREEMPTIONS = Tolerance(0.25, 0.05)
RECOMPUTE = Tolerance(absolute=0.03)
GAP = Tolerance(0.35)
PREFILL_LOAD = Tolerance(0.05)


def rows(plan: Plan, simulated: SimulatedPlan) -> tuple[Row, ...]:
    """Latencies first, then batch, KV pool and prefill load; each with what its closed form warns of."""
    found, listed = (*_latencies(plan, simulated), *_pool(plan, simulated), *_prefill(plan, simulated)), doubts(plan)
    return tuple(judged(row, listed) for row in found)


def _latencies(plan: Plan, simulated: SimulatedPlan) -> Iterator[Row]:
    view = plan.view
    assert view is not None
    for name, tolerances in LATENCY_TOLERANCES.items():
        if name == "answer" and not plan.problem.workload.reasoning_share:
            continue  # it is the TTFT then
        for label in SHOWN:
            found = simulated_latency(plan, simulated.outcome, name, PERCENTILES[label])
            title = f"{TITLES[name]} {LABELS[label]}"
            closed = view.percentile(name, PERCENTILES[label])
            yield Row(f"{name}_{label}_seconds", title, closed, found, tolerances[label])


def _pool(plan: Plan, simulated: SimulatedPlan) -> Iterator[Row]:
    """Batch and KV pool of a rank. A request that is never preempted has a gap of one mean step, as the law has it."""
    pool, outcome = plan.pools[-1], simulated.outcome
    state, pressure = outcome.states, _pressure(plan)
    yield Row("batch_mean", "batch mean", pool.batch_mean or 0.0, outcome.batch, BATCH)
    found = quantile(state[1], 0.99, state[0])
    yield Row("batch_p99", "batch P99", pool.batch_p99 or 0.0, found, Tolerance(0.10, 1.0))
    yield Row("kv_use_mean", "KV use mean", pool.kv_use_mean or 0.0, outcome.kv_use, KV_SHARE)
    found = quantile(state[2], 0.99, state[0])
    yield Row("kv_use_p99", "KV use P99", min(pool.kv_use_p99 or 0.0, 1.0), found, Tolerance(0.10, 0.02))
    overflow, limit = pool.kv_overflow_probability or 0.0, plan.problem.scenario.slo.kv_overflow
    yield Row("kv_overflow_probability", "KV overflow", overflow, outcome.overflow, OVERFLOW, limit)
    found, expected = mean(outcome.column(lambda r: float(r.preemptions))), pressure.preemptions_per_request
    yield Row("preemptions_per_request", "preemptions a request", expected, found, PREEMPTIONS)
    found = outcome.recompute_per_token
    yield Row("recompute_share", "recomputed a token", pressure.recompute_per_token, found, RECOMPUTE)
    found = quantile(np.maximum(outcome.column(lambda r: r.largest_gap), outcome.step_mean), 0.99)
    yield Row("largest_gap_p99_seconds", "largest gap P99", pressure.gap_quantile(0.99), found, GAP)


def _pressure(plan: Plan) -> KvPressure:
    """KV pressure of a rank as the plan has it: with its bursts, routing, prefill cost and pages."""
    pools = plan.pools_at_rate
    assert pools is not None
    found = pool_pressure(plan.problem, pools.decode)
    assert found is not None, "a feasible plan has room for KV cache"
    return found


def _prefill(plan: Plan, simulated: SimulatedPlan) -> Iterator[Row]:
    """Load of the prefill pool."""
    if simulated.prefill is None:
        return
    assert plan.pools_at_rate is not None
    assert plan.pools_at_rate.prefill is not None
    apart = np.diff(simulated.prefill.arrivals)
    load = ratio(np.array(simulated.prefill.busy[1:]), apart * plan.pools_at_rate.prefill.ranks)
    yield Row("prefill_load", "prefill load", plan.pools[0].utilization, load, PREFILL_LOAD)
