"""A decode pool: equal instances whose ranks each hold a stationary batch of running requests."""

from __future__ import annotations

import math
from dataclasses import dataclass

from capplan.formulas.overflow import demand_quantile, overflow_probability, random_count_demand, safe_cap
from capplan.planning.operating_point import linearised
from capplan.planning.pool import Pool
from capplan.planning.problem import Problem
from capplan.planning.residents import residents
from capplan.quantities.chain import Chain
from capplan.serving.layout import Layout
from capplan.serving.memory import MemoryBudget, memory
from capplan.serving.stationary import Stationary, concurrency


@dataclass(frozen=True, eq=False)
class KvUse:
    """Demand for the KV pool of one rank, as shares of its capacity, and how often it is exceeded."""

    mean: float
    p99: float
    overflow_probability: float
    needed: float
    """Share of the capacity that would keep the overflow at its target; above 1 there is too little."""


@dataclass(frozen=True, eq=False)
class DecodePool(Pool):
    """One decode pool under load: the state of one of its equal ranks."""

    coefficients: tuple[float, float, float]
    """(a, e, c) of T = a + e N + c S of one rank, the wait for the slowest rank inside a."""
    stationary: Stationary
    rank_rate: float
    kv: KvUse
    cap: int


def evaluate(
    problem: Problem, layout: Layout, instances: int, rate: float, chain: Chain | None = None
) -> DecodePool | None:
    """The state of a decode pool at a total request rate [1/s]; None where it cannot keep up.

    Kept with the problem unless a chain records it.
    """
    if chain is not None:
        return _evaluate(problem, layout, instances, rate, chain)
    place = (layout, instances, rate)
    return problem.kept("decode pool", place, lambda: _evaluate(problem, layout, instances, rate, problem.chain()))


def _evaluate(problem: Problem, layout: Layout, instances: int, rate: float, chain: Chain) -> DecodePool | None:
    rank_rate = rate / (instances * layout.dp)
    coefficients = linearised(problem, layout, rank_rate)
    if coefficients is None:
        return None
    stationary = stationary_batch(problem, coefficients, rank_rate, instances * layout.dp, chain)
    if not stationary.stable:
        return None
    budget = pool_memory(problem, layout)
    kv, cap = kv_use(problem, layout, budget, stationary), batch_cap(problem, layout, budget, stationary)
    return DecodePool(layout, instances, budget, coefficients, stationary, rank_rate, kv, cap)


def pool_memory(problem: Problem, layout: Layout, chain: Chain | None = None) -> MemoryBudget:
    """The memory budget of one rank under the scenario's options; kept with the problem unless a chain records it."""
    if chain is None:
        return problem.kept("memory", layout, lambda: _memory(problem, layout, problem.chain()))
    return _memory(problem, layout, chain)


def _memory(problem: Problem, layout: Layout, chain: Chain) -> MemoryBudget:
    serving = problem.scenario.serving
    return memory(
        problem.model,
        problem.hardware,
        layout,
        problem.engine,
        chain=chain,
        weight_dtype=serving.weight_dtype,
        kv_dtype=serving.kv_dtype,
        mtp=serving.mtp,
    )


def stationary_batch(
    problem: Problem,
    coefficients: tuple[float, float, float],
    rank_rate: float,
    ranks: int,
    chain: Chain,
    disturbance: float = 0.0,
) -> Stationary:
    """The stationary batch of one rank for a token time T = a + e N + c S."""
    section = problem.scenario
    return concurrency(
        problem.workload,
        rank_rate,
        coefficients,
        cap=section.serving.max_num_seqs,
        dispersion=section.workload.dispersion,
        routing=section.serving.routing,
        instances=ranks,
        dispersion_window=section.workload.dispersion_window,
        disturbance=disturbance,
        in_flight=section.workload.concurrency,
        chain=chain,
    )


def kv_use(problem: Problem, layout: Layout, budget: MemoryBudget, stationary: Stationary) -> KvUse:
    """Demand of the stationary batch against the pool of a rank."""
    held = residents(problem, layout, budget)
    capacity = held.capacity
    if capacity <= 0:
        return KvUse(math.inf, math.inf, 1.0, math.inf)
    sizes = held.balanced(stationary.held_size_share)
    mean, variance, third = random_count_demand(stationary.mean, stationary.held_std**2, *sizes)
    overflow = float(overflow_probability(capacity, mean, variance, third))
    p99, needed = (
        max(0.0, demand_quantile(p, mean, variance, third)) / capacity
        for p in (0.99, 1 - problem.scenario.slo.kv_overflow)
    )
    return KvUse(mean / capacity, p99, overflow, needed)


def capacity_tokens(problem: Problem, budget: MemoryBudget) -> float:
    """Tokens a rank holds; where bytes a token are no constant, at the mean context of a running request."""
    if budget.capacity_tokens is not None:
        return float(budget.capacity_tokens)
    context = problem.workload.mean_context
    return float(budget.max_sequences(context) * context)


def batch_cap(problem: Problem, layout: Layout, budget: MemoryBudget, stationary: Stationary) -> int:
    """The ``max_num_seqs`` to set on a rank: what memory holds safely, and never less than the P99.9 batch needs."""
    if problem.scenario.serving.max_num_seqs is not None:
        return problem.scenario.serving.max_num_seqs
    held = residents(problem, layout, budget)
    overflow = problem.scenario.slo.kv_overflow
    safe = problem.kept("safe cap", layout, lambda: safe_cap(held.capacity, *held.sizes, overflow))
    return max(1, safe, math.ceil(float(stationary.quantile(0.999))))
