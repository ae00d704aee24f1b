"""Results that occur twice: the same measurement in two files, perhaps in other digits."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence

from capplan.calibration.run import Run

SAME = 0.002
"""Relative difference up to which two figures are one, written down with other digits: no run repeats its TTFT and its
TPOT that well."""


def repeated(runs: Sequence[Run], layouts: Sequence[Hashable]) -> dict[int, str]:
    """Position to reason, of every run that repeats an earlier one.

    The same layout, kind of load, prompt, output, concurrency, TTFT and TPOT, within 0.2 %.

    Parameters
    ----------
    runs, layouts : side by side
    """
    cells: dict[tuple[Hashable, bool, int], list[int]] = defaultdict(list)
    found = {}
    for index, (run, layout) in enumerate(zip(runs, layouts, strict=True)):
        place = round(math.log(run.tpot_seconds) / SAME)
        near = (one for cell in (place - 1, place, place + 1) for one in cells.get((layout, run.closed, cell), ()))
        first = next((one for one in near if _alike(run, runs[one])), None)
        if first is None:
            cells[layout, run.closed, place].append(index)
        else:
            found[index] = f"repeats {runs[first].place}"
    return found


def _alike(one: Run, other: Run) -> bool:
    return all(math.isclose(a, b, rel_tol=SAME) for a, b in zip(_figures(one), _figures(other), strict=True))


def _figures(run: Run) -> tuple[float, ...]:
    return run.prompt_tokens, run.output_tokens, run.concurrency, run.ttft_seconds, run.tpot_seconds
