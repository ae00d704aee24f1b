"""What one decoding rank is asked to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from capplan.formulas import stationary as closed
from capplan.quantities.chain import Chain

ROUTINGS = ("random", "round-robin", "least-loaded", "least-kv")
BLIND_SPLITS = {"random": closed.thinned_dispersion, "round-robin": closed.dealt_dispersion}
"""Dispersion of one rank's arrivals behind a router that does not look at the ranks; the others pool them."""


@dataclass(frozen=True)
class Demand:
    """What one rank is asked to do: arrivals, their dispersion before the split, and the splitting rule."""

    request_rate: float
    dispersion: float
    routing: str
    instances: int
    arrival_spectrum: Callable[[Any], Any] | None = None

    def excess_spectrum(self, excess: float) -> float | Callable[[Any], Any]:
        """Spectrum of one rank's stream over its rate, less 1: a number, or a function of the frequency [rad/s]."""
        spectrum, share = self.arrival_spectrum, 1.0 / self.instances
        if spectrum is None:
            return excess
        if self.pooled:
            return lambda omega: spectrum(omega) - 1.0
        if self.routing == "round-robin":
            return lambda omega: share * spectrum(omega) - 1.0
        return lambda omega: share * (spectrum(omega) - 1.0)

    def excess(self, chain: Chain) -> float:
        """Dispersion of one rank's stream less 1; that of the whole stream where a balancer pools the ranks."""
        rule = BLIND_SPLITS.get(self.routing)
        if rule is not None:
            one = chain.derive("dispersion_per_rank", rule, dispersion=self.dispersion, instances=self.instances)
        else:
            one = chain.given("dispersion_per_rank", self.dispersion, "pooled stream")
        return float(one) - 1.0

    @property
    def pooled(self) -> bool:
        """Whether the router looks at the load of the ranks."""
        return self.instances > 1 and self.routing not in BLIND_SPLITS
