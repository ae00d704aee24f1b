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


def starts(table: Table, own: calibration.Table) -> list[dict[str, float]]:
    """Constants of each row before calibration, from the folds its configuration is not in.

    :mod:`end_to_end` may count the floors that an overhead replaces otherwise; the overhead is set so that both
    predict the same TPOT.
    """
    folds = dealt(table.rows, 5)
    part = np.array([folds[row.id] for row in table.rows])
    found: list[dict[str, float]] = [{} for _ in table.rows]
    for one in sorted(set(part.tolist())):
        constants = fit(table.where(part != one))
        for index in np.flatnonzero(part == one):
            row = table.rows[index]
            kind = (row.engine, row.client)
            found[index] = dict(constants.get(kind) or stand_in(row.engine, constants))
    for index, start in enumerate(found):
        wanted = table.where(_only(index, len(part))).predicted(start)[0]
        bare = own.where([index]).predicted({**start, KERNEL_TIME_FACTOR: 1.0, "layer_overhead_seconds": 0.0})[0]
        overhead = float((wanted - bare)[0] / own.layers[index])
        found[index] = {**start, KERNEL_TIME_FACTOR: 1.0, "layer_overhead_seconds": max(overhead, 0.0)}
    return found


def _only(index: int, size: int) -> np.ndarray:
    chosen = np.zeros(size, bool)
    chosen[index] = True
    return chosen


def main() -> None:
    """Measure."""
    table = usable(kept_rows([row for row in read_rows() if row.gpu in HOPPER])[0])
    own = gathered(table.rows)
    before = starts(table, own)
    configurations: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, row in enumerate(table.rows):
        configurations[row.configuration].append(index)
    report(table.rows, own, before, list(configurations.values()))


def report(
    rows: Sequence[Row], own: calibration.Table, before: Sequence[dict[str, float]], groups: Sequence[Sequence[int]]
) -> None:
    """Print errors with none, one and three points."""
    print(f"{len(groups)} configurations, {len(rows)} runs")
    for points in (1, 3):
        ratios: dict[str, list[float]] = {"before": [], "after": []}
        fitted: dict[str, int] = defaultdict(int)
        for group in groups:
            order = sorted(group, key=lambda i: (rows[i].concurrency, rows[i].isl, rows[i].osl))
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
