"""The requests of a trace in the place of those of the scenario's laws: which ones, and where they differ from them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from capplan.cards.arrivals import HOUR, ArrivalCounts
from capplan.cards.trace_columns import checked_quantity
from capplan.cards.trace_requests import TraceRequests, load_requests
from capplan.errors import InputError, shown
from capplan.planning.plan import Plan
from capplan.planning.problem import Problem
from capplan.planning.scenario import Scenario, scenario_data
from capplan.quantities.units import format_seconds
from capplan.simulation.arrivals import copies_of, span_of

OTHER = 0.1
"""Difference of means or standard deviations, over the mean, from which on a trace is another workload."""
BURSTIER = 1.5
"""Ratio of dispersions from which on its arrivals are others; one counted in 100 windows is known to a seventh."""
_COLUMNS_KEY = "workload.columns"


@dataclass(frozen=True)
class Replay:
    """Requests to replay, how that is done, and in what they differ from the workload of the plan."""

    requests: TraceRequests
    notes: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()


# -- which file, and how it is read --------------------------------------------------------------------------------


def asked(
    scenario: str | Path | Mapping[str, Any] | Scenario, trace: str | Path, overrides: Mapping[str, Any]
) -> tuple[dict[str, Any], Mapping[str, str] | None]:
    """The overrides of the plan beside a given trace, and the columns it is read with.

    A scenario that does not say what arrives takes the trace for that too. One that does may name columns for the
    trace alone.
    """
    section = scenario_data(scenario, **overrides).get("workload")
    told = section if isinstance(section, Mapping) else {}
    if not {"card", "trace", "input", "output"} & told.keys():
        return {**overrides, "workload.trace": str(trace)}, told.get("columns")
    if "trace" in told or "columns" not in told:
        return dict(overrides), told.get("columns")
    return {**overrides, _COLUMNS_KEY: None}, told["columns"]


def read(trace: str | Path, columns: Any) -> TraceRequests:
    """The requests of a file.

    Raises
    ------
    InputError : as :func:`capplan.cards.trace_requests.load_requests`; columns that are none
    """
    if columns is not None and not isinstance(columns, Mapping):
        raise InputError(f'{shown(columns)} must look like {{input = "my_column"}}', key=_COLUMNS_KEY)
    named = {checked_quantity(str(quantity), _COLUMNS_KEY): str(name) for quantity, name in (columns or {}).items()}
    return load_requests(Path(trace), named)


def with_scenario_keys(error: InputError) -> InputError:
    """The error of a trace with the remedy that a scenario has; that of ``workloads fit`` is a flag of its own."""
    remedy = r"""--set 'workload.columns={\1 = "\2"}'"""
    return type(error)(re.sub(r"--column (\w+)=(.*)$", remedy, error.problem), key=error.key, file=error.file)


# -- which requests ------------------------------------------------------------------------------------------------


def replayed(plan: Plan, trace: TraceRequests, requests: int) -> Replay:
    """The requests of a trace as the plan takes them: cut at its budget; of the busiest hour if it is sized for that.

    Parameters
    ----------
    plan : a feasible plan
    trace : all requests of the file
    requests : how many are measured
    """
    problem, notes = plan.problem, []
    budget = problem.scenario.policy.thinking_budget
    if budget is not None:
        trace = trace._replace(outputs=np.minimum(trace.outputs, int(budget)))
    if _sized_for_busiest_hour(problem) and (hour := _busiest_hour(trace)) is not None:
        number, trace = hour
        rate = len(trace.times) / HOUR
        notes.append(f"the busiest hour of the trace is replayed, hour {number + 1} ({rate:.4g} requests/s)")
    notes += [*_laid_over(trace, problem.rate), *_covered(trace, problem.rate, requests)]
    return Replay(trace, tuple(notes), (*_lengths(problem, trace), *_bursts(plan, trace)))


def _sized_for_busiest_hour(problem: Problem) -> bool:
    section, arrivals = problem.scenario.workload, problem.workload.arrivals
    given = section.rate is not None or section.concurrency is not None
    return not given and arrivals is not None and arrivals.busiest_rate is not None


def _busiest_hour(trace: TraceRequests) -> tuple[int, TraceRequests] | None:
    """The whole hour with most requests and its number; None where the trace covers less than two."""
    hours = (trace.times / HOUR).astype(int)
    whole = int(trace.times[-1] / HOUR)
    if whole < 2:
        return None
    number = int(np.argmax(np.bincount(hours)[:whole]))
    inside, thoughts = hours == number, trace.reasoning
    lengths = trace.prompts[inside], trace.outputs[inside]
    return number, TraceRequests(trace.times[inside], *lengths, None if thoughts is None else thoughts[inside])


def _laid_over(trace: TraceRequests, rate: float) -> Iterator[str]:
    """How the trace comes to the rate of the plan."""
    copies = copies_of(trace.times, rate)
    if copies > 1:
        yield f"{copies:.3g} copies of the trace are laid over each other to reach {rate:.4g} requests/s"
    elif copies < 1:
        yield f"{1 - copies:.0%} of the requests of the trace are left out to come down to {rate:.4g} requests/s"


def _covered(trace: TraceRequests, rate: float, requests: int) -> Iterator[str]:
    """Which part of the trace the run covers, or how often all of it."""
    span, run = span_of(trace.times), requests / rate
    if run > (1 + OTHER) * span:
        yield f"the trace covers {format_seconds(span)}, the run {format_seconds(run)}: it begins anew"
    elif run < (1 - OTHER) * span:
        yield f"the trace covers {format_seconds(span)}, the run its first {format_seconds(run)}"


def _lengths(problem: Problem, trace: TraceRequests) -> Iterator[str]:
    """Where means and spreads of the trace are not those of the plan's workload."""
    pairs = (("prompt", trace.prompts, problem.workload.input), ("output", trace.outputs, problem.workload.output))
    for what, column, law in pairs:
        mean, spread = float(column.mean()), float(column.std())
        if abs(mean / law.mean - 1) > OTHER:
            apart = f"{mean:,.0f} tokens, {mean / law.mean - 1:+.0%} to the {law.mean:,.0f} of the plan"
            yield f"the mean {what} of the trace is {apart}"
        elif abs(spread - law.std) > OTHER * law.mean:
            apart = f"{spread:,.0f} tokens, {law.std:,.0f} in the plan, around the same mean"
            yield f"the standard deviation of the {what}s of the trace is {apart}"


def _bursts(plan: Plan, trace: TraceRequests) -> Iterator[str]:
    """Where arrivals are more or less bursty than planned, over the windows that count for the batch."""
    assert plan.pools_at_rate is not None
    horizon = plan.pools_at_rate.decode.stationary.dispersion_horizon_seconds
    counts = ArrivalCounts()
    counts.add(trace.times - trace.times[0], trace.prompts, trace.outputs)
    found, planned = counts.arrivals(), plan.problem.scenario.workload.dispersion
    index = 1.0 if found is None else found.dispersion_at(horizon)
    if not 1 / BURSTIER < index / planned < BURSTIER:
        yield (
            f"the dispersion of the trace is {index:.2g} over windows of {horizon:,.0f} s, {planned:.2g} in the plan"
        )
