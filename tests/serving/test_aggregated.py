import math

import numpy as np
import pytest

from benchmarks.pool_runs import chunked_pairs
from capplan.cards.workload import Workload
from capplan.errors import InputError
from capplan.formulas.length_laws import LogNormal
from capplan.serving.aggregated import aggregated

QUANTILES = {0.5: 2, 0.9: 3, 0.99: 5}


def pairs():
    """(predicted, simulated) of every run with prompts of a coefficient of variation of at most 1."""
    return chunked_pairs()


def errors(predict, truth):
    return np.array([abs(predict(p) / truth(run) - 1) for p, run in pairs()])


def test_rate_step_and_batch():
    assert len(pairs()) == 48
    assert errors(lambda p: p.max_rate, lambda run: run["max_rate"]).max() < 0.01
    steps = errors(lambda p: p.step_mean, lambda run: run["steps"][0])
    assert np.median(steps) < 0.003
    assert np.quantile(steps, 0.95) < 0.03  # the rest is noise of runs near the largest rate
    assert np.median(errors(lambda p: p.batch_mean, lambda run: run["steps"][1])) < 0.01


def test_shares_of_steps():
    full = np.array([abs(p.full_step_share - run["steps"][3]) for p, run in pairs()])
    reading = np.array([abs(p.prefill_step_share - run["steps"][2]) for p, run in pairs()])
    assert full.max() < 0.04
    assert np.quantile(reading, 0.95) < 0.08


@pytest.mark.parametrize(("p", "median", "high"), [(0.5, 0.01, 0.1), (0.9, 0.015, 0.05), (0.99, 0.02, 0.2)])
def test_tpot(p, median, high):
    found = errors(lambda state: state.tpot_quantile(p), lambda run: run["tpot"][QUANTILES[p]])
    assert np.median(found) < median
    assert np.quantile(found, 0.95) < high


@pytest.mark.parametrize(("p", "median", "high"), [(0.5, 0.06, 0.2), (0.9, 0.07, 0.22), (0.99, 0.1, 0.32)])
def test_ttft(p, median, high):
    found = errors(lambda state: state.ttft_quantile(p), lambda run: run["ttft"][QUANTILES[p]])
    assert np.median(found) < median
    assert np.quantile(found, 0.95) < high


@pytest.mark.parametrize(("p", "median"), [(0.5, 0.02), (0.9, 0.02), (0.99, 0.03)])
def test_itl(p, median):
    assert np.median(errors(lambda state: state.itl_quantile(p), lambda run: run["itl"][QUANTILES[p]])) < median


def test_means():
    assert np.median(errors(lambda state: state.tpot_mean, lambda run: run["tpot"][0])) < 0.01
    assert np.median(errors(lambda state: state.ttft_mean, lambda run: run["ttft"][0])) < 0.07


def test_overload_is_an_answer():
    workload = Workload(input=1000, output=200)
    state = aggregated(workload, 20.0, (0.025, 2e-5, 3.1e-8), (4e-5, 0.0), 2048)
    assert not state.stable
    assert state.load == pytest.approx(20 / 15.29, rel=1e-3)
    assert math.isinf(state.ttft_quantile(0.5))
    assert math.isinf(state.tpot_mean)
    assert "serves at most" in state.warnings[0]


def test_heavy_prompts_are_flagged():
    workload = Workload(input=LogNormal(1269, 5.0, max=131072), output=200)
    state = aggregated(workload, 2.0, (0.012, 2e-5, 3.1e-8), (4e-5, 4e-9), 2048)
    assert any("long prompts rule the tail" in text for text in state.warnings)
    assert pairs()[0][0].heaviness < 0.01


def test_traffic_without_prefill_share_is_the_decode_step():
    state = aggregated(Workload(input=1, output=400), 1.0, (0.01, 1e-4, 0.0), (1e-9, 0.0), 8192)
    assert state.step_mean == pytest.approx(0.01 / (1 - 399e-4), rel=1e-6)
    assert state.itl_quantile(0.5) == pytest.approx(state.step_mean, rel=0.05)


def test_a_joint_sample_is_grouped():
    random = np.random.default_rng(1)
    prompts, lengths = random.lognormal(7, 1, 50_000), random.lognormal(6, 1, 50_000) + 1
    state = aggregated(Workload(joint=(prompts, lengths)), 2.0, (0.012, 2e-5, 3e-8), (4e-5, 1e-9), 4096)
    mean = 0.012 / (1 - 2.0 * (4e-5 * prompts.mean() + 1e-9 * (prompts**2).mean() / 2))
    assert state.step_mean > mean  # decode adds to it
    assert state.ttft_quantile(0.99) > state.ttft_quantile(0.5) > 0


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"workload": 5}, "workload"),
        ({"workload": Workload(input=0, output=5)}, "workload"),
        ({"request_rate": 0.0}, "request_rate"),
        ({"step_time": (0.01, 1e-5)}, "step_time"),
        ({"step_time": (0.0, 1e-5, 0.0)}, "step_time"),
        ({"prefill_time": (math.nan, 0.0)}, "prefill_time"),
        ({"prefill_time": "fast"}, "prefill_time"),
        ({"token_budget": 0}, "token_budget"),
    ],
)
def test_bad_input_names_its_key(arguments, key):
    call = {
        "workload": Workload(input=1000, output=200), "request_rate": 1.0, "step_time": (0.01, 1e-5, 1e-8),
        "prefill_time": (4e-5, 0.0), "token_budget": 2048,
    } | arguments  # fmt: skip
    with pytest.raises(InputError) as caught:
        aggregated(**call)
    assert caught.value.key == key


def test_a_quantile_needs_a_probability():
    with pytest.raises(InputError):
        pairs()[0][0].tpot_quantile(1.0)
