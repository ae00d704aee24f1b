"""What running requests hold in the KV pool of a rank, and what the pool does when it runs short."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from capplan.formulas.overflow import narrowed_cumulants
from capplan.planning.problem import Problem
from capplan.serving.pressure_sizes import pool_request

if TYPE_CHECKING:
    from capplan.cards.workload import Workload
    from capplan.serving.layout import Layout
    from capplan.serving.memory import MemoryBudget


@dataclass(frozen=True)
class Residents:
    """Pool of a rank and cumulants of what one running request holds of it, in a common unit.

    The unit is a token, or where bytes a token are no constant (windows, recurrent state) what one generated token
    takes on average.
    """

    capacity: float
    mean: float
    variance: float
    third: float

    @property
    def sizes(self) -> tuple[float, float, float]:
        """Mean, variance and third central moment of a running request."""
        return self.mean, self.variance, self.third

    def balanced(self, share: float) -> tuple[float, float, float]:
        """``sizes`` behind a router that leaves only a share of their variance within a rank."""
        return self.mean, *narrowed_cumulants(self.variance, self.third, share)


def residents(problem: Problem, layout: Layout, budget: MemoryBudget) -> Residents:
    """Pool of a layout and its running requests."""
    workload = problem.workload
    if budget.kv_pool_bytes <= 0:
        return Residents(0.0, *running_size_moments(workload))
    if budget.capacity_tokens is not None:
        mean, variance, third = running_size_moments(workload)
        return Residents(float(budget.capacity_tokens), mean + (budget.block_tokens - 1) / 2, variance, third)
    split = (layout.tp, layout.pp, layout.dcp)  # a sequence is held alike on all data-parallel ranks
    request = problem.kept("resident sizes", split, lambda: pool_request(workload, 1.0, budget.paged_bytes))
    held = request.sizes
    return Residents(budget.kv_pool_bytes / request.unit, held.held, held.held_variance, held.held_third)


def running_size_moments(workload: Workload) -> tuple[float, float, float]:
    r"""Mean, variance and third central moment of the cached tokens of a running request.

    .. math:: E[X^3] = E[D P'^3 + \tfrac32 P'^2 D^2 + P' D^3 + D^4/4]/E[D]

    with D = L - 1 decode steps and the prompt P' of :class:`capplan.formulas.decode_nodes.DecodeMoments`.
    """
    m = workload.decode_moments
    mean, variance = workload.mean_context, workload.context_std**2
    third_raw = (m.m31 + 1.5 * m.m22 + m.m13 + m.m04 / 4) / m.m01
    return mean, variance, third_raw - 3 * mean * variance - mean**3
