"""Distribution of wait and TTFT in a prefill pool: Pollaczek-Khinchine by fast Fourier transform.

A numerical routine in NumPy; one queue takes about a millisecond.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capplan.errors import InputError, shown
from capplan.formulas.distinct import distinct
from capplan.formulas.queueing import (
    burst_wait_term,
    bursty_wait_probability,
    several_servers_factor,
)
from capplan.formulas.queueing_tail import continuous_erlang_c
from capplan.formulas.special import gamma_quantile

FloatArray = NDArray[np.float64]

_POINTS = 16_384
_MOST_POINTS = 262_144
_TAIL = 1e-5  # mass of the wait left beyond the grid, far below P99.9
_CELLS_PER_SERVICE = 12  # grid cells in a mean service time: resolves the median
_LARGEST_LOAD = 1 - 1e-9  # at 1 to the rounding of a mean no wait has a law
_LEAST_SHARE = 1e-30  # of requests that wait: keeps conditional means defined in idle pools
_SMOOTH_NODES = 12  # a service law with at least this many nodes stands for a continuous one


@dataclass(frozen=True, eq=False)
class MgkQueue:
    """One queue before equal servers, first come first served: what a request waits and when it is served.

    Parameters
    ----------
    request_rate : arrivals lambda [1/s]
    servers : k [-]
    utilization : rho [-]
    service_mean : E[S] [s]
    wait_probability : share of requests that wait [-]
    wait_mean : mean wait, those that do not wait included [s]
    service_variation : squared coefficient of variation of the service time [-]
    arrival_variation : squared coefficient of variation of the arrivals, 1 for Poisson [-]

    Validity: rho below 1; TTFT P90 within 3 %, P99 within 5 % at rho of 0.3 and more with Poisson arrivals (median
    errors 1.5 %); with bursts 11-14 %, conservative. With more than one server the tail is rescaled from one server;
    there a service variation above about 15 at loads of 0.8 and more makes waits up to 45 % too short.
    """

    request_rate: float
    servers: int
    utilization: float
    service_mean: float
    wait_probability: float
    wait_mean: float
    service_variation: float
    arrival_variation: float
    service_seconds: FloatArray
    service_weights: FloatArray

    @property
    def wait_mean_if_waiting(self) -> float:
        """Mean wait of those who wait [s]."""
        return self.wait_mean / self.wait_probability

    @property
    def sojourn_mean(self) -> float:
        """Mean time from arrival to end of service [s]."""
        return self.wait_mean + self.service_mean

    def wait_quantile(self, probability: float) -> float:
        """Time that a share ``probability`` of all requests waits at most [s]; 0 where those do not wait at all."""
        share = _probability(probability)
        if share <= 1 - self.wait_probability:
            return 0.0
        waiting = self._grid.waiting
        return self._grid.quantile(waiting, 1 - (1 - share) / self.wait_probability)

    def sojourn_quantile(self, probability: float) -> float:
        """Time from arrival to the end of service that a share ``probability`` of all requests stays below [s]."""
        return self._grid.quantile(self._grid.sojourn, _probability(probability))

    def wait_atoms(self) -> tuple[FloatArray, FloatArray]:
        """The law of the wait as atoms: seconds [s] and their probabilities, the chance of no wait first."""
        waiting = np.maximum(self._grid.waiting, 0.0)
        seconds = np.arange(len(waiting)) * self._grid.cell
        weights = self.wait_probability * waiting / waiting.sum()
        return np.concatenate([[0.0], seconds]), np.concatenate([[1 - self.wait_probability], weights])

    def sojourn_exceedance(self, seconds: float) -> float:
        """Share of requests whose time from arrival to the end of service exceeds ``seconds`` [-]."""
        grid = self._grid
        position = seconds / grid.cell - 0.5
        below = np.interp(position, np.arange(len(grid.sojourn)), np.cumsum(grid.sojourn), left=0.0)
        return float(min(1.0, max(0.0, 1.0 - below)))

    @cached_property
    def _grid(self) -> _WaitGrid:
        return _WaitGrid.of(self)


@dataclass(frozen=True, eq=False)
class _WaitGrid:
    """Probabilities of cells centred at multiples of ``cell``: wait of those who wait, and the sojourn of all.

    Wait given a wait = that of one server at the same load, its time axis stretched to the wanted mean.
    """

    queue: MgkQueue
    low: FloatArray
    high: FloatArray
    weights: FloatArray
    points: int
    cell: float
    stretch: float

    @classmethod
    def of(cls, queue: MgkQueue) -> _WaitGrid:
        """The grid that fits a queue."""
        low, high, weights = _service_cells(queue.service_seconds, queue.service_weights)
        second = float(weights @ (low * low + low * high + high * high)) / 3
        mean = float(weights @ (low + high)) / 2
        stretch = queue.wait_mean_if_waiting * (1 - queue.utilization) / (second / (2 * mean))
        points, cell = _grid_size(queue, stretch, float(high.max()))
        return cls(queue, low, high, weights, points, cell, stretch)

    @cached_property
    def _transform(self) -> Any:
        """Fourier transform of the wait of those who wait: Pollaczek-Khinchine."""
        low, high, load = self.low * self.stretch, self.high * self.stretch, self.queue.utilization
        ladder = np.fft.rfft(_residual_pmf(low, high, self.weights, self.cell, self.points))
        return ladder * (1 - load) / (1 - load * ladder)

    @cached_property
    def waiting(self) -> FloatArray:
        """Wait of those who wait."""
        return np.fft.irfft(self._transform, self.points)

    @cached_property
    def sojourn(self) -> FloatArray:
        """Wait and service of all."""
        service = np.fft.rfft(_service_pmf(self.low, self.high, self.weights, self.cell, self.points))
        share = self.queue.wait_probability
        return np.fft.irfft(service * (1 - share + share * self._transform), self.points)

    def quantile(self, pmf: FloatArray, probability: float) -> float:
        """Linear interpolation of the cumulated cells; a cell covers half a width on either side of its centre."""
        cumulated = np.cumsum(np.maximum(pmf, 0.0))
        index = int(np.searchsorted(cumulated, probability * cumulated[-1]))
        before = cumulated[index - 1] if index else 0.0
        inside = (probability * cumulated[-1] - before) / max(cumulated[index] - before, 1e-300)
        return float(max(0.0, (index - 0.5 + inside) * self.cell))


def _probability(value: float) -> float:
    if not 0 < value < 1:
        raise InputError(f"a quantile needs a probability between 0 and 1, not {value!r}", key="probability")
    return value


def _service_cells(seconds: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Intervals [low, high] over which each node's mass is spread: halfway to its neighbours, or the node itself."""
    if len(seconds) < _SMOOTH_NODES:
        return seconds, seconds, weights
    halfway = (seconds[1:] + seconds[:-1]) / 2
    return np.concatenate([seconds[:1], halfway]), np.concatenate([halfway, seconds[-1:]]), weights


