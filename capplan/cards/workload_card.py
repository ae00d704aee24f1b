"""Workload cards: the schema of a card file, and reading a card or a trace into a :class:`Workload`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from capplan.cards.number import Kind, Number
from capplan.cards.store import find_card, read_json
from capplan.cards.trace import is_trace, load_trace
from capplan.cards.validation import one_line
from capplan.cards.workload import RequestClass, Workload
from capplan.errors import InputError, UnitError, UnknownNameError
from capplan.formulas.length_law import LengthLaw
from capplan.formulas.length_laws import (
    Empirical,
    Exponential,
    Fixed,
    Gamma,
    Histogram,
    LogNormal,
    Mixture,
    Pareto,
    Uniform,
    as_length_law,
)
from capplan.quantities.units import parse_tokens

SCHEMA = "capplan.workload/1"

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)
_Text = Field(min_length=1, max_length=2000)
_LAWS: Mapping[str, tuple[type[LengthLaw], tuple[str, ...]]] = {
    "fixed": (Fixed, ("tokens",)),
    "uniform": (Uniform, ("low", "high", "max")),
    "exponential": (Exponential, ("mean", "max")),
    "lognormal": (LogNormal, ("mean", "cv", "max")),
    "gamma": (Gamma, ("mean", "cv", "max")),
    "pareto": (Pareto, ("minimum", "alpha", "max")),
    "empirical": (Empirical, ("values", "weights", "max")),
    "histogram": (Histogram, ("edges", "shares", "max")),
}
_PURE = {"cv", "alpha", "weights", "shares", "share", "weight", "reasoning_share"}
"""Keys that are pure numbers; every other one counts tokens."""
_OPTIONAL = {"max", "weights"}


class Numbers(BaseModel):
    """A list of sourced numbers: one unit, source and kind for all."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    values: list[float] = Field(min_length=1, max_length=20_000)
    unit: str = Field(min_length=1, max_length=40)
    source: str = Field(min_length=1, max_length=400)
    kind: Kind


class _Law(BaseModel):
    model_config = _STRICT


class FixedCard(_Law):
    """Every request the same."""

    law: Literal["fixed"]
    tokens: Number


class UniformCard(_Law):
    """Equal density between two lengths."""

    law: Literal["uniform"]
    low: Number
    high: Number
    max: Number | None = None


class ExponentialCard(_Law):
    """Exponential, mean before the cut."""

    law: Literal["exponential"]
    mean: Number
    max: Number | None = None


class LogNormalCard(_Law):
    """Lognormal, mean and cv before the cut."""

    law: Literal["lognormal"]
    mean: Number
    cv: Number
    max: Number | None = None


class GammaCard(_Law):
    """Gamma, mean and cv before the cut."""

    law: Literal["gamma"]
    mean: Number
    cv: Number
    max: Number | None = None


class ParetoCard(_Law):
    """Pareto tail from a smallest length on."""

    law: Literal["pareto"]
    minimum: Number
    alpha: Number
    max: Number | None = None


class EmpiricalCard(_Law):
    """Weighted values."""

    law: Literal["empirical"]
    values: Numbers
    weights: Numbers | None = None
    max: Number | None = None


class HistogramCard(_Law):
    """Bins, uniform inside."""

    law: Literal["histogram"]
    edges: Numbers
    shares: Numbers
    max: Number | None = None


class MixturePart(BaseModel):
    """One law of a mixture and its weight."""

    model_config = _STRICT

    weight: Number
    law: LawCard


class MixtureCard(_Law):
    """A length drawn from one of several laws."""

    law: Literal["mixture"]
    parts: list[MixturePart] = Field(min_length=1, max_length=100)


LawCard = Annotated[
    FixedCard
    | UniformCard
    | ExponentialCard
    | LogNormalCard
    | GammaCard
    | ParetoCard
    | EmpiricalCard
    | HistogramCard
    | MixtureCard,
    Field(discriminator="law"),
]


class ClassCard(BaseModel):
    """One kind of request; prompt and output are independent inside it."""

    model_config = _STRICT

    name: str = Field(min_length=1, max_length=80)
    share: Number
    input: LawCard
    output: LawCard


