"""The kernel law: limits, order, and the three readings of a formula."""

import numpy as np
import pytest
import sympy

from capplan.formulas.roofline import bandwidth_floor_seconds, kernel_seconds


def test_law_is_floor_plus_the_longer_when_one_is_zero():
    assert kernel_seconds(3e-6, 40e-6, 0.0) == pytest.approx(43e-6, rel=1e-12)
    assert kernel_seconds(3e-6, 0.0, 40e-6) == pytest.approx(43e-6, rel=1e-12)
    assert kernel_seconds(3e-6, 0.0, 0.0) == 3e-6


def test_law_lies_between_the_longer_and_the_sum():
    assert 40e-6 < kernel_seconds(0.0, 30e-6, 40e-6) < 70e-6
    assert kernel_seconds(0.0, 1e-5, 1e-5) == pytest.approx(2**0.25 * 1e-5)


def test_law_reads_floats_arrays_and_symbols_alike():
    streams = np.array([1e-6, 5e-5, 2e-3])
    together = kernel_seconds(2e-6, streams, 3e-5)
    assert together == pytest.approx([kernel_seconds(2e-6, stream, 3e-5) for stream in streams], rel=1e-14)
    t0, stream, compute = sympy.symbols("t0 stream compute", positive=True)
    derived = kernel_seconds(t0, stream, compute)
    assert float(sympy.limit(derived / stream, stream, sympy.oo)) == pytest.approx(1.0)
    at = {t0: 2e-6, stream: 5e-5, compute: 3e-5}
    assert float(derived.subs(at)) == pytest.approx(kernel_seconds(2e-6, 5e-5, 3e-5))


def test_bandwidth_floor_is_below_any_kernel_at_the_peak():
    assert bandwidth_floor_seconds(15e9, 4.8e12) == pytest.approx(3.125e-3)
    assert bandwidth_floor_seconds(15e9, 4.8e12) < kernel_seconds(3e-6, 15e9 / 4.8e12, 0.0)
