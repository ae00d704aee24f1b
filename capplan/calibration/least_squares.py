"""Robust non-linear least squares with lower bounds, for a few parameters: Levenberg and Marquardt's method."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_STEPS = 200
_LEAST_GAIN = 1e-9
"""Of the loss, in one step."""
_WIDENINGS = (16.0, 4.0, 1.0)
"""Loss scales tried one after the other, so that a start far off is not taken for a table of outliers."""


@dataclass(frozen=True)
class Solution:
    """Where the loss is least.

    Parameters
    ----------
    x : parameters
    residuals : there
    jacobian : derivatives of the residuals there
    weights : of each residual in the loss, 1 where it is small
    cost : loss
    """

    x: Any
    residuals: Any
    jacobian: Any
    weights: Any
    cost: float


def least_squares(residuals: Callable[[Any], Any], start: Any, lower: Any, scale: float) -> Solution:
    r"""Parameters with the least Cauchy loss, none below its bound.

    .. math:: \min_{x \ge l} \; \tfrac12 s^2 \sum_i \ln(1 + (r_i(x)/s)^2)

    Damped Gauss-Newton steps on residuals weighted by 1/(1 + (r/s)^2); a parameter at its bound that wants below it
    takes no part in a step. Derivatives are differences.

    Parameters
    ----------
    residuals : function of the parameters, best in units of their standard deviation
    start, lower : parameters of the order of one, and their bounds
    scale : residual s at which an observation counts as an outlier; infinite for plain squares

    Returns
    -------
    solution : :class:`Solution`; a local minimum, reached through wider losses

    Examples
    --------
    >>> import numpy
    >>> seen = numpy.array([1.0, 3.1, 4.9, 7.0, 90.0])  # 1 + 2 t, and an outlier
    >>> time = numpy.arange(5.0)
    >>> found = least_squares(lambda x: (x[0] + x[1] * time - seen) / 0.1, [0.0, 0.0], [0.0, 0.0], 2.0)
    >>> found.x.round(1).tolist()
    [1.0, 2.0]

    References
    ----------
    Marquardt, SIAM J. Appl. Math. 11 (1963) 431; scipy.optimize.least_squares minimises the same loss (the tests).
    """
    import numpy as np

    bounds = np.asarray(lower, float)
    x = np.maximum(np.asarray(start, float), bounds)
    for widening in _WIDENINGS:
        x = _descended(residuals, x, bounds, widening * scale)
    found = np.asarray(residuals(x), float)
    weights = 1 / (1 + (found / scale) ** 2)
    return Solution(x, found, jacobian(residuals, x), weights, loss_of(found, scale))


def jacobian(residuals: Callable[[Any], Any], x: Any, width: float = 1e-6) -> Any:
    """Derivatives of the residuals, one column a parameter, by forward differences."""
    import numpy as np

    here = np.asarray(residuals(x), float)
    columns = []
    for index in range(len(x)):
        step = width * max(1.0, abs(float(x[index])))
        moved = np.array(x, float)
        moved[index] += step
        columns.append((np.asarray(residuals(moved), float) - here) / step)
    return np.column_stack(columns) if columns else np.empty((len(here), 0))


def _descended(residuals: Callable[[Any], Any], x: Any, lower: Any, scale: float) -> Any:
    import numpy as np

    damping, here = 1e-3, np.asarray(residuals(x), float)
    for _ in range(_STEPS):
        slope = jacobian(residuals, x)
        gradient, curvature = _normal(slope, here, scale)
        moved = _accepted(residuals, x, lower, gradient, curvature, damping, loss_of(here, scale), scale)
        if moved is None:
            break
        size = float(np.max(np.abs(moved[0] - x) / (1e-9 + np.abs(x)), initial=0.0))
        gain = loss_of(here, scale) - loss_of(moved[1], scale)
        x, here, damping = moved
        if size < 1e-9 or gain < _LEAST_GAIN * loss_of(here, scale):
            break
    return x


def _normal(slope: Any, here: Any, scale: float) -> tuple[Any, Any]:
    weighted = slope / (1 + (here / scale) ** 2)[:, None]
    return weighted.T @ here, weighted.T @ slope


def _accepted(
    residuals: Callable[[Any], Any],
    x: Any,
    lower: Any,
    gradient: Any,
    curvature: Any,
    damping: float,
    cost: float,
    scale: float,
) -> tuple[Any, Any, float] | None:
    """The next point with its residuals and damping; None where no step makes the loss smaller."""
    import numpy as np

    free = ~((x <= lower) & (gradient > 0))
    while damping < 1e12 and free.any():
        part = curvature[np.ix_(free, free)]
        diagonal = np.diag(np.maximum(np.diag(part), 1e-12))
        trial = x.copy()
        trial[free] = np.maximum(x[free] - np.linalg.solve(part + damping * diagonal, gradient[free]), lower[free])
        found = np.asarray(residuals(trial), float)
        if np.isfinite(found).all() and loss_of(found, scale) < cost:
            return trial, found, damping / 5
        damping *= 5
    return None


def loss_of(found: Any, scale: float) -> float:
    """Cauchy loss of residuals; half their sum of squares at an infinite scale."""
    import numpy as np

    if math.isinf(scale):
        return float(0.5 * (found**2).sum())
    return float(0.5 * scale**2 * np.log1p((found / scale) ** 2).sum())