def _grid_size(queue: MgkQueue, stretch: float, longest: float) -> tuple[int, float]:
    """Points and cell so that the wait's tail fits and a mean service spans enough cells."""
    mean = queue.wait_mean_if_waiting
    moments = [float(queue.service_weights @ queue.service_seconds**k) for k in (1, 2, 3)]
    residual_second = stretch**2 * moments[2] / (3 * moments[0])
    second = 2 * mean * mean + residual_second
    shape = mean * mean / max(second - mean * mean, 1e-12 * mean * mean)
    reach = gamma_quantile(shape, 1 - _TAIL) / shape * mean + longest
    points = _POINTS
    while points < _MOST_POINTS and reach / points > queue.service_mean / _CELLS_PER_SERVICE:
        points *= 2
    return points, reach / points


def _residual_pmf(low: FloatArray, high: FloatArray, weights: FloatArray, cell: float, points: int) -> FloatArray:
    """Cells of the equilibrium residual service time, density P(S > t)/E[S]."""
    edges = np.asarray((np.arange(points) + 0.5) * cell, dtype=np.float64)
    mean = float(weights @ (low + high)) / 2
    cumulated = _capped_mean(edges, low, high, weights) / mean
    return np.diff(cumulated, prepend=0.0)


def _capped_mean(t: FloatArray, low: FloatArray, high: FloatArray, weights: FloatArray) -> FloatArray:
    """E[min(S, t)], the integral of P(S > t), which is linear between the ends of the nodes' intervals.

    The intervals are in order and do not overlap, so none holds a knot: what lies beyond it are whole ones, and an
    atom at a knot is passed by the piece that starts there.
    """
    knots = distinct(np.concatenate([[0.0], low, high]))
    beyond = np.append(np.cumsum(weights[::-1])[::-1], 0.0)
    start = beyond[np.searchsorted(high, knots[:-1], side="right")]
    end = beyond[np.searchsorted(low, knots[1:], side="left")]
    step = np.diff(knots)
    area = np.concatenate([[0.0], np.cumsum(step * (start + end) / 2)])
    index = np.clip(np.searchsorted(knots, t, side="right") - 1, 0, len(step) - 1)
    inside = np.minimum(t - knots[index], step[index])
    slope = (end - start) / step
    total: FloatArray = area[index] + inside * (start[index] + slope[index] * inside / 2)
    return total


