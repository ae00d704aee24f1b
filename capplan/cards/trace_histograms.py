"""Published histograms of lengths (``field,value,expected_requests``) in the place of a trace."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capplan.errors import InputError, UnknownNameError
from capplan.formulas.empirical import Empirical
from capplan.formulas.joint_cells import compact_sample

FloatArray = NDArray[np.float64]
Pair = tuple[FloatArray, FloatArray]
HISTOGRAM_COLUMNS = {"field", "value", "expected_requests"}
INDEPENDENT = "a file of two histograms: prompt and output are taken as independent"
SHARE_INDEPENDENT = "reason_ratio is taken as independent of the output it is a share of"
_GROUPS, _REASONING_GROUPS = 60, 200

_DECIMAL = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,20})?(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
_FIELDS = ("input_tokens", "output_tokens", "reason_ratio")


class HistogramCounts:
    """Two histograms in the place of counted pairs: prompt and output independent.

    Parameters
    ----------
    inputs, outputs : tokens -> requests
    reasoning : reasoning tokens and the requests of each; None where nothing is said of them
    """

    def __init__(self, inputs: dict[float, float], outputs: dict[float, float], reasoning: Pair | None = None) -> None:
        self.inputs, self.outputs = _Counts(inputs), _Counts(outputs)
        self._reasoning = reasoning

    def reasoning_values(self) -> Pair | None:
        """Reasoning tokens and the requests of each; None where nothing is said of them."""
        return self._reasoning

    @property
    def reasoning_share(self) -> float | None:
        """Reasoning tokens over output tokens; None where nothing is said of them [1]."""
        if self._reasoning is None:
            return None
        thought, written = (float(np.average(v, weights=w)) for v, w in (self._reasoning, self.outputs.values()))
        return thought / written

    @property
    def requests(self) -> int:
        """Requests the output histogram stands for, rounded."""
        return round(float(self.outputs.values()[1].sum()))

    def rows(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Prompts, outputs and weights of all pairs of some points of either histogram, which keep its moments."""
        prompts, p_weights = compact_sample(*self.inputs.values(), _GROUPS)
        outputs, d_weights = compact_sample(*self.outputs.values(), _GROUPS)
        return (
            np.repeat(prompts, len(outputs)),
            np.tile(outputs, len(prompts)),
            np.outer(p_weights / p_weights.sum(), d_weights).ravel(),
        )

    def laws(self) -> tuple[Empirical, ...]:
        """The laws of prompt and output tokens."""
        return tuple(Empirical(dict(zip(*one.values(), strict=True))) for one in (self.inputs, self.outputs))


class _Counts:
    """Lengths and how many requests have each."""

    def __init__(self, histogram: dict[float, float]) -> None:
        self._values = np.array(sorted(length for length, requests in histogram.items() if requests > 0))
        self._weights = np.array([histogram[length] for length in self._values.tolist()])

    def values(self) -> Pair:
        """Lengths [token], increasing, and requests of each."""
        return self._values, self._weights


def reasoning_of(outputs: dict[float, float], ratios: dict[float, float]) -> Pair:
    """Reasoning tokens and the requests of each, where the share of an output is independent of its length.

    Parameters
    ----------
    outputs : output tokens -> requests
    ratios : share of an output that is reasoning -> requests
    """
    lengths, requests = compact_sample(*_Counts(outputs).values(), _GROUPS)
    shares, weights = _Counts(ratios).values()
    tokens, counts = np.outer(lengths, shares), np.outer(requests, weights / weights.sum())
    return compact_sample(tokens.ravel(), counts.ravel(), _REASONING_GROUPS)


def read_histograms(rows: Iterator[tuple[int, Callable[[str], Any]]]) -> HistogramCounts:
    """The histograms of a file: prompts, outputs and, where it is there, the share of reasoning.

    Raises
    ------
    InputError : an unknown field, a value twice, no amount, a share above 1, or prompts or outputs missing
    """
    found = _histograms(rows)
    if not any(found["input_tokens"].values()) or not any(found["output_tokens"].values()):
        raise InputError("needs the fields input_tokens and output_tokens", key="field")
    if min(found["output_tokens"]) < 1:
        raise InputError("output_tokens below 1; leave requests without output out", key="field")
    outputs, ratios = found["output_tokens"], found["reason_ratio"]
    if max(ratios, default=0.0) > 1:
        raise InputError(f"reason_ratio {max(ratios):g} must be a share of the output, at most 1", key="field")
    reasoning = reasoning_of(outputs, ratios) if any(ratios.values()) else None
    return HistogramCounts(found["input_tokens"], outputs, reasoning)


def _histograms(rows: Iterator[tuple[int, Callable[[str], Any]]]) -> dict[str, dict[float, float]]:
    found: dict[str, dict[float, float]] = {name: {} for name in _FIELDS}
    for number, cell in rows:
        name = cell("field")
        if not isinstance(name, str) or name not in found:
            raise UnknownNameError.among(str(name), found, "field", key=f"line {number}, field")
        length = _amount(cell("value"), "value", number)
        if length in found[name]:
            raise InputError(f"{name} {length:g} occurs twice", key=f"line {number}, value")
        found[name][length] = _amount(cell("expected_requests"), "expected_requests", number)
    return found


def _amount(cell: Any, column: str, number: int) -> float:
    """A number of zero or more."""
    if isinstance(cell, str) and (match := _DECIMAL.fullmatch(cell.strip(" \t\r"))):
        cell = float(match[0])
    if isinstance(cell, bool) or not isinstance(cell, (int, float)) or not 0 <= cell <= 1e9:
        raise InputError(f"{str(cell)[:40]!r} must be a number, 0 or more", key=f"line {number}, {column}")
    return float(cell)
