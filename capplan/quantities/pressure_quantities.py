"""Named quantities of KV pressure, prefill queueing and cost."""

from __future__ import annotations

from capplan.quantities.quantity import Quantity, with_ranges

_LAW = "capplan.formulas.preemption.closed_loop_pressure"
_WAITS = "capplan.formulas.preemption_waits"

_QUANTITIES: tuple[Quantity, ...] = (
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
    Quantity("swapped_per_token", "1", "Tokens moved to and from host memory per generated token.",
             "2 recompute_per_token of the recompute policy", "capplan.formulas.preemption_policies"),
    Quantity("readmission_wait_steps", "steps", "Mean wait of a preempted request until it runs again.",
             "E[L]/B sqrt(1 + (e/h)^2)", f"{_WAITS}.readmission_wait_steps"),
    Quantity("kv_safe_cap", "1", "Largest cap at which the KV demand exceeds the pool at most a given share of time.",
             "max n: P(sum of n requests > C) <= eps", "capplan.formulas.overflow.safe_cap"),
    Quantity("prefill_utilization", "1", "Share of time a prefill server works.", "lambda E[S]/k",
             "capplan.formulas.queueing.utilization"),
    Quantity("prefill_wait_probability", "1", "Share of prompts that wait.", "Erlang C",
             "capplan.formulas.queueing.erlang_c"),
    Quantity("prefill_wait_mean_seconds", "s", "Mean wait of a prompt.", "P(W>0) E[S]/(k(1 - rho)) (kim + burst)",
             "capplan.formulas.queueing_numeric.mgk_queue"),
    Quantity("kv_transfer_seconds", "s", "Time to hand a KV cache to decode.", "bytes/(efficiency bandwidth)",
             "capplan.formulas.pools.kv_transfer_seconds"),
    Quantity("full_pool_request_rate", "1/s", "Rate one rank serves with a full pool; stable below it.",
             "C/(T E[P L + L^2/2]) (1 - max(P + L)/C)", "capplan.formulas.pools.full_pool_request_rate"),
    Quantity("aggregated_max_rate", "1/s", "Largest rate of a rank that mixes prefill and decode.",
             "1/(a (E[P] + E[D])/M + E[w_p] + b E[D])", "capplan.formulas.chunked_prefill.aggregated_max_rate"),
    Quantity("full_step_share", "1", "Share of steps whose token budget is used up.", "(phi - y)/(1 - y)",
             "capplan.formulas.chunked_prefill.full_step_share"),
    Quantity("cost_per_million_tokens", "$", "Price of a million tokens.", "$/h / (3600 tokens/s) 1e6",
             "capplan.formulas.cost.cost_per_million_tokens"),
)  # fmt: skip

QUANTITIES = with_ranges(
    _QUANTITIES,
    positive=("kv_pool_capacity", "held_mean_tokens"),
    whole=("kv_safe_cap",),
    shares=("kv_overflow_probability", "preempted_share", "prefill_wait_probability", "full_step_share"),
)