def _service_pmf(low: FloatArray, high: FloatArray, weights: FloatArray, cell: float, points: int) -> FloatArray:
    """Cells of the service time itself."""
    edges = (np.arange(points) + 0.5) * cell
    if np.array_equal(low, high):
        return _split_atoms(low / cell, weights, points)
    starts, masses = low, weights
    knots = np.concatenate([starts, high[-1:]])
    cumulated = np.concatenate([[0.0], np.cumsum(masses)])
    return np.diff(np.interp(edges, knots, cumulated), prepend=0.0)


def _split_atoms(positions: FloatArray, weights: FloatArray, points: int) -> FloatArray:
    """Atoms shared between the two nearest cells so that the mean is kept."""
    lower = np.minimum(np.floor(positions).astype(int), points - 2)
    share = positions - lower
    upper: FloatArray = np.bincount(lower + 1, weights * share, points).astype(float)
    return upper + np.bincount(lower, weights * (1 - share), points)


def mgk_queue(
    request_rate: float,
    service_seconds: Any,
    service_weights: Any = None,
    servers: int = 1,
    arrival_variation: float = 1.0,
) -> MgkQueue:
    r"""Queue of a prefill pool with ``k`` equal instances.

    .. math:: P(W>0) = C(k, \lambda E[S]),\quad E[W|W>0] = \frac{E[S]}{k(1-\rho)}(\mathrm{kim} + \mathrm{burst})

    Parameters
    ----------
    request_rate : arrivals lambda at the pool [1/s]
    service_seconds : prefill time, a number or the nodes of its law [s]
    service_weights : share of each node; equal shares if not given [-]
    servers : instances k [-]
    arrival_variation : squared coefficient of variation of the arrivals, 1 for Poisson [-]

    Returns
    -------
    queue : :class:`MgkQueue`

    Raises
    ------
    InputError : a rate or service time that is no positive number, or a pool that cannot keep up

    Examples
    --------
    >>> queue = mgk_queue(0.9, 1.0)
    >>> round(queue.sojourn_mean, 3), round(queue.wait_probability, 3)
    (5.5, 0.9)

    References
    ----------
    Pollaczek-Khinchine for one server; Kimura (1986), Cosmetatos (1975), Kraemer and Langenbach-Belz (1976) for
    several and for bursts; Hayward's equivalent load for the waiting probability under bursts: A. A. Fredericks,
    Bell System Technical Journal 59 (1980) 805-827.
    """
    seconds, weights = _service_law(service_seconds, service_weights)
    mean, second = float(weights @ seconds), float(weights @ seconds**2)
    rho = _checked_load(request_rate, mean, servers, arrival_variation)
    variation = max(second / mean**2 - 1, 0.0)
    factor = float(several_servers_factor(servers, rho, variation) + burst_wait_term(arrival_variation, variation, rho))
    share = max(_wait_probability(rho, servers, arrival_variation, variation, seconds, weights), _LEAST_SHARE)
    conditional = mean / (servers * (1 - rho)) * factor
    return MgkQueue(
        request_rate, servers, rho, mean, share, share * conditional, variation, arrival_variation, seconds, weights
    )


