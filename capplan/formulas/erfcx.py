"""Scaled complementary error function and the hazard of the normal law, for floats, arrays and sympy alike.

Ratios of normal density and tail stay finite where density and tail both vanish; every law of KV pressure is built
on them.
"""

from __future__ import annotations

import math

from capplan.formulas._ops import Value, exp, maximum, sqrt, where

# Rational approximations of W. J. Cody, "Rational Chebyshev approximations for the error function",
# Math. Comp. 23 (1969) 631-637, constant term last; relative error below 1e-15.
_SMALL_TOP = (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2,
              3.20937758913846947e3)  # fmt: skip
_SMALL_BOTTOM = (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3)
_MIDDLE_TOP = (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1,
               2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
               1.23033935479799725e3)  # fmt: skip
_MIDDLE_BOTTOM = (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
                  3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3,
                  1.23033935480374942e3)  # fmt: skip
_LARGE_TOP = (1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1,
              1.60837851487422766e-2, 6.58749161529837803e-4)  # fmt: skip
_LARGE_BOTTOM = (1.0, 2.56852019228982242, 1.87295284992346725, 5.27905102951428412e-1, 6.05183413124413191e-2,
                 2.33520497626869185e-3)  # fmt: skip
_SMALL, _MIDDLE = 0.46875, 4.0


def _ratio(x: Value, top: tuple[float, ...], bottom: tuple[float, ...]) -> Value:
    above, below = top[0], bottom[0]
    for numerator, denominator in zip(top[1:], bottom[1:], strict=True):
        above, below = above * x + numerator, below * x + denominator
    return above / below


def _erfcx_large(x: Value) -> Value:
    inverse_square = 1 / (x * x)
    correction = inverse_square * _ratio(inverse_square, _LARGE_TOP, _LARGE_BOTTOM)
    return (1 / math.sqrt(math.pi) - correction) / x


def erfcx(x: Value) -> Value:
    r"""Scaled complementary error function of a number that is zero or more.

    .. math:: \mathrm{erfcx}(x) = e^{x^2}\,\mathrm{erfc}(x)

    Parameters
    ----------
    x : argument, zero or more [-]; a sympy expression gives the exact form

    Returns
    -------
    erfcx : between 0 and 1 [-]; relative error below 1e-14

    Examples
    --------
    >>> round(erfcx(1.0), 12)
    0.427583576156

    References
    ----------
    W. J. Cody, Math. Comp. 23 (1969) 631-637.
    """
    if hasattr(x, "free_symbols"):
        from sympy import erfc

        return exp(x**2) * erfc(x)
    if isinstance(x, (int, float)):
        return _erfcx_number(x)
    small, large = where(x < _SMALL, x, _SMALL), maximum(x, _MIDDLE)
    near = exp(small * small) * (1 - small * _ratio(small * small, _SMALL_TOP, _SMALL_BOTTOM))
    middle = _ratio(where(x < _MIDDLE, x, _MIDDLE), _MIDDLE_TOP, _MIDDLE_BOTTOM)
    return where(x <= _SMALL, near, where(x <= _MIDDLE, middle, _erfcx_large(large)))


def _erfcx_number(x: float) -> float:
    if x <= _SMALL:
        return math.exp(x * x) * math.erfc(x)
    return float(_ratio(x, _MIDDLE_TOP, _MIDDLE_BOTTOM) if x <= _MIDDLE else _erfcx_large(x))


def normal_hazard(x: Value) -> Value:
    r"""Density over tail of the standard normal law: the rate at which it ends at ``x``.

    .. math:: \lambda(x) = \varphi(x)/(1-\Phi(x)) = \sqrt{2/\pi}\,/\,\mathrm{erfcx}(x/\sqrt2)

    ``1 / normal_hazard(-y)`` is the ratio :math:`\Phi(y)/\varphi(y)` (Mills).

    Parameters
    ----------
    x : standard score [-]

    Returns
    -------
    hazard : zero or more [-]; about ``x`` for large ``x``, never overflows

    Examples
    --------
    >>> round(normal_hazard(0.0), 6), round(normal_hazard(50.0), 4), normal_hazard(-50.0)
    (0.797885, 50.02, 0.0)

    References
    ----------
    Johnson, Kotz, Balakrishnan, Continuous Univariate Distributions 1 (1994), section 13.2.
    """
    if hasattr(x, "free_symbols"):
        import sympy

        return sympy.sqrt(2 / sympy.pi) / erfcx(x / sympy.sqrt(2))
    size = maximum(x, -x)
    scaled = erfcx(size / math.sqrt(2))
    density = exp(-size * size / 2)
    right = math.sqrt(2 / math.pi) / scaled
    left = math.sqrt(2 / math.pi) * density / (2 - density * scaled)
    return where(x >= 0, right, left)


def inverse_mills_ratio(y: Value) -> Value:
    r"""Density over distribution function of the standard normal law.

    .. math:: \varphi(y)/\Phi(y) = \lambda(-y)

    Parameters
    ----------
    y : standard score [-]

    Returns
    -------
    ratio : zero or more [-]

    Examples
    --------
    >>> round(inverse_mills_ratio(0.0), 6)
    0.797885

    References
    ----------
    :func:`normal_hazard`.
    """
    return normal_hazard(-y)


def normal_density(x: Value) -> Value:
    """Density of the standard normal law at ``x`` [-]."""
    return exp(-x * x / 2) / sqrt(2 * math.pi)
