"""What a preempted request costs: computing it again, or swapping it to host memory and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from capplan.cards.hardware import Hardware
from capplan.cards.kv import kv_bytes_per_rank
from capplan.cards.model import Model
from capplan.errors import InputError, shown
from capplan.formulas.preemption_policies import swap_seconds
from capplan.serving.layout import Layout
from capplan.serving.prefill import prefill
from capplan.serving.step_time import one_number

LINKS: dict[str, Callable[[Hardware], float]] = {
    "pcie": lambda hardware: hardware.pcie_bandwidth,
    "nvlink": lambda hardware: hardware.scale_up.bandwidth,
}
EFFICIENCY = 0.85
"""Assumed share of the data-sheet bandwidth that copies of whole blocks reach."""


@dataclass(frozen=True)
class Eviction:
    """Both ways for one request of a rank.

    Parameters
    ----------
    recompute_seconds : prefill of prompt and generated tokens [s]
    swap_seconds : out and back, over what others leave of the link [s]
    break_even_utilization : of the link by others, above which computing again is faster; 0 where it always is [-]
    """

    recompute_seconds: float
    swap_seconds: float
    break_even_utilization: float

    @property
    def swap_pays(self) -> bool:
        """Whether swapping is faster."""
        return self.swap_seconds < self.recompute_seconds


def eviction(
    model: Model,
    hardware: Hardware,
    layout: Layout,
    tokens: float,
    link: str = "pcie",
    link_utilization: float = 0.0,
    kv_dtype: str | None = None,
    recomputed_share: float = 1.0,
    **options: Any,
) -> Eviction:
    """Whether a preempted request is better swapped to host memory or computed again.

    Parameters
    ----------
    model, hardware, layout : what runs where
    tokens : prompt and generated tokens the request loses [token]
    link : to host memory: ``pcie``, or ``nvlink`` where the host hangs on it
    link_utilization : share of the link that KV transfer, weights or a pooled prefix take [-]
    kv_dtype : of the KV cache; None is the checkpoint's
    recomputed_share : of the lost tokens, below 1 with prefix caching
        (:func:`capplan.formulas.preemption_policies.prefix_cache_share`) [-]
    options : of :func:`capplan.prefill`

    Returns
    -------
    eviction : :class:`Eviction`

    Validity: latency of one request. Recompute also takes that time from every running request of the rank; a swap
    takes none while copies overlap with steps. The copies of the ranks of a host are taken to have a link each.

    Raises
    ------
    InputError : an unknown link, a share out of range

    Examples
    --------
    >>> from capplan import Layout, load_hardware, load_model
    >>> cost = eviction(load_model("llama-3.1-8b"), load_hardware("h100"), Layout(), 4000)
    >>> cost.swap_pays, cost.break_even_utilization > 0.5
    (True, True)

    References
    ----------
    :func:`capplan.formulas.preemption_policies.swap_break_even_bandwidth`.
    """
    size = one_number(tokens, "tokens", least=1.0)
    if link not in LINKS:
        raise InputError(f"{shown(link)} is none of {', '.join(LINKS)}", key="link")
    others = one_number(link_utilization, "link_utilization", least=0.0)
    share = one_number(recomputed_share, "recomputed_share", above=True)
    if not others < 1.0 or share > 1.0:
        raise InputError("shares must lie between 0 and 1", key="link_utilization")
    again = prefill(
        model, hardware, layout, max(size * share, 1.0), size * (1.0 - share), kv_dtype=kv_dtype, **options
    ).seconds
    held = kv_bytes_per_rank(model, size, kv_dtype, layout.tp, layout.pp)
    bandwidth = EFFICIENCY * LINKS[link](hardware)
    idle = float(swap_seconds(held, bandwidth))
    return Eviction(float(again), float(swap_seconds(held, bandwidth, others)), max(0.0, 1.0 - idle / float(again)))
