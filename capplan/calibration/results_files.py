"""Result files: which ones a path, folder or pattern means, and their records, in bounded time and memory."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capplan.cards.store import no_duplicates, read_bytes
from capplan.errors import InputError

MAX_RESULT_BYTES = 64_000_000
"""Detailed results hold every gap between tokens of every request; larger ones are not needed for means."""
MAX_ALL_BYTES = 512_000_000
MAX_FILES = 2_000
MAX_ENTRIES = 100_000
"""Of the folders together."""
MAX_RECORDS = 20_000
_SUFFIXES = (".json", ".jsonl", ".csv")
_REMARK = "save without the details of single requests"


@dataclass(frozen=True)
class ResultFile:
    """A file, and whether it was named itself or found in a folder, where other files may lie."""

    path: Path
    named: bool


def result_files(paths: Sequence[str | Path]) -> list[ResultFile]:
    """The files behind paths, folders (searched through, ``.json``, ``.jsonl`` and ``.csv``) and patterns.

    A CSV beside a JSON of the same name, as genai-perf and aiperf write them, is left out of a folder.

    Raises
    ------
    InputError : a path that does not exist, a pattern or folder without such a file, too many of them
    """
    found: dict[Path, ResultFile] = {}
    for path in paths:
        for file in _behind(str(path)):
            found.setdefault(file.path, file)
    if len(found) > MAX_FILES:
        raise InputError(f"{len(found):,} files, more than {MAX_FILES:,}; name a narrower folder")
    return list(found.values())


def _behind(text: str) -> list[ResultFile]:
    try:
        path = Path(text)
        if path.is_dir():
            return _in_folder(path)
        if path.exists():
            return [ResultFile(path, named=True)]
        files = sorted(glob.glob(text, recursive=True)) if glob.has_magic(text) else []
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read ({str(error)[:80]})", file=text[:200]) from None
    if not files:
        raise InputError("no such file, folder or pattern that fits a file", file=text[:200])
    return [file for one in files for file in (_in_folder(Path(one)) if Path(one).is_dir() else [_named(one)])]


def _named(path: str) -> ResultFile:
    return ResultFile(Path(path), named=True)


def _in_folder(folder: Path) -> list[ResultFile]:
    found: list[Path] = []
    for count, path in enumerate(folder.rglob("*")):
        if count >= MAX_ENTRIES:
            raise InputError(f"more than {MAX_ENTRIES:,} entries; name a narrower folder", file=str(folder))
        if path.suffix in _SUFFIXES and path.is_file():
            found.append(path)
    every = set(found)
    taken = [path for path in sorted(found) if path.suffix != ".csv" or path.with_suffix(".json") not in every]
    if not taken:
        raise InputError("holds no .json, .jsonl or .csv file", file=str(folder))
    return [ResultFile(path, named=False) for path in taken]


def json_records(path: Path) -> Iterator[tuple[int | None, dict[str, Any]]]:
    """The objects of a JSON file (no line), or of a file with one object a line (with its line).

    Raises
    ------
    InputError : not readable, too large, no JSON, nested too deep, duplicate keys, or no objects
    """
    file = str(path)
    text = result_text(path)
    try:
        whole = _parsed(text, file, None)
    except InputError as error:
        lines = [line for line in text.split("\n") if line.strip()]
        if len(lines) < 2 or not _is_object(lines[0]):
            raise error from None
    else:
        yield None, whole
        return
    for index, line in enumerate(text.split("\n"), 1):
        if index > MAX_RECORDS:
            raise InputError(f"more than {MAX_RECORDS:,} lines", file=file)
        if line.strip():
            yield index, _parsed(line, file, index)


def _is_object(line: str) -> bool:
    return line.lstrip().startswith("{") and line.rstrip().endswith("}")


def _parsed(text: str, file: str, line: int | None) -> dict[str, Any]:
    place = file if line is None else f"{file}:{line}"
    try:
        data = json.loads(text, object_pairs_hook=no_duplicates)
    except InputError as error:
        raise error.located(file=place) from None
    except (ValueError, RecursionError) as error:
        problem = str(error).splitlines()[0][:120]
        raise InputError(f"is not valid JSON ({problem})", file=place) from None
    if not isinstance(data, dict):
        raise InputError("must hold one JSON object for each result", file=place)
    return data


def result_text(path: Path) -> str:
    """The UTF-8 text of a result file.

    Raises
    ------
    InputError : not readable, no regular file, too large, or no text
    """
    data = read_bytes(path, MAX_RESULT_BYTES, _REMARK)
    try:
        decoded = data.decode("utf-8-sig")
    except ValueError:
        raise InputError("is no text in UTF-8", file=str(path)) from None
    if "\0" in decoded:
        raise InputError("is no text (it holds null bytes)", file=str(path))
    return decoded
