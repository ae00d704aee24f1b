"""A rank with fixed concurrency: Little's law, the simulated runs, the first wave, warnings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.pool_runs import loop_pairs
from capplan.cards.workload import Workload
from capplan.errors import InputError
from capplan.formulas.length_laws import Fixed, LogNormal, Uniform
from capplan.serving.aggregated_loop import AggregatedLoop, aggregated_loop

STEP, PROMPT = (0.025, 2e-5, 3.1e-8), (4e-5, 0.0)
UNIFORM = Workload(Uniform(819, 1024), Uniform(205, 256))


def loop(users: float, workload: Workload = UNIFORM) -> AggregatedLoop:
    return aggregated_loop(workload, users, STEP, PROMPT, 2048)


@pytest.mark.parametrize("users", [1, 8, 64, 256, 600])
def test_littles_law(users: int) -> None:
    found = loop(users)
    steps = UNIFORM.mean_decode_steps
    assert found.rate * (found.ttft_mean + steps * found.tpot_mean) == pytest.approx(users, rel=1e-6)
    assert found.running == pytest.approx(found.rate * steps * found.tpot_mean, rel=1e-6)


@pytest.mark.simulation
def test_saturated_runs_are_exact_and_a_benchmark_adds_its_first_wave() -> None:
    pairs = [pair for pair in (*loop_pairs(uniform=True), *loop_pairs(uniform=False)) if pair[0].saturated]
    assert len(pairs) >= 20
    for found, sim in pairs:
        assert found.ttft_mean == pytest.approx(sim["ttft"], rel=0.006)
        assert found.rate == pytest.approx(sim["X"], rel=0.003)
        assert found.benchmark_ttft_mean() == pytest.approx(sim["ttft_10N"], rel=0.05)
    wave = [found.benchmark_ttft_mean() / sim["ttft_10N"] for found, sim in loop_pairs(uniform=True)]
    assert np.median(np.abs(np.array(wave) - 1)) < 0.08


def test_many_rounds_forget_the_first_wave() -> None:
    found = loop(64)
    assert found.benchmark_ttft_mean(1e9) == pytest.approx(found.ttft_mean)
    assert found.benchmark_ttft_mean(5) > found.benchmark_ttft_mean(10) > found.ttft_mean


def test_ranges_are_warned_of() -> None:
    assert loop(64).warnings == ()
    assert "lock into groups" in loop(64, Workload(Fixed(1000), Fixed(250))).warnings[0]
    assert "more than one step" in loop(8, Workload(Uniform(6000, 7000), Uniform(205, 256))).warnings[0]
    assert "means only" in loop(64, Workload(Uniform(819, 1024), LogNormal(250, 1.0))).warnings[0]


@pytest.mark.parametrize(
    ("workload", "users", "key"),
    [(Workload(1000, 1), 8, "workload"), (UNIFORM, 0, "concurrency"), (7, 8, "workload")],
)
def test_bad_input_names_its_key(workload: Any, users: float, key: str) -> None:
    with pytest.raises(InputError) as caught:
        loop(users, workload)
    assert caught.value.key == key
