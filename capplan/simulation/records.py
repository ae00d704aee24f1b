"""What a simulation writes down: steps, states of ranks, and finished requests."""

from __future__ import annotations

from dataclasses import dataclass, field

from capplan.simulation.request import Request


@dataclass
class Records:
    """Columns, one entry an uninterrupted run of steps (of an instance) or an unchanged state (of a rank).

    ``step_*``: end of the run [s], its duration [s], steps, tokens they made. ``rank_*``: end of the state [s], its
    duration [s], decoding requests, share of the blocks in use, whether requests that have a slot wait for blocks.
    """

    step_end: list[float] = field(default_factory=list)
    step_duration: list[float] = field(default_factory=list)
    step_count: list[int] = field(default_factory=list)
    step_tokens: list[int] = field(default_factory=list)
    rank_end: list[float] = field(default_factory=list)
    rank_duration: list[float] = field(default_factory=list)
    rank_batch: list[int] = field(default_factory=list)
    rank_used: list[float] = field(default_factory=list)
    rank_short: list[bool] = field(default_factory=list)
    loss_time: list[float] = field(default_factory=list)
    loss_tokens: list[int] = field(default_factory=list)
    """When a request was preempted [s], and the tokens that have to be computed (or moved) again."""
    finished: list[Request] = field(default_factory=list)
    refused: int = 0
    """Requests that are longer than a KV pool."""
