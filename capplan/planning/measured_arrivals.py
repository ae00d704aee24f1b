"""Rate and dispersion of a trace in the place of those the scenario does not give."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from capplan.errors import InputError
from capplan.formulas.robust_queue import queue_dispersion
from capplan.planning.problem import PER_LAYOUT, PER_PROMPT, Problem
from capplan.planning.scenario import RATE_MISSING, WorkloadSection

if TYPE_CHECKING:
    from capplan.cards.arrivals import Arrivals
    from capplan.cards.workload import Workload
    from capplan.planning.latency import Array
    from capplan.planning.plan import Plan

FIRST_HORIZON = 60.0
CLOSE_ENOUGH = 0.03
TURNS = 8
HOUR = 3600.0
"""Dispersion is counted about the mean of each hour of a trace that covers several."""


def measured_rate(section: WorkloadSection, workload: Workload) -> tuple[float, tuple[str, ...]]:
    """The offered rate [1/s], and where it comes from if not from the scenario.

    Raises
    ------
    InputError : neither the scenario nor the trace knows it
    """
    if section.rate is not None or section.concurrency is not None:
        return section.rate or 0.0, ()
    arrivals = workload.arrivals
    if arrivals is None:
        raise InputError(f"{RATE_MISSING}; {workload.name} has no arrival times", key="workload")
    if arrivals.busiest_rate is None:
        return arrivals.rate, (f"workload.rate = {arrivals.rate:.4g}/s, the mean of {workload.name}",)
    told = f"workload.rate = {arrivals.busiest_rate:.4g}/s, the busiest hour of {workload.name}"
    return arrivals.busiest_rate, (f"{told} (mean {arrivals.rate:.4g}/s)",)


def plan_at_own_horizon(problem: Problem, make_plan: Callable[[Problem], Plan]) -> Plan:
    """The plan whose dispersion is that of the trace over the windows the plan itself asks for.

    The relaxation time of the batch depends on the pools, and they on the dispersion: a few turns, each within the
    bounds that the earlier ones found. Where sizes of pools jump over the fixed point, the plan with the least
    dispersion that errs high is taken.
    """
    arrivals = problem.workload.arrivals
    if arrivals is None or not arrivals.windows or "dispersion" in problem.scenario.workload.model_fields_set:
        return make_plan(problem)
    horizon, low, high, safe = FIRST_HORIZON, 1.0, math.inf, None
    for _ in range(TURNS):
        index = _between(_index(arrivals, horizon), low, high)
        answer = make_plan(_with_dispersion(problem, arrivals, index, horizon))
        if answer.outcome.pools is None:
            return safe or answer
        horizon = answer.outcome.pools.decode.stationary.dispersion_horizon_seconds
        own = _index(arrivals, horizon)
        if abs(index / own - 1) < CLOSE_ENOUGH:
            return answer
        if index > own:
            high, safe = index, answer
        else:
            low = index
        if high < low * (1 + CLOSE_ENOUGH):
            break
    return safe or answer


def _between(index: float, low: float, high: float) -> float:
    """``index`` where it lies between the bounds, else their geometric mean."""
    inside = low < index < high or math.isinf(high)
    return index if inside else math.sqrt(low * high)


def dispersion_of_queue(
    arrivals: Arrivals, split: Callable[[float], float], seconds: Array, weights: Array, servers: int, rate: float
) -> float:
    """The index of dispersion under which one queue waits as long as behind the trace, at its own time scale.

    Parameters
    ----------
    arrivals : of the trace, before it is split over the queues
    split : index of the stream of one queue, from that of the trace
    seconds, weights : law of the time an arrival takes from a server [s, 1]
    servers : of the queue
    rate : of its arrivals [1/s]
    """
    curve = [split(arrivals.dispersion_at(window)) for window in arrivals.windows]
    mean = float(weights @ seconds)
    scv = float(weights @ seconds**2) / mean**2 - 1
    return queue_dispersion(arrivals.windows, curve, mean / servers, scv, rate * mean / servers)


def _index(arrivals: Arrivals, horizon: float) -> float:
    """Dispersion over that horizon; less than that of Poisson arrivals is taken for chance."""
    return max(1.0, arrivals.dispersion_at(horizon))


def _with_dispersion(problem: Problem, arrivals: Arrivals, index: float, horizon: float) -> Problem:
    scenario = problem.scenario
    record = scenario.workload.dispersion_window or min(arrivals.span_seconds, HOUR)
    section = scenario.workload.model_copy(update={"dispersion": index, "dispersion_window": record})
    line = f"workload.dispersion = {index:.3g}, counted in {problem.workload.name} over windows of {horizon:,.0f} s"
    if index != _index(arrivals, horizon):
        line = f"workload.dispersion = {index:.3g}, between those that pools of neighbouring sizes ask of the trace"
    elif horizon > arrivals.longest_window:
        line = line.replace(f"{horizon:,.0f} s", f"{arrivals.longest_window:,.0f} s, the longest it has enough of")
    drift = ("the rate of the trace drifts: it counts as bursts here (errs high)",) if arrivals.drifts else ()
    return replace(
        problem,
        scenario=scenario.model_copy(update={"workload": section}),
        arrivals=arrivals,
        told=(*problem.told, line, *drift),
        store={key: value for key, value in problem.store.items() if key[0] in PER_LAYOUT + PER_PROMPT},
    )
