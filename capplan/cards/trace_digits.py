"""Numbers and dates read from many places of a block of bytes at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
IntArray = NDArray[np.int64]

MAX_TOKENS = 10**9
_MOST_DIGITS = 10
_MOST_TIME_DIGITS = 17


def _digits(buffer: Bytes, start: IntArray, end: IntArray, most: int) -> tuple[IntArray, IntArray] | None:
    """Digits read as one number, and how many stand after a dot; None where a cell is anything else."""
    length = end - start
    if len(length) == 0 or length.min() < 1 or length.max() > most:
        return None
    value = np.zeros(len(start), dtype=np.int64)
    dot = np.full(len(start), -1)
    for position in range(int(length.max())):
        inside = position < length
        character = buffer[np.minimum(start + position, len(buffer) - 1)]
        digit = character - np.uint8(48)
        is_dot = inside & (character == 46)
        if (inside & (digit > 9) & ~is_dot).any() or (is_dot & (dot >= 0)).any():
            return None
        dot = np.where(is_dot, position, dot)
        value = np.where(inside & ~is_dot, value * 10 + digit, value)
    return value, np.where(dot >= 0, length - 1 - dot, 0)


def whole_numbers(buffer: Bytes, start: IntArray, end: IntArray) -> IntArray | None:
    """Token counts, or None where a cell is not plain digits in range."""
    found = _digits(buffer, start, end, _MOST_DIGITS)
    if found is None or (buffer[end - 1] == 46).any() or found[1].any() or found[0].max() > MAX_TOKENS:
        return None
    return found[0]


def times(buffer: Bytes, start: IntArray, end: IntArray) -> tuple[Any, bool]:
    """Time stamps and whether they are dates; None where one is neither a plain number nor a plain date."""
    if (end - start).min() >= 19 and (buffer[start + 4] == 45).all():
        return _dates(buffer, start, end), True
    found = _digits(buffer, start, end, _MOST_TIME_DIGITS)
    if found is None or (buffer[start] == 46).any():
        return None, False
    return found[0] / 10.0 ** found[1], False


def _dates(buffer: Bytes, start: IntArray, end: IntArray) -> Any:
    """Seconds since 1970 of ``2023-11-16 18:15:46.68`` with one and the same ending, such as ``+00:00``, or none."""
    marks = buffer[start[:, None] + np.array([4, 7, 10, 13, 16])]
    time_mark = (marks[:, 2] == 32) | (marks[:, 2] == 84)
    if not ((marks[:, [0, 1]] == 45).all() and time_mark.all() and (marks[:, [3, 4]] == 58).all()):
        return None
    places = ((0, 4), (5, 7), (8, 10), (11, 13), (14, 16), (17, 19))
    parts = [_digits(buffer, start + low, start + high, 4) for low, high in places]
    fraction = _fraction(buffer, start + 19, end)
    if fraction is None or any(part is None or part[1].any() for part in parts):
        return None
    year, month, day, hour, minute, second = (part[0] for part in parts if part is not None)
    if not (_between(year, 1970, 2200) and _between(month, 1, 12) and _between(day, 1, 31)):
        return None
    if not (_between(hour, 0, 23) and _between(minute, 0, 59) and _between(second, 0, 60)):
        return None
    months = (year - 1970).astype("datetime64[Y]").astype("datetime64[M]") + (month - 1)
    days = months.astype("datetime64[D]") + (day - 1)
    if (days.astype("datetime64[M]") != months).any():
        return None
    return days.astype(np.int64) * 86_400.0 + hour * 3600 + minute * 60 + second + fraction


def _between(values: IntArray, least: int, most: int) -> bool:
    return bool(values.min() >= least and values.max() <= most)


def _fraction(buffer: Bytes, start: IntArray, end: IntArray) -> Any:
    """What ``.6805900`` adds; None where digits are followed by anything but nothing, ``Z`` or ``+00:00``."""
    length = end - start
    tails = 0
    for tail in (b"+00:00", b"Z"):
        if length.min() >= len(tail):
            last = buffer[(end - len(tail))[:, None] + np.arange(len(tail))]
            tails = len(tail) if not tails and (last == np.frombuffer(tail, dtype=np.uint8)).all() else tails
    length = length - tails
    if length.max() == 0:
        return np.zeros(len(start))
    if length.min() < 2 or (buffer[start] != 46).any():
        return None
    found = _digits(buffer, start + 1, end - tails, 12)
    return None if found is None or found[1].any() else found[0] / 10.0 ** (length - 1)
