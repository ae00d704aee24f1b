"""Error bands: quantiles of measured over predicted, and the share of rows they hold."""

import math
import random

import numpy as np
import pytest
import sympy

from capplan.errors import InputError
from capplan.formulas.error_band import BORROWED_EXPONENT, band_factors, borrowed_factor, coverage

NORMAL_P90 = 1.2815515655446004  # standard normal quantile, DLMF 7.17


@pytest.mark.parametrize("rows", [1, 2, 5, 11, 64])
def test_ends_are_the_usual_quantiles(rows):
    draw = random.Random(rows)
    predicted = [draw.uniform(1, 100) for _ in range(rows)]
    measured = [value * draw.lognormvariate(0, 0.2) for value in predicted]
    ratios = np.array(measured) / np.array(predicted)
    low, high = band_factors(measured, predicted)
    assert low == pytest.approx(min(1, np.quantile(ratios, 0.1)), rel=1e-12)
    assert high == pytest.approx(max(1, np.quantile(ratios, 0.9)), rel=1e-12)
    assert band_factors(measured, predicted, 0, 1) == pytest.approx((min(1, ratios.min()), max(1, ratios.max())))


def test_the_band_of_lognormal_errors_holds_four_fifths_of_rows_it_has_not_seen():
    draw = random.Random(3)
    errors = [draw.lognormvariate(0, 0.15) for _ in range(40_000)]
    seen, held = errors[::2], errors[1::2]
    low, high = band_factors(seen, [1.0] * len(seen))
    assert (low, high) == pytest.approx((math.exp(-0.15 * NORMAL_P90), math.exp(0.15 * NORMAL_P90)), rel=0.01)
    assert coverage(held, [1.0] * len(held), low, high) == pytest.approx(0.8, abs=0.01)


def test_the_prediction_lies_in_its_band_even_where_every_row_is_above_it():
    low, high = band_factors([1.2, 1.3, 1.4], [1.0] * 3)
    assert low == 1.0
    assert high == pytest.approx(1.38)
    assert band_factors([0.5], [1.0]) == (0.5, 1.0)


def test_the_unit_does_not_matter():
    measured, predicted = [9.0, 10.0, 12.0], [10.0, 10.0, 10.0]
    thousand = [[1e3 * value for value in rows] for rows in (measured, predicted)]
    assert band_factors(*thousand) == pytest.approx(band_factors(measured, predicted), rel=1e-12)
    assert coverage(*thousand, 0.95, 1.1) == coverage(measured, predicted, 0.95, 1.1) == pytest.approx(1 / 3)


def test_a_borrowed_band_is_half_as_wide_again_in_the_logarithm():
    for factor in (0.6, 0.93, 1.0, 1.35):
        assert math.log(borrowed_factor(factor)) == pytest.approx(1.5 * math.log(factor), abs=1e-15)
    f, x = sympy.symbols("f x", positive=True)
    assert borrowed_factor(f, x) == f**x
    assert borrowed_factor(np.array([0.8, 1.2])) == pytest.approx([0.8**BORROWED_EXPONENT, 1.2**BORROWED_EXPONENT])


@pytest.mark.parametrize(
    ("measured", "predicted"),
    [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0]), ([1.0], [-1.0]), ([math.nan], [1.0]), ([1.0], [math.inf])],
)
def test_rows_that_are_none_are_refused(measured, predicted):
    for refused in (lambda: band_factors(measured, predicted), lambda: coverage(measured, predicted, 0.9, 1.1)):
        with pytest.raises(InputError):
            refused()


def test_ends_in_the_wrong_order_are_refused():
    with pytest.raises(InputError, match="rising order"):
        band_factors([1.0], [1.0], 0.9, 0.1)
