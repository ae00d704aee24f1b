import json
import math
from pathlib import Path

import numpy as np
import pytest

from capplan.errors import InputError
from capplan.formulas.length_laws import LogNormal
from capplan.formulas.queueing import erlang_c, mg1_wait_mean_seconds, mg1_wait_second_moment
from capplan.formulas.queueing_numeric import mgk_queue, mgk_wait, overlap_share
from capplan.formulas.queueing_tail import continuous_erlang_c, gamma_wait_exceedance, gamma_wait_quantile

RUNS = json.loads((Path(__file__).parents[1] / "truth" / "prefill_queue_runs.json").read_text())["runs"]


def service(run):
    prompts, weights = LogNormal(1500, run["cv"], max=131072).nodes(48)
    return 2e-5 * prompts * (1 + run["square"] * prompts / 16384), weights


def queue(run):
    seconds, weights = service(run)
    rate = run["rho"] * run["servers"] / float(weights @ seconds)
    return mgk_queue(rate, seconds, weights, run["servers"], run["ca2"])


def errors(runs, quantiles):
    return {
        p: np.array([abs(queue(run).sojourn_quantile(p) / run["sim"][index] - 1) for run in runs])
        for p, index in quantiles.items()
    }


def test_exponential_service_is_exact():
    middle = (np.arange(4000) + 0.5) / 4000
    found = mgk_queue(0.7, -np.log(1 - middle))
    for p in (0.5, 0.9, 0.99):
        assert found.wait_quantile(p) == pytest.approx(math.log(0.7 / (1 - p)) / 0.3, rel=0.005)
        assert found.sojourn_quantile(p) == pytest.approx(-math.log(1 - p) / 0.3, rel=0.005)
    assert found.sojourn_exceedance(5.0) == pytest.approx(math.exp(-1.5), rel=0.01)


def test_fixed_service_against_its_known_law():
    """M/D/1: P(W <= t) = (1 - rho) e^(rho t) for t below one service (Erlang)."""
    found = mgk_queue(0.6, 1.0)
    for t in (0.25, 0.75):
        p = 0.4 * math.exp(0.6 * t)
        assert found.wait_quantile(p) == pytest.approx(t, abs=0.01)
    assert found.wait_mean == pytest.approx(0.75)
    assert mgk_wait(0.6, 1.0) == pytest.approx((0.6, 0.75))


def test_one_server_poisson_against_simulation():
    runs = [run for run in RUNS if run["servers"] == 1 and run["ca2"] == 1]
    assert len(runs) >= 8
    for p, error in errors(runs, {0.9: 9, 0.99: 11}).items():
        assert np.median(error) < 0.04, p
        assert error.max() < 0.1, p


def test_several_servers_poisson_against_simulation():
    runs = [
        run for run in RUNS if run["servers"] > 1 and run["ca2"] == 1 and not (run["cv"] == 3 and run["square"] == 0.5)
    ]
    assert len(runs) >= 15
    for p, error in errors(runs, {0.5: 8, 0.9: 9, 0.99: 11}).items():
        assert np.median(error) < 0.03, p
        assert error.max() < 0.2, p


def test_bursts_are_conservative_within_their_band():
    runs = [run for run in RUNS if run["ca2"] > 1 and run["rho"] >= 0.7]
    signed = np.array([queue(run).sojourn_quantile(0.9) / run["sim"][9] - 1 for run in runs])
    assert np.median(np.abs(signed)) < 0.2
    assert np.median(signed) > 0


def test_quantiles_rise_and_start_at_no_wait():
    found = queue(RUNS[0])
    levels = [found.wait_quantile(p) for p in (0.01, 0.5, 0.9, 0.99, 0.999)]
    assert levels[0] == 0.0
    assert levels == sorted(levels)
    atoms, weights = found.wait_atoms()
    assert weights.sum() == pytest.approx(1.0)
    assert float(weights @ atoms) == pytest.approx(found.wait_mean, rel=0.01)


def test_more_servers_at_equal_load_wait_less():
    seconds, weights = service(RUNS[0])
    rate = 0.8 / float(weights @ seconds)
    waits = [mgk_queue(rate * k, seconds, weights, k).wait_mean for k in (1, 2, 4, 16)]
    assert waits == sorted(waits, reverse=True)


@pytest.mark.parametrize("servers", [1, 3, 16])
def test_continuous_erlang_meets_the_recursion(servers):
    assert continuous_erlang_c(servers, 0.8 * servers) == pytest.approx(erlang_c(servers, 0.8 * servers), rel=1e-10)


def test_overlap_of_fixed_and_exponential_services():
    assert overlap_share(np.array([2.0]), np.array([1.0])) == 1.0
    middle = (np.arange(20000) + 0.5) / 20000
    assert overlap_share(-np.log(1 - middle), np.full(20000, 1 / 20000)) == pytest.approx(0.5, abs=0.001)


def test_gamma_shortcut_is_near_the_transform():
    run = next(run for run in RUNS if run["servers"] == 1 and run["ca2"] == 1 and run["rho"] >= 0.7)
    seconds, weights = service(run)
    first, second, third = (float(weights @ seconds**k) for k in (1, 2, 3))
    rate = run["rho"] / first
    mean = mg1_wait_mean_seconds(rate, first, second)
    square = mg1_wait_second_moment(rate, first, second, third)
    quick = gamma_wait_quantile(0.99, run["rho"], mean, square)
    assert quick == pytest.approx(queue(run).wait_quantile(0.99), rel=0.08)
    assert gamma_wait_exceedance(quick, run["rho"], mean, square) == pytest.approx(0.01, rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ((2.0, 1.0), "servers"),
        ((0.0, 1.0), "request_rate"),
        ((math.nan, 1.0), "request_rate"),
        ((0.5, -1.0), "service_seconds"),
        ((0.5, [1.0, 2.0], [1.0]), "service_weights"),
        ((0.5, 1.0, None, 1.5), "servers"),
        ((0.5, 1.0, None, 1, 0.5), "arrival_variation"),
    ],
)
def test_bad_input_names_its_key(arguments, key):
    with pytest.raises(InputError) as caught:
        mgk_queue(*arguments)
    assert caught.value.key == key
    assert "\n" not in str(caught.value)


def test_bad_probability():
    with pytest.raises(InputError):
        mgk_queue(0.5, 1.0).wait_quantile(1.0)
