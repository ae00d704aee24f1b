"""Measured kernel tables: one record a row, read from public packages or from the sample kept in the tests.

``tests/truth/kernel_tables.csv`` is a sample of the half of the rows that no fit sees. The whole tables are parquet
files of the PyPI package aiconfigurator-core 0.12.0 (Apache-2.0), folder ``systems/data``; reading them needs pyarrow.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

SAMPLE = Path(__file__).resolve().parent.parent / "tests" / "truth" / "kernel_tables.csv"

SYSTEMS = {
    "h100-sxm": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "b300": "b300_sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "a100-80g": "a100_sxm",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
"""Hardware card to folder of the package."""

SMALL = 250
"""Rows below which a random half may lack whole sizes."""

ENGINES = {"trtllm": "tensorrt-llm", "vllm": "vllm", "sglang": "sglang"}

COLUMNS: dict[str, tuple[str, ...]] = {
    "gemm_bf16": ("rows", "outputs", "inputs"),
    "gemm_fp8": ("rows", "outputs", "inputs"),
    "gemm_fp8_block": ("rows", "outputs", "inputs"),
    "gemm_fp4": ("rows", "outputs", "inputs"),
    "gqa_decode_bf16": ("sequences", "context", "heads", "kv_heads"),
    "gqa_decode_fp8": ("sequences", "context", "heads", "kv_heads"),
    "mla_decode_bf16": ("sequences", "context", "heads"),
    "mla_decode_fp8": ("sequences", "context", "heads"),
    "context_gqa": ("prompts", "tokens", "heads", "kv_heads"),
    "context_mla": ("prompts", "tokens", "heads"),
    "moe_bf16": ("tokens", "experts", "top_k", "ranks", "hidden", "width"),
    "moe_fp8": ("tokens", "experts", "top_k", "ranks", "hidden", "width"),
    "moe_fp8_block": ("tokens", "experts", "top_k", "ranks", "hidden", "width"),
    "moe_fp4": ("tokens", "experts", "top_k", "ranks", "hidden", "width"),
    "moe_mxfp4": ("tokens", "experts", "top_k", "ranks", "hidden", "width"),
    "all_reduce": ("bytes", "gpus"),
    "dispatch": ("tokens", "top_k", "hidden", "nodes"),
    "combine": ("tokens", "top_k", "hidden", "nodes"),
}
"""Group to what its rows say; widths are those of one GPU."""


@dataclass(frozen=True)
class KernelTable:
    """Rows of one kernel of one engine on one GPU."""

    gpu: str
    engine: str
    group: str
    values: Any
    """An array of as many columns as the group has."""
    seconds: Any

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def columns(self) -> dict[str, Any]:
        """The columns by name."""
        return dict(zip(COLUMNS[self.group], self.values.T, strict=True))

    @cached_property
    def keys(self) -> Any:
        """A number of each row between 0 and 1: a hash of its labels; small tables are dealt in turn."""
        if len(self) < SMALL:
            order = np.lexsort(self.values.T)
            turn = np.empty(len(self))
            turn[order] = np.arange(len(self)) % 2 * 0.5 + np.arange(len(self)) / (2 * len(self) + 1)
            return turn
        rows = (",".join(f"{value:g}" for value in row) for row in self.values)
        return np.array([int.from_bytes(hashlib.sha256(row.encode()).digest()[:6], "big") / 2**48 for row in rows])

    def where(self, chosen: Any) -> KernelTable:
        """Some of the rows."""
        return KernelTable(self.gpu, self.engine, self.group, self.values[chosen], self.seconds[chosen])

    @cached_property
    def plausible(self) -> Any:
        """False for rows of experts that take half as long again as another row with more work of every kind.

        Whole groups of launches run 3 to 6 times slower than larger ones: the collection chose a wrong kernel there.
        """
        if not self.group.startswith("moe_"):
            return np.ones(len(self), bool)
        c, fine = self.columns, np.ones(len(self), bool)
        model = c["experts"] * 1e9 + c["top_k"] * 1e6 + c["hidden"]
        for one in np.unique(model):
            rows = np.flatnonzero(model == one)
            work = np.column_stack([c["tokens"][rows], -c["ranks"][rows], c["width"][rows]])
            for row, own in zip(rows, work, strict=True):
                more = (work >= own).all(axis=1)
                fine[row] = self.seconds[row] < 1.5 * self.seconds[rows[more]].min()
        return fine

    def fitted(self, most: int = 1500) -> KernelTable:
        """Rows a fit may see: at most so many of those whose hash is below a half, implausible ones left out."""
        level = self._level(0.0, most)
        return self.where((self.keys < 0.5) & (self.keys <= level) & self.plausible)

    def held(self) -> KernelTable:
        """Rows no fit sees."""
        return self.where(self.keys >= 0.5)

    def sample(self, most: int) -> KernelTable:
        """At most so many of the held rows, implausible ones left out."""
        return self.where((self.keys >= 0.5) & (self.keys <= self._level(0.5, most)) & self.plausible)

    def _level(self, start: float, most: int) -> float:
        beyond = np.sort(self.keys[self.keys >= start])
        return float(beyond[most - 1]) if len(beyond) >= most else 1.0


def read_sample() -> list[KernelTable]:
    """The tables of the tests: held rows only."""
    found: dict[tuple[str, str, str], list[list[float]]] = {}
    with SAMPLE.open(newline="", encoding="utf-8") as text:
        for gpu, engine, group, *numbers in csv.reader(line for line in text if not line.startswith("#")):
            found.setdefault((gpu, engine, group), []).append([float(number) for number in numbers])
    tables = ((key, np.array(rows)) for key, rows in found.items())
    return [KernelTable(*key, rows[:, :-1], rows[:, -1] * 1e-6) for key, rows in tables]


def write_sample(samples: Iterable[KernelTable]) -> None:
    """Keep these rows; microseconds."""
    with SAMPLE.open("w", newline="", encoding="utf-8") as text:
        text.write("# held rows of systems/data/*/*_perf.parquet, aiconfigurator-core 0.12.0 (PyPI, Apache-2.0): gpu, ")
        text.write("engine, group, its columns (benchmarks/kernel_tables.py), microseconds\n")
        for table in samples:
            for row, seconds in zip(table.values, table.seconds, strict=True):
                numbers = ",".join(f"{value:g}" for value in (*row, round(seconds * 1e6, 3)))
                text.write(f"{table.gpu},{table.engine},{table.group},{numbers}\n")


def read_tables(systems: Path, gpu: str) -> Iterator[KernelTable]:
    """The whole tables of one GPU."""
    folder = systems / "data" / SYSTEMS[gpu]
    for engine, name in ENGINES.items():
        for reader in (_gemm, _gqa_decode, _mla_decode, _context, _moe, _all_reduce, _exchange):
            for group, labels, seconds in reader(folder, engine):
                values = np.column_stack([np.asarray(labels[column], float) for column in COLUMNS[group]])
                _, first = np.unique(values, axis=0, return_index=True)
                chosen = np.sort(first)
                if len(chosen) > 40:
                    yield KernelTable(gpu, name, group, values[chosen], np.asarray(seconds, float)[chosen])


_Part = Iterator[tuple[str, dict[str, Any], Any]]


def _parquet(folder: Path, kind: str, engine: str, name: str) -> dict[str, Any] | None:
    """The newest version of a table, a NumPy array a column."""
    import pyarrow.parquet

    files = sorted((folder / kind / engine).glob(f"*/{name}_perf.parquet"), key=_version)
    if not files:
        return None
    table = pyarrow.parquet.read_table(files[-1])
    return {column: table[column].to_numpy() for column in table.column_names}


def _version(file: Path) -> list[int]:
    digits = "".join(letter if letter.isdigit() else " " for letter in file.parent.name)
    return [int(number) for number in digits.split()]


def _gemm(folder: Path, engine: str) -> _Part:
    table = _parquet(folder, "gemm", engine, "gemm")
    if table is None:
        return
    names = {"bfloat16": "gemm_bf16", "fp8": "gemm_fp8", "fp8_block": "gemm_fp8_block", "nvfp4": "gemm_fp4"}
    usual = (table["m"] <= 16384) & (np.minimum(table["n"], table["k"]) >= 1024)
    usual &= np.maximum(table["n"], table["k"]) <= 32768
    for label, group in names.items():
        rows = usual & (table["gemm_dtype"] == label)
        labels = {"rows": table["m"][rows], "outputs": table["n"][rows], "inputs": table["k"][rows]}
        yield group, labels, table["latency"][rows] * 1e-3


def _kv_heads(table: dict[str, Any]) -> Any:
    return np.where(table["num_key_value_heads"] == 0, table["num_heads"], table["num_key_value_heads"])


def _windows(table: dict[str, Any]) -> Any:
    """Sliding windows; older tables have none."""
    return table.get("window_size", np.zeros(len(table["latency"])))


def _gqa_decode(folder: Path, engine: str) -> _Part:
    table = _parquet(folder, "attention", engine, "generation_attention")
    if table is None:
        return
    kv_heads, context = _kv_heads(table), table["step"] + table["isl"]
    usual = (table["head_dim"] == 128) & (_windows(table) == 0) & (context >= 256)
    usual &= (table["num_heads"] >= 4 * kv_heads) & (table["num_heads"] <= 16 * kv_heads)
    for label, group in (("bfloat16", "gqa_decode_bf16"), ("fp8", "gqa_decode_fp8")):
        rows = usual & (table["kv_cache_dtype"] == label)
        labels = {"sequences": table["batch_size"], "context": context, "heads": table["num_heads"]}
        labels["kv_heads"] = kv_heads
        yield group, {name: values[rows] for name, values in labels.items()}, table["latency"][rows] * 1e-3


def _mla_decode(folder: Path, engine: str) -> _Part:
    table = _parquet(folder, "mla", engine, "generation_mla")
    if table is None:
        return
    context = table["step"] + table["isl"]
    for label, group in (("bfloat16", "mla_decode_bf16"), ("fp8", "mla_decode_fp8")):
        rows = (context >= 256) & (table["kv_cache_dtype"] == label)
        labels = {"sequences": table["batch_size"], "context": context, "heads": table["num_heads"]}
        yield group, {name: values[rows] for name, values in labels.items()}, table["latency"][rows] * 1e-3


def _context(folder: Path, engine: str) -> _Part:
    table = _parquet(folder, "attention", engine, "context_attention")
    if table is not None:
        rows = (table["head_dim"] == 128) & (_windows(table) == 0) & (table["step"] == 0) & (table["isl"] >= 64)
        rows &= (table["attn_dtype"] == "bfloat16") & (table["kv_cache_dtype"] == "bfloat16")
        labels = {"prompts": table["batch_size"], "tokens": table["isl"], "heads": table["num_heads"]}
        labels["kv_heads"] = _kv_heads(table)
        yield "context_gqa", {name: values[rows] for name, values in labels.items()}, table["latency"][rows] * 1e-3
    table = _parquet(folder, "mla", engine, "context_mla")
    if table is not None:
        rows = (table["kv_cache_dtype"] == "bfloat16") & (table["isl"] >= 64)
        labels = {"prompts": table["batch_size"], "tokens": table["isl"], "heads": table["num_heads"]}
        yield "context_mla", {name: values[rows] for name, values in labels.items()}, table["latency"][rows] * 1e-3


EXPERT_FORMATS = {
    "bfloat16": "moe_bf16",
    "fp8": "moe_fp8",
    "fp8_block": "moe_fp8_block",
    "nvfp4": "moe_fp4",
    "w4a16_mxfp4": "moe_mxfp4",
}


def _moe(folder: Path, engine: str) -> _Part:
    """Gated experts, tokens dealt round-robin; of each format the newest table that has it."""
    files = sorted((folder / "moe" / engine).glob("*/moe_perf.parquet"), key=_version)
    tables = [_gated(file) for file in reversed(files)]
    for label, group in EXPERT_FORMATS.items():
        table = next((table for table in tables if (table["moe_dtype"] == label).any()), None)
        if table is None:
            continue
        rows = table["moe_dtype"] == label
        labels = {"tokens": "num_tokens", "experts": "num_experts", "top_k": "topk", "ranks": "moe_ep_size"}
        labels |= {"hidden": "hidden_size"}
        named = {name: table[column][rows] for name, column in labels.items()}
        named["width"] = table["inter_size"][rows] / table["moe_tp_size"][rows]
        yield group, named, table["latency"][rows] * 1e-3


def _gated(file: Path) -> dict[str, Any]:
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(file)
    columns = {column: table[column].to_numpy() for column in table.column_names}
    gated = np.array([not source.endswith(("nongated", "min_latency")) for source in columns["kernel_source"]])
    gated &= columns["distribution"] == "balanced"
    gated &= (columns["num_experts"] % columns["moe_ep_size"] == 0) & (columns["moe_tp_size"] > 0)
    return {name: values[gated] for name, values in columns.items()}


def _all_reduce(folder: Path, engine: str) -> _Part:
    table = _parquet(folder, "comm", engine, "custom_allreduce")
    if table is not None:
        graph = np.array([not source.endswith("eager") for source in table["kernel_source"]])
        labels = {"bytes": 2 * table["message_size"][graph], "gpus": table["num_gpus"][graph]}
        yield "all_reduce", labels, table["latency"][graph] * 1e-3


def _exchange(folder: Path, engine: str) -> _Part:
    """Low-latency exchanges, of all versions: the newest has one node only."""
    import pyarrow.parquet

    for file in sorted((folder / "comm" / engine).glob("*/wideep_deepep_ll_perf.parquet"), key=_version)[:1]:
        table = pyarrow.parquet.read_table(file)
        columns = {column: table[column].to_numpy() for column in table.column_names}
        labels = {"tokens": "num_token", "top_k": "num_topk", "hidden": "hidden_size", "nodes": "node_num"}
        named = {name: columns[column] for name, column in labels.items()}
        for way in ("dispatch", "combine"):
            yield way, named, columns[f"{way}_avg_t_us"] * 1e-6
