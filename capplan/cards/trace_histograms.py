"""Published histograms of lengths (``field,value,expected_requests``) in the place of a trace."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from capplan.cards.workload import Workload
from capplan.errors import InputError, UnknownNameError
from capplan.formulas.empirical import Empirical

_DECIMAL = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,20})?(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
_FIELDS = ("input_tokens", "output_tokens", "reason_ratio")


def histogram_workload(path: Path, rows: Iterator[tuple[int, Callable[[str], Any]]]) -> Workload:
    """Input and output as independent laws, each its histogram.

    Raises
    ------
    InputError : an unknown field, a value twice, no amount, or one of the two histograms missing
    """
    found = {name: dict(histogram) for name, histogram in _histograms(rows).items()}
    if not (found["input_tokens"] and found["output_tokens"]):
        raise InputError("needs the fields input_tokens and output_tokens", key="field")
    name = path.name.removesuffix(".gz").rsplit(".", 1)[0][:80]
    remark = "a file of two histograms: prompt and output are taken as independent"
    return Workload(
        Empirical(found["input_tokens"]),
        Empirical(found["output_tokens"]),
        name=name,
        file=str(path),
        remarks=(remark,),
    )


def _histograms(rows: Iterator[tuple[int, Callable[[str], Any]]]) -> dict[str, dict[float, float]]:
    found: dict[str, dict[float, float]] = {name: {} for name in _FIELDS}
    for number, cell in rows:
        name = cell("field")
        if not isinstance(name, str) or name not in found:
            raise UnknownNameError.among(str(name), found, "field", key=f"line {number}, field")
        length = _amount(cell("value"), "value", number)
        if length in found[name]:
            raise InputError(f"{name} {length:g} occurs twice", key=f"line {number}, value")
        found[name][length] = _amount(cell("expected_requests"), "expected_requests", number)
    return found


def _amount(cell: Any, column: str, number: int) -> float:
    """A number of zero or more."""
    if isinstance(cell, str) and (match := _DECIMAL.fullmatch(cell.strip(" \t\r"))):
        cell = float(match[0])
    if isinstance(cell, bool) or not isinstance(cell, (int, float)) or not 0 <= cell <= 1e9:
        raise InputError(f"{str(cell)[:40]!r} must be a number, 0 or more", key=f"line {number}, {column}")
    return float(cell)
