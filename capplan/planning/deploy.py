"""Deployments: pools sized together so that every target is met, or the nearest that can be reached."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from capplan.planning import decode_pool, prefill_pool
from capplan.planning.candidates import layouts
from capplan.planning.decode_pool import DecodePool
from capplan.planning.pools import LATENCIES, Binding, Check, ClientView, Mode, Pools, latency_checks, split_view
from capplan.planning.prefill_pool import PrefillPool
from capplan.planning.problem import Problem
from capplan.planning.scenario import LayoutSection
from capplan.planning.search import (
    Search,
    Trial,
    aggregated_checks,
    aggregated_search,
    capacity_checks,
    decode_layout,
    decode_search,
    prefill_layout,
    prefill_search,
)

if TYPE_CHECKING:
    from capplan.planning.aggregated_pool import AggregatedPool
    from capplan.serving.layout import Layout

MORE_INSTANCES = 64
"""Instances added at most until the targets on sums (E2E, time to answer, attainment) are met."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a search found: pools that meet every target, or the nearest ones and the targets they miss."""

    pools: Pools | None
    missed: tuple[Check, ...]
    find_binding: Callable[[], Binding | None] | None = None
    """Evaluates smaller pools; only where somebody asks what binds."""

    @cached_property
    def binding(self) -> Binding | None:
        """What keeps the pools from being smaller."""
        return None if self.find_binding is None else self.find_binding()

    @property
    def feasible(self) -> bool:
        """Whether every target is met."""
        return self.pools is not None and not self.missed


def view_of(problem: Problem, pools: Pools) -> ClientView:
    """The client's latencies for a deployment."""
    if pools.both is not None:
        return ClientView(problem, pools.both.ttft, pools.both.stationary)
    if pools.prefill is None:
        raise ValueError("a decode pool alone has no TTFT")
    return split_view(problem, pools.prefill, pools.decode)


def all_checks(problem: Problem, pools: Pools) -> list[Check]:
    """Every target of a deployment beside its prediction."""
    view = view_of(problem, pools)
    if pools.both is not None:
        checks = list(aggregated_checks(problem, pools.both))
    else:
        checks = [*capacity_checks(problem, pools.decode), *latency_checks(view, problem.targets, LATENCIES)]
    wanted = problem.scenario.slo.attainment
    if wanted is not None:
        checks.append(Check("attainment", 1 - view.attainment, 1 - wanted))
    return checks


def reload(problem: Problem, pools: Pools, rate: float) -> Pools | None:
    """The same pools at another rate or under other requests; None where a queue has no stationary state."""
    old = pools.decode
    if pools.both is not None:
        both = _aggregated_pool(problem, old.layout, old.instances, rate)
        return None if both is None else replace(pools, decode=both)
    decode = decode_pool.evaluate(problem, old.layout, old.instances, rate)
    if decode is None or pools.prefill is None:
        return None
    prefill = prefill_pool.evaluate(problem, pools.prefill.layout, pools.prefill.instances, rate)
    return None if prefill is None else replace(pools, decode=decode, prefill=prefill)


def _aggregated_pool(problem: Problem, layout: Layout, instances: int, rate: float) -> AggregatedPool | None:
    from capplan.planning import aggregated_pool

    return aggregated_pool.evaluate(problem, layout, instances, rate)


def disaggregated(problem: Problem, near: Pools | None = None) -> Outcome:
    """Separate prefill and decode pools.

    ``near`` are pools of a question like this one: the search starts there, and asks for the number of GPUs alone.
    """
    rate, most = problem.sizing_rate, problem.scenario.hardware.max_gpus
    first, second = _starts(near, "disaggregated")
    decode = decode_search(problem, most, rate, first)
    if decode.best is None:
        return _out_of_reach(problem, decode, "disaggregated")
    left = most - decode.best.gpus
    prefill = prefill_search(problem, left, rate, decode.best.pool, second)
    if prefill.best is None:
        return _prefill_out_of_reach(problem, decode.best.pool, prefill, left)
    pools = Pools("disaggregated", decode.best.pool, prefill.best.pool)
    return _grown(problem, pools, rate, partial(_binding, decode, prefill))


def aggregated(problem: Problem, near: Pools | None = None) -> Outcome:
    """One pool that does both; ``near`` as for two."""
    start, _ = _starts(near, "aggregated")
    both = aggregated_search(problem, problem.scenario.hardware.max_gpus, problem.sizing_rate, start)
    return _out_of_reach(problem, both, "aggregated") if both.best is None else _grown_best(problem, both, both.best)


