"""Fewest instances a layout can possibly need: mean values only, one vectorised evaluation a layout.

A lower bound, so that the search evaluates percentiles only where they can still win.
"""

from __future__ import annotations

import math

from capplan.planning.decode_pool import pool_memory
from capplan.planning.operating_point import step_table
from capplan.planning.problem import Problem
from capplan.planning.residents import residents
from capplan.serving.layout import Layout

_MEAN_BELOW = {"p90": 1.0, "p99": 1.0, "p999": 1.0}
"""Percentiles the mean lies below, whatever the law of step times (they are right-skewed and narrow)."""


def step_time_limit(problem: Problem) -> float:
    """The mean step time no plan may exceed: the tightest TPOT, ITL or E2E target [s]."""
    limits = [math.inf]
    steps = problem.workload.mean_decode_steps
    for key, target in problem.targets.items():
        name, _, label = key.rpartition("_")
        if label in _MEAN_BELOW and name in ("tpot", "itl"):
            limits.append(target)
        if label in _MEAN_BELOW and name == "e2e" and steps > 0:
            limits.append(target / problem.workload.output.quantile(0.5))
    return min(limits)


def best_rank_rate(problem: Problem, layout: Layout) -> float:
    """Highest request rate one rank can sustain by mean values within memory and the step-time limit [1/s]."""
    workload = problem.workload
    if not pool_memory(problem, layout).fits:
        return 0.0
    held = residents(problem, layout, pool_memory(problem, layout))
    most = held.capacity / held.mean
    if most < 1:
        return 0.0
    table = step_table(problem, layout)
    batch = min(most, table.batch_within(step_time_limit(problem)))
    return batch / (table.at(batch) * max(workload.mean_decode_steps, 1.0))


def fewest_instances(problem: Problem, layout: Layout, rate: float) -> float:
    """Lower bound on instances of a layout for a total rate [1/s]; infinite where none will do."""
    best = best_rank_rate(problem, layout) * layout.dp
    return math.inf if best <= 0 else max(1, math.ceil(rate / best - 1e-9))
