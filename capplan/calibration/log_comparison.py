"""A start-up log beside the command line and beside the computed budget."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from capplan.calibration.engine_log import EngineLog, tokens_are_capacity
from capplan.cards.engine import Engine
from capplan.cards.engine_card import load_engine
from capplan.cards.hardware import Hardware
from capplan.cards.kv import kv_width_bytes
from capplan.cards.model import Model
from capplan.errors import InputError, UnknownNameError
from capplan.quantities.units import format_bytes
from capplan.serving.layout import Layout
from capplan.serving.memory_budget import MemoryBudget

_SAME_MEMORY = 0.02
"""Drivers reserve up to this share of a GPU's memory."""
_KV_SPELLINGS = {"bfloat16": "bf16", "torch.bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32"}


@dataclass(frozen=True)
class Compared:
    """One number of the log beside ours; None is what one of them does not say."""

    name: str
    title: str
    logged: float
    computed: float | None

    @property
    def difference(self) -> float | None:
        """Computed over logged less one; None where the log says zero."""
        return None if self.computed is None or not self.logged else self.computed / self.logged - 1.0

    def row(self) -> list[str]:
        """Title, logged, computed and their difference, to be read."""
        difference = "" if self.difference is None else f"{self.difference:+.1%}"
        return [self.title, self._shown(self.logged), self._shown(self.computed), difference]

    def _shown(self, value: float | None) -> str:
        if value is None:
            return ""
        if self.name.endswith("_bytes"):
            return format_bytes(value)
        return f"{value:,.0f}" if self.name.endswith("_tokens") else f"{value:,.2f}"


def engine_for(log: EngineLog, asked: str | None) -> str:
    """The engine card, with its version, for the numbers a log does not say.

    Parameters
    ----------
    log : of one start-up
    asked : the engine the user named, None where nobody did

    Returns
    -------
    name : as :func:`~capplan.cards.engine_card.load_engine` takes it

    Raises
    ------
    InputError : the user named another engine or a version of another range, or no range holds the log's version
    """
    logged = log.engine if log.version is None else f"{log.engine}@{log.version}"
    if asked is None:
        return _covered(logged, log)
    loaded = load_engine(asked)
    if loaded.name != log.engine:
        raise InputError(f"{asked!r} but {log.file} is a log of {logged}; drop one of them", key="--engine")
    if not asked.rpartition("@")[0]:
        return _covered(logged, log)
    if log.version is not None and (covered := _range(logged)) and covered.version != loaded.version:
        told = f"line {log.lines['version']} of {log.file} says {log.version} ({covered.version})"
        raise InputError(f"{asked!r} ({loaded.version}) but {told}; drop one of them", key="--engine")
    return asked


def _covered(logged: str, log: EngineLog) -> str:
    try:
        load_engine(logged)
    except InputError as error:
        line = f"line {log.lines['version']}"
        raise InputError(f"{error.problem}; name one with --engine {log.engine}@", file=log.file, key=line) from None
    return logged


def _range(logged: str) -> Engine | None:
    try:
        return load_engine(logged)
    except InputError:
        return None


def kv_dtype_of(log: EngineLog, engine: Engine) -> str | None:
    """The KV element type of the log as capplan spells it; None where it is the checkpoint's.

    Raises
    ------
    InputError : a type nobody here knows
    """
    if log.kv_dtype in (None, "auto"):
        return None
    spelled = {theirs: ours for ours, theirs in engine.kv_dtypes.items() if theirs != "auto"}
    name = spelled.get(log.kv_dtype) or _KV_SPELLINGS.get(log.kv_dtype, log.kv_dtype)
    try:
        kv_width_bytes(name)
    except UnknownNameError:
        line = f"line {log.lines['kv_dtype']}"
        problem = f"KV cache of unknown type {log.kv_dtype[:40]!r}; give --kv-dtype"
        raise InputError(problem, file=log.file, key=line) from None
    return name


def conflicts(
    log: EngineLog, model: Model, hardware: Hardware, layout: Layout, kv_dtype: str | None, given: Mapping[str, float]
) -> list[str]:
    """Where a log contradicts the command line.

    Parameters
    ----------
    log : of one start-up
    model, hardware, layout, kv_dtype : of the command line; ``kv_dtype`` None is the checkpoint's
    given : overrides of the user, by quantity name

    Returns
    -------
    warnings : one line each, naming the log's line
    """
    return [
        *_other_model(log, model),
        *_other_layout(log, layout),
        *_other_cache(log, model, kv_dtype),
        *_other_numbers(log, hardware, given),
    ]


def _other_model(log: EngineLog, model: Model) -> Iterator[str]:
    if log.model is None:
        return
    logged = _plain(log.model)
    if not (_plain(model.name) in logged or logged in map(_plain, model.aliases)):
        yield f"line {log.lines['model']}: the log is of model {log.model[:80]!r}, the command line of {model.name!r}"


