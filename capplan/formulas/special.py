"""Special functions on single numbers, in plain Python: normal, gamma, beta, Poisson, negative binomial.

The arrays have their own module, :mod:`capplan.formulas.special_arrays`.
"""

from __future__ import annotations

import math

_SQRT2 = math.sqrt(2.0)
_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
_EPSILON = 1e-15
_MAX_TERMS = 200_000
LARGE_SHAPE = 1e6
"""Above this shape a gamma law is taken as normal with its skewness corrected (error of order 1 / shape)."""

# Acklam's rational start for the normal quantile (relative error 1e-9 before the Halley step).
_A = (
    -39.69683028665376,
    220.9460984245205,
    -275.9285104469687,
    138.3577518672690,
    -30.66479806614716,
    2.506628277459239,
)
_B = (-54.47609879822406, 161.5858368580409, -155.6989798598866, 66.80131188771972, -13.28068155288572, 1.0)
_C = (
    -7.784894002430293e-3,
    -0.3223964580411365,
    -2.400758277161838,
    -2.549732539343734,
    4.374664141464968,
    2.938163982698783,
)
_D = (7.784695709041462e-3, 0.3224671290700398, 2.445134137142996, 3.754408661907416, 1.0)


def normal_pdf(z: float) -> float:
    """Density of the standard normal law.

    >>> round(normal_pdf(0.0), 6)
    0.398942
    """
    return math.exp(-0.5 * z * z - _LOG_SQRT_2PI)


def normal_cdf(z: float) -> float:
    """Probability that a standard normal number is at most ``z``.

    >>> round(normal_cdf(1.959964), 6)
    0.975
    """
    return 0.5 * math.erfc(-z / _SQRT2)


def normal_quantile(p: float) -> float:
    """The ``z`` with ``normal_cdf(z) = p``; -inf and inf at 0 and 1.

    References: P. J. Acklam's rational approximation, one Halley step.

    >>> round(normal_quantile(0.99), 6)
    2.326348
    """
    if not 0.0 < p < 1.0:
        return math.inf if p >= 1.0 else -math.inf
    if p > 0.5:
        return -normal_quantile(1.0 - p) if 1.0 - p > 0.0 else math.inf
    z = _acklam(p)
    step = (normal_cdf(z) - p) / normal_pdf(z)
    return z - step / (1.0 + 0.5 * z * step)


def _acklam(p: float) -> float:
    if p < 0.02425:
        t = math.sqrt(-2.0 * math.log(p))
        return _polynomial(_C, t) / _polynomial(_D, t)
    t = p - 0.5
    return t * _polynomial(_A, t * t) / _polynomial(_B, t * t)


def _polynomial(coefficients: tuple[float, ...], t: float) -> float:
    value = 0.0
    for coefficient in coefficients:
        value = value * t + coefficient
    return value


def gamma_cdf(shape: float, x: float) -> float:
    """Regularised lower incomplete gamma function P(shape, x): the law of a gamma number of scale 1.

    Series below ``shape + 1``, continued fraction above, normal with skewness above ``LARGE_SHAPE``.

    References: NIST DLMF 8.11.4, 8.9.2.

    >>> round(gamma_cdf(2.0, 3.0), 6)
    0.800852
    """
    return 1.0 - _gamma_tail(shape, x) if x > shape + 1.0 else _gamma_body(shape, x)


def gamma_survival(shape: float, x: float) -> float:
    """Regularised upper incomplete gamma function Q(shape, x) = 1 - P, without cancellation in the tail.

    >>> round(gamma_survival(2.0, 3.0), 6)
    0.199148
    """
    return _gamma_tail(shape, x) if x > shape + 1.0 else 1.0 - _gamma_body(shape, x)


def _gamma_body(shape: float, x: float) -> float:
    if x <= 0.0:
        return 0.0
    if shape > LARGE_SHAPE:
        return skewed_normal_cdf((x - shape) / math.sqrt(shape), 2.0 / math.sqrt(shape))
    term = total = 1.0 / shape
    for n in range(1, _MAX_TERMS):
        term *= x / (shape + n)
        total += term
        if term < total * _EPSILON:
            break
    return min(1.0, total * math.exp(shape * math.log(x) - x - math.lgamma(shape)))


def _gamma_tail(shape: float, x: float) -> float:
    if math.isinf(x):
        return 0.0
    if shape > LARGE_SHAPE:
        return 1.0 - skewed_normal_cdf((x - shape) / math.sqrt(shape), 2.0 / math.sqrt(shape))
    b = x + 1.0 - shape
    c, d = 1e300, 1.0 / b
    fraction = d
    for n in range(1, _MAX_TERMS):
        step = -n * (n - shape)
        b += 2.0
        d = 1.0 / (step * d + b)
        c = b + step / c
        fraction *= d * c
        if abs(d * c - 1.0) < _EPSILON:
            break
    return fraction * math.exp(shape * math.log(x) - x - math.lgamma(shape))


