"""CSV traces: blocks of regular rows are read as arrays of bytes, all others row by row."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capplan.cards.trace_columns import Columns
from capplan.cards.trace_digits import times, whole_numbers
from capplan.cards.trace_rows import Batch, check_rows, decoded, row_batches
from capplan.errors import InputError

IntArray = NDArray[np.int64]

_MOST_COLUMNS = 1000


def csv_names(line: str) -> list[str]:
    """The columns of a header line.

    Raises
    ------
    InputError : a name that occurs twice, or too many of them
    """
    names = [name.strip() for name in next(csv.reader([line]), [])]
    if len(names) > _MOST_COLUMNS:
        raise InputError(f"{len(names):,} columns; a trace has at most {_MOST_COLUMNS:,}", key="line 1")
    if twice := next((name for name in names if name and names.count(name) > 1), None):
        raise InputError(f"column {twice[:60]!r} occurs twice", key="line 1")
    return names


def csv_batches(stream: Iterator[bytes], names: list[str], columns: Columns) -> Iterator[Batch]:
    """Batches of a CSV file whose header line is taken off."""
    number = 1
    for block in stream:
        data = block.replace(b"\r\n", b"\n")
        if b'"' in data:  # a quoted cell may run over lines and blocks
            yield from row_batches(_rows(chain([block], stream), names, number), columns)
            return
        batch = _regular(data, names, columns, number)
        if batch is None:
            yield from row_batches(_rows(iter([block]), names, number), columns)
        else:
            yield batch
        number += data.count(b"\n")
        check_rows(number)


def csv_rows(stream: Iterator[bytes], names: list[str]) -> Iterator[tuple[int, Callable[[str], Any]]]:
    """Rows below the header one by one: the line, and what gives the cell of a column (None where the row is short)."""
    return _rows(stream, names, 1)


def _rows(stream: Iterator[bytes], names: list[str], before: int) -> Iterator[tuple[int, Callable[[str], Any]]]:
    place = {name: position for position, name in enumerate(names)}
    reader = csv.reader(_lines(stream, before))
    for row in reader:
        number = before + reader.line_num
        if len(row) > len(names):
            raise InputError(f"{len(row)} cells under {len(names)} columns", key=f"line {number}")
        if row:
            check_rows(number)
            yield number, partial(_cell, row, place)


def _lines(stream: Iterator[bytes], before: int) -> Iterator[str]:
    for block in stream:
        lines = decoded(block, before + 1).split("\n")[:-1]
        yield from (line + "\n" for line in lines)
        before += len(lines)


def _cell(row: list[str], place: dict[str, int], column: str) -> str | None:
    position = place[column]
    return row[position] if position < len(row) else None


def _regular(data: bytes, names: list[str], columns: Columns, before: int) -> Batch | None:
    """A block in which every row has every cell and every number is plain digits; None where one is not so."""
    if columns.hashes is not None:
        return None
    buffer = np.frombuffer(data, dtype=np.uint8)
    ends, commas = np.flatnonzero(buffer == 10), np.flatnonzero(buffer == 44)
    inner = len(names) - 1
    if len(commas) != inner * len(ends) or not len(ends) or not inner:
        return None
    borders = np.column_stack([np.concatenate([[-1], ends[:-1]]), commas.reshape(len(ends), inner), ends])
    if not (np.diff(borders, axis=1) > 0).all():
        return None
    bounds = {name: (borders[:, i] + 1, borders[:, i + 1]) for i, name in enumerate(names)}
    tokens = [whole_numbers(buffer, *bounds[name]) for name in (columns.input, columns.output)]
    thoughts = None if columns.reasoning is None else whole_numbers(buffer, *bounds[columns.reasoning])
    stamps, dates = (None, False) if columns.timestamp is None else times(buffer, *bounds[columns.timestamp])
    missing = (columns.reasoning and thoughts is None) or (columns.timestamp and stamps is None)
    prompts, outputs = tokens
    if missing or prompts is None or outputs is None or (thoughts is not None and (thoughts > outputs).any()):
        return None
    groups = None if columns.group is None else _labels(data, *bounds[columns.group])
    return Batch(np.arange(before + 1, before + 1 + len(ends)), prompts, outputs, thoughts, stamps, dates, groups, None)


def _labels(data: bytes, start: IntArray, end: IntArray) -> list[str]:
    cells = zip(start.tolist(), end.tolist(), strict=True)
    return [data[low:high].decode("utf-8", "replace").strip()[:60] or "none" for low, high in cells]
