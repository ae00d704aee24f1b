"""Latency laws as weighted atoms, so that waits, service and decode time can be added as laws, not as percentiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}


@cache
def probability_grid(cells: int = 160) -> tuple[Array, Array]:
    """Midpoints and widths of probability cells that get finer towards 1 (the last is 2e-5 wide).

    Uniform up to 0.8, then geometric: a P99.9 rests on dozens of cells, not on one.
    """
    body = np.linspace(0.0, 0.8, cells // 2 + 1)
    tail = 1.0 - 0.2 * np.geomspace(1.0, 1e-4, cells // 2)
    edges = np.concatenate([body, tail[1:], [1.0]])
    return (edges[1:] + edges[:-1]) / 2, np.diff(edges)


@dataclass(frozen=True, eq=False)
class Law:
    """A latency as atoms: sorted ``values`` [s] with ``weights`` that sum to one."""

    values: Array
    weights: Array

    @classmethod
    def of(cls, values: Any, weights: Any) -> Law:
        """Sorted and normalised."""
        v, w = np.asarray(values, float).ravel(), np.asarray(weights, float).ravel()
        order = np.argsort(v, kind="stable")
        return cls(v[order], w[order] / w.sum())

    @classmethod
    def from_quantiles(cls, quantile: Callable[[Array], Any]) -> Law:
        """From a vectorised quantile function."""
        middle, width = probability_grid()
        return cls.of(quantile(middle), width)

    @property
    def mean(self) -> float:
        """Mean [s]."""
        return float(self.values @ self.weights)

    def quantile(self, p: float) -> float:
        """The smallest atom with at least probability ``p`` at or below it; linear between atom centres."""
        centres = np.cumsum(self.weights) - self.weights / 2
        return float(np.interp(p, centres, self.values))

    def share_within(self, limit: float) -> float:
        """Probability of at most ``limit`` [s]."""
        return float(self.weights[self.values <= limit].sum())

    def plus(self, other: Law) -> Law:
        """The law of the sum of two independent latencies, reduced to the probability grid."""
        if len(other.values) == 1:
            return self.shifted(float(other.values[0]))
        total = Law.of(self.values[:, None] + other.values, self.weights[:, None] * other.weights)
        return total.reduced()

    def shifted(self, seconds: float) -> Law:
        """The law after a constant delay."""
        return Law(self.values + seconds, self.weights)

    def reduced(self) -> Law:
        """At most one atom a probability cell: its mean, so the mean of the law is kept."""
        _, width = probability_grid()
        if len(self.values) <= len(width):
            return self
        cell = np.searchsorted(np.cumsum(width)[:-1], np.cumsum(self.weights) - self.weights / 2)
        weights = np.bincount(cell, self.weights, len(width)).astype(float)
        values = np.bincount(cell, self.weights * self.values, len(width))
        used = weights > 0
        return Law(values[used] / weights[used], weights[used])
