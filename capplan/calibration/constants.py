"""The constants a benchmark can tell: which, how far they lie apart, and in which order the data is spent on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from capplan.cards.engine import Engine
from capplan.quantities.units import format_seconds

KERNEL_TIME_FACTOR = "kernel_time_factor"


@dataclass(frozen=True)
class Constant:
    """A constant that may be fitted.

    Parameters
    ----------
    name : field of the engine card
    spread : how far it lies apart between published engines, versions and load generators; a fit that leaves it more
        uncertain than that says nothing about it
    lower : bound of the fit
    """

    name: str
    spread: float
    lower: float = 0.0

    def shown(self, value: float) -> str:
        """The value with its unit."""
        return format_seconds(value) if self.name.endswith("_seconds") else f"{value:.3g}"


CONSTANTS: tuple[Constant, ...] = (
    Constant("layer_overhead_seconds", 3e-5),
    Constant("ttft_base_seconds", 6e-2),
    Constant("ttft_linear_factor", 0.1),
    Constant("sequence_overhead_seconds", 1.5e-5),
    Constant(KERNEL_TIME_FACTOR, 0.1, lower=0.9),
    Constant("ttft_sqrt_factor", 0.25),
    Constant("step_gap_seconds", 1.5e-3),
)
"""In the order they are tried: the data is spent on the first ones that it tells apart, the others keep their value.

Spreads: those of the TTFT from the ranges on the engine cards (base 0 to 189 ms, square-root factor 0 to 0.49, linear
factor 0.016 to 0.37); the kernels' from the held errors on the hardware cards (3 to 15 %); of the overhead of a layer
what single runs of 68 published configurations ask for, laid to it alone (1.48 times their median change, see
benchmarks/one_point.py), of the gap the same over the 50 layers of a model; of the overhead of a sequence assumed from
fits to single configurations, 11 to 51 us.

No engine runs kernels faster than alone: tables measured inside engines lie 1.04 to 1.08 over those of bare kernels,
and the kernel models 3 to 15 % beside either. Hence the bound of the factor; overheads cannot be negative."""
BY_NAME: Mapping[str, Constant] = {constant.name: constant for constant in CONSTANTS}
NAMES = tuple(BY_NAME)
OF_STEP = ("layer_overhead_seconds", "sequence_overhead_seconds", KERNEL_TIME_FACTOR, "step_gap_seconds")


def constants_of(engine: Engine) -> dict[str, float]:
    """The constants of a card."""
    return {name: getattr(engine, name) for name in NAMES}


def with_constants(engine: Engine, values: Mapping[str, float]) -> Engine:
    """The engine with other constants."""
    changed: dict[str, Any] = dict(values)
    return replace(engine, **changed)
