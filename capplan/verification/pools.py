"""The pools of a plan as the simulation runs them: the plan's step times and sizes, none of its laws."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np

from capplan.cards.trace_requests import TraceRequests
from capplan.planning.operating_point import Line, line_and_wait, line_at
from capplan.planning.plan import Plan
from capplan.planning.pools import Pools
from capplan.planning.prefill_pool import PrefillPool as PlannedPrefill
from capplan.planning.prefill_pool import token_budget
from capplan.planning.problem import Problem
from capplan.planning.prompt_line import prompt_line
from capplan.serving.memory_budget import MemoryBudget
from capplan.simulation.arrivals import renewal_times, trace_times
from capplan.simulation.growth import HeldByContext
from capplan.simulation.pool import DecodePool
from capplan.simulation.population import lengths, under_way
from capplan.simulation.prefill import PrefillPool, PromptTimes
from capplan.simulation.request import Request
from capplan.simulation.rules import RankRules, StepTime
from capplan.simulation.run import Outcome, Progress, run_closed, run_open, seeded


@dataclass(frozen=True, eq=False)
class SimulatedPlan:
    """What a run of a plan's pools found; ``prefill`` is None where one pool does both."""

    outcome: Outcome
    prefill: PrefillPool | None


def simulate_plan(
    plan: Plan, requests: int, seed: int, trace: TraceRequests | None = None, progress: Progress | None = None
) -> SimulatedPlan:
    """Run the pools of a feasible plan at its offered rate, or with its requests in flight.

    Parameters
    ----------
    plan : a feasible plan
    requests : requests measured
    seed : of lengths, arrivals and routing
    trace : requests replayed, at the rate of the plan; None for those of its laws, in Poisson or bursty arrivals
    progress : told how far the run is
    """
    pools, problem = plan.pools_at_rate, plan.problem
    assert pools is not None
    random, choices = seeded(seed)
    pool = decode_pool(problem, pools, choices)
    requests_of = _Requests(problem, pools, random)
    prefill = None if pools.prefill is None else prefill_pool(pools.prefill, problem, choices)
    in_flight = problem.scenario.workload.concurrency
    if in_flight is not None:
        first = under_way(problem.workload, in_flight, random)
        outcome = run_closed(pool, first, requests_of.following(prefill), requests, progress)
        return SimulatedPlan(outcome, prefill)
    for request in under_way(problem.workload, _running(pools, random), random):
        pool.place(request)
    feed = requests_of.arriving(problem.rate, problem.scenario.workload.dispersion, trace)
    outcome = run_open(pool, feed if prefill is None else prefill.feed(feed), requests, progress)
    return SimulatedPlan(outcome, prefill)


def _running(pools: Pools, random: np.random.Generator) -> int:
    """Requests under way when a run begins: a Poisson number around the mean, dropped from what is measured."""
    decode = pools.decode
    return int(random.poisson(decode.stationary.mean * decode.ranks))


def decode_pool(problem: Problem, pools: Pools, choices: Random) -> DecodePool:
    """The pool that decodes, empty."""
    decode = pools.decode
    hit = problem.scenario.serving.prefix_hit if pools.both is not None else 0.0
    rules = replace(
        kv_pool(decode.budget), max_num_seqs=decode.cap, token_budget=int(token_budget(problem) / (1 - hit))
    )
    return DecodePool(
        decode.instances, decode.layout.dp, rules, step_times(problem, pools, hit), problem.scenario.serving.routing,
        choices,
    )  # fmt: skip


def kv_pool(budget: MemoryBudget) -> RankRules:
    """The KV pool of a rank: blocks of tokens, or bytes where a token does not always take the same."""
    if budget.capacity_tokens is not None:
        size = int(budget.block_tokens)
        return RankRules(blocks=int(budget.capacity_tokens // size), block_size=size)
    pages = int(budget.kv_pool_bytes // budget.block_bytes)
    return RankRules(blocks=int(pages * budget.block_bytes), held=HeldByContext(budget.paged_bytes))


def step_times(problem: Problem, pools: Pools, hit: float) -> StepTime:
    """The line (a, e, c) of one rank by itself, and what prompts add to a step.

    Of a prompt a share ``hit`` is cached: its products are saved, the attention of the rest to it is not.
    """
    token, pair = prompt_line(problem, pools.decode.layout)
    return StepTime.linear(*_rank_line(problem, pools), token * (1 - hit), pair * (1 - hit**2))


def _rank_line(problem: Problem, pools: Pools) -> Line:
    """The plan's line without the wait for the slowest rank, which the simulation finds itself."""
    decode, both = pools.decode, pools.both
    if both is not None:
        return line_at(problem, decode.layout, max(both.rank.running, 1.0))
    found = line_and_wait(problem, decode.layout, decode.rank_rate)
    return decode.coefficients if found is None else found[0]


def prefill_pool(pool: PlannedPrefill, problem: Problem, choices: Random) -> PrefillPool:
    """The pool that prefills; times between the plan's prompts are interpolated."""
    cost = pool.cost
    prompts, place = np.unique(cost.prompts, return_index=True)
    tokens = [0.0, *prompts.tolist()]
    busy = [0.0, *cost.share_seconds[place].tolist()]
    own = [0.0, *(cost.alone_seconds + cost.transfer_seconds)[place].tolist()]
    times = PromptTimes(lambda prompt: _between(tokens, busy, prompt), lambda prompt: _between(tokens, own, prompt))
    return PrefillPool(pool.ranks, times, problem.scenario.serving.routing, choices)


def _between(tokens: list[float], seconds: list[float], prompt: int) -> float:
    """Interpolated, and extended beyond the longest of ``tokens``."""
    place = min(bisect_right(tokens, prompt), len(tokens) - 1)
    low, high = tokens[place - 1], tokens[place]
    return seconds[place - 1] + (seconds[place] - seconds[place - 1]) * (prompt - low) / (high - low)


class _Requests:
    """Makes the requests of a run, one after the other."""

    def __init__(self, problem: Problem, pools: Pools, random: np.random.Generator) -> None:
        self._lengths = lengths(problem.workload, random)
        self._random = random
        self._apart = pools.both is None
        # The decode pool makes the first token itself, from a cache of the whole prompt, or is handed it.
        self._made = 0 if "first-step" in problem.engine.ttft_order else 1

    def new(self, arrival: float) -> Request:
        """The next request."""
        return self._of(arrival, *next(self._lengths))

    def _of(self, arrival: float, prompt: int, output: int, reasoning: int | None = None) -> Request:
        if self._apart:
            request = Request(prompt, max(output, self._made + 1), arrival, self._made, loaded=True)
        else:
            request = Request(prompt, output, arrival)
        request.reasoning = reasoning
        return request

    def arriving(self, rate: float, dispersion: float, trace: TraceRequests | None) -> Iterator[Request]:
        """An open stream of them."""
        if trace is None:
            return map(self.new, renewal_times(rate, dispersion, self._random))
        prompts, outputs = (np.maximum(column, 1).astype(int).tolist() for column in (trace.prompts, trace.outputs))
        thoughts = [None] * len(outputs) if trace.reasoning is None else trace.reasoning.tolist()
        times = trace_times(trace.times, rate, self._random)
        return (self._of(now, prompts[place], outputs[place], thoughts[place]) for now, place in times)

    def following(self, prefill: PrefillPool | None) -> Any:
        """What follows a completion in a closed loop."""

        def after(time: float) -> Request:
            request = self.new(time)
            if prefill is not None:
                prefill.serve(request)
            return request

        return after
