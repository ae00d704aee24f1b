"""Waits of single requests under KV pressure: largest gap between tokens, wait before the first admission."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from capplan.cards.workload import Workload
from capplan.formulas.preemption import PoolPressure, boundary
from capplan.formulas.preemption_waits import (
    first_wait_probability,
    first_wait_quantile_steps,
    first_wait_variance_steps,
    gap_quantile_steps,
)
from capplan.serving.pressure_rank import PressureRank
from capplan.serving.pressure_sizes import joint_nodes

if TYPE_CHECKING:
    from capplan.formulas.preemption_numeric import OpenLoopPressure

Quantile = Callable[[float], float]


def closed_gap(state: PoolPressure, wait: float, seconds: float | None, refill: float) -> Quantile:
    """Largest gap of a request by quantile over requests, in steps or [s]; ``wait`` T [step], ``refill`` [s]."""

    def quantile(probability: float) -> float:
        steps = gap_quantile_steps(
            probability, wait, state.recompute_per_token, state.net_flux, state.preemptions_when_saturated
        )
        return (1.0 + steps) * (1.0 if seconds is None else seconds) + (refill if steps > 0 else 0.0)

    return quantile


def closed_first_wait(
    rank: PressureRank, workload: Workload, state: PoolPressure, in_flight: float, mean: float, *, capped: bool
) -> Quantile:
    """Wait before the first admission by quantile over requests [step]; ``mean`` over all requests [step].

    Where a cap holds requests back everybody waits, and the boundary moves only while the pool is full.
    """

    @cache
    def law() -> Quantile:
        sizes = rank.occupied
        rank_std = boundary(in_flight, rank.capacity, sizes, state.victim_tokens).rank_std
        share = 1.0 if capped else _probability_of_waiting(rank, workload, state, in_flight)
        moving = rank_std * (state.queue_probability**0.5 if capped else 1.0)
        waiting = mean * state.batch / sizes.output
        variance = float(first_wait_variance_steps(share, waiting, state.batch, moving, sizes))
        return partial(first_wait_quantile_steps, wait_probability=share, mean=mean, variance=variance)

    return lambda probability: law()(probability)


def _probability_of_waiting(rank: PressureRank, workload: Workload, state: PoolPressure, in_flight: float) -> float:
    sizes = rank.occupied
    edge = boundary(in_flight, rank.capacity, sizes, state.victim_tokens)
    _, outputs, weights = joint_nodes(workload, 4, 24)
    excess = in_flight * sizes.held - rank.capacity
    return first_wait_probability(excess, edge.stiffness, edge.std, state.queue_probability, outputs, weights)


def open_first_wait(found: OpenLoopPressure, mean: float, seconds: float) -> Quantile:
    """The same for Poisson arrivals, who see the chain: the queue met over its rate; order of magnitude only [step].

    Scaled to the mean [step]; ``seconds`` of a step.
    """
    import numpy as np

    waits: Any = found.queue_seconds / seconds
    order = np.argsort(waits, kind="stable")
    reached = np.cumsum(found.queue_shares[order])
    total = float(found.queue_shares @ waits)
    scale = mean / total if total > 0.0 else 0.0

    def quantile(probability: float) -> float:
        index = min(int(np.searchsorted(reached, probability)), len(waits) - 1)
        return float(waits[order[index]] * scale)

    return quantile
