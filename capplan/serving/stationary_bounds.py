"""Laws of the step time under a weighting of steps, and laws that cannot exceed what a full batch takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from capplan.cards.workload import Workload
from capplan.errors import InputError, shown
from capplan.formulas import stationary as closed
from capplan.formulas.lengths import running_weight_cube
from capplan.formulas.pearson import pearson_cdf, pearson_quantile


class StepCumulants(NamedTuple):
    """Step time over steps: mean [s], variance [s^2], third central moment [s^3]."""

    mean: float
    variance: float
    third: float


class Law(Protocol):
    """A law of a time: quantile, cumulative probability and mean."""

    def quantile(self, p: Any) -> Any:
        """Inverse of the cumulative probability [s]."""

    def cdf(self, seconds: Any) -> Any:
        """Probability of at most ``seconds``."""

    @property
    def total_mean(self) -> float:
        """Mean [s]."""


@dataclass(frozen=True)
class StepLaw:
    """Pearson III law of the step time under one weighting of steps; never below ``least``."""

    mean: float
    variance: float
    third: float
    least: float

    def quantile(self, p: Any) -> Any:
        """The step time whose cumulative probability is ``p`` [s]; ``p`` may be an array."""
        if np.ndim(p):
            return np.array([self.quantile(float(one)) for one in np.ravel(p)]).reshape(np.shape(p))
        return max(self.least, pearson_quantile(probability(p), self.mean, self.variance, self.third))

    @property
    def total_mean(self) -> float:
        """Mean [s]."""
        return self.mean

    def cdf(self, seconds: float) -> float:
        """Probability of at most ``seconds``."""
        return pearson_cdf(seconds, self.mean, self.variance, self.third) if seconds >= self.least else 0.0


def full_batch(mean: float, c: float, cap: float, workload: Workload) -> StepCumulants:
    r"""Moments of :math:`a + e m + c \sum_{i \le m} S_i`, m independent contexts of running requests.

    Parameters
    ----------
    mean : step time at m with mean contexts [s]
    c : step seconds a cached token [s/token]
    cap : m [1]
    workload : lengths
    """
    if c == 0.0:
        return StepCumulants(mean, 0.0, 0.0)
    theta, variance = workload.mean_context, workload.context_std**2
    third = running_weight_cube(0.0, 1.0, workload.decode_moments) - 3 * theta * variance - theta**3
    return StepCumulants(mean, cap * c**2 * variance, cap * c**3 * max(0.0, third))


@dataclass(frozen=True, eq=False)
class BoundedLaw:
    """A law whose quantiles are nowhere above those of ``most``, the law while every slot is taken."""

    law: Law
    most: Law

    def quantile(self, p: Any) -> Any:
        """The smaller of the two quantiles [s]."""
        value = self.law.quantile(p)
        if np.ndim(p):
            return np.minimum(value, self.most.quantile(p))
        # the cumulative probability is cheap, the quantile of a mixture is not
        return value if self.most.cdf(value) <= p else min(value, self.most.quantile(p))

    def cdf(self, seconds: Any) -> Any:
        """The larger of the two cumulative probabilities."""
        return np.maximum(self.law.cdf(seconds), self.most.cdf(seconds))

    @property
    def total_mean(self) -> float:
        """The smaller of the two means [s]."""
        return min(self.law.total_mean, self.most.total_mean)


def shifted(law: StepCumulants, shift: float, least: float) -> StepLaw:
    """The law of steps after a re-weighting that moves its mean."""
    if law.variance <= 0.0:
        return StepLaw(law.mean + shift, 0.0, 0.0, least)
    # The floor keeps a law where a strong shift would leave none (shape index far below 1).
    variance = max(closed.reweighted_variance(law.variance, law.third, shift), 0.1 * law.variance)
    return StepLaw(law.mean + shift, variance, law.third * variance / law.variance, least)


def probability(p: Any) -> float:
    """``p`` as a float, checked to lie between 0 and 1."""
    if isinstance(p, bool) or not isinstance(p, (int, float, np.floating)) or not 0.0 < p < 1.0:
        raise InputError(f"{shown(p)} must be a probability between 0 and 1", key="p")
    return float(p)


def probabilities(p: Any) -> Any:
    """``p``, a number or an array, checked to lie between 0 and 1."""
    if not np.ndim(p):
        return probability(p)
    given = np.asarray(p)
    if given.size == 0 or given.dtype.kind not in "iuf" or not ((given > 0) & (given < 1)).all():
        raise InputError("probabilities must lie between 0 and 1", key="p")
    return p


def infinite(p: Any) -> Any:
    """Infinity in the shape of ``p``."""
    return np.full(np.shape(p), math.inf) if np.ndim(p) else math.inf
