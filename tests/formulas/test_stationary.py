"""Closed forms of the stationary batch: the insensitive limit, symbols, the spectrum, measured vectors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sympy

from capplan.cards.workload import Workload
from capplan.formulas import cap, lengths
from capplan.formulas import stationary as closed
from capplan.formulas.barrier import barrier_step_mean, expected_maximum
from capplan.formulas.length_laws import Exponential, LogNormal
from capplan.formulas.product_form import product_form, step_function
from capplan.formulas.spectrum import decode_spectrum
from tests.reference.tail_laws import grid_workload


def test_mean_step_is_a_over_one_minus_load_in_symbols() -> None:
    a, e, c, theta, rate, steps = sympy.symbols("a e c theta lambda D", positive=True)
    b = closed.marginal_step_seconds(e, c, theta)
    load = closed.decode_load(rate, steps, b)
    mean = closed.step_mean_seconds(a, load)
    batch = closed.batch_step_mean(rate, steps, mean)
    assert sympy.simplify(mean - (a + b * batch)) == 0  # T = a + b N on average


def test_without_context_cost_the_batch_is_negative_binomial() -> None:
    workload = Workload(1000, LogNormal(1001, 2, 1e5))
    m = workload.decode_moments
    e, load = 1e-4, 0.6
    aged = lengths.aged_decode_work(e, 0.0, m)
    factor = closed.heavy_load_factor(lengths.decode_work_square(e, 0.0, m), aged, e)
    assert factor == pytest.approx(1.0, rel=1e-9)
    for law in (closed.cross_factor(factor, load), closed.batch_variance_factor(factor, load)):
        assert law == pytest.approx(1.0, rel=1e-9)
    assert closed.step_variance_factor(0.0, factor, load) == pytest.approx(1.0, rel=1e-9)


def test_third_cumulant_without_context_cost_is_the_negative_binomials() -> None:
    x, b, n = sympy.symbols("x b n", positive=True)
    # NB over steps: mean n, variance n/(1-x), third cumulant n (1+x)/(1-x)^2, all times powers of b.
    variance = closed.step_variance(n, b, x, 1)
    third = closed.step_third_cumulant(variance, n * b, x, b**3, b, 0)
    assert sympy.simplify(third - b**3 * n * (1 + x) / (1 - x) ** 2) == 0


def test_formulas_on_arrays_follow_scalars() -> None:
    load = np.array([0.2, 0.5, 0.8])
    table = closed.step_variance_factor(1.9, 2.4, load)
    assert table.tolist() == [closed.step_variance_factor(1.9, 2.4, float(x)) for x in load]
    assert closed.autocorrelation_shrink(np.array([1.0, 2.0]), 1.0)[1] == closed.autocorrelation_shrink(2.0, 1.0)


def test_shrink_and_memory_of_short_and_long_requests() -> None:
    assert closed.autocorrelation_shrink(0.01, 1.0) == pytest.approx(1.0, abs=0.01)
    assert closed.autocorrelation_shrink(1e4, 1.0) == pytest.approx(2e-4, rel=1e-3)
    assert closed.memory_of_arrival(0.01, 1.0) == pytest.approx(1.0, abs=0.01)


def test_splitting_a_stream() -> None:
    assert closed.thinned_dispersion(17.0, 4) == 5.0
    assert closed.dealt_dispersion(16.0, 4) == 4.0
    assert closed.least_loaded_variance(2.0, 1, 0.7) == 2.0


# eta_0 and eta_1 without context cost: exponential .5 and .5, production .434 and .281, lognormal cv 1 .556 and .5.
@pytest.mark.parametrize(
    ("law", "light", "heavy"), [("exp", 0.5, 0.5), ("prod", 0.434, 0.281), ("ln1", 0.556, 0.5), ("fixed", 1.0, 1.0)]
)
def test_burst_damping(law: str, light: float, heavy: float) -> None:
    workload = grid_workload(law, "fixed")
    m = workload.decode_moments
    assert closed.burst_damping(workload.overlap[0], m.m02 / 2, 1.0, m.m01, 0.0) == pytest.approx(light, rel=0.01)
    assert closed.burst_damping(workload.overlap[0], m.m02 / 2, 1.0, m.m01, 1.0) == pytest.approx(heavy, rel=0.01)


# Simulated over 12 M requests each; a = 12 ms, b = a/ratio, c = share b/theta: (steps, prompt, ratio, share, load),
# then H_1, relaxation base m_1, sd of the step time over steps exact and closed [ms], mean batch over time.
VECTORS = [
    (("exp", "fixed", 100, 0.0, 0.6), 1.0, 1000, 2.324, 2.324, 151.5),
    (("exp", "fixed", 100, 0.85, 0.6), 1.126, 1426, 2.495, 2.49, 151.6),
    (("prod", "prod", 100, 0.85, 0.7), 2.393, 6153, 5.418, 5.34, 237.9),
    (("prod", "fixed", 50, 0.5, 0.8), 1.479, 4890, 9.095, 9.11, 205.4),
]


@pytest.mark.parametrize(("row", "heavy", "base", "exact", "by_closed", "batch"), VECTORS)
def test_second_moments_against_measured_vectors(
    row: tuple[str, str, float, float, float], heavy: float, base: float, exact: float, by_closed: float, batch: float
) -> None:
    steps, prompt, ratio, share, load = row
    workload = grid_workload(steps, prompt)
    m, a = workload.decode_moments, 0.012
    b = a / ratio
    c = share * b / workload.mean_context
    e = b - c * workload.mean_context
    rate = load / (m.m01 * b)
    aged = lengths.aged_decode_work(e, c, m)
    factor = closed.heavy_load_factor(lengths.decode_work_square(e, c, m), aged, b)
    assert factor == pytest.approx(heavy, rel=0.006)
    assert closed.relaxation_steps(aged, b, m.m01, 0.0) == pytest.approx(base, rel=0.006)
    spread = closed.context_spread(c, workload.context_std, b)
    running = closed.batch_step_mean(rate, m.m01, a / (1 - load))
    variance = closed.step_variance(running, b, load, closed.step_variance_factor(spread, factor, load))
    assert 1e3 * math.sqrt(variance) == pytest.approx(by_closed, rel=0.01)
    spectrum = decode_spectrum(workload.decode_nodes(), a, e, c, rate)
    assert 1e3 * math.sqrt(spectrum.step_variance) == pytest.approx(exact, rel=0.003)
    assert running + spectrum.covariance / (a / (1 - load)) == pytest.approx(batch, rel=0.002)


@pytest.mark.parametrize(
    ("steps", "prompt"), [("ln2", "prod"), ("prod", "ln3"), ("fixed", "fixed"), ("bimodal", "zero")]
)
@pytest.mark.parametrize("load", [0.2, 0.9])
def test_spectrum_grid_is_fine_enough(steps: str, prompt: str, load: float) -> None:
    workload = grid_workload(steps, prompt)
    b, theta = 1.2e-4, workload.mean_context
    e, c = 0.4 * b, 0.6 * b / theta
    rate = load / (workload.decode_moments.m01 * b)
    coarse = decode_spectrum(workload.decode_nodes(), 0.012, e, c, rate)
    fine = decode_spectrum(workload.decode_nodes(200), 0.012, e, c, rate, frequencies=3000)
    assert coarse.step_variance == pytest.approx(fine.step_variance, rel=0.003)
    assert coarse.batch_variance == pytest.approx(fine.batch_variance, rel=0.003)
    assert coarse.covariance == pytest.approx(fine.covariance, rel=0.003)
    averaged = fine.averaged_variance(np.array([1e-3, 1e6]))
    assert averaged[0] == pytest.approx(fine.step_variance, rel=0.02)
    assert averaged[1] < 0.2 * fine.step_variance


def test_spectrum_refuses_an_unstable_load() -> None:
    workload = grid_workload("exp", "fixed")
    with pytest.raises(ValueError, match="below 1"):
        decode_spectrum(workload.decode_nodes(), 0.012, 1e-4, 0.0, 1.0 / (0.1))


def test_product_form_is_negative_binomial_for_a_line() -> None:
    a, b, x = 0.012, 1.2e-4, 0.6
    law = product_form(step_function(lambda n: a + b * n), x / b)
    assert law.step_mean == pytest.approx(a / (1 - x), rel=1e-9)
    assert law.batch_mean == pytest.approx(a / b * x / (1 - x), rel=1e-9)
    assert law.batch_variance == pytest.approx(a / b * x / (1 - x) ** 2, rel=1e-9)
    n = np.arange(len(law.probabilities))
    assert law.probabilities @ n == pytest.approx((a / b + 1) * x / (1 - x), rel=1e-9)
    assert (law.a, law.b) == pytest.approx((a, b))


def test_product_form_without_a_law() -> None:
    assert not product_form(step_function(lambda n: 0.01 + 1e-4 * n), 1.01e4).stable


def test_capped_batch_far_above_the_batch_changes_nothing() -> None:
    law = cap.capped_batch(1000, 100.0, 0.6, 0.66, 1.0)
    assert law.wait_probability < 1e-50
    assert law.mean_ratio == pytest.approx(1.0, rel=1e-9)
    assert law.variance_ratio == pytest.approx(1.0, rel=1e-9)


def test_capped_batch_against_the_sum_over_states() -> None:
    ratio, load, slots = 100.0, 0.6, 170
    rho = load * (ratio + slots) / slots
    state = np.arange(slots + 1)
    weight = np.exp(state * math.log(load) + np.array([math.lgamma(ratio + 1 + n) - math.lgamma(n + 1) for n in state]))
    beyond = weight[-1] * rho / (1 - rho)
    total = weight.sum() + beyond
    law = cap.capped_batch(slots, ratio, load, rho, 1.0)
    assert law.wait_probability == pytest.approx((weight[-1] + beyond) / total, rel=1e-6)
    mean = (weight @ state + beyond * slots) / total
    assert law.mean_ratio == pytest.approx(mean / ((ratio + 1) * load / (1 - load)), rel=1e-6)


def test_wait_of_a_single_slot_is_the_single_servers() -> None:
    # Exponential work, cv 1: E[W | W > 0] = E[V] / (1 - rho).
    assert cap.wait_mean_of_waiting(2.0, 8.0, 1.0, 0.5) == pytest.approx(4.0)
    assert cap.wait_quantile(0.9, 0.05, 4.0) == 0.0
    assert cap.wait_quantile(0.99, 0.5, 4.0) == pytest.approx(4.0 * math.log(50))


@pytest.mark.parametrize(
    ("ranks", "value"), [(1, 0.0), (2, 1 / math.sqrt(math.pi)), (3, 1.5 / math.sqrt(math.pi)), (64, 2.34373)]
)
def test_expected_maximum_of_normal_numbers(ranks: int, value: float) -> None:
    assert expected_maximum(ranks, 0.0) == pytest.approx(value, abs=2e-5)


@pytest.mark.parametrize("ranks", [1, 2, 8, 64])
def test_expected_maximum_of_exponential_numbers(ranks: int) -> None:
    harmonic = sum(1 / k for k in range(1, ranks + 1))
    assert expected_maximum(ranks, 2.0) == pytest.approx(harmonic - 1.0, abs=2e-3)


def test_barrier_of_one_rank_is_no_barrier() -> None:
    assert barrier_step_mean(0.012, 1.2e-4, 0.0, 5.0, 1000, 1500, 300, 1.2e-4**3, 1) == pytest.approx(0.03, rel=1e-3)
    assert barrier_step_mean(0.012, 1.2e-4, 0.0, 9.0, 1000, 1500, 300, 1.2e-4**3, 8) == math.inf


def test_barrier_grows_with_ranks() -> None:
    workload = Workload(1000, Exponential(1001))
    e, c = 6e-5, 3e-8
    cube = lengths.running_weight_cube(e, c, workload.decode_moments)
    means = [
        barrier_step_mean(0.012, e, c, 4.0, 1000, workload.mean_context, workload.context_std, cube, ranks)
        for ranks in (1, 4, 16, 64)
    ]
    assert means == sorted(means)
    assert means[-1] > 1.2 * means[0]
