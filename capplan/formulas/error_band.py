"""Error bands: the factors between predictions and measurements that nothing was fitted to."""

from __future__ import annotations

import math
from collections.abc import Sequence

from capplan.errors import InputError, shown
from capplan.formulas._ops import Value

LOW, HIGH = 0.1, 0.9
"""Quantiles at the ends of an 80 % band."""
BORROWED_EXPONENT = 1.5
"""What a band grows by, in the logarithm, where its constants are borrowed from another GPU: assumed."""


def band_factors(
    measured: Sequence[float], predicted: Sequence[float], low: float = LOW, high: float = HIGH
) -> tuple[float, float]:
    r"""Quantiles of measured over predicted: what a prediction is multiplied by at both ends of its band.

    .. math:: f_\mathrm{low} = \min(1, Q_{0.1}(m/p)), \qquad f_\mathrm{high} = \max(1, Q_{0.9}(m/p))

    One factor for all predictions of a kind, because their errors have common causes and do not average out. The
    prediction itself always lies in its band. Quantiles are linear between the sorted ratios.

    Parameters
    ----------
    measured : of rows that nothing was fitted to [any unit]
    predicted : of the same rows [the same unit]
    low, high : probabilities of the ends [1]

    Returns
    -------
    band_factors : ``(low, high)``, at most and at least 1 [1]

    Raises
    ------
    InputError : no rows, unequal numbers of them, one that is not above zero, ends in the wrong order

    Examples
    --------
    >>> low, high = band_factors([9.0, 10.0, 11.0, 12.0, 13.0], [10.0] * 5)
    >>> round(low, 3), round(high, 3)
    (0.94, 1.26)

    References
    ----------
    Quantile definition 7 of Hyndman, Fan, The American Statistician 50 (1996) 361.
    """
    if not 0 <= low < high <= 1:
        raise InputError(f"{shown(low)} and {shown(high)} must be probabilities in rising order", key="low, high")
    ratios = sorted(_ratios(measured, predicted))
    return min(1.0, _quantile(ratios, low)), max(1.0, _quantile(ratios, high))


def coverage(measured: Sequence[float], predicted: Sequence[float], low_factor: float, high_factor: float) -> float:
    """Share of rows that a band holds: ``low_factor <= measured / predicted <= high_factor``.

    Of rows that gave no band an honest 80 % band holds 70 to 90 %.

    Parameters
    ----------
    measured, predicted : rows, in the same unit
    low_factor, high_factor : ends of the band, over the prediction [1]

    Returns
    -------
    coverage : between 0 and 1 [1]

    Raises
    ------
    InputError : no rows, unequal numbers of them, one that is not above zero

    Examples
    --------
    >>> coverage([9.0, 10.0, 11.0, 13.0], [10.0] * 4, 0.9, 1.2)
    0.75
    """
    ratios = _ratios(measured, predicted)
    return sum(low_factor <= ratio <= high_factor for ratio in ratios) / len(ratios)


def borrowed_factor(factor: Value, exponent: Value = BORROWED_EXPONENT) -> Value:
    r"""One end of a band for a GPU whose constants are borrowed from the GPU that has it.

    .. math:: f' = f^{1.5}

    Half as wide again in the logarithm, so both ends move away from 1.

    Parameters
    ----------
    factor : end of the donor's band [1]
    exponent : how many times wider [1]

    Returns
    -------
    borrowed_factor : end of the borrower's band [1]

    Examples
    --------
    >>> round(borrowed_factor(0.81), 3), round(borrowed_factor(1.21), 3)
    (0.729, 1.331)
    """
    return factor**exponent


def _ratios(measured: Sequence[float], predicted: Sequence[float]) -> list[float]:
    if not len(measured) or len(measured) != len(predicted):
        raise InputError(f"{len(measured)} measured and {len(predicted)} predicted rows: as many of both", key="rows")
    for value in (*measured, *predicted):
        if not 0 < value < math.inf:
            raise InputError(f"{shown(value)} must be a finite number above zero", key="rows")
    return [float(real / guess) for real, guess in zip(measured, predicted, strict=True)]


def _quantile(ordered: Sequence[float], p: float) -> float:
    """Linear between sorted values, of which the first and the last are the ends."""
    place = p * (len(ordered) - 1)
    below = min(int(place), len(ordered) - 2) if len(ordered) > 1 else 0
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
