"""Runs: reproducible by seed, monotone, near recorded runs of the scheduler; routing, arrivals, intervals."""

import itertools
import json
import math
import random
from pathlib import Path

import numpy as np
import pytest

from benchmarks.simulation import HELD, PUBLISHED, compared, held_ttft, published_count
from capplan import Exponential, LogNormal, Workload, concurrency, kv_pressure
from capplan.formulas.length_laws import Uniform
from capplan.formulas.overflow import random_count_demand
from capplan.simulation.arrivals import renewal_times, trace_times
from capplan.simulation.instance import seconds_of, slowest_pieces, steps_until
from capplan.simulation.intervals import batch_means, mean, quantile, weighted_quantile
from capplan.simulation.pool import DecodePool
from capplan.simulation.population import lengths, under_way
from capplan.simulation.prefill import PrefillPool, PromptTimes
from capplan.simulation.request import Request
from capplan.simulation.rules import RankRules, StepTime
from capplan.simulation.run import run_closed, run_open, seeded

GRID = Path(__file__).parents[1] / "truth" / "preemption_runs.json"
WORKLOAD = Workload(input=500, output=LogNormal(400, 1.0, max=8192))


def _open(rate=10.0, instances=2, routing="random", seed=1, requests=2000, blocks=10_000, ranks=1):
    source, choices = seeded(seed)
    times = StepTime.linear(0.01, 1e-4, 1e-8, 1e-5)
    pool = DecodePool(instances, ranks, RankRules(blocks), times, routing, choices)
    draw = lengths(WORKLOAD, source)
    arrivals = renewal_times(rate, 1.0, source)
    return run_open(pool, (Request(*next(draw), now) for now in arrivals), requests)


def test_the_same_seed_gives_the_same_run():
    first, again, other = _open(), _open(), _open(seed=2)
    assert first.records == again.records or first.records.step_end == again.records.step_end
    assert [r.finish for r in first.requests] == [r.finish for r in again.requests]
    assert [r.finish for r in first.requests] != [r.finish for r in other.requests]


def test_more_load_makes_larger_batches_and_fewer_blocks_more_preemptions():
    batches = [_open(rate=rate).batch.value for rate in (2.0, 6.0, 12.0)]
    assert batches == sorted(batches)
    preemptions = [_open(rate=8.0, blocks=blocks).recompute_per_token.value for blocks in (4000, 2000, 1400)]
    assert preemptions == sorted(preemptions)
    assert preemptions[0] == 0


def test_mean_batch_is_that_of_little_and_the_mean_step_that_of_the_load():
    run = _open(rate=10.0, instances=1, requests=6000)
    r, inside = run.records, run._inside(run.records.step_end)
    step = np.array(r.step_duration)[inside].sum() / np.array(r.step_count)[inside].sum()
    tokens = np.array(r.step_tokens)[inside].sum() / (run.window[1] - run.window[0])
    load = 10.0 * (399 * (1e-4 + 1e-8 * WORKLOAD.mean_context) + 500 * 1e-5)
    assert step == pytest.approx(0.01 / (1 - load), rel=0.03)
    assert run.batch.value == pytest.approx(tokens * step, rel=0.03)


def test_least_loaded_instances_vary_less():
    spread = {}
    for routing in ("random", "round-robin", "least-loaded", "least-kv"):
        run = _open(rate=60.0, instances=8, routing=routing, requests=4000)
        seconds, batch, _, _ = run.states
        average = (seconds @ batch) / seconds.sum()
        spread[routing] = (seconds @ (batch - average) ** 2) / seconds.sum()
    assert spread["least-loaded"] < 0.5 * spread["random"]
    assert spread["round-robin"] < spread["random"]
    assert spread["least-kv"] < spread["random"]


@pytest.mark.parametrize("context_seconds", [1e-8, 1e-7])
def test_what_least_kv_leaves_of_the_use_of_the_pool(context_seconds):
    """Coefficient of variation of used blocks; seeds differ by 8 %."""
    workload = Workload(input=LogNormal(800, 1.0, max=8192), output=LogNormal(400, 1.0, max=8192))
    step = (0.0025, 1.1e-4 - 1e3 * context_seconds, context_seconds)
    rate = 0.5 / (399 * (step[1] + step[2] * workload.mean_context))
    source, choices = seeded(1)
    pool = DecodePool(8, 1, RankRules(100_000), StepTime.linear(*step), "least-kv", choices)
    state = concurrency(workload, rate, step, routing="least-kv", instances=8)
    for request in under_way(workload, round(8 * state.mean), source):
        pool.place(request)
    draw = lengths(workload, source)
    times = renewal_times(8 * rate, 1.0, source)
    seconds, _, used, _ = run_open(pool, (Request(*next(draw), now, 0, loaded=True) for now in times), 20_000).states
    average = (seconds @ used) / seconds.sum()
    spread = (seconds @ (used - average) ** 2) / seconds.sum() / average**2
    sizes = workload.mean_context, workload.context_std**2 * state.held_size_share, 0.0
    mean, variance, _ = random_count_demand(state.mean, state.held_std**2, *sizes)
    assert math.sqrt(variance) / mean == pytest.approx(math.sqrt(spread), rel=0.1)


