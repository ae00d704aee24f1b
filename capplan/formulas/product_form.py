r"""Batch law where the step time is any function of the batch: the insensitive product form. Numerical.

A rank whose n requests together make n/T(n) tokens a second, with Poisson arrivals, holds
:math:`\pi(n) \propto \prod_{i\le n} \lambda E[D]\,T(i)/i` over time, for any length law of that mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from capplan.errors import InputError
from capplan.formulas.special_arrays import FloatArray

LARGEST_BATCH = 1 << 17
_LONGEST_STEP = 1e12
_TAIL = 1e-13


@dataclass(frozen=True, eq=False)
class ProductForm:
    """Moments over steps of batch and step time, and the law of the batch over time.

    ``a`` and ``b``: the line that touches T at the mean batch [s]. ``third``: third central moment of T [s^3].
    ``stable`` is false where the batch has no finite law; nothing else holds then.
    """

    stable: bool
    probabilities: FloatArray
    a: float
    b: float
    step_mean: float
    batch_mean: float
    step_variance: float
    batch_variance: float
    covariance: float
    third: float


def step_function(step_time: Any) -> Callable[[FloatArray], FloatArray]:
    """T(n) as a function on arrays: a function of the batch, or values at batch 0, 1, 2, ... (a line beyond)."""
    if callable(step_time):
        return lambda batch: _checked(_called(step_time, batch))
    values = _table(step_time)
    slope = max(0.0, float(values[-1] - values[-2]))
    top = len(values) - 1

    def at(batch: FloatArray) -> FloatArray:
        inside = np.interp(batch, np.arange(len(values)), values)
        return np.asarray(inside + slope * np.maximum(batch - top, 0.0))

    return at


def _table(step_time: Any) -> FloatArray:
    """Step times at batch 0, 1, 2, ..."""
    try:
        values = np.asarray(step_time)
    except ValueError:
        values = np.array("ragged")
    if values.dtype.kind not in "iuf" or values.ndim != 1 or len(values) < 2:
        raise InputError("must be (a, e, c), a function T(batch), or T at batch 0, 1, 2, ...", key="step_time")
    seconds: FloatArray = values.astype(float)
    if not (np.all(np.isfinite(seconds)) and seconds[0] >= 0.0 and np.all(seconds[1:] > 0.0)):
        raise InputError("an array of T needs finite times, above 0 from batch 1 on", key="step_time")
    return seconds


def _called(function: Callable[[Any], Any], batch: FloatArray) -> FloatArray:
    try:
        values = np.asarray(function(batch), dtype=float)
        if values.shape == batch.shape:
            return values
    except (TypeError, ValueError):
        pass
    try:
        return np.array([float(function(float(one))) for one in batch])
    except (TypeError, ValueError) as error:
        raise InputError("must give one number, the step time, for a batch", key="step_time") from error


def _checked(seconds: FloatArray) -> FloatArray:
    if not np.all((seconds <= _LONGEST_STEP) & (seconds > 0.0)):
        raise InputError("must give a positive finite time for every batch", key="step_time")
    return seconds


def product_form(step_time: Callable[[FloatArray], FloatArray], demand: float) -> ProductForm:
    """Law of the batch without a cap.

    Parameters
    ----------
    step_time : T(n) [s], on arrays, above 0 for n of 1 and more
    demand : lambda E[D], token rate offered [1/s]

    Returns
    -------
    law : of batch and step time
    """
    size = 256
    while True:
        batch = np.arange(size, dtype=float)
        seconds = step_time(np.maximum(batch, 1.0))
        growth = np.log(demand * seconds[1:] / batch[1:])
        log_weight = np.concatenate([[0.0], np.cumsum(growth)])
        weight = np.exp(log_weight - log_weight.max())
        if growth[-1] < -1e-6 and weight[-1] < _TAIL * -growth[-1] * weight.sum():
            return _moments(batch, seconds, weight / weight.sum(), demand)
        if size >= LARGEST_BATCH:
            return ProductForm(False, weight, *(math.nan,) * 8)
        size *= 4


def _moments(batch: FloatArray, seconds: FloatArray, law: FloatArray, demand: float) -> ProductForm:
    over_steps = law / seconds
    over_steps = over_steps / over_steps.sum()
    step, mean = float(over_steps @ seconds), float(over_steps @ batch)
    off = seconds - step
    at = round(min(max(demand * step, 1.0), len(batch) - 2))
    slope = float(seconds[at + 1] - seconds[at - 1]) / 2 if at > 1 else float(seconds[2] - seconds[1])
    return ProductForm(
        True,
        law,
        a=float(seconds[at] - slope * at),
        b=slope,
        step_mean=step,
        batch_mean=mean,
        step_variance=float(over_steps @ off**2),
        batch_variance=float(over_steps @ (batch - mean) ** 2),
        covariance=float(over_steps @ (off * (batch - mean))),
        third=float(over_steps @ off**3),
    )
