"""``capplan fit --from-log``: the numbers of a start-up log in the place of ours, and beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import typer

from capplan.calibration.engine_log import EngineLog, read_engine_log
from capplan.calibration.log_comparison import compared, conflicts, engine_for, kv_dtype_of
from capplan.cards.engine_card import load_engine
from capplan.cli.output import Format, emit_rows, note
from capplan.quantities.chain import Chain
from capplan.quantities.units import format_bytes
from capplan.serving.memory import memory

if TYPE_CHECKING:
    from capplan.cards.hardware import Hardware
    from capplan.cards.model import Model
    from capplan.serving.layout import Layout
    from capplan.serving.memory_budget import MemoryBudget

_POOL = frozenset({"kv_pool_bytes", "kv_pool_gib", "num_gpu_blocks", "kv_capacity_tokens", "kv_room_bytes"})
"""Quantities that say how large the pool is: one of the user replaces all of the log."""
_LINES = {
    "gpu_memory_utilization": "memory_fraction",
    "mem_fraction_static": "memory_fraction",
    "free_gpu_memory_fraction": "memory_fraction",
    "kv_block_tokens": "block_tokens",
    "kv_room_bytes": "kv_pool_bytes",
    "kv_capacity_tokens": "kv_tokens",
}


@dataclass
class FromLog:
    """A start-up log, the options it fills in, and what the answer says about it."""

    log: EngineLog
    engine: str
    sizes: dict[str, int]
    options: dict[str, Any]
    notes: list[str]
    warnings: list[str] = field(default_factory=list)
    overrides: dict[str, float] = field(default_factory=dict)
    model: Model | None = None
    computed: MemoryBudget | None = None

    def chain(self, chain: Chain, model: Model, hardware: Hardware, layout: Layout) -> Chain:
        """The user's overrides and, where the user gave none, those of the log.

        Parameters
        ----------
        chain : with the user's overrides, which win
        model, hardware, layout : of the answer

        Returns
        -------
        chain : a new one; the budget by the cards alone is kept for the comparison
        """
        given = chain.overrides
        settings = _without(self.log.settings(), given)
        measured = self.log.measured(model, hardware, unified_pages=self.options["unified_pages"])
        self.model = model
        self.computed = memory(model, hardware, layout, self.engine, chain=Chain({**given, **settings}), **self.options)
        if self.computed.capacity_tokens is None:
            measured.pop("kv_capacity_tokens", None)
            self._tell_of_tokens()
        self.overrides = {**settings, **_without(measured, given)}
        self.warnings += conflicts(self.log, model, hardware, layout, self.options["kv_dtype"], given)
        return Chain({**given, **self.overrides}, record=chain.record)

    def data(self, budget: MemoryBudget) -> dict[str, Any]:
        """What JSON says of the log."""
        log = self.log
        rows = {row.name: {"logged": row.logged, "computed": row.computed, "difference": row.difference}
                for row in self._compared(budget)}  # fmt: skip
        return {
            "file": log.file,
            "engine": log.engine,
            "version": log.version,
            "start_up": log.run,
            "start_ups": log.runs,
            "complete": log.complete,
            "found": log.found(),
            "lines": dict(log.lines),
            "overrides": self.overrides,
            "comparison": rows,
            "warnings": [*self.warnings, *log.contradictions],
            "notes": [*self.notes, *log.notes],
        }

    def tell(self, budget: MemoryBudget, *, shape: Format) -> None:
        """The comparison where people read, and on stderr what came from where and where the log disagrees."""
        rows = [row.row() for row in self._compared(budget)]
        if rows and shape in (Format.table, Format.md):
            typer.echo("")
            emit_rows(rows, _HEADER, shape)
        for warning in (*self.warnings, *self.log.contradictions):
            note(f"warning: {warning}")
        for remark in (*self.notes, *self.log.notes):
            note(f"log: {remark}")
        for name, value in self.overrides.items():
            note(f"from the log: {name} = {_shown(name, value)}{self._line(name)}")

    def _tell_of_tokens(self) -> None:
        log = self.log
        if log.engine == "vllm" and log.kv_tokens is not None:
            line, tokens = log.lines["kv_tokens"], f"{log.kv_tokens:,.0f}"
            self.notes.append(f"line {line}: {tokens} tokens are a worst case, no capacity of this model: not taken")

    def _line(self, name: str) -> str:
        if name == "graph_bytes" and self.log.engine == "vllm":
            name = "graph_bytes_deducted"
        if name == "other_bytes" and name not in self.log.lines:
            name = "free_before_weights_bytes"
        if name == "kv_capacity_tokens" and self.log.kv_tokens is None:
            name = "num_gpu_blocks"
        line = self.log.lines.get(_LINES.get(name, name))
        return "" if line is None else f" (line {line})"

    def _compared(self, budget: MemoryBudget) -> list[Any]:
        assert self.model is not None
        assert self.computed is not None
        return compared(self.log, self.model, self.computed, budget, unified_pages=self.options["unified_pages"])


_HEADER = ("logged beside computed", "logged", "computed", "difference")


def read(file: str, engine: str | None, sizes: dict[str, int], given: set[str], options: dict[str, Any]) -> FromLog:
    """Read a log and fill in the options that were not given.

    Parameters
    ----------
    file : the log
    engine : as the user named it, None where nobody did
    sizes : tp, pp, dp and dcp
    given : names of those the user gave
    options : of :func:`~capplan.serving.memory.memory`; a ``kv_dtype`` of None is the log's
    """
    log = read_engine_log(file)
    name = engine_for(log, engine)
    notes = [] if log.version or engine else [f"no version of {log.engine} in it: numbers of the newest"]
    taken = {size: getattr(log, size) for size in sizes if size not in given and getattr(log, size) is not None}
    notes += [f"{size} {value} (line {log.lines[size]})" for size, value in taken.items() if value != sizes[size]]
    if options["kv_dtype"] is None and (kv_dtype := kv_dtype_of(log, load_engine(name))) is not None:
        options = {**options, "kv_dtype": kv_dtype}
        notes.append(f"KV cache in {kv_dtype} (line {log.lines['kv_dtype']})")
    return FromLog(log, name, {**sizes, **taken}, options, notes)


def _without(overrides: Mapping[str, float], given: Mapping[str, float]) -> dict[str, float]:
    """Overrides of the log that the user did not replace."""
    replaced = set(given) | (_POOL if _POOL & given.keys() else set())
    return {name: value for name, value in overrides.items() if name not in replaced}


def _shown(name: str, value: float) -> str:
    return format_bytes(value) if name.endswith("_bytes") else f"{value:,.6g}"
