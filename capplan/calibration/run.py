"""One benchmark result as the fit sees it, and the numbers of a record read with care."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from capplan.errors import InputError, UnitError, shown

MOST_TOKENS = 1e9
MOST_CONCURRENCY = 1e6
_LATENCY = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}


@dataclass(frozen=True)
class Run:
    """Means over the requests of one benchmark run.

    Parameters
    ----------
    file, line : where it was found; the line only where a file holds several results
    tool : whose format the file has
    prompt_tokens, output_tokens : means of a request [tokens]
    concurrency : requests in flight in the whole instance [1]
    ttft_seconds, tpot_seconds : means over requests [s]
    closed : a fixed number of requests in flight; otherwise their mean number by Little's law, and the TTFT is that of
        random arrivals
    model : the name the engine serves it under; None where the file does not say
    tp, dp, ep : layout, where the file says
    """

    file: str
    line: int | None
    tool: str
    prompt_tokens: float
    output_tokens: float
    concurrency: float
    ttft_seconds: float
    tpot_seconds: float
    closed: bool = True
    model: str | None = None
    tp: int | None = None
    dp: int | None = None
    ep: int | None = None

    def __post_init__(self) -> None:
        for name, least, most in _RANGES:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
                problem = f"{shown(value)} must be a number from {least:g} to {most:g}"
                raise InputError(problem, key=name, file=self.place)

    @property
    def place(self) -> str:
        """File and line."""
        return self.file if self.line is None else f"{self.file}:{self.line}"

    @property
    def decode_steps(self) -> float:
        """Steps of one request [1]."""
        return self.output_tokens - 1

    @property
    def request_seconds(self) -> float:
        """Mean time of a request, TTFT + o TPOT [s]."""
        return self.ttft_seconds + self.decode_steps * self.tpot_seconds


_RANGES = (
    ("prompt_tokens", 1.0, MOST_TOKENS),
    ("output_tokens", 2.0, MOST_TOKENS),
    ("concurrency", 1.0, MOST_CONCURRENCY),
    ("ttft_seconds", 1e-6, 1e6),
    ("tpot_seconds", 1e-7, 1e4),
)


@dataclass(frozen=True)
class SetAside:
    """A result the fit does not use, and why."""

    file: str
    line: int | None
    reason: str

    @property
    def place(self) -> str:
        """File and line."""
        return self.file if self.line is None else f"{self.file}:{self.line}"


def number(record: Mapping[str, Any], key: str, file: str, *, above: bool = True, most: float = 1e15) -> float:
    """A finite number of a record, above zero or not below it.

    Raises
    ------
    InputError : missing, no number, NaN, infinite or out of range
    """
    value = record.get(key)
    if value is None:
        raise InputError("is missing", key=key, file=file)
    return plain_number(value, key, file, above=above, most=most)


def plain_number(value: object, key: str, file: str, *, above: bool = True, most: float = 1e15) -> float:
    """The value as a finite float, above zero or not below it.

    Raises
    ------
    InputError : no number, NaN, infinite or out of range
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= most and (value or not above):
        return float(value)
    bound = "above zero" if above else "zero or more"
    raise InputError(f"{shown(value)} must be a finite number, {bound} and at most {most:g}", key=key, file=file)


def seconds_per(unit: str, key: str, file: str) -> float:
    """Seconds of a unit of latency.

    Raises
    ------
    UnitError : no unit of time
    """
    if unit not in _LATENCY:
        raise UnitError(f"unit {shown(unit)} is no unit of latency; known: {', '.join(_LATENCY)}", key=key, file=file)
    return _LATENCY[unit]


def text(value: object) -> str | None:
    """A short text of a record; None for anything else."""
    return value[:200] if isinstance(value, str) and value else None
