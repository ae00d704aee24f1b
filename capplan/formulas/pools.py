"""Splitting GPUs between prefill and decode: balance, KV transfer between the pools, stability of a full pool."""

from __future__ import annotations

from capplan.formulas._ops import Value, ceil, maximum


def kv_transfer_seconds(kv_bytes: Value, link_bytes_per_second: Value, efficiency: Value) -> Value:
    r"""Time to hand the KV cache of one request from prefill to decode.

    .. math:: t = \frac{\text{bytes}}{\eta\cdot\text{bandwidth}}

    Parameters
    ----------
    kv_bytes : KV cache of the request that crosses this link [B]
    link_bytes_per_second : data-sheet bandwidth, one direction [B/s]
    efficiency : share of it that a transfer reaches, above 0 and at most 1 [-]

    Returns
    -------
    seconds : [s]

    Examples
    --------
    >>> round(kv_transfer_seconds(70_272 * 8192, 400e9 / 8, 0.85) * 1e3, 1)  # DeepSeek-R1, 8k tokens, 400 Gb/s: ms
    13.5

    References
    ----------
    Zhong et al., DistServe, arXiv:2401.09670, section 3.3.
    """
    return kv_bytes / (efficiency * link_bytes_per_second)


def exposed_transfer_seconds(transfer_seconds: Value, prefill_seconds: Value, n_layers: Value) -> Value:
    r"""What is left of a KV transfer when each layer is sent while the next ones are computed.

    .. math:: \max\left(\frac{t_x}{n},\ t_x - \frac{n-1}{n} t_p\right)

    Parameters
    ----------
    transfer_seconds : whole transfer t_x [s]
    prefill_seconds : prefill of the prompt t_p [s]
    n_layers : layers n that are sent one by one; 1 hides nothing [-]

    Returns
    -------
    seconds : delay after the end of prefill [s]

    Examples
    --------
    >>> exposed_transfer_seconds(0.01, 0.5, 50)
    0.0002

    References
    ----------
    Two-stage pipeline; Patel et al., Splitwise, arXiv:2311.18677, section 4.3 (per-layer transfer).
    """
    return maximum(transfer_seconds / n_layers, transfer_seconds - (n_layers - 1) / n_layers * prefill_seconds)


def link_utilization(request_rate: Value, bytes_per_request: Value, link_bytes_per_second: Value) -> Value:
    r"""Share of a link's bandwidth in use.

    .. math:: \lambda\,\text{bytes}/\text{bandwidth}

    Parameters
    ----------
    request_rate : requests whose bytes cross the link [1/s]
    bytes_per_request : [B]
    link_bytes_per_second : bandwidth of one direction [B/s]

    Returns
    -------
    utilization : above 1 the link is a bottleneck [-]

    References
    ----------
    Arithmetic.
    """
    return request_rate * bytes_per_request / link_bytes_per_second


def instances_for_load(busy_instances: Value, utilization_limit: Value) -> Value:
    r"""Whole instances that keep a pool's utilization at or below a limit.

    .. math:: \lceil \lambda E[S]/\rho_{max} \rceil

    Parameters
    ----------
    busy_instances : mean number of instances at work, lambda E[S] [-]
    utilization_limit : rho_max, above 0 and below 1 [-]

    Returns
    -------
    instances : [-]

    Examples
    --------
    >>> instances_for_load(2.4, 0.8)
    3.0

    References
    ----------
    Little's law.
    """
    return ceil(busy_instances / utilization_limit)


def prefill_decode_ratio(
    prefill_seconds: Value, prefill_utilization: Value, output_tokens: Value, decode_tokens_per_second: Value
) -> Value:
    r"""Prefill instances per decode instance that balance the two pools.

    .. math:: \frac{n_P}{n_D} = \frac{E[S]/\rho_P}{E[L]/X_D}

    Parameters
    ----------
    prefill_seconds : mean prefill time of a request on one prefill instance E[S] [s]
    prefill_utilization : utilization at which the TTFT target is met, rho_P [-]
    output_tokens : mean output E[L] [tokens]
    decode_tokens_per_second : tokens one decode instance makes at its TPOT target, X_D [tokens/s]

    Returns
    -------
    ratio : [-]

    Examples
    --------
    >>> round(prefill_decode_ratio(0.1, 0.5, 1000.0, 5000.0), 6)
    1.0

    References
    ----------
    Zhong et al., DistServe, arXiv:2401.09670, section 4: each pool sized for its own target.
    """
    return prefill_seconds / prefill_utilization * decode_tokens_per_second / output_tokens


def flop_ratio(prompt_tokens: Value, output_tokens: Value) -> Value:
    r"""Prefill over decode work by parameter FLOPs alone: the usual first answer, far from what decode costs.

    .. math:: \frac{2 A P}{2 A L} = \frac PL

    Parameters
    ----------
    prompt_tokens, output_tokens : mean prompt and output [tokens]

    Returns
    -------
    ratio : prefill GPUs per decode GPU if both ran at the same FLOP rate [-]

    Examples
    --------
    >>> flop_ratio(1000.0, 500.0)
    2.0

    References
    ----------
    Two FLOPs per active parameter and token: Kaplan et al., arXiv:2001.08361, section 2.1. Ignores that decode is
    bound by memory and latency.
    """
    return prompt_tokens / output_tokens


def full_pool_request_rate(capacity_tokens: Value, step_seconds: Value, work_mean: Value, largest: Value = 0) -> Value:
    r"""Requests per second one rank serves with its KV pool full; stable below it.

    .. math:: \mu = \frac{C}{T\,E[g]}\left(1 - \frac{\max(P+L)}{C}\right),\quad g = PL + L^2/2

    Parameters
    ----------
    capacity_tokens : KV pool C of the rank [tokens]
    step_seconds : step time T with the pool full, at C over the mean context running requests [s]
    work_mean : E[g], token-time a request occupies [tokens^2]
    largest : max(P + L), to be on the safe side of fragmentation; 0 gives the upper bound [tokens]

    Returns
    -------
    request_rate : [1/s]

    Examples
    --------
    >>> round(full_pool_request_rate(1e5, 0.02, 1000.0 * 1000 + 1000.0**2 / 2), 3)
    3.333

    References
    ----------
    Work conservation: a request holds P + u tokens in its step u. Nie, Si, Zhou, arXiv:2605.04595.
    """
    return (capacity_tokens - largest) / (step_seconds * work_mean)
