"""Where a decoding rank runs: the batch at which arrivals and completions agree, and the step time around it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from capplan.formulas.barrier import barrier_step_mean
from capplan.formulas.distinct import distinct
from capplan.formulas.lengths import aged_decode_work, decode_work_overlap, running_weight_cube
from capplan.formulas.speculation import tokens_per_verify_step
from capplan.formulas.stationary import burst_damping
from capplan.planning.latency import Array
from capplan.serving.linear import linear_coefficients
from capplan.serving.step import decode_step

if TYPE_CHECKING:
    from capplan.cards.workload import Workload
    from capplan.planning.problem import Problem
    from capplan.serving.layout import Layout

Line = tuple[float, float, float]
BATCH_POINTS = 24
MOST_BATCH = 4096.0
TURNS = 3
LEAST_INTERCEPT = 0.02
"""Least share of the step time that the line keeps as its constant."""
BARRIER_ROUTING = {
    "random": "random",
    "round-robin": "round-robin",
    "least-loaded": "least-loaded",
    "least-kv": "least-loaded",  # keeps batches about equal too; what it saves beyond that is not counted
}


@dataclass(frozen=True, eq=False)
class StepTable:
    """Time a sequence needs for one token, by the batch of its rank, all at the mean context."""

    batches: Array
    seconds: Array

    def at(self, batch: float) -> float:
        """Seconds a token at that batch, linear in between [s]."""
        return float(np.interp(batch, self.batches, self.seconds))

    def batch_within(self, seconds: float) -> float:
        """Largest batch whose token time is at most ``seconds``; 0 where even one sequence takes longer."""
        if self.seconds[0] > seconds:
            return 0.0
        return float(np.interp(seconds, np.maximum.accumulate(self.seconds), self.batches))

    def balance(self, tokens_per_second: float, wait: float = 0.0) -> float:
        """Batch N = tokens/s (T(N) + wait); infinite where the rank cannot keep up within the table.

        Solved on ``N / (T(N) + wait)``, the throughput, which grows with the batch.
        """
        throughput = self.batches / (self.seconds + wait)
        if tokens_per_second > throughput[-1]:
            return math.inf
        return float(np.interp(tokens_per_second, np.append(0.0, throughput), np.append(0.0, self.batches)))


def step_table(problem: Problem, layout: Layout) -> StepTable:
    """The table of a layout, kept with the problem."""
    return problem.kept("step table", layout, lambda: _step_table(problem, layout))


def _step_table(problem: Problem, layout: Layout) -> StepTable:
    batches = distinct(np.floor(np.geomspace(1.0, MOST_BATCH, BATCH_POINTS)))
    step = decode_step(
        problem.model, problem.hardware, layout, batches * layout.dp, problem.workload.mean_context, **_options(problem)
    )
    seconds = np.broadcast_to(np.asarray(step.seconds, float), batches.shape)
    return StepTable(batches, seconds / tokens_per_step(problem))


def _options(problem: Problem) -> dict[str, Any]:
    serving = problem.scenario.serving
    return {"mtp": serving.mtp, "acceptance": serving.acceptance, **problem.timing()}


def tokens_per_step(problem: Problem) -> float:
    """Tokens a sequence gets out of one step: 1 without drafts [1]."""
    serving = problem.scenario.serving
    return float(tokens_per_verify_step((serving.acceptance or 0.0,) * serving.mtp))


def linearised(problem: Problem, layout: Layout, rank_rate: float) -> tuple[float, float, float] | None:
    """(a, e, c) of the token time T = a + e N + c S around the balance of a rank; None where there is no balance.

    Ranks that start every step together wait for the slowest: that wait is part of ``a``.
    """
    found = line_and_wait(problem, layout, rank_rate)
    return None if found is None else (found[0][0] + found[1], *found[0][1:])


def line_and_wait(problem: Problem, layout: Layout, rank_rate: float) -> tuple[Line, float] | None:
    """The token time (a, e, c) of a rank by itself around its balance, and the wait for the slowest rank [s]."""
    table = step_table(problem, layout)
    token_rate, wait, line = rank_rate * problem.workload.mean_decode_steps, 0.0, None
    for _ in range(TURNS if layout.dp > 1 else 1):
        batch = table.balance(token_rate, wait)
        if not math.isfinite(batch):
            return None
        line = line_at(problem, layout, max(batch, 1.0))
        wait = _barrier_wait(problem, layout, line, rank_rate)
    assert line is not None
    return line, wait


def linearised_at(problem: Problem, layout: Layout, batch: float, rank_rate: float) -> tuple[float, float, float]:
    """(a, e, c) around a given batch of a rank, the wait for the slowest rank included."""
    line = line_at(problem, layout, batch)
    return line[0] + _barrier_wait(problem, layout, line, rank_rate), line[1], line[2]


def line_at(problem: Problem, layout: Layout, batch: float) -> Line:
    """(a, e, c) of the token time of a rank by itself around a given batch."""
    a, e, c = linear_coefficients(
        problem.model, problem.hardware, layout, batch, problem.workload.mean_context, **_options(problem)
    )
    # A curve that bends may leave the line no intercept; the laws need one, so it keeps a little of the step.
    total = a + e * batch + c * batch * problem.workload.mean_context
    least = LEAST_INTERCEPT * total
    shrink = 1.0 if a >= least else (total - least) / (total - a)
    tokens = tokens_per_step(problem)
    return max(a, least) / tokens, e * shrink / tokens, c * shrink / tokens


def _barrier_wait(problem: Problem, layout: Layout, line: tuple[float, float, float], rank_rate: float) -> float:
    """Seconds a step waits for its slowest rank, before the wait feeds back into the batch."""
    if layout.dp == 1:
        return 0.0
    (a, e, c), workload = line, problem.workload
    routing = BARRIER_ROUTING[problem.scenario.serving.routing]
    mean = barrier_step_mean(
        a, e, c, rank_rate, workload.mean_decode_steps, workload.mean_context, workload.context_std,
        float(running_weight_cube(e, c, workload.decode_moments)), layout.dp,
        routing, _light_damping(line, workload) if routing == "round-robin" else 1.0,
    )  # fmt: skip
    load = rank_rate * workload.mean_decode_steps * (e + c * workload.mean_context)
    return max(0.0, mean * (1 - load) - a) if math.isfinite(mean) else math.inf


def _light_damping(line: tuple[float, float, float], workload: Workload) -> float:
    """What dealing requests in turn leaves of the batch part of the variance at light load, eta_0 [1]."""
    (_, e, c), m = line, workload.decode_moments
    b, aged = e + c * workload.mean_context, aged_decode_work(e, c, m)
    return float(burst_damping(decode_work_overlap(e, c, workload.overlap), aged, b, m.m01, 0.0))
