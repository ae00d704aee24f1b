"""Runs beside what the model says of them, as arrays: everything but the constants of the engine is computed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any

from capplan.calibration.constants import KERNEL_TIME_FACTOR, NAMES, with_constants
from capplan.calibration.run import Run
from capplan.cards.engine import Engine
from capplan.cards.hardware import Hardware
from capplan.cards.model import Model
from capplan.errors import InputError
from capplan.serving.closed_loop import ClosedLoop, Load, client_seconds, closed_loop
from capplan.serving.layout import Layout
from capplan.serving.memory import MemoryBudget, memory
from capplan.serving.prepared import prepare

_TTFT = ("ttft_base_seconds", "ttft_sqrt_factor", "ttft_linear_factor")


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


@dataclass(frozen=True)
class Piece:
    """One run by an engine that adds nothing to bare kernels; in ``slow`` its kernels take twice the time."""

    bare: ClosedLoop
    slow: ClosedLoop
    layers: float
    ranks: float


def piece_of(system: System, prompt: float, output: float, concurrency: float) -> Piece:
    """What the model says of a run before any engine constant.

    Raises
    ------
    InputError : a layout or format the model cannot have, a kind of layer whose time is not modelled
    """
    place = system.model, system.hardware, system.layout
    formats: dict[str, Any] = {"weight_dtype": system.weight_dtype, "kv_dtype": system.kv_dtype}
    slots = system.slots(prompt, output)
    bare, slow = (
        closed_loop(*place, prompt, output, concurrency, engine=_free(system.engine, factor), slots=slots, **formats)
        for factor in (1.0, 2.0)
    )
    plan = prepare(*place, engine=_free(system.engine, 1.0), chain=None, **formats).plan
    return Piece(bare, slow, plan.layers, system.layout.dp)


@lru_cache(maxsize=64)
def _free(engine: Engine, factor: float) -> Engine:
    """The engine without any overhead; kept, since plans are cached by its identity."""
    return with_constants(engine, {**dict.fromkeys(NAMES, 0.0), KERNEL_TIME_FACTOR: factor})


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
    ranks: Any
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
        import numpy as np

        fixed = self.layers * constants["layer_overhead_seconds"] + constants["step_gap_seconds"]
        slower = (constants[KERNEL_TIME_FACTOR] - 1) * self.decode_slope
        sequences = np.ceil(self.running / self.ranks)
        return self.decode + slower + fixed + constants["sequence_overhead_seconds"] * sequences

    def joined_prompts(self, constants: Mapping[str, float]) -> Any:
        """Seconds a prompt on every data-parallel rank adds to such a step."""
        return self.joined + (constants[KERNEL_TIME_FACTOR] - 1) * self.joined_slope

    def predicted(self, constants: Mapping[str, float]) -> tuple[Any, Any]:
        r"""TPOT and TTFT with these constants.

        .. math:: T = T_0 + (f - 1) T_1 + n_\mathrm{layers}\,e + \mathrm{gap} + h\,b

        T_0 is the step of an engine without overhead, the floors of small kernels that an overhead replaces taken off.
        Times are linear in the factor f of products, attention and experts, so that two evaluations of the model are
        enough.

        Parameters
        ----------
        constants : by name, all of :data:`~capplan.calibration.constants.NAMES`

        Returns
        -------
        tpot_seconds, ttft_seconds : means [s]
        """
        fixed = self.layers * constants["layer_overhead_seconds"] + constants["step_gap_seconds"]
        slower = (constants[KERNEL_TIME_FACTOR] - 1) * self.alone_slope
        alone = self.alone + slower + fixed + constants["sequence_overhead_seconds"]
        decode, joined = self.steps_without_prompts(constants), self.joined_prompts(constants)
        load = Load(self.in_flight, self.running, self.ranks, self.steps)
        ttft, tpot, slot_wait = client_seconds(alone, decode, joined, load, **{name: constants[name] for name in _TTFT})
        return tpot, ttft + slot_wait


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
        ranks=column(p.ranks for p in pieces),
        tpot=column(run.tpot_seconds for run in runs),
        ttft=column(run.ttft_seconds for run in runs),
        closed=np.array([run.closed for run in runs], bool),
        **slopes,
    )
