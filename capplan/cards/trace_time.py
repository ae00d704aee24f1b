"""Time stamps of a trace: dates or numbers, in seconds since the epoch or the start."""

from __future__ import annotations

import re
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capplan.cards.trace_columns import TIME_UNITS
from capplan.errors import InputError

FloatArray = NDArray[np.float64]

LONGEST_SPAN = 10 * 366 * 86_400.0
"""A trace of more than ten years [s] has its unit wrong."""
_EPOCHS = ((1e17, "ns"), (1e14, "us"), (1e11, "ms"), (1e8, "s"))
"""Numbers from here on are time since 1970 in that unit: 1e8 s is 1973."""
_DATE = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,12}))?\s?(Z|UTC|[+-]\d\d:?\d\d)?", re.ASCII
)
_NUMBER = re.compile(r"\d{1,20}(?:\.\d{0,20})?(?:[eE][+-]?\d{1,2})?", re.ASCII)


def read_time(cell: Any, column: str, number: int) -> float:
    """One time stamp: seconds since 1970 for a date, else the number as it is.

    Raises
    ------
    InputError : neither a date nor a number of zero or more
    """
    if isinstance(cell, str):
        text = cell.strip(" \t\r")
        if match := _DATE.fullmatch(text):
            return _date_seconds(match, column, number)
        cell = float(text) if _NUMBER.fullmatch(text) else cell
    if isinstance(cell, bool) or not isinstance(cell, (int, float)) or not 0 <= cell <= 1e20:
        problem = (f"{str(cell)[:40]!r} is no time stamp (a number of 0 or more, or a date such as "
                   "2024-05-10 00:00:00.5); to leave times out: --column timestamp=")  # fmt: skip
        raise InputError(problem, key=f"line {number}, {column}")
    return float(cell)


def _date_seconds(match: re.Match[str], column: str, number: int) -> float:
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    try:
        days = date(year, month, day).toordinal() - date(1970, 1, 1).toordinal()
    except ValueError:
        raise InputError(f"{match[0][:40]!r} is no date", key=f"line {number}, {column}") from None
    zone = match[8] or ""
    offset = 0
    if zone[:1] in ("+", "-"):
        offset = (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60) * (1 if zone[0] == "+" else -1)
    return days * 86_400 + hour * 3600 + minute * 60 + second + float(f"0.{match[7] or 0}") - offset


class Clock:
    """Time stamps in seconds; finds the unit of plain numbers and refuses what runs backwards."""

    def __init__(self, column: str, unit: str | None) -> None:
        self.column, self.unit = column, unit
        self.assumed = False
        self._dates: bool | None = None
        self._first: float | None = None
        self._last = -np.inf

    def seconds(self, stamps: FloatArray, dates: bool, numbers: Any) -> FloatArray:
        """Seconds since the first time stamp.

        Parameters
        ----------
        stamps : as read, in the order of the file
        dates : whether they were dates, so seconds already
        numbers : line of each, for errors

        Raises
        ------
        InputError : the unit changes, time runs backwards, or the span is more than ten years
        """
        if self._dates not in (None, dates):
            raise InputError("dates and plain numbers are mixed; use one", key=f"line {numbers[0]}, {self.column}")
        self._dates = dates
        if self.unit is None:
            self.unit = "s" if dates else self._found_unit(float(stamps[0]))
        times = stamps if dates else stamps * TIME_UNITS[self.unit]
        if self._first is None:
            self._first = float(times[0])
        times = times - self._first
        self._check(times, numbers)
        self._last = float(times[-1])
        return times

    def _found_unit(self, stamp: float) -> str:
        known = next((unit for least, unit in _EPOCHS if stamp >= least), None)
        self.assumed = known is None
        return known or "s"

    def _check(self, times: FloatArray, numbers: Any) -> None:
        before = np.concatenate([[self._last], times[:-1]])
        jumps = np.abs(times - np.maximum(before, 0.0)) > LONGEST_SPAN
        if jumps.any() or times[-1] > LONGEST_SPAN:
            problem = (f"is more than ten years from the line before or the first (in {self.unit}); are seconds and "
                       f"milliseconds mixed? Another unit: --column timestamp={self.column}:ms")  # fmt: skip
            self._refuse(numbers, jumps if jumps.any() else times > LONGEST_SPAN, problem)
        back = times < before
        if back.any():
            self._refuse(numbers, back, "is earlier than the line before; sort the file by time, or leave times out: "
                         "--column timestamp=")  # fmt: skip

    def _refuse(self, numbers: Any, wrong: Any, problem: str) -> None:
        raise InputError(problem, key=f"line {int(np.asarray(numbers)[np.argmax(wrong)])}, {self.column}")
