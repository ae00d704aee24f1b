"""Where cards are found: shipped with the wheel, or beside ``pyproject.toml`` in a working copy."""

from __future__ import annotations

import json
import stat
from functools import cache
from pathlib import Path
from typing import Any

from capplan.errors import InputError, UnknownNameError

MAX_CARD_BYTES = 4_000_000
"""A card or config larger than this is refused before it is parsed."""


@cache
def card_root() -> Path:
    """The folder that holds ``hardware/``, ``models/``, ``workloads/`` and ``engines/``."""
    package = Path(__file__).resolve().parent.parent
    if (shipped := package / "_cards").is_dir():
        return shipped
    if (package.parent / "pyproject.toml").is_file():
        return package.parent
    raise InputError("the card folders are missing from this installation; install capplan again")


@cache
def card_names(kind: str) -> tuple[str, ...]:
    """Names of the shipped cards of a kind (``hardware``, ``models``, ``workloads``, ``engines``), sorted."""
    return tuple(sorted(path.stem for path in (card_root() / kind).glob("*.json")))


def find_card(kind: str, name_or_path: str, aliases: dict[str, str] | None = None) -> Path:
    """The file of a card, by name (case does not matter), alias or path.

    Raises
    ------
    UnknownNameError : neither a shipped name nor an existing file
    """
    name = name_or_path.lower()
    name = (aliases or {}).get(name, name)
    if name in card_names(kind):
        return card_root() / kind / f"{name}.json"
    path = Path(name_or_path)
    try:
        if path.exists():
            return path
        beside = Path(f"{name_or_path}.json").is_file()
    except (OSError, ValueError):
        beside = False
    what = f"{kind.removesuffix('s')} card"
    if beside:
        raise UnknownNameError(f"unknown {what} {name_or_path[:80]!r}; for the file give {name_or_path[:80]}.json")
    what += ", and no file of that name:"
    raise UnknownNameError.among(name_or_path, [*card_names(kind), *(aliases or {})], what)


def read_text(path: Path, limit: int = MAX_CARD_BYTES) -> str:
    """The UTF-8 text of a regular file of at most ``limit`` bytes, without a byte-order mark.

    A device, a pipe or a socket may block or never end, so only regular files are opened, and never more than
    ``limit + 1`` bytes are read.

    Raises
    ------
    InputError : not readable, no regular file, larger than ``limit``, or not UTF-8
    """
    try:
        return read_bytes(path, limit, "which no card or scenario is").decode("utf-8-sig")
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot be read ({_reason(error)})", file=str(path)) from None


def read_bytes(path: Path, limit: int, remark: str) -> bytes:
    """The bytes of a regular file of at most ``limit`` bytes; ``remark`` ends the complaint about a larger one.

    Raises
    ------
    InputError : not readable, no regular file, or larger than ``limit``
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = "is a folder" if stat.S_ISDIR(mode) else "is no regular file (a device, pipe or socket)"
            raise InputError(f"cannot be read ({kind})", file=str(path))
        with path.open("rb") as stream:
            data = stream.read(limit + 1)
    except InputError:
        raise
    except (OSError, ValueError) as error:  # a null byte in the path
        raise InputError(f"cannot be read ({_reason(error)})", file=str(path)) from None
    if len(data) > limit:
        raise InputError(f"larger than {_size(limit)}, {remark}", file=str(path))
    return data


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, with hostile files refused in bounded time and memory.

    Raises
    ------
    InputError : not readable, no regular file, too large, not JSON, nested too deep, duplicate keys, or no object
    """
    text = read_text(path)
    try:
        data = json.loads(text, object_pairs_hook=no_duplicates)
    except InputError as error:
        raise error.located(file=str(path)) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not valid JSON ({_reason(error)})", file=str(path)) from None
    if not isinstance(data, dict):
        raise InputError("must hold one JSON object", file=str(path))
    return data


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 10**6:g} MB" if n_bytes >= 10**6 else f"{n_bytes:,} bytes"


def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs, for ``json.loads``; an :class:`InputError` where a key occurs twice."""
    result = dict(pairs)
    if len(result) == len(pairs):
        return result
    names = [name for name, _ in pairs]
    twice = next(name for name in names if names.count(name) > 1)
    raise InputError(f"key {twice[:80]!r} occurs twice")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error).splitlines()[0][:120]
