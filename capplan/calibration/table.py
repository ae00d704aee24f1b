"""Runs beside what the model says of them, as arrays: everything but the constants of the engine is computed once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any

from capplan.calibration.constants import KERNEL_TIME_FACTOR, OF_ENGINE
from capplan.calibration.run import Run
from capplan.cards.engine import Engine
from capplan.cards.hardware import Hardware
from capplan.cards.model import Model
from capplan.errors import InputError
from capplan.formulas import closed_loop as laws
from capplan.serving.closed_loop import ClosedLoop, closed_loop
from capplan.serving.layout import Layout
from capplan.serving.memory import MemoryBudget, memory
from capplan.serving.prepared import prepare

SCALED_MARKS = ("_stream_bandwidth", "_flops")
"""Parts of the names of kernel constants that ``kernel_time_factor`` divides: rates of memory and arithmetic, but no
start-up and no network."""


@dataclass(frozen=True)
class System:
    """What was measured: model, GPU, layout, engine and formats of one configuration."""

    model: Model
    hardware: Hardware
    layout: Layout
    engine: Engine
    weight_dtype: str | None = None
    kv_dtype: str | None = None

    @cached_property
    def budget(self) -> MemoryBudget:
        """Memory of a rank."""
        formats: dict[str, Any] = {"weight_dtype": self.weight_dtype, "kv_dtype": self.kv_dtype}
        return memory(self.model, self.hardware, self.layout, self.engine, **formats)

    @property
    def served(self) -> Model:
        """The model in the format of its weights."""
        return self.model if self.weight_dtype is None else self.model.with_weight_dtype(self.weight_dtype)

    def slots(self, prompt: float, output: float) -> float | None:
        """Requests that run at once: what memory holds at their mean, at full length where the engine reserves it;
        None where the budget says that not even the weights fit."""
        held = prompt + (output if self.engine.scheduler_policy == "reserve" else output / 2)
        return max(float(self.budget.instance.max_sequences(held)), 1.0) if self.budget.fits else None


def systems_of(system: System, runs: Sequence[Run]) -> list[System]:
    """The system of each run, with the layout its file says."""
    known: dict[Layout, System] = {system.layout: system}
    found = []
    for run in runs:
        said = {name: getattr(run, name) for name in ("tp", "dp", "ep") if getattr(run, name) is not None}
        try:
            layout = replace(system.layout, **said) if said else system.layout
        except InputError as error:
            raise error.located(file=run.place) from None
        found.append(known.setdefault(layout, replace(system, layout=layout)))
    return found


def scaled_kernels(hardware: Hardware, factor: float) -> dict[str, float]:
    """Kernel constants of a GPU whose kernels stream and compute ``factor`` times as long."""
    kernels = vars(hardware.kernels)
    return {name: value / factor for name, value in kernels.items() if any(mark in name for mark in SCALED_MARKS)}


def scaled_hardware(hardware: Hardware, factor: float) -> Hardware:
    """The GPU with these kernels."""
    return replace(hardware, kernels=replace(hardware.kernels, **scaled_kernels(hardware, factor)))


@dataclass(frozen=True)
class Piece:
    """One run without engine constants; ``slow`` is the same with kernels of twice the time."""

    bare: ClosedLoop
    slow: ClosedLoop
    layers: float
    rank_sequences: float


def piece_of(system: System, prompt: float, output: float, concurrency: float) -> Piece:
    """What the model says of a run before any engine constant.

    Raises
    ------
    InputError : a layout or format the model cannot have, a kind of layer whose time is not modelled
    """
    free, slow = _free(system.engine), _slow(system.hardware)
    formats: dict[str, Any] = {"weight_dtype": system.weight_dtype, "kv_dtype": system.kv_dtype}
    slots = system.slots(prompt, output)
    bare, slowed = (
        closed_loop(system.model, gpu, system.layout, prompt, output, concurrency, engine=free, slots=slots, **formats)
        for gpu in (system.hardware, slow)
    )
    plan = prepare(system.model, system.hardware, system.layout, engine=free, chain=None, **formats).plan
    rank = math.ceil(bare.running / system.layout.dp)
    return Piece(bare, slowed, plan.layers, rank)


@lru_cache(maxsize=64)
def _slow(hardware: Hardware) -> Hardware:
    return scaled_hardware(hardware, 2.0)


@lru_cache(maxsize=64)
def _free(engine: Engine) -> Engine:
    """The engine without any overhead; kept, since plans are cached by its identity."""
    return with_constants(engine, dict.fromkeys(OF_ENGINE, 0.0))


def with_constants(engine: Engine, values: Mapping[str, float]) -> Engine:
    """The engine with other constants of step and TTFT; names that are no field of a card are left out."""
    changed: dict[str, Any] = {name: values[name] for name in OF_ENGINE}
    return replace(engine, **changed)


@dataclass(frozen=True, eq=False)
class Table:
    """Pieces of runs as arrays, one element a run; seconds and counts. ``closed`` marks runs whose TTFT counts."""

    decode: Any
    decode_slope: Any
    alone: Any
    alone_slope: Any
    joined: Any
    joined_slope: Any
    running: Any
    in_flight: Any
    steps: Any
    layers: Any
    sequences: Any
    tpot: Any
    ttft: Any
    closed: Any

    def __len__(self) -> int:
        return len(self.tpot)

    def where(self, chosen: Any) -> Table:
        """Some of the runs, by index or mask."""
        return Table(**{column.name: getattr(self, column.name)[chosen] for column in fields(self)})

    def joined_to(self, other: Table) -> Table:
        """Both tables."""
        import numpy as np

        names = [column.name for column in fields(self)]
        return Table(**{name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in names})

    def steps_without_prompts(self, constants: Mapping[str, float]) -> Any:
        """Seconds of a decode step with all running sequences and no prompt."""
        fixed = self.layers * constants["layer_overhead_seconds"] + constants["step_gap_seconds"]
        slower = (constants[KERNEL_TIME_FACTOR] - 1) * self.decode_slope
        return self.decode + slower + fixed + constants["sequence_overhead_seconds"] * self.sequences

    def predicted(self, constants: Mapping[str, float]) -> tuple[Any, Any]:
        r"""TPOT and TTFT with these constants.

        .. math:: T = T_0 + (f - 1) T_1 + n_\mathrm{layers}\,e + \mathrm{gap} + h\,b

        T_0 is the step of an engine without overhead, the floors of small kernels that an overhead replaces taken off.
        Times are linear in the factor f of streaming and arithmetic, within 0.05 % from 0.7 to 1.4, so that two
        evaluations of the model are enough.

        Parameters
        ----------
        constants : by name, all of :data:`~capplan.calibration.constants.NAMES`

        Returns
        -------
        tpot_seconds, ttft_seconds : means [s]
        """
        slower = constants[KERNEL_TIME_FACTOR] - 1
        fixed = self.layers * constants["layer_overhead_seconds"] + constants["step_gap_seconds"]
        each = constants["sequence_overhead_seconds"]
        wait = laws.prompt_wait(self.running, constants["ttft_sqrt_factor"], constants["ttft_linear_factor"])
        alone = self.alone + slower * self.alone_slope + fixed + each
        ttft = laws.closed_loop_ttft_seconds(alone, wait, constants["ttft_base_seconds"])
        decode = self.steps_without_prompts(constants)
        joined = self.joined + slower * self.joined_slope
        tpot = laws.closed_loop_tpot_seconds(decode, joined, self.running, wait, self.steps)
        in_slot = ttft + self.steps * tpot
        return tpot, ttft + laws.slot_wait_seconds(self.in_flight, self.running, in_slot)


def table_of(pieces: Sequence[Piece], runs: Sequence[Run]) -> Table:
    """Pieces and runs gathered."""
    import numpy as np

    def column(values: Any) -> Any:
        return np.array(list(values), float)

    slopes = {
        f"{name}_slope": column(getattr(p.slow, f"{long}_seconds") - getattr(p.bare, f"{long}_seconds") for p in pieces)
        for name, long in (("decode", "decode"), ("alone", "prompt"), ("joined", "joined"))
    }
    return Table(
        decode=column(p.bare.decode_seconds for p in pieces),
        alone=column(p.bare.prompt_seconds for p in pieces),
        joined=column(p.bare.joined_seconds for p in pieces),
        running=column(p.bare.running for p in pieces),
        in_flight=column(run.concurrency for run in runs),
        steps=column(run.decode_steps for run in runs),
        layers=column(p.layers for p in pieces),
        sequences=column(p.rank_sequences for p in pieces),
        tpot=column(run.tpot_seconds for run in runs),
        ttft=column(run.ttft_seconds for run in runs),
        closed=np.array([run.closed for run in runs], bool),
        **slopes,
    )
