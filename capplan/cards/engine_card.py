"""Engine cards: reading one range of versions of a card file into an :class:`~capplan.cards.engine.Engine`.

What a file may hold is said by :mod:`capplan.cards.engine_schema`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from capplan.cards.card_numbers import built_card, card_aliases, card_band, in_base_units, whole
from capplan.cards.engine import ENGINE_BAND_KINDS, BatchDefaults, CalibratedFor, Engine, StaticReserve
from capplan.cards.number import Sources
from capplan.cards.store import card_names, find_card
from capplan.errors import InputError, UnitError
from capplan.quantities import units

SCHEMA = "capplan.engine/1"

_PURE: Mapping[str, float] = {"1": 1.0}
_COUNTS = ("block_tokens", "mxfp4_hidden_multiple", "mxfp4_inner_multiple")
_OPTIONAL = ("memory_fraction",)
_ABOVE_ZERO = ("kernel_time_factor", "context_attention_factor", "fp8_kv_share")
_NUMBERS = (
    "memory_fraction",
    "block_tokens",
    "activation_bytes_per_logit",
    "activation_hidden_widths",
    "activation_inner_widths",
    "mla_workspace_tokens",
    "mxfp4_hidden_multiple",
    "mxfp4_inner_multiple",
    "graph_bytes",
    "other_bytes",
    "other_bytes_parallel",
    "other_bytes_pipeline",
    "watermark_share",
    "layer_overhead_seconds",
    "step_gap_seconds",
    "sequence_overhead_seconds",
    "kernel_time_factor",
    "context_attention_factor",
    "fp8_kv_share",
    "ttft_base_seconds",
    "ttft_sqrt_factor",
    "ttft_linear_factor",
)
"""Constants a card has for all versions or for a range, which wins."""


def engine_card_schema() -> dict[str, Any]:
    """The JSON Schema of an engine card."""
    from capplan.cards.engine_schema import engine_card_schema as schema

    return schema()


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
    shipped = name.lower() in card_names("engines")
    path = find_card("engines", name, None if shipped else card_aliases("engines"))
    stamp = path.stat()
    return _read(path, version, stamp.st_mtime_ns)


def _exists(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


@cache
def _read(path: Path, version: str, _stamp: int) -> Engine:
    return built_card("engines", path, partial(_from_data, version=version, file=str(path)), _validated)


def _validated(data: dict[str, Any], file: str) -> dict[str, Any]:
    from capplan.cards.engine_schema import validated

    card = validated(data, file)
    _check_ranges(card)
    return card


def _from_data(data: Mapping[str, Any], version: str, file: str) -> Engine:
    values = {key: value for key, value in data.items() if value is not None}
    if values.pop("schema") != SCHEMA:
        raise ValueError("another schema")
    part = _range_of(values.pop("versions"), version, values["name"])
    merged = {**values.pop("numbers"), **part["numbers"]}
    values["batch_defaults"] = part.get("batch_defaults") or values["batch_defaults"]
    return _engine(file, range_text(part), Sources({**values, **merged}), merged, **values)


def _range_of(parts: list[dict[str, Any]], version: str, name: str) -> dict[str, Any]:
    if not version:
        return max(parts, key=lambda part: _key(part["since"]))
    asked = _key(version)
    for part in parts:
        if _key(part["since"]) <= asked and (part.get("until") is None or asked < _key(part["until"])):
            return part
    covered = ", ".join(range_text(part) for part in parts)
    raise InputError(f"no range of {name} holds version {version[:20]!r}; covered: {covered}", key="versions")


def _key(version: str) -> tuple[int, ...]:
    match = re.fullmatch(r"v?(\d{1,6}(?:\.\d{1,6}){0,3})(?:[a-z.+-].*)?", version.strip(), re.ASCII)
    if match is None:
        raise InputError(f"{version[:20]!r} is no version; write for example 0.11", key="version")
    return tuple(int(part) for part in match[1].split("."))


def range_text(part: Mapping[str, Any]) -> str:
    """The versions of a range, as an engine says them."""
    until = part.get("until")
    return f"{part['since']} and later" if until is None else f"{part['since']} until before {until}"


def _engine(
    file: str,
    version: str,
    sources: Sources,
    numbers: Mapping[str, Any],
    *,
    name: str,
    title: str,
    memory_formula: Any,
    scheduler_policy: Any,
    ttft_order: list[Any],
    ttft_order_aggregated: list[Any],
    documents: dict[str, str],  # noqa: ARG001 (sources of what is no number, for the readers of a card)
    batch_defaults: list[dict[str, Any]],
    static_reserve: dict[str, Any] | None = None,
    aliases: list[str] | None = None,
    flags: dict[str, str] | None = None,
    kv_dtypes: dict[str, str] | None = None,
    sparse_latent_kv: dict[str, str] | None = None,
    calibrated_for: dict[str, str] | None = None,
    bands: dict[str, Any] | None = None,
) -> Engine:
    return Engine(
        name=name,
        title=title,
        version=version,
        memory_formula=memory_formula,
        scheduler_policy=scheduler_policy,
        ttft_order=tuple(ttft_order),
        ttft_order_aggregated=tuple(ttft_order_aggregated),
        batch_defaults=_tiers(batch_defaults),
        static_reserve=None if static_reserve is None else _static_reserve(static_reserve),
        flags=dict(flags or {}),
        kv_dtypes=dict(kv_dtypes or {}),
        sparse_latent_kv=dict(sparse_latent_kv or {}),
        calibrated_for=None if calibrated_for is None else CalibratedFor(**calibrated_for),
        bands=_bands(bands or {}, calibrated_for),
        aliases=tuple(aliases or ()),
        sources=sources,
        file=file,
        **_constants(numbers),
    )


def _bands(bands: Mapping[str, Any], calibrated_for: Any) -> dict[str, Any]:
    if unknown := bands.keys() - set(ENGINE_BAND_KINDS):
        raise KeyError(*unknown)
    if bands and calibrated_for is None:
        raise InputError("must say whose runs gave the bands", key="calibrated_for")
    return {kind: card_band(f"bands.{kind}", **ends) for kind, ends in bands.items()}


def _constants(numbers: Mapping[str, Any]) -> dict[str, Any]:
    constants: dict[str, Any] = dict.fromkeys(_OPTIONAL)
    if unknown := numbers.keys() - set(_NUMBERS):
        raise KeyError(*unknown)
    for name in _NUMBERS:
        if numbers.get(name) is not None:
            constants[name] = _constant(name, numbers[name])
        elif name not in _OPTIONAL:
            raise InputError("is missing for this range of versions", key=f"numbers.{name}")
    if (fraction := constants["memory_fraction"]) is not None and not 0 < fraction <= 1:
        raise UnitError(f"{fraction:g} must be above 0 and at most 1", key="numbers.memory_fraction")
    return constants


def _constant(name: str, number: Mapping[str, Any], place: str = "numbers") -> float:
    if name in _COUNTS:
        return whole(number, f"{place}.{name}")
    return in_base_units(number, _units_of(name), f"{place}.{name}", least=None if name in _ABOVE_ZERO else 0.0)


def _check_ranges(card: Mapping[str, Any]) -> None:
    """Every number of the card, those of version ranges nobody asked for included."""
    places = {"": card, **{f"versions.{index}.": part for index, part in enumerate(card["versions"])}}
    for place, part in places.items():
        for name, number in part["numbers"].items():
            _constant(name, number, f"{place}numbers")
        _tiers(part.get("batch_defaults") or [], f"{place}batch_defaults")


def _units_of(name: str) -> Mapping[str, float]:
    if name.endswith("_seconds"):
        return units.SECONDS
    return units.BYTES if "bytes" in name else _PURE


def _static_reserve(card: Mapping[str, Any]) -> StaticReserve:
    return StaticReserve(
        **{
            name: in_base_units(number, units.BYTES, f"static_reserve.{name}", least=0.0)
            for name, number in card.items()
        }
    )


def _tiers(cards: list[dict[str, Any]], place: str = "batch_defaults") -> tuple[BatchDefaults, ...]:
    tiers = [_tier(f"{place}.{index}", **tier) for index, tier in enumerate(cards)]
    return tuple(sorted(tiers, key=lambda tier: -tier.hbm_bytes_at_least))


def _tier(
    key: str,
    *,
    hbm_bytes_at_least: Any,
    max_batched_tokens: Any,
    max_sequences: Any,
    graph_sequences: Any,
    graph_sequences_wide: Any,
    not_for: list[str] | None = None,
) -> BatchDefaults:
    return BatchDefaults(
        hbm_bytes_at_least=in_base_units(hbm_bytes_at_least, units.BYTES, f"{key}.hbm_bytes_at_least", least=0.0),
        max_batched_tokens=whole(max_batched_tokens, f"{key}.max_batched_tokens"),
        max_sequences=whole(max_sequences, f"{key}.max_sequences"),
        graph_sequences=whole(graph_sequences, f"{key}.graph_sequences"),
        graph_sequences_wide=whole(graph_sequences_wide, f"{key}.graph_sequences_wide"),
        not_for=tuple(not_for or ()),
    )
