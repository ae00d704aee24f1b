"""A workload that reproduces a trace: laws by class where they keep what a plan needs, else the pairs in cells."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capplan.calibration.law_fit import LawFit, chosen, coded_law, law_fits
from capplan.cards.arrivals import Hour
from capplan.cards.prefix_reuse import PrefixReuse
from capplan.cards.trace import Trace, read_trace
from capplan.cards.trace_counts import JointCounts
from capplan.cards.trace_histograms import HistogramCounts
from capplan.cards.trace_rates import read_rates
from capplan.cards.workload import RequestClass, Workload
from capplan.errors import InputError
from capplan.formulas import lengths
from capplan.formulas.decode_nodes import DecodeMoments, sample_moments
from capplan.formulas.joint_cells import compact_joint
from capplan.formulas.length_fit import separation
from capplan.formulas.length_law import LengthLaw
from capplan.formulas.length_laws import Mixture
from capplan.formulas.stationary import heavy_load_factor

FloatArray = NDArray[np.float64]
Pair = tuple[FloatArray, FloatArray]

KV_SHARE = 0.85
"""Share of the step seconds of a running request that its KV cache takes, where H1 and m1 are told."""
PLANNER_TOLERANCE = 0.02
"""Relative error of theta, nu, H1 and m1 up to which laws that are independent inside a class are taken."""
CELL_GROUPS, CELLS_INSIDE = 64, 10
_LEAST_OF_CLASS = 50


@dataclass(frozen=True)
class PlannerMoments:
    """What the laws of the stationary batch take from the lengths.

    Parameters
    ----------
    theta : mean context of a running request [token]
    nu : its standard deviation [token]
    h1 : variance of the step time at full load over that of equal requests, with 85 % of a request's step seconds in
        its KV cache [1]
    m1 : relaxation time at little load, on the same terms [decode steps]
    """

    theta: float
    nu: float
    h1: float
    m1: float

    @classmethod
    def of(cls, moments: DecodeMoments) -> PlannerMoments:
        """From the joint moments of prompts and decode steps; NaN where nothing decodes."""
        if moments.m01 <= 0:
            return cls(math.nan, math.nan, math.nan, math.nan)
        theta = lengths.running_context(moments.m11, moments.m02, moments.m01)
        m = moments
        variance = lengths.running_context_variance(m.m21, m.m12, m.m03, m.m01, theta)
        e, c = 1 - KV_SHARE, KV_SHARE / theta
        aged = lengths.aged_decode_work(e, c, moments)
        factor = heavy_load_factor(lengths.decode_work_square(e, c, moments), aged, 1.0)
        return cls(float(theta), math.sqrt(max(0.0, variance)), float(factor), float(aged / moments.m01))

    def errors(self, data: PlannerMoments) -> dict[str, float]:
        """Relative errors against the data, by name [1]."""
        return {name: getattr(self, name) / value - 1 for name, value in vars(data).items()}


@dataclass(frozen=True, eq=False)
class ClassFit:
    """One class of requests: its pairs, its counted lengths, and the laws tried for its prompts and outputs."""

    name: str
    share: float
    requests: int
    rows: tuple[FloatArray, FloatArray, FloatArray]
    counted_inputs: Pair
    counted_outputs: Pair
    inputs: list[LawFit]
    outputs: list[LawFit]
    counted_reasoning: Pair | None = None
    """Its reasoning tokens and their number of requests; None where the trace does not tell them."""

    @property
    def input_mean(self) -> float:
        """Mean prompt [token]."""
        return float(np.average(self.rows[0], weights=self.rows[2]))

    @property
    def output_mean(self) -> float:
        """Mean output [token]."""
        return float(np.average(self.rows[1], weights=self.rows[2]))

    @property
    def correlation(self) -> float:
        """Pearson correlation of prompt and output tokens; 0 where one of them is constant [1]."""
        return correlation(*self.rows)

    @cached_property
    def reasoning(self) -> LengthLaw | None:
        """The law of its reasoning tokens, quantile-coded; None where the trace does not tell them."""
        return None if self.counted_reasoning is None else coded_law(*_shares(self.counted_reasoning))

    @cached_property
    def cells(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Its pairs in few cells: prompts, outputs [token], weights, sum 1."""
        prompts, outputs, weights = self.rows
        return compact_joint(prompts, outputs, weights / weights.sum(), CELL_GROUPS, CELLS_INSIDE)


