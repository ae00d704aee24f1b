"""The length laws of the simulated grid in ``tests/truth/tail_rows.json``, as workloads of this package.

In the grid L counts decode steps, so outputs here are one token longer.
"""

from __future__ import annotations

import math
from functools import cache

from capplan.cards.workload import Workload
from capplan.formulas.length_laws import Empirical, Exponential, Fixed, LengthLaw, LogNormal, Mixture


def lognormal_of(mu: float, sigma: float, limit: float | None = None) -> LogNormal:
    """Lognormal law from mean and standard deviation of the logarithm."""
    return LogNormal(math.exp(mu + sigma**2 / 2), math.sqrt(math.expm1(sigma**2)), limit)


def decode_law(name: str) -> LengthLaw:
    """Law of decode steps by its name in the grid."""
    if name.startswith("ln"):
        # A sample of 4 M requests holds nothing of the law of cv 2 beyond about 180,000 steps.
        return LogNormal(1000, float(name[2:]), 180_000)
    return {
        "fixed": Fixed(1000),
        "exp": Exponential(1000),
        "bimodal": Mixture([(0.9, 400), (0.1, 6400)]),
        # Two-lognormal likelihood fit of the outputs of ServeGen's DeepSeek-R1 workload.
        "prod": Mixture(
            [(0.827452, lognormal_of(6.480865, 0.721614, 32768)), (0.172548, lognormal_of(8.155547, 0.808321, 32768))]
        ),
    }[name]


def prompt_law(name: str) -> LengthLaw:
    """Law of prompt tokens by its name in the grid."""
    return {
        "fixed": Fixed(1000),
        "zero": Fixed(0),
        "ln3": LogNormal(1269, 3, 131072),
        "prod": LogNormal(1269, math.sqrt((1269 / 208) ** 2 - 1), 131072),
    }[name]


@cache
def grid_workload(steps: str, prompt: str) -> Workload:
    """The workload of a row: decode steps as 300 weighted values that keep the law's moments, plus one token."""
    values, weights = decode_law(steps).nodes(300)
    return Workload(prompt_law(prompt), Empirical(values + 1.0, weights))
