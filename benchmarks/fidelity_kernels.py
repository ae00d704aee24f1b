"""Kernel tables, predicted over measured: public ones, own ones of an H200, published ones of an H800."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from kernel_models import table_seconds
from kernel_tables import KernelTable, read_sample

from capplan.cards.engine_card import load_engine
from capplan.cards.hardware import Kernels
from capplan.cards.hardware_card import load_hardware
from capplan.formulas.experts import expert_term, experts_seconds

TRUTH = Path(__file__).resolve().parent.parent / "tests" / "truth"
HOPPER = ("h100-sxm", "h200")

QUANTISE_SECONDS = {
    "h100-sxm": 9.2e-6,
    "h200": 9.2e-6,
    "b200": 12.3e-6,
    "b300": 11.8e-6,
    "gb200": 11.9e-6,
    "gb300": 11.8e-6,
    "l40s": 4.2e-6,
    "rtx-pro-6000": 7.2e-6,
}
"""Start-up of the kernels that scale and convert activations in front of TensorRT-LLM's products in its tables."""

BLOCK_QUANTISE_SECONDS = 7e-6
"""The same in front of block fp8, TensorRT-LLM and SGLang; vLLM's table has some 60 us of host time."""

Ratios = Any
Line = tuple[str, Ratios, tuple[float, float] | None]
"""Name, predicted over measured, and the median and p90 error that must be reached [%]."""


def ratios(table: KernelTable) -> Ratios:
    """Predicted over measured of every row of a public table, with the constants of card and engine."""
    hardware, engine = load_hardware(table.gpu), load_engine(table.engine)
    names = ("kernel_time_factor", "context_attention_factor", "fp8_kv_share")
    shares = {name: float(getattr(engine, name)) for name in names}
    if table.group == "gemm_fp8_block":
        shares["quantise_seconds"] = BLOCK_QUANTISE_SECONDS
    if table.engine == "tensorrt-llm" and table.group in ("gemm_fp8", "gemm_fp4"):
        shares["quantise_seconds"] = QUANTISE_SECONDS.get(table.gpu, 0.0)
    return table_seconds(hardware.kernels, table, shares) / table.seconds


def target_lines() -> Iterator[Line]:
    """Held rows of the public tables, gathered as the targets are stated."""
    tables = read_sample()

    def gathered(groups: Iterable[str], gpus: Iterable[str], engines: Iterable[str] = ()) -> Ratios:
        chosen = [
            ratios(table)
            for table in tables
            if table.group in groups and table.gpu in gpus and (not engines or table.engine in engines)
        ]
        return np.concatenate(chosen)

    trt, big = ("tensorrt-llm",), (*HOPPER, "b200")
    gemm = np.concatenate([gathered(["gemm_bf16"], big), gathered(["gemm_fp8"], big, trt)])
    yield "GEMM bf16 and TensorRT-LLM fp8", gemm, (6, 18)
    yield "GQA decode, groups of 4 to 16, Hopper", gathered(["gqa_decode_bf16"], HOPPER), (7, 25)
    yield "MLA decode, Hopper", gathered(["mla_decode_bf16"], HOPPER), (7, 20)
    yield "prefill attention, Hopper", gathered(["context_gqa"], HOPPER), (6, 15)
    experts = gathered(["moe_bf16", "moe_fp8", "moe_fp8_block"], HOPPER, trt)
    yield "experts, TensorRT-LLM gated, Hopper", experts, (6, 35)
    yield "all-reduce, TensorRT-LLM", gathered(["all_reduce"], big, trt), (6, 20)
    yield "DeepEP low latency, H200, 1 to 8 nodes", gathered(["dispatch", "combine"], ["h200"]), (5, 8)


def detail_lines() -> Iterator[Line]:
    """Every held table by GPU and engine."""
    for table in read_sample():
        yield f"{table.gpu} {table.engine} {table.group}", ratios(table), None


