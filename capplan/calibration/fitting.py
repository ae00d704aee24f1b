"""Which constants runs can tell, their values and standard errors, and the errors before and after."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from capplan.calibration.constants import BY_NAME, NAMES
from capplan.calibration.least_squares import Solution, jacobian, least_squares, loss_of
from capplan.calibration.table import Table

METRICS = ("tpot", "ttft")
ASSUMED_NOISE: Mapping[str, float] = {"tpot": 0.03, "ttft": 0.10}
"""Scatter of a run around the model, relative, until the runs themselves say it: what is left of TPOT and TTFT of one
configuration in published runs once its constants are fitted."""
LEAST_NOISE = 0.01
OUTLIER = 2.5
"""Standard deviations from which an observation counts less: some labels are wrong by a factor."""
SPARE = 4
"""Observations beyond the constants from which on their scatter is estimated. That of less says little: where few
published runs lie far from their fit, it still predicts others better than one with fewer constants."""
_ROBUST_RUNS = 2
"""Runs for each constant from which on one of them may be taken for an outlier; few runs are all believed."""
_PARTNER = 0.8
_ROUNDS = 2
"""Fits to one set of constants, each with the scatter around the one before."""


@dataclass(frozen=True)
class Fit:
    """Constants fitted to a table.

    Parameters
    ----------
    values : all constants, those held as before
    free : fitted ones, those at their bound included
    errors : standard errors of the fitted ones above their bound
    held : constant to why it keeps its value
    bound : constant that was moved to the least it can be, to why
    noise : relative scatter by metric, estimated or assumed
    """

    values: Mapping[str, float]
    free: tuple[str, ...]
    errors: Mapping[str, float]
    held: Mapping[str, str]
    bound: Mapping[str, str]
    noise: Mapping[str, float]


def fit_table(table: Table, start: Mapping[str, float], order: Sequence[str] = NAMES) -> Fit:
    """Fit as many constants as the runs tell apart; the others keep their value.

    A constant is told apart where its standard error is below its ``spread``. Those that could be told by runs with
    next to no scatter are fitted together; then of the ones that are not told apart that is given up without which the
    runs are still met best, until none is left, and what there is room for then is added. The scatter is always that
    around the richest fit still standing: a constant that is missing looks like scatter, which would then keep it out.
    An overhead of a layer that ends at zero makes room for the gap of a step, from which one model alone cannot tell
    it.

    Parameters
    ----------
    table : runs
    start : constants before
    order : names, the first ones first

    Returns
    -------
    fit : :class:`Fit`, with nothing free where the runs tell nothing
    """
    found = _fitted(table, start, order)
    layer, gap = "layer_overhead_seconds", "step_gap_seconds"
    if layer not in found.bound or gap in found.free or gap not in order or start[gap] <= 0:
        return found
    rest = [name for name in order if name not in (layer, gap)]
    swapped = _fitted(table, {**start, layer: 0.0}, [gap, *rest])
    if gap not in swapped.free:
        return found
    return replace(swapped, bound={layer: f"{_BOUND}, even of {gap}", **swapped.bound})


_BOUND = "at its bound: these runs ask for less"


def _fitted(table: Table, start: Mapping[str, float], order: Sequence[str]) -> Fit:
    """Backward from all constants that could be told at all, then forward to those there is room for."""
    free, _ = identified(table, start, dict.fromkeys(METRICS, LEAST_NOISE), order)
    found = _fit_of(table, start, free)
    while vague := _vague(found):
        rests = [tuple(name for name in found.free if name != one) for one in reversed(vague)]
        fits = [_fit_of(table, start, rest) for rest in rests]
        found = min(fits, key=lambda fit: _loss(table, fit.values))
    for name in order:
        if name not in found.free and _has_room(table, found, name):
            more = _fit_of(table, start, (*found.free, name))
            if not _vague(more) and _loss(table, more.values) < _loss(table, found.values):
                found = more
    reasons = _reasons(table, found, [name for name in order if name not in found.free])
    return replace(found, held=reasons)


def _vague(fit: Fit) -> list[str]:
    """Constants that are not told apart."""
    return [name for name, error in fit.errors.items() if error >= BY_NAME[name].spread]


def _has_room(table: Table, fit: Fit, name: str) -> bool:
    """Whether the runs could tell one more constant, by what it does at the fit."""
    every = (*fit.errors, name)
    return identified(table, fit.values, fit.noise, every)[0] == every


def _fit_of(table: Table, start: Mapping[str, float], free: tuple[str, ...]) -> Fit:
    """These constants fitted, first with the assumed scatter and then with that around the fit."""
    noise: Mapping[str, float] = ASSUMED_NOISE
    values = dict(start)
    for _ in range(_ROUNDS):
        solution = _solved(table, values, free, noise)
        values = {**start, **_values(free, solution.x)}
        noise = _noise(table, values, len(free))
    inner = tuple(name for name in free if values[name] > BY_NAME[name].lower)
    errors = standard_errors(table, values, noise, inner, solution.weights)
    return Fit(values, free, errors, {}, {name: _BOUND for name in free if name not in inner}, noise)


def _loss(table: Table, values: Mapping[str, float]) -> float:
    """Cauchy loss at the assumed scatter."""
    return loss_of(_residuals(table, values, ASSUMED_NOISE), OUTLIER)


def _values(free: Sequence[str], x: Any) -> dict[str, float]:
    return {name: float(value) * BY_NAME[name].spread for name, value in zip(free, x, strict=True)}


def _solved(table: Table, start: Mapping[str, float], free: Sequence[str], noise: Mapping[str, float]) -> Solution:
    def residuals(x: Any) -> Any:
        return _residuals(table, {**start, **_values(free, x)}, noise)

    lower = [BY_NAME[name].lower / BY_NAME[name].spread for name in free]
    scale = OUTLIER if len(table) >= _ROBUST_RUNS * max(len(free), 1) else math.inf
    return least_squares(residuals, [start[name] / BY_NAME[name].spread for name in free], lower, scale)


def _residuals(table: Table, constants: Mapping[str, float], noise: Mapping[str, float]) -> Any:
    """Logarithms of predicted over measured, in standard deviations; TTFT of closed loops only."""
    import numpy as np

    tpot, ttft = table.predicted(constants)
    first = np.where(table.closed, np.log(ttft / table.ttft), 0.0)
    return np.concatenate([np.log(tpot / table.tpot) / noise["tpot"], first / noise["ttft"]])


def _noise(table: Table, values: Mapping[str, float], free: int) -> dict[str, float]:
    """Robust scatter by metric where there are runs enough to see it: 1.48 times the median miss."""
    import numpy as np

    halves = np.split(np.abs(_residuals(table, values, dict.fromkeys(METRICS, 1.0))), 2)
    seen = dict(zip(METRICS, (halves[0], halves[1][table.closed]), strict=True))
    found = {}
    for metric, misses in seen.items():
        spare = len(misses) - free
        if spare < SPARE:
            found[metric] = ASSUMED_NOISE[metric]
        else:
            found[metric] = max(LEAST_NOISE, 1.4826 * float(np.median(misses)) * (len(misses) / spare) ** 0.5)
    return found


def sensitivities(table: Table, values: Mapping[str, float], noise: Mapping[str, float]) -> Any:
    """Derivatives of the residuals with respect to every constant, in units of its spread, one column each."""

    def residuals(x: Any) -> Any:
        return _residuals(table, {**values, **_values(NAMES, x)}, noise)

    return jacobian(residuals, [values[name] / BY_NAME[name].spread for name in NAMES])


def errors_of(sensitivity: Any) -> Any:
    """Standard errors of the parameters of these columns, infinite where the observations say nothing about one."""
    import numpy as np

    if not sensitivity.shape[1]:
        return np.empty(0)
    _, singular, rows = np.linalg.svd(sensitivity, full_matrices=False)
    full = np.zeros(sensitivity.shape[1])
    full[: len(singular)] = singular
    if len(rows) < len(full):
        return np.full(len(full), np.inf)
    weak = full <= 1e-6 * max(float(full.max()), 1e-300)
    variance = np.where(np.abs(rows.T) < 1e-4, 0.0, rows.T**2) / np.where(weak, 1e-300, full**2)
    total = variance.sum(axis=1)
    return np.where(total > 1e100, np.inf, np.sqrt(total))


def identified(
    table: Table,
    values: Mapping[str, float],
    noise: Mapping[str, float],
    order: Sequence[str],
    weights: Any = None,
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The constants the runs tell apart, chosen in their order, and why the others are held.

    Parameters
    ----------
    table, values, noise : runs, point of evaluation, relative scatter by metric
    order : names, the first ones first
    weights : of each residual, of a robust loss

    Returns
    -------
    free, held : names; name to reason
    """
    sensitivity = sensitivities(table, values, noise)
    if weights is not None:
        sensitivity = sensitivity * weights[:, None] ** 0.5
    free: tuple[str, ...] = ()
    for name in order:
        trial = (*free, name)
        if (errors_of(_columns(sensitivity, trial)) < 1).all():
            free = trial
    return free, {name: _reason(sensitivity, name, free) for name in order if name not in free}


