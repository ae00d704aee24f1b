"""Traces of requests: CSV or JSON lines, one request a line, plain or gzip, into a :class:`Workload`."""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import re
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from capplan.cards.store import no_duplicates
from capplan.cards.workload import Workload
from capplan.errors import InputError, UnknownNameError
from capplan.formulas.empirical import Empirical

INPUT_COLUMNS = ("input_tokens", "input_length", "prompt_tokens", "ContextTokens", "num_prompt_tokens", "isl")
OUTPUT_COLUMNS = ("output_tokens", "output_length", "completion_tokens", "GeneratedTokens", "num_decode_tokens", "osl")
REASONING_COLUMNS = ("reason_tokens", "reasoning_tokens")
SECOND_COLUMNS = ("arrival_s", "arrival_seconds", "arrived_at")
MILLISECOND_COLUMNS = ("timestamp", "timestamp_ms", "arrival_ms")
"""Arrival times: in seconds; in milliseconds, or as date and time."""
MAX_ROWS = 5_000_000
MAX_LINE = 4_000_000
MAX_BYTES = 4_000_000_000
MAX_TOKENS = 10**9
_BLOCK = 1 << 20
_REMEMBERED = 200_000
_WHOLE = re.compile(r"[0-9]{1,12}(?:\.0{0,12})?", re.ASCII)
_DECIMAL = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,20})?(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
_LONG_FRACTION = re.compile(r"(\.[0-9]{6})[0-9]+", re.ASCII)
_T = TypeVar("_T")
MANY_PAIRS = 100_000
"""Above so many distinct (prompt, output) pairs a trace is reduced to weighted cells."""


def load_trace(path: Path) -> Workload:
    """The joint law of prompt and output tokens of a trace.

    Columns are known by the names in ``INPUT_COLUMNS`` and ``OUTPUT_COLUMNS``; a reasoning column gives the reasoning
    share. A histogram file with the columns ``field,value,expected_requests`` gives two independent laws.

    Raises
    ------
    InputError : no such columns or two for the same, a line that is no request, an empty or oversized file
    """
    return _read(path, lambda table: _workload(path, table))


def load_arrivals(path: Path) -> Any:
    """The arrival times of a trace as a NumPy array, as they stand in it [s].

    Columns are known by the names in ``SECOND_COLUMNS`` and ``MILLISECOND_COLUMNS``; dates and times are read as such.

    Raises
    ------
    InputError : no such column or two, a cell that is no time, fewer than two different times
    """
    return _read(path, _arrivals)


def _read(path: Path, use: Callable[[_Table | None], _T]) -> _T:
    name = path.name.lower()
    open_file: Any = gzip.open if name.endswith(".gz") else open
    try:
        with open_file(path, "rb") as stream:
            lines = _lines(stream)
            is_csv = name.removesuffix(".gz").endswith(".csv")
            return use(_csv_table(lines) if is_csv else _json_table(lines))
    except InputError as error:
        raise error.located(file=str(path)) from None
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, csv.Error) as error:
        raise InputError(f"cannot be read ({str(error)[:80]})", file=str(path)) from None


class _Table(NamedTuple):
    """Names of the columns; line number and record of every line; and how to pick columns out of a record."""

    names: list[str]
    rows: Iterator[tuple[int, Any]]
    picker: Callable[[Sequence[str]], Callable[[Any], Any]]


def _workload(path: Path, table: _Table | None) -> Workload:
    if table is None:
        raise InputError("holds no request")
    if {"field", "value", "expected_requests"} <= set(table.names):
        return _from_histograms(path, table)
    return _from_requests(path, table)


def _arrivals(table: _Table | None) -> Any:
    import numpy as np

    if table is None:
        raise InputError("holds no request")
    column = _column(table.names, SECOND_COLUMNS + MILLISECOND_COLUMNS, "arrival")
    if column is None:
        known = ", ".join(SECOND_COLUMNS + MILLISECOND_COLUMNS)
        raise InputError(f"no column of arrival times; known: {known}")
    pick, unit = table.picker((column, column)), 1.0 if column.strip().lower() in SECOND_COLUMNS else 1e-3
    times = np.array([_time(pick(record)[0], column, number, unit) for number, record in table.rows])
    if len(times) < 2 or times.min() == times.max():
        raise InputError("needs at least two different arrival times", key=column)
    return times


def _time(cell: Any, column: str, number: int, unit: float) -> float:
    """A number in ``unit`` seconds, or a date and time; of its fraction a second six digits count."""
    text = cell.strip(" \t\r") if isinstance(cell, str) else ""
    if match := _DECIMAL.fullmatch(text):
        cell = float(match[0])
    if isinstance(cell, (int, float)) and not isinstance(cell, bool) and 0 <= cell <= 1e15:
        return float(cell) * unit
    try:
        return datetime.fromisoformat(_LONG_FRACTION.sub(r"\1", text[:40])).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        raise InputError(f"{str(cell)[:40]!r} is no time", key=f"line {number}, {column}") from None


