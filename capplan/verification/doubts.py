"""What the closed forms of a plan say against themselves: which rows of a verification, and how far off they may be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from capplan.planning.latency import PERCENTILES
from capplan.planning.plan import Plan
from capplan.planning.pools import Pools
from capplan.planning.pressure import FREQUENT, pool_pressure
from capplan.serving.aggregated import rank_warnings
from capplan.serving.notice import Notice
from capplan.verification.verdict import Row

Names = tuple[str, ...]

BATCH_LAW: Names = ("step", "tpot", "itl", "answer", "e2e", "batch_p99", "kv_use_p99")
"""Rows that rest on the law of the stationary batch. Its means are those of Little's law, whatever the lengths."""
CHUNK_LAW: Names = ("ttft", "step", "tpot", "itl", "answer", "e2e")
"""Rows that rest on the law of steps that read prompts, in one pool for both."""
QUEUE_LAW: Names = ("ttft",)
"""Rows that rest on the law of the queue before a prefill pool."""
PRESSURE_LAW: Names = ("kv_overflow", "preemptions", "recompute", "largest_gap")
"""Rows that rest on the laws of KV pressure."""


@dataclass(frozen=True)
class Doubt:
    """A warning, the rows it is about by the beginnings of their names, and their error as far as it gives one."""

    reason: str
    about: Names
    within: float | None = None


def doubts(plan: Plan) -> tuple[Doubt, ...]:
    """All that the closed forms behind a feasible plan warn of."""
    pools = plan.pools_at_rate
    assert pools is not None
    pressure = pool_pressure(plan.problem, pools.decode)
    return (
        *_of_law(pools.decode.stationary.warnings, BATCH_LAW),
        *_of_law(() if pools.both is None else rank_warnings(pools.both.rank), CHUNK_LAW),
        *_of_law(() if pools.prefill is None else pools.prefill.warnings, QUEUE_LAW),
        *_of_law(() if pressure is None else pressure.warnings, PRESSURE_LAW),
        *_short_of_kv(pools, 0.0 if pressure is None else pressure.hit_share),
    )


def _of_law(warnings: Iterable[str], rows: Names) -> Iterator[Doubt]:
    """A warning that names no figure is about all rows of its law."""
    for warning in warnings:
        if isinstance(warning, Notice):
            yield Doubt(str(warning), warning.about or rows, warning.within)
        else:
            yield Doubt(warning, rows)


def _short_of_kv(pools: Pools, hit_share: float) -> Iterator[Doubt]:
    """A pool that is short for a share of time, or of requests, moves the percentiles beyond that share alone."""
    overflow = pools.decode.kv.overflow_probability
    if overflow > FREQUENT:
        share = max(overflow, hit_share)
        reached = [label for label, p in PERCENTILES.items() if 1 - p < share]
        about = (*(f"{name}_{label}" for name in CHUNK_LAW for label in reached), "batch_p99", "kv_use_p99")
        yield Doubt(f"KV overflow {overflow:.1%} of time: latencies and batch leave out preemption", about)


def judged(row: Row, listed: Iterable[Doubt]) -> Row:
    """The row with what is said against it: a wider tolerance as far as a figure is given, else a flag."""
    about = [doubt for doubt in listed if row.name.startswith(doubt.about)]
    given = [d for d in about if d.within is not None and d.within > row.tolerance.relative]
    wide = max((d.within for d in given if d.within is not None), default=row.tolerance.relative)
    return replace(
        row,
        tolerance=replace(row.tolerance, relative=wide),
        widened="; ".join(d.reason for d in given),
        flagged="; ".join(d.reason for d in about if d.within is None),
    )
