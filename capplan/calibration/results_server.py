"""Results of ``vllm bench serve --save-result`` and of ``sglang.bench_serving --output-file``.

Both write one flat JSON object a run with means in milliseconds: vLLM one file a run, or one object after another
with ``--append-result``; SGLang one object a line.

References
----------
vllm/benchmarks/serve.py (``result_json`` and ``process_one_metric``; ``--save-detailed`` keeps ``input_lens``,
``output_lens``, ``start_times``, ``ttfts``, ``itls``, ``generated_texts``, ``errors``);
python/sglang/bench_serving.py (``result`` and ``result_details``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from capplan.calibration.run import Run, number, plain_number, text
from capplan.errors import InputError, shown
from capplan.formulas.closed_loop import requests_in_flight

_MEANS = ("mean_ttft_ms", "mean_tpot_ms", "total_input_tokens", "total_output_tokens", "completed", "duration")
_READ = frozenset({*_MEANS, "num_prompts", "request_rate", "max_concurrency", "model_id", "backend", "endpoint_type"})
_JUDGED = frozenset(
    {"dataset_name", "errors", "input_lens", "ramp_up_strategy", "accept_length", "failed", "spec_decode_num_drafts"}
)
_STATISTIC = re.compile(r"(?:mean|median|std|min|max|p\d+(?:\.\d+)?|percentiles)_")
_SAYS_NOTHING = frozenset({
    "date", "label", "tag", "tokenizer_id", "tokenizer_mode", "endpoint_type", "best_of", "burstiness",
    "goodput_config", "request_goodput", "request_throughput", "output_throughput", "total_token_throughput",
    "total_throughput", "input_throughput", "max_output_tokens_per_s", "max_concurrent_requests", "concurrency",
    "accuracy", "duration_s", "start_times", "ttfts", "itls", "generated_texts", "output_lens", "random_input_len",
    "random_output_len", "random_range_ratio", "sharegpt_output_len", "total_output_tokens_retokenized",
    "total_input_text_tokens", "total_input_vision_tokens", "rtfx",
})  # fmt: skip
"""Keys that follow from others, describe the run, or matter only where what they qualify is not read."""
_SHARED_PREFIX = ("generated-shared-prefix", "prefix_repetition", "mooncake")
_LEAST_WAVES = 2
"""Prompts for each slot below which a run is start and end only."""
_BUSY_SHARE = 0.7
"""Mean in flight over the limit below which the slots are not all busy."""


def tool_of(record: Mapping[str, Any]) -> str | None:
    """``vllm bench serve`` or ``sglang.bench_serving`` where the record is one of theirs."""
    if not {"total_input_tokens", "completed", "duration"} <= record.keys():
        return None
    if "total_output_tokens_retokenized" in record or "random_range_ratio" in record:
        return "sglang.bench_serving"
    return "vllm bench serve" if "num_prompts" in record and "mean_ttft_ms" in record else None


def unread(record: Mapping[str, Any]) -> set[str]:
    """Keys nothing is taken from that could matter."""
    told = _READ | _JUDGED | _SAYS_NOTHING
    return {key for key, value in record.items() if key not in told and not _STATISTIC.match(key) and value is not None}


def server_run(record: Mapping[str, Any], tool: str, file: str, line: int | None) -> Run | str:
    """The run of a record, or why the fit does not use it.

    Raises
    ------
    InputError : a key that is missing, or whose value cannot be
    """
    place = file if line is None else f"{file}:{line}"
    if reason := _no_plain_run(record, place):
        return reason
    completed = number(record, "completed", place)
    ttft = number(record, "mean_ttft_ms", place, above=False) * 1e-3
    tpot = number(record, "mean_tpot_ms", place, above=False) * 1e-3
    prompt = number(record, "total_input_tokens", place) / completed
    output = number(record, "total_output_tokens", place) / completed
    if ttft == 0 or tpot == 0:
        return "no TTFT or TPOT: the endpoint did not stream, or answers have one token"
    rate = completed / number(record, "duration", place)
    in_flight = requests_in_flight(rate, ttft + (output - 1) * tpot)
    loop = _loop(record, completed, in_flight, place)
    if isinstance(loop, str):
        return loop
    concurrency, closed = loop
    return Run(file, line, tool, prompt, output, concurrency, ttft, tpot, closed, text(record.get("model_id")))


def _no_plain_run(record: Mapping[str, Any], place: str) -> str | None:
    """Why the record is no run of plain decoding at a steady load."""
    completed, errors, lens = record.get("completed"), record.get("errors"), record.get("input_lens")
    prompts = record.get("num_prompts", len(lens) if isinstance(lens, list) else None)
    if completed == 0 or record.get("failed") or (isinstance(errors, list) and any(errors)):
        return "requests failed"
    if prompts is not None and plain_number(prompts, "num_prompts", place) > number(record, "completed", place):
        return f"requests failed: {completed} of {prompts} completed"
    if record.get("accept_length") or record.get("spec_decode_num_drafts"):
        return "draft tokens: their acceptance and the time of a step cannot be told apart"
    if record.get("dataset_name") in _SHARED_PREFIX:
        return f"prompts share prefixes ({record['dataset_name']}): the cache answers part of them"
    return "the load was ramped up" if record.get("ramp_up_strategy") else None


def _loop(record: Mapping[str, Any], completed: float, in_flight: float, place: str) -> tuple[float, bool] | str:
    """Requests in flight and whether their number was fixed; or why neither is known."""
    limit, rate = record.get("max_concurrency"), _rate(record, place)
    if limit is None:
        if rate == math.inf:
            return "neither a rate nor a limit of concurrency: all prompts at once"
        return (in_flight, False) if in_flight >= 1 else "less than one request in flight on average"
    fixed = plain_number(limit, "max_concurrency", place)
    if completed < _LEAST_WAVES * fixed:
        return f"{completed:g} prompts for {fixed:g} slots: start and end of the run only"
    if in_flight >= _BUSY_SHARE * fixed:
        return fixed, True
    if rate < math.inf and in_flight >= 1:
        return in_flight, False
    return f"only {in_flight:.3g} of {fixed:g} slots busy on average"


def _rate(record: Mapping[str, Any], place: str) -> float:
    rate = record.get("request_rate")
    if rate in (None, "inf", math.inf):
        return math.inf
    if isinstance(rate, str):
        raise InputError(f"{shown(rate)} is no rate; replayed traces are not read", key="request_rate", file=place)
    return plain_number(rate, "request_rate", place)