def _lines(stream: Any) -> Iterator[str]:
    """Lines without their ends, from blocks of bounded size."""
    decoder, rest, size = codecs.getincrementaldecoder("utf-8-sig")(), "", 0
    number = 0
    while block := stream.read(_BLOCK):
        size += len(block)
        lines = (rest + decoder.decode(block)).split("\n")
        rest = lines.pop()
        yield from lines
        number += len(lines)
        if number > MAX_ROWS + 1:
            raise InputError(f"more than {MAX_ROWS:,} requests; give a sample of it")
        if len(rest) > MAX_LINE or size > MAX_BYTES:
            raise InputError(f"line {number + 1} is too long, or the file is larger than {MAX_BYTES // 10**9} GB")
    if rest := rest + decoder.decode(b"", final=True):
        yield rest


def _csv_table(lines: Iterator[str]) -> _Table | None:
    reader = csv.reader(lines)
    names = [name.strip() for name in next(reader, [])]
    if twice := next((name for name in names if name and names.count(name) > 1), None):
        raise InputError(f"column {twice[:60]!r} occurs twice", key="line 1")
    rows = _csv_rows(reader, len(names))
    first = next(rows, None)
    if first is None:
        return None
    return _Table(names, chain([first], rows), lambda columns: itemgetter(*map(names.index, columns)))


def _csv_rows(reader: Any, width: int) -> Iterator[tuple[int, Sequence[str | None]]]:
    for row in reader:
        if len(row) == width:
            yield reader.line_num, row
        elif len(row) > width:
            raise InputError(f"{len(row)} cells under {width} columns", key=f"line {reader.line_num}")
        elif row:
            yield reader.line_num, [*row, *[None] * (width - len(row))]


def _json_table(lines: Iterator[str]) -> _Table | None:
    rows = ((number, _json_line(line, number)) for number, line in enumerate(lines, start=1) if line.strip())
    first = next(rows, None)
    if first is None:
        return None
    return _Table(list(first[1]), chain([first], rows), _json_picker)


def _json_picker(columns: Sequence[str]) -> Callable[[Any], Any]:
    return lambda record: [record.get(column) for column in columns]


def _json_line(line: str, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line, object_pairs_hook=no_duplicates)
    except InputError as error:
        raise error.located(key=f"line {number}") from None
    except (ValueError, RecursionError):
        raise InputError("is not valid JSON", key=f"line {number}") from None
    if not isinstance(record, dict):
        raise InputError("must be a JSON object, one request a line", key=f"line {number}")
    return record


def _column(names: Sequence[str], known: tuple[str, ...], what: str) -> str | None:
    """The column of that kind; two rivals are an error."""
    wanted = {name.lower() for name in known}
    found = [name for name in names if name.strip().lower() in wanted]
    if len(found) > 1:
        raise InputError(f"columns {found[0]!r} and {found[1]!r} both give {what} tokens; keep one", key="line 1")
    return found[0] if found else None


def _counter(column: str, least: int) -> Callable[[Any, int], int]:
    """A reader of the cells of a column, by cell and line; it remembers what it has read."""
    known: dict[str, int] = {}

    def read(cell: Any, number: int) -> int:
        if type(cell) is not str:
            return _tokens(cell, column, number, least)
        count = known.get(cell)
        if count is None:
            count = _tokens(cell, column, number, least)
            if len(known) < _REMEMBERED:
                known[cell] = count
        return count

    return read


def _tokens(cell: Any, column: str, number: int, least: int) -> int:
    """A whole token count, in ASCII digits where it is text."""
    if type(cell) is int and least <= cell <= MAX_TOKENS:
        return cell
    if isinstance(cell, str) and (match := _WHOLE.fullmatch(cell.strip(" \t\r"))):
        cell = float(match[0])
    whole = (
        isinstance(cell, (int, float))
        and not isinstance(cell, bool)
        and least <= cell <= MAX_TOKENS
        and cell == int(cell)
    )
    if not whole:
        problem = f"{str(cell)[:40]!r} must be a whole token count, {least} or more"
        raise InputError(problem, key=f"line {number}, {column}")
    return int(cell)