class WorkloadCard(BaseModel):
    """The requests of one kind of service, every number with its unit, source and kind."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, title="capplan workload card")

    schema_id: Literal["capplan.workload/1"] = Field(alias="schema")
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,59}$")
    title: str = _Text
    description: str = _Text
    licence: str = _Text
    fit: str | None = Field(default=None, max_length=4000)
    reasoning_share: Number | None = None
    classes: list[ClassCard] = Field(min_length=1, max_length=200)
    targets: dict[str, Number] = Field(default_factory=dict, max_length=100)


MixturePart.model_rebuild()
MixtureCard.model_rebuild()
ClassCard.model_rebuild()
WorkloadCard.model_rebuild()


def workload_card_schema() -> dict[str, Any]:
    """The JSON Schema of a workload card."""
    return WorkloadCard.model_json_schema(by_alias=True)


def load_workload(name_or_path: str | Path) -> Workload:
    """Read a workload: a shipped card by name, a card file, or a trace (CSV or JSON lines, plain or gzip).

    Parameters
    ----------
    name_or_path : card name (case does not matter) or file

    Returns
    -------
    workload : joint law of prompt and output tokens, with the source of every number of the card

    Raises
    ------
    InputError : no valid card or trace; UnknownNameError : no such card or file

    Examples
    --------
    >>> load_workload("fixed-1k-1k").output.mean
    1024.0
    """
    path = find_card("workloads", str(name_or_path))
    if not path.is_file():
        raise InputError("must be a card file or a trace file, not a folder", file=str(path))
    stamp = path.stat()
    return _read(path, (stamp.st_mtime_ns, stamp.st_size))


@cache
def _read(path: Path, _stamp: tuple[int, int]) -> Workload:
    if is_trace(path):
        return load_trace(path)
    try:
        card = WorkloadCard.model_validate(read_json(path))
    except ValidationError as error:
        raise one_line(error, str(path), WorkloadCard) from None
    try:
        return _workload(card, str(path))
    except InputError as error:
        raise error.located(file=str(path)) from None


def _workload(card: WorkloadCard, file: str) -> Workload:
    kinds = []
    for position, kind in enumerate(card.classes):
        key = f"classes.{position}"
        share = _number(kind.share.model_dump(), "share", f"{key}.share")
        laws = [
            length_law(law.model_dump(exclude_none=True), f"{key}.{side}")
            for side, law in (("input", kind.input), ("output", kind.output))
        ]
        kinds.append(RequestClass(share, laws[0], laws[1], kind.name))
    reasoning = card.reasoning_share
    return Workload(
        classes=kinds,
        name=card.name,
        reasoning_share=None
        if reasoning is None
        else _number(reasoning.model_dump(), "reasoning_share", "reasoning_share"),
        sources=dict(_sources(card, "")),
        file=file,
        description=card.description,
    )


def length_law(data: Any, key: str = "law") -> LengthLaw:
    """A length law from what a scenario or a card says.

    Parameters
    ----------
    data : a law, a token count (``1000``, ``"8k"``), or a mapping, ``{"law": "lognormal", "mean": "1k", "cv": 1}``,
        with plain numbers or with the sourced numbers of a card
    key : dotted place, for errors

    Raises
    ------
    InputError : an unknown law or key, a missing or impossible number

    Examples
    --------
    >>> length_law({"law": "exponential", "mean": "1k"}).quantile(0.0)
    1.0
    """
    if not isinstance(data, Mapping):
        return as_length_law(parse_tokens(data, key=key) if isinstance(data, str) else data, key)
    name = data.get("law")
    if name == "mixture":
        return _mixture(data, key)
    if not isinstance(name, str) or name not in _LAWS:
        raise UnknownNameError.among(str(name), [*_LAWS, "mixture"], "length law", key=f"{key}.law")
    kind, fields = _LAWS[name]
    for given in data:
        if given != "law" and given not in fields:
            raise UnknownNameError.among(str(given), fields, f"key of a {name} law", key=f"{key}.{given}")
    for field in fields:
        if field not in data and field not in _OPTIONAL:
            raise InputError(f"is missing; a {name} law needs it", key=f"{key}.{field}")
    values = {field: _number(data[field], field, f"{key}.{field}") for field in fields if field in data}
    try:
        return kind(**values)
    except InputError as error:
        raise type(error)(error.problem, key=f"{key}.{error.key}" if error.key else key) from None


def _mixture(data: Mapping[str, Any], key: str) -> Mixture:
    parts = data.get("parts")
    if set(data) - {"law", "parts"} or not isinstance(parts, (list, tuple)) or not parts:
        raise InputError("a mixture has one other key, parts: a list of {weight, law}", key=key)
    pairs = []
    for position, part in enumerate(parts):
        place = f"{key}.parts.{position}"
        if not isinstance(part, Mapping) or set(part) != {"weight", "law"}:
            raise InputError("must hold weight and law", key=place)
        pairs.append((_number(part["weight"], "weight", f"{place}.weight"), length_law(part["law"], f"{place}.law")))
    return Mixture(pairs)


def _number(data: Any, field: str, key: str) -> Any:
    """A plain or sourced number (or list of numbers) in tokens, or as a pure number."""
    if isinstance(data, Mapping):
        _check_unit(data, field, key)
        data = data["value"] if "value" in data else data["values"]
    if isinstance(data, (list, tuple)):
        return [_number(one, field, f"{key}.{position}") for position, one in enumerate(data)]
    if field in _PURE:
        if isinstance(data, bool) or not isinstance(data, (int, float)):
            raise InputError(f"{str(data)[:40]!r} must be a number", key=key)
        return float(data)
    return parse_tokens(data, key=key)


def _check_unit(data: Mapping[str, Any], field: str, key: str) -> None:
    wanted = "1" if field in _PURE else "token"
    if not ({"value"} <= set(data) or {"values"} <= set(data)) or data.get("unit") != wanted:
        unit = str(data.get("unit"))[:40]
        raise UnitError(f"unit {unit!r} does not fit; allowed: {wanted!r}", key=f"{key}.unit")


def _sources(entry: object, key: str) -> Iterator[tuple[str, Number]]:
    """Every number of a card under its dotted key."""
    if isinstance(entry, Number):
        yield key, entry
    elif isinstance(entry, Numbers):
        for position, value in enumerate(entry.values):
            yield f"{key}.{position}", Number(value=value, unit=entry.unit, source=entry.source, kind=entry.kind)
    elif isinstance(entry, BaseModel):
        for name, part in entry:
            yield from _sources(part, f"{key}.{name}" if key else name)
    elif isinstance(entry, dict):
        for name, part in entry.items():
            yield from _sources(part, f"{key}.{name}")
    elif isinstance(entry, list):
        for position, part in enumerate(entry):
            yield from _sources(part, f"{key}.{position}")
