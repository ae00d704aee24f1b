"""How a watermark, output reservation, prefix caching and swapping change the law of KV pressure.

Each policy is a few closed forms around :func:`capplan.formulas.preemption.closed_loop_pressure`; without the policy
(no watermark, no reservation) the plain law comes back.
"""

from __future__ import annotations

from capplan.formulas._ops import Value, exp, maximum
from capplan.formulas.preemption import (
    PoolPressure,
    RequestSizes,
    closed_loop_pressure,
    jump_spread,
    refill_exit_probability,
    victim_size_tokens,
)


def watermark_capacity_tokens(capacity_tokens: Value, watermark_tokens: Value, sizes: RequestSizes) -> Value:
    r"""Pool that is left when every admission must leave a watermark free.

    .. math:: C_W = C - W + \gamma_P E[L]\left(1 - e^{-W/(\gamma_P E[L])}\right),\quad \gamma_P = \sqrt{1 + (e/P)^2}

    Parameters
    ----------
    capacity_tokens : pool C [tokens]
    watermark_tokens : W, zero or more [tokens]
    sizes : moments of a request [tokens]

    Returns
    -------
    capacity_tokens : C without a watermark [tokens]

    References
    ----------
    Running requests grow into the watermark, so part of it is used; refill walk as in
    :func:`capplan.formulas.preemption.refill_exit_probability`.
    """
    reach = jump_spread(sizes.age, sizes.prompt) * sizes.output
    return capacity_tokens - watermark_tokens + reach * (1 - exp(-watermark_tokens / reach))


def watermark_pressure(
    in_flight: Value,
    capacity_tokens: Value,
    sizes: RequestSizes,
    token_budget: Value,
    watermark_tokens: Value,
    tail: tuple[Value, Value] = (1.0, 1.0),
) -> PoolPressure:
    r"""The law with a watermark: the pool shrinks, and a preemption needs the watermark to run out first.

    .. math:: C \to C_W,\quad \mathrm{net} \to G\left((W + B(\ldots))/E[L]\right),\quad
              \text{edge term} \to \text{edge term}\cdot G(W/E[L])

    Parameters
    ----------
    in_flight, capacity_tokens, sizes, token_budget, tail : as in :func:`closed_loop_pressure`
    watermark_tokens : W; zero gives the plain law [tokens]

    Returns
    -------
    pressure : :class:`PoolPressure`

    Validity: rho within 0.03 in the mean, 0.16 at worst.

    References
    ----------
    ``SchedulerConfig.watermark`` of vLLM v1 (docs.vllm.ai); checked against 28 simulated configurations.
    """
    capacity = watermark_capacity_tokens(capacity_tokens, watermark_tokens, sizes)
    spread = jump_spread(sizes.age, victim_size_tokens(in_flight, capacity, sizes))
    edge_share = refill_exit_probability(watermark_tokens / sizes.output, spread)
    return closed_loop_pressure(
        in_flight, capacity, sizes, token_budget, room_tokens=watermark_tokens, edge_share=edge_share, tail=tail
    )


def reserved_sizes(
    sizes: RequestSizes, reserve_tokens: Value, unused_reserve: Value, reserved_second: Value, correlation: Value = 0.0
) -> RequestSizes:
    r"""What a request occupies when ``r`` output tokens are reserved for it at admission.

    .. math:: P \to P + r,\quad e \to E(age - r)^+,\quad m \to P + E\max(r, age),\quad v \to
              \mathrm{Var}\max(r, age) + V_P

    Parameters
    ----------
    sizes : moments without the reservation [tokens]
    reserve_tokens : r [tokens]
    unused_reserve : E(r - age)^+ of a running request [tokens]
    reserved_second : E max(r, age)^2 [tokens^2]
    correlation : what prompt and age add to the variance beyond their sum (0 when independent) [tokens^2]

    Returns
    -------
    sizes : of the reserved request [tokens]; the variance is at least one token squared, so that full reservation,
        where nothing varies, stays computable

    References
    ----------
    Length-biased age of a running request: D. R. Cox, Renewal Theory (1962), section 5.
    """
    largest = sizes.age + unused_reserve
    variance = maximum(reserved_second - largest * largest + sizes.prompt_variance + correlation, 1.0)
    prompt = sizes.prompt + reserve_tokens
    held = sizes.held + unused_reserve
    return RequestSizes(
        sizes.output, maximum(largest - reserve_tokens, 0.0), prompt, sizes.prompt_variance, held, variance
    )


