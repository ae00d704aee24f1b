"""An engine's start-up log as overrides of the memory budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from capplan.calibration.log_choice import Choice, choose, engine_of, number, word
from capplan.calibration.log_file import log_lines
from capplan.calibration.log_findings import Run, runs_of
from capplan.calibration.log_patterns import LOOKED_FOR
from capplan.cards.hardware import Hardware
from capplan.cards.kv import kv_streams
from capplan.cards.model import Model
from capplan.errors import InputError

FRACTIONS = {
    "vllm": "gpu_memory_utilization",
    "sglang": "mem_fraction_static",
    "tensorrt-llm": "free_gpu_memory_fraction",
}
"""What each engine calls its share of the memory."""
_GRAPHS_DEDUCTED_SINCE = (0, 21)
"""vLLM deducts CUDA graphs by default from here on (its start-up log says so)."""
_DEFAULT_BLOCK_TOKENS = 16
"""Of vLLM on GPUs (``CacheConfig.block_size``), where its arguments name no other."""
_MOST_LIBRARIES_SHARE = 0.25
"""CUDA context and libraries take less; more than that in use means another process or another GPU."""


@dataclass(frozen=True)
class EngineLog:
    """What one start-up of an engine says; bytes are of one GPU, None is what the log does not say.

    Of several ranks the smallest pool and capacity count, and the largest of everything else. ``lines`` names the line
    of every number. ``graph_bytes`` is what CUDA graphs took, ``graph_bytes_deducted`` what the engine left for them
    before it sized the KV cache. ``kv_pool_bytes`` is below zero by what was missing where the engine did not start.
    ``kv_tokens`` is what the engine calls its cache size: vLLM computes it from its worst-case concurrency, so that it
    is no capacity where layers have sliding windows or a state. ``consumed_bytes`` are weights and libraries together.
    """

    file: str
    engine: str
    version: str | None
    model: str | None
    weights_bytes: float | None
    activation_peak_bytes: float | None
    other_bytes: float | None
    graph_bytes: float | None
    graph_bytes_deducted: float | None
    kv_pool_bytes: float | None
    kv_tokens: float | None
    num_gpu_blocks: float | None
    blocks_are_chosen: bool
    """The user chose the number of blocks: the pool is not all the memory there is."""
    block_tokens: float | None
    max_model_len: float | None
    max_concurrency: float | None
    """Sequences of ``concurrency_tokens`` the engine says it holds."""
    concurrency_tokens: float | None
    memory_fraction: float | None
    hbm_bytes: float | None
    free_before_weights_bytes: float | None
    max_num_batched_tokens: float | None
    max_num_seqs: float | None
    kv_dtype: str | None
    """As the engine spells it; ``auto`` is the checkpoint's."""
    tp: int | None
    pp: int | None
    dp: int | None
    dcp: int | None
    gpus: int | None
    run: int
    """The start-up that counts, of ``runs`` in the file."""
    runs: int
    complete: bool
    """Whether it came as far as the KV cache."""
    lines: Mapping[str, int] = field(hash=False)
    notes: tuple[str, ...]
    contradictions: tuple[str, ...]

    def settings(self) -> dict[str, float]:
        """What the user told the engine, as overrides: memory share, batch limits, tokens of a block."""
        found = {FRACTIONS[self.engine]: self.memory_fraction, "kv_block_tokens": self.block_tokens}
        if self.engine == "vllm":
            found |= {"max_num_batched_tokens": self.max_num_batched_tokens, "max_num_seqs": self.max_num_seqs}
        return {name: value for name, value in found.items() if value is not None}

    def measured(
        self, model: Model, hardware: Hardware | None = None, *, unified_pages: bool = False
    ) -> dict[str, float]:
        """What the engine measured, as overrides of the memory budget; the pool wins over its parts.

        Parameters
        ----------
        model : whose tokens the pool holds
        hardware : the GPU, from whose memory SGLang's CUDA context and libraries follow
        unified_pages : sliding-window layers keep all tokens

        Returns
        -------
        overrides : by quantity name, in base units; ``kv_room_bytes`` below zero where the engine did not start
        """
        found = {
            "hbm_bytes": self.hbm_bytes,
            "weights_bytes": self.weights_bytes,
            "activation_peak_bytes": self.activation_peak_bytes,
            "other_bytes": self._libraries(hardware),
            "graph_bytes": self._graphs(),
            **self._pool(constant=tokens_are_capacity(model, unified_pages=unified_pages)),
        }
        return {name: value for name, value in found.items() if value is not None}

    def overrides(
        self, model: Model, hardware: Hardware | None = None, *, unified_pages: bool = False
    ) -> dict[str, float]:
        """Settings and measured numbers together, for :func:`capplan.serving.memory.memory`.

        Parameters
        ----------
        model, hardware, unified_pages : as in :meth:`measured`

        Returns
        -------
        overrides : by quantity name, in base units
        """
        return self.settings() | self.measured(model, hardware, unified_pages=unified_pages)

    def found(self) -> dict[str, Any]:
        """Every number and word the log says, by field name."""
        values = {name.name: getattr(self, name.name) for name in fields(self)}
        return {name: values[name] for name in self.lines if values.get(name) is not None}

    def _libraries(self, hardware: Hardware | None) -> float | None:
        """CUDA context and libraries, where they follow from what the log says."""
        if self.engine == "sglang" and self.free_before_weights_bytes is not None:
            memory = self.hbm_bytes or (hardware.hbm_bytes if hardware else None)
            used = None if memory is None else memory - self.free_before_weights_bytes
            return used if memory and used is not None and 0 <= used < _MOST_LIBRARIES_SHARE * memory else None
        return None if self.other_bytes is None else max(self.other_bytes, 0.0)

    def _graphs(self) -> float | None:
        graphs = self.graph_bytes_deducted if self.engine == "vllm" else self.graph_bytes
        return None if graphs is None else max(graphs, 0.0)

    def _pool(self, *, constant: bool) -> dict[str, float | None]:
        """The pool in bytes (in blocks where the user chose them or nothing else is said), and its tokens."""
        pool = self.kv_pool_bytes
        if pool is not None and pool <= 0:
            return {"kv_room_bytes": pool}
        tokens = {"kv_capacity_tokens": self._capacity() if constant else None}
        if self.num_gpu_blocks is not None and (self.blocks_are_chosen or pool is None):
            return {"num_gpu_blocks": self.num_gpu_blocks, **tokens}
        return {"kv_pool_bytes": pool, **tokens}

    def _capacity(self) -> float | None:
        if self.kv_tokens is None and self.num_gpu_blocks is not None and self.engine == "vllm":
            return self.num_gpu_blocks * (self.block_tokens or _DEFAULT_BLOCK_TOKENS)
        return self.kv_tokens


