"""Plain CSV with one result a row: columns by name, or as the user maps them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capplan.calibration.run import Run, plain_number, seconds_per
from capplan.errors import InputError, UnknownNameError, shown

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "prompt": ("prompt", "isl", "input_len", "input_tokens", "prompt_tokens", "input_length"),
    "output": ("output", "osl", "output_len", "output_tokens", "generated_tokens", "output_length"),
    "concurrency": ("concurrency", "max_concurrency", "conc", "in_flight"),
    "ttft": ("ttft", "mean_ttft", "avg_ttft", "time_to_first_token"),
    "tpot": ("tpot", "mean_tpot", "avg_tpot", "time_per_output_token"),
    "tp": ("tp", "tp_size", "tensor_parallel_size"),
    "dp": ("dp", "dp_size", "data_parallel_size"),
    "ep": ("ep", "ep_size", "moe_ep"),
}
"""Quantity to the names a column of it may have, latencies with or without a unit behind (``ttft_ms``)."""
_LATENCIES = ("ttft", "tpot")
_LAYOUT = ("tp", "dp", "ep")
_ONE_ONLY = ("model", "engine", "gpu", "gpu_type", "hardware", "framework", "precision")
"""Columns that would say that rows are of several systems."""
_UNIT = re.compile(r"(?:_|\s*[(\[]|\s)(ns|us|ms|s|sec|seconds)[)\]]?$", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_MOST_CELLS = 5_000_000
_SHOWN_COLUMNS = 10


@dataclass(frozen=True)
class _Column:
    index: int
    name: str
    factor: float


def parsed_columns(settings: Sequence[str]) -> dict[str, str]:
    """Column names by quantity, from texts such as ``tpot=my_col_ms``.

    Raises
    ------
    InputError : no ``quantity=column``, an unknown quantity, or one given twice
    """
    found: dict[str, str] = {}
    for setting in settings:
        name, sign, column = setting.partition("=")
        if not sign or not column.strip():
            raise InputError(f"{shown(setting)} must be QUANTITY=COLUMN", key="--column")
        if name not in COLUMNS:
            raise UnknownNameError.among(name, COLUMNS, "quantity", key="--column")
        if name in found:
            raise InputError(f"{name} is given twice", key="--column")
        found[name] = column.strip()
    return found


def csv_runs(
    rows: Sequence[tuple[int, list[str]]], file: str, mapped: Mapping[str, str]
) -> tuple[list[Run], list[str], list[str]]:
    """The runs of a table with a header, the columns nothing is taken from, and remarks.

    Raises
    ------
    InputError : a column that is missing or not unique, rows of several systems, a cell that is no number
    """
    header = [cell.strip() for cell in rows[0][1]]
    if len(rows) * len(header) > _MOST_CELLS:
        raise InputError(f"more than {_MOST_CELLS:,} cells", file=file)
    columns = _columns(header, mapped, file)
    _refuse_several(header, [row for _, row in rows[1:]], file)
    runs = [_run(row, columns, file, line) for line, row in rows[1:]]
    taken = {column.index for column in columns.values()}
    notes = [
        f"{file}: column {columns[name].name!r} names no unit: milliseconds taken"
        for name in _LATENCIES
        if not _UNIT.search(columns[name].name)
    ]
    return runs, [name for index, name in enumerate(header) if index not in taken], notes


def _columns(header: list[str], mapped: Mapping[str, str], file: str) -> dict[str, _Column]:
    found = {}
    for quantity, names in COLUMNS.items():
        if quantity in mapped:
            index = _place(header, mapped[quantity], file)
        else:
            known = [index for index, name in enumerate(header) if _bare(name, quantity) in names]
            if len(known) > 1:
                two = " and ".join(repr(header[index]) for index in known[:2])
                raise InputError(f"columns {two} both fit; choose with --column {quantity}=NAME", file=file)
            if not known and quantity in _LAYOUT:
                continue
            if not known:
                raise InputError(_no_column(header, quantity), key=quantity, file=file)
            index = known[0]
        found[quantity] = _Column(index, header[index], _factor(header[index], quantity, file))
    return found


def _no_column(header: list[str], quantity: str) -> str:
    listed = ", ".join(shown(name) for name in header[:_SHOWN_COLUMNS])
    more = f" and {len(header) - _SHOWN_COLUMNS} more" if len(header) > _SHOWN_COLUMNS else ""
    problem = f"no column for it among {listed}{more}"
    if len(header) == 1 and (sign := re.search(r"[;\t|]", header[0])):
        return f"{problem}; columns must be comma-separated, not by {sign[0]!r}"
    return f"{problem}; choose with --column {quantity}=NAME"


def _place(header: list[str], name: str, file: str) -> int:
    if header.count(name) > 1:
        raise InputError("occurs twice", key=name[:80], file=file)
    if name not in header:
        raise UnknownNameError.among(name, header, "column", file=file)
    return header.index(name)


def _bare(name: str, quantity: str) -> str:
    """The name of a column in lower case, without the unit of a latency."""
    return (_UNIT.sub("", name) if quantity in _LATENCIES else name).strip().lower().replace(" ", "_")


def _factor(name: str, quantity: str, file: str) -> float:
    if quantity not in _LATENCIES:
        return 1.0
    unit = _UNIT.search(name)
    return seconds_per(unit[1].lower() if unit else "ms", name, file)


def _refuse_several(header: list[str], rows: list[list[str]], file: str) -> None:
    for index, name in enumerate(header):
        if name.lower() in _ONE_ONLY:
            values = {row[index].strip() for row in rows if index < len(row)}
            if len(values) > 1:
                problem = f"holds {len(values)} values; give the rows of one model, engine and GPU"
                raise InputError(problem, key=name, file=file)


def _run(row: list[str], columns: Mapping[str, _Column], file: str, line: int) -> Run:
    place = f"{file}:{line}"
    values = {name: _cell(row, column, place) for name, column in columns.items()}
    layout: dict[str, Any] = {name: _whole(values[name], name, place) for name in _LAYOUT if name in values}
    return Run(
        file, line, "CSV", values["prompt"], values["output"], values["concurrency"], values["ttft"], values["tpot"],
        **layout,
    )  # fmt: skip


def _cell(row: list[str], column: _Column, place: str) -> float:
    cell = row[column.index].strip().replace(",", "") if column.index < len(row) else ""
    if not _NUMBER.fullmatch(cell):
        raise InputError(f"{shown(cell)} must be a number", key=column.name, file=place)
    return plain_number(float(cell), column.name, place) * column.factor


def _whole(value: float, name: str, place: str) -> int:
    if value != int(value):
        raise InputError(f"{value:g} must be a whole number", key=name, file=place)
    return int(value)
