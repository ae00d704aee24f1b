"""The targets of benchmarks/tails.py: queues, percentiles and KV pressure against simulations, by public functions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.tails import GROUPS, Figure, scheduler_figures


@pytest.mark.simulation
@pytest.mark.parametrize("group", [group for group in GROUPS if group is not scheduler_figures])
def test_targets(group: Callable[[], list[Figure]]) -> None:
    figures = group()
    assert figures
    assert not [figure.line() for figure in figures if not figure.met]


@pytest.mark.simulation
def test_the_scheduler_itself_within_the_noise_of_its_seeds() -> None:
    """Windows of one seed: a perfect law would still be off by what two seeds differ by, over the root of two."""
    rho, batch, *long = scheduler_figures()
    assert rho.error < 0.065
    assert batch.error < 0.035
    assert all(figure.met for figure in long)
