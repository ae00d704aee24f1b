"""Aggregated serving: prompts are read in chunks inside the decode steps of the same rank.

A step takes T = a + e N + c S + d u + g (attention of the chunk), with at most ``token_budget`` tokens: N running
sequences take one each, prompts share the rest. D = L - 1 is the number of decode steps of a request.
"""

from __future__ import annotations

from capplan.formulas._ops import Value


def prompt_seconds(prompt_mean: Value, prompt_second: Value, prefill: Value, prefill_square: Value) -> Value:
    r"""Mean time that reading a prompt adds to the steps of a rank.

    .. math:: E[w_p] = d E[P] + g E[P^2]/2

    Parameters
    ----------
    prompt_mean, prompt_second : E[P], E[P^2] of the prompt tokens to read [tokens, tokens^2]
    prefill : d, per prompt token [s/token]
    prefill_square : g, attention: per pair of prompt tokens [s/token^2]

    Returns
    -------
    seconds : [s]

    References
    ----------
    Causal attention reads P^2/2 pairs.
    """
    return prefill * prompt_mean + prefill_square * prompt_second / 2


def aggregated_max_rate(
    empty_step: Value,
    token_budget: Value,
    prompt_mean: Value,
    steps_mean: Value,
    prompt_cost: Value,
    decode_cost: Value,
) -> Value:
    r"""Largest request rate of a rank that mixes prefill and decode.

    .. math:: \frac{1}{\lambda_{max}} = \frac{a(E[P] + E[D])}{M} + E[w_p] + b E[D]

    Parameters
    ----------
    empty_step : a [s]
    token_budget : tokens of a step M [tokens]
    prompt_mean, steps_mean : E[P], E[D] [tokens]
    prompt_cost : E[w_p] of :func:`prompt_seconds` [s]
    decode_cost : b, what one running request adds to a step [s]

    Returns
    -------
    max_rate : [1/s]

    Examples
    --------
    >>> round(aggregated_max_rate(0.025, 2048.0, 1000.0, 199.0, 0.04, 5.41e-5), 2)
    15.29

    References
    ----------
    Full steps spend a on M tokens; checked by simulation at 0.92 of it.
    """
    return 1 / (empty_step * (prompt_mean + steps_mean) / token_budget + prompt_cost + decode_cost * steps_mean)


def aggregated_load(request_rate: Value, prompt_cost: Value, decode_cost: Value, steps_mean: Value) -> Value:
    r"""Share of time that grows with the requests: all but the empty steps.

    .. math:: x = \lambda(E[w_p] + b E[D])

    Parameters
    ----------
    request_rate : lambda [1/s]
    prompt_cost, decode_cost, steps_mean : E[w_p] [s], b [s], E[D] [tokens]

    Returns
    -------
    load : x; the mean step is a/(1 - x) [-]

    References
    ----------
    Little's law in step time.
    """
    return request_rate * (prompt_cost + decode_cost * steps_mean)


def mean_step_seconds(empty_step: Value, load: Value) -> Value:
    r"""Mean step time, exact for any arrivals and lengths.

    .. math:: E[T] = a/(1-x)

    Parameters
    ----------
    empty_step : a [s]
    load : x, below 1 [-]

    Returns
    -------
    step : [s]

    References
    ----------
    E[T] = a + lambda E[T] (E[w_p] + b E[D]).
    """
    return empty_step / (1 - load)


def full_step_seconds(
    decode_step: Value, room: Value, prompt_mean: Value, prompt_second: Value, prefill: Value, prefill_square: Value
) -> Value:  # fmt: skip
    r"""Step time with the token budget used up.

    .. math:: T_f = T_d + \left(d + g\frac{E[P^2]}{2E[P]}\right)K

    Parameters
    ----------
    decode_step : step without prefill T_d = a + b n [s]
    room : prompt tokens that fit beside the running requests, K = M - n [tokens]
    prompt_mean, prompt_second, prefill, prefill_square : as in :func:`prompt_seconds`

    Returns
    -------
    step : [s]

    References
    ----------
    A token of a prompt reads half of that prompt on average; longer prompts hold more of the tokens.
    """
    return decode_step + (prefill + prefill_square * prompt_second / (2 * prompt_mean)) * room


def full_step_share(prompt_share: Value, partial_share: Value) -> Value:
    r"""Share of steps whose token budget is used up.

    .. math:: f = \frac{\varphi - y}{1 - y}

    Parameters
    ----------
    prompt_share : prompt tokens of a mean step over the room, phi = lambda E[T] E[P]/K [-]
    partial_share : the same of a step that is not full, y [-]

    Returns
    -------
    share : [-]

    References
    ----------
    phi = f + (1 - f) y.
    """
    return (prompt_share - partial_share) / (1 - partial_share)


def closed_loop_saturation(token_budget: Value, prompt_tokens: Value, output_tokens: Value) -> Value:
    r"""Users from which on every step of a closed loop is full: more users only wait for their first token.

    .. math:: n_{sat} = \frac{M(L-1)}{P + L - 1}

    Parameters
    ----------
    token_budget : M [tokens]
    prompt_tokens, output_tokens : P, L [tokens]

    Returns
    -------
    users : [-]

    Examples
    --------
    >>> round(closed_loop_saturation(2048, 1024, 128), 1)
    226.0

    References
    ----------
    A full step holds M tokens, P + L - 1 of them per request.
    """
    return token_budget * (output_tokens - 1) / (prompt_tokens + output_tokens - 1)


def saturated_closed_loop(
    users: Value, token_budget: Value, prompt_tokens: Value, output_tokens: Value, full_step: Value
) -> tuple[Value, Value, Value]:
    r"""Throughput, TTFT and TPOT of a closed loop with more users than :func:`closed_loop_saturation`.

    .. math:: X = \frac{M}{(P + L - 1) T_f},\quad TTFT = \frac{N - n_{sat}}{X},\quad TPOT = T_f

    Parameters
    ----------
    users : N [-]
    token_budget, prompt_tokens, output_tokens : M, P, L [tokens]
    full_step : T_f at n_sat running requests [s]

    Returns
    -------
    rate, ttft, tpot : X [1/s], means [s], [s]; exact to 0.1 %

    References
    ----------
    Little's law; checked against 260 simulated runs.
    """
    rate = token_budget / ((prompt_tokens + output_tokens - 1) * full_step)
    waiting = users - closed_loop_saturation(token_budget, prompt_tokens, output_tokens)
    return rate, waiting / rate, full_step
