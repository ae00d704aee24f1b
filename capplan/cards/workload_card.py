"""Workload cards: reading a card file or a trace into a :class:`Workload`.

What a card file may hold is said by :mod:`capplan.cards.workload_schema`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capplan.cards.card_numbers import built_card
from capplan.cards.number import Sources
from capplan.cards.store import find_card
from capplan.cards.trace_columns import checked_quantity
from capplan.cards.workload import RequestClass, Workload
from capplan.errors import InputError, UnitError, UnknownNameError, shown
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

if TYPE_CHECKING:
    from capplan.cards.arrivals import Arrivals

SCHEMA = "capplan.workload/1"

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
LEAST_SECONDS, MOST_SECONDS = 1e-6, 1e10
MEAN_TOLERANCE = 0.05
"""Relative difference between a mean that a card tells and that of its laws, above which one of them is wrong."""
WEIGHT_TOLERANCE = 0.001
"""What rounding may leave between 1 and the sum of the weights of a mixture."""
_PURE = {"cv", "alpha", "weights", "shares", "share", "weight", "reasoning_share"}
"""Keys that are pure numbers; every other one counts tokens."""
_LISTS = {"values", "weights", "edges", "shares"}
_OPTIONAL = {"max", "weights"}
_TRACE_SUFFIXES = (".csv", ".jsonl", ".ndjson")


def workload_card_schema() -> dict[str, Any]:
    """The JSON Schema of a workload card."""
    from capplan.cards.workload_schema import workload_card_schema as schema

    return schema()


def load_workload(name_or_path: str | Path, columns: Mapping[str, str] | None = None) -> Workload:
    """Read a workload: a shipped card by name, a card file, or a trace (CSV or JSON lines, plain or gzip).

    Parameters
    ----------
    name_or_path : card name (case does not matter) or file
    columns : of a trace whose columns have none of the known names: quantity (``timestamp``, ``input``, ``output``,
        ``reasoning``, ``class``) -> name

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
    path = Path(name_or_path)
    if not is_trace(path):
        path = find_card("workloads", str(name_or_path))
    elif not _exists(path):
        raise InputError("there is no such trace file", file=str(path)[:200])
    if not path.is_file():
        raise InputError("must be a card file or a trace file, not a folder", file=str(path))
    stamp = path.stat()
    mapped = tuple(sorted((checked_quantity(key, "columns"), column) for key, column in (columns or {}).items()))
    return _read(path, mapped, (stamp.st_mtime_ns, stamp.st_size))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file can have
        return False


def is_trace(path: Path) -> bool:
    """Whether the name of a file is that of a trace."""
    name = path.name.lower()
    return name.removesuffix(".gz").endswith(_TRACE_SUFFIXES) or name.endswith("-dataset.json")


@cache
def _read(path: Path, columns: tuple[tuple[str, str], ...], _stamp: tuple[int, int]) -> Workload:
    if is_trace(path):
        from capplan.cards.trace import load_trace

        return load_trace(path, dict(columns))
    if columns:
        raise InputError("belong to a trace (CSV or JSON lines)", key="columns", file=str(path))
    return built_card("workloads", path, partial(_from_data, file=str(path)), _validated)


def _validated(data: dict[str, Any], file: str) -> dict[str, Any]:
    from capplan.cards.workload_schema import validated

    card = validated(data, file)
    for name, number in card.get("targets", {}).items():
        _check_range(f"targets.{name}", number, "token", 0.0, 1e30)
    for name in ("requests", "failed"):
        if "trace" in card:
            _check_range(f"trace.{name}", card["trace"][name], "1", 0.0, 1e15)
    return card


def _check_range(key: str, number: Mapping[str, Any], unit: str, least: float, most: float) -> None:
    """A number, or each of a list of them, in its unit and in its range.

    Raises
    ------
    UnitError : another unit; InputError : out of range
    """
    if number["unit"] != unit:
        raise UnitError(f"unit {number['unit'][:40]!r} does not fit; allowed: {unit!r}", key=f"{key}.unit")
    listed = enumerate(number["values"]) if "values" in number else [("", number["value"])]
    for position, value in listed:
        if not least <= value <= most:
            place = f"{key}.value" if position == "" else f"{key}.values.{position}"
            raise InputError(f"{value:g} must lie between {least:g} and {most:g}", key=place)