def _reasons(table: Table, fit: Fit, held: Sequence[str]) -> dict[str, str]:
    """Why constants are held, by those that are fitted in the end."""
    sensitivity = sensitivities(table, fit.values, fit.noise)
    return {name: _reason(sensitivity, name, tuple(fit.errors)) for name in held}


def _columns(sensitivity: Any, names: Sequence[str]) -> Any:
    return sensitivity[:, [NAMES.index(name) for name in names]]


def _reason(sensitivity: Any, name: str, free: Sequence[str]) -> str:
    """Why a constant is held: it does nothing in these runs, or what it does looks like another."""
    import numpy as np

    own = _columns(sensitivity, [name])[:, 0]
    size = float(np.linalg.norm(own))
    if size < 1:
        return "these runs hardly depend on it"
    others = _columns(sensitivity, free)
    likeness = np.abs(others.T @ own) / (size * np.maximum(np.linalg.norm(others, axis=0), 1e-300))
    if len(free) and likeness.max() > _PARTNER:
        return f"these runs do not tell it from {free[int(likeness.argmax())]}"
    return "these runs do not tell it from the others"


def standard_errors(
    table: Table, values: Mapping[str, float], noise: Mapping[str, float], free: Sequence[str], weights: Any = None
) -> dict[str, float]:
    """Standard error of each fitted constant, in its unit."""
    sensitivity = sensitivities(table, values, noise)
    if weights is not None:
        sensitivity = sensitivity * weights[:, None] ** 0.5
    errors = errors_of(_columns(sensitivity, free))
    return {name: float(error) * BY_NAME[name].spread for name, error in zip(free, errors, strict=True)}


@dataclass(frozen=True)
class Errors:
    """Predicted over measured less one, of TPOT or TTFT: median and p90 of the size, median of the sign; and of how
    many runs."""

    median: float
    p90: float
    bias: float
    runs: int


def errors_between(ratio: Any) -> Errors | None:
    """Errors of these ratios of predicted to measured; None where there are none."""
    import numpy as np

    if not len(ratio):
        return None
    error = np.asarray(ratio, float) - 1
    size = np.abs(error)
    return Errors(
        float(np.median(size)), float(np.quantile(size, 0.9)), float(np.median(error)), len(size)
    )  # fmt: skip


def judged(table: Table, tpot: Any, ttft: Any) -> dict[str, Errors | None]:
    """Errors of predictions by metric; TTFT of closed loops only."""
    first = (ttft / table.ttft)[table.closed]
    return {"tpot": errors_between(tpot / table.tpot), "ttft": errors_between(first)}
