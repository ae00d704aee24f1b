"""Named quantities of KV pressure, prefill queueing and cost."""

from __future__ import annotations

from capplan.quantities.quantity import Quantity

_LAW = "capplan.formulas.preemption.closed_loop_pressure"
_WAITS = "capplan.formulas.preemption_waits"

QUANTITIES: tuple[Quantity, ...] = (
    Quantity("kv_pool_capacity", "token or B", "KV pool of one rank, as given.", "given", "argument or memory budget"),
    Quantity("held_mean_tokens", "token", "Mean KV a running request holds (m), half a page included.",
             "E[P L + L^2/2] / E[L] + (block - 1)/2", "capplan.formulas.preemption.request_sizes"),
    Quantity("kv_batch", "1", "Mean running requests of a rank under KV pressure (B).",
             "(C - (1 - P_W) slack - P_W hole) / m", _LAW),
    Quantity("kv_utilization", "1", "Mean share of the KV pool in use.", "kv_batch * held_mean_tokens / pool",
             "capplan.formulas.preemption.pool_utilization"),
    Quantity("kv_overflow_probability", "1", "Share of time in which the requests want more KV than the rank has.",
             "a / (a + b), masses above and below the capacity", _LAW),
    Quantity("recompute_per_token", "1", "Recomputed over generated tokens (rho).",
             "net (n P_W - q)/(n - q) + h_b n / ((a + b) B)", _LAW),
    Quantity("preemptions_per_request", "1", "Mean preemptions of a request.", "net E[L]/h (n P_W - q)/(n - q)", _LAW),
    Quantity("preempted_share", "1", "Share of requests preempted at least once.", "1 - (1 + N_s)^(-rho/net)",
             f"{_WAITS}.preempted_share"),
)  # fmt: skip
