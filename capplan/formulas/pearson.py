"""Pearson III law (shifted gamma) from mean, variance and third cumulant; single numbers, numerical."""

from __future__ import annotations

import math

from capplan.formulas import special

SMALLEST_SKEWNESS = 1e-6
"""Below this the law is normal."""


def skewness(variance: float, third_cumulant: float) -> float:
    """Third cumulant over the 3/2 power of the variance, kept between the smallest value and 30 [1]."""
    if variance <= 0.0:
        return SMALLEST_SKEWNESS
    return min(30.0, max(SMALLEST_SKEWNESS, third_cumulant / (variance * math.sqrt(variance))))


def pearson_cdf(value: float, mean: float, variance: float, third_cumulant: float) -> float:
    """Probability of at most ``value``. Shape ``4 V^3 / k3^2``, scale ``k3 / 2V``, start ``mean - 2 V^2 / k3``."""
    if variance <= 0.0:
        return float(value >= mean)
    skew = skewness(variance, third_cumulant)
    z = (value - mean) / math.sqrt(variance)
    if skew < 2e-3:
        return special.skewed_normal_cdf(z, skew)
    return special.gamma_cdf(4.0 / skew**2, (z + 2.0 / skew) * 2.0 / skew)


def standard_pearson_quantile(p: float, skew: float) -> float:
    """Quantile of the Pearson III law of mean 0 and variance 1.

    >>> round(standard_pearson_quantile(0.99, 2.0), 5)  # exponential: -log(0.01) - 1
    3.60517
    """
    if skew < 2e-3:
        z = special.normal_quantile(p)
        return z + skew * (z * z - 1.0) / 6.0
    return special.gamma_quantile(4.0 / skew**2, p) * skew / 2.0 - 2.0 / skew


def pearson_quantile(p: float, mean: float, variance: float, third_cumulant: float) -> float:
    """The value whose cumulative probability is ``p``.

    Parameters
    ----------
    p : probability, 0 < p < 1 [1]
    mean, variance, third_cumulant : of the law, in units u, u^2, u^3

    Returns
    -------
    value : [u]
    """
    if variance <= 0.0:
        return mean
    return mean + math.sqrt(variance) * standard_pearson_quantile(p, skewness(variance, third_cumulant))
