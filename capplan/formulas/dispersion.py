r"""Burstiness of arrivals: index of dispersion of counts, drift, and the step of rounded time stamps.

The index of dispersion over windows of length w is :math:`I(w) = Var[N(w)]/E[N(w)]`; 1 at every w for Poisson arrivals.
It levels off where bursts are short, and grows in proportion to w where the rate itself drifts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

FEWEST_WINDOWS = 6
"""A variance over fewer windows says nothing."""
DRIFT_EXPONENT = 0.5
"""I(w) that grows at least as w^0.5 up to the longest windows is drift: bursts alone would have levelled off."""


def index_of_dispersion(counts: NDArray[Any], bins: int, level_bins: int | None = None) -> float:
    """Variance over mean of the counts in consecutive windows.

    Parameters
    ----------
    counts : arrivals of each bin [1]
    bins : bins of a window; bins left over at the end are not used
    level_bins : bins over which the rate counts as constant: the variance is then about the mean of each such
        stretch; None for one stretch

    Returns
    -------
    index : I(w), NaN where there are fewer than two windows or no arrival [1]

    Examples
    --------
    >>> index_of_dispersion(np.array([1, 3, 2, 2]), 1)
    0.25
    >>> index_of_dispersion(np.array([1, 1, 9, 9]), 1, level_bins=2)
    0.0
    """
    windows = len(counts) // bins
    per_window = counts[: windows * bins].reshape(windows, bins).sum(axis=1).astype(float)
    each = windows if level_bins is None else max(1, min(windows, level_bins // bins))
    stretches = windows // each if each else 0
    used = per_window[: stretches * each].reshape(stretches, each) if stretches else per_window[:0].reshape(0, 1)
    if each < 2 or used.sum() == 0:
        return math.nan
    correction = each / (each - 1) if stretches > 1 else 1.0
    return float(used.var(axis=1).mean() * correction / used.mean())


def dispersion_grows(windows: NDArray[Any], index: NDArray[Any], used: NDArray[Any]) -> bool:
    """Whether the index still grows at the longest windows: drift of the rate, beyond what chance does.

    Parameters
    ----------
    windows : lengths, increasing [s]
    index : I(w) [1]
    used : number of windows each was counted over [1]
    """
    if len(windows) < 2 or windows[-1] < 3 * windows[0] or index[-1] <= 1:
        return False
    earlier = int(np.argmin(np.abs(np.log(windows) - math.log(windows[-1] / 4))))
    noise = math.sqrt(2.0 / used[-1])
    if index[-1] < (1 + 2 * noise) * max(1.0, index[earlier]) and index[-1] < 1 + 4 * noise:
        return False
    return bool(math.log(index[-1] / index[earlier]) > DRIFT_EXPONENT * math.log(windows[-1] / windows[earlier]))


def time_step(times: NDArray[Any]) -> float:
    """The step to which time stamps were rounded [s]; 0 where none shows.

    Rounded stamps repeat, and the gaps between different ones are multiples of the step.

    Examples
    --------
    >>> time_step(np.repeat(np.arange(0.0, 90.0, 3.0), 5))
    3.0
    """
    gaps = np.diff(times)
    positive = gaps[gaps > 1e-9]
    if len(positive) < 5 or len(positive) > 0.95 * len(gaps):
        return 0.0
    step = float(np.quantile(positive, 0.05))
    multiple = np.rint(positive / step)
    whole = np.abs(positive - multiple * step) <= 0.02 * step + 1e-6
    return round(float(np.median(positive[whole] / multiple[whole])), 6) if whole.mean() >= 0.95 else 0.0
