"""From lines to findings: what was printed where, by which rank, in which start-up of the file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from capplan.calibration.log_patterns import (
    COUNTS,
    GROUPS,
    MESSAGES,
    SETTING,
    SETTINGS,
    SIGNED,
    WORDS,
    Message,
)
from capplan.errors import InputError, shown

MOST_FINDINGS = 20_000
"""A start-up of a thousand ranks prints fewer."""
_LARGEST = 1e16
"""No number of a log is larger in its base unit: 9 PiB of memory, tokens by far."""
_READ = 2_000
"""Characters a message may take; a line of settings may be longer."""
_RANK = re.compile(
    r"\((?P<process>[A-Za-z]\w*)(?P<pid> pid=\d+)?(?:, ip=[\w.:]+)?\)"
    r"|\[(?:[^\]\[]{0,60} )?(?P<ranks>(?:(?:DP|PP|TP|EP|ATTN_TP|MOE_EP)\d+ ?)+)\]"
    r"|\[(?:RANK|MPI rank) (?P<mpi>\d+)\]"
)
_NO_VALUE = ("none", "null", "-1")
_TEXT = frozenset({"model", "kv_dtype", "dp_attention"})


@dataclass(frozen=True)
class Finding:
    """One number (or word) of a log."""

    name: str
    value: float | str
    line: int
    rank: str
    """The process that printed it, as the log spells it; empty where it does not say."""
    message: Message


@dataclass
class Run:
    """One start-up of an engine in a log."""

    first_line: int
    findings: list[Finding] = field(default_factory=list)
    started: set[str] = field(default_factory=set)

    @property
    def complete(self) -> bool:
        """Whether it came as far as the KV cache."""
        return any(finding.name in ("kv_pool_bytes", "kv_tokens", "num_gpu_blocks") for finding in self.findings)

    @property
    def measured(self) -> bool:
        """Whether it says more than its arguments."""
        return any(not (found.message.starts or found.message.settings) for found in self.findings)


def runs_of(lines: list[str], file: str) -> list[Run]:
    """The start-ups in a log that say anything.

    Raises
    ------
    InputError : a known message whose number cannot be read, or more messages than an engine prints
    """
    runs, count = [Run(1)], 0
    for number, line in enumerate(lines, 1):
        for message in (message for message in MESSAGES if message.anchor in line):
            if (count := count + 1) > MOST_FINDINGS:
                raise InputError(f"more than {MOST_FINDINGS:,} messages, cut the last start-up out of it", file=file)
            rank = _rank(line)
            if message.starts and _begins(runs[-1], rank, message):
                runs.append(Run(number))
            if message.starts:
                runs[-1].started.add(f"{message.anchor}{rank}")
            runs[-1].findings.extend(_read(message, line, number, rank, file))
    return [run for run in runs if run.findings]


def _begins(run: Run, rank: str, message: Message) -> bool:
    """Whether this first message belongs to another start-up: its process has said it before, and more since.

    Every process of TensorRT-LLM says its version, none its rank.
    """
    if message.engine == "tensorrt-llm":
        return run.measured
    return f"{message.anchor}{rank}" in run.started and (run.measured or message.engine == "vllm")


def _rank(line: str) -> str:
    match = _RANK.search(line, 0, 300)
    if match is None:
        return ""
    if match["process"]:
        numbered = match["process"][-1].isdigit() or not match["pid"]
        shared = match["process"].startswith(("EngineCore", "APIServer", "ApiServer"))
        return match["process"] + ("" if numbered or shared else match["pid"])
    return (match["ranks"] or f"rank {match['mpi']}").strip()


def _read(message: Message, line: str, number: int, rank: str, file: str) -> Iterator[Finding]:
    start = line.find(message.anchor)
    while start >= 0:
        end = start + len(message.anchor)
        if not _is_other(message, line, start, end):
            match = message.pattern.match(line, start, start + _READ)
            if match is None:
                raise _unreadable(line[start : start + 80], number, file)
            found = _settings(line, start, number, file) if message.settings else {}
            found |= _numbers(match, number, file)
            yield from (Finding(name, value, number, rank, message) for name, value in found.items())
        start = line.find(message.anchor, end)


def _is_other(message: Message, line: str, start: int, end: int) -> bool:
    """Whether the words belong to another message, or to the engine's source in a traceback."""
    source = not message.settings and line[end : end + 1] in ("%", "{", '"', "'")
    return source or (bool(message.not_after) and line[max(start - 12, 0) : start].endswith(message.not_after))


def _numbers(match: re.Match[str], number: int, file: str) -> dict[str, float | str]:
    found: dict[str, float | str] = {}
    for group, text in match.groupdict().items():
        if text is None:
            continue
        if group in WORDS:
            found[WORDS[group]] = text
            continue
        name, factor = GROUPS[re.sub(r"_\d$", "", group)]
        found[name] = float(found.get(name, 0.0)) + _amount(name, text, match[0], number, file, factor)
    return found


def _settings(line: str, start: int, number: int, file: str) -> dict[str, float | str]:
    """The first value of each argument: what follows may be the arguments of a draft model."""
    found: dict[str, float | str] = {}
    for match in SETTING.finditer(line, start):
        name, text = SETTINGS[match[2]], match[3].strip("'\"")
        if name in found or text.lower() in _NO_VALUE or (text == "auto" and name not in _TEXT):
            continue
        found[name] = text if name in _TEXT else _amount(name, text, match[0], number, file)
    return found


def _amount(name: str, text: str, message: str, number: int, file: str, factor: float = 1.0) -> float:
    try:
        value = factor * float(text.replace(",", ""))
    except ValueError:
        raise _unreadable(message, number, file) from None
    if not abs(value) < _LARGEST or (value < 0 and name not in SIGNED):
        raise _unreadable(message, number, file)
    if (name in COUNTS and (value < 1 or value != int(value))) or (name == "memory_fraction" and not 0 < value <= 1):
        raise InputError(f"{value:g} in {shown(message)} is out of range", file=file, key=f"line {number}")
    if name == "hbm_bytes" and value <= 0:
        raise InputError(f"{shown(message)}: a GPU has memory", file=file, key=f"line {number}")
    return value


def _unreadable(message: str, number: int, file: str) -> InputError:
    return InputError(f"the number in {shown(message)} cannot be read", file=file, key=f"line {number}")
