r"""Moments of request lengths: closed forms of the length laws, and of what a decoding request adds up to.

A *partial moment* is :math:`E[X^k;\,X\le t]`, the building block of every truncated moment:
:math:`E[\min(X,m)^k] = E[X^k; X\le m] + m^k P(X>m)`.

The running context of a request with prompt P that takes D decode steps is :math:`w(u) = e + c(P' + u)` at age u
steps; :math:`P' = P - 1/2` makes the integral over :math:`0\ldots D` equal to the exact sum over whole steps.
"""

from __future__ import annotations

import math

from capplan.formulas import special
from capplan.formulas._ops import Value, log


def lognormal_log_variance(cv: Value) -> Value:
    r"""Variance of the logarithm, :math:`\sigma^2 = \ln(1 + c_v^2)`.

    Parameters
    ----------
    cv : standard deviation over mean [1]

    Returns
    -------
    log_variance : variance of ln X [1]
    """
    return log(1 + cv**2)


def lognormal_moment(mean: Value, cv: Value, k: int) -> Value:
    r"""Raw moment of a lognormal law, :math:`E[X^k] = m^k (1 + c_v^2)^{k(k-1)/2}`.

    Parameters
    ----------
    mean : mean of X [token]
    cv : standard deviation over mean [1]
    k : order [1]

    Returns
    -------
    moment : E[X^k] [token^k]

    Examples
    --------
    >>> lognormal_moment(1000.0, 1.0, 2)
    2000000.0
    """
    return mean**k * (1 + cv**2) ** (k * (k - 1) // 2)


def gamma_moment(mean: Value, cv: Value, k: int) -> Value:
    r"""Raw moment of a gamma law, :math:`E[X^k] = m^k \prod_{i<k} (1 + i\,c_v^2)`.

    Parameters
    ----------
    mean : mean of X [token]
    cv : standard deviation over mean; 1 is the exponential law [1]
    k : order [1]

    Returns
    -------
    moment : E[X^k] [token^k]

    Examples
    --------
    >>> gamma_moment(1000.0, 1.0, 3) == 6 * 1000.0**3
    True
    """
    product = mean**k
    for i in range(1, k):
        product = product * (1 + i * cv**2)
    return product


def pareto_moment(minimum: Value, alpha: Value, k: int) -> Value:
    r"""Raw moment of a Pareto law, :math:`E[X^k] = \alpha x_m^k / (\alpha - k)`; for :math:`\alpha > k` only.

    Parameters
    ----------
    minimum : smallest value x_m [token]
    alpha : tail index, P(X > x) = (x_m / x)^alpha [1]
    k : order, below alpha [1]

    Returns
    -------
    moment : E[X^k] [token^k]
    """
    return alpha * minimum**k / (alpha - k)


def uniform_partial_moment(low: float, high: float, k: int, t: float) -> float:
    """Partial moment of a uniform law on ``low .. high`` up to ``t`` [token^k]."""
    top = min(max(t, low), high)
    return float((top ** (k + 1) - low ** (k + 1)) / ((k + 1) * (high - low)))


def lognormal_partial_moment(mean: float, cv: float, k: int, t: float) -> float:
    r"""Partial moment of a lognormal law, :math:`E[X^k]\,\Phi((\ln t - \mu - k\sigma^2)/\sigma)` [token^k]."""
    if t <= 0.0:
        return 0.0
    variance = lognormal_log_variance(cv)
    z = (math.log(t / mean) + (0.5 - k) * variance) / math.sqrt(variance) if math.isfinite(t) else math.inf
    return float(lognormal_moment(mean, cv, k) * special.normal_cdf(z))


def gamma_partial_moment(mean: float, cv: float, k: int, t: float) -> float:
    r"""Partial moment of a gamma law of shape :math:`s = 1/c_v^2`: :math:`E[X^k]\,P(s+k, t/(m c_v^2))` [token^k]."""
    shape = cv**-2
    return float(gamma_moment(mean, cv, k) * special.gamma_cdf(shape + k, t * shape / mean)) if t > 0.0 else 0.0


def pareto_partial_moment(minimum: float, alpha: float, k: int, t: float) -> float:
    """Partial moment of a Pareto law up to ``t``; infinite where the whole moment is [token^k]."""
    if t <= minimum:
        return 0.0
    if math.isinf(t):
        return pareto_moment(minimum, alpha, k) if alpha > k else math.inf
    if alpha == k:
        return alpha * float(minimum**k) * math.log(t / minimum)
    return float(pareto_moment(minimum, alpha, k) * (1.0 - (minimum / t) ** (alpha - k)))


def two_point_law(m0: float, m1: float, m2: float, m3: float) -> tuple[tuple[float, float], tuple[float, float]]:
    r"""Two values and weights with the same mass and first three moments (Gauss quadrature of two points).

    Parameters
    ----------
    m0, m1, m2, m3 : partial moments of a law on an interval, ``m0`` above 0 [token^k]

    Returns
    -------
    values, weights : the two points [token] and their masses [1]

    Examples
    --------
    >>> two_point_law(1.0, 0.0, 1.0, 0.0)
    ((-1.0, 1.0), (0.5, 0.5))
    """
    mean = m1 / m0
    variance = m2 / m0 - mean**2
    if variance <= 1e-12 * mean**2:
        return (mean, mean), (m0 / 2, m0 / 2)
    third = m3 / m0 - 3 * mean * m2 / m0 + 2 * mean**3
    half, root = third / variance / 2, math.hypot(third / variance / 2, math.sqrt(variance))
    lower, upper = half - root, half + root
    share = upper / (upper - lower)
    return (mean + lower, mean + upper), (m0 * share, m0 * (1 - share))


def running_context(m_prompt_steps: Value, m_steps_2: Value, mean_steps: Value) -> Value:
    r"""Mean cached tokens of a running request, :math:`\theta = E[D P' + D^2/2]/E[D]`.

    Parameters
    ----------
    m_prompt_steps : E[P' D], P' = P - 1/2 [token^2]
    m_steps_2 : E[D^2] [token^2]
    mean_steps : E[D], decode steps [token]

    Returns
    -------
    theta : mean context of a running request [token]

    References
    ----------
    Slot-load mean of arXiv:2601.21351.
    """
    return (m_prompt_steps + m_steps_2 / 2) / mean_steps


def running_context_variance(
    m_prompt2_steps: Value, m_prompt_steps2: Value, m_steps3: Value, mean_steps: Value, theta: Value
) -> Value:
    r"""Variance of the cached tokens of a running request.

    .. math:: \nu^2 = E[P'^2 D + P' D^2 + D^3/3]/E[D] - \theta^2

    Parameters
    ----------
    m_prompt2_steps, m_prompt_steps2, m_steps3 : E[P'^2 D], E[P' D^2], E[D^3] [token^3]
    mean_steps : E[D] [token]
    theta : mean context [token]

    Returns
    -------
    nu_squared : variance of the context of a running request [token^2]
    """
    return (m_prompt2_steps + m_prompt_steps2 + m_steps3 / 3) / mean_steps - theta**2


def decode_work_square(e: Value, c: Value, moments: Value) -> Value:
    r"""Mean square of the decode work of a request, :math:`W = \int_0^D w(u)\,du = (e + cP')D + cD^2/2`.

    Parameters
    ----------
    e : seconds a step for one more sequence [s]
    c : seconds a step for one more cached token [s/token]
    moments : joint moments of (P', D): an object with ``m02`` = E[D^2], ``m12`` = E[P' D^2], ``m22``, ``m03``,
        ``m13``, ``m04`` [token^k]

    Returns
    -------
    work_square : E[W^2] [s^2]
    """
    return (
        e**2 * moments.m02
        + 2 * e * c * (moments.m12 + moments.m03 / 2)
        + c**2 * (moments.m22 + moments.m13 + moments.m04 / 4)
    )


def aged_decode_work(e: Value, c: Value, moments: Value) -> Value:
    r"""Decode work weighted by age, :math:`E[\int_0^D u\,w(u)\,du] = (e E[D^2] + c E[P' D^2])/2 + c E[D^3]/3`.

    Parameters
    ----------
    e, c : step seconds a sequence [s] and a cached token [s/token]
    moments : joint moments with ``m02``, ``m12``, ``m03`` [token^k]

    Returns
    -------
    aged_work : [s token]
    """
    return (e * moments.m02 + c * moments.m12) / 2 + c * moments.m03 / 3


def decode_work_overlap(e: Value, c: Value, overlap: tuple[Value, Value, Value]) -> Value:
    r"""Decode work left at each age, squared, :math:`\int E[w(u);D>u]^2 du = e^2 I_{00} + 2 e c I_{01} + c^2 I_{11}`.

    Parameters
    ----------
    e, c : step seconds a sequence [s] and a cached token [s/token]
    overlap : (I00, I01, I11) of :meth:`capplan.formulas.decode_nodes.DecodeNodes.overlap` [token, token^2, token^3]

    Returns
    -------
    overlap : [s^2 token]
    """
    i00, i01, i11 = overlap
    return e**2 * i00 + 2 * e * c * i01 + c**2 * i11


def running_weight_cube(e: Value, c: Value, moments: Value) -> Value:
    r"""Third moment of the step seconds of one running request.

    .. math:: E_{run}[w^3] = E\left[\int_0^D (e + cP' + cu)^3 du\right] / E[D]

    Parameters
    ----------
    e, c : step seconds a sequence [s] and a cached token [s/token]
    moments : joint moments of (P', D) up to total order four [token^k]

    Returns
    -------
    weight_cube : [s^3]
    """
    m = moments
    at_start = e**3 * m.m01 + 3 * e**2 * c * m.m11 + 3 * e * c**2 * m.m21 + c**3 * m.m31
    squared = e**2 * m.m02 + 2 * e * c * m.m12 + c**2 * m.m22
    linear = e * m.m03 + c * m.m13
    return (at_start + 1.5 * c * squared + c**2 * linear + c**3 * m.m04 / 4) / m.m01


def lognormal_log_mean(mean: Value, cv: Value) -> Value:
    r"""Mean of the logarithm, :math:`\mu = \ln m - \sigma^2/2`; its exponential is the median.

    Parameters
    ----------
    mean : mean of X [token]
    cv : standard deviation over mean [1]

    Returns
    -------
    log_mean : mean of ln X [1]

    Examples
    --------
    >>> round(lognormal_log_mean(1000.0, 1.0), 4)  # log(1000 / sqrt(2))
    6.5612
    """
    return log(mean) - lognormal_log_variance(cv) / 2
