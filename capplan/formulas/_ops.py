"""One vocabulary for floats, NumPy arrays and sympy symbols, so that a formula is written once.

Neither numpy nor sympy is imported here: an argument that belongs to one of them brings it along.
"""

from __future__ import annotations

import math
import sys
from typing import Any, TypeAlias

Value: TypeAlias = Any
"""A float, a NumPy array or a sympy expression: a formula does not care which."""

_PLAIN = (float, int, bool)


def _library(*values: Value) -> Any:
    """numpy or sympy if one of the values is theirs, else None (plain Python numbers)."""
    others = [value for value in values if type(value) not in _PLAIN]
    if not others:
        return None
    numpy, sympy = sys.modules.get("numpy"), sys.modules.get("sympy")
    if sympy is not None and any(isinstance(value, sympy.Basic) for value in others):
        return sympy
    if numpy is not None and any(isinstance(value, numpy.ndarray) for value in others):
        return numpy
    return None


def maximum(x: Value, y: Value) -> Value:
    """The larger of two, elementwise for arrays."""
    if type(x) in (float, int) and type(y) in (float, int):
        return x if x >= y else y
    library = _library(x, y)
    if library is None:
        return max(x, y)
    return library.Max(x, y) if library.__name__ == "sympy" else library.maximum(x, y)


def minimum(x: Value, y: Value) -> Value:
    """The smaller of two, elementwise for arrays."""
    return -maximum(-x, -y)


def ceil(x: Value) -> Value:
    """Round up, forgiving 1e-9 of relative rounding noise: ``0.1 * 3 * 10`` is 3, not 4."""
    library = _library(x)
    if library is None:
        return float(math.ceil(x - 1e-9 * abs(x)))
    return library.ceiling(x) if library.__name__ == "sympy" else library.ceil(x - 1e-9 * abs(x))


def where(condition: Value, x: Value, y: Value) -> Value:
    """``x`` where the condition holds, else ``y``."""
    library = _library(condition, x, y)
    if library is None:
        return x if condition else y
    if library.__name__ == "sympy":
        return library.Piecewise((x, condition), (y, True))
    return library.where(condition, x, y)


def exp(x: Value) -> Value:
    """Exponential."""
    return (_library(x) or math).exp(x)


def log(x: Value) -> Value:
    """Natural logarithm."""
    return (_library(x) or math).log(x)


def sqrt(x: Value) -> Value:
    """Square root."""
    return (_library(x) or math).sqrt(x)
