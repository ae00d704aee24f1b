"""ServeGen's published clients (``chunk-N-dataset.json`` and the rates in ``chunk-N-trace.csv`` beside it)."""

from __future__ import annotations

import csv
import re
from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from capplan.cards.store import no_duplicates, read_bytes, read_text
from capplan.cards.trace_histograms import HistogramCounts
from capplan.errors import InputError

ENDING = "-dataset.json"
MAX_DATASET_BYTES = 200_000_000
_PAIR = re.compile(r"\s*(\d{1,9})(?:\.0*)?\s*:\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d{1,3})?)\s*", re.ASCII)


def read_dataset(path: Path) -> tuple[HistogramCounts, str]:
    """The lengths of one client over all its windows, and a remark on how they are weighted.

    A window counts with the sum of its rates in the trace file beside the dataset; all alike where there is none.

    Raises
    ------
    InputError : no such dataset, or one that holds no input or output tokens
    """
    windows = _windows(path)
    weights, remark = _weights(path, sorted(windows))
    found: dict[str, dict[float, float]] = {"input_tokens": {}, "output_tokens": {}}
    for start, fields in windows.items():
        for field, mixed in found.items():
            for length, share in _histogram(fields.get(field), f"{start:g}.{field}").items():
                mixed[length] = mixed.get(length, 0.0) + weights[start] * share
    found["output_tokens"].pop(0.0, None)
    if not all(sum(mixed.values()) > 0 for mixed in found.values()):
        raise InputError("holds no input_tokens or no output_tokens of windows with a rate")
    return HistogramCounts(found["input_tokens"], found["output_tokens"]), remark


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


def _histogram(cell: Any, key: str) -> dict[float, float]:
    """``"{4: 0.1, 5: 0.9}"``, as written or as an object, scaled to sum 1."""
    if cell is None:
        return {}
    if isinstance(cell, dict):
        cell = ", ".join(f"{length}: {share}" for length, share in cell.items())
    matches = [_PAIR.fullmatch(part) for part in str(cell).strip("{} \n").split(",") if part.strip()]
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
