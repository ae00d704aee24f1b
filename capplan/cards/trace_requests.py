"""The requests of a trace, one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from capplan.cards.trace import is_csv, opened, told
from capplan.cards.trace_columns import TIME_COLUMNS, find_columns
from capplan.cards.trace_csv import csv_batches
from capplan.cards.trace_rows import json_batches
from capplan.cards.trace_time import Clock
from capplan.errors import InputError


class TraceRequests(NamedTuple):
    """Arrival times [s], prompt, output and reasoning tokens of the requests of a trace, in its order.

    ``reasoning`` is part of the output; None where the trace does not tell it.
    """

    times: NDArray[np.float64]
    prompts: NDArray[np.int64]
    outputs: NDArray[np.int64]
    reasoning: NDArray[np.int64] | None = None


def load_requests(path: Path, columns: Mapping[str, str] | None = None) -> TraceRequests:
    """The requests of a trace that got an answer.

    Parameters
    ----------
    path : CSV or JSON lines, plain or gzip
    columns : quantity -> name of its column, where it has none of the known names

    Raises
    ------
    InputError : as :func:`capplan.cards.trace.load_trace`; no time stamps, or fewer than two different ones
    """
    try:
        parts = list(_batches(path, columns or {}))
        if not parts:
            raise InputError("holds no request")
        columns_read: Any = [None if part[0] is None else np.concatenate(part) for part in zip(*parts, strict=True)]
        found = TraceRequests(*columns_read)
        if len(found.times) < 2 or found.times.min() == found.times.max():
            raise InputError("needs at least two different arrival times", key="timestamp")
    except Exception as error:
        raise told(error, path) from None
    return found


def _batches(path: Path, columns: Mapping[str, str]) -> Iterator[TraceRequests]:
    names, stream = opened(path)
    found = find_columns(names, columns)
    if found.timestamp is None:
        raise InputError(f"no column of arrival times; known: {', '.join(TIME_COLUMNS)}")
    clock, found = Clock(found.timestamp, found.time_unit), found._replace(hashes=None)
    for batch in csv_batches(stream, names, found) if is_csv(path) else json_batches(stream, found):
        if batch.stamps is not None:
            times = np.asarray(clock.seconds(batch.stamps, batch.dates, batch.lines), float)
            answered = batch.outputs > 0
            thoughts = None if batch.reasoning is None else batch.reasoning[answered]
            yield TraceRequests(times[answered], batch.prompts[answered], batch.outputs[answered], thoughts)
