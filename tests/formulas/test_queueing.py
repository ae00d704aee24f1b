import numpy as np
import pytest
import sympy

from capplan.formulas.queueing import (
    burst_ttft_mean_seconds,
    burst_wait_term,
    bursty_wait_probability,
    capped_lognormal_tokens_moment,
    erlang_b,
    erlang_c,
    mg1_wait_mean_seconds,
    mg1_wait_second_moment,
    pipelined_prefill_ttft_seconds,
    several_servers_factor,
    tensor_parallel_prefill_ttft_seconds,
    utilization,
)


def test_distserve_prefill_vectors():
    """DistServe, arXiv:2401.09670, section 3.1, equations 1-3 at D = 1 s, K = 1.5, R = 0.9 /s."""
    assert 1 + mg1_wait_mean_seconds(0.9, 1.0, 1.0) == pytest.approx(5.5)
    assert pipelined_prefill_ttft_seconds(0.9, 1.0) == pytest.approx(1.2045, abs=5e-5)
    assert tensor_parallel_prefill_ttft_seconds(0.9, 1.0, 1.5) == pytest.approx(1.1667, abs=5e-5)


@pytest.mark.parametrize(("cap", "wait"), [(1600, 22.34), (3000, 55.37)])
def test_token_cap_vectors(cap, wait):
    """Yang et al., arXiv:2407.05347: outputs lognormal(7, 0.7), 0.0225 s a token, one request in 40 s."""
    first, second = (0.0225**k * capped_lognormal_tokens_moment(7.0, 0.7, cap, k) for k in (1, 2))
    assert mg1_wait_mean_seconds(1 / 40, first, second) == pytest.approx(wait, abs=0.005)


def test_exponential_service_has_exponential_waits():
    rate, mean = 0.6, 1.0
    wait = mg1_wait_mean_seconds(rate, mean, 2 * mean**2)
    assert wait == pytest.approx(0.6 / 0.4)
    # given a wait: exponential with mean 1/(1 - rho), second moment 2/(1 - rho)^2
    assert mg1_wait_second_moment(rate, mean, 2 * mean**2, 6 * mean**3) == pytest.approx(0.6 * 2 / 0.4**2)


def test_wait_formula_as_symbols():
    rate, first, second = sympy.symbols("r s1 s2", positive=True)
    expression = mg1_wait_mean_seconds(rate, first, second)
    assert sympy.limit(expression / rate, rate, 0) == second / 2
    assert utilization(rate, first, 4) == rate * first / 4


def test_erlang_tables():
    """A. K. Erlang's tables: 10 servers, 5 erlang: loss 0.018385, wait 0.036105."""
    assert erlang_b(10, 5.0) == pytest.approx(0.018385, abs=5e-7)
    assert erlang_c(10, 5.0) == pytest.approx(0.036105, abs=5e-7)


def test_erlang_of_arrays_and_symbols():
    load = np.array([1.0, 3.0, 7.5])
    assert erlang_c(8, load) == pytest.approx([erlang_c(8, float(a)) for a in load])
    a = sympy.Symbol("a", positive=True)
    assert sympy.simplify(erlang_c(1, a) - a) == 0


def test_kimura_limits():
    rho, variation = sympy.symbols("rho c", positive=True)
    assert several_servers_factor(1, 0.7, 9.0) == pytest.approx(5.0)
    assert several_servers_factor(16, 0.5, 1.0) == pytest.approx(1.0)
    assert several_servers_factor(8, 0.999999, 9.0) == pytest.approx(5.0, rel=1e-3)  # heavy traffic: one server
    assert several_servers_factor(8, 0.3, 9.0) < 5.0
    assert sympy.simplify(several_servers_factor(1, rho, variation) - (1 + variation) / 2) == 0


def test_bursts_vanish_for_poisson_arrivals():
    assert burst_wait_term(1.0, 4.0, 0.5) == 0.0
    assert bursty_wait_probability(1.0, 4.0, 0.5) == 0.5
    assert burst_wait_term(5.0, 4.0, 0.9) > burst_wait_term(5.0, 4.0, 0.5) > 0
    assert 0.5 < bursty_wait_probability(5.0, 4.0, 0.5) < 1


def test_simultaneous_prompts():
    assert burst_ttft_mean_seconds(1, 0.4) == pytest.approx(0.4)
    assert burst_ttft_mean_seconds(8, 0.4) == pytest.approx(sum(0.4 * (i + 1) for i in range(8)) / 8)
