"""A user's benchmark results in the place of the constants of an engine card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from capplan.calibration.choice import chosen_fit
from capplan.calibration.constants import BY_NAME, CONSTANTS, Constant, constants_of
from capplan.calibration.design import More, more_runs
from capplan.calibration.fitting import ASSUMED_NOISE, Fit
from capplan.calibration.judgement import Judgement, groups_of, judgement_of, refuse_misfit
from capplan.calibration.model_names import another_model, taken_for
from capplan.calibration.plausibility import Split, impossible_runs, set_aside, splits_of
from capplan.calibration.repeats import repeated
from capplan.calibration.results import Reading, read_results
from capplan.calibration.run import Run, SetAside
from capplan.calibration.table import Piece, System, Table, piece_of, systems_of, table_of
from capplan.cards.engine import Engine
from capplan.cards.engine_card import load_engine
from capplan.cards.hardware import Hardware
from capplan.cards.model import Model
from capplan.errors import InputError
from capplan.serving.layout import Layout, check_heads, check_types

_FAR = 2.5
"""Spreads a constant may move before the answer asks whether the labels are right."""


@dataclass(frozen=True)
class Fitted:
    """One constant before and after.

    Parameters
    ----------
    constant : which, with its unit and spread
    before, after : values
    standard_error : of the fit; None where it keeps its value or stops at its bound
    held : why it keeps its value
    bound : why it was moved to the least it can be, and no further
    """

    constant: Constant
    before: float
    after: float
    standard_error: float | None
    held: str | None
    bound: str | None = None

    @property
    def state(self) -> str:
        """``fitted``, ``held`` at the card's value, or moved to its ``bound``."""
        return "held" if self.held is not None else "fitted" if self.bound is None else "bound"


@dataclass(frozen=True)
class Calibration:
    """Constants that fit a user's results.

    Parameters
    ----------
    system : model, GPU, layout and base engine
    fitted : every constant, before and after
    judgement : errors before, after and held out
    runs : those the fit used
    predictions : TPOT and TTFT of each, before and after [s], by ``tpot_before``, ``tpot_after``, ...
    set_aside : results it did not use, with reasons, impossible ones included
    splits : what the conservation law says, and the model: (split, decode step over model's, prompt over model's)
    more : runs that would tell a held constant
    unread : keys nothing was taken from, by format
    notes : remarks
    """

    system: System
    fitted: tuple[Fitted, ...]
    judgement: Judgement
    runs: tuple[Run, ...]
    predictions: Mapping[str, Any] = field(repr=False, hash=False)
    set_aside: tuple[SetAside, ...]
    splits: tuple[tuple[Split, float, float], ...]
    more: tuple[More, ...]
    unread: Mapping[str, tuple[str, ...]] = field(hash=False)
    notes: tuple[str, ...]

    @property
    def constants(self) -> dict[str, float]:
        """Every constant after the fit, by name."""
        return {one.constant.name: one.after for one in self.fitted}

    @property
    def engine(self) -> Engine:
        """The engine with its new constants, under a name of its own and of no file."""
        from capplan.calibration.calibrated_card import calibrated_engine

        return calibrated_engine(self)


