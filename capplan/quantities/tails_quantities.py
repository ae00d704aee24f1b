"""Named quantities of the stationary batch and its percentiles."""

from __future__ import annotations

from capplan.quantities.quantity import Quantity, with_ranges

_CLOSED = "capplan.formulas.stationary"

_QUANTITIES: tuple[Quantity, ...] = (
    Quantity("request_rate_per_rank", "1/s", "Requests offered to one rank.", "given", "scenario"),
    Quantity("mean_decode_steps", "token", "Decode steps of a request.", "E[L] - 1", "workload"),
    Quantity("mean_context_tokens", "token", "Mean context of a running request (theta).",
             "E[D (P + (D-1)/2)] / E[D]", "capplan.formulas.lengths.running_context"),
    Quantity("context_std_tokens", "token", "Standard deviation of the context of a running request (nu).",
             "sqrt(E[D P^2 + P D (D-1) + D (D-1)(2D-1)/6] / E[D] - theta^2)",
             "capplan.formulas.lengths.running_context_variance"),
    Quantity("empty_step_seconds", "s", "Step time without a sequence (a).", "given", "step time"),
    Quantity("sequence_step_seconds", "s", "Step time one more sequence adds, its context apart (e).",
             "given", "step time"),
    Quantity("context_step_seconds", "s/token", "Step time one more cached token adds (c).", "given", "step time"),
    Quantity("marginal_step_seconds", "s", "Step time one more running request adds (b).",
             "sequence_step_seconds + context_step_seconds * mean_context_tokens", f"{_CLOSED}.marginal_step_seconds"),
    Quantity("decode_load", "1", "Load of the decode loop (x); unstable at 1.",
             "request_rate_per_rank * mean_decode_steps * marginal_step_seconds", f"{_CLOSED}.decode_load"),
    Quantity("step_mean_seconds", "s", "Mean step time over steps (E_s T).",
             "empty_step_seconds / (1 - decode_load)", f"{_CLOSED}.step_mean_seconds"),
    Quantity("batch_step_mean", "1", "Mean batch over steps (E_s N).",
             "request_rate_per_rank * mean_decode_steps * step_mean_seconds", f"{_CLOSED}.batch_step_mean"),
    Quantity("context_spread", "1", "Varying share of a request's step seconds, squared (q).",
             "(context_step_seconds * context_std_tokens / marginal_step_seconds)^2", f"{_CLOSED}.context_spread"),
    Quantity("heavy_load_factor", "1", "Variance factor at full load (H_1).",
             "E[W^2] / (2 b E[int u w du])", f"{_CLOSED}.heavy_load_factor"),
    Quantity("relaxation_steps", "steps", "Relaxation time of the batch (tau).",
             "E[int u w du] / (b E[D] (1 - x))", f"{_CLOSED}.relaxation_steps"),
    Quantity("step_variance_factor", "1", "Variance of the step time over that of the insensitive law (H_T).",
             "(1 + q)(1 - x) + H_1 x", f"{_CLOSED}.step_variance_factor"),
    Quantity("cross_factor", "1", "Covariance of batch and step over that of the insensitive law (H_X).",
             "1 + (H_1 - 1) x^1.5", f"{_CLOSED}.cross_factor"),
    Quantity("batch_variance_factor", "1", "Variance of the batch over that of the negative binomial (H_N).",
             "1 + (H_1 - 1) x^2", f"{_CLOSED}.batch_variance_factor"),
    Quantity("dispersion_per_rank", "1", "Index of dispersion of the arrivals of one rank at the relaxation horizon.",
             "1 + (I - 1)/G random, I/G round-robin, I pooled", f"{_CLOSED}.thinned_dispersion"),
    Quantity("burst_damping", "1", "Share of excess dispersion that reaches the step time (eta_b).",
             "(1 - x) eta_0 + x eta_1", f"{_CLOSED}.burst_damping"),
    Quantity("step_variance", "s^2", "Variance of the step time over steps (V_T).",
             "E_s N b^2 / (1 - x) * (H_T + (I - 1) eta_b)", f"{_CLOSED}.step_variance"),
    Quantity("batch_variance", "1", "Variance of the batch over steps (V_N).",
             "E_s N / (1 - x) * (H_N + (I - 1) eta_N)", f"{_CLOSED}.batch_variance"),
    Quantity("batch_step_covariance", "s", "Covariance of batch and step time over steps (C).",
             "E_s N b / (1 - x) * (H_X + (I - 1) eta_X)", f"{_CLOSED}.batch_step_covariance"),
    Quantity("step_third_cumulant", "s^3", "Third cumulant of the step time over steps.",
             "R V_T^2 / (E_s T - a), R = (1 + x) + (g_3 - 1)(1 - x^1.75)", f"{_CLOSED}.step_third_cumulant"),
    Quantity("shape_index", "1", "Validity of the percentile laws: 10 and more is normal, below 2 is out of range.",
             "(E_s T - a)^2 / V_T", f"{_CLOSED}.shape_index"),
    Quantity("slot_load", "1", "Load of the slots under a cap (rho); waiting grows without bound at 1.",
             "lambda E[D] (a + b m) / m", "capplan.formulas.cap.capped_load"),
    Quantity("peakedness", "1", "Variance of the batch over that of the insensitive law (z).",
             "V_N / (E_s N / (1 - x))", "capplan.formulas.cap.peakedness"),
    Quantity("decode_wait_mean_of_waiting_seconds", "s", "Mean wait for a slot of the requests that wait.",
             "E[V] (c_a^2 + c_V^2) / (2 (1 - rho)), eased at light load", "capplan.formulas.cap.wait_mean_of_waiting"),
)  # fmt: skip

QUANTITIES = with_ranges(
    _QUANTITIES,
    positive=(
        "request_rate_per_rank", "mean_decode_steps", "decode_load", "empty_step_seconds",
        "step_mean_seconds", "batch_step_mean",
        "heavy_load_factor", "relaxation_steps", "step_variance_factor", "cross_factor", "batch_variance_factor",
        "step_variance", "batch_variance", "batch_step_covariance", "step_third_cumulant", "peakedness",
        "dispersion_per_rank",
    ),
    most=dict.fromkeys(
        (
            "dispersion_per_rank", "heavy_load_factor", "step_variance_factor", "cross_factor",
            "batch_variance_factor", "peakedness",
        ),
        1e12,
    ),
)  # fmt: skip
