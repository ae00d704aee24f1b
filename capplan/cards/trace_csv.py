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
from capplan.cards.trace_rows import MAX_TOKENS, Batch, check_rows, decoded, row_batches
from capplan.errors import InputError

Bytes = NDArray[np.uint8]
IntArray = NDArray[np.int64]

_MOST_DIGITS = 10
_MOST_TIME_DIGITS = 17
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
    tokens = [_whole(buffer, *bounds[name]) for name in (columns.input, columns.output)]
    thoughts = None if columns.reasoning is None else _whole(buffer, *bounds[columns.reasoning])
    stamps, dates = (None, False) if columns.timestamp is None else _times(buffer, *bounds[columns.timestamp])
    missing = (columns.reasoning and thoughts is None) or (columns.timestamp and stamps is None)
    prompts, outputs = tokens
    if missing or prompts is None or outputs is None or (thoughts is not None and (thoughts > outputs).any()):
        return None
    groups = None if columns.group is None else _labels(data, *bounds[columns.group])
    return Batch(np.arange(before + 1, before + 1 + len(ends)), prompts, outputs, thoughts, stamps, dates, groups, None)


def _labels(data: bytes, start: IntArray, end: IntArray) -> list[str]:
    cells = zip(start.tolist(), end.tolist(), strict=True)
    return [data[low:high].decode("utf-8", "replace").strip()[:60] or "none" for low, high in cells]


def _digits(buffer: Bytes, start: IntArray, end: IntArray, most: int) -> tuple[IntArray, IntArray] | None:
    """Digits read as one number, and how many stand after a dot; None where a cell is anything else."""
    length = end - start
    if len(length) == 0 or length.min() < 1 or length.max() > most:
        return None
    value = np.zeros(len(start), dtype=np.int64)
    dot = np.full(len(start), -1)
    for position in range(int(length.max())):
        inside = position < length
        character = buffer[np.minimum(start + position, len(buffer) - 1)]
        digit = character - np.uint8(48)
        is_dot = inside & (character == 46)
        if (inside & (digit > 9) & ~is_dot).any() or (is_dot & (dot >= 0)).any():
            return None
        dot = np.where(is_dot, position, dot)
        value = np.where(inside & ~is_dot, value * 10 + digit, value)
    return value, np.where(dot >= 0, length - 1 - dot, 0)


def _whole(buffer: Bytes, start: IntArray, end: IntArray) -> IntArray | None:
    """Token counts, or None where a cell is not plain digits in range."""
    found = _digits(buffer, start, end, _MOST_DIGITS)
    if found is None or (buffer[end - 1] == 46).any() or found[1].any() or found[0].max() > MAX_TOKENS:
        return None
    return found[0]


def _times(buffer: Bytes, start: IntArray, end: IntArray) -> tuple[Any, bool]:
    """Time stamps and whether they are dates; None where one is neither a plain number nor a plain date."""
    if (end - start).min() >= 19 and (buffer[start + 4] == 45).all():
        return _dates(buffer, start, end), True
    found = _digits(buffer, start, end, _MOST_TIME_DIGITS)
    if found is None or (buffer[start] == 46).any():
        return None, False
    return found[0] / 10.0 ** found[1], False


def _dates(buffer: Bytes, start: IntArray, end: IntArray) -> Any:
    """Seconds since 1970 of ``2023-11-16 18:15:46.68`` with one and the same ending, such as ``+00:00``, or none."""
    marks = buffer[start[:, None] + np.array([4, 7, 10, 13, 16])]
    time_mark = (marks[:, 2] == 32) | (marks[:, 2] == 84)
    if not ((marks[:, [0, 1]] == 45).all() and time_mark.all() and (marks[:, [3, 4]] == 58).all()):
        return None
    places = ((0, 4), (5, 7), (8, 10), (11, 13), (14, 16), (17, 19))
    parts = [_digits(buffer, start + low, start + high, 4) for low, high in places]
    fraction = _fraction(buffer, start + 19, end)
    if fraction is None or any(part is None or part[1].any() for part in parts):
        return None
    year, month, day, hour, minute, second = (part[0] for part in parts if part is not None)
    if not (_between(year, 1970, 2200) and _between(month, 1, 12) and _between(day, 1, 31)):
        return None
    if not (_between(hour, 0, 23) and _between(minute, 0, 59) and _between(second, 0, 60)):
        return None
    months = (year - 1970).astype("datetime64[Y]").astype("datetime64[M]") + (month - 1)
    days = months.astype("datetime64[D]") + (day - 1)
    if (days.astype("datetime64[M]") != months).any():
        return None
    return days.astype(np.int64) * 86_400.0 + hour * 3600 + minute * 60 + second + fraction


def _between(values: IntArray, least: int, most: int) -> bool:
    return bool(values.min() >= least and values.max() <= most)


def _fraction(buffer: Bytes, start: IntArray, end: IntArray) -> Any:
    """What ``.6805900`` adds; None where digits are followed by anything but nothing, ``Z`` or ``+00:00``."""
    length = end - start
    tails = 0
    for tail in (b"+00:00", b"Z"):
        if length.min() >= len(tail):
            last = buffer[(end - len(tail))[:, None] + np.arange(len(tail))]
            tails = len(tail) if not tails and (last == np.frombuffer(tail, dtype=np.uint8)).all() else tails
    length = length - tails
    if length.max() == 0:
        return np.zeros(len(start))
    if length.min() < 2 or (buffer[start] != 46).any():
        return None
    found = _digits(buffer, start + 1, end - tails, 12)
    return None if found is None or found[1].any() else found[0] / 10.0 ** (length - 1)
