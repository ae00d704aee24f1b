"""One named quantity: what it is called, its unit, what it means, how it is computed and who says so."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

LARGEST = 1e30
"""No quantity is larger in its base unit: squares and fourth powers of it are numbers still."""
SMALLEST = 1e-30
"""No quantity but zero is smaller."""


@dataclass(frozen=True)
class Quantity:
    """A quantity that may appear in an answer, in ``[override]`` and in a chain.

    Parameters
    ----------
    name : the one name it has everywhere, with its unit where the unit is not obvious
    unit : base SI unit as text (``s``, ``B``, ``B/s``, ``FLOP/s``, ``token``, ``1`` for a pure number)
    meaning : one sentence
    formula : plain-text formula over other quantity names, or where the value comes from
    source : who says so: a module of ``capplan.formulas``, a card, a paper
    positive : an override must be above zero; else zero or more
    most : largest value of an override, in the unit
    whole : an override must be a whole number
    signed : an override may be below zero
    """

    name: str
    unit: str
    meaning: str
    formula: str
    source: str
    positive: bool = False
    most: float = LARGEST
    whole: bool = False
    signed: bool = False


_RATES = ("B/s", "FLOP/s")


def with_ranges(
    quantities: Iterable[Quantity],
    *,
    positive: Collection[str] = (),
    whole: Collection[str] = (),
    shares: Collection[str] = (),
    most: Mapping[str, float] | None = None,
) -> tuple[Quantity, ...]:
    """The quantities with the ranges of their overrides.

    Parameters
    ----------
    quantities : of a topic
    positive : names of those above zero; bandwidths and arithmetic rates are so by their unit
    whole : names of counts
    shares : names of those that are at most 1
    most : largest value of others
    """
    limits = {**(most or {}), **dict.fromkeys(shares, 1.0)}
    return tuple(
        replace(
            one,
            positive=one.positive or one.name in positive or one.unit in _RATES,
            whole=one.whole or one.name in whole,
            most=limits.get(one.name, one.most),
        )
        for one in quantities
    )