def aggregated_within(problem: Problem, most_gpus: int, near: Pools | None = None) -> Outcome | None:
    """One pool that does both, of at most so many GPUs; None where there is none."""
    both = aggregated_search(problem, most_gpus, problem.sizing_rate, _starts(near, "aggregated")[0])
    return None if both.best is None else _grown_best(problem, both, both.best)


def _starts(near: Pools | None, mode: Mode) -> tuple[DecodePool | None, PrefillPool | None]:
    """The pool that decodes and the one that prefills, to start a search of that mode from."""
    return (near.decode, near.prefill) if near is not None and near.mode == mode else (None, None)


def _grown_best(problem: Problem, both: Search[AggregatedPool], best: Trial[AggregatedPool]) -> Outcome:
    return _grown(problem, Pools("aggregated", best.pool, None), problem.sizing_rate, partial(_binding, both))


def _binding(*searches: Search[Any]) -> Binding | None:
    """What keeps the larger pool from being smaller; where it has no smaller pool to try, the other one."""
    found = [search.binding() for search in sorted(searches, key=lambda s: -(s.best.gpus if s.best else 0))]
    known = [binding for binding in found if binding is not None]
    return next((binding for binding in known if binding.gpus is not None), known[0] if known else None)


def _grown(problem: Problem, pools: Pools, rate: float, find_binding: Callable[[], Binding | None]) -> Outcome:
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
        checks, better = min(tried, key=lambda pair: max(check.ratio for check in pair[0]))
        find_binding = partial(Binding, worst.name, worst.value, worst.target, worst.strain, pools.gpus)
        pools = better
    return Outcome(pools, tuple(check for check in checks if not check.met), find_binding)


def _one_more(problem: Problem, pools: Pools, rate: float) -> Iterator[Pools]:
    """The deployments with one more instance of one pool."""
    old, prefill = pools.decode, pools.prefill
    evaluate = decode_pool.evaluate if pools.both is None else _aggregated_pool
    if (decode := evaluate(problem, old.layout, old.instances + 1, rate)) is not None:
        yield replace(pools, decode=decode)
    if prefill is not None:
        more = prefill_pool.evaluate(problem, prefill.layout, prefill.instances + 1, rate)
        yield replace(pools, prefill=more)


def _out_of_reach(problem: Problem, search: Search[Any], mode: Mode) -> Outcome:
    """Each layout with all the GPUs there are: the one that comes nearest, or what is missing altogether."""
    nearest = _nearest(problem, search, decode_layout(problem), search.max_gpus)
    if nearest is None:
        return Outcome(None, (_hopeless(problem, search.max_gpus),))
    missed = tuple(check for check in nearest.checks if not check.met)
    if mode == "disaggregated" and nearest.gpus == search.max_gpus:
        missed = (*missed, Check("gpus_left_for_prefill", 0.0, 0.0))
    return Outcome(Pools(mode, nearest.pool, None), missed)


def _prefill_out_of_reach(problem: Problem, decode: DecodePool, search: Search[PrefillPool], left: int) -> Outcome:
    """The prefill pool that comes nearest with the GPUs that decode leaves."""
    nearest = _nearest(problem, search, prefill_layout(problem), left)
    if nearest is None:
        missed: tuple[Check, ...] = (Check("gpus_left_for_prefill", left, 0.0),)
        return Outcome(Pools("disaggregated", decode, None), missed)
    missed = tuple(check for check in nearest.checks if not check.met)
    return Outcome(Pools("disaggregated", decode, nearest.pool), missed)


def _nearest(problem: Problem, search: Search[Any], fixed: LayoutSection | None, most: int) -> Trial[Any] | None:
    trials = []
    for layout in layouts(problem.model, problem.hardware, most, fixed):
        if most >= layout.gpus and decode_pool.pool_memory(problem, layout).fits:
            trials.append(search.evaluate(layout, most // layout.gpus))
    found = [trial for trial in trials if trial is not None]
    return min(found, key=lambda trial: trial.worst.ratio, default=None)


def _hopeless(problem: Problem, most: int) -> Check:
    """No pool at all: one instance is too large, nothing fits, or all GPUs together cannot keep up."""
    tried = list(layouts(problem.model, problem.hardware, most, decode_layout(problem)))
    missing = min((decode_pool.pool_memory(problem, layout).missing_bytes for layout in tried), default=math.inf)
    smallest = min((layout.gpus for layout in tried), default=0)
    if smallest > most:
        return Check("gpus_of_one_instance", smallest, most)
    return Check("memory_missing_bytes", missing, 0.0) if missing > 0 else Check("load", math.inf, 1.0)