def _from_data(data: Mapping[str, Any], file: str) -> Workload:
    values = {key: value for key, value in data.items() if value is not None}
    if values.pop("schema") != SCHEMA:
        raise ValueError("another schema")
    return _workload(file, Sources(data), **values)


def _workload(
    file: str,
    sources: Sources,
    *,
    name: str,
    title: str,  # noqa: ARG001 (title to fit: for the readers of a card)
    description: str,
    licence: str,  # noqa: ARG001
    classes: list[dict[str, Any]],
    fit: str = "",  # noqa: ARG001
    reasoning_share: Any = None,
    targets: Mapping[str, Any] | None = None,
    trace: Mapping[str, Any] | None = None,  # noqa: ARG001 (where the card comes from, for its readers)
    arrivals: Mapping[str, Any] | None = None,
    hours: Mapping[str, Any] | None = None,  # noqa: ARG001 (the profile of the trace, for its readers)
    prefix_hits: Mapping[str, Any] | None = None,  # noqa: ARG001
) -> Workload:
    share = None if reasoning_share is None else _number(reasoning_share, "reasoning_share", "reasoning_share")
    by_law = "reasoning" in classes[0]
    workload = Workload(
        **_lengths(classes),
        name=name,
        reasoning_share=None if by_law else share,
        sources=sources,
        file=file,
        description=description,
        arrivals=None if arrivals is None else _arrivals(**arrivals),
    )
    _check_means(workload, targets or {})
    found = workload.reasoning_share
    if share is not None and found is not None and abs(share - found) > MEAN_TOLERANCE:
        raise InputError(f"{share:g} is not the share of the laws, {found:.3g}; correct one of them",
                         key="reasoning_share.value")  # fmt: skip
    return workload


def _check_means(workload: Workload, targets: Mapping[str, Any]) -> None:
    """The means a card says its laws have are those they have; the other targets are for its readers and the tests."""
    for name, law in (("input_mean", workload.input), ("output_mean", workload.output)):
        told = targets[name]["value"] if name in targets else law.mean
        if abs(law.mean - told) > MEAN_TOLERANCE * max(told, 1.0):
            problem = f"{told:,.6g} is not the mean of the laws, {law.mean:,.6g}; correct one of them"
            raise InputError(problem, key=f"targets.{name}.value")


def _lengths(classes: list[dict[str, Any]]) -> dict[str, Any]:
    """Classes of laws, or one sample of the pairs of all classes with the law of their reasoning tokens."""
    for position, kind in enumerate(classes):
        if ("reasoning" in kind) != ("reasoning" in classes[0]):
            raise InputError("give the reasoning of every class, or of none", key=f"classes.{position}")
    if not any("joint" in kind for kind in classes):
        return {"classes": [_request_class(f"classes.{position}", **kind) for position, kind in enumerate(classes)]}
    parts = [_pairs(f"classes.{position}", kind) for position, kind in enumerate(classes)]
    total = math.fsum(share for share, _ in parts)
    rows = [(p, d, share / total * w / math.fsum(pairs[2])) for share, pairs in parts
            for p, d, w in zip(*pairs, strict=True)]  # fmt: skip
    return {"joint": rows, "reasoning": _reasoning_of_all(classes, [share for share, _ in parts])}


def _reasoning_of_all(classes: list[dict[str, Any]], shares: list[float]) -> LengthLaw | None:
    """The law of the reasoning tokens over classes that give their pairs; None where they do not say."""
    if "reasoning" not in classes[0]:
        return None
    laws = [length_law(kind["reasoning"], f"classes.{place}.reasoning") for place, kind in enumerate(classes)]
    return laws[0] if len(laws) == 1 else Mixture(list(zip(shares, laws, strict=True)))


