"""The stationary laws beside an event simulation that shares no code with them."""

from __future__ import annotations

import numpy as np
import pytest

from capplan.cards.workload import Workload
from capplan.serving.stationary import concurrency
from tests.reference.decode_simulation import simulate

TABLE = 60_000
"""Distinct requests: simulation and prediction see the very same finite law."""

A = 0.012
LOADS = {0.3: 130.0, 0.6: 60.0, 0.8: 45.0}
"""Load -> a/b, so that the batch is moderate and the shape index above 10."""


def lognormal_lengths(random: np.random.Generator, cv: float) -> np.ndarray:
    """Decode steps of mean 80."""
    sigma = np.sqrt(np.log1p(cv * cv))
    drawn = 80 * np.exp(sigma * random.standard_normal(TABLE) - sigma**2 / 2)
    return np.clip(np.rint(drawn), 1, 1200)


def bimodal_lengths(random: np.random.Generator) -> np.ndarray:
    """A tenth of the requests is eleven times as long."""
    return np.where(random.random(TABLE) < 0.9, 40.0, 440.0)


def production_lengths(random: np.random.Generator) -> np.ndarray:
    """Two lognormal laws fitted to the outputs of a production R1 service (ServeGen), a fifteenth as long."""
    long, z = random.random(TABLE) < 0.172548, random.standard_normal(TABLE)
    log_length = np.where(long, 8.155547 + 0.808321 * z, 6.480865 + 0.721614 * z)
    return np.clip(np.rint(np.exp(log_length) / 15), 1, 2000)


def production_prompts(random: np.random.Generator) -> np.ndarray:
    """Median 208, mean 1,269 (ServeGen, R1), a fifteenth as long."""
    sigma = np.sqrt(2 * np.log(1269 / 208))
    return np.floor(np.minimum(208 * np.exp(sigma * random.standard_normal(TABLE)), 131072) / 15)


def requests(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Prompt tokens and decode steps of the table."""
    random = np.random.default_rng(7)
    if name == "production":
        return production_prompts(random), production_lengths(random)
    steps = bimodal_lengths(random) if name == "bimodal" else lognormal_lengths(random, float(name))
    return np.full(TABLE, 80.0), steps


@pytest.mark.simulation
@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("name", ["0.5", "1.0", "1.5", "bimodal", "production"])
def test_closed_form_against_event_simulation(name: str, load: float) -> None:
    prompts, steps = requests(name)
    workload = Workload(joint=(prompts, steps + 1.0))
    b = A / LOADS[load]
    c = 0.6 * b / workload.mean_context
    rate = load / (workload.mean_decode_steps * b)
    state = concurrency(workload, rate, (A, 0.4 * b, c))
    assert state.shape_index >= 10
    assert state.load == pytest.approx(load, rel=1e-9)

    relaxation = state.moments.relaxation
    run = simulate(
        (prompts.astype(np.int64), steps.astype(np.int64)),
        A,
        0.4 * b,
        c,
        rate,
        warm_steps=int(2.5 * relaxation),
        steps=int(steps.max() + 2.0 * relaxation),
        ranks=400,
        seed=int(load * 10),
        start=state.moments.batch_mean,
    )

    def agrees(predicted: float, simulated: tuple[float, float], tolerance: float) -> bool:
        value, error = simulated
        return abs(predicted - value) <= max(tolerance * value, 2 * error)

    assert agrees(state.step_mean, run.step_mean, 0.02)
    assert agrees(state.step_mean_over_time, run.step_mean_over_time, 0.02)
    assert agrees(state.mean, run.batch_mean, 0.02)
    assert agrees(state.tpot_mean, run.tpot_mean, 0.02)
    assert agrees(state.step_quantile(0.99), run.step_p99, 0.04)
    assert agrees(state.tpot_quantile(0.99), run.tpot_p99, 0.04)
    assert agrees(state.quantile(0.99), run.batch_p99, 0.05)