def own_lines() -> Iterator[Line]:
    """Tables measured on one H200 for this project, and those published of one H800."""
    h200, h800 = load_hardware("h200").kernels, load_hardware("h800").kernels
    own, published = _truth("h200_kernels"), _truth("h800_kernels")
    for kind in ("bf16", "fp8"):
        rows = [row[1:] for row in own["gemm"]["rows"] if row[0] == kind]
        yield f"H200 GEMM {kind}", _ratios(h200, f"gemm_{kind}", rows), None
    for kind in ("bf16", "fp8"):
        rows = [[*row[2:4], *row[:2], row[5]] for row in own["gqa_decode"]["rows"] if row[4] == kind]
        yield f"H200 GQA decode, {kind} KV", _ratios(h200, f"gqa_decode_{kind}", rows), None
    rows = [[*row[:2], 128, row[2]] for row in own["mla_decode"]["rows"]]
    yield "H200 MLA decode, 128 heads", _ratios(h200, "mla_decode_bf16", rows), None
    found = own["context_attention"]["rows"]
    gqa = _ratios(h200, "context_gqa", [[1, row[1], 32, 8, row[2]] for row in found if row[0] == "gqa"], bare=1.0)
    mla = _ratios(h200, "context_mla", [[1, row[1], 128, row[2]] for row in found if row[0] == "mla"], bare=1.0)
    yield "H200 prefill attention", np.concatenate([gqa, mla]), None
    yield from _h800_lines(h800, published)
    rows = [[*row[:-1], row[-1] * 1e-6] for row in _truth("h100_gemm")["gemm"]["rows"]]
    yield "H100 GEMM fp16 (not fitted)", _ratios(load_hardware("h100").kernels, "gemm_bf16", rows), None


def _h800_lines(kernels: Kernels, published: dict[str, Any]) -> Iterator[Line]:
    rows = _seconds(published["fp8_gemm"]["rows"])
    yield "H800 GEMM fp8", _ratios(kernels, "gemm_fp8", rows), None
    yield "H800 grouped GEMM fp8", np.array(list(_grouped(kernels, published["fp8_experts"]["rows"]))), None
    rows = [[*row[2:4], *row[:2], row[4]] for row in _seconds(published["gqa_decode"]["rows"])]
    yield "H800 GQA decode", _ratios(kernels, "gqa_decode_bf16", rows), None
    rows = [[*row[:2], 128, row[2]] for row in _seconds(published["mla_decode"]["rows"])]
    yield "H800 MLA decode", _ratios(kernels, "mla_decode_bf16", rows), None
    # These run for seconds under the power limit; the rate of the card is that of short runs.
    rows = [[1, row[0], 128, row[1]] for row in _seconds(published["mla_context_attention"]["rows"])]
    yield "H800 prefill attention", _ratios(kernels, "context_mla", rows, bare=1.0, sustained=1.0), None
    for way, place in (("dispatch", 1), ("combine", 2)):
        rows = [[128, 8, 7168, row[0] // 8, row[place] * 1e-6] for row in published["exchange"]["rows"]]
        yield f"H800 expert {way}", _ratios(kernels, way, rows), None


def _grouped(kernels: Kernels, rows: Iterable[list[float]]) -> Iterator[float]:
    """Products alone, of 7,168 by 4,096 and 2,048 by 7,168."""
    for local, each, up, down in rows:
        for inputs, outputs, microseconds in ((7168, 4096, up), (2048, 7168, down)):
            term = expert_term(inputs, outputs, 1, kernels.moe_floor_seconds / 2, kernels.moe_stream_bandwidth,
                               kernels.moe_narrow_outputs, kernels.moe_flops_fp8, kernels.moe_padding_rows)  # fmt: skip
            yield float(experts_seconds(local * each, local, [term])) / (microseconds * 1e-6)


def _truth(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((TRUTH / f"{name}.json").read_text(encoding="utf-8"))
    return found


def _seconds(rows: list[list[float]]) -> list[list[float]]:
    """Rows whose last column is in microseconds."""
    return [[*row[:-1], row[-1] * 1e-6] for row in rows]


def _ratios(kernels: Kernels, group: str, rows: list[list[float]], **shares: float) -> Ratios:
    values = np.array(rows, float)
    table = KernelTable("", "torch", group, values[:, :-1], values[:, -1])
    return table_seconds(kernels, table, shares) / table.seconds
