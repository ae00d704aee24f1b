import numpy as np
import pytest
import sympy

from capplan.formulas.preemption import closed_loop_pressure, request_sizes
from capplan.formulas.preemption_policies import (
    prefix_cache_share,
    reservation_pressure,
    reserved_sizes,
    swap_break_even_bandwidth,
    swap_seconds,
    swap_seconds_per_token,
    watermark_capacity_tokens,
    watermark_pressure,
)

SIZES = request_sizes(1000.0, 2e6, 6e9, 500.0, 0.0)
POOL = 90_000.0


def reserved(r):
    """Exponential outputs: the age of a running request is exponential too."""
    unused = r - 1000.0 * (1 - np.exp(-r / 1000.0))
    second = r * r + 2e6 * np.exp(-r / 1000.0) * (1 + r / 1000.0)
    return reserved_sizes(SIZES, r, unused, second)


@pytest.mark.parametrize("n", [40.0, 62.0, 200.0])
def test_no_watermark_is_the_plain_law(n):
    plain = closed_loop_pressure(n, POOL, SIZES, 8192)
    assert watermark_pressure(n, POOL, SIZES, 8192, 0.0) == pytest.approx(plain, rel=1e-12)
    assert watermark_capacity_tokens(POOL, 0.0, SIZES) == POOL


def test_watermark_limits():
    assert watermark_capacity_tokens(POOL, 1.0, SIZES) == pytest.approx(POOL, abs=1e-3)  # a token is grown into
    small, large = (watermark_pressure(200.0, POOL, SIZES, 8192, w) for w in (1000.0, 5000.0))
    assert small.recompute_per_token > large.recompute_per_token
    assert small.batch > large.batch


@pytest.mark.parametrize("n", [40.0, 62.0, 200.0])
def test_no_reservation_is_the_plain_law_without_its_edge_term(n):
    plain = closed_loop_pressure(n, POOL, SIZES, 8192, edge_share=0.0)
    assert reservation_pressure(n, POOL, SIZES, reserved(0.0), 8192) == pytest.approx(plain, rel=1e-12)


def test_full_reservation_never_preempts():
    found = reservation_pressure(200.0, POOL, SIZES, reserved(20_000.0), 8192)
    assert found.recompute_per_token < 1e-9
    assert found.batch == pytest.approx((POOL - 20_507.5 / 2) / 20_507.5, rel=0.01)  # half a request stays free


def test_prefix_cache_share_limits():
    assert prefix_cache_share(1e-6, 1000.0) == pytest.approx(1.0, abs=1e-6)
    assert prefix_cache_share(550.0, 1000.0) == pytest.approx(0.77, abs=0.005)
    assert prefix_cache_share(5e4, 1000.0) == pytest.approx(0.02, rel=1e-6)


def test_swap_moves_every_lost_token_twice():
    assert swap_seconds_per_token(1.0, 100_000.0, 50e9) == pytest.approx(4e-6)


def test_swap_breaks_even_at_its_bandwidth():
    """At that bandwidth, on a link of which others take u, both ways last equally long."""
    bandwidth = swap_break_even_bandwidth(70_272.0, 30e-6, 0.4)
    assert swap_seconds(70_272.0 * 5000, bandwidth, 0.4) == pytest.approx(30e-6 * 5000)
    kappa, d, u = sympy.symbols("kappa d u", positive=True)
    assert sympy.simplify(swap_seconds(kappa, swap_break_even_bandwidth(kappa, d, u), u) - d) == 0
