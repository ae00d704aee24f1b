"""The targets of a scenario beside what the simulation found: whether the plan holds, whatever its closed forms say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from capplan.planning.latency import PERCENTILES
from capplan.planning.plan import Plan
from capplan.planning.report import show, title
from capplan.simulation.intervals import Array, Estimate, mean
from capplan.simulation.run import Outcome
from capplan.verification.latencies import request_seconds, simulated_latency

_TITLES = {"kv_overflow": "KV overflow", "attainment": "SLO attainment"}


@dataclass(frozen=True)
class TargetMet:
    """One target beside the simulation.

    Parameters
    ----------
    name : key of the scenario's ``[slo]``
    simulated : what the run found, with its 95 % interval; seconds, or a share
    target : the limit; for ``attainment`` the least that is wanted
    """

    name: str
    simulated: Estimate
    target: float

    @property
    def key(self) -> str:
        """Name with its unit, for JSON."""
        return self.name if self.name in _TITLES else f"{self.name}_seconds"

    @property
    def met(self) -> bool:
        """Whether the simulated figure is on the good side of the target."""
        if self.name == "attainment":
            return self.simulated.value >= self.target
        return self.simulated.value <= self.target

    def __str__(self) -> str:
        found, noise = self.simulated, abs(self.simulated.value - self.target) <= self.simulated.half_width
        value, width, target = (show(self.name, one) for one in (found.value, found.half_width, self.target))
        verdict = f"{'met' if self.met else 'missed'}{', within noise' if noise else ''}"
        return f"{_TITLES.get(self.name) or title(self.name)} {value} +- {width} of {target}: {verdict}"


def targets(plan: Plan, outcome: Outcome) -> tuple[TargetMet, ...]:
    """Every target of the scenario: latencies, KV overflow, attainment."""
    return tuple(_targets(plan, outcome))


def _targets(plan: Plan, outcome: Outcome) -> Iterator[TargetMet]:
    for key, target in plan.problem.targets.items():
        name, _, label = key.rpartition("_")
        yield TargetMet(key, simulated_latency(plan, outcome, name, PERCENTILES[label]), target)
    slo = plan.problem.scenario.slo
    yield TargetMet("kv_overflow", outcome.overflow, slo.kv_overflow)
    if slo.attainment is not None:
        yield TargetMet("attainment", _attainment(plan, outcome), slo.attainment)


def _attainment(plan: Plan, outcome: Outcome) -> Estimate:
    """Share of requests that meet all latency targets together, times that of gaps that meet those on ITL."""
    within = np.ones(len(outcome.complete))
    gaps = 1.0
    for key, target in plan.problem.targets.items():
        name = key.rpartition("_")[0]
        if name == "itl":
            gaps = min(gaps, _share_of_gaps(outcome, target))
        else:
            within *= _within(plan, outcome, name, target)
    found = mean(within)
    return Estimate(found.value * gaps, found.half_width * gaps)


def _within(plan: Plan, outcome: Outcome, name: str, target: float) -> Array:
    """1 for every request within the target, 0 for the others; a request of one token has no TPOT to miss."""
    met = np.ones(len(outcome.complete))
    has = outcome.column(lambda r: r.output - 1.0) > 0 if name == "tpot" else met > 0
    met[has] = request_seconds(plan, outcome, name) <= target
    return met


def _share_of_gaps(outcome: Outcome, target: float) -> float:
    seconds, _, tokens = outcome.steps
    return float(tokens[seconds <= target].sum() / tokens.sum())