def calibrate(
    results: str | Path | Reading | Sequence[str | Path | Run],
    model: Model,
    hardware: Hardware,
    layout: Layout | None = None,
    engine: Engine | str = "vllm",
    *,
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
    columns: Mapping[str, str] | None = None,
    force: bool = False,
) -> Calibration:
    r"""Fit the constants of an engine card to measured TTFT and TPOT.

    .. math:: T = T_0 + (f - 1) T_1 + n_\mathrm{layers}\,e + \mathrm{gap} + h\,b, \qquad
              \mathrm{TTFT} = t_0 + P\,(1 + g_a \sqrt{b - 1} + g_b (b - 1))

    b are the requests of one data-parallel rank, f is the time of kernels in the engine over that of kernels alone.
    As many constants are fitted as the runs tell apart, less those without which runs left out are predicted better;
    the others keep the card's value. Labels that no GPU can reach are left out first, repeated results count once.

    Parameters
    ----------
    results : files, folders or patterns (see :func:`~capplan.calibration.results.read_results`), or runs
    model, hardware, layout : what was measured; columns ``tp``, ``dp``, ``ep`` of a CSV win over the layout
    engine : base card, by name or loaded
    weight_dtype, kv_dtype : formats of weights and cache; None is the checkpoint's
    columns : quantity to column of a CSV
    force : take results that name another model for those of this one

    Returns
    -------
    calibration : :class:`Calibration`: constants, errors, and ``.engine`` for every other function

    Raises
    ------
    InputError : files that cannot be read, results of another model, no run that can be used, more than a third that
        cannot be, runs that tell no constant, or that fitted constants describe worse than those before, or by more
        than a quarter off

    Examples
    --------
    >>> from capplan import load_hardware, load_model
    >>> runs = [Run("a.json", None, "", 1024, 256, c, 0.04 * (1 + 0.1 * c), 0.0095 + 4e-5 * c) for c in (1, 8, 64)]
    >>> found = calibrate(runs, load_model("llama-3.1-8b"), load_hardware("h100"))
    >>> found.judgement.after["tpot"].median < found.judgement.before["tpot"].median
    True

    References
    ----------
    The laws: :mod:`capplan.formulas.closed_loop`. What it reaches on published runs: benchmarks/one_point.py.
    """
    reading = _reading(results, columns)
    _one_model(reading, model, force=force)
    system = _system(model, hardware, layout, engine, weight_dtype, kv_dtype)
    kept, pieces, systems, splits = _usable(reading, system)
    runs, table = [reading.runs[index] for index in kept], table_of(pieces, [reading.runs[index] for index in kept])
    start = constants_of(system.engine)
    groups = groups_of(runs, systems)
    chosen = chosen_fit(table, start, groups.labels)
    fit = chosen.fit
    if not fit.free:
        raise InputError(_tells_nothing(system, table, fit))
    judgement = judgement_of(table, start, chosen, groups.what)
    refuse_misfit(judgement)
    more = more_runs(systems[0], table, fit)
    return _calibration(system, reading, runs, table, start, fit, splits, more, judgement)


def _reading(results: Any, columns: Mapping[str, str] | None) -> Reading:
    if isinstance(results, Reading):
        return replace(results, runs=[*results.runs], set_aside=[*results.set_aside], notes=[*results.notes])
    several: list[Any] = [results] if isinstance(results, (str, Path)) else list(results)
    if several and all(isinstance(one, Run) for one in several):
        return Reading(runs=several)
    return read_results(several, columns)


def _system(
    model: Model,
    hardware: Hardware,
    layout: Layout | None,
    engine: Engine | str,
    weight_dtype: str | None,
    kv_dtype: str | None,
) -> System:
    placed = Layout() if layout is None else layout
    check_types(model, hardware, placed)
    card = load_engine(engine) if isinstance(engine, str) else engine
    if not isinstance(card, Engine) or card.name == "none":
        raise InputError("needs an engine card: bare kernels have no constants", key="engine")
    return System(model, hardware, placed, card, weight_dtype, kv_dtype)


def _usable(reading: Reading, system: System) -> tuple[list[int], list[Piece], list[System], list[tuple[Split, int]]]:
    """Positions of the runs the fit uses, with their pieces and systems, and splits with the place of their first run
    among them; the reading tells what is set aside."""
    _without_repeats(reading, system)
    runs, systems = reading.runs, systems_of(system, reading.runs)
    for run, one in zip(runs, systems, strict=True):
        _check(one, run)
    pieces = [
        piece_of(one, run.prompt_tokens, run.output_tokens, run.concurrency)
        for run, one in zip(runs, systems, strict=True)
    ]
    splits = splits_of(runs, systems, pieces)
    reasons = _waiting(runs, pieces) | impossible_runs(runs, systems, splits)
    reading.set_aside += set_aside(runs, reasons)
    kept = [index for index in range(len(runs)) if index not in reasons]
    if not kept:
        raise InputError(_nothing_left(reading))
    placed = [(split, kept.index(split.runs[0])) for split in splits if split.runs[0] in kept]
    return kept, [pieces[index] for index in kept], [systems[index] for index in kept], placed


def _check(system: System, run: Run) -> None:
    try:
        check_heads(system.model, system.layout)
    except InputError as error:
        raise error.located(file=run.place) from None


