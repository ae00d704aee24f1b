"""The lines of a log file, read in bounded time and memory."""

from __future__ import annotations

import re
from pathlib import Path

from capplan.cards.store import read_bytes
from capplan.errors import InputError

MAX_LOG_BYTES = 32_000_000
MAX_LINES = 400_000
MAX_LINE_CHARACTERS = 500_000
"""Progress bars are one line for whoever counts line feeds; no start-up prints more of them."""

_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def log_lines(path: str | Path) -> list[str]:
    """Lines of a log, as editors count them, without terminal colours.

    Parameters
    ----------
    path : of a text file of at most 32 MB, 400,000 lines and 500,000 characters a line

    Returns
    -------
    lines : bytes that are no UTF-8 are replaced, as progress bars cut some in two

    Raises
    ------
    InputError : not readable, no regular file, too large, or no text
    """
    file = str(path)
    data = read_bytes(Path(path), MAX_LOG_BYTES, "cut the start-up of the engine out of it")
    if b"\0" in data:
        raise InputError("is no text in UTF-8 (it holds null bytes); give the engine's log as text", file=file)
    if data.count(b"\n") >= MAX_LINES:
        raise InputError(f"more than {MAX_LINES:,} lines, cut the start-up of the engine out of it", file=file)
    lines = data.decode("utf-8-sig", errors="replace").split("\n")
    if (longest := max(map(len, lines))) > MAX_LINE_CHARACTERS:
        raise InputError(f"a line of {longest:,} characters is no line of an engine's log", file=file)
    return [_COLOURS.sub("", line) if "\x1b" in line else line for line in lines]
