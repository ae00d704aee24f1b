"""All named quantities, in one table."""

from __future__ import annotations

from functools import cache

from capplan.errors import UnknownNameError
from capplan.quantities import (
    memory_quantities,
    pools_quantities,
    prefill_quantities,
    step_quantities,
    tails_quantities,
)
from capplan.quantities.quantity import Quantity


@cache
def all_quantities() -> dict[str, Quantity]:
    """Name to quantity, for every quantity capplan knows."""
    topics = (memory_quantities, step_quantities, prefill_quantities, tails_quantities, pools_quantities)
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
