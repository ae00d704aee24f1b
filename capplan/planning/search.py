"""The cheapest pools that meet the targets: branch and bound over layouts, then over instances."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from capplan.planning import decode_pool, prefill_pool
from capplan.planning.bounds import fewest_instances
from capplan.planning.candidates import layouts
from capplan.planning.decode_pool import DecodePool
from capplan.planning.links import link_checks
from capplan.planning.pools import Check, ClientView, latency_checks
from capplan.planning.prefill_pool import PrefillPool, prompt_cost, prompt_grid
from capplan.planning.problem import Problem
from capplan.planning.latency import Law
from capplan.serving.layout import Layout

Pool = TypeVar("Pool")


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
    """A search for the cheapest pool of one role; ``failed`` remembers what was cheaper and why it failed."""

    evaluate: Callable[[Layout, int], Trial[Pool] | None]
    max_gpus: int
    best: Trial[Pool] | None = None
    failed: list[Trial[Pool]] = field(default_factory=list)

    def try_layout(self, layout: Layout, fewest: float) -> None:
        """Find the fewest instances of a layout that meet every check, if that can beat the best so far."""
        most = self._most_instances(layout)
        if fewest > most:
            return
        low, high = int(fewest) - 1, int(fewest)
        trial = self._trial(layout, high)
        while (trial is None or not trial.met) and high < most:
            low, high = high, min(most, max(high + 1, math.ceil(high * 1.3)))
            trial = self._trial(layout, high)
        if trial is None or not trial.met:
            return
        while high - low > 1:
            middle = (low + high) // 2
            between = self._trial(layout, middle)
            low, high, trial = (low, middle, between) if between and between.met else (middle, high, trial)
        self._keep(trial)

    def _most_instances(self, layout: Layout) -> int:
        limit = self.max_gpus if self.best is None else min(self.max_gpus, self.best.gpus)
        return limit // layout.gpus

    def _trial(self, layout: Layout, instances: int) -> Trial[Pool] | None:
        trial = self.evaluate(layout, instances)
        if trial is not None and not trial.met:
            self.failed.append(trial)
        return trial

    def _keep(self, trial: Trial[Pool]) -> None:
        better = self.best is None or (trial.gpus, trial.worst.ratio) < (self.best.gpus, self.best.worst.ratio)
        self.best = trial if better else self.best

    def binding(self) -> Check | None:
        """What would be violated with fewer GPUs: the mildest violation among the cheaper pools tried."""
        cheaper = [t for t in self.failed if self.best is None or t.gpus < self.best.gpus]
        mildest = min(cheaper, key=lambda trial: trial.worst.ratio, default=None)
        return None if mildest is None else mildest.worst


def decode_search(problem: Problem, max_gpus: int, rate: float) -> Search[DecodePool]:
    """Size the decode pool: TPOT and ITL targets, KV overflow, links."""

    def evaluate(layout: Layout, instances: int) -> Trial[DecodePool] | None:
        pool = decode_pool.evaluate(problem, layout, instances, rate)
        return None if pool is None else Trial(pool, pool.gpus, tuple(decode_checks(problem, pool)))

    search = Search(evaluate, max_gpus)
    fixed = problem.scenario.serving.decode_layout or problem.scenario.serving.layout
    bounds = [(fewest_instances(problem, layout, rate), layout) for layout in layouts(problem.model, problem.hardware, max_gpus, fixed)]
    for fewest, layout in sorted(bounds, key=lambda pair: (pair[0] * pair[1].gpus, pair[1].tp)):
        search.try_layout(layout, fewest)
    return search


def decode_checks(problem: Problem, pool: DecodePool) -> Iterator[Check]:
    """Targets a decode pool must meet by itself."""
    view = ClientView(problem, Law.of([0.0], [1.0]), pool.stationary)
    yield from latency_checks(view, problem.targets, ("tpot", "itl", "step"))
    yield from latency_checks(view, problem.targets, ("answer", "e2e"))
    yield Check("kv_overflow", pool.kv.overflow_probability, problem.scenario.slo.kv_overflow)
    yield from link_checks(problem, pool)


def prefill_search(problem: Problem, max_gpus: int, rate: float, first_token: float) -> Search[PrefillPool]:
    """Size the prefill pool: TTFT targets less what decode adds to the first token."""
    grid = prompt_grid(problem)
    costs: dict[Layout, Any] = {}

    def evaluate(layout: Layout, instances: int) -> Trial[PrefillPool] | None:
        pool = prefill_pool.evaluate(problem, layout, instances, rate, costs[layout])
        if pool is None:
            return None
        return Trial(pool, pool.gpus, tuple(prefill_checks(problem, pool, first_token)))

    search = Search(evaluate, max_gpus)
    fixed = problem.scenario.serving.prefill_layout or problem.scenario.serving.layout
    bounds = []
    for layout in layouts(problem.model, problem.hardware, max_gpus, fixed):
        if decode_pool.pool_memory(problem, layout).fits:
            costs[layout] = prompt_cost(problem, layout, grid)
            fewest = math.ceil(rate * costs[layout].mean_share_seconds / layout.dp + 1e-9)
            bounds.append((max(1, fewest), layout))
    for fewest, layout in sorted(bounds, key=lambda pair: (pair[0] * pair[1].gpus, pair[1].dp)):
        search.try_layout(layout, fewest)
    return search


def prefill_checks(problem: Problem, pool: PrefillPool, first_token: float) -> Iterator[Check]:
    """Targets a prefill pool must meet: TTFT with the decode part added, and room for its longest prompts."""
    ttft = pool.ttft.shifted(first_token)
    for key, target in problem.targets.items():
        name, _, label = key.rpartition("_")
        if name == "ttft":
            yield Check(key, ttft.quantile(_PROBABILITY[label]), target)
    yield Check("prefill_load", pool.utilization, 1.0)


_PROBABILITY = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
