"""One calibration point: what a single run of a configuration is worth for its other runs.

    python benchmarks/one_point.py

For every published Hopper configuration of :mod:`end_to_end_rows` the run with the fewest requests in flight (of
several, the one with the shortest prompt and output) is given to the fit of ``capplan calibrate``, which a single run
lets choose one constant of a step: the overhead of a layer. Constants before are those of five folds by configuration:
no fit saw any run of the configuration. The point itself is not scored. Needs SciPy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from end_to_end import Table, fit, scored, stand_in, usable
from end_to_end_rows import HOPPER, Row, dealt, kept_rows, read_rows

from capplan.calibration import fitting
from capplan.calibration import table as calibration
from capplan.calibration.constants import KERNEL_TIME_FACTOR, OF_STEP
from capplan.calibration.run import Run
from capplan.cards.engine_card import load_engine


def system_of(row: Row) -> calibration.System:
    """What was measured."""
    return calibration.System(row.card, row.hardware, row.layout, load_engine(row.engine), None, row.kv_dtype)


def run_of(row: Row) -> Run:
    """A row as ``capplan calibrate`` reads it."""
    share = row.range_share
    return Run(row.source, None, "CSV", share * row.isl, share * row.osl, row.concurrency, row.ttft_ms / 1e3,
               row.tpot_ms / 1e3)  # fmt: skip


def gathered(rows: Sequence[Row]) -> calibration.Table:
    """The rows beside the model."""
    runs = [run_of(row) for row in rows]
    pieces = [
        calibration.piece_of(system_of(row), run.prompt_tokens, run.output_tokens, run.concurrency)
        for row, run in zip(rows, runs, strict=True)
    ]
    return calibration.table_of(pieces, runs)


def starts(table: Table) -> list[dict[str, float]]:
    """Constants of each row before calibration, from the folds its configuration is not in."""
    folds = dealt(table.rows, 5)
    part = np.array([folds[row.id] for row in table.rows])
    found: list[dict[str, float]] = [{} for _ in table.rows]
    for one in sorted(set(part.tolist())):
        constants = fit(table.where(part != one))
        for index in np.flatnonzero(part == one):
            row = table.rows[index]
            known = constants.get((row.engine, row.client)) or stand_in(row.engine, constants)
            found[index] = {**known, KERNEL_TIME_FACTOR: load_engine(row.engine).kernel_time_factor}
    return found


def main() -> None:
    """Measure."""
    table = usable(kept_rows([row for row in read_rows() if row.gpu in HOPPER])[0])
    own = gathered(table.rows)
    before = starts(table)
    configurations: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, row in enumerate(table.rows):
        configurations[row.configuration].append(index)
    report(table.rows, own, before, list(configurations.values()))


def ordered(rows: Sequence[Row], group: Sequence[int]) -> list[int]:
    """Runs of a configuration, the first one to calibrate with in front."""
    return sorted(group, key=lambda index: (rows[index].concurrency, rows[index].isl, rows[index].osl))


def asked_overheads(
    rows: Sequence[Row], own: calibration.Table, before: Sequence[dict[str, float]], groups: Sequence[Sequence[int]]
) -> list[float]:
    """What the first run of each configuration adds to the overhead of a layer, all its error laid to that [s]."""
    found = []
    for first in (ordered(rows, group)[0] for group in groups):
        run = own.where([first])
        found.append(float((run.tpot - run.predicted(before[first])[0])[0] / run.layers[0]))
    return found


def report(
    rows: Sequence[Row], own: calibration.Table, before: Sequence[dict[str, float]], groups: Sequence[Sequence[int]]
) -> None:
    """Print errors with none, one and three points."""
    print(f"{len(groups)} configurations, {len(rows)} runs")
    scatter = 1.4826 * np.median(np.abs(asked_overheads(rows, own, before, groups)))
    print(f"overhead of a layer their first runs ask for: {1e6 * scatter:.1f} us apart (1.48 times the median change)")
    for points in (1, 3):
        ratios: dict[str, list[float]] = {"before": [], "after": []}
        fitted: dict[str, int] = defaultdict(int)
        for group in groups:
            order = ordered(rows, group)
            spread = [order[round(k * (len(order) - 1) / max(points - 1, 1))] for k in range(points)]
            given, tested = list(dict.fromkeys(spread)), [index for index in order if index not in spread]
            if not tested:
                continue
            found = fitting.fit_table(own.where(given), before[given[0]])
            for name in found.free:
                fitted[name] += name in OF_STEP
            for name, values in (("before", before[given[0]]), ("after", found.values)):
                part = own.where(tested)
                ratios[name] += (part.predicted(values)[0] / part.tpot).tolist()
        for name, ratio in ratios.items():
            print(f"{points} of each, {name:6}  TPOT {scored(ratio)}")
        print("  fitted:", ", ".join(f"{name} {count}" for name, count in fitted.items() if count))


if __name__ == "__main__":
    main()
