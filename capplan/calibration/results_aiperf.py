"""Summaries of genai-perf and aiperf: ``profile_export_genai_perf.json``, ``profile_export_aiperf.json``, their CSV.

A metric is an object with ``unit`` and ``avg``; ``inter_token_latency`` is that of a request, (latency - TTFT) over
output tokens less one: the TPOT. The load stands in ``input_config``; the CSV has none, there the folder must name it
(``...-concurrency8``, as genai-perf calls its artifact folders).

References
----------
triton-inference-server/perf_analyzer, genai-perf/genai_perf/export_data/json_exporter.py and csv_exporter.py;
docs.nvidia.com/aiperf/reference/json-export-schema ("unit is authoritative for the value's interpretation").
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from capplan.calibration.run import Run, number, plain_number, seconds_per, text
from capplan.errors import InputError, shown
from capplan.formulas.closed_loop import requests_in_flight

Line = tuple[int, list[str]]
"""Number and cells of a row."""

_METRICS = {
    "time_to_first_token": "Time to First Token",
    "inter_token_latency": "Inter Token Latency",
    "input_sequence_length": "Input Sequence Length",
    "output_sequence_length": "Output Sequence Length",
    "request_throughput": "Request Throughput",
}
"""Key of the JSON to name in the CSV."""
_CONFIG_PATHS = (
    ("loadgen",),
    ("perf_analyzer", "stimulus"),
    ("phases", "profiling"),
    (),
)
"""Where aiperf, genai-perf, newer aiperf and older genai-perf say the load."""
_JUDGED = frozenset({"input_config", "error_summary", "error_request_count", "was_cancelled", "run_info"})
_DESCRIBES = re.compile(r"_version$|^(?:start|end)_time$|_id$|^telemetry")
_LABEL = re.compile(r"([A-Za-z ]+?) \(([^()]*)\)")
_FOLDER = re.compile(r"concurrency[_=-]?(\d{1,6})(?!\d)")
_OPTION = re.compile(r"--(concurrency|request-rate)[ =](\d+(?:\.\d+)?)(?=\s|$)")


def tool_of(record: Mapping[str, Any]) -> str | None:
    """``aiperf`` or ``genai-perf`` where the record is one of theirs."""
    first = record.get("time_to_first_token")
    if not isinstance(first, dict) or "avg" not in first or "inter_token_latency" not in record:
        return None
    return "aiperf" if "aiperf_version" in record or "error_summary" in record else "genai-perf"


def unread(record: Mapping[str, Any]) -> set[str]:
    """Keys nothing is taken from that could matter: no statistics, and nothing that only describes the run."""
    told = _METRICS.keys() | _JUDGED
    return {
        key
        for key, value in record.items()
        if key not in told and not _DESCRIBES.search(key) and not (isinstance(value, dict) and "avg" in value)
    }


def profile_run(record: Mapping[str, Any], tool: str, file: str, line: int | None) -> Run | str:
    """The run of a summary, or why the fit does not use it.

    Raises
    ------
    InputError : a metric that is missing or has no unit of latency, or no load in ``input_config``
    """
    place = file if line is None else f"{file}:{line}"
    if record.get("error_summary") or record.get("error_request_count"):
        return "requests failed"
    if record.get("was_cancelled"):
        return "the run was cancelled"
    ttft, tpot = (_latency(record, key, place) for key in ("time_to_first_token", "inter_token_latency"))
    prompt, output = (_average(record, key, place) for key in ("input_sequence_length", "output_sequence_length"))
    config = record.get("input_config")
    config = config if isinstance(config, dict) else {}
    load = _load(config, record.get("run_info"), place)
    if "concurrency" in load and "request_rate" not in load:
        return Run(file, line, tool, prompt, output, load["concurrency"], ttft, tpot, True, _model(config))
    in_flight = requests_in_flight(_average(record, "request_throughput", place), ttft + (output - 1) * tpot)
    if in_flight < 1:
        return "less than one request in flight on average"
    return Run(file, line, tool, prompt, output, in_flight, ttft, tpot, False, _model(config))


def profile_csv_run(rows: Sequence[Line], path: Path) -> Run | str:
    """The run of a CSV summary; the folder says its concurrency.

    Raises
    ------
    InputError : a metric that is missing, or a folder that names no concurrency
    """
    file = str(path)
    named = _FOLDER.findall(path.parent.name)
    if len(named) != 1:
        problem = "a CSV summary says no concurrency and neither does its folder; give the JSON beside it"
        raise InputError(problem, key="concurrency", file=file)
    metrics = dict(_labelled(row) for _, row in rows if len(row) > 1 and _LABEL.fullmatch(row[0]))
    record = {key: metrics[name.lower()] for key, name in _METRICS.items() if name.lower() in metrics}
    record["input_config"] = {"concurrency": int(named[0])}
    return profile_run(record, "CSV summary", file, None)


def is_profile_csv(rows: Sequence[Line]) -> bool:
    """Whether the rows are a summary: ``Metric,avg,min,max,...``."""
    return [cell.strip().lower() for cell in rows[0][1][:2]] == ["metric", "avg"]


def csv_rows(data: str, file: str) -> list[Line]:
    """The rows of a CSV text with their lines, empty ones and comments left out.

    Raises
    ------
    InputError : a cell without end
    """
    reader = csv.reader(data.splitlines())
    try:
        return [(reader.line_num, row) for row in reader if row and not row[0].startswith("#")]
    except csv.Error as error:
        raise InputError(f"is not valid CSV ({error})", file=file) from None


def _labelled(row: list[str]) -> tuple[str, dict[str, Any]]:
    label = _LABEL.fullmatch(row[0])
    assert label is not None
    cell = row[1].replace(",", "").strip()
    try:
        average: Any = float(cell)
    except ValueError:
        average = cell
    return label[1].lower(), {"unit": label[2], "avg": average}


def _average(record: Mapping[str, Any], key: str, place: str) -> float:
    metric = record.get(key)
    if not isinstance(metric, dict):
        raise InputError("is missing, or no object with unit and avg", key=key, file=place)
    return plain_number(metric.get("avg"), f"{key}.avg", place)


def _latency(record: Mapping[str, Any], key: str, place: str) -> float:
    average = _average(record, key, place)
    return average * seconds_per(str(record[key].get("unit")), f"{key}.unit", place)


def _load(config: Mapping[str, Any], info: object, place: str) -> dict[str, float]:
    """Concurrency or rate, from the first place of the configuration that says one, else from the command line."""
    for path in _CONFIG_PATHS:
        part: Any = config
        for name in path:
            part = part.get(name) if isinstance(part, dict) else None
        if isinstance(part, dict) and (found := _numbers(part, ".".join(("input_config", *path)), place)):
            return found
    for holder in (config, info):
        command = holder.get("cli_command") if isinstance(holder, dict) else None
        if isinstance(command, str) and (options := _OPTION.findall(command[:20_000])):
            return {name.replace("-", "_"): float(value) for name, value in options}
    raise InputError("says neither a concurrency nor a request rate", key="input_config", file=place)


def _numbers(part: Mapping[str, Any], key: str, place: str) -> dict[str, float]:
    known = {name: part[name] for name in ("concurrency", "request_rate") if part.get(name) is not None}
    if any(isinstance(value, (dict, list, str)) for value in known.values()):
        raise InputError(f"{shown(known)} is no fixed load", key=key, file=place)
    return {name: number(known, name, place) for name in known}


def _model(config: Mapping[str, Any]) -> str | None:
    endpoint = config.get("endpoint")
    for holder in (config, endpoint if isinstance(endpoint, dict) else {}):
        names = holder.get("model_names")
        if isinstance(names, list) and len(names) == 1:
            return text(names[0])
    return None
