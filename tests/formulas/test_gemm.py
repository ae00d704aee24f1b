"""Matrix products: bytes and FLOP counted by hand, and the shape of their time."""

import numpy as np
import pytest

from capplan.formulas.gemm import gemm_bytes, gemm_flops, gemm_term, gemms_seconds

H200 = {"floor_seconds": 2.96e-6, "stream_bandwidth": 4.41e12, "narrow_outputs": 676, "flops_per_second": 798e12}


def term(outputs, inputs, **changed):
    return gemm_term(inputs, outputs, 2, **{**H200, **changed})


def test_bytes_and_flops_of_a_product_counted_by_hand():
    # The recorded bytes and rate of one measured product: 8,192 rows would be 2 * 8192^3 FLOP.
    assert gemm_bytes(1, 4096, 6144, 2) == 50352128
    assert gemm_bytes(2048, 1024, 8192, 1) == 8192 * 1024 + 2 * 2048 * (1024 + 8192)
    assert gemm_flops(8192, 8192, 8192) == 2 * 8192**3


@pytest.mark.parametrize(
    ("rows", "outputs", "inputs", "microseconds"),
    [(1, 6144, 4096, 15.4), (64, 28672, 4096, 60.6), (1, 128256, 4096, 238.4), (4096, 4096, 14336, 582.1)],
)
def test_time_of_measured_products(rows, outputs, inputs, microseconds):
    """Rows of tests/truth/h200_kernels.json; the whole table is judged in tests/serving/test_kernel_tables.py."""
    assert gemms_seconds(rows, [term(outputs, inputs)]) * 1e6 == pytest.approx(microseconds, rel=0.09)


def test_few_rows_are_bound_by_reading_and_many_by_arithmetic():
    wide = term(28672, 4096)
    assert gemms_seconds(8, [wide]) == pytest.approx(gemms_seconds(1, [wide]), rel=0.01)
    assert gemms_seconds(8192, [wide]) == pytest.approx(2 * gemms_seconds(4096, [wide]), rel=0.01)


def test_time_grows_with_rows_and_falls_with_better_hardware():
    rows = np.arange(1.0, 9000.0, 37.0)
    seconds = gemms_seconds(rows, [term(6144, 4096)])
    assert (np.diff(seconds) > 0).all()
    for better in ({"stream_bandwidth": 6e12}, {"flops_per_second": 1600e12}, {"floor_seconds": 1e-6}):
        assert (gemms_seconds(rows, [term(6144, 4096, **better)]) < seconds).all()
    assert seconds[:5] == pytest.approx([gemms_seconds(float(n), [term(6144, 4096)]) for n in rows[:5]], rel=1e-14)


def test_terms_add_up_with_their_counts():
    one = gemms_seconds(16, [term(6144, 4096)])
    assert gemms_seconds(16, [term(6144, 4096, count=32)]) == pytest.approx(32 * one)
    assert gemms_seconds(16, [term(6144, 4096)] * 2) == pytest.approx(2 * one)
    assert gemms_seconds(16, []) == 0.0
