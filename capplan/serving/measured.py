"""Kernel constants not every hardware card has: asked for by the layers that need them."""

from __future__ import annotations

from capplan.cards.hardware import Hardware
from capplan.errors import InputError


def measured(hardware: Hardware, constant: str) -> float:
    """A kernel constant that may be absent from a card.

    Raises
    ------
    InputError : the card has none, so that the layer would cost nothing
    """
    value, key = float(getattr(hardware.kernels, constant)), f"kernels.{constant}"
    if not value and key not in hardware.sources:
        problem = f"the card of {hardware.name} lacks it, and a layer of this model needs it"
        raise InputError(problem, key=key, file=hardware.file or None)
    return value
