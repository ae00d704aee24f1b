"""Rows of a trace in batches of arrays, from CSV or JSON lines, plain or gzip, with bounded memory."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from capplan.cards.store import no_duplicates
from capplan.cards.trace_columns import Columns
from capplan.cards.trace_digits import MAX_TOKENS, Bytes, times, whole_numbers
from capplan.cards.trace_time import read_time
from capplan.errors import InputError

IntArray = NDArray[np.int64]

MAX_ROWS = 200_000_000
MAX_LINE = 4_000_000
MAX_BYTES = 40_000_000_000
MAX_EXPANSION = 200
"""A gzip file that grows more than this many times over is no trace."""
BLOCK = 1 << 20
BATCH = 8192
_WHOLE = re.compile(r"[0-9]{1,12}(?:\.0{0,12})?", re.ASCII)


class Batch(NamedTuple):
    """Some rows in a row. ``lines``: line of each; what the trace lacks is None."""

    lines: Any
    prompts: IntArray
    outputs: IntArray
    reasoning: IntArray | None
    stamps: NDArray[np.float64] | None
    dates: bool
    groups: list[str] | None
    hashes: list[Any] | None


def blocks(path: Path) -> Iterator[bytes]:
    """Whole lines of a plain or gzip file, about a megabyte at a time, each ended by a line feed.

    Raises
    ------
    InputError : a line or the file too long, or a gzip file that expands beyond all measure
    """
    packed = path.name.lower().endswith(".gz")
    opened: Any = (gzip.open if packed else open)(path, "rb")
    limit = min(MAX_BYTES, max(64 * BLOCK, MAX_EXPANSION * path.stat().st_size)) if packed else MAX_BYTES
    rest, size, number = b"", 0, 1
    with opened as stream:
        while block := stream.read(BLOCK):
            block = block.removeprefix(b"\xef\xbb\xbf") if size == 0 else block
            size += len(block)
            whole, feed, after = block.rpartition(b"\n")
            number += block.count(b"\n")
            if feed:
                yield rest + whole + feed
                rest = after
            else:
                rest += after
            if len(rest) > MAX_LINE or size > limit:
                raise InputError(f"line {number} is too long (more than {MAX_LINE:,} bytes), or the file "
                                 f"is larger than {limit / 1e9:.3g} GB; give a sample of it")  # fmt: skip
    if rest:
        yield rest + b"\n"


def json_names(block: bytes) -> list[str]:
    """The keys of the objects of a JSON lines block, those of the first one first; none where all lines are blank.

    A row may lack what others have. Lines that are no objects are told when they are read as requests, the first
    one at once.
    """
    lines = [(number, line) for number, line in enumerate(block.split(b"\n"), start=1) if line.strip()]
    names: dict[str, None] = {}
    for place, (number, line) in enumerate(lines):
        try:
            names |= dict.fromkeys(_object(decoded(line, number), number))
        except InputError:
            if place == 0:
                raise
    return list(names)


def json_batches(stream: Iterator[bytes], columns: Columns) -> Iterator[Batch]:
    """Batches of a JSON lines file, one request an object."""
    number = 0
    for block in stream:
        batch = _alike(block, number, columns)
        if batch is not None:
            yield batch
            number += len(batch.lines)
            continue
        found = decoded(block, number + 1).split("\n")[:-1]
        lines = [place for place, line in enumerate(found, number + 1) if line and not line.isspace()]
        texts = [line.strip() for line in found if line and not line.isspace()]
        rows = _all_objects(texts) or [_object(text, place) for text, place in zip(texts, lines, strict=True)]
        batch = _regular(lines, rows, columns)
        if batch is None:
            yield from row_batches(zip(lines, (row.get for row in rows), strict=True), columns)
        else:
            yield batch
        number += len(found)
        check_rows(number)


def decoded(data: bytes, number: int) -> str:
    """Text of a block that begins in that line, or an error that names the line which is none."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = number + data.count(b"\n", 0, error.start)
        raise InputError(
            "is not text in UTF-8; a trace is CSV or JSON lines, plain or gzip", key=f"line {line}"
        ) from None


