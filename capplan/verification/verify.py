"""``verify``: the pools of a plan simulated event by event, and every prediction beside what was found."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from capplan.cards.trace_requests import TraceRequests
from capplan.errors import InputError, shown
from capplan.planning.plan import Plan
from capplan.planning.plan import plan as make_plan
from capplan.planning.problem import Problem
from capplan.planning.scenario import Scenario
from capplan.quantities.units import format_seconds
from capplan.simulation.run import Progress
from capplan.verification.comparison import rows
from capplan.verification.pools import SimulatedPlan, simulate_plan
from capplan.verification.replay import Replay, asked, read, replayed, with_scenario_keys
from capplan.verification.targets import TargetMet, targets
from capplan.verification.verdict import DISAGREES, FLAGGED, OTHER_WORKLOAD, Row

REQUESTS = 50_000
LEAST_REQUESTS, MOST_REQUESTS = 1000, 10_000_000
HEADER = ["quantity", "closed form", "simulated", "95 % interval", "difference", "verdict"]


@dataclass(frozen=True, repr=False)
class Verification:
    """A plan and its simulation. ``rows`` is empty where the plan is infeasible: there is nothing to run."""

    plan: Plan
    rows: tuple[Row, ...]
    requests: int
    refused: int
    seed: int
    seconds: float
    """What the simulation took [s]."""
    simulated: SimulatedPlan | None = field(default=None, repr=False)
    """The run; None where the plan is infeasible."""
    replay: Replay | None = None
    """The trace that was replayed; None where the requests were those of the scenario's laws."""

    @property
    def agrees(self) -> bool | None:
        """Whether no prediction disagrees beyond its tolerance, noise and its own warnings.

        A trace that is another workload does not agree: what was run is not what was planned. None where the plan is
        infeasible, so that there is nothing to judge.
        """
        if not self.rows:
            return None
        return all(row.verdict not in (DISAGREES, OTHER_WORKLOAD) for row in self.rows)

    @cached_property
    def targets(self) -> tuple[TargetMet, ...]:
        """The targets of the scenario beside the simulation; none where the plan is infeasible."""
        return () if self.simulated is None else targets(self.plan, self.simulated.outcome)

    @property
    def verdicts(self) -> dict[str, int]:
        """Rows by verdict, those that occur."""
        return dict(Counter(row.verdict for row in self.rows))

    @property
    def simulated_duration(self) -> float:
        """Time between the first and the last measured arrival, in the simulation [s]."""
        if self.simulated is None:
            return 0.0
        first, last = self.simulated.outcome.window
        return last - first

    @property
    def request_rate(self) -> float:
        """Measured requests over that time [1/s]."""
        return self.requests / self.simulated_duration if self.simulated_duration else 0.0

    @property
    def summary(self) -> str:
        """One line: what was run, and how many rows have which verdict."""
        counts = ", ".join(f"{verdict} {number}" for verdict, number in self.verdicts.items())
        return (
            f"{self.requests:,} requests measured over {format_seconds(self.simulated_duration)} at "
            f"{self.request_rate:.4g} requests/s; rows: {counts}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What stands in for the engine, how the trace was replayed, and in what it differs from what was planned."""
        listed = _engine_notes(self.plan)
        if self.replay is None:
            return listed
        return (*listed, *self.replay.notes, *(f"other workload: {text}" for text in self.replay.differences))

    @property
    def flags(self) -> tuple[str, ...]:
        """The warnings behind the rows that are told but not judged."""
        return tuple(dict.fromkeys(row.flagged for row in self.rows if row.verdict == FLAGGED))

    @property
    def widened(self) -> tuple[str, ...]:
        """The warnings whose figures took the place of a tolerance."""
        return tuple(dict.fromkeys(row.widened for row in self.rows if row.widened))

    def to_dict(self) -> dict[str, Any]:
        """For JSON; keys carry units."""
        return {
            "agrees": self.agrees,
            "feasible": self.plan.feasible,
            "requests": self.requests,
            "refused_requests": self.refused,
            "seed": self.seed,
            "simulation_seconds": self.seconds,
            "simulated_duration_seconds": self.simulated_duration,
            "request_rate_per_second": self.request_rate,
            "verdicts": self.verdicts,
            "targets": {target.key: _target_record(target) for target in self.targets},
            "notes": list(self.notes),
            "quantities": {row.name: _record(row) for row in self.rows},
        }

    def to_rows(self) -> list[list[str]]:
        """A table for people, without its header."""
        return [_cells(row) for row in self.rows]


def _engine_notes(plan: Plan) -> tuple[str, ...]:
    """Whose scheduler rules are simulated in the place of the engine's own."""
    engine = plan.problem.engine
    if engine.name == "none" or engine.title.startswith("vLLM"):
        return ()
    return (f"{engine.title} is simulated by the scheduler rules of vLLM v1: admission and preemption are not its own",)


def _target_record(target: TargetMet) -> dict[str, Any]:
    found = target.simulated
    return {"simulated": found.value, "simulated_low": found.low, "simulated_high": found.high,
            "target": target.target, "met": target.met}  # fmt: skip


def _record(row: Row) -> dict[str, Any]:
    return {
        "closed_form": row.closed,
        "simulated": row.simulated.value,
        "simulated_low": row.simulated.low,
        "simulated_high": row.simulated.high,
        "difference": row.difference,
        "difference_allowed": row.tolerance.allowed(row.simulated.value),
        "verdict": row.verdict,
        "widened": row.widened or None,
        "flagged": row.flagged or None,
    }


def _cells(row: Row) -> list[str]:
    show = format_seconds if row.name.endswith("_seconds") else _plain
    found = row.simulated
    relative = f"{row.difference / found.value:+.1%}" if found.value > 0.01 or show is format_seconds else "-"
    if not row.tolerance.relative:
        relative = f"{row.difference:+.3f}"
    return [row.title, show(row.closed), show(found.value), f"+- {show(found.half_width)}", relative, row.verdict]


def _plain(value: float) -> str:
    return f"{value:.4g}" if value >= 1e-4 or value == 0 else "< 0.0001"


def verify(
    scenario: str | Path | Mapping[str, Any] | Scenario = {},  # noqa: B006
    *,
    trace: str | Path | None = None,
    requests: int = REQUESTS,
    seed: int = 0,
    progress: Progress | None = None,
    **overrides: Any,
) -> Verification:
    """Plan a scenario, simulate the pools of the plan under the engine's scheduler rules, and compare.

    Parameters
    ----------
    scenario, overrides : as for :func:`capplan.planning.plan.plan`
    trace : file whose requests are replayed, thinned or overlaid to the rate of the plan, with the scenario's
        ``workload.columns`` where it has some; a scenario that does not say what arrives is planned on it too. Without
        it the scenario's own trace where the plan took its dispersion from it, else requests of the scenario's laws
    requests : requests measured, 1,000 at least
    seed : of lengths, arrivals and routing; the same seed gives the same run
    progress : told of complete requests, and how many there will be

    Returns
    -------
    verification : :class:`Verification` with ``.agrees``, ``.rows``, ``.to_dict()``

    Raises
    ------
    InputError : as for a plan; a trace without arrival times; requests or seed out of range
    """
    _check(requests, seed)
    try:
        answer, given = _planned(scenario, trace, overrides)
    except InputError as error:
        raise with_scenario_keys(error) from None
    if not answer.feasible:
        return Verification(answer, (), 0, 0, seed, 0.0)
    replay = None if given is None else replayed(answer, given, requests)
    begin = time.perf_counter()
    simulated = simulate_plan(answer, requests, seed, None if replay is None else replay.requests, progress)
    spent = time.perf_counter() - begin
    refused = simulated.outcome.records.refused
    found = rows(answer, simulated)
    if replay is not None and replay.differences:
        found = tuple(replace(row, other_workload=True) for row in found)
    return Verification(answer, found, requests, refused, seed, spent, simulated, replay)


def _planned(
    scenario: str | Path | Mapping[str, Any] | Scenario, trace: str | Path | None, overrides: Mapping[str, Any]
) -> tuple[Plan, TraceRequests | None]:
    """The plan, and the requests of the trace to replay."""
    if trace is None:
        answer = make_plan(scenario, **overrides)
        return answer, _own_trace(answer.problem)
    planned_on, columns = asked(scenario, trace, overrides)
    given = read(trace, columns)
    answer = make_plan(scenario, **planned_on)
    if answer.problem.scenario.workload.concurrency is not None:
        raise InputError("a closed loop has no arrival times of its own; give a rate", key="--trace")
    return answer, given


def _own_trace(problem: Problem) -> TraceRequests | None:
    """The trace of the scenario, where the plan took the dispersion of its arrivals from it."""
    section = problem.scenario.workload
    if problem.arrivals is None or section.trace is None or section.concurrency is not None:
        return None
    return read(section.trace, section.columns)


def _check(requests: Any, seed: Any) -> None:
    if isinstance(requests, bool) or not isinstance(requests, int) or not LEAST_REQUESTS <= requests <= MOST_REQUESTS:
        raise InputError(
            f"{shown(requests)} must be a whole number from {LEAST_REQUESTS:,} to {MOST_REQUESTS:,}", key="--requests"
        )
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise InputError(f"{shown(seed)} must be a whole number, 0 or more", key="--seed")
