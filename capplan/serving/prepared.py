"""From the arguments of a step function to a plan that is built once and kept."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any

from capplan.cards.engine import Engine
from capplan.cards.hardware import Hardware, Kernels
from capplan.cards.model import Model
from capplan.errors import InputError, shown
from capplan.quantities.chain import Chain
from capplan.serving.idle_constants import idle_constants
from capplan.serving.kernel_plan import build_plan
from capplan.serving.layout import Layout, check_heads, check_types
from capplan.serving.step_plan import StepPlan

_KEPT = 256
_KERNELS = frozenset(constant.name for constant in fields(Kernels))
_OF_ENGINE = (
    "kernel_time_factor",
    "layer_overhead_seconds",
    "step_gap_seconds",
    "sequence_overhead_seconds",
    "context_attention_factor",
    "fp8_kv_share",
)
"""Engine constants of the time of a pass."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """The plan of a pass, and of a draft of one token where the model has layers for it."""

    plan: StepPlan
    model: Model
    """In the formats of the plan."""
    hardware: Hardware
    kv_dtype: str | None
    engine: Engine | None
    """Whose gaps the plan has; None for bare kernels."""
    arguments: tuple[object, ...]
    """Kept alive, so that their identities stay theirs as long as the plan is cached."""

    @cached_property
    def draft(self) -> StepPlan | None:
        """The plan of a draft; None where the model has no layers for it.

        An engine runs it as it runs the step, of which it is a part: without a gap and a sequence overhead of its own.
        """
        if not self.model.mtp_layers:
            return None
        layout, engine = replace(self.plan.layout, pp=1), self.engine
        inside = engine and replace(engine, step_gap_seconds=0.0, sequence_overhead_seconds=0.0)
        return build_plan(self.model, self.model.mtp_layers, self.hardware, layout, self.kv_dtype, inside)

    @cached_property
    def decode_kind(self) -> str:
        """Which error band a decode step has, one of :data:`capplan.cards.hardware.BAND_KINDS`."""
        return decode_kind(self.model, self.engine)


def decode_kind(model: Model, engine: Engine | None) -> str:
    """Which error band a decode step has: that of bare kernels, of dense models or of mixtures of experts."""
    if engine is None:
        return "decode_kernels"
    return "decode_mixture" if model.is_mixture else "decode_dense"


_plans: OrderedDict[tuple[Any, ...], Prepared] = OrderedDict()


def prepare(
    model: Model,
    hardware: Hardware,
    layout: Layout,
    weight_dtype: str | None,
    kv_dtype: str | None,
    engine: Engine | str | None,
    chain: Chain | None,
) -> Prepared:
    """The plan for these arguments, from the cache where they were used before.

    Raises
    ------
    InputError : an argument of another type; a format, cache type or engine nobody knows
    """
    if chain is not None:
        hardware = _with_overrides(model, hardware, layout, (weight_dtype, kv_dtype), engine, chain)
        engine = _engine_with_overrides(engine, chain)
    for name, value in (("weight_dtype", weight_dtype), ("kv_dtype", kv_dtype)):
        if value is not None and type(value) is not str:
            raise InputError(f"{shown(value)} must be the name of a format, or None for the checkpoint's", key=name)
    if type(layout) is not Layout:
        check_types(model, hardware, layout)
    key = (id(model), id(hardware), layout, weight_dtype, kv_dtype, engine if type(engine) is str else id(engine))
    found = _plans.get(key)
    if found is None:
        found = _plans[key] = _build(model, hardware, layout, weight_dtype, kv_dtype, engine)
        if len(_plans) > _KEPT:
            _plans.popitem(last=False)
    return found


def _build(
    model: Model,
    hardware: Hardware,
    layout: Layout,
    weight_dtype: str | None,
    kv_dtype: str | None,
    engine: Engine | str | None,
) -> Prepared:
    check_types(model, hardware, layout)
    check_heads(model, layout)
    card = _engine(engine)
    formatted = model if weight_dtype is None else model.with_weight_dtype(weight_dtype)
    plan = build_plan(formatted, formatted.layers, hardware, layout, kv_dtype, card)
    return Prepared(plan, formatted, hardware, kv_dtype, card, (model, engine))


def _engine(engine: Engine | str | None) -> Engine | None:
    """The engine card; None where the step is to be bare kernels."""
    if engine is None or (isinstance(engine, str) and engine == "none"):
        return None
    if isinstance(engine, str):
        from capplan.cards.engine_card import load_engine

        engine = load_engine(engine)
    if not isinstance(engine, Engine):
        raise InputError(f"must be an engine card or its name, not {type(engine).__name__}", key="engine")
    return None if engine.name == "none" else engine


def _with_overrides(
    model: Model,
    hardware: Hardware,
    layout: Layout,
    formats: tuple[str | None, str | None],
    engine: Engine | str | None,
    chain: Chain,
) -> Hardware:
    """The GPU with the kernel constants of the chain, which records those in use and where each comes from."""
    if not chain.record and _KERNELS.isdisjoint(chain.overrides):
        return hardware
    check_types(model, hardware, layout)
    weight_dtype, kv_dtype = formats
    formatted = model if weight_dtype is None else model.with_weight_dtype(weight_dtype)
    bare = _engine(engine) is None
    idle = idle_constants(formatted, hardware, layout, kv_dtype or model.kv_dtype, bare=bare)
    changed = {}
    for name in sorted(_KERNELS - idle):
        own = getattr(hardware.kernels, name)
        number = hardware.sources.get(f"kernels.{name}")
        source = f"hardware card {hardware.name}" if number is None else number.source
        value = chain.given(name, own, source, assumed=number is not None and number.kind == "assumed")
        if value != own:
            changed[name] = value
    return _replaced(hardware, tuple(changed.items())) if changed else hardware


def _engine_with_overrides(engine: Engine | str | None, chain: Chain) -> Engine | str | None:
    """The engine with the constants of the chain, which records them and where each comes from."""
    if not chain.record and chain.overrides.keys().isdisjoint(_OF_ENGINE):
        return engine
    card = _engine(engine)
    if card is None:
        return engine
    changed = {}
    for name in _OF_ENGINE:
        own, number = getattr(card, name), card.sources.get(name)
        value = chain.given(name, own, f"engine card {card.name}" if number is None else number.source)
        if value != own:
            changed[name] = value
    return _engine_replaced(card, tuple(changed.items())) if changed else card


@lru_cache(maxsize=64)
def _engine_replaced(engine: Engine, changed: tuple[tuple[str, float], ...]) -> Engine:
    return replace(engine, **dict(changed))  # type: ignore[arg-type]


@lru_cache(maxsize=64)
def _replaced(hardware: Hardware, changed: tuple[tuple[str, float], ...]) -> Hardware:
    return replace(hardware, kernels=replace(hardware.kernels, **dict(changed)))
