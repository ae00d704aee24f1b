"""The laws of request lengths that have a closed form; :mod:`capplan.formulas.empirical` has the measured ones."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from capplan.errors import InputError, shown
from capplan.formulas import lengths, special
from capplan.formulas.empirical import Empirical, Histogram
from capplan.formulas.length_law import LengthLaw, as_items, check_positive, check_tokens

__all__ = [
    "Empirical",
    "Exponential",
    "Fixed",
    "Gamma",
    "Histogram",
    "LengthLaw",
    "LogNormal",
    "Mixture",
    "Pareto",
    "Uniform",
]

LEAST_CV = 1e-6
"""A law with a smaller coefficient of variation is that of equal lengths; doubles cannot tell them apart."""


@dataclass(frozen=True)
class Fixed(LengthLaw):
    """Every request has ``tokens`` tokens.

    >>> Fixed(1024).moment(2)
    1048576.0
    """

    tokens: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", check_tokens("tokens", self.tokens))

    def _least(self) -> float:
        return min(1.0, self.tokens)

    def _cdf(self, x: float) -> float:
        return float(x >= self.tokens)

    def _pdf(self, x: float) -> float:
        return 0.0 * x

    def _partial(self, k: int, t: float) -> float:
        return float(self.tokens) ** k if t >= self.tokens else 0.0

    def _quantile(self, p: float) -> float:
        return self.tokens + 0.0 * p

    def truncated(self, budget: float) -> Fixed:
        """``Fixed(min(tokens, budget))``."""
        return Fixed(min(self.tokens, check_tokens("max", budget, least=1.0)))

    def scaled(self, factor: float) -> Fixed:
        """``Fixed(factor * tokens)``."""
        return Fixed(max(min(1.0, self.tokens), self.tokens * check_positive("factor", factor)))

    def nodes(self, n: int = 1) -> tuple[Any, Any]:
        """The one value."""
        import numpy as np

        return np.full(min(n, 1), self.tokens), np.ones(min(n, 1))

    def sample(self, size: int, random: Any) -> Any:  # noqa: ARG002 (the other laws draw)
        """The one value, ``size`` times."""
        import numpy as np

        return np.full(size, round(self.tokens), dtype=float)


@dataclass(frozen=True)
class Uniform(LengthLaw):
    """Every length between ``low`` and ``high`` is equally likely."""

    low: float
    high: float
    max: float | None = None

    def __post_init__(self) -> None:
        check_tokens("low", self.low)
        if not self.low < check_tokens("high", self.high):
            raise InputError(f"{self.high!r} must be above low = {self.low!r}", key="high")
        _check_max(self.max)

    def _cdf(self, x: float) -> float:
        return min(1.0, max(0.0, (x - self.low) / (self.high - self.low)))

    def _pdf(self, x: float) -> float:
        return 1.0 / (self.high - self.low) if self.low <= x <= self.high else 0.0

    def _partial(self, k: int, t: float) -> float:
        return lengths.uniform_partial_moment(self.low, self.high, k, t)

    def _quantile(self, p: float) -> float:
        return self.low + p * (self.high - self.low)

    def scaled(self, factor: float) -> Uniform:
        """Both ends and ``max`` times ``factor``."""
        check_positive("factor", factor)
        return Uniform(self.low * factor, self.high * factor, _scaled_max(self.max, factor))


@dataclass(frozen=True)
class Gamma(LengthLaw):
    """Gamma law with this mean and coefficient of variation (before ``max`` cuts).

    >>> round(Gamma(1000, 0.5).moment(2))
    1250000
    """

    mean_tokens: float
    cv_before_max: float
    max: float | None = None

    def __init__(self, mean: float, cv: float, max: float | None = None) -> None:
        object.__setattr__(self, "mean_tokens", check_tokens("mean", mean, least=1.0))
        object.__setattr__(self, "cv_before_max", _cv(cv))
        object.__setattr__(self, "max", _check_max(max))

    @property
    def _shape(self) -> float:
        return self.cv_before_max**-2

    def _cdf(self, x: float) -> float:
        return special.gamma_cdf(self._shape, x * self._shape / self.mean_tokens)

    def _pdf(self, x: float) -> float:
        t, rate = x * self._shape / self.mean_tokens, self._shape / self.mean_tokens
        return rate * math.exp((self._shape - 1.0) * math.log(t) - t - math.lgamma(self._shape))

    def _partial(self, k: int, t: float) -> float:
        return lengths.gamma_partial_moment(self.mean_tokens, self.cv_before_max, k, t)

    def _quantile(self, p: float) -> float:
        return special.gamma_quantile(self._shape, p) * self.mean_tokens / self._shape

    def truncated(self, budget: float) -> Gamma:
        """The law of ``min(L, budget)``."""
        return type(self)._rebuilt(self, 1.0, min(self.limit, check_tokens("max", budget, least=1.0)))

    def scaled(self, factor: float) -> Gamma:
        """Mean and ``max`` times ``factor``; the cv stays."""
        return type(self)._rebuilt(self, check_positive("factor", factor), _scaled_max(self.max, factor))

    def _rebuilt(self, factor: float, limit: float | None) -> Gamma:
        return Gamma(self.mean_tokens * factor, self.cv_before_max, limit)


class Exponential(Gamma):
    """Exponential law: the gamma law of cv 1, the continuous twin of a geometric length."""

    def __init__(self, mean: float, max: float | None = None) -> None:
        super().__init__(mean, 1.0, max)

    def _rebuilt(self, factor: float, limit: float | None) -> Exponential:
        return Exponential(self.mean_tokens * factor, limit)


@dataclass(frozen=True)
class LogNormal(LengthLaw):
    """Lognormal law with this mean and coefficient of variation (before ``max`` cuts).

    >>> round(LogNormal(1000, 1.0).quantile(0.5), 2)  # 1000 / sqrt(2)
    707.11
    """

    mean_tokens: float
    cv_before_max: float
    max: float | None = None

    def __init__(self, mean: float, cv: float, max: float | None = None) -> None:
        object.__setattr__(self, "mean_tokens", check_tokens("mean", mean, least=1.0))
        object.__setattr__(self, "cv_before_max", _cv(cv))
        object.__setattr__(self, "max", _check_max(max))

    @cached_property
    def _log_law(self) -> tuple[float, float]:
        sigma = math.sqrt(lengths.lognormal_log_variance(self.cv_before_max))
        return float(lengths.lognormal_log_mean(self.mean_tokens, self.cv_before_max)), sigma

    def _cdf(self, x: float) -> float:
        mu, sigma = self._log_law
        return special.normal_cdf((math.log(x) - mu) / sigma) if x > 0.0 else 0.0

    def _pdf(self, x: float) -> float:
        mu, sigma = self._log_law
        return special.normal_pdf((math.log(x) - mu) / sigma) / (x * sigma)

    def _partial(self, k: int, t: float) -> float:
        return lengths.lognormal_partial_moment(self.mean_tokens, self.cv_before_max, k, t)

    def _quantile(self, p: float) -> float:
        mu, sigma = self._log_law
        return math.exp(min(700.0, mu + sigma * special.normal_quantile(p)))

    def truncated(self, budget: float) -> LogNormal:
        """The law of ``min(L, budget)``."""
        limit = min(self.limit, check_tokens("max", budget, least=1.0))
        return LogNormal(self.mean_tokens, self.cv_before_max, limit)

    def scaled(self, factor: float) -> LogNormal:
        """Mean and ``max`` times ``factor``; the cv stays."""
        check_positive("factor", factor)
        return LogNormal(self.mean_tokens * factor, self.cv_before_max, _scaled_max(self.max, factor))


@dataclass(frozen=True)
class Pareto(LengthLaw):
    """Pareto law, P(L > x) = (minimum / x)^alpha; moments of order alpha and above need a ``max``."""

    minimum: float
    alpha: float
    max: float | None = None

    def __post_init__(self) -> None:
        check_tokens("minimum", self.minimum, least=1.0)
        check_positive("alpha", self.alpha, most=100.0)
        if _check_max(self.max) is not None and self.limit <= self.minimum:
            raise InputError(f"{self.max!r} must be above minimum = {self.minimum!r}", key="max")

    def _cdf(self, x: float) -> float:
        return 1.0 - (self.minimum / x) ** self.alpha if x > self.minimum else 0.0

    def _pdf(self, x: float) -> float:
        return self.alpha * self.minimum**self.alpha / x ** (self.alpha + 1) if x >= self.minimum else 0.0

    def _partial(self, k: int, t: float) -> float:
        return lengths.pareto_partial_moment(self.minimum, self.alpha, k, t)

    def _quantile(self, p: float) -> float:
        return self.minimum * (1.0 - p) ** (-1.0 / self.alpha) if p < 1.0 else math.inf

    def truncated(self, budget: float) -> LengthLaw:  # type: ignore[override]
        """The law of ``min(L, budget)``; fixed where the budget is below the smallest length."""
        limit = min(self.limit, check_tokens("max", budget, least=1.0))
        return Fixed(limit) if limit <= self.minimum else replace(self, max=limit)

    def scaled(self, factor: float) -> Pareto:
        """Minimum and ``max`` times ``factor``; the tail index stays."""
        check_positive("factor", factor)
        return Pareto(max(1.0, self.minimum * factor), self.alpha, _scaled_max(self.max, factor))


@dataclass(frozen=True)
class Mixture(LengthLaw):
    """A length drawn from one of several laws.

    Parameters
    ----------
    parts : pairs (weight, law); weights above 0, scaled to sum 1; a number as law means ``Fixed``

    >>> Mixture([(0.9, 400), (0.1, 6400)]).mean
    1000.0
    """

    parts: tuple[tuple[float, LengthLaw], ...]

    def __init__(self, parts: Iterable[tuple[float, LengthLaw | float]]) -> None:
        pairs = [_part(position, part) for position, part in enumerate(as_items(parts, "parts"))]
        if not 0 < len(pairs) <= 1000:
            raise InputError("a mixture needs between 1 and 1,000 parts (weight, law)", key="parts")
        total = math.fsum(weight for weight, _ in pairs)
        object.__setattr__(self, "parts", tuple((weight / total, law) for weight, law in pairs))

    @property
    def limit(self) -> float:
        """The largest ``max`` of the parts [token]."""
        return max(law.limit for _, law in self.parts)

    def cdf(self, x: Any) -> Any:
        """Probability of at most ``x`` tokens; ``x`` may be an array."""
        shares = (weight * law.cdf(x) for weight, law in self.parts)
        return sum(shares) if hasattr(x, "shape") else math.fsum(shares)

    def pdf(self, x: float) -> float:
        """Density at ``x`` [1/token]."""
        return math.fsum(weight * law.pdf(x) for weight, law in self.parts)

    def partial_moment(self, k: int, t: float = math.inf) -> float:
        """E[L^k; L <= t] [token^k]."""
        return math.fsum(weight * law.partial_moment(k, t) for weight, law in self.parts)

    def moments(self, order: int) -> list[float]:
        """E[L^k] for k = 0..order [token^k]."""
        parts = [[weight * moment for moment in law.moments(order)] for weight, law in self.parts]
        return [math.fsum(column) for column in zip(*parts, strict=True)]

    def _cdf(self, x: float) -> float:
        return float(self.cdf(x))

    def _pdf(self, x: float) -> float:
        return self.pdf(x)

    def _partial(self, k: int, t: float) -> float:
        return self.partial_moment(k, t)

    def _least(self) -> float:
        return min(law._least() for _, law in self.parts)

    def _quantile(self, p: float) -> float:
        """Regula falsi between the smallest and the largest quantile of the parts, with bisection where it stalls."""
        ends = [law.quantile(p) for _, law in self.parts]
        low, high = min(ends), max(ends)
        below, above = self.cdf(low) - p, self.cdf(high) - p
        if below >= 0.0 or math.isinf(high):
            return float(low if below >= 0.0 else high)
        while high - low > 1e-9 * high:
            share = min(max(below / (below - above), 0.01), 0.99) if above > 0.0 else 0.5
            middle = low + share * (high - low)
            error = self.cdf(middle) - p
            if error >= 0.0:
                high, above, below = middle, error, below / 2
            else:
                low, below, above = middle, error, above / 2
        return float(high)

    def truncated(self, budget: float) -> Mixture:
        """The law of ``min(L, budget)``."""
        return Mixture([(weight, law.truncated(budget)) for weight, law in self.parts])

    def scaled(self, factor: float) -> Mixture:
        """Every part scaled."""
        return Mixture([(weight, law.scaled(factor)) for weight, law in self.parts])

    def nodes(self, n: int = 48) -> tuple[Any, Any]:
        """The nodes of the parts, each weighted; heavier parts get more."""
        import numpy as np

        found = [(weight, law.nodes(max(16, round(n * weight)))) for weight, law in self.parts]
        return np.concatenate([v for _, (v, _) in found]), np.concatenate([weight * w for weight, (_, w) in found])

    def sample(self, size: int, random: Any) -> Any:
        """Whole token counts drawn with a ``numpy.random.Generator``."""
        import numpy as np

        counts = random.multinomial(size, [weight for weight, _ in self.parts])
        drawn = [law.sample(int(count), random) for count, (_, law) in zip(counts, self.parts, strict=True)]
        return random.permutation(np.concatenate(drawn))


def _part(position: int, part: Any) -> tuple[float, LengthLaw]:
    place = f"parts.{position}"
    if not isinstance(part, (tuple, list)) or len(part) != 2:
        raise InputError(f"{shown(part)} must be (weight, law)", key=place)
    return check_positive(f"{place}.weight", part[0], most=1e12), as_length_law(part[1], f"{place}.law")


def as_length_law(value: Any, key: str | None = None) -> LengthLaw:
    """A law as it is, or a number as :class:`Fixed`.

    Raises
    ------
    InputError : neither a law nor a token count
    """
    if isinstance(value, (Gamma, LogNormal)) and value.cv_before_max <= LEAST_CV:
        return Fixed(min(value.mean_tokens, value.limit))
    if isinstance(value, LengthLaw):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return Fixed(value)
        except InputError as error:
            raise InputError(error.problem, key=key or error.key) from None
    raise InputError(f"{shown(value)} must be a length law such as LogNormal(mean, cv), or a number", key=key)


def _cv(cv: object) -> float:
    return max(LEAST_CV, check_positive("cv", cv, most=100.0))


def _check_max(limit: float | None) -> float | None:
    return (
        None
        if limit is None or (isinstance(limit, float) and limit == math.inf)
        else check_tokens("max", limit, least=1.0)
    )


def _scaled_max(limit: float | None, factor: float) -> float | None:
    return None if limit is None else max(1.0, limit * factor)
