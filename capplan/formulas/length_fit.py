"""Length laws fitted to counted lengths so that mean, second moment and tail stay.

All fits take weighted values (lengths in tokens, increasing, and their shares) and cut at the longest of them, as
limits of context and output do in production.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capplan.errors import InputError
from capplan.formulas.length_law import LengthLaw
from capplan.formulas.length_laws import Fixed, Gamma, LogNormal, Mixture, Pareto

FloatArray = NDArray[np.float64]

EM_TURNS = 200
_LEAST_SIGMA = 0.02
_TURNS = 60
_CLOSE = 1e-9
_MOST_CV = 50.0
TAIL_SHARES = (0.1, 0.05, 0.02)
"""Shares of requests that the Pareto tail is tried for."""


def sample_moments(values: FloatArray, shares: FloatArray, order: int = 4) -> list[float]:
    """E[X^k] for k = 0..order of a weighted sample [token^k]."""
    return [float(shares @ values**k) for k in range(order + 1)]


def sample_quantile(values: FloatArray, shares: FloatArray, p: float) -> float:
    """Smallest value whose cumulative share reaches ``p`` [token]."""
    index = int(np.searchsorted(np.cumsum(shares), p * (1 - 1e-12)))
    return float(values[min(index, len(values) - 1)])


def two_moment_law(kind: Callable[..., LengthLaw], values: FloatArray, shares: FloatArray) -> LengthLaw | None:
    """The lognormal or gamma law, cut at the longest value, with mean and second moment of a sample; None if none has.

    Parameters
    ----------
    kind : :class:`LogNormal` or :class:`Gamma`
    values, shares : the sample
    """
    _, mean, square = sample_moments(values, shares, 2)
    limit, wanted = float(values[-1]), math.sqrt(max(0.0, square / mean**2 - 1))
    guess_mean, guess_cv = mean, wanted
    for _ in range(_TURNS):
        if not (1.0 <= guess_mean <= 1e8 and 1e-4 < guess_cv < _MOST_CV):
            return None
        law = kind(guess_mean, guess_cv, max=limit)
        if abs(law.mean / mean - 1) < _CLOSE and abs(law.cv / wanted - 1) < _CLOSE:
            return law
        guess_cv *= min(2.0, max(0.5, (wanted / law.cv) ** 1.5))
        guess_mean *= min(2.0, max(0.5, mean / law.mean))
    close = abs(law.mean / mean - 1) < 1e-4 and abs(law.cv / wanted - 1) < 1e-3
    return law if close else None


def two_lognormals(values: FloatArray, shares: FloatArray) -> LengthLaw | None:
    """Two lognormal laws by expectation maximisation on the counts, scaled and spread to keep mean and second moment.

    Starts from the halves of the sample below and above its median length; None where one part dies out.
    """
    logs = np.log(np.maximum(values, 0.5))
    upper = np.cumsum(shares) > 0.5
    member = np.where(upper, 0.95, 0.05)
    for _ in range(EM_TURNS):
        parts = [_weighted_normal(logs, shares * weight) for weight in (1 - member, member)]
        if any(part is None for part in parts):
            return None
        (w0, m0, s0), (w1, m1, s1) = (part for part in parts if part is not None)
        density = [w / s * np.exp(-(((logs - m) / s) ** 2) / 2) for w, m, s in ((w0, m0, s0), (w1, m1, s1))]
        updated = density[1] / np.maximum(density[0] + density[1], 1e-300)
        if np.abs(updated - member).max() < 1e-7:
            break
        member = updated
    return _moment_matched_pair(((w0, m0, s0), (w1, m1, s1)), values, shares)


def _weighted_normal(logs: FloatArray, weights: FloatArray) -> tuple[float, float, float] | None:
    mass = float(weights.sum())
    if mass < 1e-3:
        return None
    mean = float(weights @ logs) / mass
    spread = math.sqrt(max(float(weights @ (logs - mean) ** 2) / mass, _LEAST_SIGMA**2))
    return mass, mean, spread


def _moment_matched_pair(
    parts: tuple[tuple[float, float, float], ...], values: FloatArray, shares: FloatArray
) -> LengthLaw | None:
    """The pair with all lengths scaled, and the part of longer lengths spread, until mean and second moment fit."""
    limit = float(values[-1])
    _, mean, square = sample_moments(values, shares, 2)
    (w0, m0, s0), (w1, m1, s1) = sorted(parts, key=lambda part: part[1])
    scale, spread = 0.0, 1.0
    for _ in range(_TURNS):
        pieces = [(w0, _lognormal(m0 + scale, s0, limit)), (w1, _lognormal(m1 + scale, s1 * spread, limit))]
        if any(law is None for _, law in pieces):
            return None
        mixture = Mixture([(w, law) for w, law in pieces if law is not None])
        off_mean, off_square = mixture.mean / mean, mixture.moment(2) / square
        if abs(off_mean - 1) < 1e-8 and abs(off_square - 1) < 1e-8:
            return mixture
        scale -= math.log(off_mean)
        spread *= min(1.3, max(0.7, (off_mean**2 / off_square) ** 0.5))
    return None


def _lognormal(log_mean: float, sigma: float, limit: float) -> LengthLaw | None:
    mean, cv = math.exp(min(log_mean + sigma**2 / 2, 50.0)), math.sqrt(math.expm1(min(sigma**2, 50.0)))
    return LogNormal(mean, cv, limit) if 1.0 <= mean <= 1e8 and cv < _MOST_CV else None


def body_and_tail(values: FloatArray, shares: FloatArray, tail_share: float) -> LengthLaw | None:
    """A lognormal body and a Pareto tail cut at the longest length; the mean of each part stays.

    Parameters
    ----------
    values, shares : the sample
    tail_share : share of requests that belong to the tail [1]
    """
    start = sample_quantile(values, shares, 1 - tail_share)
    above = values > start
    mass = float(shares[above].sum())
    if not 0.2 * tail_share < mass < 0.5 or start < 1 or values[-1] < 1.5 * start:
        return None
    body = two_moment_law(LogNormal, values[~above], shares[~above] / (1 - mass))
    alpha = _tail_index(start, float(shares[above] @ values[above]) / mass, float(values[-1]))
    if body is None or alpha is None:
        return None
    return Mixture([(1 - mass, body), (mass, Pareto(start, alpha, float(values[-1])))])


def _tail_index(minimum: float, mean: float, limit: float) -> float | None:
    """The index with which a Pareto law cut at ``limit`` has that mean, by bisection."""
    low, high = 0.05, 60.0
    if not Pareto(minimum, high, limit).mean < mean < Pareto(minimum, low, limit).mean:
        return None
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if Pareto(minimum, middle, limit).mean > mean else (low, middle)
    return (low + high) / 2


def parametric_fits(values: FloatArray, shares: FloatArray) -> list[tuple[str, LengthLaw]]:
    """Every family that can take mean and second moment of a sample, fewest parameters first.

    Raises
    ------
    InputError : no values, or a value below 0
    """
    if len(values) == 0 or values[0] < 0:
        raise InputError("a fit needs lengths of 0 or more", key="values")
    if len(values) == 1:
        return [("fixed", Fixed(float(values[0])))]
    if values[0] < 1:  # the continuous laws begin at one token
        return []
    tries: list[tuple[str, Callable[[], LengthLaw | None]]] = [
        ("lognormal", lambda: two_moment_law(LogNormal, values, shares)),
        ("gamma", lambda: two_moment_law(Gamma, values, shares)),
        ("two lognormals", lambda: two_lognormals(values, shares)),
    ]
    for share in TAIL_SHARES:
        tries.append((f"lognormal, Pareto tail of {share:.0%}", _tail_fit(values, shares, share)))
    found = [(name, fit()) for name, fit in tries]
    return [(name, law) for name, law in found if law is not None]


def _tail_fit(values: FloatArray, shares: FloatArray, share: float) -> Callable[[], LengthLaw | None]:
    return lambda: body_and_tail(values, shares, share)


def separation(values: FloatArray, shares: FloatArray) -> tuple[float, float] | None:
    """Ashman's D of the two lognormal parts of a sample, and the length where they part; None where they do not.

    Two normals of logarithms are told apart by D = |m1 - m0| sqrt(2 / (s0^2 + s1^2)) above 2.

    Returns
    -------
    distance, border : [1], [token]
    """
    logs = np.log(np.maximum(values, 0.5))
    law = two_lognormals(values, shares) if len(values) > 10 else None
    if not isinstance(law, Mixture):
        return None
    (w0, a), (w1, b) = law.parts
    (m0, s0), (m1, s1) = (part._log_law for part in (a, b) if isinstance(part, LogNormal))
    distance = abs(m1 - m0) * math.sqrt(2 / (s0**2 + s1**2))
    between = logs[(logs > min(m0, m1)) & (logs < max(m0, m1))]
    if distance <= 2 or min(w0, w1) < 0.05 or len(between) == 0:
        return None
    odds: Any = np.abs(
        np.log(w1 / s1) - ((between - m1) / s1) ** 2 / 2 - np.log(w0 / s0) + ((between - m0) / s0) ** 2 / 2
    )
    return distance, float(np.exp(between[int(np.argmin(odds))]))
