"""The cheapest pools that meet the targets: branch and bound over layouts, then over instances."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from capplan.planning import decode_pool, prefill_pool
from capplan.planning.bounds import fewest_instances
from capplan.planning.candidates import layouts
from capplan.planning.decode_pool import DecodePool, capacity_tokens
from capplan.planning.latency import Law
from capplan.planning.links import link_checks
from capplan.planning.pool import Pool as PoolSize
from capplan.planning.pools import LATENCIES, Binding, Check, ClientView, latency_checks, split_view
from capplan.planning.prefill_pool import PrefillPool
from capplan.planning.pressure import pool_pressure
from capplan.planning.problem import Problem
from capplan.planning.scenario import LayoutSection
from capplan.serving.layout import Layout
from capplan.serving.memory import MemoryBudget
from capplan.serving.pressure_rank import METASTABLE_LOAD

if TYPE_CHECKING:
    from capplan.planning.aggregated_pool import AggregatedPool

Pool = TypeVar("Pool")
SMALLER_TRIED = 4
SIZES = (32, 128, 512, math.inf)
"""GPUs of an instance up to which layouts are tried together."""


@dataclass(frozen=True)
class Trial(Generic[Pool]):
    """One pool tried: its checks, all met or not."""

    pool: Pool
    gpus: int
    checks: tuple[Check, ...]

    @property
    def met(self) -> bool:
        """Whether every check is met."""
        return all(check.met for check in self.checks)

    @property
    def worst(self) -> Check:
        """The check with the highest ratio of value to target."""
        return max(self.checks, key=lambda check: check.ratio)


@dataclass
class Search(Generic[Pool]):
    """A search for the cheapest pool of one role; ``failed`` remembers what was cheaper and why it failed, ``stalled``
    the GPUs of pools that could not keep up.

    ``bounds`` are the layouts it looked at, each with the fewest instances that mean values allow. ``start``
    is a pool that may do. Where ``ties`` matter, pools of equally many GPUs are compared too.
    """

    evaluate: Callable[[Layout, int], Trial[Pool] | None]
    max_gpus: int
    start: PoolSize | None = None
    ties: bool = True
    best: Trial[Pool] | None = None
    failed: list[Trial[Pool]] = field(default_factory=list)
    stalled: list[int] = field(default_factory=list)
    bounds: list[tuple[float, Layout]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.start is not None and self.start.gpus <= self.max_gpus:
            trial = self._trial(self.start.layout, self.start.instances)
            self.best = trial if trial is not None and trial.met else None

    def try_layout(self, layout: Layout, fewest: float) -> None:
        """Find the fewest instances of a layout that meet every check, if that can beat the best so far."""
        most = self._most_instances(layout)
        if fewest > most:
            return
        largest = self._trial(layout, most)
        if largest is None or not largest.met:
            if self.best is not None and most * layout.gpus == self.best.gpus and most > fewest:
                self._trial(layout, most - 1)  # of the pools with fewer GPUs the one that comes nearest
            return
        low, (high, trial) = int(fewest) - 1, (most, largest)
        step = 1
        while high - low > 1:
            middle = min(low + step, (low + high) // 2)
            between = self._trial(layout, middle)
            low, high, trial = (low, middle, between) if between and between.met else (middle, high, trial)
            step *= 2
        self._keep(trial)

    def _most_instances(self, layout: Layout) -> int:
        if self.best is None:
            return self.max_gpus // layout.gpus
        return min(self.max_gpus, self.best.gpus if self.ties else self.best.gpus - 1) // layout.gpus

    def _trial(self, layout: Layout, instances: int) -> Trial[Pool] | None:
        trial = self.evaluate(layout, instances)
        if trial is None:
            self.stalled.append(layout.gpus * instances)
        elif not trial.met:
            self.failed.append(trial)
        return trial

    def _keep(self, trial: Trial[Pool]) -> None:
        better = self.best is None or (trial.gpus, trial.worst.ratio) < (self.best.gpus, self.best.worst.ratio)
        self.best = trial if better else self.best

    def binding(self) -> Binding | None:
        """What the smaller pool that comes nearest misses; where none was tried, the target closest to its limit."""
        if self.best is None:
            return None
        self._try_smaller(self.best)
        best, cheaper = self.best, [trial for trial in self.failed if trial.gpus < self.best.gpus]
        stalled = [gpus for gpus in self.stalled if gpus < best.gpus]
        if not cheaper:
            full = Check("load", 1.0, 1.0)
            return _bound_by(full, max(stalled)) if stalled else _bound_by(best.worst, None)
        mildest = min(cheaper, key=lambda trial: trial.worst.ratio)
        return _bound_by(mildest.worst, mildest.gpus)

    def _try_smaller(self, best: Trial[Pool]) -> None:
        """Evaluate the most promising smaller pools: they tell what binds."""
        below = best.gpus - 1
        sizes = [(below // layout.gpus, fewest, layout) for fewest, layout in self.bounds if math.isfinite(fewest)]
        smaller = [pair for pair in sizes if pair[0] > 0]
        for count, _, layout in sorted(smaller, key=lambda pair: pair[1] / pair[0])[:SMALLER_TRIED]:
            self._trial(layout, count)


def _bound_by(check: Check, gpus: int | None) -> Binding:
    return Binding(check.name, check.value, check.target, check.strain, gpus)


def decode_search(problem: Problem, max_gpus: int, rate: float, start: PoolSize | None = None) -> Search[DecodePool]:
    """Size the decode pool: TPOT and ITL targets, KV overflow, links."""

    def evaluate(layout: Layout, instances: int) -> Trial[DecodePool] | None:
        pool = decode_pool.evaluate(problem, layout, instances, rate)
        return None if pool is None else Trial(pool, pool.gpus, tuple(decode_checks(problem, pool)))

    return _searched(problem, Search(evaluate, max_gpus, start), rate)


def aggregated_search(
    problem: Problem, max_gpus: int, rate: float, start: PoolSize | None = None
) -> Search[AggregatedPool]:
    """Size one pool for prefill and decode: every latency target, KV overflow."""
    from capplan.planning import aggregated_pool

    def evaluate(layout: Layout, instances: int) -> Trial[AggregatedPool] | None:
        pool = aggregated_pool.evaluate(problem, layout, instances, rate)
        return None if pool is None else Trial(pool, pool.gpus, tuple(aggregated_checks(problem, pool)))

    return _searched(problem, Search(evaluate, max_gpus, start, _ties_matter(problem, start)), rate)


def _searched(problem: Problem, search: Search[Pool], rate: float) -> Search[Pool]:
    """Try every layout, the most promising first: a cheap bound prunes what cannot win."""
    tried = layouts(problem.model, problem.hardware, search.max_gpus, decode_layout(problem))
    return _by_size(search, tried, lambda layout: fewest_instances(problem, layout, rate), lambda layout: layout.tp)


def _by_size(
    search: Search[Pool], tried: Iterable[Layout], bound: Callable[[Layout], float], second: Callable[[Layout], int]
) -> Search[Pool]:
    """Layouts in groups of rising size; those larger than the best pool so far are not even bounded."""
    left = sorted(tried, key=lambda layout: layout.gpus)
    for limit in SIZES:
        most = limit if search.best is None else min(limit, search.best.gpus)
        group = [(bound(layout), layout) for layout in left if layout.gpus <= most]
        left = [layout for layout in left if layout.gpus > limit]
        search.bounds += group
        for fewest, layout in sorted(group, key=lambda pair: (pair[0] * pair[1].gpus, second(pair[1]))):
            search.try_layout(layout, fewest)
        if search.best is not None and search.best.gpus <= limit:
            break
    return search


def decode_layout(problem: Problem) -> LayoutSection | None:
    """The layout the scenario fixes for the pool that decodes."""
    serving = problem.scenario.serving
    return serving.decode_layout or serving.layout


def prefill_layout(problem: Problem) -> LayoutSection | None:
    """The layout the scenario fixes for the prefill pool."""
    serving = problem.scenario.serving
    return serving.prefill_layout or serving.layout


def decode_checks(problem: Problem, pool: DecodePool) -> Iterator[Check]:
    """Targets a decode pool must meet by itself; what TTFT adds to E2E and answers is checked later."""
    view = ClientView(problem, Law.of([0.0], [1.0]), pool.stationary)
    yield from latency_checks(view, problem.targets, ("tpot", "itl", "step", "answer", "e2e"))
    if pool.stationary.wait_probability > 0:  # a cap that binds may use half of the TTFT target for the wait for a slot
        halved = {key: target / 2 for key, target in problem.targets.items()}
        yield from latency_checks(view, halved, ("ttft",))
    yield from capacity_checks(problem, pool)


def capacity_checks(problem: Problem, pool: DecodePool) -> Iterator[Check]:
    """Limits of a decode pool that are no latencies: KV overflow, the longest request, links."""
    yield from _pool_checks(problem, pool)
    yield from link_checks(problem, pool)


def aggregated_checks(problem: Problem, pool: AggregatedPool) -> Iterator[Check]:
    """Every target of a pool that does both."""
    view = ClientView(problem, pool.ttft, pool.stationary)
    yield from latency_checks(view, problem.targets, LATENCIES)
    yield from _pool_checks(problem, pool)


def _pool_checks(problem: Problem, pool: DecodePool) -> Iterator[Check]:
    yield Check("kv_overflow", pool.kv.overflow_probability, problem.scenario.slo.kv_overflow, pool.kv.needed)
    yield longest_request(problem, pool.budget, decodes=True)
    pressure = pool_pressure(problem, pool)
    if pressure is not None and pressure.load_saturated is not None:
        yield Check("kv_saturated_load", pressure.load_saturated, METASTABLE_LOAD)


def longest_request(problem: Problem, budget: MemoryBudget, *, decodes: bool) -> Check:
    """The P99.9 request must fit into the KV pool of a rank: prompt, and for a decode pool what is generated."""
    longest = problem.kept("longest prompt", Layout(), lambda: problem.workload.input.quantile(0.999)) + 1
    if decodes:

        def longest_output() -> float:
            return float(problem.workload.output.quantile(0.999))

        longest = max(longest, problem.workload.input.mean + problem.kept("longest output", Layout(), longest_output))
    return Check("longest_request_tokens", longest, max(1.0, _room_for(problem, budget, longest)))


def _room_for(problem: Problem, budget: MemoryBudget, longest: float) -> float:
    """Tokens of one request a rank holds; where bytes a token are no constant, at the rate of the longest."""
    if budget.capacity_tokens is not None or budget.kv_pool_bytes <= 0:
        return capacity_tokens(problem, budget)
    return longest * budget.kv_pool_bytes / float(budget.kv_bytes(longest))


def prefill_search(
    problem: Problem, max_gpus: int, rate: float, decode: DecodePool, start: PoolSize | None = None
) -> Search[PrefillPool]:
    """Size the prefill pool: TTFT targets, what decode adds to the first token included."""

    def evaluate(layout: Layout, instances: int) -> Trial[PrefillPool] | None:
        pool = prefill_pool.evaluate(problem, layout, instances, rate)
        return None if pool is None else Trial(pool, pool.gpus, tuple(prefill_checks(problem, pool, decode)))

    def bound(layout: Layout) -> float:
        if not decode_pool.pool_memory(problem, layout).fits:
            return math.inf
        busy = rate * prefill_pool.prompt_cost(problem, layout).mean_share_seconds
        return max(1, math.ceil(busy / layout.dp + 1e-9))

    tried = layouts(problem.model, problem.hardware, max_gpus, prefill_layout(problem))
    return _by_size(
        Search(evaluate, max_gpus, start, _ties_matter(problem, start)), tried, bound, lambda layout: layout.dp
    )


def _ties_matter(problem: Problem, start: PoolSize | None) -> bool:
    """Whether it matters which of equally large pools is taken, where another question has given a start.

    Then only the number of GPUs is asked for, which it changes where pools are enlarged for a target on sums.
    """
    sums = any(key.startswith(("answer", "e2e")) for key in problem.targets)
    return start is None or sums or problem.scenario.slo.attainment is not None


def prefill_checks(problem: Problem, pool: PrefillPool, decode: DecodePool) -> Iterator[Check]:
    """Targets a prefill pool must meet: TTFT with the decode part added."""
    yield from latency_checks(split_view(problem, pool, decode), problem.targets, ("ttft",))
    yield longest_request(problem, pool.budget, decodes=False)
    yield Check("prefill_load", pool.utilization, 1.0)
