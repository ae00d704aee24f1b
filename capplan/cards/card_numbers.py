"""What all sourced cards share: numbers into base units, every number under its key, aliases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from pydantic import BaseModel

from capplan.cards.number import Number
from capplan.cards.store import card_names, card_root, read_json
from capplan.errors import UnitError


@cache
def card_aliases(kind: str) -> dict[str, str]:
    """Alias to card name, for the shipped cards of a kind."""
    found: dict[str, str] = {}
    for name in card_names(kind):
        for alias in read_json(card_root() / kind / f"{name}.json").get("aliases", []):
            found[alias] = name
    return found


def in_base_units(number: Number, known: Mapping[str, float], key: str, *, least: float | None = None) -> float:
    """The value of a card number in base units.

    Parameters
    ----------
    number : as written on the card
    known : units that fit, each with its factor
    key : dotted place on the card, for the error
    least : smallest value allowed; None asks for more than zero

    Raises
    ------
    UnitError : a unit of another kind, or a value out of range
    """
    if number.unit not in known:
        allowed = ", ".join(unit for unit in known if unit)
        raise UnitError(f"unit {number.unit!r} does not fit; allowed: {allowed}", key=f"{key}.unit")
    value = number.value * known[number.unit]
    if value > 1e30 or (value <= 0 if least is None else value < least):
        bound = "above zero" if least is None else f"{least:g} or more"
        raise UnitError(f"{number.value:g} must be {bound} (and finite)", key=f"{key}.value")
    return value


def whole(number: Number, key: str) -> int:
    """A count on a card.

    Raises
    ------
    UnitError : not a whole number, 1 or more, or a unit other than ``1``
    """
    value = in_base_units(number, {"1": 1.0}, key)
    if value != int(value):
        raise UnitError(f"{value:g} must be a whole number", key=f"{key}.value")
    return int(value)


def numbers_of(card: BaseModel, prefix: str = "") -> Iterator[tuple[str, Number]]:
    """Every number of a card under its dotted key, so that value, unit, source and kind all arrive."""
    for name, entry in card:
        yield from _numbers_in(entry, prefix + name)


def _numbers_in(entry: object, key: str) -> Iterator[tuple[str, Number]]:
    if isinstance(entry, Number):
        yield key, entry
    elif isinstance(entry, BaseModel):
        yield from numbers_of(entry, f"{key}.")
    elif isinstance(entry, (dict, list)):
        for name, part in entry.items() if isinstance(entry, dict) else enumerate(entry):
            yield from _numbers_in(part, f"{key}.{name}")
