"""Tokens of a verify step."""

import numpy as np
import pytest
import sympy

from capplan.formulas.speculation import tokens_per_verify_step


def test_constant_acceptance_is_the_geometric_sum():
    alpha = sympy.Symbol("alpha", positive=True)
    closed = (1 - alpha**4) / (1 - alpha)
    assert sympy.simplify(tokens_per_verify_step([alpha] * 3) - closed).equals(0)


def test_production_acceptance_of_one_draft():
    """arXiv:2505.09343, section 2.3.3: 80-90 % of second tokens accepted, 1.8 times the speed a request."""
    assert tokens_per_verify_step([0.85]) == pytest.approx(1.85)


def test_simulated_runs_of_accepted_drafts():
    rng = np.random.default_rng(3)
    accepted = rng.random((200_000, 3)) < np.array([0.9, 0.7, 0.5])
    mean = 1 + np.cumprod(accepted, axis=1).sum(axis=1).mean()
    assert tokens_per_verify_step([0.9, 0.7, 0.5]) == pytest.approx(mean, rel=0.01)
    assert tokens_per_verify_step([]) == 1.0