@dataclass(frozen=True, eq=False)
class WorkloadFit:
    """A trace beside the workload made of it.

    Parameters
    ----------
    trace : what was read
    classes : by class column, by reasoning, or by the two humps of the output lengths
    split_by : which of them
    sha256 : of the file
    """

    trace: Trace
    classes: tuple[ClassFit, ...]
    split_by: str
    sha256: str

    @cached_property
    def data(self) -> PlannerMoments:
        """Of the trace itself."""
        return PlannerMoments.of(sample_moments(*self.rows_as_steps))

    @property
    def rows_as_steps(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Prompts, decode steps and weights of the whole trace."""
        prompts, outputs, weights = self.rows
        return prompts, outputs - 1.0, weights

    @cached_property
    def rows(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Prompts, outputs and weights of the whole trace."""
        columns = zip(*(one.rows for one in self.classes), strict=True)
        prompts, outputs, weights = (np.concatenate(column) for column in columns)
        return prompts, outputs, weights

    def marginal(self, what: str) -> Pair:
        """Lengths, increasing [token], and shares of ``input``, ``output`` or ``reasoning`` over the whole trace."""
        name = "counted_reasoning" if what == "reasoning" else f"counted_{what}s"
        parts = [getattr(one, name) for one in self.classes]
        values, counts = (np.concatenate(column) for column in zip(*parts, strict=True))
        return _shares(_counted(values, counts))

    @cached_property
    def by_laws(self) -> Workload:
        """Classes with one law each for prompts and outputs, independent inside a class."""
        kinds = [RequestClass(one.share, chosen(one.inputs).law, chosen(one.outputs).law, one.name, one.reasoning)
                 for one in self.classes]  # fmt: skip
        return Workload(classes=kinds, name=self.trace.stem)

    @cached_property
    def by_cells(self) -> Workload:
        """The pairs in cells."""
        parts = [(p, d, one.share * w) for one in self.classes for p, d, w in [one.cells]]
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        laws = [(one.share, one.reasoning) for one in self.classes if one.reasoning is not None]
        reasoning = Mixture(laws) if laws else None
        return Workload(joint=tuple(columns), name=self.trace.stem, reasoning=reasoning)

    @cached_property
    def law_errors(self) -> dict[str, float]:
        """What laws by class get wrong in theta, nu, H1 and m1 [1]."""
        return PlannerMoments.of(self.by_laws.decode_moments).errors(self.data)

    @property
    def uses_laws(self) -> bool:
        """Whether laws by class are near enough; a single comparison that is not finite speaks against them."""
        return all(abs(error) <= PLANNER_TOLERANCE for error in self.law_errors.values())

    @property
    def workload(self) -> Workload:
        """The workload of the card."""
        return self.by_laws if self.uses_laws else self.by_cells

    @cached_property
    def errors(self) -> dict[str, float]:
        """What the workload of the card gets wrong in theta, nu, H1 and m1 [1]."""
        return PlannerMoments.of(self.workload.decode_moments).errors(self.data)


def fit_workload(
    path: str | Path,
    columns: Mapping[str, str] | None = None,
    *,
    windows: Iterable[float] = (),
    caches: PrefixReuse | None = None,
    rates: str | Path | None = None,
) -> WorkloadFit:
    """Read a trace and fit a workload to it.

    Parameters
    ----------
    path : CSV or JSON lines, plain or gzip
    columns : quantity -> column, for names that are not known; ``class`` names the column of classes
    windows : further windows at which to take the dispersion [s]
    caches : prefix caches to play the block hashes through; sizes of its own if not given
    rates : CSV of rates by time, for a trace without times of its own

    Raises
    ------
    InputError : no trace; one line that names file, line and column
    """
    file = Path(path)
    trace = read_trace(file, columns, caches=caches or PrefixReuse(), windows=windows)
    if rates is not None:
        trace = _with_rates(trace, Path(rates))
    parts, split_by = _parts(trace)
    total = sum(float(rows[2].sum()) for _, rows, *_ in parts)
    classes = tuple(
        ClassFit(
            name=name or "all",
            share=float(rows[2].sum()) / total,
            requests=round(float(outputs[1].sum())),
            rows=rows,
            counted_inputs=inputs,
            counted_outputs=outputs,
            inputs=law_fits(*_shares(inputs), 3),
            outputs=law_fits(*_shares(outputs), 4),
            counted_reasoning=reasoning,
        )
        for name, rows, inputs, outputs, reasoning in parts
    )
    return WorkloadFit(trace, classes, split_by, _sha256(file))


def _with_rates(trace: Trace, path: Path) -> Trace:
    """The trace with the rates of a file; every hour has its mean lengths."""
    if trace.arrivals is not None:
        raise InputError("has no use beside a trace with times", key="--rates")
    arrivals, hourly = read_rates(path)
    rows = [one.rows() for one in trace.classes.values()]
    prompts, outputs, weights = (np.concatenate(column) for column in zip(*rows, strict=True))
    w, steps = weights / weights.sum(), outputs - 1.0
    held = float(w @ (steps * (prompts + (steps - 1) / 2)))
    hours = [Hour(hour, rate, float(w @ prompts), float(w @ outputs), rate * held)
             for hour, rate in enumerate(hourly.tolist())] if len(hourly) > 1 else []  # fmt: skip
    note = f"rates of {path.name[:80]}: no dispersion, and the mean lengths in every hour"
    return replace(trace, arrivals=arrivals, hours=tuple(hours), notes=(*trace.notes, note))


Part = tuple[str, tuple[FloatArray, FloatArray, FloatArray], Pair, Pair, Pair | None]


def _parts(trace: Trace) -> tuple[list[Part], str]:
    """Name, pairs, counted prompts, outputs and reasoning tokens of each class, the largest first; and the split."""
    named = sorted(trace.classes.items(), key=lambda item: -item[1].requests)
    if len(named) == 1:
        name, counts = named[0]
        return _humps(name, counts)
    split_by = f"column {trace.columns.group}" if trace.columns.group else f"reasoning ({trace.columns.reasoning})"
    return [
        (name, counts.rows(), counts.inputs.values(), counts.outputs.values(), counts.reasoning_values())
        for name, counts in named
    ], split_by


def _humps(name: str, counts: JointCounts | HistogramCounts) -> tuple[list[Part], str]:
    """The two humps of the output lengths where they are apart, else all in one."""
    rows, inputs, outputs = counts.rows(), counts.inputs.values(), counts.outputs.values()
    found = None if isinstance(counts, HistogramCounts) else separation(*_shares(outputs))
    below = None if found is None else rows[1] <= found[1]
    if found is None or below is None or min(rows[2][below].sum(), rows[2][~below].sum()) < _LEAST_OF_CLASS:
        return [(name, rows, inputs, outputs, counts.reasoning_values())], "nothing"
    border = f"{found[1]:,.0f} tokens"
    titles = ((below, f"outputs to {border}"), (~below, f"outputs above {border}"))
    parts: list[Part] = []
    for chosen_rows, title in titles:
        p, d, w = (column[chosen_rows] for column in rows)
        parts.append((title, (p, d, w), _counted(p, w), _counted(d, w), _reasoning(counts, found[1], not len(parts))))
    return parts, f"the two humps of the output lengths (Ashman's D {found[0]:.1f})"


def _reasoning(counts: JointCounts | HistogramCounts, border: float, below: bool) -> Pair | None:
    """Reasoning tokens, and their requests, of the outputs up to the border or above it; None where not told."""
    if isinstance(counts, HistogramCounts) or counts.reasoning is None:
        return None
    thoughts, outputs, requests = counts.reasoning.rows()
    use = (outputs <= border) == below
    return _counted(thoughts[use], requests[use])


def _counted(values: FloatArray, weights: FloatArray) -> Pair:
    distinct, index = np.unique(values, return_inverse=True)
    return distinct, np.bincount(index, weights).astype(float)


def _shares(counted: Pair) -> Pair:
    values, counts = counted
    return values, counts / counts.sum()


def correlation(prompts: Any, outputs: Any, weights: Any) -> float:
    """Pearson correlation of a weighted sample; 0 where one of them is constant [1]."""
    w = weights / weights.sum()
    p, d = prompts - w @ prompts, outputs - w @ outputs
    spread = math.sqrt(float(w @ p**2) * float(w @ d**2))
    return float(w @ (p * d)) / spread if spread > 0 else 0.0


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
