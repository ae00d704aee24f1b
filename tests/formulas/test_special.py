"""Special functions against SciPy and mpmath."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy import special as oracle
from scipy import stats

from capplan.formulas import special
from capplan.formulas.pearson import pearson_cdf, pearson_quantile, standard_pearson_quantile
from capplan.formulas.pearson_mixture import PearsonMixture
from capplan.formulas.special_arrays import GammaLaws

PROBABILITIES = (1e-6, 0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 0.999999)
SHAPES = (0.05, 0.3, 0.9, 1.0, 1.5, 2.5, 30.0, 400.0, 2e4, 9e5)


@pytest.mark.parametrize("p", PROBABILITIES)
def test_normal_quantile(p: float) -> None:
    assert special.normal_quantile(p) == pytest.approx(float(oracle.ndtri(p)), rel=1e-10, abs=1e-12)
    assert special.normal_cdf(special.normal_quantile(p)) == pytest.approx(p, rel=1e-10)


def test_normal_quantile_ends() -> None:
    assert special.normal_quantile(0.0) == -math.inf
    assert special.normal_quantile(1.0) == math.inf


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("p", PROBABILITIES)
def test_gamma_law(shape: float, p: float) -> None:
    x = float(oracle.gammaincinv(shape, p))
    if x < 1e-200:
        pytest.skip("underflows")
    assert special.gamma_cdf(shape, x) == pytest.approx(p, rel=1e-8 if shape < 1e5 else 1e-5)
    assert special.gamma_survival(shape, x) == pytest.approx(float(oracle.gammaincc(shape, x)), rel=1e-5)
    assert special.gamma_quantile(shape, p) == pytest.approx(x, rel=1e-7)


def test_gamma_quantile_never_loses_its_bracket() -> None:
    random = np.random.default_rng(3)
    for shape, p in zip(10 ** random.uniform(-1, 5.5, 800), random.choice([0.01, 0.5, 0.99, 0.999], 800), strict=True):
        assert special.gamma_quantile(shape, p) == pytest.approx(float(oracle.gammaincinv(shape, p)), rel=1e-8)


def test_gamma_far_tail_against_mpmath() -> None:
    exact = float(mpmath.gammainc(12.5, 60, mpmath.inf, regularized=True))
    assert special.gamma_survival(12.5, 60.0) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(("a", "b", "x"), [(0.5, 3.0, 0.2), (40.0, 7.0, 0.9), (900.0, 1100.0, 0.45), (2.0, 5.0, 0.999)])
def test_beta_law(a: float, b: float, x: float) -> None:
    assert special.beta_cdf(a, b, x) == pytest.approx(float(oracle.betainc(a, b, x)), rel=1e-11)


@pytest.mark.parametrize("mean", [0.3, 3.0, 40.0, 900.0, 20_000.0])
@pytest.mark.parametrize("ratio", [1.0, 1.5, 4.0, 60.0])
@pytest.mark.parametrize("p", [0.001, 0.5, 0.9, 0.99, 0.9999])
def test_negative_binomial_quantile(mean: float, ratio: float, p: float) -> None:
    law = stats.poisson(mean) if ratio == 1.0 else stats.nbinom(mean / (ratio - 1.0), 1.0 / ratio)
    n = special.negative_binomial_quantile(mean, ratio, p)
    assert n == int(law.ppf(p))
    assert special.negative_binomial_cdf(mean, ratio, n) == pytest.approx(float(law.cdf(n)), rel=1e-9)


def test_underdispersed_count_is_normal_with_continuity() -> None:
    assert special.negative_binomial_cdf(100.0, 0.25, 100) == pytest.approx(float(stats.norm.cdf(0.5 / 5.0)))


@pytest.mark.parametrize("shape", SHAPES)
def test_gamma_arrays(shape: float) -> None:
    p = np.linspace(1e-6, 1 - 1e-6, 101)
    x = oracle.gammaincinv(shape, p)
    laws = GammaLaws(np.full(101, shape))
    assert np.abs(laws.cdf(x) - p).max() < (0.5 if shape < 0.1 else 1e-9)  # below 0.1 the oracle's x underflows
    inner = x > 1e-100
    assert np.allclose(laws.pdf(x)[inner], stats.gamma.pdf(x, shape)[inner], rtol=1e-7)


def test_gamma_above_a_million_is_normal_with_skewness() -> None:
    assert special.gamma_cdf(2e6, 2e6 + 3e3) == pytest.approx(float(oracle.gammainc(2e6, 2e6 + 3e3)), abs=3e-7)
    laws = GammaLaws(np.array([2e6]))
    assert laws.cdf(np.array([2e6 + 3e3]))[0] == pytest.approx(float(oracle.gammainc(2e6, 2e6 + 3e3)), abs=3e-7)


@pytest.mark.parametrize("skew", [1e-4, 0.05, 0.8, 2.0, 5.0])
@pytest.mark.parametrize("p", [0.01, 0.5, 0.99, 0.999])
def test_pearson(skew: float, p: float) -> None:
    z = float(stats.pearson3.ppf(p, skew))
    assert standard_pearson_quantile(p, skew) == pytest.approx(z, rel=1e-6, abs=1e-6)
    value = pearson_quantile(p, 10.0, 4.0, skew * 8.0)
    assert value == pytest.approx(10 + 2 * z, rel=1e-6)
    if skew > 1e-3 and (skew < 3 or p > 0.4):
        assert pearson_cdf(value, 10.0, 4.0, skew * 8.0) == pytest.approx(p, rel=1e-6)


def test_pearson_without_variance() -> None:
    assert pearson_quantile(0.99, 3.0, 0.0, 0.0) == 3.0
    assert pearson_cdf(2.9, 3.0, 0.0, 0.0) == 0.0


def test_mixture_quantile_inverts_its_cdf() -> None:
    weights = np.array([0.7, 0.3])
    mixture = PearsonMixture(weights, np.array([1.0, 8.0]), np.array([0.2, 0.9]), np.array([0.5, 1.5]))
    for p in (0.001, 0.3, 0.69, 0.71, 0.99, 0.9999):
        q = mixture.quantile(p)
        parts = [float(stats.pearson3.cdf(q, s, m, d)) for m, d, s in ((1.0, 0.2, 0.5), (8.0, 0.9, 1.5))]
        assert float(weights @ parts) == pytest.approx(p, rel=1e-5)


def test_mixture_quantile_where_two_parts_leave_a_gap() -> None:
    mixture = PearsonMixture(
        np.array([0.9, 0.1]), np.array([1.0, 1000.0]), np.array([0.01, 0.01]), np.array([0.1, 0.1])
    )
    assert mixture.quantile(0.99) == pytest.approx(1000.0, rel=1e-3)
    assert mixture.quantile(0.5) == pytest.approx(1.0, rel=1e-2)


def test_mixture_arrays_follow_scalars() -> None:
    mixture = PearsonMixture(np.array([0.6, 0.4]), np.array([1.0, 2.0]), np.array([0.3, 0.6]), np.array([0.5, 1.0]))
    p = np.array([0.05, 0.5, 0.9, 0.99])
    assert np.allclose(mixture.quantile(p), [mixture.quantile(float(one)) for one in p], rtol=2e-3)
