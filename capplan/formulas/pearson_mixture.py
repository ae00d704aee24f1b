"""Mixtures of Pearson III laws, on NumPy arrays: the law of TPOT over requests, and of decode time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from capplan.formulas.distinct import distinct
from capplan.formulas.special_arrays import FloatArray, GammaLaws

_GRID = 161
_TINY = 1e-12


@dataclass(frozen=True, eq=False)
class PearsonMixture:
    """A number drawn from one of several Pearson III laws.

    Parameters
    ----------
    weights : share of each law, summing to 1 [1]
    mean, std, skew : of each law, in units u, u, 1
    """

    weights: FloatArray
    mean: FloatArray
    std: FloatArray
    skew: FloatArray

    @cached_property
    def _laws(self) -> GammaLaws:
        return GammaLaws(4.0 / np.clip(self.skew, 2e-3, 30.0) ** 2)

    @cached_property
    def _spread(self) -> FloatArray:
        return np.maximum(self.std, _TINY * np.abs(self.mean) + 1e-300)

    def _standard(self, value: FloatArray) -> FloatArray:
        root = np.sqrt(self._laws.shapes)
        return self._laws.shapes + (value - self.mean) / self._spread * root

    def cdf(self, value: Any) -> Any:
        """Probability of at most ``value`` [u]; ``value`` may be an array."""
        if np.ndim(value):
            column = np.asarray(value, dtype=float)[:, None]
            return np.einsum("ij,j->i", self._laws.cdf(self._standard(column)), self.weights)
        return float(self.weights @ self._laws.cdf(self._standard(value)))

    def pdf(self, value: Any) -> float:
        """Density at ``value`` [1/u]."""
        density = self._laws.pdf(self._standard(value)) * np.sqrt(self._laws.shapes) / self._spread
        return float(self.weights @ density)

    @cached_property
    def total_mean(self) -> float:
        """Mean over all laws [u]."""
        return float(self.weights @ self.mean)

    @cached_property
    def total_variance(self) -> float:
        """Variance over all laws [u^2]."""
        return float(self.weights @ (self.std**2 + (self.mean - self.total_mean) ** 2))

    @cached_property
    def total_third(self) -> float:
        """Third central moment over all laws [u^3]."""
        away = self.mean - self.total_mean
        return float(self.weights @ (self.skew * self.std**3 + 3 * away * self.std**2 + away**3))

    def quantile(self, p: Any) -> Any:
        """The value whose cumulative probability is ``p`` [u]: Newton steps inside a bracket; arrays by a grid."""
        if np.ndim(p):
            return self._many(np.asarray(p, dtype=float))
        probability = float(p)
        if probability not in self._solved:
            self._solved[probability] = self._solve(probability)
        return self._solved[probability]

    @cached_property
    def _solved(self) -> dict[float, float]:
        return {}

    @cached_property
    def _range(self) -> tuple[float, float]:
        """Where all the probability that matters lies."""
        low = float((self.mean - 12.0 * self._spread).min())
        high = float((self.mean + (12.0 + 20.0 * np.maximum(self.skew, 0.0)) * self._spread).max())
        return low, high

    def _start(self, p: float) -> float:
        from capplan.formulas.pearson import pearson_quantile

        return pearson_quantile(p, self.total_mean, self.total_variance, self.total_third)

    def _solve(self, p: float) -> float:
        low, high = self._range
        value = min(max(self._start(p), low), high)
        for _ in range(60):
            error = self.cdf(value) - p
            low, high = (value, high) if error < 0.0 else (low, value)
            density = self.pdf(value)
            tail = 1.0 - p + max(-error, 0.0) if p > 0.5 else p
            # Newton on the logarithm of the smaller tail, which is nearly linear there.
            step = -error / density * (1.0 + 0.5 * error / tail) if density > 0.0 else np.inf
            following, still = value + step, abs(step) <= 1e-6 * abs(value)
            if still and abs(error) <= 1e-3 * tail:
                return float(following)
            if still or not low < following < high:  # a step that is short on a spike of the density leads nowhere
                following = 0.5 * (low + high)
            if high - low <= 1e-7 * abs(high):
                return float(following)
            value = following
        return float(value)

    def _many(self, p: FloatArray) -> FloatArray:
        inner = np.clip(p, 1e-9, 1 - 1e-9)
        low, high = self._solve(max(1e-9, float(inner.min()))), self._solve(float(inner.max()))
        middle = self._solve(0.5)
        tail = np.concatenate(
            [low + (middle - low) * np.linspace(0, 1, 40), middle + (high - middle) * np.linspace(0, 1, _GRID - 40)]
        )
        grid = distinct(tail)
        values: FloatArray = np.interp(inner, np.maximum.accumulate(self.cdf(grid)), grid)
        return values
