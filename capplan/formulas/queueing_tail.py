"""Tails of queues on single numbers: gamma law of the wait, Erlang's probability for any number of servers."""

from __future__ import annotations

import math

from capplan.formulas.special import gamma_cdf, gamma_quantile, gamma_survival


def continuous_erlang_c(servers: float, offered_load: float) -> float:
    r"""Erlang's waiting probability for any positive number of servers.

    .. math:: \frac1B = \frac{\Gamma(k+1, a)}{a^k e^{-a}},\quad C = \frac{B}{1 - \rho(1-B)}

    Parameters
    ----------
    servers : k, above the offered load [-]
    offered_load : a [-]

    Returns
    -------
    wait_probability : equals :func:`capplan.formulas.queueing.erlang_c` for whole k [-]

    Examples
    --------
    >>> round(continuous_erlang_c(2.0, 1.0), 6)
    0.333333

    References
    ----------
    D. L. Jagerman, Bell System Technical Journal 53 (1974) 525-551.
    """
    density = math.exp(servers * math.log(offered_load) - offered_load - math.lgamma(servers + 1))
    loss = density / gamma_survival(servers + 1, offered_load)
    return loss / (1 - offered_load / servers * (1 - loss))


def gamma_wait_quantile(probability: float, wait_probability: float, wait_mean: float, wait_second: float) -> float:
    r"""Quantile of the wait from three moments of the service time: a gamma law on the wait of those who wait.

    .. math:: W\,|\,W>0 \sim \Gamma,\quad E = E[W]/P_W,\ E^{(2)} = E[W^2]/P_W

    Parameters
    ----------
    probability : p [-]
    wait_probability : P_W [-]
    wait_mean, wait_second : E[W], E[W^2] over all requests [s, s^2]

    Returns
    -------
    wait : [s]; P90 within 3 %, P99 within 5 % in the median

    Examples
    --------
    >>> round(gamma_wait_quantile(0.99, 0.5, 1.0, 4.0), 3)  # M/M/1 at rho 0.5: exponential with mean 2
    7.824

    References
    ----------
    :func:`capplan.formulas.queueing.mg1_wait_second_moment`.
    """
    if probability <= 1 - wait_probability:
        return 0.0
    mean, second = wait_mean / wait_probability, wait_second / wait_probability
    shape = mean * mean / (second - mean * mean)
    return gamma_quantile(shape, 1 - (1 - probability) / wait_probability) * mean / shape


def gamma_wait_exceedance(seconds: float, wait_probability: float, wait_mean: float, wait_second: float) -> float:
    """Share of requests that wait longer than ``seconds`` [-]; the law of :func:`gamma_wait_quantile`."""
    mean, second = wait_mean / wait_probability, wait_second / wait_probability
    shape = mean * mean / (second - mean * mean)
    return wait_probability * (1 - gamma_cdf(shape, seconds / mean * shape))
