"""Plain text tables: aligned columns, and Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]], header: Sequence[str]) -> str:
    """Cells padded to the widest of their column; rows may be of unequal length, and the header empty."""
    table = [header, *rows] if header else list(rows)
    widths = [max(len(row[i]) for row in table if i < len(row)) for i in range(max(map(len, table)))]
    return "\n".join("  ".join(cell.ljust(widths[i]) for i, cell in enumerate(row)).rstrip() for row in table)


def markdown(rows: Sequence[Sequence[str]], header: Sequence[str]) -> str:
    """A Markdown table; short rows are filled up, and pipes in cells escaped."""
    width = max(map(len, [header, *rows]))
    lines = [header, ["---"] * width, *rows]
    return "\n".join("| " + " | ".join(_filled(line, width)) + " |" for line in lines)


def _filled(row: Sequence[str], width: int) -> list[str]:
    return [*(cell.replace("|", "\\|") for cell in row), *[""] * (width - len(row))]
