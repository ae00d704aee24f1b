"""All named quantities, in one table."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from capplan.errors import UnitError, UnknownNameError
from capplan.quantities import units

if TYPE_CHECKING:
    from capplan.quantities.quantity import Quantity

_TOPICS = ("model", "memory", "step", "prefill", "tails", "pressure")


@cache
def all_quantities() -> dict[str, Quantity]:
    """Name to quantity, for every quantity capplan knows."""
    topics = [importlib.import_module(f"capplan.quantities.{topic}_quantities") for topic in _TOPICS]
    return {quantity.name: quantity for topic in topics for quantity in topic.QUANTITIES}


def quantity(name: str, *, key: str | None = None, file: str | None = None) -> Quantity:
    """The quantity of that name.

    Raises
    ------
    UnknownNameError : nobody registered it; the message names the nearest one
    """
    try:
        return all_quantities()[name]
    except KeyError:
        raise UnknownNameError.among(name, all_quantities(), "quantity", key=key, file=file) from None


def _parse_gib(amount: units.Amount, *, key: str | None = None) -> float:
    return units.parse_bytes(amount, key=key) / 2**30


_PARSERS: dict[str, Callable[..., float]] = {
    "GiB": _parse_gib,
    "s": units.parse_seconds,
    "B": units.parse_bytes,
    "B/s": units.parse_bandwidth,
    "FLOP/s": units.parse_flops,
    "token": units.parse_tokens,
    "1/s": units.parse_rate,
}


def override_value(name: str, value: Any) -> float:
    """The value of an override: a number in the quantity's base unit, or an amount with its unit as text.

    Raises
    ------
    UnknownNameError : no such quantity
    UnitError : text whose unit does not fit, a negative, NaN or infinite number, one outside the quantity's range
    """
    known, key = quantity(name, key=f"override.{name}"), f"override.{name}"
    if known.signed and isinstance(value, (int, float)) and value < 0:
        return -override_value(name, -value)
    parse = _PARSERS.get(known.unit, units.parse_count) if isinstance(value, str) else units.parse_count
    number = parse(value, key=key)
    _check_range(known, number, key)
    return number


def _check_range(known: Quantity, number: float, key: str) -> None:
    from capplan.quantities.quantity import SMALLEST

    unit = "" if known.unit == "1" else f" {known.unit}"
    if known.positive and number <= 0.0:
        raise UnitError(f"{number:g}{unit} must be above zero", key=key)
    if number > known.most:
        raise UnitError(f"{number:g}{unit} must be at most {known.most:g}{unit}", key=key)
    if 0.0 < number < SMALLEST:
        raise UnitError(f"{number:g}{unit} is too small: {SMALLEST:g}{unit} or more", key=key)
    if known.whole and number != int(number):
        raise UnitError(f"{number:g}{unit} must be a whole number", key=key)
