"""Amounts as people write them: ``80GiB``, ``3.35TB/s``, ``50ms``, ``20/s``, ``8k`` tokens, ``90%``.

Units are never guessed: seconds, bytes, bandwidths and rates need one; a bare number is taken only for a token
count, a count, a share or money. ``k`` and ``M`` of a token count are binary (``8k`` is 8,192), every other prefix
is decimal, and bytes say GB or GiB.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from capplan.errors import UnitError, shown

Amount = str | int | float

_NUMBER = re.compile(r"\s*([+-]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*", re.ASCII)
_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}

SECONDS: Mapping[str, float] = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0,
}  # fmt: skip
BYTES: Mapping[str, float] = {p + "B": f for p, f in {**_DECIMAL, **_BINARY}.items()}
BANDWIDTH: Mapping[str, float] = {
    **{unit + "/s": factor for unit, factor in BYTES.items()},
    **{prefix + "b/s": factor / 8 for prefix, factor in _DECIMAL.items()},
    **{prefix + "bps": factor / 8 for prefix, factor in _DECIMAL.items()},
}
FLOPS: Mapping[str, float] = {
    **{p + "FLOP/s": f for p, f in _DECIMAL.items()},
    **{p + "FLOPS": f for p, f in _DECIMAL.items()},
}
RATE: Mapping[str, float] = {
    "/s": 1.0, "/sec": 1.0, "/min": 1 / 60, "/h": 1 / 3600, "/d": 1 / 86400, "req/s": 1.0, "req/min": 1 / 60,
    "req/h": 1 / 3600, "rps": 1.0, "k/s": 1e3,
}  # fmt: skip
TOKENS: Mapping[str, float] = {
    "": 1.0, "k": 1024.0, "K": 1024.0, "M": 1024.0**2, "tok": 1.0, "tokens": 1.0, "token": 1.0, "ktok": 1024.0,
}  # fmt: skip
COUNT: Mapping[str, float] = {"": 1.0}
SHARE: Mapping[str, float] = {"": 1.0, "%": 0.01}
MONEY: Mapping[str, float] = {"": 1.0, "$": 1.0, "$/h": 1.0, "USD": 1.0, "USD/h": 1.0}


def _parser(what: str, units: Mapping[str, float], example: str) -> Callable[..., float]:
    def parse(amount: Amount, *, key: str | None = None, positive: bool = False) -> float:
        value = _parse(amount, units, what, example, key)
        if value < 0 or (positive and value == 0):
            bound = "above zero" if positive else "zero or more"
            raise UnitError(f"{shown(amount)} is no {what}: it must be {bound}", key=key)
        return value

    parse.__doc__ = f"""Read a {what} such as ``{example}`` into base units.

    Parameters: ``amount`` as written; ``key`` named in the error; ``positive`` refuses zero.
    Raises :class:`~capplan.errors.UnitError` on a missing or foreign unit, a negative, NaN or infinite number.
    """
    return parse


def _parse(amount: Amount, units: Mapping[str, float], what: str, example: str, key: str | None) -> float:
    if isinstance(amount, bool) or not isinstance(amount, (str, int, float)):
        raise UnitError(f"{shown(amount)} is no {what}; write for example {example!r}", key=key)
    number, unit = _split(amount, what, example, key)
    if unit not in units:
        allowed = ", ".join(u for u in units if u)
        problem = f"{shown(amount)} has no unit" if not unit else f"unit {shown(unit)} does not fit a {what}"
        raise UnitError(f"{problem}; allowed: {allowed}, for example {example!r}", key=key)
    return number * units[unit]


def _split(amount: Amount, what: str, example: str, key: str | None) -> tuple[float, str]:
    text = amount if isinstance(amount, str) else shown(amount)
    text = text if len(text) < 100 else "?"
    if isinstance(amount, float) and not math.isfinite(amount):
        raise UnitError(f"{amount} is no {what}; write for example {example!r}", key=key)
    if text.startswith("$"):
        text = text[1:] + "$"
    match = _NUMBER.fullmatch(text)
    if match is None or not math.isfinite(value := float(match[1].replace(",", "").replace("_", ""))):
        raise UnitError(f"{shown(amount)} is no {what}; write for example {example!r}", key=key)
    return value, match[2]


parse_seconds = _parser("time", SECONDS, "50ms")
parse_bytes = _parser("size in bytes", BYTES, "80GiB")
parse_bandwidth = _parser("bandwidth", BANDWIDTH, "3.35TB/s")
parse_flops = _parser("arithmetic rate", FLOPS, "989TFLOP/s")
parse_rate = _parser("rate", RATE, "20/s")
parse_tokens = _parser("token count", TOKENS, "8k")
parse_count = _parser("count", COUNT, "64")
parse_share = _parser("share", SHARE, "0.99")
parse_money = _parser("price in dollars", MONEY, "2.0")


def format_seconds(seconds: float) -> str:
    """``0.0123`` becomes ``12.3 ms``; three significant digits.

    >>> format_seconds(0.0123), format_seconds(90), format_seconds(4e-6)
    ('12.3 ms', '90 s', '4 us')
    """
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(seconds) >= factor:
            return f"{seconds / factor:.3g} {unit}" if seconds < 1000 else f"{seconds:,.0f} s"
    return f"{seconds * 1e9:.3g} ns"


def format_seconds_range(low: float, high: float) -> str:
    """Two times, the unit said once where it is the same.

    >>> format_seconds_range(0.0187, 0.0217), format_seconds_range(9e-4, 0.0012)
    ('18.7-21.7 ms', '900 us - 1.2 ms')
    """
    first, last = format_seconds(low), format_seconds(high)
    number, _, unit = first.partition(" ")
    return f"{number}-{last}" if last.endswith(f" {unit}") else f"{first} - {last}"


def format_bytes(size: float) -> str:
    """``2**33`` becomes ``8.00 GiB``; binary units, as memory tools print them.

    >>> format_bytes(8 * 2**30), format_bytes(70272)
    ('8.00 GiB', '68.62 KiB')
    """
    for factor, unit in ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB")):
        if abs(size) >= factor:
            return f"{size / factor:,.2f} {unit}"
    return f"{size:,.0f} B"


def format_si(value: float, unit: str) -> str:
    """A decimal prefix and three significant digits.

    >>> format_si(4.4e12, "B/s")
    '4.4 TB/s'
    """
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"
