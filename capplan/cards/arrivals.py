"""When requests arrive: rate, index of dispersion by window, drift, hours; counted in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capplan.formulas.dispersion import FEWEST_WINDOWS, dispersion_grows, index_of_dispersion, time_step

FloatArray = NDArray[np.float64]

HOUR = 3600.0
SHOWN_WINDOWS = (1.0, 3.0, 10.0, 30.0, 60.0, 100.0, 300.0)
"""Windows of the table of dispersion [s]."""
LONGEST_WINDOW = 600.0
_FINEST_BIN = 1 / 8
_MOST_BINS = 1 << 22
_KEPT_STAMPS = 50_000


@dataclass(frozen=True)
class Arrivals:
    """The arrivals of a trace, as far as a plan needs them.

    Parameters
    ----------
    rate : requests over the time from the first to the last [1/s]
    span_seconds : that time [s]
    windows : lengths of the windows of ``dispersion``, increasing; none where rates alone are known [s]
    dispersion : index of dispersion of counts at each window, about the mean of each hour where there are several [1]
    drifts : whether it still grows at the longest windows, so that the rate itself drifts
    busiest_rate : mean rate of the busiest hour; None where the trace covers less than two [1/s]
    step_seconds : the step to which time stamps are rounded; 0 where none shows [s]
    """

    rate: float
    span_seconds: float
    windows: tuple[float, ...]
    dispersion: tuple[float, ...]
    drifts: bool = False
    busiest_rate: float | None = None
    step_seconds: float = 0.0

    def dispersion_at(self, horizon: float) -> float:
        """Index of dispersion over windows of ``horizon`` seconds [1].

        1 where no window was counted. Interpolated in the logarithms between the windows counted; beyond the longest,
        the value there (see :attr:`longest_window`). Windows below two steps of the time stamps say nothing, so two
        steps are taken.
        """
        if not self.windows:
            return 1.0
        seconds = max(horizon, 2 * self.step_seconds, self.windows[0])
        index = np.interp(math.log(seconds), np.log(self.windows), np.log(np.maximum(self.dispersion, 1e-6)))
        return float(np.exp(index))

    @property
    def longest_window(self) -> float:
        """The longest window of which the trace holds enough for a variance; 0 where none was counted [s]."""
        return self.windows[-1] if self.windows else 0.0


@dataclass(frozen=True)
class Hour:
    """One hour of a trace.

    Parameters
    ----------
    start_hour : hours since the first request
    rate : [1/s]
    input_mean, output_mean : [token]
    kv_load : KV tokens held for each second a decode step takes, rate times E[D] theta [token/s]
    """

    start_hour: int
    rate: float
    input_mean: float
    output_mean: float
    kv_load: float

    @property
    def prompt_tokens_per_second(self) -> float:
        """Prompt tokens that arrive a second [token/s]."""
        return self.rate * self.input_mean

    @property
    def output_tokens_per_second(self) -> float:
        """Output tokens asked for a second [token/s]."""
        return self.rate * self.output_mean


class ArrivalCounts:
    """Counts of arrivals in short bins, and sums by hour; bins double where a trace is long."""

    def __init__(self) -> None:
        self._bin = _FINEST_BIN
        self._counts = np.zeros(1024, dtype=np.int32)
        self._hours = np.zeros((24, 4))
        self._stamps: list[FloatArray] = []
        self._kept = 0
        self.requests = 0
        self.last = 0.0

    def add(self, times: FloatArray, prompts: Any, outputs: Any) -> None:
        """Count requests at ``times`` seconds after the first, not decreasing."""
        self.requests += len(times)
        self.last = float(times[-1])
        if self._kept < _KEPT_STAMPS:
            self._stamps.append(times[: _KEPT_STAMPS - self._kept])
            self._kept += len(self._stamps[-1])
        while self.last / self._bin >= _MOST_BINS:
            self._counts = self._counts[: len(self._counts) // 2 * 2].reshape(-1, 2).sum(axis=1, dtype=np.int32)
            self._bin *= 2
        self._count((times / self._bin).astype(np.int64))
        self._by_hour((times / HOUR).astype(np.int64), prompts.astype(float), outputs.astype(float))

    def _count(self, bins: Any) -> None:
        first, last = int(bins[0]), int(bins[-1])
        if last >= len(self._counts):
            more = max(len(self._counts), last + 1 - len(self._counts))
            self._counts = np.concatenate([self._counts, np.zeros(more, dtype=np.int32)])
        self._counts[first : last + 1] += np.bincount(bins - first).astype(np.int32)

    def _by_hour(self, hours: Any, prompts: FloatArray, outputs: FloatArray) -> None:
        first, last = int(hours[0]), int(hours[-1])
        if last >= len(self._hours):
            self._hours = np.concatenate([self._hours, np.zeros((max(len(self._hours), last), 4))])
        steps = outputs - 1
        held = steps * (prompts + (steps - 1) / 2)
        sums = [np.bincount(hours - first, column) for column in (np.ones(len(hours)), prompts, outputs, held)]
        self._hours[first : last + 1] += np.column_stack(sums)

    def arrivals(self, windows: Iterable[float] = ()) -> Arrivals | None:
        """What was counted, with these windows [s] among those of the dispersion; None where no time passes."""
        if self.requests < 2 or self.last <= 0.0:
            return None
        step = time_step(np.concatenate(self._stamps))
        found = self._dispersions(
            [*windows, *_spread(self._bin, min(LONGEST_WINDOW, self.last / FEWEST_WINDOWS))], step
        )
        lengths, index, used = (np.array(column) for column in zip(*found, strict=True))
        hours = self.hours()
        return Arrivals(
            rate=self.requests / self.last,
            span_seconds=self.last,
            windows=tuple(lengths.tolist()),
            dispersion=tuple(index.tolist()),
            drifts=dispersion_grows(lengths, index, used),
            busiest_rate=max(hour.rate for hour in hours) if hours else None,
            step_seconds=step,
        )

    def _dispersions(self, windows: Iterable[float], step: float) -> list[tuple[float, float, int]]:
        """Window, index and number of windows, increasing; a trace too short for any counts as Poisson."""
        bins = int(self.last / self._bin)
        counts = self._counts[:bins]
        level = int(HOUR / self._bin) if self.last >= 2 * HOUR else None
        found: dict[float, tuple[float, int]] = {}
        for width in sorted({max(1, round(window / self._bin)) for window in windows}):
            used = bins // width
            if used >= FEWEST_WINDOWS - 1 and width * self._bin >= 2 * step:
                index = index_of_dispersion(counts, width, level)
                found[width * self._bin] = (index, used)
        kept = [(window, index, used) for window, (index, used) in found.items() if math.isfinite(index)]
        return kept or [(max(self.last, self._bin), 1.0, 1)]

    def hours(self) -> tuple[Hour, ...]:
        """Whole hours from the first request on; none where the trace covers less than two."""
        whole = int(self.last / HOUR)
        if whole < 2:
            return ()
        return tuple(
            Hour(number, n / HOUR, p / n if n else 0.0, o / n if n else 0.0, kv / HOUR)
            for number, (n, p, o, kv) in enumerate(self._hours[:whole].tolist())
        )


def _spread(least: float, most: float) -> list[float]:
    """Windows from the finest bin on, eight a decade, with those of the table among them."""
    count = max(2, round(8 * math.log10(max(most / least, 10.0))))
    return [*(w for w in SHOWN_WINDOWS if w <= most), *np.geomspace(least, max(most, least), count).tolist()]
