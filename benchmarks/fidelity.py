"""Predicted over measured: kernel tables, steps, prefills and error bands. Run: ``python benchmarks/fidelity.py``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from capplan.cards.engine_card import load_engine
from capplan.cards.hardware import Band, Hardware, Kernels
from capplan.cards.hardware_card import load_hardware
from capplan.cards.model_card import load_model
from capplan.formulas.attention_time import (
    attention_flops_per_pair,
    context_attention_seconds,
    decode_attention_seconds,
)
from capplan.formulas.collectives import exchange_seconds
from capplan.formulas.error_band import band_factors, coverage
from capplan.formulas.experts import expert_term, experts_seconds
from capplan.formulas.gemm import gemm_term, gemms_seconds
from capplan.serving.layout import Layout
from capplan.serving.prefill import prefill
from capplan.serving.prepared import decode_kind
from capplan.serving.step import decode_step

TRUTH = Path(__file__).resolve().parent.parent / "tests" / "truth"

Table = tuple[str, list[float]]
"""Name, and predicted over measured of every row."""


def truth(name: str) -> dict[str, Any]:
    """A file of measurements."""
    return json.loads((TRUTH / f"{name}.json").read_text())


def gemm(kernels: Kernels, arithmetic: str, rows: int, outputs: int, inputs: int) -> float:
    """One matrix product [s]."""
    width = 2 if arithmetic == "bf16" else 1
    term = gemm_term(
        inputs,
        outputs,
        width,
        kernels.gemm_floor_seconds,
        kernels.gemm_stream_bandwidth,
        kernels.gemm_narrow_outputs,
        getattr(kernels, f"gemm_flops_{arithmetic}"),
    )
    return gemms_seconds(rows, [term])


def gqa_decode(kernels: Kernels, heads: int, kv_heads: int, sequences: int, context: int, kv: str) -> float:
    """One grouped-query decode attention, head width 128 [s]."""
    wide = kv == "bf16"
    return decode_attention_seconds(
        sequences,
        context,
        1,
        kv_heads * 256 * (2 if wide else 1),
        attention_flops_per_pair(heads, 128, 128),
        kernels.attention_floor_seconds,
        kernels.attention_stream_bandwidth if wide else kernels.attention_stream_bandwidth_fp8,
        kernels.context_attention_flops,
        kernels.attention_ramp_tokens,
        kernels.attention_token_seconds,
    )


def mla_decode(kernels: Kernels, sequences: int, context: int) -> float:
    """One absorbed decode attention of DeepSeek-V3 with all 128 heads [s]."""
    return decode_attention_seconds(
        sequences,
        context,
        1,
        576 * 2,
        attention_flops_per_pair(128, 576, 512),
        kernels.mla_floor_seconds,
        kernels.attention_stream_bandwidth,
        kernels.mla_decode_flops,
        kernels.attention_ramp_tokens,
        kernels.mla_token_seconds,
    )


def context_attention(kernels: Kernels, kind: str, tokens: int) -> float:
    """One causal prefill attention: 32 heads of 128 over 8, or DeepSeek-V3's 128 of 192 and 128 [s]."""
    heads, kv_heads, key, value = (32, 8, 128, 128) if kind == "gqa" else (128, 128, 192, 128)
    return context_attention_seconds(
        1,
        tokens,
        0,
        None,
        kv_heads * (key + value) * 2,
        attention_flops_per_pair(heads, key, value),
        kernels.context_attention_floor_seconds,
        kernels.attention_stream_bandwidth,
        kernels.context_attention_flops,
        kernels.context_attention_ramp_tokens,
    )


def experts(kernels: Kernels, distinct: int, rows_each: int, inputs: int, outputs: int) -> float:
    """One grouped fp8 product [s]."""
    term = expert_term(
        inputs,
        outputs,
        1,
        kernels.moe_floor_seconds / 2,
        kernels.moe_stream_bandwidth,
        kernels.moe_narrow_outputs,
        kernels.moe_flops_fp8,
        kernels.moe_padding_rows,
    )
    return experts_seconds(distinct * rows_each, distinct, [term])


