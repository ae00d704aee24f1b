"""One pool for prefill and decode: chunks of prompts join the decode steps of a rank."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from capplan.cards.workload import Workload
from capplan.formulas.chunked_prefill_latency import AtomLaw, TpotLaw, gap_law, step_law, tpot_law, ttft_law
from capplan.formulas.chunked_prefill_numeric import ChunkedRank, stepping_together
from capplan.formulas.stationary import thinned_dispersion
from capplan.planning.decode_pool import DecodePool, batch_cap, kv_use, pool_memory, stationary_batch
from capplan.planning.latency import Array, Law
from capplan.planning.measured_arrivals import dispersion_of_queue
from capplan.planning.operating_point import linearised_at, step_table
from capplan.planning.prefill_pool import token_budget
from capplan.planning.problem import Problem
from capplan.planning.prompt_line import prompt_line
from capplan.serving.layout import Layout
from capplan.serving.stationary import Stationary, concurrency

TURNS = 3
CLASS_PROMPTS, CLASS_OUTPUTS = 24, 24
SIDE = 16
MOST_LOAD = 0.98


@dataclass(frozen=True, eq=False)
class MixedState:
    """Latencies of a rank whose decode steps carry prompt chunks; the batch is that of ``decode``.

    ITL is bimodal (steps with and without a chunk); TPOT sees the chunks averaged over a request.
    """

    decode: Stationary
    rank: ChunkedRank
    burst_factor: float = 1.0
    """Variance of the step time over what it would be with Poisson arrivals."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.decode, name)

    @property
    def load(self) -> float:
        """Offered rate over the largest stable rate [1]."""
        return self.rank.request_rate / self.rank.max_rate

    @cached_property
    def _tpot(self) -> TpotLaw:
        """Bursts widen the law, and requests that come in bursts meet longer steps: E_t T = E_s T + V_T/E_s T."""
        law, more = tpot_law(self.rank), self.burst_factor - 1
        means = law.means + more * law.variances / self.rank.step_mean
        return replace(law, means=means, variances=law.variances * self.burst_factor)

    def tpot_quantile(self, p: float) -> float:
        """TPOT over requests [s]."""
        return self._tpot.quantile(p)

    def tpot_share_within(self, seconds: float) -> float:
        """Share of requests with at most that TPOT [1]."""
        return self._tpot.cdf(seconds)

    @cached_property
    def _gaps(self) -> AtomLaw:
        return gap_law(self.rank)

    def itl_quantile(self, p: float) -> float:
        """Gap between two tokens, over gaps [s]."""
        return self._gaps.quantile(p)

    def itl_share_within(self, seconds: float) -> float:
        """Share of gaps of at most that length [1]."""
        return self._gaps.share_within(seconds)

    @cached_property
    def _steps(self) -> AtomLaw:
        return step_law(self.rank)

    def step_quantile(self, p: float) -> float:
        """Step time, over time [s]."""
        return self._steps.quantile(p)


@dataclass(frozen=True, eq=False)
class AggregatedPool(DecodePool):
    """A pool that reads prompts too; ``ttft`` is the whole TTFT."""

    ttft: Law

    @property
    def rank(self) -> ChunkedRank:
        """One of its ranks."""
        return cast("MixedState", self.stationary).rank


def evaluate(problem: Problem, layout: Layout, instances: int, rate: float) -> AggregatedPool | None:
    """The state of an aggregated pool at a total request rate [1/s]; None where it cannot keep up.

    Kept with the problem.
    """
    place = (layout, instances, rate)
    return problem.kept("aggregated pool", place, lambda: _evaluate(problem, layout, instances, rate))


def _evaluate(problem: Problem, layout: Layout, instances: int, rate: float) -> AggregatedPool | None:
    rank_rate = rate / (instances * layout.dp)
    found = _chunked_rank(problem, layout, instances, rank_rate)
    if found is None or found.request_rate > MOST_LOAD * found.max_rate:
        return None
    decode_load = rank_rate * found.steps_mean * found.decode_cost
    line = (found.step_mean * (1 - decode_load), found.sequence, found.context)
    ranks = instances * layout.dp
    calm = concurrency(problem.workload, rank_rate, line)
    if not calm.stable:
        return None
    pulses = max(0.0, found.spectrum.decode_variance - calm.step_std**2) / found.decode_cost**2
    decode = stationary_batch(problem, line, rank_rate, ranks, problem.chain(), pulses)
    if not decode.stable:
        return None
    budget = pool_memory(problem, layout)
    law = ttft_law(found)
    state: Any = MixedState(decode, found, _burst_factor(problem, line, rank_rate, ranks))
    return AggregatedPool(
        layout, instances, budget, line, state, rank_rate, kv_use(problem, layout, budget, decode),
        batch_cap(problem, layout, budget, decode), Law.of(law.seconds, law.shares).reduced(),
    )  # fmt: skip