def skewed_normal_cdf(z: float, skewness: float) -> float:
    """Normal probability with the first Edgeworth term: ``Phi(z) - phi(z) skewness (z^2 - 1) / 6``.

    Good for skewness below 0.01, where it serves as the limit of the gamma law.
    """
    return min(1.0, max(0.0, normal_cdf(z) - normal_pdf(z) * skewness * (z * z - 1.0) / 6.0))


def gamma_quantile(shape: float, p: float) -> float:
    """The ``x`` with ``gamma_cdf(shape, x) = p``: Wilson-Hilferty start, Newton steps kept inside a bracket.

    >>> round(gamma_quantile(1.0, 0.99), 6)  # -log(0.01)
    4.60517
    """
    if not 0.0 < p < 1.0:
        return math.inf if p >= 1.0 else 0.0
    low, high, x = 0.0, math.inf, _gamma_quantile_start(shape, p)
    for _ in range(100):
        if x < 1e-250:  # so far below one that no law here resolves it
            return x
        error = gamma_cdf(shape, x) - p if p < 0.5 else (1.0 - p) - gamma_survival(shape, x)
        low, high = (x, high) if error < 0.0 else (low, x)
        following = _newton(shape, x, error)
        if abs(following - x) <= 1e-13 * x:
            return following
        if not low < following < high:
            following = 2.0 * x if math.isinf(high) else math.sqrt(max(low, x * 1e-6) * high)
        x = following
    return x


def _newton(shape: float, x: float, error: float) -> float:
    """Halley's step in x for the gamma law."""
    density = math.exp(max(-700.0, (shape - 1.0) * math.log(x) - x - math.lgamma(shape)))
    step = error / density
    damping = 1.0 - 0.5 * min(1.0, step * ((shape - 1.0) / x - 1.0))
    return x - step / damping


def _gamma_quantile_start(shape: float, p: float) -> float:
    cube = 1.0 - 1.0 / (9.0 * shape) + normal_quantile(p) / (3.0 * math.sqrt(shape))
    if cube > 0.2:
        return shape * cube**3
    # P(shape, x) ~ x^shape / Gamma(shape + 1) near zero.
    return max(1e-280, math.exp((math.log(p) + math.lgamma(shape + 1.0)) / shape))


def beta_cdf(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function I_x(a, b), by its continued fraction.

    References: NIST DLMF 8.17.22.

    >>> round(beta_cdf(2.0, 3.0, 0.4), 6)
    0.5248
    """
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - beta_cdf(b, a, 1.0 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) * _beta_fraction(a, b, x) / a


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Lentz's evaluation of the continued fraction of I_x(a, b)."""
    c, d = 1.0, _invert(1.0 - (a + b) * x / (a + 1.0))
    fraction = d
    for m in range(1, _MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        for step in (even, odd):
            d = _invert(1.0 + step * d)
            c = 1.0 + step / c or 1e-300
            fraction *= d * c
        if abs(d * c - 1.0) < _EPSILON:
            break
    return fraction


def _invert(value: float) -> float:
    return 1.0 / (value or 1e-300)


def poisson_cdf(mean: float, n: float) -> float:
    """Probability that a Poisson number is at most ``n``.

    >>> round(poisson_cdf(3.0, 2), 6)
    0.42319
    """
    return 0.0 if n < 0 else gamma_survival(math.floor(n) + 1.0, mean)


def negative_binomial_cdf(mean: float, variance_ratio: float, n: float) -> float:
    """Probability that a count of given mean and variance-to-mean ratio is at most ``n``.

    Negative binomial above ratio 1, Poisson at 1, normal with continuity correction below.

    Parameters
    ----------
    mean : mean of the count [1]
    variance_ratio : variance over mean [1]
    n : count [1]

    >>> round(negative_binomial_cdf(10.0, 2.0, 12), 6)
    0.738266
    """
    if n < 0:
        return 0.0
    whole = math.floor(n)
    if abs(variance_ratio - 1.0) < 1e-9:
        return poisson_cdf(mean, whole)
    if variance_ratio < 1.0:
        return normal_cdf((whole + 0.5 - mean) / math.sqrt(mean * max(variance_ratio, 1e-12)))
    return beta_cdf(mean / (variance_ratio - 1.0), whole + 1.0, 1.0 / variance_ratio)


def negative_binomial_quantile(mean: float, variance_ratio: float, p: float) -> int:
    """Smallest count whose cumulative probability reaches ``p`` (see :func:`negative_binomial_cdf`), 0 < p < 1.

    >>> negative_binomial_quantile(10.0, 2.0, 0.99)
    23
    """
    spread = math.sqrt(mean * max(variance_ratio, 1e-12))
    low = high = max(0, int(mean + normal_quantile(min(max(p, 1e-12), 1.0 - 1e-12)) * spread))
    width = max(1, int(0.1 * spread))
    while negative_binomial_cdf(mean, variance_ratio, high) < p:
        low, high, width = high, high + width, 2 * width
    while low == high or negative_binomial_cdf(mean, variance_ratio, low) >= p:
        if low < 0:
            return 0
        low, high, width = max(-1, low - width), low, 2 * width
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if negative_binomial_cdf(mean, variance_ratio, middle) >= p else (middle, high)
    return high
