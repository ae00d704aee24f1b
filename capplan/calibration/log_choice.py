"""Which of several printed values counts: ranks differ, engines repeat themselves, and a run may contradict itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from capplan.calibration.log_findings import Finding, Run
from capplan.errors import InputError
from capplan.quantities.units import format_bytes

SMALLEST = frozenset(
    {"kv_pool_bytes", "kv_tokens", "num_gpu_blocks", "max_concurrency", "free_before_weights_bytes", "hbm_bytes"}
)
"""The rank with the least memory caps all; of everything else the largest counts."""
_SETTINGS = frozenset(
    {"version", "model", "kv_dtype", "dp_attention", "graph_profiling", "tp", "pp", "dp", "dcp", "gpus",
     "memory_fraction", "max_model_len", "concurrency_tokens", "max_num_batched_tokens", "max_num_seqs",
     "block_tokens"}
)  # fmt: skip
_PER_RANK = frozenset({"kv_tokens", "max_concurrency"})
"""What the scheduler of vLLM prints for each rank in turn."""
_EQUAL = 1e-3
"""Two prints of one number differ by less."""
_WORTH_A_NOTE = 0.01
"""Ranks that differ by less are told by the line that counts alone."""
_DRAFT = re.compile("draft|eagle|mtp|nextn", re.IGNORECASE)


@dataclass(frozen=True)
class Chosen:
    """The value that counts and the line it is on."""

    value: float | str
    line: int


@dataclass
class Choice:
    """What one start-up says: the values that count, remarks, and where it contradicts itself."""

    values: dict[str, Chosen]
    notes: list[str]
    contradictions: list[str]


def engine_of(run: Run, file: str) -> str:
    """The engine a start-up is of.

    Raises
    ------
    InputError : it has messages of two engines
    """
    lines: dict[str, int] = {}
    for finding in run.findings:
        lines.setdefault(finding.message.engine, finding.line)
    if len(lines) > 1:
        told = " and ".join(f"{engine} (line {line})" for engine, line in lines.items())
        raise InputError(f"has messages of {told} in one start-up; give the log of one engine", file=file)
    return next(iter(lines))


def choose(run: Run, lines: list[str]) -> Choice:
    """The values of a start-up that count.

    Parameters
    ----------
    run : its findings
    lines : of the file, to tell a draft model from the model

    Returns
    -------
    choice : of ranks the smallest pool and capacity and the largest of everything else
    """
    choice = Choice({}, [], [])
    findings = _without_estimates(_without_drafts(run.findings, lines, choice))
    for name in dict.fromkeys(finding.name for finding in findings):
        told = [finding for finding in findings if finding.name == name]
        best = min(finding.message.priority for finding in told)
        _choose(name, [finding for finding in told if finding.message.priority == best], choice, _ranks(findings))
    return choice


def _without_drafts(findings: list[Finding], lines: list[str], choice: Choice) -> list[Finding]:
    """SGLang prints weights, pool and graphs of a draft model after those of the model: the graphs are added.

    Sliding-window layers have a pool of their own, which looks like that of a draft, and a line with the sum.
    """
    sliding = any(finding.name == "whole_pool_bytes" for finding in findings)
    kept: list[Finding] = []
    said: set[tuple[str, str]] = set()
    for finding in findings:
        again = (finding.name, finding.rank) in said and finding.message.engine == "sglang"
        said.add((finding.name, finding.rank))
        if finding.name == "kv_pool_bytes" and sliding:
            continue
        if not (again and _of_draft(finding, lines)):
            kept.append(finding)
        elif finding.name != "free_before_weights_bytes":
            choice.notes.append(f"line {finding.line}: {_shown(finding.name, finding.value)} of a draft model left out")
    return _added_up(kept)


def _of_draft(finding: Finding, lines: list[str]) -> bool:
    if finding.name == "weights_bytes":
        return bool(_DRAFT.search(lines[finding.line - 1]))
    return finding.name in ("kv_pool_bytes", "free_before_weights_bytes")


def _added_up(findings: list[Finding]) -> list[Finding]:
    """SGLang captures graphs for prefill, decode and drafts one after the other: their sum on each rank."""
    sums: dict[str, Finding] = {}
    kept = []
    for finding in findings:
        if finding.name != "graph_bytes" or finding.message.engine != "sglang":
            kept.append(finding)
            continue
        before = sums.get(finding.rank)
        total = float(finding.value) + (float(before.value) if before else 0.0)
        sums[finding.rank] = Finding(finding.name, total, finding.line, finding.rank, finding.message)
    return [*kept, *sums.values()]


def _without_estimates(findings: list[Finding]) -> list[Finding]:
    """TensorRT-LLM allocates a small pool to measure with before it knows the size of the real one."""
    known = [finding.line for finding in findings if finding.message.anchor.startswith("Estimated max memory in KV")]
    if not known:
        return findings
    first = known[0]
    return [
        finding
        for finding in findings
        if finding.line > first or finding.name not in ("kv_pool_bytes", "kv_tokens", "num_gpu_blocks")
    ]


def _ranks(findings: Iterable[Finding]) -> int:
    """GPUs of an instance as its arguments say; 1 where they do not."""
    sizes = {finding.name: float(finding.value) for finding in findings if finding.name in ("tp", "pp", "dp", "gpus")}
    return int(max(sizes.pop("gpus", 1.0), sizes.get("tp", 1.0) * sizes.get("pp", 1.0) * sizes.get("dp", 1.0)))


def _choose(name: str, told: list[Finding], choice: Choice, ranks: int) -> None:
    if name in _SETTINGS:
        choice.values[name] = Chosen(told[0].value, told[0].line)
        if other := next((finding for finding in told if not _same(finding.value, told[0].value)), None):
            choice.contradictions.append(_both(name, told[0], other, "the first counts"))
        return
    pick, word = (min, "smallest") if name in SMALLEST else (max, "largest")
    best = pick(told, key=lambda finding: float(finding.value))
    choice.values[name] = Chosen(best.value, best.line)
    if other := next((finding for finding in told if not _same(finding.value, best.value)), None):
        twice = next((one for one in told if one.rank == other.rank and not _same(one.value, other.value)), None)
        if twice and not (name in _PER_RANK or (not other.rank and ranks > 1)):
            first, second = sorted((twice, other), key=_line)
            choice.contradictions.append(_both(name, first, second, f"the {word} counts"))
        elif not _same(float(other.value), float(best.value), _WORTH_A_NOTE):
            choice.notes.append(f"ranks differ in {name}: the {word}, {_shown(name, best.value)} (line {best.line})")


def _line(finding: Finding) -> int:
    return finding.line


def _both(name: str, one: Finding, other: Finding, rule: str) -> str:
    values = " and ".join(f"{_shown(name, found.value)} (line {found.line})" for found in (one, other))
    return f"the log contradicts itself in {name}: {values}; {rule}"


def _same(one: float | str, other: float | str, tolerance: float = _EQUAL) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return abs(one - other) <= tolerance * max(abs(one), abs(other))


def _shown(name: str, value: float | str) -> str:
    if isinstance(value, str):
        return value
    return format_bytes(value) if name.endswith("_bytes") else f"{value:,.6g}"


def number(values: Mapping[str, Chosen], name: str) -> float | None:
    """The number of that name, None where the log does not say."""
    chosen = values.get(name)
    return None if chosen is None else float(chosen.value)


def word(values: Mapping[str, Chosen], name: str) -> str | None:
    """The word of that name, None where the log does not say."""
    chosen = values.get(name)
    return None if chosen is None else str(chosen.value)
