"""Engine constants: fitted to the train half of the measured end-to-end rows, judged on the other half.

    python benchmarks/end_to_end.py

Prints, for the rows and splits that :mod:`end_to_end_rows` fixes, the constants of each engine and the errors of TPOT
and TTFT on rows no fit saw. Needs SciPy.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from end_to_end_rows import HOPPER, Row, dealt, kept_rows, read_rows

from capplan.cards.engine import Engine
from capplan.cards.engine_card import load_engine
from capplan.errors import InputError
from capplan.formulas import closed_loop as laws
from capplan.serving.closed_loop import ClosedLoop, closed_loop
from capplan.serving.memory import memory
from capplan.serving.prepared import prepare

STEP = ("layer_overhead_seconds", "step_gap_seconds", "sequence_overhead_seconds")
FIRST_TOKEN = ("ttft_base_seconds", "ttft_sqrt_factor", "ttft_linear_factor")
START = {
    "layer_overhead_seconds": 1e-5,
    "step_gap_seconds": 5e-4,
    "sequence_overhead_seconds": 1e-5,
    "ttft_base_seconds": 5e-2,
    "ttft_sqrt_factor": 0.2,
    "ttft_linear_factor": 0.04,
}


@dataclass(frozen=True)
class Pieces:
    """A row without engine constants, and what they are multiplied with."""

    row: Row
    bare: ClosedLoop
    layers: float
    rank_sequences: float
    slots: float

    @property
    def decode_steps(self) -> float:
        """Steps of one request."""
        return self.row.range_share * self.row.osl - 1


@cache
def free_engine(engine: str) -> Engine:
    """The engine without any overhead."""
    return replace(load_engine(engine), **dict.fromkeys((*STEP, *FIRST_TOKEN), 0.0))


def pieces_of(row: Row) -> Pieces:
    """What the model says of a row before any engine constant."""
    engine, prompt, output = free_engine(row.engine), row.range_share * row.isl, row.range_share * row.osl
    held = prompt + (output if engine.scheduler_policy == "reserve" else output / 2)
    budget = memory(row.card, row.hardware, row.layout, row.engine, **_kv(row))
    slots = max(float(budget.instance.max_sequences(held)), 1.0) if budget.fits else float(row.concurrency)
    bare = closed_loop(row.card, row.hardware, row.layout, prompt, output, row.concurrency, engine=engine, slots=slots,
                       kv_dtype=row.kv_dtype)  # fmt: skip
    plan = prepare(row.card, row.hardware, row.layout, None, row.kv_dtype, engine, None).plan
    return Pieces(
        row, bare, plan.layers, math.ceil(bare.running / row.layout.dp), slots,
    )  # fmt: skip


def _kv(row: Row) -> dict[str, str]:
    return {"kv_dtype": row.kv_dtype} if row.kv_dtype else {}


@dataclass(frozen=True)
class Table:
    """Pieces of many rows as arrays."""

    rows: Sequence[Row]
    decode: np.ndarray
    alone: np.ndarray
    joined: np.ndarray
    running: np.ndarray
    of_rank: np.ndarray
    in_flight: np.ndarray
    steps: np.ndarray
    layers: np.ndarray
    sequences: np.ndarray
    tpot: np.ndarray
    ttft: np.ndarray

    @classmethod
    def of(cls, pieces: Sequence[Pieces]) -> Table:
        """Gathered."""

        def column(value: Callable[[Pieces], float]) -> np.ndarray:
            return np.array([value(piece) for piece in pieces], float)

        return cls(
            [piece.row for piece in pieces],
            column(lambda p: p.bare.decode_seconds),
            column(lambda p: p.bare.prompt_seconds),
            column(lambda p: p.bare.joined_seconds),
            column(lambda p: p.bare.running),
            column(lambda p: max(p.bare.running / p.row.layout.dp, 1.0)),
            column(lambda p: p.row.concurrency),
            column(lambda p: p.decode_steps),
            column(lambda p: p.layers),
            column(lambda p: p.rank_sequences),
            column(lambda p: p.row.tpot_ms * 1e-3),
            column(lambda p: p.row.ttft_ms * 1e-3),
        )

    def where(self, chosen: np.ndarray) -> Table:
        """Some of the rows."""
        index = np.flatnonzero(chosen)
        arrays = {name: value[index] for name, value in vars(self).items() if name != "rows"}
        return Table([self.rows[i] for i in index], **arrays)

    def predicted(self, c: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray]:
        """TPOT and TTFT with these constants [s]."""
        fixed = self.layers * c["layer_overhead_seconds"] + c["step_gap_seconds"]
        each = c["sequence_overhead_seconds"]
        wait = laws.prompt_wait(self.of_rank, c["ttft_sqrt_factor"], c["ttft_linear_factor"])
        ttft = laws.closed_loop_ttft_seconds(self.alone + fixed + each, wait, c["ttft_base_seconds"])
        decode = self.decode + fixed + each * self.sequences
        tpot = laws.closed_loop_tpot_seconds(decode, self.joined, self.of_rank, wait, self.steps)
        return tpot, ttft + laws.slot_wait_seconds(self.in_flight, self.running, ttft + self.steps * tpot)


Constants = dict[str, float]
Kind = tuple[str, str]
"""Engine and client."""


def fit(table: Table) -> dict[Kind, Constants]:
    """Constants by engine and client: those of a step are one set for all engines, those of the TTFT are not.

    Rows whose experts run slower than any table of the kernel are left out.
    """
    table = table.where(np.array([not row.slow_experts for row in table.rows]))
    kinds = [(row.engine, row.client) for row in table.rows]
    parts = {kind: table.where(np.array([one == kind for one in kinds])) for kind in sorted(set(kinds))}
    constants = {kind: dict(START) for kind in parts}
    for _ in range(2):
        _solve(STEP, parts, constants, lambda t, c: np.log(t.predicted(c)[0] / t.tpot))
        for kind, part in parts.items():
            _solve(FIRST_TOKEN, {kind: part}, constants, lambda t, c: np.log(t.predicted(c)[1] / t.ttft))
    return constants


def _solve(
    names: Sequence[str],
    parts: Mapping[Kind, Table],
    constants: dict[Kind, Constants],
    errors: Callable[[Table, Constants], np.ndarray],
) -> None:
    from scipy.optimize import least_squares

    scale = np.array([START[name] for name in names])

    def residuals(x: np.ndarray) -> np.ndarray:
        trial = dict(zip(names, x * scale, strict=True))
        return np.concatenate([errors(part, {**constants[kind], **trial}) for kind, part in parts.items()])

    first = next(iter(parts))
    start = np.array([constants[first][name] for name in names]) / scale
    # Some labels are wrong by a factor; a Cauchy loss lets them go.
    found = least_squares(residuals, np.maximum(start, 1e-3), loss="cauchy", f_scale=0.05, bounds=(0, 1e3))
    for kind in parts:
        constants[kind].update(zip(names, map(float, found.x * scale), strict=True))


def any_client(_own: Kind, _other: Kind) -> bool:
    """Every known constant may be used."""
    return True


def ratios(
    table: Table, constants: Mapping[Kind, Constants], known: Callable[[Kind, Kind], bool] = any_client
) -> tuple[np.ndarray, np.ndarray]:
    """Predicted over measured TPOT and TTFT.

    An engine and client nobody fitted, or whose constants may not be ``known``, takes the median of those of the same
    engine that may, else of all engines.
    """
    tpot, ttft = np.empty(len(table.rows)), np.empty(len(table.rows))
    kinds = [(row.engine, row.client) for row in table.rows]
    for kind in set(kinds):
        chosen = np.array([one == kind for one in kinds])
        part = table.where(chosen)
        usable = {other: c for other, c in constants.items() if known(kind, other)}
        one, first = part.predicted(usable.get(kind) or stand_in(kind[0], usable))
        tpot[chosen], ttft[chosen] = one / part.tpot, first / part.ttft
    return tpot, ttft


def stand_in(engine: str, constants: Mapping[Kind, Constants]) -> Constants:
    """Constants of an engine under a client nobody fitted."""
    found = [c for (name, _), c in constants.items() if name == engine] or list(constants.values())
    return {name: float(np.median([c[name] for c in found])) for name in found[0]}


def another_generator(own: Kind, other: Kind) -> bool:
    """Whether the other constants come from another load generator."""
    return own[1].split(",")[0] != other[1].split(",")[0]


def held_out(
    table: Table, part: Sequence[int], known: Callable[[Kind, Kind], bool] = any_client
) -> tuple[np.ndarray, np.ndarray]:
    """Ratios of every row by constants fitted to the other parts."""
    tpot, ttft, member = np.empty(len(part)), np.empty(len(part)), np.array(part)
    for one in sorted(set(part)):
        chosen = member == one
        constants = fit(table.where(~chosen))
        tpot[chosen], ttft[chosen] = ratios(table.where(chosen), constants, known)
    return tpot, ttft


LEAST_PROMPT_SHARE = 0.2
"""Share of a request's time that prompts must take for their cost to be told."""


