import pytest
import sympy

from capplan.formulas.pools import (
    exposed_transfer_seconds,
    flop_ratio,
    full_pool_request_rate,
    instances_for_load,
    kv_transfer_seconds,
    link_utilization,
    prefill_decode_ratio,
)


def test_r1_transfer_of_8k_tokens():
    """70,272 B a token, 8,192 tokens, 85 % of 400 Gb/s: 13.5 ms."""
    assert kv_transfer_seconds(70_272 * 8192, 400e9 / 8, 0.85) == pytest.approx(13.5e-3, abs=0.05e-3)


def test_transfer_hides_behind_the_layers_that_follow():
    assert exposed_transfer_seconds(0.06, 0.0, 60) == pytest.approx(0.06)
    assert exposed_transfer_seconds(0.06, 10.0, 60) == pytest.approx(0.001)
    assert exposed_transfer_seconds(0.06, 0.03, 1) == pytest.approx(0.06)


def test_link_and_instances():
    assert link_utilization(20.0, 575_668_224, 50e9) == pytest.approx(0.230, abs=0.0005)
    assert instances_for_load(0.1 * 3 * 8, 0.8) == 3.0  # no fourth instance from rounding noise
    assert instances_for_load(2.41, 0.8) == 4.0


def test_balance_and_the_naive_ratio():
    assert flop_ratio(1269.0, 1532.0) == pytest.approx(0.828, abs=0.001)
    assert prefill_decode_ratio(0.1, 0.5, 1000.0, 5000.0) == pytest.approx(1.0)
    half = prefill_decode_ratio(0.1, 0.5, 2000.0, 5000.0)
    assert half == pytest.approx(0.5)


def test_full_pool_rate_as_symbols():
    capacity, step, prompt, output = sympy.symbols("C T P L", positive=True)
    rate = full_pool_request_rate(capacity, step, prompt * output + output**2 / 2)
    running = capacity / (prompt + output / 2)
    assert sympy.simplify(rate - running / (output * step)) == 0  # C/m requests, each for L steps
    assert full_pool_request_rate(1e5, 0.02, 1e6, 2e4) == pytest.approx(0.8 * full_pool_request_rate(1e5, 0.02, 1e6))
