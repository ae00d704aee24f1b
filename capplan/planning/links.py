"""Bytes a second on every link of a pool, by cause, beside what the link can carry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from capplan.planning.decode_pool import DecodePool
from capplan.planning.pools import Check
from capplan.planning.prefill_pool import PrefillPool
from capplan.planning.problem import Problem
from capplan.serving.prefill import prefill
from capplan.serving.step import decode_step


@dataclass(frozen=True, eq=False)
class LinkLoad:
    """One link of the busiest GPU of a pool: bytes a second by cause [B/s] and its capacity [B/s]."""

    causes: dict[str, float]
    capacity: float

    @property
    def bytes_per_second(self) -> float:
        """All causes together [B/s]."""
        return sum(self.causes.values())

    @property
    def utilization(self) -> float:
        """Share of the data-sheet capacity in use [1]."""
        return self.bytes_per_second / self.capacity


def capacities(problem: Problem) -> dict[str, float]:
    """Data-sheet bandwidth of each link of one GPU, one direction [B/s]."""
    hardware = problem.hardware
    return {
        "hbm": hardware.hbm_bandwidth,
        "nvlink": hardware.scale_up.bandwidth,
        "pcie": hardware.pcie_bandwidth,
        "nic": hardware.nic.bandwidth,
    }


def kv_bytes_received(problem: Problem, layout_tp: int) -> float:
    """Mean KV bytes of a request that one GPU of a rank receives or sends [B]."""
    from capplan.cards.kv import kv_bytes_per_rank

    serving = problem.scenario.serving
    return float(kv_bytes_per_rank(problem.model, problem.workload.input.mean, serving.kv_dtype, layout_tp))


def decode_links(problem: Problem, pool: DecodePool, *, transfer: bool = True) -> dict[str, LinkLoad]:
    """Links of the busiest GPU of a decode pool: decode steps, and the KV caches it receives."""
    serving = problem.scenario.serving
    batch = max(pool.stationary.mean, 1e-9) * pool.layout.dp
    step = decode_step(
        problem.model, problem.hardware, pool.layout, batch, problem.workload.mean_context, mtp=serving.mtp,
        acceptance=serving.acceptance, **problem.timing(),
    )  # fmt: skip
    causes = {link: {"decode": float(size) / float(step.seconds)} for link, size in step.links.items()}
    if transfer:
        causes["nic"]["kv_transfer"] = pool.rank_rate * kv_bytes_received(problem, pool.layout.tp)
    return _loads(problem, causes)


def prefill_links(problem: Problem, pool: PrefillPool, rate: float) -> dict[str, LinkLoad]:
    """Links of the busiest GPU of a prefill pool: passes of the token budget, and the KV caches it sends."""
    full = prefill(
        problem.model, problem.hardware, pool.layout, pool.cost.token_budget, prompts=pool.layout.dp,
        **problem.timing(),
    )  # fmt: skip
    rank_rate = rate / pool.ranks
    busy = pool.utilization / float(full.seconds)
    causes = {link: {"prefill": float(size) * busy} for link, size in full.links.items()}
    causes["nic"]["kv_transfer"] = rank_rate * kv_bytes_received(problem, pool.layout.tp)
    return _loads(problem, causes)


def _loads(problem: Problem, causes: dict[str, dict[str, float]]) -> dict[str, LinkLoad]:
    """Loads of the links, causes that send nothing left out."""
    limits = capacities(problem)
    used = {link: {cause: rate for cause, rate in shares.items() if rate > 0} for link, shares in causes.items()}
    return {link: LinkLoad(shares, limits[link]) for link, shares in used.items()}


def link_checks(problem: Problem, pool: DecodePool) -> Iterator[Check]:
    """A link above its capacity is a constraint like any other."""
    for link, load in decode_links(problem, pool).items():
        yield Check(f"{link}_utilization", load.utilization, 1.0)
