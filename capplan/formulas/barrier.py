r"""Data-parallel ranks that wait for the slowest: the step lasts as long as the largest of D ranks. Numerical."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from capplan.errors import InputError
from capplan.formulas.special_arrays import FloatArray, GammaLaws, normal_cdf_array

ROUTINGS = ("random", "round-robin", "least-loaded")
_POINTS = 257
_SKEW_STEP = 0.05


def expected_maximum(ranks: float, skew: float) -> float:
    r"""Mean of the largest of several independent Pearson III numbers of mean 0 and variance 1.

    .. math:: \kappa = z_0 + \int_{z_0}^\infty (1 - F(z)^D)\,dz

    Parameters
    ----------
    ranks : how many numbers, D [1]
    skew : skewness of each [1]

    Returns
    -------
    kappa : 0 for one number [1]

    Examples
    --------
    >>> round(expected_maximum(2, 0.0), 4)  # 1 / sqrt(pi)
    0.5642
    """
    skew = min(30.0, max(0.0, skew))
    low = -9.0 if skew < 0.02 else max(-9.0, -2.0 / skew)
    high = 9.0 + math.log(ranks) * max(0.3, skew) + 14.0 * skew
    z = np.linspace(low, high, _POINTS)
    above = 1.0 - _standard_cdf(z, skew) ** ranks
    width = z[1] - z[0]
    simpson = np.where(np.arange(_POINTS) % 2, 4.0, 2.0)
    simpson[[0, -1]] = 1.0
    return float(low + width / 3.0 * (simpson @ above))


def _interpolated_maximum(ranks: int, skew: float) -> float:
    """:func:`expected_maximum` between kept points of the skewness, within 1e-4 of it: a fixed point needs dozens."""
    position = min(30.0, max(0.0, skew)) / _SKEW_STEP
    low = int(position)
    share = position - low
    return (1.0 - share) * _kept_maximum(ranks, low) + share * _kept_maximum(ranks, low + 1)


@lru_cache(maxsize=4096)
def _kept_maximum(ranks: int, steps: int) -> float:
    return expected_maximum(ranks, steps * _SKEW_STEP)


def _standard_cdf(z: FloatArray, skew: float) -> FloatArray:
    if skew < 0.02:
        density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        return np.clip(normal_cdf_array(z) - density * skew * (z * z - 1.0) / 6.0, 0.0, 1.0)
    return GammaLaws([4.0 / skew**2]).cdf(((z + 2.0 / skew) * 2.0 / skew)[:, None])[:, 0]


def barrier_step_mean(
    a: float,
    e: float,
    c: float,
    request_rate: float,
    mean_decode_steps: float,
    mean_context: float,
    context_std: float,
    weight_cube: float,
    ranks: int,
    routing: str = "random",
    light_damping: float = 1.0,
) -> float:
    r"""Mean step time of ranks that start every step together.

    .. math:: E_sT = (a + \sigma\kappa)/(1 - x),\qquad N = \lambda E[D]\,E_sT

    :math:`\sigma^2` is the variance of a rank's own part at N sequences: :math:`N(b^2 + c^2\nu^2)` behind a random
    split, :math:`N(c^2\nu^2 + b^2(1-\eta_0))` behind round-robin, :math:`N c^2\nu^2` where batches are kept equal
    (there 0.7 b, assumed, replaces :math:`\sigma\kappa` for c = 0); :math:`\kappa` is :func:`expected_maximum`.

    Parameters
    ----------
    a, e, c : step time a + e batch + c context of one rank [s], [s], [s/token]
    request_rate : lambda, offered to one rank [1/s]
    mean_decode_steps : E[D] [token]
    mean_context, context_std : theta, nu of a running request [token]
    weight_cube : E_run[w^3], see :func:`capplan.formulas.lengths.running_weight_cube` [s^3]
    ranks : D, ranks that wait for each other [1]
    routing : how requests reach the ranks: one of ``ROUTINGS``
    light_damping : eta_0 of the workload, for round-robin [1]

    Returns
    -------
    step_mean : infinite at a load of 1 and more [s]

    Raises
    ------
    InputError : unknown routing
    """
    if routing not in ROUTINGS:
        raise InputError(f"{routing!r} is none of {', '.join(ROUTINGS)}", key="routing")
    b = e + c * mean_context
    load = request_rate * mean_decode_steps * b
    if load >= 1.0:
        return math.inf
    own, third, flat = _per_request(b, (c * context_std) ** 2, weight_cube, routing, light_damping)
    step = a / (1.0 - load)
    for _ in range(60):
        batch = request_rate * mean_decode_steps * step
        sigma = math.sqrt(batch * own)
        skew = batch * third / sigma**3 if sigma > 0.0 else 0.0
        excess = sigma * _interpolated_maximum(ranks, skew) + (flat if ranks > 1 else 0.0)
        following = 0.5 * step + 0.5 * (a + excess) / (1.0 - load)
        if abs(following - step) < 1e-7 * step:
            return following
        step = following
    return step


def _per_request(b: float, kv: float, cube: float, routing: str, light_damping: float) -> tuple[float, float, float]:
    """Variance and third cumulant a running request adds, and the part of the excess that does not grow with N."""
    if routing == "random":
        return b**2 + kv, cube, 0.0
    balanced_cube = max(0.0, cube - 3 * b * kv - b**3)
    if routing == "round-robin":
        return kv + b**2 * max(0.0, 1.0 - light_damping), balanced_cube, 0.0
    return kv, balanced_cube, 0.7 * b if kv < 1e-12 * b**2 else 0.0
