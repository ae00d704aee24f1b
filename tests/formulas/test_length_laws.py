"""Length laws: moments against quadrature, truncation, nodes, errors."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from capplan.errors import InputError
from capplan.formulas import lengths
from capplan.formulas.length_laws import (
    Empirical,
    Exponential,
    Fixed,
    Gamma,
    Histogram,
    LengthLaw,
    LogNormal,
    Mixture,
    Pareto,
    Uniform,
    as_length_law,
)

CONTINUOUS: list[LengthLaw] = [
    Uniform(100, 900),
    Exponential(1000),
    Exponential(1000, max=1500),
    LogNormal(1000, 1),
    LogNormal(1000, 2, max=32768),
    Gamma(1000, 2, max=9000),
    Gamma(1000, 0.3),
    Pareto(100, 1.5, max=30000),
    Pareto(200, 6.5),
    Mixture([(0.9, LogNormal(400, 0.5)), (0.1, LogNormal(6400, 0.5))]),
    Histogram([1, 10, 100, 1000, 5000], [0.1, 0.2, 0.4, 0.3], max=4000),
]
ALL: list[LengthLaw] = [
    *CONTINUOUS,
    Fixed(1000),
    Mixture([(0.9, 400), (0.1, 6400)]),
    Empirical([3, 5, 5, 80, 4000]),
]
IDS = [repr(law)[:50] for law in ALL]


def by_quadrature(law: LengthLaw, k: int) -> float:
    """E[L^k] as the integral of the quantile function to the k-th power."""
    edges = [0.0, *(law.cdf(x) for x in (10, 100, 1000, 4000)), 0.9, 0.99, 0.999, 1 - 1e-5, 1 - 1e-7, 1 - 1e-9, 1.0]
    edges = sorted({edge for edge in edges if edge <= 1})
    pieces = [
        integrate.quad(lambda p: min(law.quantile(p), 1e8) ** k, low, high, limit=200)[0]
        for low, high in pairwise(edges)
    ]
    return math.fsum(pieces)


@pytest.mark.filterwarnings("ignore::scipy.integrate.IntegrationWarning")
@pytest.mark.parametrize(
    "law", [law for law in CONTINUOUS if not isinstance(law, Mixture)], ids=lambda law: repr(law)[:50]
)
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_moments_against_quadrature(law: LengthLaw, k: int) -> None:
    assert law.moment(k) == pytest.approx(by_quadrature(law, k), rel=3e-4)


@pytest.mark.parametrize("law", ALL, ids=IDS)
def test_quantile_inverts_cdf(law: LengthLaw) -> None:
    for p in (0.01, 0.3, 0.5, 0.9, 0.99):
        q = law.quantile(p)
        assert law.cdf(q) >= p - 1e-9
        assert law.cdf(q * (1 - 1e-6) - 1e-6) <= p + 1e-6


@pytest.mark.parametrize("law", ALL, ids=IDS)
def test_arrays_and_all_moments_at_once_agree_with_single_calls(law: LengthLaw) -> None:
    lengths = np.array([0.5, 1.0, 10.0, 333.3, 1000.0, 4000.0, 1e6])
    assert law.cdf(lengths) == pytest.approx([law.cdf(float(one)) for one in lengths], rel=1e-12)
    assert law.moments(3) == pytest.approx([law.moment(k) for k in range(4)], rel=1e-12)


@pytest.mark.parametrize("law", ALL, ids=IDS)
def test_truncation_puts_the_mass_at_the_budget(law: LengthLaw) -> None:
    cut = law.truncated(500)
    for k in (1, 2, 3, 4):
        assert cut.moment(k) == pytest.approx(law.truncated_moment(k, 500), rel=1e-9)
    assert cut.quantile(1.0) == min(500, law.quantile(1.0))
    assert cut.cdf(500) == 1.0
    assert cut.truncated(800).moment(1) == pytest.approx(cut.moment(1), rel=1e-12)


@pytest.mark.parametrize("law", ALL, ids=IDS)
def test_nodes_keep_four_moments(law: LengthLaw) -> None:
    values, weights = law.nodes(48)
    assert weights.sum() == pytest.approx(1.0)
    assert values.min() >= 1.0
    for k, tolerance in ((1, 1e-9), (2, 1e-8), (3, 1e-6), (4, 3e-3)):
        assert float(weights @ values**k) == pytest.approx(law.moment(k), rel=tolerance)


@pytest.mark.parametrize("law", ALL, ids=IDS)
def test_scaling(law: LengthLaw) -> None:
    assert law.scaled(3.0).mean == pytest.approx(3.0 * law.mean, rel=2e-3)
    assert law.scaled(3.0).quantile(0.9) == pytest.approx(3.0 * law.quantile(0.9), rel=1e-6)


@pytest.mark.parametrize("law", ALL, ids=IDS)
def test_samples_are_whole_tokens_of_that_law(law: LengthLaw) -> None:
    drawn = law.sample(60_000, np.random.default_rng(1))
    assert len(drawn) == 60_000
    assert (drawn == np.rint(drawn)).all()
    assert drawn.min() >= 1
    assert drawn.mean() == pytest.approx(law.mean, abs=5 * law.std / 245 + 0.6)


@pytest.mark.parametrize("law", [law for law in CONTINUOUS if law.limit == math.inf], ids=lambda law: repr(law)[:50])
def test_density_is_the_slope_of_the_cdf(law: LengthLaw) -> None:
    x = law.quantile(0.6)
    assert law.pdf(x) == pytest.approx((law.cdf(x * 1.0001) - law.cdf(x * 0.9999)) / (x * 2e-4), rel=1e-3)


@given(mean=st.floats(50, 1e5), cv=st.floats(0.05, 3), budget=st.floats(2, 1e5))
def test_a_budget_never_lengthens(mean: float, cv: float, budget: float) -> None:
    law = LogNormal(mean, cv)
    assert law.truncated(budget).mean <= min(law.mean, budget) * (1 + 1e-9)


def test_pareto_without_max_has_infinite_moments() -> None:
    assert Pareto(10, 1.5).mean == 30.0
    assert Pareto(10, 1.5).moment(2) == math.inf
    assert math.isfinite(Pareto(10, 1.5, max=1000).moment(4))


def test_moment_formulas_take_symbols() -> None:
    mean, cv = sympy.symbols("m v", positive=True)
    assert sympy.simplify(lengths.lognormal_moment(mean, cv, 3) - mean**3 * (1 + cv**2) ** 3) == 0
    assert sympy.simplify(lengths.gamma_moment(mean, sympy.Integer(1), 4) - 24 * mean**4) == 0
    assert lengths.lognormal_moment(np.array([10.0, 20.0]), 1.0, 2).tolist() == [200.0, 800.0]


def test_two_point_law_keeps_three_moments() -> None:
    values, weights = lengths.two_point_law(2.0, 3.0, 7.0, 20.0)
    for k, moment in enumerate((2.0, 3.0, 7.0, 20.0)):
        assert sum(w * v**k for v, w in zip(values, weights, strict=True)) == pytest.approx(moment)


def test_a_number_means_fixed() -> None:
    assert as_length_law(7) == Fixed(7)
    assert as_length_law(Fixed(7)) == Fixed(7)


def test_mapping_is_a_histogram_of_values() -> None:
    assert Empirical({10: 1, 20: 3}).mean == 17.5
    assert Empirical([10, 20], [1, 3]) == Empirical({20: 6, 10: 2})


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: Fixed(-1), "tokens"),
        (lambda: Fixed(float("nan")), "tokens"),
        (lambda: Fixed(True), "tokens"),
        (lambda: Uniform(9, 3), "high"),
        (lambda: LogNormal(0, 1), "mean"),
        (lambda: LogNormal(10, 0), "cv"),
        (lambda: LogNormal(10, 1, max=float("nan")), "max"),
        (lambda: Gamma(10, float("inf")), "cv"),
        (lambda: Pareto(100, 2, max=50), "max"),
        (lambda: Mixture([]), "parts"),
        (lambda: Mixture([(-1, 5)]), "parts.0.weight"),
        (lambda: Empirical([]), "values"),
        (lambda: Empirical([1, 2], [1]), "weights"),
        (lambda: Histogram([1, 1], [1]), "edges"),
        (lambda: Histogram([1, 2], [1, 2]), "edges"),
        (lambda: Fixed(5).scaled(0), "factor"),
        (lambda: Fixed(5).truncated(0), "max"),
        (lambda: as_length_law("x"), None),
    ],
)
def test_bad_input_names_the_field(make: object, key: str | None) -> None:
    with pytest.raises(InputError) as caught:
        make()  # type: ignore[operator]
    assert caught.value.key == key
    assert "\n" not in str(caught.value)


SCIPY = [
    (LogNormal(1000, 1.3), stats.lognorm(math.sqrt(math.log(1 + 1.3**2)), scale=1000 / math.sqrt(1 + 1.3**2))),
    (Gamma(2000, 0.6), stats.gamma(0.6**-2, scale=2000 * 0.6**2)),
    (Exponential(3000), stats.expon(scale=3000)),
    (Pareto(200, 6.5), stats.pareto(6.5, scale=200)),
    (Uniform(100, 900), stats.uniform(100, 800)),
]


@pytest.mark.parametrize(("law", "oracle"), SCIPY, ids=lambda one: repr(one)[:40])
def test_moments_quantiles_and_tails_against_scipy(law: LengthLaw, oracle: object) -> None:
    for k in (1, 2, 3, 4):
        assert law.moment(k) == pytest.approx(oracle.moment(k), rel=1e-3)  # type: ignore[attr-defined]
    for p in (0.05, 0.5, 0.9, 0.99, 0.999):
        assert law.quantile(p) == pytest.approx(oracle.ppf(p), rel=1e-6)  # type: ignore[attr-defined]
        assert law.cdf(law.quantile(p)) == pytest.approx(p, rel=1e-6)


@pytest.mark.parametrize("law", ALL, ids=IDS)
def test_residual_and_length_biased_forms(law: LengthLaw) -> None:
    assert law.mean_residual(0.0) == pytest.approx(law.mean, rel=1e-9)
    assert law.length_biased_mean == pytest.approx(law.moment(2) / law.mean, rel=1e-12)
    assert law.length_biased_cdf(0.0) == 0.0
    assert law.length_biased_cdf(1e9) == pytest.approx(1.0, rel=1e-6)
    for p in (0.3, 0.9, 0.99):
        age = law.quantile(p)
        # Conservation: tokens up to the age, and those still to come, are all tokens.
        left = 1 - law.cdf(age)
        assert law.truncated_moment(1, age) + left * law.mean_residual(age) == pytest.approx(law.mean, rel=1e-9)
        assert law.length_biased_cdf(age) <= law.cdf(age) + 1e-9


@pytest.mark.parametrize("law", ALL, ids=IDS)
def test_quantiles_increase_and_a_budget_beyond_all_changes_nothing(law: LengthLaw) -> None:
    values = law.quantile(np.linspace(0, 0.9999, 200))
    assert (np.diff(values) >= 0).all()
    assert values.tolist() == [law.quantile(float(p)) for p in np.linspace(0, 0.9999, 200)]
    wide, narrow = law.truncated(1e9), law.truncated(1)
    assert [wide.moment(k) for k in (1, 2)] == pytest.approx([law.moment(k) for k in (1, 2)], rel=1e-6)
    assert narrow.mean == pytest.approx(1.0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 10), st.floats(20, 1e5), st.floats(0.1, 2)), min_size=1, max_size=6))
def test_the_moments_of_a_mixture_are_those_of_its_parts(parts: list[tuple[float, float, float]]) -> None:
    laws = [(weight, LogNormal(mean, cv, max=2e5)) for weight, mean, cv in parts]
    mixture, total = Mixture(laws), math.fsum(weight for weight, _ in laws)
    for k in (1, 2, 3, 4):
        expected = math.fsum(weight / total * law.moment(k) for weight, law in laws)
        assert mixture.moment(k) == pytest.approx(expected, rel=1e-9)
    assert mixture.length_biased_mean >= mixture.mean * (1 - 1e-9)
