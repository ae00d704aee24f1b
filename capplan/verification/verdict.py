"""When a predicted and a simulated figure agree."""

from __future__ import annotations

import math
from dataclasses import dataclass

from capplan.simulation.intervals import Estimate

AGREES, NOISE, DISAGREES, FLAGGED = "agrees", "within noise", "disagrees", "flagged"
OTHER_WORKLOAD = "other workload"
NOISE_WIDTHS = 2.0
"""Half widths of the 95 % interval by which noise may part the two figures."""


@dataclass(frozen=True)
class Tolerance:
    """Largest difference that is agreement: relative, absolute, or the larger of both."""

    relative: float = 0.0
    absolute: float = 0.0

    def allowed(self, simulated: float) -> float:
        """Difference allowed, noise apart."""
        return max(self.relative * abs(simulated), self.absolute)


@dataclass(frozen=True)
class Row:
    """One quantity: what the closed form says and what the simulation found.

    Parameters
    ----------
    name : key of the quantity; ends in its unit where it has one
    title : what a person reads
    closed : by the closed form
    simulated : by the simulation, with its 95 % interval
    tolerance : difference that is agreement
    limit : target that the closed form meets, so that a run clearly beyond it is no agreement whatever the tolerance;
        None where the tolerance tells all
    widened : warning that gives a larger error, which the tolerance has taken over; empty where there is none
    flagged : warning that gives no error: the closed form is outside its range; empty where there is none
    other_workload : whether the requests that were run are others than those planned for
    """

    name: str
    title: str
    closed: float
    simulated: Estimate
    tolerance: Tolerance
    limit: float | None = None
    widened: str = ""
    flagged: str = ""
    other_workload: bool = False

    @property
    def difference(self) -> float:
        """Closed form less simulation."""
        return self.closed - self.simulated.value

    @property
    def _promise_broken(self) -> bool:
        """Whether the closed form meets a target that the simulation misses beyond noise."""
        if self.limit is None or self.closed > self.limit:
            return False
        return self.simulated.value - self.limit > NOISE_WIDTHS * self.simulated.half_width

    @property
    def verdict(self) -> str:
        """``agrees`` in the tolerance; ``within noise`` of the run; ``disagrees``; ``flagged``: told, not judged.

        ``other workload`` takes the place of the last two where the run does not test the closed form.
        """
        apart = math.inf if self._promise_broken else abs(self.difference)
        if apart <= self.tolerance.allowed(self.simulated.value):
            return AGREES
        if apart <= NOISE_WIDTHS * self.simulated.half_width and math.isfinite(apart):
            return NOISE
        if self.other_workload:
            return OTHER_WORKLOAD
        return FLAGGED if self.flagged else DISAGREES