def _alike(block: bytes, before: int, columns: Columns) -> Batch | None:
    """A block whose lines are one and the same but for the digits in them; None where they are not."""
    first, _, _ = block.partition(b"\n")
    if columns.group is not None or columns.hashes is not None or not first.startswith(b"{"):
        return None
    buffer = np.frombuffer(block, dtype=np.uint8)
    numeric = (buffer - np.uint8(48) <= 9) | (buffer == 46)
    rest, skeleton = buffer[~numeric], np.frombuffer(re.sub(rb"[0-9.]", b"", first) + b"\n", dtype=np.uint8)
    if len(rest) % len(skeleton) or not (rest.reshape(-1, len(skeleton)) == skeleton).all():
        return None
    runs = np.flatnonzero(np.diff(np.concatenate([[False], numeric, [False]]).astype(np.int8))).reshape(-1, 2)
    n = len(rest) // len(skeleton)
    place = {name: _run_of(name, first, runs, before + 1) for name in columns.names}
    after = np.cumsum(~numeric, dtype=np.int64)[runs[:, 0]].reshape(n, -1) if len(runs) % n == 0 else None
    if None in place.values() or after is None or (after != after[0] + len(skeleton) * np.arange(n)[:, None]).any():
        return None  # a number is missing, or stands elsewhere
    return _numbers_of(buffer, runs.reshape(n, -1, 2), place, before, columns)


def _run_of(name: str, line: bytes, runs: IntArray, number: int) -> int | None:
    """Which run of digits of a line is the whole value of a key; None where none certainly is."""
    row = _object(decoded(line, number), number)
    found = re.findall(rb'"%s"\s*:\s*()[0-9.]+\s*[,}]' % re.escape(name.encode()), line)
    match = re.search(rb'"%s"\s*:\s*([0-9.]+)\s*[,}]' % re.escape(name.encode()), line)
    if match is None or len(found) != 1 or not isinstance(row.get(name), (int, float)):
        return None
    return int(np.searchsorted(runs[:, 0], match.start(1)))


def _numbers_of(
    buffer: Bytes, runs: IntArray, place: dict[str, int | None], before: int, columns: Columns
) -> Batch | None:
    """The batch of a block of equal lines."""
    bounds = {name: (runs[:, run, 0], runs[:, run, 1]) for name, run in place.items() if run is not None}
    wanted = (columns.input, columns.output, columns.reasoning)
    prompts, outputs, thoughts = (None if name is None else whole_numbers(buffer, *bounds[name]) for name in wanted)
    stamps = None if columns.timestamp is None else times(buffer, *bounds[columns.timestamp])[0]
    missing = (columns.reasoning and thoughts is None) or (columns.timestamp and stamps is None)
    if missing or prompts is None or outputs is None or (thoughts is not None and (thoughts > outputs).any()):
        return None
    lines = np.arange(before + 1, before + 1 + len(runs))
    return Batch(lines, prompts, outputs, thoughts, stamps, False, None, None)


def _regular(lines: list[int], rows: list[dict[str, Any]], columns: Columns) -> Batch | None:
    """Objects in which every token count is a whole number in range and every time stamp a number; else None."""
    if columns.group is not None or not rows:
        return None
    try:
        cells = dict(zip(columns.names, zip(*map(itemgetter(*columns.names), rows), strict=True), strict=True))
    except KeyError:
        return None
    wanted = (columns.input, columns.output, columns.reasoning)
    prompts, outputs, thoughts = (None if name is None else _counts(cells[name]) for name in wanted)
    stamps = None if columns.timestamp is None else _stamps(cells[columns.timestamp])
    missing = (columns.reasoning and thoughts is None) or (columns.timestamp and stamps is None)
    if missing or prompts is None or outputs is None or (thoughts is not None and (thoughts > outputs).any()):
        return None
    hashes = None
    if (name := columns.hashes) is not None:
        hashes = [_hashes(cell, name, line) for cell, line in zip(cells[name], lines, strict=True)]
    return Batch(np.array(lines), prompts, outputs, thoughts, stamps, False, None, hashes)


def _counts(cells: Sequence[Any]) -> IntArray | None:
    if set(map(type, cells)) != {int} or min(cells) < 0 or max(cells) > MAX_TOKENS:
        return None
    return np.array(cells, dtype=np.int64)


def _stamps(cells: Sequence[Any]) -> NDArray[np.float64] | None:
    if not set(map(type, cells)) <= {int, float} or not 0 <= min(cells) <= max(cells) <= 1e20:
        return None
    stamps = np.array(cells, dtype=float)
    return stamps if np.isfinite(stamps).all() else None


def _all_objects(texts: list[str]) -> list[dict[str, Any]] | None:
    """Flat objects, one a line and no key twice, read together; None where they are not certainly that.

    As many quoted keys in the text as in the objects: then none was dropped for another of its name.
    """
    joined = ",".join(texts)
    if '" ' in joined or '"\t' in joined or not all(text[0] == "{" and text[-1] == "}" for text in texts):
        return None
    try:
        rows: list[dict[str, Any]] = json.loads(f"[{joined}]")
    except (ValueError, RecursionError):
        return None
    return rows if len(rows) == len(texts) and sum(map(len, rows)) == joined.count('":') else None


