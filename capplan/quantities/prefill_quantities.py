"""Named quantities of the prefill topic: the parts of a pass over prompts, apart from those of a decode step."""

from __future__ import annotations

from dataclasses import replace

from capplan.quantities.quantity import Quantity, with_ranges
from capplan.quantities.step_quantities import PARTS

_OF_STEPS_ONLY = ("step_seconds", "tokens_per_step")

_QUANTITIES: tuple[Quantity, ...] = (
    Quantity(
        "prefill_seconds",
        "s",
        "Time of one forward pass over the prompts in flight.",
        "prefill_time_factor * sum of the parts",
        "capplan.serving.prefill",
    ),
    Quantity(
        "prefill_time_factor",
        "1",
        "Measured over predicted time of every prefill pass: 1, an end of the error band, or what a benchmark shows.",
        "given",
        "hardware card, bands",
    ),
    *(
        replace(part, name=f"prefill_{part.name}", meaning=f"Prefill: {part.meaning[0].lower()}{part.meaning[1:]}")
        for part in PARTS
        if part.name not in _OF_STEPS_ONLY
    ),
)

QUANTITIES = with_ranges(
    _QUANTITIES,
    positive=(
        "prefill_seconds",
        "prefill_time_factor",
        "prefill_expert_rows",
        "prefill_distinct_experts",
        "prefill_distinct_experts_per_rank",
    ),
    most={"prefill_time_factor": 1000.0},
)
