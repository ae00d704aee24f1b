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
    steps = outcome.column(lambda r: r.output - 1.0)
    if name == "answer":  # output tokens are taken as evenly spaced
        thinking = np.minimum(_reasoning_tokens(plan, outcome), steps)
        return np.asarray(first - arrival + thinking / np.maximum(steps, 1.0) * (finish - first))
    return np.asarray((finish - first)[steps > 0] / steps[steps > 0])


def _reasoning_tokens(plan: Plan, outcome: Outcome) -> Array:
    """Of every measured request: those of the trace, else drawn from the law of the workload [token]."""
    told = outcome.column(lambda r: np.nan if r.reasoning is None else float(r.reasoning))
    outputs = outcome.column(lambda r: float(r.output))
    drawn = plan.problem.workload.draw_reasoning(outputs, np.random.default_rng(0))
    return np.where(np.isnan(told), drawn, told)
