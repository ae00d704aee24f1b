"""One named quantity: what it is called, its unit, what it means, how it is computed and who says so."""

from __future__ import annotations

from dataclasses import dataclass


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
    """

    name: str
    unit: str
    meaning: str
    formula: str
    source: str
