"""A number on a card: value, unit, source and kind always travel together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Literal, NamedTuple

Kind = Literal["spec", "measured", "fitted", "assumed"]

PARTS = {"value", "unit", "source", "kind"}
KINDS = {"spec", "measured", "fitted", "assumed"}
_LIST_PARTS = {"values", "unit", "source", "kind"}


class Number(NamedTuple):
    """One sourced number; :mod:`capplan.cards.number_schema` says what a card may hold.

    ``kind`` says how far to trust it: ``spec`` (a data sheet, a config file), ``measured`` (on silicon), ``fitted``
    (a constant of a formula, fitted to measurements) or ``assumed`` (nobody measured it; every answer that uses it
    lists it).
    """

    value: float
    unit: str
    source: str
    kind: Kind

    def model_dump(self) -> dict[str, Any]:
        """The number as a card has it."""
        return self._asdict()


def number_of(raw: Mapping[str, Any]) -> Number:
    """A number from the plain data of a card.

    Raises
    ------
    AttributeError, KeyError, TypeError, ValueError : it is not certainly one; the schema of the card says what is wrong
    """
    value, unit, source, kind = raw["value"], raw["unit"], raw["source"], raw["kind"]
    named = type(unit) is str and 0 < len(unit) <= 40 and type(source) is str and 0 < len(source) <= 400
    if raw.keys() != PARTS or kind not in KINDS or not named or type(value) not in (int, float):
        raise ValueError("not certainly a number")
    return Number(float(value), unit, source, kind)


class Sources(Mapping[str, Number]):
    """Dotted key to :class:`Number`, for every number of a card; built when first asked for."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data

    @cached_property
    def _numbers(self) -> dict[str, Number]:
        return {
            key: Number(float(raw["value"]), raw["unit"], raw["source"], raw["kind"])
            for key, raw in plain_numbers(self._data)
        }

    def __getitem__(self, key: str) -> Number:
        return self._numbers[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


def plain_numbers(part: Any, key: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every number in the plain data of a card, with its dotted key; one for each value of a list of numbers."""
    if isinstance(part, dict) and part.keys() == PARTS:
        yield key, part
    elif isinstance(part, dict) and part.keys() == _LIST_PARTS:
        shared = {name: part[name] for name in ("unit", "source", "kind")}
        yield from ((f"{key}.{position}", {"value": value, **shared}) for position, value in enumerate(part["values"]))
    elif isinstance(part, (dict, list)):
        for name, inner in part.items() if isinstance(part, dict) else enumerate(part):
            yield from plain_numbers(inner, f"{key}.{name}" if key else str(name))