def _burst_factor(problem: Problem, line: tuple[float, float, float], rank_rate: float, ranks: int) -> float:
    """What bursts do to the variance of the decode step."""
    dispersion, routing = problem.scenario.workload.dispersion, problem.scenario.serving.routing
    if dispersion <= 1:
        return 1.0
    bursty, calm = (
        concurrency(problem.workload, rank_rate, line, routing=routing, instances=ranks, dispersion=index)
        for index in (dispersion, 1.0)
    )
    return max(1.0, (bursty.step_std / calm.step_std) ** 2) if calm.step_std > 0 else 1.0


def _chunked_rank(problem: Problem, layout: Layout, instances: int, rank_rate: float) -> ChunkedRank | None:
    """The rank at its balance: the decode line is taken at the batch that the mixed steps lead to."""
    (per_token, per_square), budget = prompt_line(problem, layout), token_budget(problem)
    hit, dispersion = problem.scenario.serving.prefix_hit, problem.scenario.workload.dispersion
    # Of a prompt a share is cached: its products are saved, the attention of the rest to it is not.
    per_token, per_square, budget = per_token * (1 - hit), per_square * (1 - hit**2), budget / (1 - hit)
    dispersion = max(1.0, thinned_dispersion(dispersion, instances * layout.dp))
    prompts, steps, weights = problem.kept("request nodes", Layout(), lambda: request_nodes(problem.workload))
    batch = step_table(problem, layout).balance(rank_rate * problem.workload.mean_decode_steps)
    rank = None
    for _ in range(TURNS):
        if not math.isfinite(batch):
            return None
        a, e, c = linearised_at(problem, layout, max(batch, 1.0), rank_rate)
        alone = ChunkedRank(
            rank_rate, a, e, c, per_token, per_square, budget, np.maximum(prompts, 1.0), steps, weights, dispersion
        )
        rank = stepping_together(alone, layout.dp)
        if rank.load >= 1:
            return None
        batch = rank.running
    return None if rank is None else _at_own_scale(problem, rank, instances * layout.dp)


def _at_own_scale(problem: Problem, rank: ChunkedRank, ranks: int) -> ChunkedRank:
    """Bursts before the prompts of a rank count at the time scale of their queue where a trace tells the dispersion."""
    arrivals, free = problem.arrivals, rank.token_budget - rank.running
    if arrivals is None or free <= 0:
        return rank
    service = rank.fluid_service(rank.prompts, rank.decode_step, free)
    if rank.request_rate * float(rank.weights @ service) >= 1:
        return rank

    def split(index: float) -> float:
        return max(1.0, float(thinned_dispersion(index, ranks)))

    index = dispersion_of_queue(arrivals, split, service, rank.weights, 1, rank.request_rate)
    return replace(rank, arrival_variation=index)


def request_nodes(workload: Workload) -> tuple[Array, Array, Array]:
    """Requests as at most 256 weighted nodes: prompts [tokens], decode steps [tokens], shares [1]."""
    if workload.joint is not None:
        return _compressed(workload.joint.input, workload.joint.output - 1.0, workload.joint.weight)
    prompts, steps, weights = [], [], []
    for kind in workload.classes:
        p, p_share = kind.input.nodes(CLASS_PROMPTS)
        d, d_share = kind.output.nodes(CLASS_OUTPUTS)
        prompts.append(np.repeat(p, len(d)))
        steps.append(np.tile(d - 1.0, len(p)))
        weights.append(kind.share * np.outer(p_share, d_share).ravel())
    return _compressed(np.concatenate(prompts), np.concatenate(steps), np.concatenate(weights))


def _compressed(prompts: Array, steps: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Means of cells of equal steps and prompts, finer towards the long ones; means of both are kept."""
    if len(weights) <= SIDE * SIDE:
        return prompts, steps, weights
    cell = _cells(steps, weights) * SIDE + _cells(prompts, weights)
    mass = np.bincount(cell, weights, SIDE * SIDE)
    used = mass > 0
    means = [np.bincount(cell, weights * values, SIDE * SIDE)[used] / mass[used] for values in (prompts, steps)]
    return means[0], means[1], mass[used] / mass.sum()


def _cells(values: Array, weights: Array) -> NDArray[np.int64]:
    """Which of ``SIDE`` cells each value falls into: equal shares up to 0.8, then geometric in what is left."""
    edges = np.append(np.linspace(0.0, 0.8, SIDE // 2 + 1), 1.0 - 0.2 * np.geomspace(0.5, 1e-3, SIDE // 2 - 1))
    order = np.argsort(values, kind="stable")
    reached = np.empty(len(values))
    reached[order] = np.cumsum(weights[order]) - weights[order] / 2
    return np.asarray(np.searchsorted(edges[1:], reached / weights.sum()), np.int64)