def _from_requests(path: Path, table: _Table) -> Workload:
    columns = _columns(table.names)
    pick, pairs = table.picker([name for name in columns if name]), array("q")
    prompt_of, output_of = _counter(columns[0], 0), _counter(columns[1], 1)
    reasoning = output_total = 0
    for number, record in table.rows:
        cells = pick(record)
        output = output_of(cells[1], number)
        pairs.append(prompt_of(cells[0], number) << 30 | output)
        if columns[2] is not None:
            reasoning += _reasoning(cells[2], columns[2], number, output)
            output_total += output
    share = reasoning / output_total if output_total else None
    return Workload(joint=_sample(pairs), name=_stem(path), reasoning_share=share, file=str(path))


def _reasoning(cell: Any, column: str, number: int, output: int) -> int:
    tokens = _tokens(cell, column, number, 0)
    if tokens > output:
        raise InputError(f"{tokens} is more than the {output} output tokens", key=f"line {number}, {column}")
    return tokens


def _columns(names: Sequence[str]) -> tuple[str, str, str | None]:
    prompt, output = _column(names, INPUT_COLUMNS, "input"), _column(names, OUTPUT_COLUMNS, "output")
    if prompt is None or output is None:
        wanted, known = ("input", INPUT_COLUMNS) if prompt is None else ("output", OUTPUT_COLUMNS)
        found = ", ".join(names[:8])[:120]
        raise InputError(f"no column of {wanted} tokens; known: {', '.join(known)}; found: {found}")
    return prompt, output, _column(names, REASONING_COLUMNS, "reasoning")


def _sample(pairs: array[int]) -> Any:
    """Distinct pairs and how often each occurs; both counts of a pair share one whole number, 30 bits the output."""
    import numpy as np

    distinct, count = np.unique(np.frombuffer(pairs, dtype=np.int64), return_counts=True)
    rows = np.column_stack([distinct >> 30, distinct & (1 << 30) - 1, count]).astype(float)
    return rows if len(rows) <= MANY_PAIRS else _reduced(rows)


def _reduced(rows: Any, across: int = 400) -> Any:
    """Cells of neighbouring outputs, and in each of neighbouring prompts, at their means; tails keep fine cells."""
    import numpy as np

    cell = _groups(rows[:, 1], rows[:, 2], across)
    prompt_cell = np.empty(len(rows), dtype=int)
    order = np.argsort(cell, kind="stable")
    for inside in np.split(order, np.flatnonzero(np.diff(cell[order])) + 1):
        prompt_cell[inside] = _groups(rows[inside, 0], rows[inside, 2], 60)
    _, index = np.unique(cell * 1000 + prompt_cell, return_inverse=True)
    mass = np.bincount(index, rows[:, 2])
    means = [np.bincount(index, rows[:, 2] * rows[:, column]) / mass for column in (0, 1)]
    return np.column_stack([*means, mass])


def _groups(values: Any, weights: Any, n: int) -> Any:
    """Group of each value: equal shares of mass, of the square and of the fourth power."""
    import numpy as np

    order = np.argsort(values, kind="stable")
    v, w = values[order], weights[order]
    importance: Any = sum(np.cumsum(w * v**k) / max(float((w * v**k).sum()), 1e-300) for k in (0, 2, 4))
    group = np.empty(len(values), dtype=int)
    group[order] = np.minimum((importance / 3 * n).astype(int), n - 1)
    return group


def _from_histograms(path: Path, table: _Table) -> Workload:
    """Marginal histograms: input and output independent."""
    found: dict[str, dict[float, float]] = {"input_tokens": {}, "output_tokens": {}, "reason_ratio": {}}
    pick = table.picker(("field", "value", "expected_requests"))
    for number, record in table.rows:
        name, value, requests = pick(record)
        if not isinstance(name, str) or name not in found:
            raise UnknownNameError.among(str(name), found, "field", key=f"line {number}, field")
        length = _amount(value, "value", number)
        if length in found[name]:
            raise InputError(f"{name} {length:g} occurs twice", key=f"line {number}, value")
        found[name][length] = _amount(requests, "expected_requests", number)
    if not (found["input_tokens"] and found["output_tokens"]):
        raise InputError("needs the fields input_tokens and output_tokens", key="field")
    return Workload(
        Empirical(found["input_tokens"]), Empirical(found["output_tokens"]), name=_stem(path), file=str(path)
    )


def _amount(cell: Any, column: str, number: int) -> float:
    """A number of zero or more."""
    if isinstance(cell, str) and (match := _DECIMAL.fullmatch(cell.strip(" \t\r"))):
        cell = float(match[0])
    if isinstance(cell, bool) or not isinstance(cell, (int, float)) or not 0 <= cell <= 1e9:
        raise InputError(f"{str(cell)[:40]!r} must be a number, 0 or more", key=f"line {number}, {column}")
    return float(cell)


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").rsplit(".", 1)[0][:80]
