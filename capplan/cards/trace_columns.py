"""Which column of a trace holds what: known names, and ``--column input=my_col`` for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from capplan.errors import InputError, UnknownNameError

INPUT_COLUMNS = (
    "input_tokens", "input_length", "prompt_tokens", "ContextTokens", "num_prompt_tokens", "isl", "Request tokens",
)  # fmt: skip
OUTPUT_COLUMNS = (
    "output_tokens", "output_length", "completion_tokens", "GeneratedTokens", "num_decode_tokens", "osl",
    "Response tokens",
)  # fmt: skip
REASONING_COLUMNS = ("reason_tokens", "reasoning_tokens")
TIME_COLUMNS = ("timestamp", "arrival_s", "arrival_ms", "arrived_at", "arrival_time")
HASH_COLUMNS = ("hash_ids", "block_hashes")

KNOWN: Mapping[str, tuple[str, ...]] = {
    "timestamp": TIME_COLUMNS,
    "input": INPUT_COLUMNS,
    "output": OUTPUT_COLUMNS,
    "reasoning": REASONING_COLUMNS,
    "class": (),
    "hashes": HASH_COLUMNS,
}
"""Quantity -> names of a column that holds it, in whatever case; a class is named by the user alone."""
TIME_UNITS: Mapping[str, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_UNIT_TOLD_BY = {"Response tokens": "s", "hash_ids": "ms", "GeneratedTokens": "s"}
"""Columns that tell whose trace it is, and with it the unit of its time stamps."""


class Columns(NamedTuple):
    """Names of the columns of a trace, None where there is none, and the unit of its time stamps where it is known."""

    timestamp: str | None
    input: str
    output: str
    reasoning: str | None
    group: str | None
    hashes: str | None
    time_unit: str | None

    @property
    def names(self) -> list[str]:
        """The columns to read."""
        named = (self.timestamp, self.input, self.output, self.reasoning, self.group, self.hashes)
        return list(dict.fromkeys(name for name in named if name is not None))


def parsed_columns(settings: Sequence[str]) -> dict[str, str]:
    """``input=my_col`` settings as quantity -> column; an empty column means: do not read that quantity.

    Raises
    ------
    InputError : no ``=``, an unknown quantity, or one given twice
    """
    found: dict[str, str] = {}
    for setting in settings:
        quantity, equals, column = setting.partition("=")
        if not equals:
            raise InputError(f"{setting[:80]!r} must look like input=my_col", key="--column")
        if quantity in found:
            raise InputError(f"{quantity[:80]!r} is given twice", key="--column")
        found[checked_quantity(quantity, "--column")] = column
    return found


def checked_quantity(quantity: str, key: str) -> str:
    """The name of a quantity that a trace can hold, or an error with the nearest one."""
    if quantity not in KNOWN:
        raise UnknownNameError.among(quantity, KNOWN, "quantity", key=key)
    return quantity


def find_columns(names: Sequence[str], mapped: Mapping[str, str]) -> Columns:
    """The columns of a trace by their names and what the user maps.

    Raises
    ------
    InputError : no column of input or output tokens, two rivals, or a mapped column that is not there
    """
    stated, unit = _time_setting(names, mapped.get("timestamp", ""))
    given = {**mapped, "timestamp": stated} if "timestamp" in mapped else dict(mapped)
    found = {quantity: _column(names, quantity, given) for quantity in KNOWN}
    for quantity in ("input", "output"):
        if found[quantity] is None:
            listed = ", ".join(names[:8])[:120]
            raise InputError(
                f"no column of {quantity} tokens; known: {', '.join(KNOWN[quantity])}; found: {listed}; "
                f"map it with --column {quantity}=NAME"
            )
    time = found["timestamp"]
    return Columns(
        time,
        str(found["input"]),
        str(found["output"]),
        found["reasoning"],
        found["class"],
        found["hashes"],
        unit or (None if time is None else _unit_of(time, names)),
    )


def _column(names: Sequence[str], quantity: str, mapped: Mapping[str, str]) -> str | None:
    if quantity in mapped:
        return _mapped(names, quantity, mapped[quantity])
    wanted = {name.lower() for name in KNOWN[quantity]}
    found = [name for name in names if name.strip().lower() in wanted]
    if len(found) > 1:
        what = f"{quantity} tokens" if quantity in ("input", "output", "reasoning") else quantity
        remedy = f"keep one, or say which: --column {quantity}={found[0]}"
        raise InputError(f"columns {found[0]!r} and {found[1]!r} both give {what}; {remedy}", key="line 1")
    return found[0] if found else None


def _mapped(names: Sequence[str], quantity: str, column: str) -> str | None:
    if not column:
        return None
    if column not in names:
        raise UnknownNameError.among(column, [name for name in names if name], "column", key=quantity)
    return column


def _time_setting(names: Sequence[str], setting: str) -> tuple[str, str | None]:
    """``my_time:ms`` as column and unit; a column may have a colon in its own name."""
    column, colon, unit = setting.rpartition(":")
    if not colon or setting in names:
        return setting, None
    if unit not in TIME_UNITS:
        raise InputError(f"unit {unit[:20]!r} of a time stamp; allowed: {', '.join(TIME_UNITS)}", key="timestamp")
    return column, unit


def _unit_of(column: str, names: Sequence[str]) -> str | None:
    """The unit that a column's own name, or its neighbours, state."""
    ending = column.lower().rpartition("_")[2]
    if ending in TIME_UNITS and "_" in column:
        return ending
    return next((unit for name, unit in _UNIT_TOLD_BY.items() if name in names), None)
