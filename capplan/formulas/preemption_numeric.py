"""Open loop KV pressure: a birth-death chain over the requests in the system, the closed-loop law inside.

A numerical routine: NumPy arrays over the number of requests, no randomness.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capplan.formulas.preemption import PoolPressure, RequestSizes
from capplan.formulas.preemption_waits import gap_exceedance, preempted_share, readmission_wait_steps

FloatArray = NDArray[np.float64]

Law = Callable[[Any], PoolPressure]
"""State of the rank for an array of requests in flight."""

StepSeconds = Callable[[PoolPressure], Any]
"""Step time [s] of the rank in a state, prefill and recompute included."""

_SATURATED_SCORE = 8.0  # standard deviations above capacity from which on nothing changes with more requests
_LONGEST_CHAIN = 200_000
_LEAST_SPREAD = 0.02


@dataclass(frozen=True, eq=False)
class OpenLoopPressure:
    """Averages over the chain.

    Parameters
    ----------
    pressure : the averaged :class:`PoolPressure`; ``waiting`` is infinite when the rank cannot keep up
    step_seconds : mean step time while something runs [s]
    load_peak : arrivals over the best service rate [-]
    load_saturated : arrivals over the service rate with a full pool; stable below 1 [-]
    states, shares : closed-loop states and the share of completions that happen in each
    state_seconds : step time in each state [s]
    queue_shares, queue_seconds : share of arrivals that meet so many requests, and the time until those that wait
        have run [-, s]
    """

    pressure: PoolPressure
    step_seconds: float
    load_peak: float
    load_saturated: float
    states: PoolPressure
    shares: FloatArray
    state_seconds: FloatArray
    queue_shares: FloatArray
    queue_seconds: FloatArray


def open_loop_pressure(
    request_rate: float,
    law: Law,
    step_seconds: StepSeconds,
    sizes: RequestSizes,
    capacity_tokens: float,
    variation: float,
    cap: float = math.inf,
    peakedness: float = 1.0,
) -> OpenLoopPressure:
    r"""KV pressure in an open loop.

    .. math:: \mu(k) = \frac{B(k)}{E[L]\,t(k)},\quad f(k) = \frac{1}{z + P_W(k)(c^2 - 1)/2},\quad
              \pi(k) \propto f(k)\prod_{i\le k}\left(\frac{\lambda}{\mu(i)}\right)^{f(i)}

    Waiting is the average over pi with c^2 = c_g^2; everything else the average with c^2 = (1 + c_g^2)/2: rare long
    overloads rule the queue, typical ones the shares of time (a choice made on the training part of the simulations).

    Parameters
    ----------
    request_rate : Poisson arrivals at this rank lambda [1/s]
    law : closed-loop state for an array of requests in flight
    step_seconds : step time of a state, prefill share included [s]
    sizes : moments of a request [tokens]
    capacity_tokens : KV pool C [tokens]
    variation : c_g^2, of the token-time work of :func:`work_variation` [-]
    cap : concurrency cap [-]
    peakedness : z, variance of the batch on an ample pool over that of Poisson arrivals split at random; above 1 for
        bursts, below for balanced ranks [-]

    Returns
    -------
    open_loop : :class:`OpenLoopPressure`

    Validity: ``load_saturated`` below 0.97; above it recompute holds two states, calm and saturated, and a rank shows
    whichever it is in. Poisson arrivals: rho within 0.03 in the mean, 0.1 at worst; waiting within a factor 1.3 in the
    mean, 2.7 at worst. Another peakedness is not simulated: there the overflow agrees with the stationary batch within
    40 %.

    References
    ----------
    Local diffusion with the variability of the token-time work; insensitivity of processor sharing below capacity:
    F. P. Kelly, Reversibility and Stochastic Networks (1979), section 3.3. Checked against 70 simulated runs.
    """
    pool = capacity_tokens / sizes.held
    full = _full_state(pool, sizes, cap)
    last = int(min(full, _LONGEST_CHAIN)) + 1
    in_flight = np.minimum(np.maximum(np.arange(last + 1.0), 1.0), cap)
    in_flight[-1] = full
    states = law(in_flight)
    seconds = np.asarray(step_seconds(states), dtype=float)
    service = states.batch / (sizes.output * seconds)
    length = last + 50 + int(min((4 + 2 * variation) * min(pool, cap), _LONGEST_CHAIN))
    shares, queued = (
        _chain(request_rate, service, peakedness + states.queue_probability * (max(var, 0.0) - 1) / 2, length)
        for var in ((1 + variation) / 2, variation)
    )
    waiting, wait_seconds = _waiting(queued, states.batch, service)
    mean = math.inf if request_rate >= service[-1] else float(queued @ waiting)
    return _averages(request_rate, shares, mean, states, service, seconds, (queued, wait_seconds))


def _full_state(pool: float, sizes: RequestSizes, cap: float) -> float:
    """Requests in flight from which on the pool is full for good, or the cap."""
    root = _SATURATED_SCORE * math.sqrt(sizes.held_variance) / sizes.held
    return float(min(((root + math.sqrt(root * root + 4 * pool)) / 2) ** 2 + 1, cap))


def _chain(rate: float, service: FloatArray, spread: FloatArray, length: int) -> FloatArray:
    """Probability of k requests in the system, k = 0..length; states beyond the last one equal it.

    ``spread`` is 1/f of every state: what arrivals and completions vary against a Poisson chain.
    """
    damping = 1 / np.maximum(spread, _LEAST_SPREAD)
    jumps = damping * np.log(rate / service)
    jumps[0] = 0.0
    beyond = length + 1 - len(service)
    logs = np.concatenate([np.log(damping), np.full(beyond, math.log(damping[-1]))])
    logs += np.cumsum(np.concatenate([jumps, np.full(beyond, jumps[-1])]))
    weights = np.exp(logs - logs.max())
    result: FloatArray = weights / weights.sum()
    return result


def _waiting(weights: FloatArray, batch: FloatArray, service: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Requests in the system less those that run, and the time until as many have ended [s]; state 0 runs nothing."""
    beyond = len(weights) - len(batch)
    running = np.concatenate([[0.0], batch[1:], np.full(beyond, batch[-1])])
    waiting = np.maximum(np.arange(len(weights)) - running, 0.0)
    return waiting, waiting / np.concatenate([service, np.full(beyond, service[-1])])


