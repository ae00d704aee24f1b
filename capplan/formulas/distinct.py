"""Distinct values of an array; ``numpy.unique`` would import the masked arrays, 20 ms, to find them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from capplan.formulas.special_arrays import FloatArray


def distinct(values: Any) -> FloatArray:
    """The different values, in rising order.

    >>> distinct([3.0, 1.0, 3.0]).tolist()
    [1.0, 3.0]
    """
    ordered = np.sort(np.asarray(values, dtype=float).ravel())
    return np.asarray(ordered[_first_of_equals(ordered)])


def summed(values: Any, weights: Any) -> tuple[FloatArray, FloatArray]:
    """The different values, in rising order, and the sum of the weights of each.

    >>> [column.tolist() for column in summed([3.0, 1.0, 3.0], [0.25, 0.5, 0.25])]
    [[1.0, 3.0], [0.5, 0.5]]
    """
    order = np.argsort(values, kind="stable")
    ordered = np.asarray(values, dtype=float)[order]
    first = _first_of_equals(ordered)
    total = np.bincount(np.cumsum(first) - 1, np.asarray(weights, dtype=float)[order])
    return ordered[first], np.asarray(total, dtype=np.float64)


def _first_of_equals(ordered: FloatArray) -> Any:
    first = np.ones(len(ordered), dtype=bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return first
