"""Measured laws of request lengths: weighted values, and a histogram with uniform bins."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

from capplan.errors import InputError
from capplan.formulas.length_law import MAX_TOKENS, LengthLaw, as_items, check_positive, check_tokens


@dataclass(frozen=True)
class Empirical(LengthLaw):
    """A law given by values: a sample, weighted values, or a mapping from value to count.

    Parameters
    ----------
    values : token counts, or a mapping token count -> weight
    weights : weight of each value; equal if left out
    max : cut, as for every law [token]

    >>> Empirical({100: 3, 500: 1}).mean
    200.0
    """

    values: tuple[float, ...]
    weights: tuple[float, ...]
    max: float | None = None

    def __init__(self, values: Any, weights: Any = None, max: float | None = None) -> None:
        pairs = _counted(values, weights)
        total = math.fsum(weight for _, weight in pairs)
        if not pairs or not 0.0 < total < math.inf:
            raise InputError("an empirical law needs values, with weights that sum to more than 0", key="values")
        object.__setattr__(self, "values", tuple(value for value, _ in pairs))
        object.__setattr__(self, "weights", tuple(weight / total for _, weight in pairs))
        object.__setattr__(self, "max", None if max is None else check_tokens("max", max, least=1.0))

    @cached_property
    def _sums(self) -> tuple[tuple[float, ...], ...]:
        """Cumulative weight * value^k for k = 0..4."""
        return tuple(
            tuple(accumulate(weight * value**k for value, weight in zip(self.values, self.weights, strict=True)))
            for k in range(5)
        )

    def _least(self) -> float:
        return min(1.0, self.values[0])

    def _cdf(self, x: float) -> float:
        return min(1.0, self._partial(0, x))

    def _pdf(self, x: float) -> float:
        return 0.0 * x

    def _partial(self, k: int, t: float) -> float:
        index = bisect_right(self.values, t)
        if index == 0:
            return 0.0
        if k < 5:
            return self._sums[k][index - 1]
        return math.fsum(w * v**k for v, w in zip(self.values[:index], self.weights, strict=False))

    def _quantile(self, p: float) -> float:
        # 1e-12 forgives the rounding of the cumulative sum.
        index = bisect_right(self._sums[0], p * (1 - 1e-12) - 1e-15)
        return self.values[min(index, len(self.values) - 1)]

    def truncated(self, budget: float) -> Empirical:
        """The law of ``min(L, budget)``."""
        check_tokens("max", budget, least=1.0)
        return Empirical([min(value, budget) for value in self.values], self.weights)

    def scaled(self, factor: float) -> Empirical:
        """Every value times ``factor``, at least one token."""
        check_positive("factor", factor)
        limit = None if self.max is None else max(1.0, self.max * factor)
        return Empirical([max(min(1.0, v), v * factor) for v in self.values], self.weights, limit)

    def nodes(self, n: int = 48) -> tuple[Any, Any]:
        """The values themselves where they are few, else strata as for the other laws."""
        import numpy as np

        if len(self.values) <= max(n, 32):
            return np.minimum(np.array(self.values), self.limit), np.array(self.weights)
        return super().nodes(n)

    def sample(self, size: int, random: Any) -> Any:
        """Values drawn with a ``numpy.random.Generator``."""
        import numpy as np

        return random.choice(np.minimum(np.rint(self.values), self.limit), size, p=np.array(self.weights))


@dataclass(frozen=True)
class Histogram(LengthLaw):
    """Bins between increasing ``edges``, each with its share; uniform inside a bin.

    Parameters
    ----------
    edges : bin borders, one more than shares [token]
    shares : mass of each bin, scaled to sum 1
    max : cut, as for every law [token]

    >>> Histogram([0, 100, 300], [0.5, 0.5]).mean
    125.0025
    """

    edges: tuple[float, ...]
    shares: tuple[float, ...]
    max: float | None = None

    def __init__(self, edges: Sequence[float], shares: Sequence[float], max: float | None = None) -> None:
        edges, shares = as_items(edges, "edges"), as_items(shares, "shares")
        total = math.fsum(check_tokens(f"shares.{i}", share) for i, share in enumerate(shares))
        if len(edges) != len(shares) + 1 or total <= 0:
            raise InputError("needs one more edge than shares, and shares that sum to more than 0", key="edges")
        checked = [check_tokens(f"edges.{i}", edge) for i, edge in enumerate(edges)]
        if any(low >= high for low, high in pairwise(checked)):
            raise InputError("must increase", key="edges")
        object.__setattr__(self, "edges", tuple(checked))
        object.__setattr__(self, "shares", tuple(share / total for share in shares))
        object.__setattr__(self, "max", None if max is None else check_tokens("max", max, least=1.0))

    def cdf(self, x: Any) -> Any:
        """Probability of at most ``x`` tokens; ``x`` may be an array."""
        if getattr(x, "ndim", 0) == 0:
            return super().cdf(x)
        import numpy as np

        inside = np.interp(x, self.edges, self._cumulative)
        return np.where(x >= self.limit, 1.0, np.where(x >= self._least(), np.minimum(inside, 1.0), 0.0))

    @cached_property
    def _cumulative(self) -> tuple[float, ...]:
        return (0.0, *accumulate(self.shares))

    def _bin(self, x: float) -> int:
        return min(max(bisect_right(self.edges, x) - 1, 0), len(self.shares) - 1)

    def _cdf(self, x: float) -> float:
        i = self._bin(x)
        part = min(1.0, max(0.0, (x - self.edges[i]) / (self.edges[i + 1] - self.edges[i])))
        return min(1.0, self._cumulative[i] + self.shares[i] * part)

    def _pdf(self, x: float) -> float:
        i = self._bin(x)
        inside = self.edges[0] <= x <= self.edges[-1]
        return self.shares[i] / (self.edges[i + 1] - self.edges[i]) if inside else 0.0

    @cached_property
    def _sums(self) -> tuple[tuple[float, ...], ...]:
        """E[X^k; X <= edge] at every edge, for k = 0..4."""
        return tuple((0.0, *accumulate(self._bin_moments(k))) for k in range(5))

    def _bin_moments(self, k: int) -> Iterator[float]:
        powers = [edge ** (k + 1) for edge in self.edges]
        for i, share in enumerate(self.shares):
            yield share * (powers[i + 1] - powers[i]) / ((k + 1) * (self.edges[i + 1] - self.edges[i]))

    def _partial(self, k: int, t: float) -> float:
        return self._partials(k, t)[k]

    def _partials(self, order: int, t: float) -> list[float]:
        if t >= self.edges[-1]:
            return [self._sums[k][-1] for k in range(order + 1)]
        if t <= self.edges[0]:
            return [0.0] * (order + 1)
        i = self._bin(t)
        low, density = self.edges[i], self.shares[i] / (self.edges[i + 1] - self.edges[i])
        return [self._sums[k][i] + density * (t ** (k + 1) - low ** (k + 1)) / (k + 1) for k in range(order + 1)]

    def _quantile(self, p: float) -> float:
        i = min(max(bisect_right(self._cumulative, p) - 1, 0), len(self.shares) - 1)
        while i > 0 and self.shares[i] == 0.0:
            i -= 1
        part = min(1.0, (p - self._cumulative[i]) / self.shares[i]) if self.shares[i] else 0.0
        return self.edges[i] + part * (self.edges[i + 1] - self.edges[i])

    def scaled(self, factor: float) -> Histogram:
        """Edges and ``max`` times ``factor``."""
        check_positive("factor", factor)
        limit = None if self.max is None else max(1.0, self.max * factor)
        return Histogram([edge * factor for edge in self.edges], self.shares, limit)

    def truncated(self, budget: float) -> Histogram:
        """The law of ``min(L, budget)``."""
        return Histogram(self.edges, self.shares, min(self.limit, check_tokens("max", budget, least=1.0)))

    def _strata(self, n: int) -> list[float]:
        """The bins themselves, or every so many of them; the last three always, for they rule the fourth moment."""
        if len(self.shares) > max(n, 40):
            return super()._strata(n)
        every = -(-2 * len(self.shares) // max(n, 8))
        below = self.limit * (1 - 1e-12)
        kept = [*self.edges[1:-3:every], *self.edges[1:-1][-2:]]
        inner = [edge for edge in dict.fromkeys(kept) if edge < below]
        return [*inner, *([below] if math.isfinite(below) else []), math.inf]


def _counted(values: Any, weights: Any) -> list[tuple[float, float]]:
    """Sorted distinct values with their summed weights."""
    if isinstance(values, Mapping):
        values, weights = list(values.keys()), list(values.values())
    listed = as_items(values, "values")
    loads = [1.0] * len(listed) if weights is None else as_items(weights, "weights")
    if len(loads) != len(listed):
        raise InputError(f"{len(listed)} values but {len(loads)} weights", key="weights")
    merged: dict[float, float] = {}
    for position, (value, weight) in enumerate(zip(listed, loads, strict=True)):
        if type(value) is not float or not 0.0 <= value <= MAX_TOKENS:
            value = check_tokens(f"values.{position}", value)
        if type(weight) is not float or not 0.0 <= weight <= MAX_TOKENS:
            weight = check_tokens(f"weights.{position}", weight)
        merged[value] = merged.get(value, 0.0) + weight
    return sorted((value, weight) for value, weight in merged.items() if weight > 0.0)
