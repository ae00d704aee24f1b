"""Engine cards: the schema of a card file, and reading one range of versions into an :class:`Engine`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from capplan.cards.card_numbers import card_aliases, in_base_units, numbers_of, whole
from capplan.cards.engine import BatchDefaults, Engine, MemoryFormula, SchedulerPolicy, StaticReserve, TtftEvent
from capplan.cards.number import Number
from capplan.cards.store import find_card, read_json
from capplan.cards.validation import one_line
from capplan.errors import InputError, UnitError
from capplan.quantities import units

SCHEMA = "capplan.engine/1"

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)
_VERSION = re.compile(r"v?(\d{1,6}(?:\.\d{1,6}){0,3})(?:[a-z.+-].*)?", re.ASCII)
_Version = Annotated[str, Field(pattern=r"^\d{1,6}(\.\d{1,6}){0,3}$")]
_PURE: Mapping[str, float] = {"1": 1.0}
_COUNTS = ("block_tokens", "mxfp4_hidden_multiple", "mxfp4_inner_multiple")
_OPTIONAL = ("memory_fraction",)


class EngineNumbers(BaseModel):
    """Sourced constants; a card has those of all versions and those of a range, which win."""

    model_config = _STRICT

    memory_fraction: Number | None = None
    block_tokens: Number | None = None
    activation_bytes_per_logit: Number | None = None
    activation_hidden_widths: Number | None = None
    activation_inner_widths: Number | None = None
    mla_workspace_tokens: Number | None = None
    mxfp4_hidden_multiple: Number | None = None
    mxfp4_inner_multiple: Number | None = None
    graph_bytes: Number | None = None
    other_bytes: Number | None = None
    other_bytes_parallel: Number | None = None
    other_bytes_pipeline: Number | None = None
    watermark_share: Number | None = None
    layer_overhead_seconds: Number | None = None
    step_gap_seconds: Number | None = None
    sequence_overhead_seconds: Number | None = None
    all_reduce_floor_seconds: Number | None = None
    all_reduce_floor_per_gpu_seconds: Number | None = None
    ttft_base_seconds: Number | None = None
    ttft_sqrt_factor: Number | None = None
    ttft_linear_factor: Number | None = None


class BatchDefaultsCard(BaseModel):
    """Batch limits on GPUs of at least some memory."""

    model_config = _STRICT

    hbm_bytes_at_least: Number
    max_batched_tokens: Number
    max_sequences: Number
    graph_sequences: Number
    graph_sequences_wide: Number
    not_for: list[str] = Field(default_factory=list, max_length=40)


class StaticReserveCard(BaseModel):
    """The terms of the memory an engine keeps free."""

    model_config = _STRICT

    base_bytes: Number
    bytes_per_batched_token: Number
    bytes_per_graph_sequence: Number
    bytes_per_gpu: Number
    bytes_per_graph_sequence_and_dp_rank: Number
    least_bytes: Number
    least_bytes_from_hbm_bytes: Number


class VersionRange(BaseModel):
    """Constants from one version until before another; ``until`` is absent on the newest range."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    since: _Version
    until: _Version | None = None
    numbers: EngineNumbers
    batch_defaults: list[BatchDefaultsCard] | None = Field(default=None, min_length=1, max_length=20)
    """In place of those of the card."""