def exchange(kernels: Kernels, gpus: int, width: int) -> float:
    """One low-latency exchange of 128 tokens a GPU, 8 copies of 7,168 elements, 8 GPUs a node [s]."""
    payload = 128 * 8 * 7168 * width
    return exchange_seconds(
        payload * 7 / gpus,
        payload * (gpus - 8) / gpus,
        kernels.dispatch_bandwidth,
        kernels.internode_bandwidth,
        kernels.internode_floor_seconds if gpus > 8 else kernels.dispatch_floor_seconds,
    )


def kernel_tables() -> Iterator[Table]:
    """Every kernel table."""
    measured, kernels = truth("h200_kernels"), load_hardware("h200").kernels
    for arithmetic in ("bf16", "fp8"):
        rows = [row for row in measured["gemm"]["rows"] if row[0] == arithmetic]
        yield f"H200 GEMM {arithmetic}", [gemm(kernels, *row[:-1]) / row[-1] for row in rows]
    for kv in ("bf16", "fp8"):
        rows = [row for row in measured["gqa_decode"]["rows"] if row[4] == kv]
        yield f"H200 GQA decode, {kv} KV", [gqa_decode(kernels, *row[:-1]) / row[-1] for row in rows]
    rows = measured["mla_decode"]["rows"]
    yield "H200 MLA decode, 128 heads", [mla_decode(kernels, *row[:-1]) / row[-1] for row in rows]
    rows = measured["context_attention"]["rows"]
    yield "H200 prefill attention", [context_attention(kernels, *row[:-1]) / row[-1] for row in rows]
    yield from h800_tables()
    rows, h100 = truth("h100_gemm")["gemm"]["rows"], load_hardware("h100").kernels
    yield "H100 GEMM fp16 (not fitted)", [gemm(h100, "bf16", *row[:-1]) / (row[-1] * 1e-6) for row in rows]


def h800_tables() -> Iterator[Table]:
    """Kernel tables of one H800, and exchanges between H800 nodes."""
    measured, kernels = truth("h800_kernels"), load_hardware("h800").kernels
    rows = measured["fp8_gemm"]["rows"]
    yield "H800 GEMM fp8", [gemm(kernels, "fp8", *row[:-1]) / (row[-1] * 1e-6) for row in rows]
    ratios = []
    for local, each, up, down in measured["fp8_experts"]["rows"]:
        ratios += [experts(kernels, local, each, 7168, 4096) / (up * 1e-6)]
        ratios += [experts(kernels, local, each, 2048, 7168) / (down * 1e-6)]
    yield "H800 grouped GEMM fp8", ratios
    rows = measured["gqa_decode"]["rows"]
    yield "H800 GQA decode", [gqa_decode(kernels, *row[:-1], "bf16") / (row[-1] * 1e-6) for row in rows]
    rows = measured["mla_decode"]["rows"]
    yield "H800 MLA decode", [mla_decode(kernels, *row[:-1]) / (row[-1] * 1e-6) for row in rows]
    # These run for seconds under the power limit, the rate of the card is that of short runs.
    sustained = replace(kernels, context_attention_flops=kernels.context_attention_flops * kernels.sustained_share)
    rows = measured["mla_context_attention"]["rows"]
    yield "H800 prefill attention", [context_attention(sustained, "mla", row[0]) / (row[1] * 1e-6) for row in rows]
    ratios = []
    for gpus, dispatch, combine in measured["exchange"]["rows"]:
        ratios += [exchange(kernels, gpus, 1) / (dispatch * 1e-6), exchange(kernels, gpus, 2) / (combine * 1e-6)]
    yield "H800 expert exchange", ratios


def prefill_table() -> Table:
    """Llama-3.1-8B prompts on one H200."""
    model, hardware = load_model("llama-3.1-8b"), load_hardware("h200")
    rows = truth("h200_kernels")["prefill_llama_8b"]["rows"]
    return "H200 prefill, Llama-3.1-8B", [prefill(model, hardware, Layout(), row[0]).seconds / row[1] for row in rows]


