"""Traces of requests: CSV or JSON lines, one request a line, plain or gzip, into a :class:`Workload`."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from capplan.cards.workload import Workload
from capplan.errors import InputError
from capplan.formulas.empirical import Empirical

INPUT_COLUMNS = ("input_tokens", "input_length", "prompt_tokens", "ContextTokens", "num_prompt_tokens", "isl")
OUTPUT_COLUMNS = ("output_tokens", "output_length", "completion_tokens", "GeneratedTokens", "num_decode_tokens", "osl")
REASONING_COLUMNS = ("reason_tokens", "reasoning_tokens")
MAX_ROWS = 5_000_000
MAX_LINE = 4_000_000
MAX_BYTES = 4_000_000_000
MANY_PAIRS = 100_000
"""Above so many distinct (prompt, output) pairs a trace is reduced to weighted cells."""


def load_trace(path: Path) -> Workload:
    """The joint law of prompt and output tokens of a trace.

    Columns are known by the names in ``INPUT_COLUMNS`` and ``OUTPUT_COLUMNS``; a reasoning column gives the reasoning
    share. A histogram file with the columns ``field,value,expected_requests`` gives two independent laws.

    Raises
    ------
    InputError : no such columns, a line that is no request, an empty or oversized file
    """
    try:
        rows = _rows(path)
        first = next(rows, None)
        if first is None:
            raise InputError("holds no request")
        if {"field", "value", "expected_requests"} <= set(first[1]):
            return _from_histograms(path, _chain(first, rows))
        return _from_requests(path, _chain(first, rows))
    except InputError as error:
        raise error.located(file=str(path)) from None
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, csv.Error) as error:
        raise InputError(f"cannot be read ({str(error)[:80]})", file=str(path)) from None


def _chain(first: tuple[int, dict[str, Any]], rest: Iterator[tuple[int, dict[str, Any]]]) -> Iterator[Any]:
    yield first
    yield from rest


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and record of every line."""
    name = path.name.lower()
    open_file: Any = gzip.open if name.endswith(".gz") else open
    with open_file(path, "rb") as stream:
        lines = _lines(stream)
        if name.removesuffix(".gz").endswith(".csv"):
            for number, record in enumerate(csv.DictReader(lines), start=2):
                yield number, record
        else:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, _json_line(line, number)


def _lines(stream: Any) -> Iterator[str]:
    size = 0
    for number in range(MAX_ROWS + 2):
        line = stream.readline(MAX_LINE)
        size += len(line)
        if not line:
            return
        if len(line) == MAX_LINE or size > MAX_BYTES:
            raise InputError(f"line {number + 1} is too long, or the file is larger than {MAX_BYTES // 10**9} GB")
        yield line.decode("utf-8-sig" if number == 0 else "utf-8")
    raise InputError(f"more than {MAX_ROWS:,} requests; give a sample of it")


def _json_line(line: str, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError("is not valid JSON", key=f"line {number}") from None
    if not isinstance(record, dict):
        raise InputError("must be a JSON object, one request a line", key=f"line {number}")
    return record


def _column(record: dict[str, Any], names: tuple[str, ...]) -> str | None:
    lower = {str(key).strip().lower(): key for key in record if key is not None}
    return next((lower[name.lower()] for name in names if name.lower() in lower), None)


def _tokens(record: dict[str, Any], column: str, number: int, least: int) -> float:
    text = record.get(column)
    try:
        value = float(text) if isinstance(text, (str, int, float)) and not isinstance(text, bool) else float("nan")
    except ValueError:
        value = float("nan")
    if not least <= value <= 1e9:
        problem = f"{str(text)[:40]!r} must be a token count, {least} or more"
        raise InputError(problem, key=f"line {number}, {column}")
    return value


def _from_requests(path: Path, rows: Iterator[tuple[int, dict[str, Any]]]) -> Workload:
    pairs: dict[tuple[float, float], int] = {}
    columns: tuple[str, str, str | None] | None = None
    reasoning = output_total = 0.0
    for number, record in rows:
        columns = columns or _columns(record)
        pair = _tokens(record, columns[0], number, 0), _tokens(record, columns[1], number, 1)
        pairs[pair] = pairs.get(pair, 0) + 1
        if columns[2] is not None:
            reasoning += _tokens(record, columns[2], number, 0)
            output_total += pair[1]
    share = min(1.0, reasoning / output_total) if output_total else None
    return Workload(joint=_sample(pairs), name=_stem(path), reasoning_share=share, file=str(path))


def _columns(record: dict[str, Any]) -> tuple[str, str, str | None]:
    prompt, output = _column(record, INPUT_COLUMNS), _column(record, OUTPUT_COLUMNS)
    if prompt is None or output is None:
        wanted, known = ("input", INPUT_COLUMNS) if prompt is None else ("output", OUTPUT_COLUMNS)
        found = ", ".join(str(key) for key in list(record)[:8])[:120]
        raise InputError(f"no column of {wanted} tokens; known: {', '.join(known)}; found: {found}")
    return prompt, output, _column(record, REASONING_COLUMNS)


def _sample(pairs: dict[tuple[float, float], int]) -> Any:
    import numpy as np

    rows = np.array([(prompt, output, count) for (prompt, output), count in pairs.items()], dtype=float)
    return rows if len(rows) <= MANY_PAIRS else _reduced(rows)


def _reduced(rows: Any, across: int = 400) -> Any:
    """Cells of neighbouring outputs, and in each of neighbouring prompts, at their means; tails keep fine cells."""
    import numpy as np

    cell = _groups(rows[:, 1], rows[:, 2], across)
    prompt_cell = np.empty(len(rows), dtype=int)
    for one in np.unique(cell):
        inside = cell == one
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


def _from_histograms(path: Path, rows: Iterator[tuple[int, dict[str, Any]]]) -> Workload:
    """Marginal histograms: input and output independent, mean reasoning share if one is given."""
    found: dict[str, dict[float, float]] = {}
    for number, record in rows:
        name = str(record.get("field", ""))
        if name in ("input_tokens", "output_tokens", "reason_ratio"):
            value = _tokens(record, "value", number, 0)
            found.setdefault(name, {})[value] = _tokens(record, "expected_requests", number, 0)
    if not {"input_tokens", "output_tokens"} <= set(found):
        raise InputError("needs the fields input_tokens and output_tokens", key="field")
    return Workload(
        Empirical(found["input_tokens"]), Empirical(found["output_tokens"]), name=_stem(path), file=str(path)
    )


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").rsplit(".", 1)[0][:80]
