"""ServeGen's published clients (``chunk-N-dataset.json`` and the rates in ``chunk-N-trace.csv`` beside it)."""

from __future__ import annotations

import csv
import re
from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from capplan.cards.store import no_duplicates, read_bytes, read_text
from capplan.cards.trace_histograms import HistogramCounts, Pair, reasoning_of
from capplan.errors import InputError

ENDING = "-dataset.json"
MAX_DATASET_BYTES = 200_000_000
_SHARE = r"\s*:\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d{1,3})?)\s*"
_PAIR = re.compile(r"\s*(\d{1,9})(?:\.0*)?" + _SHARE, re.ASCII)
_RATIO_PAIR = re.compile(r"\s*(\d(?:\.\d{0,20})?(?:[eE]-\d{1,3})?)" + _SHARE, re.ASCII)


def read_dataset(path: Path) -> tuple[HistogramCounts, tuple[str, ...]]:
    """The lengths of one client over all its windows, and remarks on how they are weighted.

    A window counts with the sum of its rates in the trace file beside the dataset; all alike where there is none.

    Raises
    ------
    InputError : no such dataset, or one that holds no input or output tokens
    """
    windows = _windows(path)
    weights, remark = _weights(path, sorted(windows))
    found: dict[str, dict[float, float]] = {"input_tokens": {}, "output_tokens": {}}
    thoughts: list[Pair | None] = []
    for start, fields in windows.items():
        read = {field: _histogram(fields.get(field), f"{start:g}.{field}") for field in found}
        ratios = _histogram(fields.get("reason_ratio"), f"{start:g}.reason_ratio", _RATIO_PAIR)
        for field, mixed in found.items():
            for length, share in read[field].items():
                mixed[length] = mixed.get(length, 0.0) + weights[start] * share
        read["output_tokens"].pop(0.0, None)
        if weights[start] and read["output_tokens"]:
            thoughts.append(_reasoning(read["output_tokens"], ratios, weights[start], start))
    found["output_tokens"].pop(0.0, None)
    if not all(sum(mixed.values()) > 0 for mixed in found.values()):
        raise InputError("holds no input_tokens or no output_tokens of windows with a rate")
    reasoning, told = _reasoning_of_all(thoughts)
    return HistogramCounts(found["input_tokens"], found["output_tokens"], reasoning), (remark, *told)


def _reasoning(outputs: dict[float, float], ratios: dict[float, float], weight: float, start: float) -> Pair | None:
    """Reasoning tokens and weights of one window; None where it does not say which share of outputs they are."""
    if not ratios:
        return None
    if max(ratios) > 1:
        raise InputError(f"{max(ratios):g} must be a share of the output, at most 1", key=f"{start:g}.reason_ratio")
    tokens, counts = reasoning_of(outputs, ratios)
    return tokens, counts * weight


def _reasoning_of_all(thoughts: list[Pair | None]) -> tuple[Pair | None, tuple[str, ...]]:
    """Reasoning tokens over all windows; None, and why, where some windows do not tell them."""
    known = [one for one in thoughts if one is not None]
    if not known:
        return None, ()
    if len(known) < len(thoughts):
        return None, (f"reason_ratio is left out: {len(thoughts) - len(known)} of {len(thoughts)} windows lack it",)
    tokens, counts = (np.concatenate(column) for column in zip(*known, strict=True))
    return (tokens, counts), ()


def _windows(path: Path) -> dict[float, Mapping[str, Any]]:
    import json

    text = read_text(path, MAX_DATASET_BYTES)
    try:
        data = json.loads(text, object_pairs_hook=no_duplicates)
        windows = {float(start): fields for start, fields in data.items()}
    except InputError:
        raise
    except (AttributeError, ValueError, RecursionError):
        raise InputError("must be a JSON object: start of a window [s] -> histograms") from None
    if not windows or not all(isinstance(fields, dict) for fields in windows.values()):
        raise InputError("must be a JSON object: start of a window [s] -> histograms")
    return windows


def _histogram(cell: Any, key: str, pair: re.Pattern[str] = _PAIR) -> dict[float, float]:
    """``"{4: 0.1, 5: 0.9}"``, as written or as an object, scaled to sum 1."""
    if cell is None:
        return {}
    if isinstance(cell, dict):
        cell = ", ".join(f"{length}: {share}" for length, share in cell.items())
    matches = [pair.fullmatch(part) for part in str(cell).strip("{} \n").split(",") if part.strip()]
    if not all(matches):
        raise InputError("must be a histogram {length: share, ...}", key=key[:80])
    found = {float(match[1]): float(match[2]) for match in matches if match is not None}
    total = sum(found.values())
    return {length: share / total for length, share in found.items()} if total > 0 else {}


def _weights(path: Path, starts: list[float]) -> tuple[dict[float, float], str]:
    """Sum of the rates inside each window."""
    beside = path.with_name(path.name[: -len(ENDING)] + "-trace.csv")
    if not beside.is_file():
        return dict.fromkeys(starts, 1.0), f"no {beside.name[:80]} beside it: all its windows count alike"
    sums = dict.fromkeys(starts, 0.0)
    text = read_bytes(beside, MAX_DATASET_BYTES, "which no rate file is").decode("utf-8", errors="replace")
    for number, row in enumerate(csv.reader(text.splitlines()), start=1):
        try:
            time, rate = float(row[0]), float(row[1])
        except (IndexError, ValueError):
            raise InputError("must begin with a time and a rate", key=f"line {number}", file=str(beside)) from None
        if not (time >= 0 and 0 <= rate <= 1e9):
            raise InputError("time and rate must be 0 or more", key=f"line {number}", file=str(beside))
        sums[starts[max(0, bisect_right(starts, time) - 1)]] += rate
    return sums, f"windows weighted by the rates of {beside.name[:80]}"