def _object(line: str, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line, object_pairs_hook=no_duplicates)
    except InputError as error:
        raise error.located(key=f"line {number}") from None
    except (ValueError, RecursionError):
        raise InputError("is not valid JSON", key=f"line {number}") from None
    if not isinstance(record, dict):
        raise InputError("must be a JSON object, one request a line", key=f"line {number}")
    return record


def check_rows(number: int) -> None:
    """Refuse a file of too many rows."""
    if number > MAX_ROWS + 1:
        raise InputError(f"more than {MAX_ROWS:,} requests; give a sample of it")


def row_batches(rows: Iterator[tuple[int, Callable[[str], Any]]], columns: Columns) -> Iterator[Batch]:
    """Batches from rows read one by one: the line, and what gives the cell of a column."""
    kept: list[tuple[Any, ...]] = []
    for number, cell in rows:
        prompt = whole_tokens(cell(columns.input), columns.input, number)
        output = whole_tokens(cell(columns.output), columns.output, number)
        kept.append((number, prompt, output, *_others(cell, columns, number, output)))
        if len(kept) == BATCH:
            yield _batch(kept, columns)
            kept = []
    if kept:
        yield _batch(kept, columns)


def _others(cell: Callable[[str], Any], columns: Columns, number: int, output: int) -> tuple[Any, ...]:
    """Reasoning, time stamp, whether that was a date, class and hashes of a row."""
    thought = stamp = None
    if columns.reasoning is not None:
        thought = whole_tokens(cell(columns.reasoning), columns.reasoning, number)
        if thought > output:
            raise InputError(f"{thought} is more than the {output} output tokens",
                             key=f"line {number}, {columns.reasoning}")  # fmt: skip
    dated = False
    if columns.timestamp is not None:
        raw = cell(columns.timestamp)
        stamp, dated = read_time(raw, columns.timestamp, number), isinstance(raw, str) and ":" in raw
    group = None if columns.group is None else str(cell(columns.group) or "none").strip()[:60]
    hashes = None if columns.hashes is None else _hashes(cell(columns.hashes), columns.hashes, number)
    return thought, stamp, dated, group, hashes


def _hashes(cell: Any, column: str, number: int) -> Sequence[Any]:
    """The block hashes of a prompt: a list, or text with spaces, semicolons or commas between."""
    items = re.split(r"[\s;,]+", cell.strip("[] \t\r")) if isinstance(cell, str) else cell
    if items is None:
        return ()
    if not isinstance(items, list) or not all(type(one) in (int, str) for one in items):
        raise InputError(f"{str(cell)[:40]!r} must be a list of block hashes", key=f"line {number}, {column}")
    return [one for one in items if one != ""]


def _batch(kept: list[tuple[Any, ...]], columns: Columns) -> Batch:
    lines, prompts, outputs, thoughts, stamps, dated, groups, hashes = (
        list(column) for column in zip(*kept, strict=True)
    )
    if any(dated) and not all(dated):
        number = lines[dated.index(not dated[0])]
        raise InputError("dates and plain numbers are mixed; use one", key=f"line {number}, {columns.timestamp}")
    return Batch(
        np.array(lines),
        np.array(prompts, dtype=np.int64),
        np.array(outputs, dtype=np.int64),
        None if columns.reasoning is None else np.array(thoughts, dtype=np.int64),
        None if columns.timestamp is None else np.array(stamps, dtype=float),
        bool(dated[0]),
        None if columns.group is None else groups,
        None if columns.hashes is None else hashes,
    )


def whole_tokens(cell: Any, column: str, number: int) -> int:
    """A whole token count, in ASCII digits where it is text."""
    if type(cell) is int and 0 <= cell <= MAX_TOKENS:
        return cell
    if isinstance(cell, str) and (match := _WHOLE.fullmatch(cell.strip(" \t\r"))):
        cell = float(match[0])
    if cell is None:
        raise InputError("is missing", key=f"line {number}, {column}")
    number_like = isinstance(cell, (int, float)) and not isinstance(cell, bool)
    if not number_like or not 0 <= cell <= MAX_TOKENS or cell != int(cell):
        problem = f"{str(cell)[:40]!r} must be a whole token count from 0 to {MAX_TOKENS:,}"
        raise InputError(problem, key=f"line {number}, {column}")
    return int(cell)
