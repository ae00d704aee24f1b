"""How an answer leaves: table, JSON, CSV or Markdown on stdout; prose on stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from capplan.errors import InputError
from capplan.quantities.tables import columns, markdown

if TYPE_CHECKING:
    from capplan.quantities.chain import Chain


class Format(str, Enum):
    """Shapes an answer can take."""

    table = "table"
    json = "json"
    csv = "csv"
    md = "md"


JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON, the same as --format json.")]
FormatOption = Annotated[Format, typer.Option("--format", help="Shape of the answer.")]
ExplainFlag = Annotated[bool, typer.Option("--explain", help="Print the chain of formulas behind the answer.")]


def emit(
    data: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    rows: Sequence[Sequence[str]],
    header: Sequence[str],
    *,
    json_flag: bool,
    shape: Format,
    chains: Mapping[str, Chain] | None = None,
) -> None:
    """Print one answer.

    Parameters
    ----------
    data : what JSON (and CSV) carry: keys with units, plain numbers
    rows, header : what a person reads, already formatted
    chains : title to chain, printed before the answer, or under the key ``chain`` of JSON; CSV has no room for them
    """
    if json_flag and shape not in (Format.table, Format.json):
        raise InputError(f"--json and --format {shape.value} exclude each other", key="--json")
    if chains and (json_flag or shape is Format.json):
        from capplan.tracing.explain import chain_records

        data = {**_one(data), "chain": {title: chain_records(chain) for title, chain in chains.items()}}
    elif chains and shape is not Format.csv:
        from capplan.tracing.explain import render

        typer.echo("".join(f"== {title}\n{render(chain)}\n\n" for title, chain in chains.items()), nl=False)
    if json_flag or shape is Format.json:
        typer.echo(json.dumps(jsonable(data), indent=2, allow_nan=False))
    elif shape is Format.csv:
        _emit_csv(data)
    else:
        emit_rows(rows, header, shape)


def emit_rows(rows: Sequence[Sequence[str]], header: Sequence[str], shape: Format) -> None:
    """A table for people on stdout: Markdown, aligned columns, or as wide as the terminal."""
    if shape is Format.md:
        typer.echo(markdown(rows, header))
    elif sys.stdout.isatty():
        show_table(rows, header, sys.stdout)
    else:
        typer.echo(columns(rows, header))


def show_table(rows: Sequence[Sequence[str]], header: Sequence[str], stream: IO[str]) -> None:
    """A table as wide as the terminal behind the stream; long cells are folded."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(*header, box=SIMPLE_HEAD, highlight=False)
    for row in rows:
        table.add_row(*row)
    Console(file=stream, markup=False, emoji=False).print(table)


def _one(data: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return data if isinstance(data, Mapping) else {"answers": list(data)}


def note(text: str) -> None:
    """Prose that is not part of the answer: to stderr."""
    typer.echo(text, err=True)


def jsonable(value: Any) -> Any:
    """The value with NumPy numbers, mappings and non-finite floats made fit for JSON (infinity becomes null)."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if hasattr(value, "tolist"):
        return jsonable(value.tolist())
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    return value


def _emit_csv(data: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    records = [data] if isinstance(data, Mapping) else list(data)
    flat = [_flatten(jsonable(record)) for record in records]
    names = list(dict.fromkeys(name for record in flat for name in record))
    import csv

    writer = csv.DictWriter(sys.stdout, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _inert(value) for name, value in record.items()} for record in flat)


def _flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list) and all(isinstance(item, str) for item in value):
        return {prefix: "; ".join(value)}
    elif isinstance(value, list):
        items = ((str(index), item) for index, item in enumerate(value))  # type: ignore[assignment]
    else:
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, item in items:
        flat.update(_flatten(item, f"{prefix}.{key}" if prefix else str(key)))
    return flat


def _inert(value: Any) -> Any:
    """Text that a spreadsheet would run as a formula gets a leading apostrophe; truth is written as in JSON."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
