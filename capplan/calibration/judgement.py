"""How well constants predict the runs: before, after and held out, the band that gives, and when it is no use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capplan.calibration.choice import LEAST_RUNS, Chosen
from capplan.calibration.fitting import METRICS, Errors, judged
from capplan.calibration.run import Run
from capplan.calibration.table import System, Table
from capplan.cards.hardware import Band
from capplan.errors import InputError
from capplan.formulas.error_band import band_factors

MOST_ERROR = 0.25
"""Median error of TPOT, on the runs that were fitted to, above which they are of something else."""
_WORSE = 1.1
_WORSE_BY = 0.05
"""Median errors of TPOT may grow by a tenth, and by 5 % over the square root of the runs, which is what medians scatter
by: the fit does not minimise them."""
_CAUSE = "are they of another model, GPU, layout or format?"


@dataclass(frozen=True)
class Judgement:
    """Errors of TPOT and TTFT: by the constants before, by those fitted to the same runs, and of each run by constants
    fitted without it; None where there is nothing to judge. Runs of one layout are left out together where there are
    several layouts, else those of one prompt and concurrency."""

    before: Mapping[str, Errors | None]
    after: Mapping[str, Errors | None]
    held_out: Mapping[str, Errors | None]
    left_out: str
    """What was left out together: ``layout``, or ``prompt and concurrency``."""
    band: Band | None
    """Measured over held-out TPOT at its 10th and 90th percentile; None of less than eight runs."""


@dataclass(frozen=True)
class Groups:
    """Runs that are left out together, one label a run."""

    labels: tuple[object, ...]
    what: str


def groups_of(runs: Sequence[Run], systems: Sequence[System]) -> Groups:
    """Layouts where there are several, else prompts and concurrencies."""
    layouts = tuple(one.layout for one in systems)
    if len(set(layouts)) > 1:
        return Groups(layouts, "layout")
    return Groups(tuple((round(run.prompt_tokens), run.concurrency) for run in runs), "prompt and concurrency")


def judgement_of(table: Table, start: Mapping[str, float], chosen: Chosen, left_out: str) -> Judgement:
    """Errors with constants before, after, and fitted without each group of runs.

    Parameters
    ----------
    table : runs
    start : constants before
    chosen : those after, and what they predict held out
    left_out : what was left out together
    """
    held = chosen.held
    return Judgement(
        judged(table, *table.predicted(start)),
        judged(table, *table.predicted(chosen.fit.values)),
        dict.fromkeys(METRICS) if held is None else judged(table, *held),
        left_out,
        None if held is None else _band(table, held[0]),
    )


def _band(table: Table, tpot: Any) -> Band | None:
    if len(table) < LEAST_RUNS:
        return None
    return Band(*band_factors(table.tpot.tolist(), tpot.tolist()))


def refuse_misfit(judgement: Judgement) -> None:
    """Constants that do not describe the runs are none.

    Raises
    ------
    InputError : TPOT is predicted worse than before, or off by more than a quarter in the median
    """
    before, after = judgement.before["tpot"], judgement.after["tpot"]
    if before is None or after is None:
        return
    if after.median > MOST_ERROR:
        raise InputError(f"no constants fit these runs, TPOT stays off by {after.median:.1%} in the median; {_CAUSE}")
    if after.median > _WORSE * before.median + _WORSE_BY / after.runs**0.5:
        problem = f"fitted constants predict TPOT worse, {before.median:.1%} off before and {after.median:.1%} after"
        raise InputError(f"{problem}; {_CAUSE}")
