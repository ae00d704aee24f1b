"""What all sourced cards share: numbers into base units, aliases, and which files need their schema checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from capplan.cards.hardware import Band
from capplan.cards.number import number_of
from capplan.cards.store import card_names, card_root, read_json
from capplan.errors import InputError, UnitError

T = TypeVar("T")


@cache
def card_aliases(kind: str) -> dict[str, str]:
    """Alias to card name, for the shipped cards of a kind."""
    found: dict[str, str] = {}
    for name in card_names(kind):
        for alias in read_json(card_root() / kind / f"{name}.json").get("aliases", []):
            found[alias] = name
    return found


def built_card(
    kind: str,
    path: Path,
    build: Callable[[Mapping[str, Any]], T],
    validated: Callable[[dict[str, Any], str], dict[str, Any]],
) -> T:
    """What ``build`` makes of the plain data of a card file.

    A shipped card is known to fulfil its schema (the tests check it), so the schema, which takes longer to import
    than the card to read, is asked only about other files and where ``build`` fails.

    Parameters
    ----------
    kind : folder of the shipped cards
    path : the file
    build : from plain data; raises where a key is missing or unknown, or a value of the wrong type
    validated : the data as the schema leaves them, by data and file name

    Raises
    ------
    InputError : the file is no valid card; one line
    """
    data = read_json(path)
    if path.parent == card_root() / kind:
        try:
            return build(data)
        except (AttributeError, KeyError, TypeError, ValueError):
            pass
    try:
        return build(validated(data, str(path)))
    except InputError as error:
        raise error.located(file=str(path)) from None


def in_base_units(
    number: Mapping[str, Any], known: Mapping[str, float], key: str, *, least: float | None = None
) -> float:
    """The value of a card number in base units.

    Parameters
    ----------
    number : as written on the card: value, unit, source, kind
    known : units that fit, each with its factor
    key : dotted place on the card, for the error
    least : smallest value allowed; None asks for more than zero

    Raises
    ------
    UnitError : a unit of another kind, or a value out of range
    """
    written, unit, *_ = number_of(number)
    if unit not in known:
        allowed = ", ".join(unit for unit in known if unit)
        raise UnitError(f"unit {unit!r} does not fit; allowed: {allowed}", key=f"{key}.unit")
    value = written * known[unit]
    if not (value > 0 if least is None else value >= least) or value > 1e30:
        bound = "above zero" if least is None else f"{least:g} or more"
        raise UnitError(f"{written:g} must be {bound} (and finite)", key=f"{key}.value")
    return value


def whole(number: Mapping[str, Any], key: str) -> int:
    """A count on a card.

    Raises
    ------
    UnitError : not a whole number, 1 or more, or a unit other than ``1``
    """
    value = in_base_units(number, {"1": 1.0}, key)
    if value != int(value):
        raise UnitError(f"{value:g} must be a whole number", key=f"{key}.value")
    return int(value)


def card_band(key: str, *, low: Any, high: Any) -> Band:
    """The error band on a card, which holds the prediction itself.

    Raises
    ------
    UnitError : ends of another unit, on one side of 1 or far from it
    """
    ends = [in_base_units(end, {"1": 1.0}, f"{key}.{name}") for name, end in (("low", low), ("high", high))]
    band = Band(ends[0], ends[1], assumed="assumed" in (low["kind"], high["kind"]))
    if not 0.01 <= band.low <= 1.0 <= band.high <= 100.0:
        told = f"{band.low:g} to {band.high:g}"
        raise UnitError(f"{told} must have 1, the prediction itself, between them, and lie within 0.01 to 100", key=key)
    return band
