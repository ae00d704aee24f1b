"""One length law for counted lengths: the simplest family that keeps what a plan needs, else the counts themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from capplan.formulas.joint_cells import compact_sample
from capplan.formulas.length_fit import parametric_fits, sample_moments, sample_quantile
from capplan.formulas.length_law import LengthLaw
from capplan.formulas.length_laws import Empirical

FloatArray = NDArray[Any]

QUANTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
MOMENT_TOLERANCES = (0.01, 0.01, 0.05, 0.1)
"""Relative errors that E[X]..E[X^4] of an accepted law may have."""
QUANTILE_TOLERANCES: Mapping[str, float] = {"p50": 0.05, "p90": 0.05, "p99": 0.05, "p999": 0.1}
CODED_GROUPS = 200
CODED = "quantile-coded"


@dataclass(frozen=True)
class LawFit:
    """A law beside the lengths it was fitted to.

    Parameters
    ----------
    family : name of the family
    law : the law
    moment_errors : relative errors of E[X]..E[X^k], of the orders a plan needs [1]
    quantile_errors : by name, relative [1]
    """

    family: str
    law: LengthLaw
    moment_errors: tuple[float, ...]
    quantile_errors: Mapping[str, float]

    @property
    def accepted(self) -> bool:
        """Whether every moment and quantile is within its tolerance."""
        moments = zip(self.moment_errors, MOMENT_TOLERANCES, strict=False)
        quantiles = ((self.quantile_errors[name], most) for name, most in QUANTILE_TOLERANCES.items())
        return all(abs(error) <= most for pairs in (moments, quantiles) for error, most in pairs)


def law_fits(values: FloatArray, shares: FloatArray, order: int) -> list[LawFit]:
    """Every family tried, fewest parameters first; the quantile-coded counts last.

    Parameters
    ----------
    values, shares : lengths, increasing [token], and their shares, sum 1 [1]
    order : highest moment a plan needs: 4 for outputs, 3 for prompts
    """
    laws = parametric_fits(values, shares)
    laws.append((CODED, coded_law(values, shares)))
    return [_judged(name, law, values, shares, order) for name, law in laws]


def coded_law(values: FloatArray, shares: FloatArray) -> Empirical:
    """The counts themselves: at most ``2 * CODED_GROUPS`` values with their first three moments, the fourth nearly."""
    points, weights = compact_sample(values, shares, CODED_GROUPS)
    kept = weights > 0
    return Empirical(points[kept].tolist(), weights[kept].tolist())


def chosen(fits: list[LawFit]) -> LawFit:
    """The first family within all tolerances; the quantile-coded counts where none is."""
    return next((fit for fit in fits if fit.accepted), fits[-1])


def _judged(name: str, law: LengthLaw, values: FloatArray, shares: FloatArray, order: int) -> LawFit:
    wanted, found = sample_moments(values, shares, order), law.moments(order)
    moments = tuple(got / want - 1 if want else 0.0 for got, want in zip(found[1:], wanted[1:], strict=True))
    quantiles = {}
    for key, p in QUANTILES.items():
        want = sample_quantile(values, shares, p)
        quantiles[key] = float(law.quantile(p)) / want - 1 if want else 0.0
    return LawFit(name, law, moments, quantiles)
