"""The small fitter against SciPy's, and its manners: bounds, outliers, nothing to fit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from capplan.calibration.least_squares import jacobian, least_squares

TIME = np.linspace(0.2, 8.0, 25)


def decay(x):
    return x[0] + x[1] * np.exp(-x[2] * TIME)


@settings(max_examples=30, deadline=None)
@given(
    truth=st.tuples(st.floats(0, 2), st.floats(1, 5), st.floats(0.3, 1.5)),
    seed=st.integers(0, 1000),
    outliers=st.integers(0, 3),
)
def test_where_it_stops_scipy_finds_nothing_better(truth, seed, outliers):
    random = np.random.default_rng(seed)
    seen = decay(truth) + 0.02 * random.standard_normal(len(TIME))
    seen[random.integers(0, len(TIME), outliers)] += 3.0

    def residuals(x):
        return (decay(x) - seen) / 0.02

    own = least_squares(residuals, [1.0, 2.0, 0.8], [0.0, 0.0, 0.0], 2.5)
    scipy = optimize.least_squares(residuals, own.x + 1e-9, loss="cauchy", f_scale=2.5, bounds=(0, np.inf), xtol=1e-12)
    assert own.cost <= scipy.cost * (1 + 1e-6) + 1e-9
    assert own.x == pytest.approx(scipy.x, rel=1e-3, abs=1e-3)


def test_a_bound_holds_and_the_rest_is_still_best():
    seen = 3.0 - 0.5 * TIME  # falls, but the slope may not be negative

    def residuals(x):
        return x[0] + x[1] * TIME - seen

    found = least_squares(residuals, [1.0, 1.0], [0.0, 0.0], np.inf)
    assert found.x == pytest.approx([seen.mean(), 0.0], abs=1e-6)


def test_infinite_scale_is_plain_least_squares():
    random = np.random.default_rng(1)
    seen = 1 + 2 * TIME + random.standard_normal(len(TIME))
    found = least_squares(lambda x: x[0] + x[1] * TIME - seen, [0.0, 0.0], [-9.0, -9.0], np.inf)
    assert found.x[::-1] == pytest.approx(np.polyfit(TIME, seen, 1), rel=1e-6)
    assert (found.weights == 1).all()


def test_differences_are_derivatives():
    x = np.array([0.5, 3.0, 0.7])
    exact = np.column_stack([np.ones_like(TIME), np.exp(-0.7 * TIME), -3 * TIME * np.exp(-0.7 * TIME)])
    assert jacobian(decay, x) == pytest.approx(exact, abs=1e-5)
    assert jacobian(lambda _: TIME, []).shape == (len(TIME), 0)


def test_nothing_to_fit():
    found = least_squares(lambda _: TIME, [], [], 2.0)
    assert len(found.x) == 0
    assert found.residuals.tolist() == TIME.tolist()
