"""Benchmark results of many tools as :class:`~capplan.calibration.run.Run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capplan.calibration import results_aiperf, results_csv, results_server
from capplan.calibration.repeats import repeated
from capplan.calibration.results_files import (
    MAX_ALL_BYTES,
    MAX_RECORDS,
    ResultFile,
    json_records,
    result_files,
    result_text,
)
from capplan.calibration.run import Run, SetAside
from capplan.errors import InputError

FORMATS = "vllm bench serve, sglang.bench_serving, genai-perf, aiperf, CSV"


@dataclass
class Reading:
    """What files hold: runs, results that are not used, keys nothing is taken from by format, remarks."""

    runs: list[Run] = field(default_factory=list)
    set_aside: list[SetAside] = field(default_factory=list)
    unread: dict[str, set[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, found: Run | str, tool: str, file: str, line: int | None, unread: set[str]) -> None:
        """A result of a file."""
        if len(self.runs) + len(self.set_aside) >= MAX_RECORDS:
            raise InputError(f"more than {MAX_RECORDS:,} results", file=file)
        self.unread.setdefault(tool, set()).update(unread)
        if isinstance(found, str):
            self.set_aside.append(SetAside(file, line, found))
        else:
            self.runs.append(found)


def read_results(paths: str | Path | Sequence[str | Path], columns: Mapping[str, str] | None = None) -> Reading:
    """Read benchmark results: files, folders (with everything below), patterns.

    Known: JSON of ``vllm bench serve --save-result``, JSON lines of ``sglang.bench_serving --output-file``, JSON and
    CSV summaries of genai-perf and aiperf, and CSV with one result a row (columns ``isl``, ``osl``, ``concurrency``,
    ``ttft_ms``, ``tpot_ms`` and, if there, ``tp``, ``dp``, ``ep``; others by ``columns``).

    Parameters
    ----------
    paths : one or several
    columns : quantity (``prompt``, ``output``, ``concurrency``, ``ttft``, ``tpot``, ``tp``, ``dp``, ``ep``) to the
        name of its column in a CSV; a unit ends the name (``_ms``, ``(s)``), milliseconds without one

    Returns
    -------
    reading : runs, and results set aside with a reason: failed requests, draft tokens, shared prefixes, a load that is
        not steady, repeated results. Open-loop runs count with their mean number in flight by Little's law, rate times
        time of a request

    Raises
    ------
    InputError : a file that cannot be read, is of no known format or lacks a key; in a folder, files of no known
        format are only listed
    """
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    if not given:
        raise InputError("no result files")
    reading, size = Reading(), 0
    for file in result_files(given):
        size += _size(file.path)
        if size > MAX_ALL_BYTES:
            raise InputError(f"results of more than {MAX_ALL_BYTES // 10**6} MB together", file=str(file.path))
        _read(file, reading, columns or {})
    _without_repeats(reading)
    return reading


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return 0


def _read(file: ResultFile, reading: Reading, columns: Mapping[str, str]) -> None:
    if file.path.suffix.lower() == ".csv":
        _read_csv(file, reading, columns)
        return
    try:
        for line, record in json_records(file.path):
            _read_record(record, file, line, reading)
    except InputError as error:
        if file.named or _known_place(error):
            raise
        reading.set_aside.append(SetAside(str(file.path), None, f"not read: {error.problem}"))


def _known_place(error: InputError) -> bool:
    """Whether a known format lacks something, rather than the file being of no known format."""
    return error.key is not None


def _read_record(record: dict[str, Any], file: ResultFile, line: int | None, reading: Reading) -> None:
    path = str(file.path)
    if (tool := results_server.tool_of(record)) is not None:
        found = results_server.server_run(record, tool, path, line)
        reading.add(found, tool, path, line, results_server.unread(record))
    elif (tool := results_aiperf.tool_of(record)) is not None:
        found = results_aiperf.profile_run(record, tool, path, line)
        reading.add(found, tool, path, line, results_aiperf.unread(record))
    else:
        place = path if line is None else f"{path}:{line}"
        raise InputError(f"no result of a known format ({FORMATS})", file=place)


def _read_csv(file: ResultFile, reading: Reading, columns: Mapping[str, str]) -> None:
    path = str(file.path)
    try:
        rows = results_aiperf.csv_rows(result_text(file.path), path)
        if len(rows) < 2:
            raise InputError("holds no header with rows below it", file=path)
        if results_aiperf.is_profile_csv(rows):
            found = results_aiperf.profile_csv_run(rows, file.path)
            reading.add(found, "CSV summary", path, None, set())
            return
        runs, unread, notes = results_csv.csv_runs(rows, path, columns)
    except InputError as error:
        if file.named:
            raise
        reading.set_aside.append(SetAside(path, None, f"not read: {error.problem}"))
        return
    reading.notes += notes
    for run in runs:
        reading.add(run, "CSV", path, run.line, set(unread))


def _without_repeats(reading: Reading) -> None:
    """A result that occurs twice counts once."""
    runs = reading.runs
    reasons = repeated(runs, [(run.tp, run.dp, run.ep) for run in runs])
    reading.set_aside += [SetAside(runs[index].file, runs[index].line, reason) for index, reason in reasons.items()]
    reading.runs[:] = [run for index, run in enumerate(runs) if index not in reasons]
