"""What every law of request lengths can do: probabilities, quantiles, moments, truncation, scaling, nodes.

Conventions, the same for every law:

* A length is at least one token: mass a continuous law has below one sits at one (``Fixed(0)`` apart).
* ``max`` (a thinking budget, a context limit) cuts: the length is ``min(L, max)``, so the mass above sits *at* ``max``.
  Mean and cv given to a law describe it before the cut.
* A continuous law stands for its rounding to whole tokens.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from capplan.errors import InputError, shown
from capplan.formulas.lengths import two_point_law

if TYPE_CHECKING:
    from numpy.typing import NDArray

Self = TypeVar("Self", bound="LengthLaw")

MAX_TOKENS = 1e9
"""No request is longer than this."""

_STRATA = (0.02, 0.06, 0.12, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.78, 0.85, 0.9, 0.935, 0.96, 0.975, 0.985, 0.992, 0.996)
_TAIL = tuple(1.0 - 10.0**-exponent for exponent in (2.8, 3.2, 3.7, 4.3, 5.0, 6.0, 7.0, 8.5, 10.0, 12.0))


@dataclass(frozen=True)
class LengthLaw(ABC):
    """A law of token counts. Subclasses describe the law before ``max`` is applied."""

    @property
    def limit(self) -> float:
        """The cut ``max`` as a number, infinite where there is none [token]."""
        value = getattr(self, "max", None)
        return math.inf if value is None else float(value)

    @abstractmethod
    def _cdf(self, x: float) -> float:
        """P(X <= x) before the cuts at one and at ``max``."""

    @abstractmethod
    def _pdf(self, x: float) -> float:
        """Density before the cuts."""

    @abstractmethod
    def _partial(self, k: int, t: float) -> float:
        """E[X^k; X <= t] before the cuts."""

    def _partials(self, order: int, t: float) -> list[float]:
        """E[X^k; X <= t] before the cuts, for k = 0..order."""
        return [self._partial(k, t) for k in range(order + 1)]

    @abstractmethod
    def _quantile(self, p: float) -> float:
        """Quantile before the cuts."""

    @abstractmethod
    def scaled(self: Self, factor: float) -> Self:
        """The law of ``factor`` times the length, its ``max`` included."""

    def cdf(self, x: Any) -> Any:
        """Probability of at most ``x`` tokens; ``x`` may be an array."""
        if hasattr(x, "__array__") and getattr(x, "ndim", 0) > 0:
            import numpy as np

            return np.array([self.cdf(float(one)) for one in x.ravel()]).reshape(x.shape)
        if x < self._least():
            return 0.0
        return 1.0 if x >= self.limit else self._cdf(x)

    def pdf(self, x: float) -> float:
        """Density at ``x`` [1/token]; the masses at one and at ``max`` are not part of it."""
        return self._pdf(x) if self._least() < x < self.limit else 0.0

    def quantile(self, p: Any) -> Any:
        """Smallest length whose cumulative probability reaches ``p`` [token]; ``p`` may be an array."""
        if hasattr(p, "__array__") and getattr(p, "ndim", 0) > 0:
            import numpy as np

            return np.array([self.quantile(float(one)) for one in p.ravel()]).reshape(p.shape)
        if isinstance(p, (str, bytes, bool)) or not hasattr(p, "__float__") or not 0.0 <= p <= 1.0:
            raise InputError(f"a probability must lie between 0 and 1, not {shown(p)}")
        return min(max(self._quantile(float(p)), self._least()), self.limit)

    def partial_moment(self, k: int, t: float = math.inf) -> float:
        """E[L^k; L <= t], the cuts applied [token^k]."""
        least, limit = self._least(), self.limit
        if t < least or limit < least:
            return 0.0
        below = self._cdf(least) * least**k - self._partial(k, least)
        if t < limit:
            return below + self._partial(k, t)
        if math.isinf(limit):
            return below + self._partial(k, math.inf)
        return below + self._partial(k, limit) + limit**k * (1.0 - self._cdf(limit))

    def moments(self, order: int) -> list[float]:
        """E[L^k] for k = 0..order, the cuts applied [token^k]."""
        limit = self.limit
        if limit < self._least():
            return [0.0] * (order + 1)
        whole = [low + part for low, part in zip(self._mass_at_least(order), self._partials(order, limit), strict=True)]
        if math.isinf(limit):
            return whole
        above = 1.0 - self._cdf(limit)
        return [part + limit**k * above for k, part in enumerate(whole)]

    def _mass_at_least(self, order: int) -> list[float]:
        """What moving the mass below the smallest length to that length adds to E[X^k; X <= t], for k = 0..order."""
        least = self._least()
        below = self._cdf(least)
        return [below * least**k - part for k, part in enumerate(self._partials(order, least))]

    def moment(self, k: int) -> float:
        """E[L^k], the cuts applied [token^k]; infinite for a Pareto tail that is too heavy."""
        return self.partial_moment(k)

    def truncated_moment(self, k: int, budget: float) -> float:
        """E[min(L, budget)^k] [token^k]."""
        return self.partial_moment(k, budget) + float(budget) ** k * (1.0 - float(self.cdf(budget)))

    @cached_property
    def mean(self) -> float:
        """Mean, the cuts applied [token]."""
        return self.moment(1)

    @property
    def variance(self) -> float:
        """Variance, the cuts applied [token^2]."""
        return max(0.0, self.moment(2) - self.mean**2)

    @property
    def std(self) -> float:
        """Standard deviation [token]."""
        return math.sqrt(self.variance)

    @property
    def cv(self) -> float:
        """Standard deviation over mean [1]."""
        return self.std / self.mean if self.mean else 0.0

    def mean_residual(self, age: float) -> float:
        r"""Mean tokens still to come after ``age`` of them, :math:`E[L - a \mid L > a]`; 0 beyond all [token]."""
        left = 1.0 - float(self.cdf(age))
        if left <= 0.0:
            return 0.0
        return max(0.0, (self.mean - self.partial_moment(1, age)) / left - age)

    @property
    def length_biased_mean(self) -> float:
        r"""Mean length of the request a random token belongs to, :math:`E[L^2]/E[L]` [token]."""
        return self.moment(2) / self.mean if self.mean else 0.0

    def length_biased_cdf(self, x: float) -> float:
        r"""Share of all tokens that belong to requests of at most ``x``, :math:`E[L; L \le x]/E[L]` [1]."""
        return min(1.0, self.partial_moment(1, x) / self.mean) if self.mean else 1.0

    def truncated(self: Self, budget: float) -> Self:
        """The law of ``min(L, budget)``: the mass above the budget sits at the budget."""
        check_tokens("max", budget, least=1.0)
        return replace(self, max=min(self.limit, float(budget)))  # type: ignore[call-arg]

    def nodes(self, n: int = 48) -> tuple[NDArray[Any], NDArray[Any]]:
        """About ``n`` weighted support points (or all values, where there are fewer).

        Strata of equal mass in the body and of geometrically falling mass in the tail; in each, the two points with
        its mass and first three moments. So E[L..L^3] are exact and E[L^4] nearly.

        Returns
        -------
        values, weights : points [token] and masses (sum 1)
        """
        import numpy as np

        moments = self._cumulated_moments(self._strata(n))
        values: list[float] = []
        weights: list[float] = []
        for before, after in zip([[0.0] * 4, *moments[:-1]], moments, strict=True):
            m = [high - low for low, high in zip(before, after, strict=True)]
            if m[0] > 1e-15:
                pair, masses = two_point_law(m[0], m[1], m[2], m[3])
                values.extend(pair)
                weights.extend(masses)
        return np.maximum(np.array(values), self._least()), np.array(weights) / sum(weights)

    def _cumulated_moments(self, edges: list[float]) -> list[list[float]]:
        """E[L^k; L <= edge] for k = 0..3, the cuts applied, at increasing edges of which the last is infinite."""
        least, below = self._least(), self._mass_at_least(3)
        inner = [edge for edge in edges if edge < self.limit]
        rows = [
            [low + part for low, part in zip(below, self._partials(3, edge), strict=True)]
            if edge >= least
            else [0.0] * 4
            for edge in inner
        ]
        return rows + [self.moments(3)] * (len(edges) - len(inner))

    def _strata(self, n: int) -> list[float]:
        """Upper edges of the strata; the mass that ``max`` collects is a stratum of its own."""
        refine = max(1, round(n / (2 * (len(_STRATA) + 6))))
        probabilities = [0.0, *_STRATA, *_TAIL]
        fine = [
            low + (high - low) * part / refine for low, high in pairwise(probabilities) for part in range(1, refine + 1)
        ]
        if n < 30:
            fine = fine[1::2]
        edges = sorted({self.quantile(p) for p in fine})
        below = self.limit * (1 - 1e-12)
        return [*(edge for edge in edges if edge < below), *([below] if math.isfinite(below) else []), math.inf]

    def sample(self, size: int, random: Any) -> NDArray[Any]:
        """Whole token counts drawn with a ``numpy.random.Generator``."""
        import numpy as np

        grid = (np.arange(4096) + 0.5) / 4096
        fine = np.concatenate([grid[:-8], 1 - np.geomspace(8 / 4096, 1e-9, 400)])
        values = self.quantile(fine)
        drawn: NDArray[Any] = np.interp(random.random(size), fine, values)
        whole: NDArray[Any] = np.maximum(np.rint(drawn), self._least())
        return whole

    def _least(self) -> float:
        return 1.0


def as_items(values: Any, key: str) -> list[Any]:
    """The items of a list, tuple or array; text and single numbers are no lists."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, (str, bytes, bytearray)) or not hasattr(values, "__iter__"):
        raise InputError(f"{shown(values)} must be a list", key=key)
    return list(values)


def check_tokens(name: str, value: object, *, least: float = 0.0) -> float:
    """A finite token count in range, or an :class:`InputError` that names the field."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{shown(value)} must be a number of tokens", key=name)
    if not least <= value <= MAX_TOKENS:
        raise InputError(f"{shown(value)} must lie between {least:g} and {MAX_TOKENS:,.0f} tokens", key=name)
    return float(value)


def check_positive(name: str, value: object, *, most: float = 1e6) -> float:
    """A finite number above zero, or an :class:`InputError` that names the field."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 < value <= most:
        raise InputError(f"{shown(value)} must be a number above 0 and at most {most:g}", key=name)
    return float(value)
