"""Named quantities of the prefill topic: the parts of a pass over prompts, apart from those of a decode step."""

from __future__ import annotations

from dataclasses import replace

from capplan.quantities.quantity import Quantity
from capplan.quantities.step_quantities import PARTS

_OF_STEPS_ONLY = ("step_seconds", "tokens_per_step")

QUANTITIES: tuple[Quantity, ...] = (
    Quantity(
        "prefill_seconds",
        "s",
        "Time of one forward pass over the prompts in flight.",
        "sum of the parts",
        "capplan.serving.prefill",
    ),
    *(
        replace(part, name=f"prefill_{part.name}", meaning=f"Prefill: {part.meaning[0].lower()}{part.meaning[1:]}")
        for part in PARTS
        if part.name not in _OF_STEPS_ONLY
    ),
)
