import math

import numpy as np
import pytest
import sympy

from capplan.formulas.preemption import (
    _halves,
    closed_loop_pressure,
    jump_spread,
    pool_utilization,
    refill_exit_probability,
    request_sizes,
    victim_size_tokens,
    work_variation,
)

# exponential outputs of mean 1,000 tokens, prompts of 500
EXPONENTIAL = request_sizes(1000.0, 2e6, 6e9, 500.0, 0.0)


def test_sizes_of_exponential_outputs():
    assert EXPONENTIAL.age == 1000.0
    assert EXPONENTIAL.prompt == 507.5
    assert EXPONENTIAL.held_variance == pytest.approx(1e6)


def test_simulated_rows_of_the_scheduler():
    """Single runs: (moments, pool, n, budget) against rho and B, errors of the law far above their noise apart."""
    sizes = request_sizes(1000.1, 1250400.0, 1955800000.0, 4590.2, 39779000.0)
    found = closed_loop_pressure(180.0, 313360.0, sizes, 8192)
    assert found.recompute_per_token == pytest.approx(0.9215, abs=0.03)
    assert found.batch == pytest.approx(58.869, rel=0.01)


@pytest.mark.parametrize("n", [20.0, 50.0, 60.0, 79.0])
def test_equal_stiffness_gives_the_normal_overflow_probability(n):
    """kappa = 1 and B0 = n: both halves are the same normal law, so P_W = Phi(z)."""
    capacity = 80_000.0
    sizes = EXPONENTIAL._replace(held=1000.0)
    halves = _halves(n, capacity, sizes, sizes.held)
    z = (n * sizes.held - capacity) / math.sqrt(n * sizes.held_variance)
    assert halves.share(1.0, 1.0) == pytest.approx(0.5 * math.erfc(-z / math.sqrt(2)), rel=1e-12)


def test_at_capacity_the_queue_share_follows_the_stiffness():
    """n m = C gives 1/(1 + sqrt(kappa)), not a half."""
    capacity = 60 * EXPONENTIAL.held
    h = victim_size_tokens(60.0, capacity, EXPONENTIAL)
    kappa = EXPONENTIAL.held / h
    assert kappa > 1.5
    found = closed_loop_pressure(60.0, capacity, EXPONENTIAL)
    assert found.queue_probability == pytest.approx(1 / (1 + math.sqrt(kappa)), rel=1e-9)


def test_saturation_recomputes_net_and_fills_the_pool():
    found = closed_loop_pressure(5000.0, 90_000.0, EXPONENTIAL)
    assert found.recompute_per_token == pytest.approx(found.net_flux, rel=1e-9)
    assert found.preemptions_per_request == pytest.approx(found.preemptions_when_saturated, rel=1e-9)
    hole = found.victim_tokens / 2
    assert found.batch == pytest.approx((90_000.0 - hole) / EXPONENTIAL.held, rel=1e-9)


def test_empty_pool_limit():
    found = closed_loop_pressure(5.0, 1e6, EXPONENTIAL)
    assert found.batch == pytest.approx(5.0, rel=1e-9)
    assert 0 <= found.recompute_per_token < 1e-12
    assert 0 <= found.waiting < 1e-12


def test_more_requests_never_recompute_less_up_to_saturation():
    n = np.linspace(5.0, 300.0, 60)
    found = closed_loop_pressure(n, 90_000.0, EXPONENTIAL)
    assert np.all(np.diff(found.queue_probability) > -1e-12)
    assert np.all(np.diff(found.batch) > -0.02)
    assert np.all(np.isfinite(np.array(found)))


def test_arrays_equal_floats():
    n = np.array([3.0, 40.0, 61.0, 90.0, 4000.0])
    found = closed_loop_pressure(n, 90_000.0, EXPONENTIAL)
    for i, one in enumerate(n):
        single = closed_loop_pressure(float(one), 90_000.0, EXPONENTIAL)
        np.testing.assert_allclose([field[i] for field in found], single, rtol=1e-10)


def test_a_symbol_gives_the_same_number():
    budget = sympy.Symbol("M", positive=True)
    expression = closed_loop_pressure(62.0, 90_000.0, EXPONENTIAL, budget).recompute_per_token
    assert float(expression.subs(budget, 4096)) == pytest.approx(
        closed_loop_pressure(62.0, 90_000.0, EXPONENTIAL, 4096.0).recompute_per_token, rel=1e-9
    )
    n = sympy.Symbol("n", positive=True)
    victim = victim_size_tokens(n, 90_000.0, EXPONENTIAL)
    assert float(victim.subs(n, 70)) == pytest.approx(victim_size_tokens(70.0, 90_000.0, EXPONENTIAL), rel=1e-9)


def test_refill_probability_falls_from_one_with_unit_slope():
    w, spread = sympy.symbols("w gamma", positive=True)
    formula = refill_exit_probability(w, spread)
    assert formula.subs(w, 0) == 1
    assert sympy.simplify(sympy.diff(formula, w).subs(w, 0)) == -1
    assert jump_spread(0.0, 100.0) == 1.0
    assert refill_exit_probability(2.0, 1.0) == pytest.approx(math.exp(-2.0))  # no spread: plain exponential


def test_pool_use_and_work_variation():
    assert pool_utilization(50.0, 1500.0, 100_000.0) == 0.75
    assert work_variation(2.0, 8.0) == 1.0
