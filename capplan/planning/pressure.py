"""What the ranks of a decode pool do when their KV pool runs short."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from capplan.planning.decode_pool import DecodePool
from capplan.planning.prefill_pool import token_budget
from capplan.planning.problem import Problem
from capplan.planning.prompt_line import prompt_line
from capplan.quantities.chain import Chain
from capplan.serving.eviction import Eviction, eviction
from capplan.serving.pressure import KvPressure, kv_pressure
from capplan.serving.stationary import concurrency

SHOWN = frozenset({"preemptions_per_request", "recompute_per_token"})
"""Quantities of KV pressure that a summary shows; overriding others of them changes nothing in a plan."""
RARE = 1e-5
"""Share of time below which the pool never runs short in practice, so that nothing rests on the law of KV pressure."""
FREQUENT = 0.01
"""Overflow, as a share of time, above which a pool is not ample, as the laws of batch and latencies take it to be."""


def pool_pressure(problem: Problem, pool: DecodePool) -> KvPressure | None:
    """KV pressure of one rank; None where nothing fits. Kept with the problem."""
    place = (pool.layout, pool.instances, pool.rank_rate)
    return problem.kept("kv pressure", place, lambda: _pressure(problem, pool))


def _pressure(problem: Problem, pool: DecodePool) -> KvPressure | None:
    budget = pool.budget
    if budget.kv_pool_bytes <= 0:
        return None
    capacity: float = budget.kv_pool_bytes
    held: dict[str, Any] = {"kv": budget.paged_bytes}
    if budget.capacity_tokens is not None:
        capacity, held = budget.capacity_tokens, {"block_size": budget.block_tokens}
    again = prompt_line(problem, pool.layout)[0] * pool.layout.dp
    chain = Chain(problem.scenario.override)
    found = kv_pressure(
        problem.workload, capacity, request_rate=pool.rank_rate, step_time=(*pool.coefficients, again),
        max_num_seqs=pool.cap, token_budget=token_budget(problem), peakedness=_peakedness(problem, pool),
        held_size_share=pool.stationary.held_size_share, prompts_elsewhere=True, chain=chain, **held,
    )  # fmt: skip
    problem.used.update(chain.used_overrides & SHOWN)
    return found


def _peakedness(problem: Problem, pool: DecodePool) -> float:
    """What bursts and routing make of the variance of the batch."""
    calm = concurrency(problem.workload, pool.rank_rate, pool.coefficients, cap=problem.scenario.serving.max_num_seqs)
    return pool.stationary.peakedness(calm)


def pool_eviction(problem: Problem, pool: DecodePool, pressure: KvPressure, link_utilization: float) -> Eviction | None:
    """Computing a preempted request again beside swapping it over PCIe; None where nothing is preempted."""
    if pressure.victim_tokens < 1.0:
        return None
    return eviction(
        problem.model, problem.hardware, pool.layout, pressure.victim_tokens, "pcie", min(link_utilization, 0.99),
        **problem.timing(),
    )  # fmt: skip


def pressure_warnings(problem: Problem, pool: DecodePool) -> Iterator[str]:
    """Where the laws of KV pressure leave their range, and what preemption adds to latencies that leave it out."""
    pressure = pool_pressure(problem, pool)
    if pressure is None:
        return
    overflow = max(pressure.overflow_probability, pool.kv.overflow_probability)
    if pressure.metastable or not pressure.stable or overflow > RARE:
        yield from (f"KV pressure: {text}" for text in pressure.warnings)
    if pool.kv.overflow_probability > FREQUENT:
        yield (
            f"KV overflow {pool.kv.overflow_probability:.1%} of time: latencies leave out preemption, which hits "
            f"{pressure.hit_share:.1%} of requests (largest gap P99 {pressure.gap_quantile(0.99):.3g} s)"
        )
