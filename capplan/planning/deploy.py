"""Deployments: pools sized together so that every target is met, or the nearest that can be reached."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from capplan.planning import decode_pool, prefill_pool
from capplan.planning.bounds import best_rank_rate
from capplan.planning.candidates import layouts
from capplan.planning.decode_pool import DecodePool
from capplan.planning.pools import Check, ClientView, Pools, latency_checks
from capplan.planning.prefill_pool import PrefillPool
from capplan.planning.problem import Problem
from capplan.planning.search import Search, Trial, decode_checks, decode_search, prefill_checks, prefill_search

MORE_INSTANCES = 64
"""Instances added at most until the targets on sums (E2E, time to answer, attainment) are met."""


@dataclass(frozen=True)
class Outcome:
    """What a search found: pools that meet every target, or the nearest ones and the targets they miss."""

    pools: Pools | None
    missed: tuple[Check, ...]
    binding: Check | None

    @property
    def feasible(self) -> bool:
        """Whether every target is met."""
        return self.pools is not None and not self.missed


def first_token_seconds(problem: Problem, pool: DecodePool) -> float:
    """What decode adds to TTFT when the first token comes from the decode pool: the step under way, and the first.

    The residual of the running step is E[T^2]/(2 E[T]), about half a step; a step is the time-weighted mean.
    """
    order = problem.engine.ttft_order
    mean = pool.stationary.step_mean
    return (0.5 * mean if "decode-admission" in order else 0.0) + (mean if "first-step" in order else 0.0)


def view_of(problem: Problem, pools: Pools) -> ClientView:
    """The client's latencies for a deployment."""
    if pools.prefill is None:
        return ClientView(problem, pools.decode.ttft, pools.decode.stationary)  # type: ignore[attr-defined]
    delay = first_token_seconds(problem, pools.decode)
    return ClientView(problem, pools.prefill.ttft.shifted(delay), pools.decode.stationary)


def all_checks(problem: Problem, pools: Pools) -> list[Check]:
    """Every target of a deployment beside its prediction."""
    view = view_of(problem, pools)
    checks = [check for check in decode_checks(problem, pools.decode) if check.name not in problem.targets]
    checks += latency_checks(view, problem.targets, ("ttft", "tpot", "itl", "step", "answer", "e2e"))
    wanted = problem.scenario.slo.attainment
    if wanted is not None:
        checks.append(Check("attainment", 1 - view.attainment, 1 - wanted))
    return checks


def reload(problem: Problem, pools: Pools, rate: float) -> Pools | None:
    """The same pools at another rate or under other requests; None where a queue has no stationary state."""
    decode = decode_pool.evaluate(problem, pools.decode.layout, pools.decode.instances, rate)
    if decode is None or pools.prefill is None:
        return None
    layout = pools.prefill.layout
    cost = prefill_pool.prompt_cost(problem, layout, prefill_pool.prompt_grid(problem))
    prefill = prefill_pool.evaluate(problem, layout, pools.prefill.instances, rate, cost)
    return None if prefill is None else replace(pools, decode=decode, prefill=prefill)


def disaggregated(problem: Problem) -> Outcome:
    """Separate prefill and decode pools."""
    rate, most = problem.sizing_rate, problem.scenario.hardware.max_gpus
    decode = decode_search(problem, most, rate)
    if decode.best is None:
        return _decode_out_of_reach(problem, most, rate)
    first = first_token_seconds(problem, decode.best.pool)
    prefill = prefill_search(problem, most - decode.best.gpus, rate, first)
    if prefill.best is None:
        return _prefill_out_of_reach(problem, decode.best, most - decode.best.gpus, rate, first)
    pools = Pools("disaggregated", decode.best.pool, prefill.best.pool)
    return _grown(problem, pools, rate, _binding(decode, prefill))


def _binding(decode: Search[DecodePool], prefill: Search[PrefillPool]) -> Check | None:
    """The target that keeps the larger pool from being smaller; where none was tried, the one closest to its limit."""
    searches = sorted((s for s in (decode, prefill) if s.best), key=lambda s: -s.best.gpus)  # type: ignore[union-attr]
    for search in searches:
        if (check := search.binding()) is not None:
            return check
    return max((s.best.worst for s in searches if s.best), key=lambda check: check.ratio, default=None)


