import math

import numpy as np
import pytest
import sympy

from capplan.formulas.preemption import request_sizes
from capplan.formulas.preemption_waits import (
    bounded_preempted_waiting,
    first_admission_wait_steps,
    first_wait_probability,
    first_wait_quantile_steps,
    first_wait_variance_steps,
    gap_exceedance,
    gap_quantile_steps,
    preempted_share,
    readmission_wait_steps,
)

SIZES = request_sizes(1000.0, 2e6, 6e9, 500.0, 0.0)


def test_rare_preemptions_hit_about_as_many_requests_as_there_are_clusters():
    assert preempted_share(0.0, 0.9, 2.0) == 0.0
    rare = preempted_share(1e-6, 1.0, 2.0)
    assert rare == pytest.approx(1e-6 * math.log(3.0), rel=1e-5)


def test_wait_of_one_request_alone_in_the_pool():
    wide = readmission_wait_steps(50.0, 1e9, SIZES)
    assert wide == pytest.approx(20.0)  # E[L]/B: the next completion
    assert readmission_wait_steps(50.0, 500.0, SIZES) == pytest.approx(20.0 * math.sqrt(5.0))


def test_preempted_requests_are_part_of_the_queue():
    few, wait = bounded_preempted_waiting(0.1, 30.0, 50.0, 1000.0, 1000.0)
    assert (few, wait) == pytest.approx((0.15, 30.0), rel=1e-9)
    many, shorter = bounded_preempted_waiting(2.0, 100.0, 50.0, 4.0, 1000.0)
    assert many < 4.0
    assert shorter < 100.0
    assert bounded_preempted_waiting(2.0, 100.0, 50.0, math.inf, 1000.0) == (10.0, 100.0)


@pytest.mark.parametrize("p", [0.8, 0.95, 0.99, 0.999])
def test_gap_quantile_inverts_the_exceedance(p):
    gap = gap_quantile_steps(p, 40.0, 0.5, 0.8, 1.7)
    assert gap > 0
    assert gap_exceedance(gap, 40.0, 0.5, 0.8, 1.7) == pytest.approx(1 - p, rel=1e-9)


def test_gap_below_the_share_of_preempted_requests_is_nothing():
    assert preempted_share(0.1, 0.9, 1.0) < 0.1
    assert gap_quantile_steps(0.9, 40.0, 0.1, 0.9, 1.0) == 0.0
    assert gap_quantile_steps(0.9, 40.0, 0.0, 0.9, 1.0) == 0.0


def test_gap_exceedance_of_arrays_and_symbols():
    saturated = np.array([0.2, 1.0, 4.0])
    found = gap_exceedance(60.0, 40.0, 0.5, 0.8, saturated)
    assert found == pytest.approx([gap_exceedance(60.0, 40.0, 0.5, 0.8, float(s)) for s in saturated], rel=1e-8)
    w = sympy.Symbol("w", positive=True)
    assert float(gap_exceedance(w, 40.0, 0.5, 0.8, 1.0).subs(w, 60.0)) == pytest.approx(
        gap_exceedance(60.0, 40.0, 0.5, 0.8, 1.0)
    )


def test_first_admission_is_littles_law():
    assert first_admission_wait_steps(12.0, 2.0, 50.0, 1000.0) == 200.0


def test_first_wait_has_its_two_moments():
    """A gamma law on those that wait: its mean and variance come back from its quantiles."""
    p = (np.arange(20_000) + 0.5) / 20_000
    waits = np.array([first_wait_quantile_steps(float(x), 0.4, 120.0, 250.0**2) for x in p])
    assert np.mean(waits > 0) == pytest.approx(0.4, abs=1e-3)
    assert waits.mean() == pytest.approx(120.0, rel=5e-3)
    assert waits[waits > 0].std() == pytest.approx(250.0, rel=0.02)
    assert first_wait_quantile_steps(0.99, 0.0, 0.0, 1.0) == 0.0


def test_who_arrives_after_a_large_completion_waits_less():
    """Nothing freed: as likely as the queue; more freed than the excess ever is: not at all."""
    weights = np.ones(1)
    assert first_wait_probability(0.0, 2.0, 500.0, 0.3, np.zeros(1), weights) == pytest.approx(0.3)
    shares = [first_wait_probability(0.0, 2.0, 500.0, 0.3, np.array([freed]), weights) for freed in (100.0, 500.0, 5e4)]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < 1e-9
    assert first_wait_probability(-1e9, 2.0, 500.0, 0.0, np.zeros(1), weights) == 0.0


def test_equal_outputs_spread_the_first_wait_by_the_boundary_alone():
    sizes = request_sizes(1000.0, 1e6, 1e9, 500.0, 0.0)
    assert first_wait_variance_steps(1.0, 40.0, 50.0, 6.0, sizes) == pytest.approx((1000 / 50) ** 2 * 2 * 36)
