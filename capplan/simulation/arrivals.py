"""When requests arrive: Poisson, bursty renewal streams, and the timestamps of a trace."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_AT_ONCE = 4096
WHOLE_COPIES = 0.005
"""Deviation from a whole number of copies of a trace that is none."""


def renewal_times(rate: float, dispersion: float, random: np.random.Generator) -> Iterator[float]:
    """Times of a renewal stream whose gaps have the squared coefficient of variation ``dispersion``.

    1 is Poisson. Above, gaps are hyperexponential with two phases of equal load; below, gamma. Over windows that are
    long against the gaps the variance of counts over their mean tends to ``dispersion`` too.

    Parameters
    ----------
    rate : arrivals [1/s]
    dispersion : of the gaps [1]
    random : source of randomness

    Returns
    -------
    times : without end, rising from 0 [s]
    """
    now = 0.0
    while True:
        for time in now + np.cumsum(_gaps(rate, dispersion, random)):
            now = float(time)
            yield now


def _gaps(rate: float, dispersion: float, random: np.random.Generator) -> Array:
    if dispersion == 1.0:
        return random.exponential(1 / rate, _AT_ONCE)
    if dispersion < 1.0:
        return random.gamma(1 / dispersion, dispersion / rate, _AT_ONCE)
    share = 0.5 * (1 + math.sqrt((dispersion - 1) / (dispersion + 1)))
    fast = random.random(_AT_ONCE) < share
    return random.exponential(1.0, _AT_ONCE) / (2 * rate * np.where(fast, share, 1 - share))


def span_of(stamps: Array) -> float:
    """Time that a trace covers: from the first to the last request, and a mean gap [s]."""
    return float(stamps.max() - stamps.min()) * len(stamps) / (len(stamps) - 1)


def copies_of(stamps: Array, rate: float) -> float:
    """Copies of a trace that together have a rate; below 1 the share of its requests that do [1]."""
    copies = rate * span_of(stamps) / len(stamps)
    whole = max(round(copies), 1)
    return float(whole) if abs(copies / whole - 1) < WHOLE_COPIES else copies


def trace_times(stamps: Array, rate: float, random: np.random.Generator) -> Iterator[tuple[float, int]]:
    """The timestamps of a trace over and over, at another rate, each with its place in the trace.

    Fewer requests than the trace has: each is kept with that probability. More: copies of the trace are laid over one
    another, each begun at a random place, so that bursts keep their durations.

    Parameters
    ----------
    stamps : arrival times of the trace, two at least, not all equal [s]
    rate : arrivals wanted [1/s]
    random : source of randomness

    Returns
    -------
    times, places : without end, times rising from 0 [s, 1]
    """
    copies, span = copies_of(stamps, rate), span_of(stamps)
    order = np.argsort(stamps, kind="stable")
    stamps = stamps[order] - stamps.min()
    shifts = random.random(math.ceil(copies)) * span
    kept = np.full(len(shifts), copies / len(shifts))
    turn = 0
    while True:
        chosen = [random.random(len(stamps)) < share for share in kept]
        times = np.concatenate([((stamps + shift) % span)[one] for shift, one in zip(shifts, chosen, strict=True)])
        places = np.concatenate([order[one] for one in chosen])
        for next_one in np.argsort(times, kind="stable").tolist():
            yield turn * span + float(times[next_one]), int(places[next_one])
        turn += 1