def _without_repeats(reading: Reading, system: System) -> None:
    """Results in two files, of which one says the layout, count once."""
    runs = reading.runs
    reasons = repeated(runs, [one.layout for one in systems_of(system, runs)])
    reading.set_aside += set_aside(runs, reasons)
    reading.runs = [run for index, run in enumerate(runs) if index not in reasons]


def _one_model(reading: Reading, model: Model, *, force: bool) -> None:
    """Results of one model only; a name that is not the card's is told, one of another model refused."""
    names = sorted({run.model for run in reading.runs if run.model})
    if len(names) > 1:
        raise InputError(f"results of {len(names)} models: {names[0]!r}, {names[1]!r}; give those of one")
    if names and (remark := taken_for(names[0], model)) is not None:
        if not force and another_model(names[0], model):
            raise InputError(f"the results are of {names[0]!r}, not of {model.name}; --force takes them for it")
        reading.notes.append(remark)


def _waiting(runs: Sequence[Run], pieces: Sequence[Piece]) -> dict[int, str]:
    """Runs whose requests wait for memory: their TTFT tells the size of the KV pool, not these constants."""
    found = {}
    for index, (run, piece) in enumerate(zip(runs, pieces, strict=True)):
        if piece.bare.running < run.concurrency:
            holds = f"memory holds {piece.bare.running:,.0f} such requests by the card"
            found[index] = f"{holds}, {run.concurrency:,.0f} were in flight"
    return found


def _nothing_left(reading: Reading) -> str:
    if not reading.set_aside:
        return "no results"
    first = reading.set_aside[0]
    return f"no result can be used; {first.place}: {first.reason}"


def _tells_nothing(system: System, table: Table, fit: Fit) -> str:
    wanted = more_runs(system, table, fit)
    runs = "; ".join(str(run) for run in wanted[0].runs) if wanted else "see --design"
    return f"these runs tell no constant of the engine; run for example {runs}"


def _calibration(
    system: System,
    reading: Reading,
    runs: list[Run],
    table: Table,
    start: Mapping[str, float],
    fit: Fit,
    splits: list[tuple[Split, int]],
    more: list[More],
    judgement: Judgement,
) -> Calibration:
    before, after = table.predicted(start), table.predicted(fit.values)
    names = ("tpot_before", "ttft_before", "tpot_after", "ttft_after")
    return Calibration(
        system=system,
        fitted=tuple(
            Fitted(one, start[name], fit.values[name], fit.errors.get(name), fit.held.get(name), fit.bound.get(name))
            for name, one in BY_NAME.items()
        ),
        judgement=judgement,
        runs=tuple(runs),
        predictions=dict(zip(names, (*before, *after), strict=True)),
        set_aside=tuple(reading.set_aside),
        splits=_beside_model(splits, table, fit),
        more=tuple(more),
        unread={tool: tuple(sorted(keys)) for tool, keys in reading.unread.items() if keys},
        notes=(*reading.notes, *_far_off(start, fit), *_beyond_scatter(judgement, fit)),
    )


def _far_off(start: Mapping[str, float], fit: Fit) -> list[str]:
    """Constants that moved further than engines differ: a wrong label can be fitted too."""
    return [
        f"{one.name} moved from {one.shown(start[one.name])} to {one.shown(fit.values[one.name])}, "
        "further than published systems differ: check model, GPU, layout and formats"
        for one in CONSTANTS
        if abs(fit.values[one.name] - start[one.name]) > _FAR * one.spread
    ]


def _beyond_scatter(judgement: Judgement, fit: Fit) -> list[str]:
    """Few runs that lie further from the fit than the standard errors take them to."""
    after, assumed = judgement.after["tpot"], ASSUMED_NOISE["tpot"]
    if after is None or fit.noise["tpot"] != assumed or after.median < assumed:
        return []
    lie = f"{after.runs} runs lie {after.median:.1%} off the fit in the median"
    return [f"standard errors are for a scatter of {assumed:.0%} of TPOT, {lie}: more runs would tell"]


def _beside_model(
    splits: Sequence[tuple[Split, int]], table: Table, fit: Fit
) -> tuple[tuple[Split, float, float], ...]:
    """Splits with decode step and prompt over those of the fitted model."""
    decode = table.steps_without_prompts(fit.values)
    joined = table.joined_prompts(fit.values)
    return tuple(
        (split, split.decode_seconds / float(decode[place]), split.prompt_seconds / float(joined[place]))
        for split, place in splits
    )
