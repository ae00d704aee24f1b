"""Ranks that step together and read prompts: limits, conservation, and an event simulation."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from capplan import LogNormal, Workload
from capplan.formulas.chunked_prefill_latency import step_law, tpot_law, ttft_law
from capplan.formulas.chunked_prefill_mixture import full_chunks
from capplan.formulas.chunked_prefill_numeric import ChunkedRank, stepping_together
from capplan.planning.aggregated_pool import request_nodes
from capplan.simulation.arrivals import renewal_times
from capplan.simulation.pool import DecodePool
from capplan.simulation.population import lengths
from capplan.simulation.request import Request
from capplan.simulation.rules import RankRules, StepTime
from capplan.simulation.run import run_open, seeded

WORKLOAD = Workload(input=LogNormal(1500, 2.0, max=32_768), output=LogNormal(300, 1.0, max=8192))
STEP = (0.01, 2e-5, 2e-8, 3e-5, 1e-9)
BUDGET = 4096


def rank(rate: float = 1.2, ranks: int = 4) -> ChunkedRank:
    prompts, steps, weights = request_nodes(WORKLOAD)
    return stepping_together(ChunkedRank(rate, *STEP, BUDGET, np.maximum(prompts, 1.0), steps, weights), ranks)


def test_one_rank_has_no_neighbours():
    alone = rank(ranks=1)
    assert alone.delays == 1.0
    assert alone.mixture is alone.own_mixture


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_chunk_delays_all_ranks_when_few_are_read_and_none_when_all_are_full(ranks):
    assert rank(0.01, ranks).delays == pytest.approx(ranks, rel=0.01)
    busy = [rank(u * rank().max_rate, ranks) for u in (0.1, 0.3, 0.5, 0.7, 0.9, 0.97)]
    delays, steps = [one.delays for one in busy], [one.step_mean for one in busy]
    assert all(after <= before for before, after in pairwise(delays))
    assert all(after >= (1 - 1e-9) * before for before, after in pairwise(steps))
    assert 1.0 <= delays[-1] < 1.2


@pytest.mark.parametrize("rate", [0.3, 2.0, 6.0])
def test_all_prompts_are_paid_for(rate):
    """What chunks add to the steps of a rank is the time of its prompts."""
    one = rank(rate, 1)
    assert one.own_mixture.mean == pytest.approx(one.request_rate * one.step_mean * one.prompt_cost, rel=0.03)


def test_full_chunks_attend_to_what_lies_before_them():
    prompts = np.array([1000.0, 12_000.0])
    one = replace(rank(ranks=1), prompts=prompts, steps=np.array([10.0, 10.0]), weights=np.array([0.5, 0.5]))
    attended, shares = full_chunks(one, 0.0)
    assert shares.sum() == pytest.approx(1.0)
    chunks = np.floor(12_000 / one.room)
    assert shares @ attended == pytest.approx(chunks * one.room / 2, rel=0.02)


@cache
def simulated() -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """TTFT, TPOT and steps (over time) at P50, P90 and P99, and the mean step, of four instances of four ranks."""
    random, choices = seeded(1)
    pool = DecodePool(4, 4, RankRules(1_000_000, 16, 1024, BUDGET), StepTime.linear(*STEP), "random", choices)
    draw = lengths(WORKLOAD, random)
    run = run_open(pool, (Request(*next(draw), now) for now in renewal_times(1.2 * 16, 1.0, random)), 25_000)
    first, steps = run.column(lambda r: r.first), run.column(lambda r: r.output - 1.0)
    tpot = (run.column(lambda r: r.finish) - first)[steps > 0] / steps[steps > 0]
    records, inside = run.records, run._inside(run.records.step_end)
    lasted, count = (np.array(part)[inside] for part in (records.step_duration, records.step_count))
    order = np.argsort(lasted / count)
    reached = np.cumsum(lasted[order]) / lasted.sum()
    over_time = (lasted / count)[order][np.searchsorted(reached, [0.5, 0.9, 0.99])]
    levels = [0.5, 0.9, 0.99]
    ttft = np.quantile(first - run.column(lambda r: r.arrival), levels)
    return ttft, np.quantile(tpot, levels), over_time, float(lasted.sum() / count.sum())


def test_against_an_event_simulation():
    ttft, tpot, steps, mean = simulated()
    found = rank()
    assert found.step_mean == pytest.approx(mean, rel=0.02)
    for law, measured, tolerance in ((ttft_law, ttft, 0.08), (tpot_law, tpot, 0.06), (step_law, steps, 0.05)):
        quantiles = [law(found).quantile(p) for p in (0.5, 0.9, 0.99)]
        assert quantiles == pytest.approx(measured.tolist(), rel=tolerance), law.__name__