def prompt_costs(table: Table, constants: Mapping[Kind, Constants]) -> np.ndarray:
    """Predicted over measured cost of a prompt, measured without a model of it.

    Runs that differ in output length alone obey TTFT + o TPOT = c P + o T with one P: two of them separate it from T.
    Only runs of fixed lengths.
    """
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for place, row in enumerate(table.rows):
        if row.range_share == 1.0 and not row.slow_experts:
            groups[(row.configuration, row.isl, row.concurrency)].append(place)
    step = next(iter(constants.values()))
    found = (_prompt_cost(table, np.array(group), step) for group in groups.values() if len(group) > 1)
    return np.array([ratio for ratio in found if ratio])


def _prompt_cost(table: Table, group: np.ndarray, c: Constants) -> float:
    steps, total = table.steps[group], table.ttft[group] + table.steps[group] * table.tpot[group]
    fixed = table.layers[group] * c["layer_overhead_seconds"] + c["step_gap_seconds"]
    decode = table.decode[group] + fixed + c["sequence_overhead_seconds"] * table.sequences[group]
    in_flight = table.in_flight[group]
    sides = np.column_stack([in_flight, steps * decode]) / total[:, None]
    (cost, _), *_ = np.linalg.lstsq(sides, np.ones(len(group)), rcond=None)
    told = len(set(steps)) > 1 and in_flight[0] * cost > LEAST_PROMPT_SHARE * total.mean()
    return float(np.mean(table.alone[group] + fixed) / cost) if told else 0.0


