"""Named quantities of the prefill topic."""

from __future__ import annotations

from capplan.quantities.quantity import Quantity

QUANTITIES: tuple[Quantity, ...] = ()
