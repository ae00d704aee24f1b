"""One pool of a plan as a person or a program reads it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from capplan.planning.decode_pool import DecodePool, capacity_tokens
from capplan.planning.links import LinkLoad, decode_links, prefill_links
from capplan.planning.prefill_pool import PrefillPool
from capplan.planning.pressure import pool_eviction, pool_pressure
from capplan.planning.problem import Problem
from capplan.serving.layout import Layout


@dataclass(frozen=True)
class PoolSummary:
    """One pool: size, cap, use, pressure, links, engine flags. Rates and caps are per rank."""

    role: str
    instances: int
    gpus: int
    layout: dict[str, Any]
    max_num_seqs_per_rank: int | None
    utilization: float
    batch_mean: float | None
    batch_p99: float | None
    kv_capacity_tokens_per_rank: float
    kv_use_mean: float | None
    kv_use_p99: float | None
    kv_overflow_probability: float | None
    preemptions_per_request: float | None
    recompute_share: float | None
    metastable: bool | None
    preempted_share: float | None = None
    preemption_gap_p99_seconds: float | None = None
    recompute_time_share: float | None = None
    preempted_recompute_seconds: float | None = None
    preempted_swap_seconds: float | None = None
    links: dict[str, Any] = field(default_factory=dict)
    engine_flags: str = ""

    def to_dict(self) -> dict[str, Any]:
        """All fields, for JSON."""
        return asdict(self)


def layout_dict(layout: Layout) -> dict[str, Any]:
    """A layout for JSON, the expert parallelism spelled out."""
    ep = layout.ep or (layout.tp * layout.dp if layout.dp > 1 else 1)
    return {
        "tp": layout.tp,
        "pp": layout.pp,
        "dp": layout.dp,
        "ep": ep,
        "dcp": layout.dcp,
        "redundant_experts": layout.redundant_experts,
        "text": str(layout),
    }


def links_dict(links: dict[str, LinkLoad]) -> dict[str, Any]:
    """Links in use: bytes a second by cause, capacity and utilisation."""
    return {
        link: {
            "bytes_per_second": load.bytes_per_second,
            "capacity_bytes_per_second": load.capacity,
            "utilization": load.utilization,
            "causes": load.causes,
        }
        for link, load in links.items()
        if load.bytes_per_second > 0
    }


def decode_summary(
    problem: Problem, pool: DecodePool, role: str, links: dict[str, LinkLoad] | None = None
) -> PoolSummary:
    """Summary of a pool that decodes."""
    capacity = capacity_tokens(problem, pool.budget)
    pressure = pool_pressure(problem, pool)
    used = links_dict(decode_links(problem, pool) if links is None else links)
    return PoolSummary(
        role=role,
        instances=pool.instances,
        gpus=pool.gpus,
        layout=layout_dict(pool.layout),
        max_num_seqs_per_rank=pool.cap,
        utilization=pool.stationary.load,
        batch_mean=pool.stationary.mean,
        batch_p99=float(pool.stationary.quantile(0.99)),
        kv_capacity_tokens_per_rank=capacity,
        kv_use_mean=pool.kv.mean,
        kv_use_p99=pool.kv.p99,
        kv_overflow_probability=pool.kv.overflow_probability,
        preemptions_per_request=None if pressure is None else pressure.preemptions_per_request,
        recompute_share=None if pressure is None else pressure.recompute_per_token,
        metastable=None if pressure is None else pressure.metastable,
        **_preemption(problem, pool, used),
        links=used,
        engine_flags=engine_flags(problem, pool.layout, pool.cap),
    )


def _preemption(problem: Problem, pool: DecodePool, links: dict[str, Any]) -> dict[str, float]:
    """What preemption does to requests, and what swapping would cost in place of computing again."""
    pressure = pool_pressure(problem, pool)
    if pressure is None:
        return {}
    found = {
        "preempted_share": pressure.hit_share,
        "preemption_gap_p99_seconds": pressure.gap_quantile(0.99),
        "recompute_time_share": pressure.recompute_time_share or 0.0,
    }
    either = pool_eviction(problem, pool, pressure, links.get("pcie", {}).get("utilization", 0.0))
    if either is not None:
        found["preempted_recompute_seconds"] = either.recompute_seconds
        found["preempted_swap_seconds"] = either.swap_seconds
    return found


def prefill_summary(problem: Problem, pool: PrefillPool, rate: float) -> PoolSummary:
    """Summary of a prefill pool."""
    return PoolSummary(
        role="prefill",
        instances=pool.instances,
        gpus=pool.gpus,
        layout=layout_dict(pool.layout),
        max_num_seqs_per_rank=None,
        utilization=pool.utilization,
        batch_mean=None,
        batch_p99=None,
        kv_capacity_tokens_per_rank=capacity_tokens(problem, pool.budget),
        kv_use_mean=None,
        kv_use_p99=None,
        kv_overflow_probability=None,
        preemptions_per_request=None,
        recompute_share=None,
        metastable=None,
        links=links_dict(prefill_links(problem, pool, rate)),
        engine_flags=engine_flags(problem, pool.layout, None),
    )


def engine_flags(problem: Problem, layout: Layout, cap: int | None) -> str:
    """The engine's command-line flags that realise a pool."""
    serving = problem.scenario.serving
    settings = {
        "tp": layout.tp,
        "stage_gpus": layout.tp * layout.dp,
        "pp": layout.pp if layout.pp > 1 else None,
        "dp": layout.dp if layout.dp > 1 else None,
        "ep": layout_dict(layout)["ep"] if layout_dict(layout)["ep"] > 1 else None,
        "redundant_experts": layout.redundant_experts or None,
        "max_num_seqs": cap if cap is not None and math.isfinite(cap) and cap > 0 else None,
        "max_num_batched_tokens": serving.max_num_batched_tokens and int(serving.max_num_batched_tokens),
        "kv_dtype": serving.kv_dtype and problem.engine.kv_dtypes.get(serving.kv_dtype),
    }
    return " ".join(problem.engine.command_line(settings))