def scored(ratio: Iterable[float]) -> str:
    """Median, p90 and bias of the errors in per cent."""
    error = np.asarray(list(ratio)) - 1
    size = 100 * np.abs(error)
    return f"{np.median(size):5.1f} / {np.quantile(size, 0.9):5.1f}  bias {100 * np.median(error):+5.1f}  n {len(size)}"


def usable(rows: Iterable[Row]) -> Table:
    """The rows whose model the step time knows."""
    pieces, refused = [], 0
    for row in rows:
        try:
            pieces.append(pieces_of(row))
        except InputError as problem:
            refused += 1
            print("refused", row.id, problem)
    return Table.of(pieces)


@dataclass(frozen=True)
class Scores:
    """Ratios of the Hopper rows, each by constants that never saw its configuration; and of Blackwell."""

    table: Table
    constants: dict[Kind, Constants]
    """Fitted to the train half."""
    tpot: np.ndarray
    ttft: np.ndarray
    uncalibrated_ttft: np.ndarray
    """By the TTFT constants of another load generator."""
    new_family_tpot: np.ndarray
    half: np.ndarray
    half_tpot: np.ndarray
    half_ttft: np.ndarray
    blackwell: Table
    blackwell_tpot: np.ndarray
    blackwell_ttft: np.ndarray


def judged() -> Scores:
    """Fit and judge by the splits of :mod:`end_to_end_rows`; Blackwell by the constants of the Hopper train half."""
    every = read_rows()
    table = usable(kept_rows([row for row in every if row.gpu in HOPPER])[0])
    blackwell = usable(kept_rows([row for row in every if row.gpu == "b200"])[0])
    halves, folds = dealt(table.rows, 2), dealt(table.rows, 5)
    half = np.array([halves[row.id] == 1 for row in table.rows])
    constants, fold = fit(table.where(~half)), [folds[row.id] for row in table.rows]
    families = sorted({row.family for row in table.rows})
    tpot, ttft = held_out(table, fold)
    _, uncalibrated = held_out(table, fold, another_generator)
    new_family, _ = held_out(table, [families.index(row.family) for row in table.rows])
    return Scores(
        table, constants, tpot, ttft, uncalibrated, new_family, half, *ratios(table.where(half), constants), blackwell,
        *ratios(blackwell, constants),
    )  # fmt: skip


SLICES: dict[str, Callable[[Row], str]] = {
    "kind": lambda row: "mixture" if row.card.is_mixture else "dense",
    "engine": lambda row: row.engine,
    "gpu": lambda row: row.gpu,
    "family": lambda row: row.family,
    "model": lambda row: f"{row.family}, {row.engine}, {row.gpu}",
    "isl": lambda row: str(row.isl),
    "osl": lambda row: str(row.osl),
    "tp": lambda row: str(row.tp),
}


def main() -> None:
    """Fit and judge."""
    scores = judged()
    table = scores.table
    for kind, values in scores.constants.items():
        print(*kind, "  ".join(f"{name} {value:.3g}" for name, value in values.items()))
    print("test half      TPOT", scored(scores.half_tpot), "  TTFT", scored(scores.half_ttft))
    print("five folds     TPOT", scored(scores.tpot), "  TTFT", scored(scores.ttft))
    print("another client                                       TTFT", scored(scores.uncalibrated_ttft))
    print("new family     TPOT", scored(scores.new_family_tpot))
    print("B200           TPOT", scored(scores.blackwell_tpot), "  TTFT", scored(scores.blackwell_ttft))
    for title, key in SLICES.items():
        for name in sorted({key(row) for row in table.rows}):
            chosen = np.array([key(row) == name for row in table.rows])
            tpot, ttft = scored(scores.tpot[chosen]), scored(scores.ttft[chosen])
            print(f"{title:6} {name:34} TPOT {tpot}   TTFT {ttft}")
    for name in sorted({SLICES["model"](row) for row in scores.blackwell.rows}):
        chosen = np.array([SLICES["model"](row) == name for row in scores.blackwell.rows])
        tpot, ttft = scored(scores.blackwell_tpot[chosen]), scored(scores.blackwell_ttft[chosen])
        print(f"B200   {name:34} TPOT {tpot}   TTFT {ttft}")


if __name__ == "__main__":
    main()