def mgk_wait(
    request_rate: float,
    service_seconds: Any,
    service_weights: Any = None,
    servers: int = 1,
    arrival_variation: float = 1.0,
) -> tuple[float, float]:
    """Share of requests that wait [-] and mean wait [s] in a pool; arguments as in :func:`mgk_queue`.

    Examples
    --------
    >>> tuple(round(number, 4) for number in mgk_wait(0.9, 1.0))
    (0.9, 4.5)
    """
    queue = mgk_queue(request_rate, service_seconds, service_weights, servers, arrival_variation)
    return queue.wait_probability, queue.wait_mean


def _service_law(seconds: Any, weights: Any) -> tuple[FloatArray, FloatArray]:
    values = _numbers(seconds, "service_seconds")
    shares = np.full(len(values), 1.0) if weights is None else _numbers(weights, "service_weights")
    if len(values) == 0 or len(values) != len(shares):
        raise InputError("needs as many weights as values", key="service_weights")
    if not np.all((values > 0) & (values <= 1e12)):
        raise InputError("every service time must be a positive number of seconds", key="service_seconds")
    if not (np.all(np.isfinite(shares)) and np.all(shares >= 0) and shares.sum() > 0):
        raise InputError("weights must be zero or more and not all zero", key="service_weights")
    order = np.argsort(values, kind="stable")
    return values[order], shares[order] / shares.sum()


def _numbers(values: Any, key: str) -> FloatArray:
    found = np.atleast_1d(np.asarray(values))
    if found.dtype.kind not in "iuf":
        raise InputError(f"{shown(values)} must be numbers", key=key)
    return found.astype(float).ravel()


def _checked_load(rate: float, mean: float, servers: int, variation: float) -> float:
    for key, value in (("request_rate", rate), ("servers", servers), ("arrival_variation", variation)):
        if not isinstance(value, (int, float, np.number)) or isinstance(value, bool) or not abs(value) <= 1e30:
            raise InputError(f"{shown(value)} must be a number", key=key)
    if not (math.isfinite(rate) and rate > 0):
        raise InputError(f"must be a positive number of requests per second, not {rate!r}", key="request_rate")
    if servers < 1 or servers != int(servers):
        raise InputError(f"must be a whole number of instances, one or more, not {servers!r}", key="servers")
    if not (math.isfinite(variation) and variation >= 1):
        raise InputError(f"must be 1 (Poisson) or more, not {variation!r}", key="arrival_variation")
    rho = rate * mean / servers
    if rho > _LARGEST_LOAD:
        needed = math.floor(rate * mean * (1 + 1e-9)) + 1
        raise InputError(
            f"load {rho:.3g} of the pool is not below 1: give it {needed} instances or more", key="servers"
        )
    return rho


def _wait_probability(
    rho: float, servers: int, arrival_variation: float, variation: float, seconds: FloatArray, weights: FloatArray
) -> float:
    if arrival_variation <= 1:
        return continuous_erlang_c(servers, servers * rho)
    if servers == 1:
        return min(1.0, float(bursty_wait_probability(arrival_variation, variation, rho)))
    peakedness = 1 + (arrival_variation - 1) * overlap_share(seconds, weights)
    return continuous_erlang_c(servers / peakedness, servers * rho / peakedness)


def overlap_share(seconds: FloatArray, weights: FloatArray) -> float:
    r"""Share eta of a burst that is in service together: 1 for equal services, 1/2 for exponential ones.

    .. math:: \eta = \int_0^\infty P(S > t)^2\,dt / E[S]

    Parameters
    ----------
    seconds, weights : sorted nodes of the service law [s, -]

    Returns
    -------
    eta : between 0 and 1 [-]

    References
    ----------
    A. E. Eckberg, 10th International Teletraffic Congress (1983): peakedness of an infinite server group.
    """
    survival = 1 - np.concatenate([[0.0], np.cumsum(weights)[:-1]])
    return float(np.diff(seconds, prepend=0.0) @ survival**2 / (weights @ seconds))
