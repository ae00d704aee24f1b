"""Latencies as a run measured them."""

from __future__ import annotations

import numpy as np

from capplan.planning.plan import Plan
from capplan.simulation.intervals import Array, Estimate, quantile
from capplan.simulation.run import Outcome


def simulated_latency(plan: Plan, outcome: Outcome, name: str, p: float) -> Estimate:
    """A percentile: of ITL over tokens, of the step over time, else over requests [s]."""
    if name in ("itl", "step"):
        seconds, number, tokens = outcome.steps
        return quantile(seconds, p, tokens if name == "itl" else number * seconds)
    return quantile(request_seconds(plan, outcome, name), p)


def request_seconds(plan: Plan, outcome: Outcome, name: str) -> Array:
    """A latency of every measured request, by arrival; TPOT of those with two output tokens and more [s]."""
    arrival, first, finish = (
        outcome.column(lambda r: r.arrival), outcome.column(lambda r: r.first), outcome.column(lambda r: r.finish)
    )  # fmt: skip
    if name == "ttft":
        return first - arrival
    if name == "e2e":
        return finish - arrival
    if name == "answer":  # output tokens are taken as evenly spaced
        return first - arrival + (plan.problem.workload.reasoning_share or 0.0) * (finish - first)
    steps = outcome.column(lambda r: r.output - 1.0)
    return np.asarray((finish - first)[steps > 0] / steps[steps > 0])