def test_ranks_that_step_together_are_slower():
    apart, together = _open(rate=40.0, instances=8), _open(rate=40.0, instances=1, ranks=8)
    assert together.column(lambda r: r.finish - r.first).mean() > apart.column(lambda r: r.finish - r.first).mean()


@pytest.mark.simulation
def test_recompute_is_that_of_recorded_runs():
    cases = [c for c in json.loads(GRID.read_text(encoding="utf-8"))["runs"] if c["kind"] != "open"][::14]
    cases = [case for case in cases if case["dist"] != "fixed"]
    found = list(compared(cases, 4000))
    assert len(found) > 20
    beyond = [row for row in found if abs(row[1]) > math.hypot(row[2], row[3])]
    assert len(beyond) <= 1
    assert np.median([abs(row[1]) for row in found]) < 0.015


@pytest.mark.simulation
@pytest.mark.parametrize("watermark", PUBLISHED)
def test_preemptions_of_published_runs_within_half(watermark):
    preemptions = np.mean([published_count(watermark, seed)[0] for seed in range(3)])
    assert abs(math.log(preemptions / PUBLISHED[watermark][0])) < math.log(1.5)


def test_the_closed_form_says_that_such_outputs_are_outside_its_range():
    workload = Workload(input=Uniform(800, 1200), output=Uniform(4000, 6000))
    assert any("nearly equal" in line for line in kv_pressure(workload, 299_584, concurrency=128).warnings)


@pytest.mark.simulation
@pytest.mark.parametrize("in_flight", HELD)
def test_waits_where_the_output_is_reserved(in_flight):
    assert held_ttft(in_flight, 0.8) == pytest.approx(HELD[in_flight], rel=0.2)


@pytest.mark.parametrize(("routing", "instances"), [("random", 1), ("random", 2), ("least-loaded", 2)])
def test_a_closed_loop_varies_as_balls_in_boxes(routing, instances):
    """Requests are shared out over instances, so one alone holds a constant number, and two half the variance each."""
    in_flight, step = 60 * instances, (0.01, 1e-4, 1e-8)
    source, choices = seeded(1)
    pool = DecodePool(instances, 1, RankRules(100_000), StepTime.linear(*step), routing, choices)
    draw = lengths(WORKLOAD, source)
    first = under_way(WORKLOAD, in_flight, source)
    run = run_closed(pool, first, lambda now: Request(*next(draw), now, 0, loaded=True), 8000)
    steps = run.column(lambda r: r.output - 1.0)
    tpot = (run.column(lambda r: r.finish) - run.column(lambda r: r.first))[steps > 0] / steps[steps > 0]
    seconds, batch, _, _ = run.states
    average = (seconds @ batch) / seconds.sum()
    spread = (seconds @ (batch - average) ** 2) / seconds.sum()
    rate = 60 / (WORKLOAD.mean_decode_steps * (step[0] + 60 * (step[1] + step[2] * WORKLOAD.mean_context)))
    state = concurrency(WORKLOAD, rate, step, routing=routing, instances=instances, in_flight=in_flight)
    assert state.mean == pytest.approx(average, rel=0.02)
    assert state.std == pytest.approx(math.sqrt(spread), rel=0.1, abs=0.7)
    assert state.quantile(0.999) <= in_flight
    for p in (0.1, 0.5, 0.9, 0.99):
        assert state.tpot_quantile(p) == pytest.approx(np.quantile(tpot, p), rel=0.02)


def test_a_closed_loop_keeps_its_requests_in_flight():
    source, choices = seeded(3)
    pool = DecodePool(1, 1, RankRules(100_000), StepTime.linear(0.01, 0, 0), "random", choices)
    draw = lengths(WORKLOAD, source)
    run = run_closed(pool, under_way(WORKLOAD, 20, source), lambda now: Request(*next(draw), now), 1000)
    assert 19 < run.batch.value <= 20
    assert pool.instances[0].present in (19, 20)