def _plain(name: str) -> str:
    """A model's name without owner, folders and punctuation."""
    return re.sub(r"[^a-z0-9]", "", name.lower().rstrip("/").rpartition("/")[2])


def _other_layout(log: EngineLog, layout: Layout) -> Iterator[str]:
    for name in ("tp", "pp", "dp", "dcp"):
        size, asked = getattr(log, name), getattr(layout, name)
        if size is not None and size != asked:
            yield f"line {log.lines[name]}: the log says {name} {size}, the command line {asked}"
    if log.gpus is not None and log.gpus != layout.gpus:
        yield f"line {log.lines['gpus']}: the log says {log.gpus} GPUs, the command line {layout.gpus}"


def _other_cache(log: EngineLog, model: Model, kv_dtype: str | None) -> Iterator[str]:
    if log.kv_dtype is None or kv_dtype is None:
        return
    logged = model.kv_dtype if log.kv_dtype == "auto" else log.kv_dtype
    if _plain_dtype(logged) != _plain_dtype(kv_dtype):
        told = f"auto ({logged})" if log.kv_dtype == "auto" else logged
        yield f"line {log.lines['kv_dtype']}: the log says KV cache in {told}, the command line {kv_dtype}"


def _other_numbers(log: EngineLog, hardware: Hardware, given: Mapping[str, float]) -> Iterator[str]:
    if log.hbm_bytes is not None and abs(log.hbm_bytes / hardware.hbm_bytes - 1.0) > _SAME_MEMORY:
        sizes = f"{format_bytes(log.hbm_bytes)}, {hardware.name} has {format_bytes(hardware.hbm_bytes)}"
        yield f"line {log.lines['hbm_bytes']}: the GPU of the log has {sizes}"
    if (free := log.free_before_weights_bytes) is not None and free > hardware.hbm_bytes:
        line = log.lines["free_before_weights_bytes"]
        yield f"line {line}: {format_bytes(free)} were free, more than {hardware.name} has"
    for name, value in log.settings().items():
        if name in given and given[name] != value:
            yield f"{name}: the log says {value:g}, the command line {given[name]:g}, which counts"


def _plain_dtype(name: str) -> str:
    spelled = _KV_SPELLINGS.get(name, name)
    return "fp8" if spelled in ("fp8", "fp8_e4m3") else spelled


def compared(
    log: EngineLog, model: Model, computed: MemoryBudget, final: MemoryBudget, *, unified_pages: bool = False
) -> list[Compared]:
    """Numbers of the log beside those of the cards.

    Parameters
    ----------
    log : of one start-up
    model : whose cache it is
    computed : the budget with the settings of the log, but nothing the engine measured
    final : the budget with everything of the log
    unified_pages : sliding-window layers keep all tokens

    Returns
    -------
    rows : weights, activation peak, CUDA graphs, libraries, pool and its tokens; then what the logged pool holds
        by our bytes a token, beside what the engine says it holds
    """
    hybrid = not tokens_are_capacity(model, unified_pages=unified_pages)
    pairs = (
        ("hbm_bytes", "memory of the GPU", log.hbm_bytes, computed.hbm_bytes),
        ("weights_bytes", "weights", log.weights_bytes, computed.weights_bytes),
        ("activation_peak_bytes", "activation peak", log.activation_peak_bytes, computed.activation_peak_bytes),
        ("other_bytes", "CUDA context, libraries", log.other_bytes, computed.other_bytes),
        ("graph_bytes", *_graphs(log, computed)),
        ("kv_pool_bytes", "KV pool", log.kv_pool_bytes, computed.kv_pool_bytes or -computed.missing_bytes),
        ("kv_capacity_tokens", "KV capacity", None if hybrid else log.kv_tokens, computed.capacity_tokens),
        ("logged_pool_capacity_tokens", "KV capacity of the logged pool", *_held(log, final, hybrid=hybrid)),
        ("worst_case_sequences", "worst case, logged pool", log.max_concurrency, _worst_case(log, final)),
    )
    return [Compared(name, title, said, ours) for name, title, said, ours in pairs if said is not None]


def _graphs(log: EngineLog, computed: MemoryBudget) -> tuple[str, float | None, float | None]:
    """CUDA graphs as they count in the budget; where vLLM captures them after it sized the cache they do not."""
    if log.engine == "vllm" and log.graph_bytes_deducted is None:
        return "CUDA graphs (not deducted)", log.graph_bytes, None
    return "CUDA graphs", log.graph_bytes_deducted or log.graph_bytes, computed.graph_bytes


def _held(log: EngineLog, final: MemoryBudget, *, hybrid: bool) -> tuple[float | None, float | None]:
    if hybrid or log.kv_tokens is None or final.capacity_tokens is None:
        return None, None
    return log.kv_tokens, final.kv_pool_bytes / final.kv_bytes_per_token


def _worst_case(log: EngineLog, final: MemoryBudget) -> float | None:
    if not log.concurrency_tokens or final.kv_pool_bytes <= 0:
        return None
    return float(final.worst_case_sequences(log.concurrency_tokens))
