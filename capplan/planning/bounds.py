"""Fewest instances a layout can possibly need: mean values only, one vectorised evaluation a layout.

A lower bound, so that the search evaluates percentiles only where they can still win.
"""

from __future__ import annotations

import math

import numpy as np

from capplan.planning.decode_pool import capacity_tokens, pool_memory
from capplan.planning.problem import Problem
from capplan.serving.layout import Layout
from capplan.serving.step import decode_step

BATCH_POINTS = 24
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


def best_rank_rate(problem: Problem, layout: Layout, context: float | None = None) -> float:
    """Highest request rate one rank can sustain by mean values within memory and the step-time limit [1/s].

    ``context`` replaces the mean context of a running request (the naive answer uses E[P] + E[L]/2).
    """
    workload = problem.workload
    theta = workload.mean_context if context is None else context
    most = capacity_tokens(problem, pool_memory(problem, layout, problem.chain())) / theta
    if most < 1:
        return 0.0
    batches = np.unique(np.floor(np.geomspace(1.0, most, BATCH_POINTS)))
    serving = problem.scenario.serving
    step = decode_step(
        problem.model, problem.hardware, layout, batches * layout.dp, theta, mtp=serving.mtp,
        acceptance=serving.acceptance, **problem.step_options,
    )  # fmt: skip
    seconds = np.asarray(step.seconds) / np.asarray(step.tokens_per_step)
    limit = step_time_limit(problem)
    if seconds[0] > limit:
        return 0.0
    batch = min(most, float(np.interp(limit, seconds, batches)) if limit < seconds[-1] else most)
    at_batch = float(np.interp(batch, batches, seconds))
    return batch / (at_batch * max(workload.mean_decode_steps, 1.0))


def fewest_instances(problem: Problem, layout: Layout, rate: float) -> float:
    """Lower bound on instances of a layout for a total rate [1/s]; infinite where none will do."""
    best = best_rank_rate(problem, layout) * layout.dp
    return math.inf if best <= 0 else max(1, math.ceil(rate / best - 1e-9))
