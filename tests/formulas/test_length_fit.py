"""Fits of length laws: what was drawn from a family is found again; moments stay; cells keep their moments."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from capplan.calibration.law_fit import CODED, chosen, law_fits
from capplan.errors import InputError
from capplan.formulas.dispersion import dispersion_grows, index_of_dispersion, time_step
from capplan.formulas.joint_cells import compact_joint, compact_sample, two_point_laws
from capplan.formulas.length_fit import (
    body_and_tail,
    parametric_fits,
    sample_moments,
    sample_quantile,
    separation,
    two_lognormals,
    two_moment_law,
)
from capplan.formulas.length_laws import Fixed, Gamma, LengthLaw, LogNormal, Mixture, Pareto


def counted(law: LengthLaw, n: int = 400_000, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    values, counts = np.unique(law.sample(n, np.random.default_rng(seed)), return_counts=True)
    return values, counts / n


FAMILIES: list[tuple[LengthLaw, str]] = [
    (LogNormal(800, 1.2, 32768), "lognormal"),
    (Gamma(900, 0.8, 16384), "gamma"),
    (Mixture([(0.6, LogNormal(300, 0.5)), (0.4, LogNormal(4000, 0.4, 30000))]), "two lognormals"),
]


@pytest.mark.parametrize(("law", "family"), FAMILIES, ids=[family for _, family in FAMILIES])
def test_the_family_it_was_drawn_from_is_found(law: LengthLaw, family: str) -> None:
    found = chosen(law_fits(*counted(law), 4))
    assert found.family == family
    for k in (1, 2, 3, 4):
        assert found.law.moment(k) == pytest.approx(law.moment(k), rel=0.05)
    for p in (0.5, 0.9, 0.99, 0.999):
        assert found.law.quantile(p) == pytest.approx(law.quantile(p), rel=0.03)


def test_a_pareto_tail_is_found_again() -> None:
    body, tail = LogNormal(500, 0.5, 2000), Pareto(2000, 1.4, 60_000)
    values, shares = counted(Mixture([(0.95, body), (0.05, tail)]))
    law = body_and_tail(values, shares, 0.05)
    assert isinstance(law, Mixture)
    (_, _), (share, found) = law.parts
    assert isinstance(found, Pareto)
    assert share == pytest.approx(0.05, rel=0.05)
    assert found.alpha == pytest.approx(1.4, rel=0.05)
    assert law.mean == pytest.approx(sample_moments(values, shares)[1], rel=1e-4)


@pytest.mark.parametrize("kind", [LogNormal, Gamma])
@settings(deadline=None, max_examples=25)
@given(mean=st.floats(30, 5000), cv=st.floats(0.2, 2.0), seed=st.integers(0, 99))
def test_two_moments_stay(kind: Callable[..., LengthLaw], mean: float, cv: float, seed: int) -> None:
    values, shares = counted(kind(mean, cv, max=50_000), 3000, seed)
    law = two_moment_law(kind, values, shares)
    if law is not None:
        wanted = sample_moments(values, shares, 2)
        assert law.moments(2) == pytest.approx(wanted, rel=3e-3)
        assert law.quantile(1.0) <= values[-1]


def test_what_no_family_takes_is_coded() -> None:
    values = np.array([1.0, 77.0, 78.0, 5000.0])
    shares = np.array([0.5, 0.2, 0.2, 0.1])
    fits = law_fits(values, shares, 4)
    assert chosen(fits).family == CODED
    assert chosen(fits).law.moments(4) == pytest.approx(sample_moments(values, shares), rel=1e-9)
    assert parametric_fits(np.array([7.0]), np.array([1.0])) == [("fixed", Fixed(7.0))]
    assert parametric_fits(np.array([0.0, 7.0]), np.array([0.5, 0.5])) == []
    with pytest.raises(InputError):
        parametric_fits(np.array([]), np.array([]))


def test_humps_are_told_apart() -> None:
    apart = separation(*counted(Mixture([(0.7, LogNormal(200, 0.5)), (0.3, LogNormal(6000, 0.5))])))
    assert apart is not None
    assert apart[0] > 4
    assert 400 < apart[1] < 3000
    assert separation(*counted(LogNormal(1000, 1.0))) is None
    assert two_lognormals(np.array([5.0]), np.array([1.0])) is None


def test_quantiles_of_a_sample() -> None:
    values, shares = np.array([1.0, 2.0, 10.0]), np.array([0.2, 0.3, 0.5])
    assert [sample_quantile(values, shares, p) for p in (0.0, 0.2, 0.3, 0.5, 0.51, 1.0)] == [1, 1, 2, 2, 10, 10]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(0.01, 5)), min_size=1, max_size=80), st.integers(1, 20))
def test_compact_samples_keep_three_moments(pairs: list[tuple[int, float]], groups: int) -> None:
    values, weights = np.array([p for p, _ in pairs], dtype=float), np.array([w for _, w in pairs])
    points, masses = compact_sample(values, weights, groups)
    assert points.min() >= values.min()
    assert points.max() <= values.max()
    for k in range(4):
        assert float(masses @ points**k) == pytest.approx(float(weights @ values**k), rel=1e-6, abs=1e-9)


def test_two_points_a_group() -> None:
    group = np.array([0, 0, 1, 1, 1])
    points, masses = two_point_laws(group, np.array([1.0, 3.0, 5.0, 5.0, 5.0]), np.ones(5))
    assert points.tolist() == [[1, 3], [5, 5]]
    assert masses.tolist() == [[1, 1], [1.5, 1.5]]


def test_compact_pairs_keep_marginal_moments_and_the_correlation() -> None:
    random = np.random.default_rng(2)
    outputs = random.lognormal(6, 1, 20_000) + 1
    prompts = np.rint(random.lognormal(6, 1.2, 20_000) * outputs**0.3)
    p, d, w = compact_joint(prompts, outputs, np.ones(20_000), 64, 10)
    assert len(w) <= 4 * 64 * 10
    assert w.sum() == pytest.approx(20_000)
    for k in (1, 2, 3):
        assert float(w @ p**k) == pytest.approx(float((prompts**k).sum()), rel=1e-9)
        assert float(w @ d**k) == pytest.approx(float((outputs**k).sum()), rel=1e-9)
    assert float(w @ d**4) == pytest.approx(float((outputs**4).sum()), rel=1e-4)
    assert float(w @ (p * d)) == pytest.approx(float(prompts @ outputs), rel=2e-3)


@pytest.mark.parametrize("mean", [0.3, 5.0])
def test_poisson_counts_have_a_dispersion_of_one(mean: float) -> None:
    counts = np.random.default_rng(3).poisson(mean, 200_000)
    for bins in (1, 7, 50):
        assert index_of_dispersion(counts, bins) == pytest.approx(1.0, abs=6 * math.sqrt(2 * bins / 200_000) + 0.01)
        assert index_of_dispersion(counts, bins, 1000) == pytest.approx(1.0, abs=0.12)


def test_dispersion_of_batches_and_of_drift() -> None:
    random = np.random.default_rng(4)
    batches = 5 * random.poisson(1.0, 100_000)  # five at once: 5 at every window
    windows = np.array([1.0, 10.0, 100.0, 600.0])
    used = 100_000 // windows
    index = np.array([index_of_dispersion(batches, int(w)) for w in windows])
    assert index == pytest.approx(5.0, rel=0.25)
    assert not dispersion_grows(windows, index, used)
    drifting = random.poisson(np.linspace(1, 9, 100_000))
    index = np.array([index_of_dispersion(drifting, int(w)) for w in windows])
    assert dispersion_grows(windows, index, used)
    assert index_of_dispersion(drifting, 10, 1000) == pytest.approx(1.0, abs=0.1)
    # Var N(w)/E N(w) = 1 + w Var(rate)/E(rate) for a rate that is constant inside a window.
    assert index[-1] == pytest.approx(1 + 600 * stats.uniform(1, 8).var() / 5, rel=0.1)
    assert math.isnan(index_of_dispersion(np.zeros(10, dtype=int), 1))
    assert math.isnan(index_of_dispersion(np.array([1, 2]), 2))


def test_steps_of_time_stamps() -> None:
    random = np.random.default_rng(5)
    exact = np.cumsum(random.exponential(0.3, 5000))
    assert time_step(exact) == 0.0
    assert time_step(np.floor(exact)) == 1.0
    assert time_step(np.floor(exact / 3) * 3) == 3.0
    assert time_step(np.zeros(50)) == 0.0
