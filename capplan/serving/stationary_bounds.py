"""Laws that cannot exceed what a full batch takes: percentiles behind a cap on the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from capplan.cards.workload import Workload
from capplan.formulas.lengths import running_weight_cube


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