def whole_steps() -> Iterator[tuple[str, float, float]]:
    """Name, predicted and measured of every whole step [ms] and prefill [token/s/GPU]."""
    measured = truth("step_measurements")
    for row in measured["decode"]:
        model, hardware, layout = _where(row)
        step = decode_step(model, hardware, layout, row["batch"], row["context"], **row.get("options", {}))
        name = f"{row['id']} {row['model']} {row['gpu']} {layout} batch {row['batch']} context {row['context']}, ms"
        yield name, step.seconds * 1e3, row["milliseconds"]
    for row in measured["prefill"]:
        model, hardware, layout = _where(row)
        one = prefill(model, hardware, layout, row["tokens"], prompts=row["prompts"], **row.get("options", {}))
        name = f"{row['id']} {row['model']} {row['gpu']} {layout} prefill, token/s/GPU"
        yield name, one.tokens_per_second_per_gpu, row["tokens_per_second_per_gpu"]


def band_rows() -> Iterator[tuple[str, Band, float, float]]:
    """Kind of error band, the band of the GPU, measured and predicted seconds of every whole step and prefill."""
    measured = truth("step_measurements")
    for row in measured["decode"]:
        model, hardware, layout = _where(row)
        step = decode_step(model, hardware, layout, row["batch"], row["context"], **row.get("options", {}))
        engine = row.get("options", {}).get("engine")
        kind = decode_kind(model, None if engine is None else load_engine(engine))
        yield kind, hardware.bands[kind], row["milliseconds"] * 1e-3, step.seconds
    for row in measured["prefill"]:
        model, hardware, layout = _where(row)
        one = prefill(model, hardware, layout, row["tokens"], prompts=row["prompts"], **row.get("options", {}))
        slower = one.tokens_per_second_per_gpu / row["tokens_per_second_per_gpu"]
        yield "prefill", hardware.bands["prefill"], slower * one.seconds, one.seconds


def coverage_table() -> Iterator[tuple[str, int, float, float, float]]:
    """Kind, rows, the share of them inside the band of their own card, and the band the rows themselves would give."""
    rows: dict[str, list[tuple[Band, float, float]]] = {}
    for kind, band, measured, predicted in band_rows():
        rows.setdefault(kind, []).append((band, measured, predicted))
    for kind, found in rows.items():
        inside = [coverage([measured], [predicted], band.low, band.high) for band, measured, predicted in found]
        own = band_factors([measured for _, measured, _ in found], [predicted for _, _, predicted in found])
        yield kind, len(found), sum(inside) / len(inside), *own


def _where(row: dict[str, Any]) -> tuple[Any, Hardware, Layout]:
    return load_model(row["model"]), load_hardware(row["gpu"]), Layout(**row["layout"])


def errors(ratios: list[float]) -> tuple[float, float, float]:
    """Median and 90th percentile of the error, and median signed error."""
    size = sorted(abs(ratio - 1) for ratio in ratios)
    signed = sorted(ratio - 1 for ratio in ratios)
    return size[len(size) // 2], size[min(int(0.9 * len(size)), len(size) - 1)], signed[len(signed) // 2]


def main() -> None:
    """Print the tables."""
    print(f"{'table':34} rows  median    p90   bias  (% of measured)")
    for name, ratios in [*kernel_tables(), prefill_table()]:
        median, high, bias = (100 * value for value in errors(ratios))
        print(f"{name:34} {len(ratios):4} {median:7.1f} {high:6.1f} {bias:+6.1f}")
    print(f"\n{'whole step':72} predicted measured  error %")
    for name, predicted, measured in whole_steps():
        print(f"{name:72} {predicted:9.2f} {measured:8.2f} {100 * (predicted / measured - 1):+8.1f}")
    print(f"\n{'whole steps in the 80 % error band of their card':48} rows  inside  band of the rows")
    for kind, count, inside, low, high in coverage_table():
        print(f"{kind:48} {count:4} {inside:7.0%}  {low:.2f}-{high:.2f}")


if __name__ == "__main__":
    main()
