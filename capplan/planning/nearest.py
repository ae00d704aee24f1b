"""What can be reached where a scenario cannot: more GPUs, looser targets, or a lower rate; each one searched again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from capplan.planning.latency import PERCENTILES
from capplan.planning.problem import Problem
from capplan.planning.scenario import LATENCY_KEYS

if TYPE_CHECKING:
    from capplan.planning.deploy import Outcome

MORE_GPUS = 64
ROUNDS = 8
LOOSER = 1.2
TURNS = 7
SLACK = 1.002
"""A relaxed target lies this much above what was reached, so that it is met when it is asked for."""

Search = Callable[[Problem], "Outcome"]


def nearest_feasible(problem: Problem, search: Search, open_loop: bool = True) -> dict[str, float]:
    """Scenario keys with values that would make it feasible, one change at a time, in base units.

    ``max_gpus``: the GPUs the targets need as they are. Latency keys and ``kv_overflow``: what can be met with the
    GPUs there are, all of them together. ``rate``: what can be served with both as they are, where relaxing the
    targets does not help.
    """
    found: dict[str, float] = {}
    section = problem.scenario.hardware
    roomy = _with_gpus(problem, min(1_000_000, max(4096, section.max_gpus * MORE_GPUS)))
    outcome = search(roomy)
    if outcome.feasible and outcome.pools is not None:
        found["max_gpus"] = outcome.pools.gpus
    relaxed = _relaxed_targets(problem, search)
    if relaxed:
        return found | relaxed
    rate = _sustainable_rate(problem, search) if open_loop else 0.0
    return found | ({"rate": rate} if rate > 0 else {})


def _with_gpus(problem: Problem, gpus: int) -> Problem:
    hardware = problem.scenario.hardware.model_copy(update={"max_gpus": gpus})
    return replace(problem, scenario=problem.scenario.model_copy(update={"hardware": hardware}))


def _relaxed_targets(problem: Problem, search: Search) -> dict[str, float]:
    """Loosen whatever is missed to what was reached, until everything is met; empty where that does not help."""
    changed: dict[str, float] = {}
    asked = problem
    for _ in range(ROUNDS):
        outcome = search(asked)
        if outcome.feasible:
            tight = _tightened(problem, changed, asked, outcome)
            changed = tight if tight and search(_with_targets(problem, tight)).feasible else changed
            return {name: 1 - value if name == "attainment" else value for name, value in changed.items()}
        missed = _missed(asked, outcome)
        if not missed:
            return {}
        changed |= missed
        asked = _with_targets(asked, missed)
    return {}


def _missed(problem: Problem, outcome: Outcome) -> dict[str, float]:
    """What was missed, as it was reached; where decode leaves too few GPUs for the prompts, its targets looser."""
    missed = {check.name: check.value * SLACK for check in outcome.missed if _can_relax(check.name, check.value)}
    if any(check.name == "gpus_left_for_prefill" for check in outcome.missed):
        decode = {name: LOOSER * value for name, value in problem.targets.items() if not name.startswith("ttft")}
        return missed | {name: max(value, missed.get(name, 0.0)) for name, value in decode.items()}
    return missed if len(missed) == len(outcome.missed) else {}


def _tightened(problem: Problem, changed: dict[str, float], asked: Problem, outcome: Outcome) -> dict[str, float]:
    """Latency targets as the pools found meet them, where that is looser than what was asked for at first."""
    from capplan.planning.deploy import view_of

    assert outcome.pools is not None
    view = view_of(asked, outcome.pools)
    tight = {}
    for name, value in changed.items():
        if name in LATENCY_KEYS:
            kind, _, label = name.rpartition("_")
            value = min(value, SLACK * view.percentile(kind, PERCENTILES[label]))
        if name not in problem.targets or value > problem.targets[name]:
            tight[name] = value
    return tight


def _can_relax(name: str, value: float) -> bool:
    return (name in LATENCY_KEYS and value < float("inf")) or (name in ("kv_overflow", "attainment") and value < 0.5)


def _with_targets(problem: Problem, missed: dict[str, float]) -> Problem:
    targets = {**problem.targets, **{name: value for name, value in missed.items() if name in LATENCY_KEYS}}
    slo = problem.scenario.slo
    if "kv_overflow" in missed:
        slo = slo.model_copy(update={"kv_overflow": missed["kv_overflow"]})
    if "attainment" in missed:  # checked as the share that misses a target
        slo = slo.model_copy(update={"attainment": 1 - missed["attainment"]})
    return replace(problem, targets=targets, scenario=problem.scenario.model_copy(update={"slo": slo}), store={})


def _sustainable_rate(problem: Problem, search: Search) -> float:
    """Highest rate that is feasible with the GPUs and targets as they are, to about 1 %; 0 where none is [1/s]."""
    low, high = 0.0, problem.rate
    for _ in range(TURNS):
        middle = (low + high) / 2
        low, high = (middle, high) if search(problem.at_rate(middle)).feasible else (low, middle)
    return low