def read_engine_log(path: str | Path) -> EngineLog:
    """Read the start-up log of vLLM, SGLang or TensorRT-LLM.

    Of several start-ups in one file the last one counts that came as far as its KV cache.

    Parameters
    ----------
    path : of a text file, at most 32 MB

    Returns
    -------
    log : what it says, each number with its line

    Raises
    ------
    InputError : not readable, no text, too large, nothing recognised, messages of two engines in one start-up, or a
        known message whose number cannot be read

    References
    ----------
    vLLM ``gpu_worker.py`` and ``kv_cache_utils.py``, SGLang ``model_runner.py`` and ``memory_pool.py``, TensorRT-LLM
    ``_torch/pyexecutor/_util.py`` and ``kvCacheManager.cpp``.
    """
    file = str(path)
    lines = log_lines(path)
    runs = [run for run in runs_of(lines, file) if run.measured]
    if not runs:
        raise InputError(f"nothing in it is known; looked for {LOOKED_FOR}", file=file)
    index = max((at for at, run in enumerate(runs) if run.complete), default=len(runs) - 1)
    choice = choose(runs[index], lines)
    if (number(choice.values, "weights_bytes") or 0.0) < 0:
        line = choice.values["weights_bytes"].line
        raise InputError("weights below zero: memory was freed meanwhile", file=file, key=f"line {line}")
    return _log(file, engine_of(runs[index], file), runs, index, choice)


_NUMBER = "float | None"