def _averages(
    rate: float,
    weights: FloatArray,
    waiting: float,
    states: PoolPressure,
    service: FloatArray,
    seconds: FloatArray,
    queue: tuple[FloatArray, FloatArray],
) -> OpenLoopPressure:
    time_share = np.append(weights[: len(service) - 1], weights[len(service) - 1 :].sum())
    time_share[0] = 0.0
    flow = time_share * service
    flow = flow / flow.sum()
    batch = float(time_share @ states.batch)
    averages = {name: float(flow @ value) for name, value in states._asdict().items()}
    averages |= {
        "batch": batch, "waiting": waiting, "queue_probability": float(time_share @ states.queue_probability)
    }  # fmt: skip
    step = float(time_share @ seconds) / float(time_share.sum())
    peak, full = rate / float(service.max()), rate / float(service[-1])
    return OpenLoopPressure(PoolPressure(**averages), step, peak, full, states, flow, seconds, *queue)


def open_loop_hit_share(found: OpenLoopPressure) -> float:
    """Share of requests preempted at least once [-]: :func:`preempted_share` averaged over the states."""
    return float(found.shares @ _state_share(found))


def _state_share(found: OpenLoopPressure) -> FloatArray:
    states = found.states
    share: FloatArray = preempted_share(
        states.recompute_per_token, np.maximum(states.net_flux, 1e-300), states.preemptions_when_saturated
    )
    return share


def open_loop_gap_quantile_seconds(
    probability: float, found: OpenLoopPressure, sizes: RequestSizes, refill_seconds: float
) -> float:
    """Largest gap between two tokens at a quantile over requests, each state with its own waits and step time.

    Parameters
    ----------
    probability : p [-]
    found : averaged chain
    sizes : moments of a request [tokens]
    refill_seconds : prefill of what a preempted request lost [s]

    Returns
    -------
    gap : one step where the request at that quantile is never preempted [s]; solved by bisection
    """
    if float(found.shares @ _state_share(found)) <= 1 - probability:
        return found.step_seconds
    states = found.states
    wait = readmission_wait_steps(np.maximum(states.batch, 1e-9), states.victim_tokens, sizes)

    def exceeds(seconds: float) -> float:
        steps = seconds / found.state_seconds
        flux = np.maximum(states.net_flux, 1e-300)
        return float(
            found.shares
            @ gap_exceedance(steps, wait, states.recompute_per_token, flux, states.preemptions_when_saturated)
        )

    low, high = 0.0, float((wait * found.state_seconds).max())
    while exceeds(high) > 1 - probability and high < 1e12:
        high *= 2
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if exceeds(middle) > 1 - probability else (low, middle)
    return high + found.step_seconds + refill_seconds
