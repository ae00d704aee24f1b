import math

import numpy as np
import pytest
import scipy.special
import sympy

from capplan.formulas.erfcx import erfcx, inverse_mills_ratio, normal_density, normal_hazard


def test_erfcx_against_scipy_scalar_and_array():
    x = np.concatenate([np.linspace(0.0, 30.0, 3001), 10.0 ** np.arange(2, 8)])
    reference = scipy.special.erfcx(x)
    np.testing.assert_allclose(erfcx(x), reference, rtol=2e-15)
    np.testing.assert_allclose([erfcx(float(v)) for v in x[::50]], reference[::50], rtol=2e-15)


def test_hazard_is_density_over_tail():
    z = np.linspace(-30.0, 40.0, 701)
    reference = np.exp(-z * z / 2 - scipy.special.log_ndtr(-z)) / math.sqrt(2 * math.pi)
    np.testing.assert_allclose(normal_hazard(z), reference, rtol=1e-12)
    assert inverse_mills_ratio(1.5) == pytest.approx(normal_density(1.5) / scipy.special.ndtr(1.5), rel=1e-13)


def test_hazard_survives_extremes():
    assert normal_hazard(1e6) == pytest.approx(1e6, rel=1e-6)
    assert normal_hazard(-1e6) == 0.0


def test_hazard_of_a_symbol_is_the_exact_expression():
    y = sympy.Symbol("y", real=True)
    expression = normal_hazard(y)
    assert float(expression.subs(y, 1.25)) == pytest.approx(normal_hazard(1.25), rel=1e-14)
    assert sympy.simplify(sympy.diff(expression, y) - expression * (expression - y)) == 0
