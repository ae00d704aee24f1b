"""How far load and output length can grow before a target is missed, the pools kept as they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from capplan.planning.deploy import all_checks, reload
from capplan.planning.pools import Check, Pools
from capplan.planning.problem import Problem

TURNS = 7
MOST = 8.0
PRECISION = 1.01
SLACK = 1.0


@dataclass(frozen=True)
class Margin:
    """The largest factor that still meets every target, and the target missed beyond it."""

    factor: float
    value: float
    breaks: str


@dataclass(frozen=True)
class Margins:
    """Break margins of a plan: ``rate`` [1/s] and mean ``output`` [tokens]."""

    rate: Margin
    output: Margin


def margins(problem: Problem, pools: Pools) -> Margins:
    """Bisection on the factor, every point a full evaluation of the fixed pools."""

    def at_rate(factor: float) -> Check | None:
        return _worst(problem, pools, problem.rate * factor)

    def at_length(factor: float) -> Check | None:
        longer = problem.with_workload(problem.workload.scaled_output(factor))
        return _worst(longer, pools, problem.rate)

    rate, rate_breaks = _largest(at_rate)
    length, length_breaks = _largest(at_length)
    return Margins(
        Margin(rate, problem.rate * rate, rate_breaks),
        Margin(length, problem.workload.output.mean * length, length_breaks),
    )


def _worst(problem: Problem, pools: Pools, rate: float) -> Check | None:
    """The check with the highest ratio; None where the pools have no stationary state."""
    loaded = reload(problem, pools, rate)
    return None if loaded is None else max(all_checks(problem, loaded), key=lambda check: check.ratio)


def _largest(check_at: Callable[[float], Check | None]) -> tuple[float, str]:
    """Largest factor that meets every target, to about 1 %: the slack, interpolated, says where to look next."""
    low, high, breaks = 1.0, MOST, "load"
    below, above = -SLACK, SLACK
    for _ in range(TURNS):
        if high / low < PRECISION:
            break
        share = min(0.9, max(0.1, below / (below - above)))
        middle = low * (high / low) ** share
        check = check_at(middle)
        slack = SLACK if check is None else max(-SLACK, min(SLACK, math.log(max(check.ratio, 1e-9))))
        if check is not None and check.met:
            low, below = middle, min(slack, -1e-3)
        else:
            high, above, breaks = middle, max(slack, 1e-3), "load" if check is None else check.name
    return low, breaks
