"""How far load and output length can grow before a target is missed, the pools kept as they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from capplan.planning.deploy import all_checks, reload
from capplan.planning.pools import Check, Pools
from capplan.planning.problem import Problem

TURNS = 10
STEPS = (1.25, 2.0, 4.0, 8.0)
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

    now = _worst(problem, pools, problem.rate)
    rate, rate_breaks = _largest(at_rate, now)
    length, length_breaks = _largest(at_length, now)
    return Margins(
        Margin(rate, problem.rate * rate, rate_breaks),
        Margin(length, problem.workload.output.mean * length, length_breaks),
    )


def _worst(problem: Problem, pools: Pools, rate: float) -> Check | None:
    """The check with the highest ratio; None where the pools have no stationary state."""
    loaded = reload(problem, pools, rate)
    return None if loaded is None else max(all_checks(problem, loaded), key=lambda check: check.ratio)


def _largest(check_at: Callable[[float], Check | None], now: Check | None) -> tuple[float, str]:
    """Largest factor that meets every target, to about 1 %: doubling steps, then regula falsi on the slack.

    ``now`` is the check at a factor of 1.
    """
    low, below = 1.0, _slack(now)
    if below > 0:
        return 1.0, _name(now)
    for factor in STEPS:
        check = check_at(factor)
        if check is None or not check.met:
            return _between(check_at, (low, below), (factor, check))
        low, below = factor, _slack(check)
    return low, "nothing up to there"


def _between(
    check_at: Callable[[float], Check | None], met: tuple[float, float], missed: tuple[float, Check | None]
) -> tuple[float, str]:
    (low, below), (high, failed) = met, missed
    above = _slack(failed)
    for _ in range(TURNS):
        if high / low < PRECISION:
            break
        middle = low * (high / low) ** min(0.9, max(0.1, below / (below - above)))
        check = check_at(middle)
        if check is not None and check.met:
            low, below, above = middle, _slack(check), above / 2  # halving the stale end keeps both ends moving
        else:
            high, failed, above, below = middle, check, _slack(check), below / 2
    return low, _name(failed)


def _slack(check: Check | None) -> float:
    """Logarithm of value over target, within bounds and never quite zero."""
    if check is None:
        return SLACK
    value = max(-SLACK, min(SLACK, math.log(max(check.ratio, 1e-9))))
    return min(value, -1e-3) if check.met else max(value, 1e-3)


def _name(check: Check | None) -> str:
    return "load" if check is None else check.name
