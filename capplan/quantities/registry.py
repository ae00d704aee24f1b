"""All named quantities, in one table."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from capplan.errors import UnknownNameError
from capplan.quantities import units

if TYPE_CHECKING:
    from capplan.quantities.quantity import Quantity

_TOPICS = ("model", "memory", "step", "prefill", "tails", "pools", "pressure")


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
    UnitError : text whose unit does not fit, a negative, NaN or infinite number
    """
    known, key = quantity(name, key=f"override.{name}"), f"override.{name}"
    if isinstance(value, str):
        return _PARSERS.get(known.unit, units.parse_count)(value, key=key)
    return units.parse_count(value, key=key)
