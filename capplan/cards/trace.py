"""Traces of requests: CSV or JSON lines, one request a line, plain or gzip, read once in bounded memory."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from capplan.cards.arrivals import ArrivalCounts, Arrivals, Hour
from capplan.cards.prefix_reuse import BLOCK_TOKENS, CacheHits, PrefixReuse
from capplan.cards.trace_columns import INPUT_COLUMNS, OUTPUT_COLUMNS, REASONING_COLUMNS, Columns, find_columns
from capplan.cards.trace_counts import JointCounts
from capplan.cards.trace_csv import csv_batches, csv_names, csv_rows
from capplan.cards.trace_histograms import (
    HISTOGRAM_COLUMNS,
    INDEPENDENT,
    SHARE_INDEPENDENT,
    HistogramCounts,
    read_histograms,
)
from capplan.cards.trace_rows import Batch, blocks, decoded, json_batches, json_names
from capplan.cards.trace_servegen import ENDING, read_dataset
from capplan.cards.trace_time import Clock
from capplan.cards.workload import Workload
from capplan.errors import InputError
from capplan.formulas.empirical import Empirical

__all__ = ["INPUT_COLUMNS", "OUTPUT_COLUMNS", "REASONING_COLUMNS", "Trace", "load_trace", "read_trace"]

MAX_CLASSES = 50


@dataclass(frozen=True, eq=False)
class Trace:
    """What one reading of a trace gathers.

    Parameters
    ----------
    path : the file
    columns : which column held what
    classes : name to the counts of its requests; one class without a name where there is no class column
    reasoning_share : reasoning tokens over output tokens; None without such a column [1]
    failed : requests without output, left out of all lengths and arrivals
    arrivals : None where the trace has no times, or all at once
    hours : whole hours; empty below two
    hits : prefix-cache hits by size; empty without block hashes
    block_tokens : tokens of a hashed block [token]
    notes : what a reader should know of how it was read
    """

    path: Path
    columns: Columns
    classes: Mapping[str, JointCounts | HistogramCounts]
    reasoning_share: float | None
    failed: int
    arrivals: Arrivals | None
    hours: tuple[Hour, ...]
    hits: tuple[CacheHits, ...]
    block_tokens: int
    notes: tuple[str, ...]

    @property
    def requests(self) -> int:
        """Requests with output."""
        return sum(counts.requests for counts in self.classes.values())

    @property
    def stem(self) -> str:
        """Name of the file without its endings."""
        return self.path.name.removesuffix(".gz").rsplit(".", 1)[0][:80]

    def workload(self) -> Workload:
        """The joint law of prompt and output tokens, and the arrivals."""
        counted = list(self.classes.values())
        laws: dict[str, Any] = {"joint": None}
        if isinstance(counted[0], HistogramCounts):
            laws["input"], laws["output"] = counted[0].laws()
        else:
            laws["joint"] = np.concatenate([counts.sample() for counts in counted if isinstance(counts, JointCounts)])
        return Workload(
            **laws,
            name=self.stem,
            reasoning=self._reasoning(),
            file=str(self.path),
            arrivals=self.arrivals,
            remarks=self.notes,
        )

    def _reasoning(self) -> Empirical | None:
        """The law of the reasoning tokens of all requests; None without such a column."""
        counted = [one.reasoning_values() for one in self.classes.values()]
        known = [one for one in counted if one is not None]
        if not known:
            return None
        values, requests = (np.concatenate(column) for column in zip(*known, strict=True))
        return Empirical(values, requests)


def load_trace(path: Path, columns: Mapping[str, str] | None = None) -> Workload:
    """The joint law of prompt and output tokens of a trace, and its arrivals.

    Columns are known by the names in :mod:`capplan.cards.trace_columns`, others are mapped by ``columns``, quantity ->
    name. A reasoning column gives the law of the reasoning tokens. A histogram file with the columns
    ``field,value,expected_requests`` gives two independent laws.

    Raises
    ------
    InputError : no such columns or two for the same, a line that is no request, an empty or oversized file
    """
    return read_trace(path, columns).workload()


def read_trace(
    path: Path,
    columns: Mapping[str, str] | None = None,
    *,
    caches: PrefixReuse | None = None,
    windows: Iterable[float] = (),
) -> Trace:
    """Everything :class:`Trace` holds, in one pass.

    Parameters
    ----------
    path : CSV or JSON lines, plain or gzip
    columns : quantity -> name of its column, where it has none of the known names
    caches : prefix caches to play the block hashes through
    windows : further windows at which to take the dispersion [s]

    Raises
    ------
    InputError : as :func:`load_trace`
    """
    try:
        if path.name.lower().endswith(ENDING):
            counts, remarks = read_dataset(path)
            return _of_histograms(path, counts, *remarks)
        names, stream = opened(path)
        if set(names) >= HISTOGRAM_COLUMNS:
            return _of_histograms(path, read_histograms(csv_rows(stream, names)))
        return _gathered(path, names, stream, find_columns(names, columns or {}), caches=caches, windows=windows)
    except Exception as error:
        raise told(error, path) from None


def _of_histograms(path: Path, counts: HistogramCounts, *remarks: str) -> Trace:
    columns = Columns(None, "input_tokens", "output_tokens", None, None, None, None)
    notes = (INDEPENDENT, *([] if counts.reasoning_values() is None else [SHARE_INDEPENDENT]), *remarks)
    return Trace(path, columns, {"": counts}, counts.reasoning_share, 0, None, (), (), BLOCK_TOKENS, notes)


def told(error: Exception, path: Path) -> Exception:
    """Bad input as one line that names the file; anything else as it is."""
    if isinstance(error, InputError):
        return error.located(file=str(path))
    if isinstance(error, (OSError, EOFError, UnicodeDecodeError, zlib.error, csv.Error)):
        return InputError(f"cannot be read ({str(error)[:80]})", file=str(path))
    return error


def is_csv(path: Path) -> bool:
    """Whether the name of a file says CSV."""
    return path.name.lower().removesuffix(".gz").endswith(".csv")


def opened(path: Path) -> tuple[list[str], Iterator[bytes]]:
    """Names of the columns, and the blocks that follow the header."""
    stream = blocks(path)
    first = next(stream, b"")
    if not is_csv(path):
        while first and not (names := json_names(first)):
            first = next(stream, b"")
        if not first:
            raise InputError("holds no request")
        return names, chain([first], stream)
    header, _, rest = first.partition(b"\n")
    names = csv_names(decoded(header, 1).rstrip("\r"))
    if not any(names):
        raise InputError("holds no request")
    return names, chain([rest] if rest else [], stream)


def _gathered(
    path: Path,
    names: list[str],
    stream: Iterator[bytes],
    columns: Columns,
    *,
    caches: PrefixReuse | None,
    windows: Iterable[float],
) -> Trace:
    if caches is None:
        columns = columns._replace(hashes=None)
    batches = csv_batches(stream, names, columns) if is_csv(path) else json_batches(stream, columns)
    totals = _Totals(columns, caches)
    for batch in batches:
        totals.add(batch)
    if not totals.rows:
        raise InputError("holds no request")
    if totals.failed == totals.rows:
        raise InputError("holds no request with 1 or more output tokens", key=columns.output)
    arrivals = totals.arrivals.arrivals(windows)
    return Trace(
        path=path,
        columns=columns,
        classes=totals.classes,
        reasoning_share=totals.reasoning_share,
        failed=totals.failed,
        arrivals=arrivals,
        hours=totals.arrivals.hours(),
        hits=() if caches is None else caches.hits(),
        block_tokens=BLOCK_TOKENS if caches is None else caches.block_tokens,
        notes=tuple(totals.notes(arrivals)),
    )


class _Totals:
    """Sums over the batches of a trace."""

    def __init__(self, columns: Columns, caches: PrefixReuse | None) -> None:
        self.columns, self.caches = columns, caches
        self.classes: dict[str, JointCounts] = {}
        self.arrivals = ArrivalCounts()
        self.clock = None if columns.timestamp is None else Clock(columns.timestamp, columns.time_unit)
        self.rows = self.failed = 0
        self._thought = self._written = 0

    def add(self, batch: Batch) -> None:
        """Count a batch."""
        self.rows += len(batch.prompts)
        answered = batch.outputs > 0
        self.failed += int((~answered).sum())
        times = None
        if self.clock is not None and batch.stamps is not None:
            times = self.clock.seconds(batch.stamps, batch.dates, batch.lines)
        if not answered.any():
            return
        prompts, outputs = batch.prompts[answered], batch.outputs[answered]
        if times is not None:
            self.arrivals.add(times[answered], prompts, outputs)
        thoughts = None if batch.reasoning is None else batch.reasoning[answered]
        if thoughts is not None:
            self._thought += int(thoughts.sum())
            self._written += int(outputs.sum())
        if self.caches is not None and batch.hashes is not None:
            kept = [one for one, good in zip(batch.hashes, answered.tolist(), strict=True) if good]
            self._check_blocks(kept, prompts, batch.lines[answered])
            self.caches.add(kept, prompts.tolist())
        self._by_class(self._labels(batch, answered), batch.lines[answered], (prompts, outputs, thoughts))

    def _check_blocks(self, hashes: list[Any], prompts: Any, lines: Any) -> None:
        """The hashes of a prompt, where it has any, are one a block of it, give or take one."""
        assert self.caches is not None
        size, number = self.caches.block_tokens, np.array([len(one) for one in hashes])
        wrong = (number > 0) & (np.abs(number - -(-prompts // size)) > 1)
        if wrong.any():
            first = int(np.argmax(wrong))
            problem = (f"{number[first]} block hashes do not fit a prompt of {prompts[first]:,} tokens in blocks of "
                       f"{size}; give the tokens of a block with --block-tokens")  # fmt: skip
            raise InputError(problem, key=f"line {int(lines[first])}, {self.columns.hashes}")

    def _by_class(self, labels: Any, lines: Any, tokens: tuple[Any, Any, Any]) -> None:
        """Count prompts, outputs and reasoning tokens (None where they are not told) under the labels of the rows."""
        if labels is None:
            self.classes.setdefault("", JointCounts()).add(*tokens)
            return
        names, first, index = np.unique(labels, return_index=True, return_inverse=True)
        for number in np.argsort(first).tolist():
            name = str(names[number])
            if name not in self.classes and len(self.classes) == MAX_CLASSES:
                key = f"line {int(lines[first[number]])}, {self.columns.group}"
                raise InputError(f"more than {MAX_CLASSES} classes; give a column with fewer values", key=key)
            chosen = index == number
            members: Any = [None if one is None else one[chosen] for one in tokens]
            self.classes.setdefault(name, JointCounts()).add(*members)

    @staticmethod
    def _labels(batch: Batch, answered: Any) -> Any:
        if batch.groups is not None:
            return np.array(batch.groups)[answered]
        if batch.reasoning is not None:
            return np.where(batch.reasoning[answered] > 0, "reasoning", "no reasoning")
        return None

    @property
    def reasoning_share(self) -> float | None:
        """Reasoning tokens over output tokens [1]."""
        return self._thought / self._written if self._written else None

    def notes(self, arrivals: Arrivals | None) -> Iterator[str]:
        """Remarks on what was found."""
        if self.failed:
            yield f"{self.failed:,} of {self.rows:,} requests have no output (failed): left out"
        if self.clock is not None and self.clock.assumed:
            yield (f"time stamps in column {self.clock.column!r} taken as seconds; another unit: "
                   f"--column timestamp={self.clock.column}:ms")  # fmt: skip
        if arrivals is not None and arrivals.step_seconds >= 0.1:
            yield (f"time stamps are rounded to {arrivals.step_seconds:g} s: dispersion is counted over windows of "
                   f"{2 * arrivals.step_seconds:g} s and more")  # fmt: skip