def _pairs(key: str, kind: Mapping[str, Any]) -> tuple[float, list[list[float]]]:
    """Share of a class; its prompts, outputs and weights."""
    if "joint" not in kind:
        raise InputError("has laws where another class has joint; give joint to all or to none", key=key)
    fields = {"input": "values", "output": "values", "weights": "weights"}
    columns = [_number(kind["joint"][name], field, f"{key}.joint.{name}") for name, field in fields.items()]
    if len(set(map(len, columns))) != 1 or sum(columns[2]) <= 0:
        raise InputError("needs as many prompts as outputs and weights, and weights that sum to more than 0",
                         key=f"{key}.joint")  # fmt: skip
    return _number(kind["share"], "share", f"{key}.share"), columns


def _arrivals(
    *,
    rate: Any,
    span: Any,
    windows: Any = None,
    dispersion: Any = None,
    drifts: bool = False,
    busiest_rate: Any = None,
    time_step: Any = None,
) -> Arrivals:
    """The arrivals of a card."""
    from capplan.cards.arrivals import Arrivals

    seconds, rates = ("s", LEAST_SECONDS, MOST_SECONDS), ("1/s", 1e-6, 1e9)
    given = {"rate": (rate, rates), "span": (span, seconds), "windows": (windows, seconds),
             "dispersion": (dispersion, ("1", 0.0, 1e6)), "busiest_rate": (busiest_rate, rates),
             "time_step": (time_step, ("s", 0.0, MOST_SECONDS))}  # fmt: skip
    for name, (number, limits) in given.items():
        if number is not None:
            _check_range(f"arrivals.{name}", number, *limits)
    lengths, index = ([] if one is None else one["values"] for one in (windows, dispersion))
    if len(lengths) != len(index) or any(low >= high for low, high in pairwise(lengths)):
        raise InputError("must increase, with a dispersion each", key="arrivals.windows.values")
    return Arrivals(
        rate=rate["value"],
        span_seconds=span["value"],
        windows=tuple(lengths),
        dispersion=tuple(index),
        drifts=drifts,
        busiest_rate=None if busiest_rate is None else busiest_rate["value"],
        step_seconds=0.0 if time_step is None else time_step["value"],
    )


def _request_class(key: str, *, name: str, share: Any, input: Any, output: Any, reasoning: Any = None) -> RequestClass:
    part = _number(share, "share", f"{key}.share")
    laws = (length_law(input, f"{key}.input"), length_law(output, f"{key}.output"))
    thoughts = None if reasoning is None else length_law(reasoning, f"{key}.reasoning")
    return RequestClass(part, *laws, name, thoughts)


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
    try:
        law = Mixture(pairs)
    except InputError as error:
        raise type(error)(error.problem, key=f"{key}.{error.key}" if error.key else key) from None
    total = math.fsum(weight for weight, _ in pairs)
    if abs(total - 1.0) > WEIGHT_TOLERANCE:
        raise InputError(f"the weights sum to {total:.6g}; they are shares and must sum to 1", key=f"{key}.parts")
    return law


def _number(data: Any, field: str, key: str) -> Any:
    """A plain or sourced number (or list of numbers) in tokens, or as a pure number."""
    if isinstance(data, Mapping):
        data = _value_of(data, field, key)
    if isinstance(data, (list, tuple)):
        return [_number(one, field, f"{key}.{position}") for position, one in enumerate(data)]
    if field in _PURE:
        if isinstance(data, bool) or not isinstance(data, (int, float)):
            raise InputError(f"{shown(data)} must be a number", key=key)
        return float(data) if abs(data) <= 1e300 else data  # the law refuses it by name
    return parse_tokens(data, key=key)


def _value_of(data: Mapping[str, Any], field: str, key: str) -> Any:
    """The value, or values where a list belongs, of a sourced number in the unit of the field."""
    part = "values" if field in _LISTS else "value"
    allowed, wanted = (part, "unit", "source", "kind"), "1" if field in _PURE else "token"
    for name in data:
        if name not in allowed:
            raise UnknownNameError.among(str(name), allowed, "key of a number", key=f"{key}.{str(name)[:80]}")
    if part not in data:
        raise InputError("is missing", key=f"{key}.{part}")
    if data.get("unit") != wanted:
        unit = str(data.get("unit"))[:40]
        raise UnitError(f"unit {unit!r} does not fit; allowed: {wanted!r}", key=f"{key}.unit")
    return data[part]
