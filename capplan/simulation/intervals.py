"""Figures of a run with confidence intervals, by batch means."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

BATCHES = 20
_T_975 = 2.093
"""Student's t for 19 degrees of freedom, two-sided 95 %."""
_MOST_CORRELATION = 0.8


@dataclass(frozen=True)
class Estimate:
    """A simulated figure and half the width of its 95 % confidence interval."""

    value: float
    half_width: float

    @property
    def low(self) -> float:
        """Lower end."""
        return self.value - self.half_width

    @property
    def high(self) -> float:
        """Upper end."""
        return self.value + self.half_width


def batch_means(size: int, figure: Callable[[slice], float]) -> Estimate:
    """A figure of ``size`` observations in order of time, its interval from twenty consecutive batches.

    The spread of the batches is widened by the correlation of neighbours, (1 + r)/(1 - r), where it is positive:
    batches shorter than the memory of the system move together.

    Parameters
    ----------
    size : observations
    figure : its value on a slice of them; NaN where it has none

    Returns
    -------
    estimate : value on all, half width [unit of the figure]; infinite with fewer than 40 observations
    """
    if size < 2 * BATCHES:
        return Estimate(figure(slice(0, size)) if size else math.nan, math.inf)
    edges = np.linspace(0, size, BATCHES + 1).astype(int)
    parts = np.array([figure(slice(int(a), int(b))) for a, b in pairwise(edges)])
    parts = parts[np.isfinite(parts)]
    if len(parts) < BATCHES // 2:
        return Estimate(figure(slice(0, size)), math.inf)
    around = parts - parts.mean()
    spread = float(around @ around)
    neighbours = float(around[1:] @ around[:-1]) / spread if spread > 0 else 0.0
    memory = min(max(neighbours, 0.0), _MOST_CORRELATION)
    error = math.sqrt(spread / (len(parts) * (len(parts) - 1)) * (1 + memory) / (1 - memory))
    return Estimate(figure(slice(0, size)), _T_975 * error)


def mean(values: Array, weights: Array | None = None) -> Estimate:
    """Mean, weighted where weights are given."""
    if weights is None:
        return batch_means(len(values), lambda part: float(values[part].mean()))
    return batch_means(
        len(values), lambda part: _ratio(float(values[part] @ weights[part]), float(weights[part].sum()))
    )


def ratio(above: Array, below: Array) -> Estimate:
    """Sum over sum."""
    return batch_means(len(above), lambda part: _ratio(float(above[part].sum()), float(below[part].sum())))


def quantile(values: Array, p: float, weights: Array | None = None) -> Estimate:
    """Quantile over observations, or over their weights."""
    if weights is None:
        return batch_means(len(values), lambda part: float(np.quantile(values[part], p)))
    return batch_means(len(values), lambda part: weighted_quantile(values[part], weights[part], p))


def weighted_quantile(values: Array, weights: Array, p: float) -> float:
    """The smallest value with at least the share ``p`` of the weights at or below it."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    if not len(reached) or reached[-1] <= 0:
        return math.nan
    return float(values[order][min(int(np.searchsorted(reached, p * reached[-1])), len(reached) - 1)])


def _ratio(above: float, below: float) -> float:
    return above / below if below else math.nan