def reservation_pressure(
    in_flight: Value,
    capacity_tokens: Value,
    sizes: RequestSizes,
    reserved: RequestSizes,
    token_budget: Value,
) -> PoolPressure:
    r"""The law with output reservation: preemption needs the unused reservations of the batch to run out.

    .. math:: \mathrm{net} \to G\left((B\,E(r - age)^+ + B(\ldots))/E[L]\right);\quad \text{no edge term}

    Parameters
    ----------
    in_flight, capacity_tokens, token_budget : as in :func:`closed_loop_pressure`
    sizes : without the reservation: sizes of victims come from it [tokens]
    reserved : with it, from :func:`reserved_sizes` [tokens]

    Returns
    -------
    pressure : :class:`PoolPressure`; reserving the longest output gives (almost) no preemption

    Validity: rho within 0.01 in the mean, 0.06 at worst; B within 1 % in the mean, 6 % at worst.

    References
    ----------
    Reservation by ``max_tokens``: TensorRT-LLM ``GUARANTEED_NO_EVICT``; by a ratio: SGLang's
    ``schedule_conservativeness``. Checked against 35 simulated configurations.
    """
    victim = victim_size_tokens(in_flight, capacity_tokens, sizes)
    unused = reserved.held - sizes.held
    plain = closed_loop_pressure(in_flight, capacity_tokens, reserved, token_budget, edge_share=0.0)
    return closed_loop_pressure(
        in_flight, capacity_tokens, reserved, token_budget,
        room_tokens=unused * plain.batch, edge_share=0.0, victim=(victim, sizes.age),
    )  # fmt: skip


def prefix_cache_share(victim_tokens: Value, output_mean: Value) -> Value:
    r"""Share of the lost tokens that must be computed again when a victim's blocks stay in the prefix cache.

    .. math:: \frac{E[L]}{h}\left(1 - e^{-h/E[L]}\right)

    Growth until the next completion eats the tail of the victim's blocks.

    Parameters
    ----------
    victim_tokens : h, tokens a preemption frees [tokens]
    output_mean : E[L] [tokens]

    Returns
    -------
    share : between 0 and 1 [-]; within 0.05 in the mean, 0.2 at worst

    Examples
    --------
    >>> round(prefix_cache_share(550.0, 1000.0), 2)
    0.77

    References
    ----------
    Automatic prefix caching of vLLM v1: freed blocks are evicted from the tail of a sequence first (docs.vllm.ai).
    """
    ratio = victim_tokens / output_mean
    return (1 - exp(-ratio)) / ratio


def swap_seconds_per_token(
    recompute_per_token: Value, kv_bytes_per_token: Value, link_bytes_per_second: Value
) -> Value:
    r"""Link time per generated token when preempted requests are swapped out and back instead of recomputed.

    .. math:: 2\rho\,\kappa/\text{bandwidth}

    Parameters
    ----------
    recompute_per_token : rho, lost over generated tokens [-]
    kv_bytes_per_token : KV bytes of one token on this link [B/token]
    link_bytes_per_second : bandwidth of the link to host memory [B/s]

    Returns
    -------
    seconds_per_token : link time [s/token]

    Examples
    --------
    >>> swap_seconds_per_token(0.5, 70_272, 64e9)
    1.098e-06

    References
    ----------
    Every lost token crosses the link twice; swapping pays where this is below rho times the prefill time of a token.
    """
    return 2 * recompute_per_token * kv_bytes_per_token / link_bytes_per_second


def swap_break_even_bandwidth(
    kv_bytes_per_token: Value, prefill_seconds_per_token: Value, other_utilization: Value = 0.0
) -> Value:
    r"""Bandwidth to host memory from which on swapping a preempted request is faster than computing it again.

    .. math:: \frac{2\kappa}{d\,(1 - u)}

    Parameters
    ----------
    kv_bytes_per_token : KV bytes of one token on this link, kappa [B/token]
    prefill_seconds_per_token : d, prefill time of the lost request over its tokens [s/token]
    other_utilization : u, share of the link that other traffic takes (KV transfer, weights, a pooled prefix) [-]

    Returns
    -------
    bandwidth : of the link [B/s]

    Examples
    --------
    >>> round(swap_break_even_bandwidth(131_072, 27e-6) / 1e9, 1)  # 8B model, 27 us a prompt token: GB/s
    9.7

    References
    ----------
    Every lost token crosses the link out and back; what other traffic leaves is shared without loss.
    """
    return 2 * kv_bytes_per_token / (prefill_seconds_per_token * (1 - other_utilization))


def swap_seconds(kv_bytes: Value, link_bytes_per_second: Value, other_utilization: Value = 0.0) -> Value:
    r"""Time to swap a request out and back over a link that others use too, :math:`2\,\mathrm{bytes}/(bw\,(1-u))`.

    Parameters
    ----------
    kv_bytes : of the request on this link [B]
    link_bytes_per_second : bandwidth, one direction [B/s]
    other_utilization : u, below 1 [-]

    Returns
    -------
    seconds : [s]

    Examples
    --------
    >>> swap_seconds(1e9, 50e9), swap_seconds(1e9, 50e9, 0.5)
    (0.04, 0.08)

    References
    ----------
    As :func:`swap_break_even_bandwidth`.
    """
    return 2 * kv_bytes / (link_bytes_per_second * (1 - other_utilization))
