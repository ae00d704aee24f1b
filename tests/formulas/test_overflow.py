import numpy as np
import pytest
import scipy.stats
import sympy

from capplan.formulas.overflow import (
    demand_quantile,
    fixed_count_demand,
    gamma_tail_over_density,
    instance_overflow_probability,
    overflow_probability,
    overflow_score,
    random_count_demand,
    safe_cap,
    safe_cap_normal,
    skewed_tail_factors,
)

# mean, variance and third moment of a running request, tokens: exponential outputs of mean 1,000, 500-token prompts
SIZE = (1500.0, 1e6, 2e9)


@pytest.mark.parametrize("skew", [0.05, 0.5, 2.0, -0.5])
@pytest.mark.parametrize("score", [-2.0, 0.0, 1.0, 4.0])
def test_overflow_is_pearson_three(skew, score):
    reference = scipy.stats.pearson3.sf(score, skew)
    assert overflow_probability(100 + 7 * score, 100.0, 49.0, skew * 343.0) == pytest.approx(
        reference, rel=1e-7, abs=1e-12
    )


@pytest.mark.parametrize("skew", [1e-3, 0.05, 2.0, -0.5])
@pytest.mark.parametrize("probability", [0.01, 0.5, 0.99, 0.999])
def test_demand_quantile_inverts_the_overflow(skew, probability):
    law = (100.0, 49.0, skew * 343.0)
    assert overflow_probability(demand_quantile(probability, *law), *law) == pytest.approx(1 - probability, rel=1e-9)


def test_overflow_without_skewness_is_normal_and_arrays_agree_with_floats():
    assert overflow_probability(3.0, 0.0, 1.0, 0.0) == pytest.approx(scipy.stats.norm.sf(3.0), rel=1e-12)
    capacity = np.array([90.0, 110.0, 130.0])
    found = overflow_probability(capacity, 100.0, 49.0, 300.0)
    assert found == pytest.approx([overflow_probability(float(c), 100.0, 49.0, 300.0) for c in capacity])
    assert np.all(np.diff(found) < 0)


def test_sum_of_exponential_ages_is_exact_and_far_from_normal():
    """Prompts of 500 and exponential ages: the sum of 40 is 20,000 plus a gamma number of shape 40."""
    for capacity in (50_000.0, 76_000.0, 90_000.0):
        exact = scipy.stats.gamma.sf((capacity - 20_000.0) / 1000.0, 40)
        assert overflow_probability(capacity, *fixed_count_demand(40, *SIZE)) == pytest.approx(exact, rel=1e-9)
    normal = scipy.stats.norm.sf((90_000.0 - 60_000.0) / np.sqrt(40e6))
    assert overflow_probability(90_000.0, *fixed_count_demand(40, *SIZE)) > 30 * normal


def test_random_count_against_simulation():
    random = np.random.default_rng(8)
    count = random.negative_binomial(60, 0.5, 200_000)  # mean 60, variance 120
    total = 500.0 * count + random.gamma(np.maximum(count, 1e-9), 1000.0)
    demand = random_count_demand(60.0, 120.0, *SIZE)
    assert total.mean() == pytest.approx(demand.mean, rel=0.003)
    assert total.var() == pytest.approx(demand.variance, rel=0.02)
    assert scipy.stats.skew(total) == pytest.approx(demand.third / demand.variance**1.5, rel=0.05)
    assert float((total > 170_000).mean()) == pytest.approx(overflow_probability(170_000, *demand), rel=0.15)


def test_poisson_count_has_the_cumulants_of_a_compound_poisson_law():
    n, m, v, k = sympy.symbols("n m v k", positive=True)
    demand = random_count_demand(n, n, m, v, k)
    assert sympy.expand(demand.variance - n * (v + m**2)) == 0
    assert sympy.expand(demand.third - n * (k + 3 * m * v + m**3)) == 0


def test_safe_cap_is_the_last_that_keeps_the_promise():
    cap = safe_cap(1e5, *SIZE, 0.001)
    assert overflow_probability(1e5, *fixed_count_demand(cap, *SIZE)) <= 0.001
    assert overflow_probability(1e5, *fixed_count_demand(cap + 1, *SIZE)) > 0.001
    normal = safe_cap_normal(1e5, SIZE[0], SIZE[1], overflow_score(0.001))
    assert cap < normal
    assert normal * 1500 + overflow_score(0.001) * np.sqrt(normal * 1e6) == pytest.approx(1e5)
    assert safe_cap(100.0, *SIZE, 0.001) == 0


def test_safe_cap_grows_with_the_pool_and_with_the_risk():
    caps = [safe_cap(c, *SIZE, 0.001) for c in (2e4, 5e4, 1e5, 1e6)]
    assert caps == sorted(caps)
    assert safe_cap(1e5, *SIZE, 0.1) > safe_cap(1e5, *SIZE, 0.001)


@pytest.mark.parametrize("shape", [1.0, 1.5, 20.0, 1e5])
def test_tail_over_density_against_scipy(shape):
    x = shape + np.array([0.0, 0.5, 3.0, 8.0]) * np.sqrt(shape)
    law = scipy.stats.gamma(shape)
    np.testing.assert_allclose(gamma_tail_over_density(shape, x), np.exp(law.logsf(x) - law.logpdf(x)), rtol=1e-7)


def test_tail_factors_restore_the_gamma_law_far_below_capacity():
    n, capacity = 40.0, 90_000.0
    mean, variance, third = fixed_count_demand(n, *SIZE)
    above, below = skewed_tail_factors(n, capacity, *SIZE)
    score = (capacity - mean) / np.sqrt(variance)
    odds = scipy.stats.norm.sf(score) / scipy.stats.norm.cdf(score) * above / below
    assert odds / (1 + odds) == pytest.approx(overflow_probability(capacity, mean, variance, third), rel=1e-6)
    assert skewed_tail_factors(100.0, capacity, *SIZE) == pytest.approx((1.0, 1.0))  # above capacity: the normal law


def test_tail_factors_of_arrays_and_without_skewness():
    n = np.array([1.0, 20.0, 50.0, 90.0])
    above, below = skewed_tail_factors(n, 90_000.0, *SIZE)
    single = [skewed_tail_factors(float(k), 90_000.0, *SIZE) for k in n]
    np.testing.assert_allclose(above, [pair[0] for pair in single], rtol=1e-9)
    np.testing.assert_allclose(below, [pair[1] for pair in single], rtol=1e-6)
    assert skewed_tail_factors(40.0, 90_000.0, 1500.0, 1e6, 0.0) == (1.0, 1.0)


def test_instance_overflows_when_any_rank_does():
    assert instance_overflow_probability(0.01, 8) == pytest.approx(0.07725530557207994)