def tokens_are_capacity(model: Model, *, unified_pages: bool = False) -> bool:
    """Whether every token takes the same in the KV cache, so that a number of tokens says what it holds."""
    for group in model.layers:
        if group.state_bytes:
            return False
        if group.attention is None or unified_pages:
            continue
        if any(stream.window is not None for stream in kv_streams(group.attention, "bf16")):
            return False
    return True


def _log(file: str, engine: str, runs: list[Run], index: int, choice: Choice) -> EngineLog:
    values = choice.values
    numbers: dict[str, Any] = {one.name: number(values, one.name) for one in fields(EngineLog) if one.type == _NUMBER}
    numbers |= _derived(engine, choice)
    return EngineLog(
        file=file,
        engine=engine,
        version=word(values, "version"),
        model=word(values, "model"),
        **numbers,
        blocks_are_chosen="num_gpu_blocks_override" in values,
        kv_dtype=word(values, "kv_dtype"),
        **_layout(values),
        run=index + 1,
        runs=len(runs),
        complete=runs[index].complete,
        lines={name: chosen.line for name, chosen in values.items()},
        notes=(*_file_notes(runs, index), *choice.notes),
        contradictions=tuple(choice.contradictions),
    )


def _derived(engine: str, choice: Choice) -> dict[str, float | None]:
    """Numbers a log says in parts."""
    values = choice.values
    derived = {"other_bytes": _other(engine, choice), "kv_pool_bytes": _whole_pool(choice)}
    derived["graph_bytes_deducted"] = number(values, "graph_bytes_deducted") if _deducts_graphs(choice) else None
    if (blocks := number(values, "num_gpu_blocks_override")) is not None:
        derived["num_gpu_blocks"] = blocks
    return derived


def _other(engine: str, choice: Choice) -> float | None:
    """CUDA context and libraries: as printed, or what is in use less the weights (vLLM), or less the trial pool."""
    values = choice.values
    consumed = number(values, "consumed_bytes")
    if "other_bytes" in values or consumed is None:
        return number(values, "other_bytes")
    counted = number(values, "temporary_pool_bytes" if engine == "tensorrt-llm" else "weights_bytes")
    if engine == "vllm" and counted is None:
        return None
    choice.values["other_bytes"] = choice.values["consumed_bytes"]
    return max(consumed - (counted or 0.0), 0.0)


def _whole_pool(choice: Choice) -> float | None:
    """The pool with what SGLang keeps apart: sliding-window layers and recurrent states."""
    values = choice.values
    parts = ("whole_pool_bytes",) if "whole_pool_bytes" in values else ("kv_pool_bytes", "window_pool_bytes")
    told = [part for part in (*parts, "state_pool_bytes") if part in values]
    if not told:
        return None
    choice.values["kv_pool_bytes"] = values[told[0]]
    return sum(float(values[part].value) for part in told)


def _deducts_graphs(choice: Choice) -> bool:
    """Whether vLLM took the CUDA graphs off before it sized the KV cache."""
    said = word(choice.values, "graph_profiling")
    if said is not None:
        return said == "enabled"
    numbers = (word(choice.values, "version") or "").split(".")[:2]
    version = tuple(int(part) for part in numbers if part.isdigit())
    return len(version) == 2 and version >= _GRAPHS_DEDUCTED_SINCE


def _layout(values: Mapping[str, Any]) -> dict[str, int | None]:
    sizes = {name: None if (size := number(values, name)) is None else int(size) for name in ("tp", "pp", "dp", "dcp")}
    tp, dp = sizes["tp"], sizes["dp"]
    if word(values, "dp_attention") == "True" and tp and dp:
        sizes["tp"] = max(tp // dp, 1)  # SGLang counts the ranks of data-parallel attention in tp_size
    gpus = number(values, "gpus")
    return {**sizes, "gpus": None if gpus is None else int(gpus)}


def _file_notes(runs: list[Run], index: int) -> list[str]:
    notes = []
    if len(runs) > 1:
        what = "the last complete one" if runs[index].complete else "the last one"
        notes.append(f"{len(runs)} start-ups in the file: {what}, from line {runs[index].first_line}, counts")
    if not runs[index].complete:
        notes.append("the start-up did not come as far as its KV cache")
    return notes