def _grown(problem: Problem, pools: Pools, rate: float, binding: Check | None) -> Outcome:
    """Add instances until the targets on sums (time to answer, E2E, attainment) are met too."""
    checks = all_checks(problem, pools)
    for _ in range(MORE_INSTANCES):
        worst = max(checks, key=lambda check: check.ratio)
        if worst.met:
            break
        options = [p for p in _one_more(problem, pools, rate) if p.gpus <= problem.scenario.hardware.max_gpus]
        if not options:
            break
        tried = [(all_checks(problem, option), option) for option in options]
        checks, pools = min(tried, key=lambda pair: max(check.ratio for check in pair[0]))
        binding = worst
    return Outcome(pools, tuple(check for check in checks if not check.met), binding)


def _one_more(problem: Problem, pools: Pools, rate: float) -> Iterator[Pools]:
    decode = pools.decode
    more = decode_pool.evaluate(problem, decode.layout, decode.instances + 1, rate)
    yield pools if more is None else replace(pools, decode=more)
    if pools.prefill is not None:
        old = pools.prefill
        yield replace(pools, prefill=prefill_pool.evaluate(problem, old.layout, old.instances + 1, rate, old.cost))


def _decode_out_of_reach(problem: Problem, most: int, rate: float) -> Outcome:
    """The decode pool that comes nearest, each layout with all the GPUs there are."""
    section = problem.scenario.serving
    trials: list[Trial[DecodePool]] = []
    missing = math.inf
    for layout in layouts(problem.model, problem.hardware, most, section.decode_layout or section.layout):
        budget = decode_pool.pool_memory(problem, layout)
        missing = min(missing, budget.missing_bytes)
        if budget.fits and most >= layout.gpus:
            pool = decode_pool.evaluate(problem, layout, most // layout.gpus, rate)
            if pool is not None:
                trials.append(Trial(pool, pool.gpus, tuple(decode_checks(problem, pool))))
    if not trials:
        return Outcome(None, (_hopeless(problem, missing, most),), None)
    nearest = min(trials, key=lambda trial: trial.worst.ratio)
    missed = tuple(check for check in nearest.checks if not check.met)
    return Outcome(Pools("disaggregated", nearest.pool, None), missed, nearest.worst)


def _hopeless(problem: Problem, missing: float, most: int) -> Check:
    """No pool at all: nothing fits, or all GPUs together cannot keep up; then the rate they can sustain."""
    if missing > 0:
        return Check("memory_missing_bytes", missing, 0.0)
    section = problem.scenario.serving
    fixed = section.decode_layout or section.layout
    rates = [
        best_rank_rate(problem, layout) * layout.dp * (most // layout.gpus)
        for layout in layouts(problem.model, problem.hardware, most, fixed)
    ]
    return Check("request_rate", max(rates, default=0.0), problem.sizing_rate)


def _prefill_out_of_reach(
    problem: Problem, decode: Trial[DecodePool], most: int, rate: float, first_token: float
) -> Outcome:
    """The prefill pool that comes nearest with the GPUs that decode leaves."""
    section = problem.scenario.serving
    trials: list[Trial[PrefillPool]] = []
    grid = prefill_pool.prompt_grid(problem)
    for layout in layouts(problem.model, problem.hardware, most, section.prefill_layout or section.layout):
        if most < layout.gpus or not decode_pool.pool_memory(problem, layout).fits:
            continue
        cost = prefill_pool.prompt_cost(problem, layout, grid)
        pool = prefill_pool.evaluate(problem, layout, most // layout.gpus, rate, cost)
        if pool is not None:
            trials.append(Trial(pool, pool.gpus, tuple(prefill_checks(problem, pool, first_token))))
    if not trials:
        return Outcome(Pools("disaggregated", decode.pool, None), (Check("gpus_left_for_prefill", most, 0.0),), None)
    nearest = min(trials, key=lambda trial: trial.worst.ratio)
    missed = tuple(check for check in nearest.checks if not check.met)
    return Outcome(Pools("disaggregated", decode.pool, nearest.pool), missed, nearest.worst)