def test_requests_under_way_are_of_biased_length_and_uniform_age():
    law = Exponential(1000)
    requests = under_way(Workload(10, law), 4000, np.random.default_rng(0))
    assert np.mean([r.output for r in requests]) == pytest.approx(2000, rel=0.08)
    assert np.mean([r.made for r in requests]) == pytest.approx(1000, rel=0.08)
    assert [r.made for r in requests] == sorted((r.made for r in requests), reverse=True)


@pytest.mark.parametrize("dispersion", [0.3, 1.0, 8.0])
def test_arrivals_have_their_rate_and_dispersion(dispersion):
    times = np.fromiter(itertools.islice(renewal_times(5.0, dispersion, np.random.default_rng(1)), 60_000), float)
    gaps = np.diff(times)
    assert 1 / gaps.mean() == pytest.approx(5.0, rel=0.05)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(dispersion, rel=0.1)


@pytest.mark.parametrize("rate", [0.3, 1.0, 2.7])
def test_a_trace_is_thinned_or_overlaid(rate):
    stamps = np.cumsum(np.random.default_rng(2).exponential(1.0, 3000)) + 500
    replayed = itertools.islice(trace_times(stamps, rate, np.random.default_rng(3)), 9000)
    times, places = (np.array(column) for column in zip(*replayed, strict=True))
    assert (np.diff(times) >= 0).all()
    assert np.ptp(places) == 2999
    assert len(times) / times[-1] == pytest.approx(rate, rel=0.05)


def test_a_trace_at_its_own_rate_is_whole_and_in_order():
    stamps = np.sort(np.random.default_rng(2).uniform(0.0, 900.0, 500))
    rate = 499 / (stamps[-1] - stamps[0])
    replayed = list(itertools.islice(trace_times(stamps[::-1], rate, np.random.default_rng(3)), 500))
    times, places = (np.array(column) for column in zip(*replayed, strict=True))
    assert sorted(places) == list(range(500))
    begin = int(np.argmax(places))  # the replay begins at a random place of the trace
    assert np.diff(times[:begin]) == pytest.approx(np.diff(stamps[::-1][places[:begin]]), abs=1e-9)


def test_blind_routing_makes_a_queue_of_each_rank():
    times = PromptTimes(busy=float, own=float)
    pools = {name: PrefillPool(2, times, name) for name in ("least-loaded", "round-robin")}
    long, short = (100, 0.0), (1, 1.0)
    done = {name: [pool.serve(Request(*one)) for one in _prompts(long, short, short)] for name, pool in pools.items()}
    assert done["least-loaded"] == [100.0, 2.0, 3.0]
    assert done["round-robin"] == [100.0, 2.0, 101.0]


def _prompts(*pairs):
    return [(tokens, 1, arrival) for tokens, arrival in pairs]


def test_time_of_steps_and_back():
    source = random.Random(5)
    for _ in range(300):
        steps, first, slope = source.randint(1, 50), source.uniform(0.5, 2), source.choice([0, 1e-12, 0.1])
        seconds = source.uniform(0, 1.2) * seconds_of(steps, first, slope)
        found = steps_until(seconds, steps, first, slope)
        assert found == next((k for k in range(1, steps) if seconds_of(k, first, slope) >= seconds), steps)


def test_the_slowest_rank_step_by_step():
    source = random.Random(6)
    for _ in range(200):
        lines = [(source.uniform(0, 1), source.uniform(0, 0.05)) for _ in range(source.randint(2, 6))]
        steps = source.randint(1, 40)
        pieces = slowest_pieces(lines, 3, steps)
        times = [first + slope * k for number, first, slope in pieces for k in range(number)]
        assert times == pytest.approx([max(at + slope * (3 + k) for at, slope in lines) for k in range(steps)])


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    source = np.random.default_rng(7)
    inside = [abs((found := mean(source.exponential(1.0, 2000))).value - 1) < found.half_width for _ in range(200)]
    assert 0.9 < np.mean(inside) <= 1


def test_intervals_of_what_moves_slowly_are_wider():
    source = np.random.default_rng(8)
    noise = source.normal(size=4000)
    slow = np.convolve(noise, np.ones(400) / 20, "same")
    assert mean(slow).half_width > 5 * mean(noise).half_width


def test_few_observations_have_no_interval():
    assert math.isinf(quantile(np.arange(10.0), 0.5).half_width)
    assert math.isnan(batch_means(0, lambda _: 0.0).value)
    assert weighted_quantile(np.array([3.0, 1.0]), np.array([1.0, 9.0]), 0.9) == 1.0