class EngineCard(BaseModel):
    """One serving engine over its versions, every number with its unit, source and kind."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, title="capplan engine card")

    schema_id: Literal["capplan.engine/1"] = Field(alias="schema")
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,39}$")
    title: str = Field(min_length=1, max_length=80)
    aliases: list[str] = Field(default_factory=list, max_length=20)
    memory_formula: MemoryFormula
    scheduler_policy: SchedulerPolicy
    ttft_order: list[TtftEvent] = Field(min_length=1, max_length=10)
    ttft_order_aggregated: list[TtftEvent] = Field(min_length=1, max_length=10)
    flags: dict[str, str] = Field(default_factory=dict, max_length=60)
    kv_dtypes: dict[str, str] = Field(default_factory=dict, max_length=60)
    documents: dict[str, str] = Field(max_length=60)
    """Source of each field that is no number."""
    batch_defaults: list[BatchDefaultsCard] = Field(min_length=1, max_length=20)
    static_reserve: StaticReserveCard | None = None
    numbers: EngineNumbers
    versions: list[VersionRange] = Field(min_length=1, max_length=50)


def engine_card_schema() -> dict[str, Any]:
    """The JSON Schema of an engine card."""
    return EngineCard.model_json_schema(by_alias=True)


def load_engine(name_or_path: str | Path) -> Engine:
    """Read an engine card: ``vllm``, ``vllm@0.11`` for the range of versions that holds 0.11, or a card file.

    Parameters
    ----------
    name_or_path : card name or file, with ``@version`` or without (the newest range)

    Returns
    -------
    engine : constants of that range of versions in base units, with the source of each

    Raises
    ------
    InputError : the file is no valid card, or no range holds the version; UnknownNameError : no such card or file

    Examples
    --------
    >>> load_engine("vllm@0.11").memory_fraction, load_engine("none").step_gap_seconds
    (0.9, 0.0)
    """
    text = str(name_or_path)
    name, _, version = text.rpartition("@") if "@" in text and not _exists(text) else (text, "", "")
    path = find_card("engines", name, card_aliases("engines"))
    stamp = path.stat()
    return _read(path, version, stamp.st_mtime_ns)


def _exists(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


@cache
def _read(path: Path, version: str, _stamp: int) -> Engine:
    try:
        card = EngineCard.model_validate(read_json(path))
    except ValidationError as error:
        raise one_line(error, str(path), EngineCard) from None
    try:
        return _engine(card, _range_of(card, version), str(path))
    except InputError as error:
        raise error.located(file=str(path)) from None


def _range_of(card: EngineCard, version: str) -> VersionRange:
    if not version:
        return max(card.versions, key=lambda part: _key(part.since))
    asked = _key(version)
    for part in card.versions:
        if _key(part.since) <= asked and (part.until is None or asked < _key(part.until)):
            return part
    covered = ", ".join(_range_text(part) for part in card.versions)
    raise InputError(f"no range of {card.name} holds version {version[:20]!r}; covered: {covered}", key="versions")


def _key(version: str) -> tuple[int, ...]:
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        raise InputError(f"{version[:20]!r} is no version; write for example 0.11", key="version")
    return tuple(int(part) for part in match[1].split("."))


def _range_text(part: VersionRange) -> str:
    return f"{part.since} and later" if part.until is None else f"{part.since} until before {part.until}"


def _engine(card: EngineCard, part: VersionRange, file: str) -> Engine:
    merged = {**dict(_given(card.numbers)), **dict(_given(part.numbers))}
    reserve = card.static_reserve
    return Engine(
        name=card.name,
        title=card.title,
        version=_range_text(part),
        memory_formula=card.memory_formula,
        scheduler_policy=card.scheduler_policy,
        ttft_order=tuple(card.ttft_order),
        ttft_order_aggregated=tuple(card.ttft_order_aggregated),
        batch_defaults=_tiers(part.batch_defaults or card.batch_defaults),
        static_reserve=None if reserve is None else StaticReserve(**_plain(reserve, "static_reserve")),
        flags=dict(card.flags),
        kv_dtypes=dict(card.kv_dtypes),
        aliases=tuple(card.aliases),
        sources=_sources(card, part, merged),
        file=file,
        **_constants(merged),
    )


def _sources(card: EngineCard, part: VersionRange, merged: Mapping[str, Number]) -> dict[str, Number]:
    beside = {"numbers": None, "versions": None, "batch_defaults": part.batch_defaults or card.batch_defaults}
    return {**dict(numbers_of(card.model_copy(update=beside))), **merged}


def _given(numbers: EngineNumbers) -> list[tuple[str, Number]]:
    return [(name, number) for name, number in numbers if number is not None]


def _constants(merged: Mapping[str, Number]) -> dict[str, Any]:
    constants: dict[str, Any] = dict.fromkeys(_OPTIONAL)
    for name in EngineNumbers.model_fields:
        if name in merged:
            constants[name] = _constant(name, merged[name])
        elif name not in _OPTIONAL:
            raise InputError("is missing for this range of versions", key=f"numbers.{name}")
    if (fraction := constants["memory_fraction"]) is not None and not 0 < fraction <= 1:
        raise UnitError(f"{fraction:g} must be above 0 and at most 1", key="numbers.memory_fraction")
    return constants


def _constant(name: str, number: Number) -> float:
    if name in _COUNTS:
        return whole(number, f"numbers.{name}")
    return in_base_units(number, _units_of(name), f"numbers.{name}", least=0.0)


def _units_of(name: str) -> Mapping[str, float]:
    if name.endswith("_seconds"):
        return units.SECONDS
    return units.BYTES if "bytes" in name else _PURE


def _plain(card: BaseModel, key: str) -> dict[str, float]:
    return {name: in_base_units(number, units.BYTES, f"{key}.{name}", least=0.0) for name, number in card}


def _tiers(cards: list[BatchDefaultsCard]) -> tuple[BatchDefaults, ...]:
    tiers = [_tier(tier, f"batch_defaults.{index}") for index, tier in enumerate(cards)]
    return tuple(sorted(tiers, key=lambda tier: -tier.hbm_bytes_at_least))


def _tier(card: BatchDefaultsCard, key: str) -> BatchDefaults:
    return BatchDefaults(
        hbm_bytes_at_least=in_base_units(card.hbm_bytes_at_least, units.BYTES, f"{key}.hbm_bytes_at_least", least=0.0),
        max_batched_tokens=whole(card.max_batched_tokens, f"{key}.max_batched_tokens"),
        max_sequences=whole(card.max_sequences, f"{key}.max_sequences"),
        graph_sequences=whole(card.graph_sequences, f"{key}.graph_sequences"),
        graph_sequences_wide=whole(card.graph_sequences_wide, f"{key}.graph_sequences_wide"),
        not_for=tuple(card.not_for),
    )
