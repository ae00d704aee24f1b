"""Named quantities of the step topic."""

from __future__ import annotations

from capplan.quantities.quantity import Quantity

QUANTITIES: tuple[Quantity, ...] = ()
