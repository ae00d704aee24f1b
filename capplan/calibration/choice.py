"""Which constants to leave out because runs a fit did not see are predicted better without, and its held-out errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from capplan.calibration.constants import KERNEL_TIME_FACTOR, NAMES
from capplan.calibration.fitting import ASSUMED_NOISE, OUTLIER, Fit, fit_table
from capplan.calibration.least_squares import loss_of
from capplan.calibration.table import Table

MOST_FOLDS = 20
LEAST_RUNS = 8
"""Runs from which on held-out errors choose, or give a band."""
LEAST_GROUPS = 8
_GAIN = 1.0
"""What leaving a constant out has to take off the held-out loss, at the assumed scatter: as much as Akaike's criterion
asks for one constant. Below that both predict as well, and the fitted one is nearer to the truth."""
_LEFT_OUT = "runs left out are predicted better without it"
_GIVEN_UP = (
    (KERNEL_TIME_FACTOR,),
    ("sequence_overhead_seconds",),
    ("sequence_overhead_seconds", KERNEL_TIME_FACTOR),
)
"""Constants of a step that grow alike with the batch, and may trade off against each other."""


@dataclass(frozen=True)
class Chosen:
    """A fit with its held-out predictions.

    Parameters
    ----------
    fit : of all runs
    held : TPOT and TTFT of every run by constants fitted without its group [s]; None where there is one group only
    """

    fit: Fit
    held: tuple[Any, Any] | None


def chosen_fit(table: Table, start: Mapping[str, float], groups: Sequence[object]) -> Chosen:
    """The fit of :func:`~capplan.calibration.fitting.fit_table`, without constants that make held-out errors larger.

    Only where there are enough runs to say so: eight groups of runs.

    Parameters
    ----------
    table, start : as there
    groups : of each run; runs of one group are left out together
    """
    best = Chosen(fit_table(table, start), held_out(table, start, groups))
    if best.held is None or len(table) < LEAST_RUNS or len(set(groups)) < LEAST_GROUPS:
        return best
    told, least = set(best.fit.errors), _loss(table, best.held)
    for dropped in _GIVEN_UP:
        if not set(dropped) <= told:
            continue
        order = [name for name in NAMES if name not in dropped]
        fit = fit_table(table, start, order)
        if _loss(table, table.predicted(fit.values)) > least - _GAIN:  # runs left out are never predicted better
            continue
        held = held_out(table, start, groups, order)
        if held is not None and (loss := _loss(table, held)) < least - _GAIN:
            fit = replace(fit, held={**fit.held, **dict.fromkeys(dropped, _LEFT_OUT)})
            best, least = Chosen(fit, held), loss
    return best


def _loss(table: Table, predicted: tuple[Any, Any]) -> float:
    """Cauchy loss of the misses of TPOT and TTFT in units of the assumed scatter, as the fit has it."""
    import numpy as np

    tpot = np.log(predicted[0] / table.tpot) / ASSUMED_NOISE["tpot"]
    ttft = (np.log(predicted[1] / table.ttft) / ASSUMED_NOISE["ttft"])[table.closed]
    return loss_of(np.concatenate([tpot, ttft]), OUTLIER)


def held_out(
    table: Table, start: Mapping[str, float], groups: Sequence[object], order: Sequence[str] = NAMES
) -> tuple[Any, Any] | None:
    """TPOT and TTFT of every run by constants fitted without its group [s]; None where there is one group only.

    Parameters
    ----------
    table, start, order : as in :func:`~capplan.calibration.fitting.fit_table`
    groups : of each run; runs of one group are left out together. More than 20 groups are dealt to 20 parts
    """
    import numpy as np

    known = list(dict.fromkeys(groups))
    part = np.array([known.index(group) % MOST_FOLDS for group in groups])
    if len(known) < 2:
        return None
    tpot, ttft = np.full(len(table), np.nan), np.full(len(table), np.nan)
    for one in sorted(set(part.tolist())):
        chosen = part == one
        fit = fit_table(table.where(~chosen), start, order)
        tpot[chosen], ttft[chosen] = table.where(chosen).predicted(fit.values)
    return tpot, ttft
