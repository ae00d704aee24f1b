"""Rates by time (CSV: a time column and one of rates), in the place of the arrivals of a trace that has none."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capplan.cards.arrivals import HOUR, Arrivals
from capplan.cards.trace_csv import csv_names, csv_rows
from capplan.cards.trace_rows import blocks, decoded
from capplan.cards.trace_time import Clock, read_time
from capplan.errors import InputError

FloatArray = NDArray[np.float64]
MAX_RATES = 1_000_000
_TIMES = ("t_s", "time_s", "timestamp", "time")


def read_rates(path: Path) -> tuple[Arrivals, FloatArray]:
    """Mean and busiest-hour rate, and the mean rate of each whole hour.

    Parameters
    ----------
    path : CSV with a column of times, equally far apart (seconds, or dates), and one whose name begins with ``rate``
        or ends in ``rps`` [1/s]

    Returns
    -------
    arrivals, hourly : arrivals without any dispersion; rate of each hour [1/s]

    Raises
    ------
    InputError : no such columns, fewer than two rows, times not equally far apart, a rate that is none
    """
    try:
        times, rates = _columns(path)
    except InputError as error:
        raise error.located(file=str(path)) from None
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise InputError(f"cannot be read ({str(error)[:80]})", file=str(path)) from None
    step = float(times[1] - times[0])
    uneven = np.abs(np.diff(times) - step) > 0.01 * step
    if step <= 0 or uneven.any():
        place = 3 if step <= 0 else int(np.argmax(uneven)) + 3
        raise InputError("times must be equally far apart", key=f"line {place}", file=str(path))
    per_hour = max(1, round(HOUR / step))
    whole = len(rates) // per_hour
    hourly = rates[: whole * per_hour].reshape(whole, per_hour).mean(axis=1) if step <= HOUR else rates[:0]
    if rates.sum() <= 0:
        raise InputError("every rate is 0", file=str(path))
    busiest = float(hourly.max()) if len(hourly) >= 2 else None
    return Arrivals(float(rates.mean()), step * len(rates), (), (), busiest_rate=busiest), hourly


def _columns(path: Path) -> tuple[FloatArray, FloatArray]:
    stream = blocks(path)
    header, _, rest = next(stream, b"").partition(b"\n")
    names = csv_names(decoded(header, 1).rstrip("\r"))
    time = next((name for name in names if name.lower() in _TIMES), None)
    wanted = [name for name in names if name.lower().startswith("rate") or name.lower().endswith("rps")]
    if time is None or len(wanted) != 1:
        raise InputError(f"needs one column of times ({', '.join(_TIMES)}) and one of rates (rate..., ...rps)")
    found = list(_pairs([rest, *stream], names, time, wanted[0]))
    if len(found) < 2:
        raise InputError("needs two rows or more")
    stamps = np.array([stamp for stamp, _, _ in found])
    dates = any(dated for _, _, dated in found)
    clock = Clock(time, "s")
    return clock.seconds(stamps, dates, range(2, len(found) + 2)), np.array([rate for _, rate, _ in found])


def _pairs(parts: list[bytes], names: list[str], time: str, rate: str) -> Iterator[tuple[float, float, bool]]:
    for count, (number, cell) in enumerate(csv_rows(iter(parts), names)):
        if count == MAX_RATES:
            raise InputError(f"more than {MAX_RATES:,} rates", key=f"line {number}")
        text = cell(time)
        yield read_time(text, time, number), _rate(cell(rate), rate, number), ":" in str(text)


def _rate(cell: object, column: str, number: int) -> float:
    try:
        value = float(str(cell))
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1e9:
        raise InputError(f"{str(cell)[:40]!r} must be a rate, 0 or more", key=f"line {number}, {column}")
    return value
