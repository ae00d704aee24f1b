"""Named quantities of the memory topic."""

from __future__ import annotations

from capplan.quantities.quantity import Quantity

QUANTITIES: tuple[Quantity, ...] = ()
