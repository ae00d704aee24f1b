"""Jumping from event to event gives what going step by step gives, exactly, under every rule."""

import random

import numpy as np
import pytest

from capplan.simulation.growth import HeldByContext
from capplan.simulation.pool import DecodePool
from capplan.simulation.request import Request
from capplan.simulation.rules import RankRules, StepTime
from tests.reference.scheduler_steps import Engine, Job, run_together


def _drawn(seed):
    """A small rank under pressure: rules, step time, requests (prompt, output, arrival)."""
    source = random.Random(seed)
    blocks, size = source.randint(20, 120), source.choice([1, 4, 16])
    largest = max(2, blocks * size // 3)
    rate, now, wanted = source.choice([1, 5, 30]), 0.0, []
    for _ in range(source.randint(5, 60)):
        now += source.expovariate(rate)
        prompt = source.randint(1, largest if source.random() < 0.5 else min(50, largest))
        output = source.randint(2, largest)
        if -(-(prompt + output) // size) <= blocks:
            wanted.append((prompt, output, now))
    rules = {
        "blocks": blocks,
        "block_size": size,
        "cap": source.choice([3, 8, 10**6]),
        "budget": source.choice([64, 100, 512]),
        "watermark": source.choice([0, 0, 3]),
        "swap": source.random() < 0.3,
    }
    step = {"a": 0.006, "e": 2e-5, "c": source.choice([0, 4e-8, 4e-6]), "d": 2.7e-5}
    return rules, step, wanted, source.random() < 0.5


def _simulated(rules, step, requests, ranks, in_flight, held=None):
    limits = RankRules(
        rules["blocks"], rules["block_size"], rules["cap"], rules["budget"], rules["watermark"],
        "swap" if rules["swap"] else "recompute", held=held,
    )  # fmt: skip
    times = StepTime.linear(step["a"], step["e"], step["c"], step["d"])
    pool = DecodePool(1, ranks, limits, times, "round-robin", random.Random(0))
    if not in_flight:
        pool.run(iter(requests))
        return pool
    rest = iter(requests[in_flight:])

    def following(_, time):
        request = next(rest, None)
        if request is not None:
            request.arrival = request.submitted = time
        return request

    for request in requests[:in_flight]:
        pool.place(request)
    pool.run(iter(()), following)
    return pool


class _Windowed(Engine):
    """A state of 5 units, a table of 2-unit pages over all tokens, and one of 3-unit pages of at most three."""

    def need(self, tokens):
        pages = -(-tokens // self.block_size)
        return 5 + 2 * pages + 3 * min(pages, 3) if tokens else 0


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("in_flight", [0, 7])
def test_a_pool_where_a_token_does_not_always_take_the_same(ranks, in_flight):
    preemptions = 0
    for seed in range(2000, 2060):
        rules, step, wanted, loaded = _drawn(seed)
        rules["blocks"] *= 3
        engines = [_Windowed(**rules, **step) for _ in range(ranks)]
        wanted = [one for one in wanted if engines[0].need(one[0] + one[1]) <= rules["blocks"]]
        arrivals = [0.0 if in_flight else now for _, _, now in wanted]
        jobs, requests = (
            [of(p, o, at, int(loaded), loaded=loaded) for (p, o, _), at in zip(wanted, arrivals, strict=True)]
            for of in (Job, Request)
        )
        first = in_flight or len(jobs)
        steps = run_together(engines, jobs[:first], jobs[first:])
        size = rules["block_size"]
        held = HeldByContext(lambda n, size=size: 5 + 2 * np.ceil(n / size) + 3 * np.minimum(np.ceil(n / size), 3))
        pool = _simulated(rules, step, requests, ranks, in_flight, held)
        assert sum(pool.records.step_count) == steps, seed
        assert [r.preemptions for r in requests] == [job.preemptions for job in jobs], seed
        assert [r.finish for r in requests] == pytest.approx([job.finish for job in jobs], rel=1e-9)
        assert all(rank.free == rules["blocks"] for rank in pool.instances[0].ranks)
        preemptions += sum(job.preemptions for job in jobs)
    assert preemptions > 50


def test_a_table_of_equal_blocks_changes_nothing():
    for seed in range(30):
        rules, step, wanted, _ = _drawn(seed)
        even, tabulated = ([Request(*one) for one in wanted] for _ in range(2))
        _simulated(rules, step, even, 1, 0)
        size = rules["block_size"]
        _simulated(rules, step, tabulated, 1, 0, HeldByContext(lambda n, size=size: n / size))
        assert [r.finish for r in even] == [r.finish for r in tabulated]


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("in_flight", [0, 7])
@pytest.mark.parametrize("start", [0, 1000])
def test_it_is_what_going_step_by_step_gives(start, ranks, in_flight):
    preemptions = 0
    for seed in range(start, start + 60):
        rules, step, wanted, loaded = _drawn(seed)
        made = int(loaded)
        arrivals = [0.0 if in_flight else now for _, _, now in wanted]
        jobs = [Job(p, o, at, made, loaded=loaded) for (p, o, _), at in zip(wanted, arrivals, strict=True)]
        requests = [Request(p, o, at, made, loaded=loaded) for (p, o, _), at in zip(wanted, arrivals, strict=True)]
        engines = [Engine(**rules, **step) for _ in range(ranks)]
        first = in_flight or len(jobs)
        steps = run_together(engines, jobs[:first], jobs[first:])
        pool = _simulated(rules, step, requests, ranks, in_flight)
        assert sum(pool.records.step_count) == steps, seed
        assert [r.preemptions for r in requests] == [job.preemptions for job in jobs], seed
        assert [r.finish for r in requests] == pytest.approx([job.finish for job in jobs], rel=1e-9)
        assert [r.first for r in requests] == pytest.approx([job.first for job in jobs], rel=1e-9)
        assert [rank.lost for rank in pool.instances[0].ranks] == [engine.lost for engine in engines]
        assert all(rank.free == rules["blocks"] for rank in pool.instances[0].ranks)
        preemptions += sum(job.preemptions for job in jobs)
    assert preemptions > 50


def test_every_token_is_made_once():
    rules, step, wanted, _ = _drawn(3)
    requests = [Request(*one) for one in wanted]
    pool = _simulated(rules, step, requests, 1, 0)
    decoded = sum(pool.records.step_tokens)
    resumed = sum(r.preemptions for r in requests)
    # A prompt, or a recompute, samples a token at its end; all others are decode steps.
    assert decoded + len(requests) <= sum(r.output for r in requests) <= decoded + len(requests) + resumed
    assert len(pool.records.finished) == len(requests)


def test_a_request_longer_than_the_pool_is_refused():
    pool = DecodePool(1, 1, RankRules(10), StepTime.linear(0.01, 0, 0), "random", random.Random(0))
    pool.run(iter([Request(100, 100, 0.0), Request(100, 20, 1.0)]))
    assert pool.records.refused == 1
    assert [r.output for r in pool.records.finished] == [20]


@pytest.mark.parametrize(("blocks", "short"), [(1000, False), (14, True)])
def test_only_a_wait_for_blocks_is_one(blocks, short):
    """Three prompts of 100 tokens at once: with 64 tokens a step they wait for the budget, not for the pool."""
    pool = DecodePool(
        1, 1, RankRules(blocks, token_budget=64), StepTime.linear(0.01, 0, 0, 1e-5), "random", random.Random(0)
    )
    pool.run(iter([Request(100, 5, 0.0) for _ in range(3)]))
    assert any(pool.records.rank_short) is short


def test_a_reservation_holds_requests_back_and_prevents_preemption():
    def run(policy, reserve):
        rules = RankRules(40, policy=policy, reserve_tokens=reserve)
        pool = DecodePool(1, 1, rules, StepTime.linear(0.01, 0, 0, 1e-5), "random", random.Random(0))
        pool.run(iter([Request(64, 200, 0.0) for _ in range(12)]))
        return sum(r.preemptions for r in pool.records.finished), max(pool.records.rank_batch)

    assert run("recompute", 0)[0] > 0
    assert run("reserve", 200) == (0, 2)


def test_prefix_caching_recomputes_less():
    def lost(prefix_caching):
        rules = RankRules(120, prefix_caching=prefix_caching)
        pool = DecodePool(1, 1, rules, StepTime.linear(0.01, 0, 0, 1e-5), "random", random.Random(0))
        pool.run(iter([Request(64, 100 + 20 * i, 0.0) for i in range(30)]))
        rank = pool.instances[0].ranks[0]
        return rank.lost - rank.reused

    assert 0 < lost(True) < lost(False)
