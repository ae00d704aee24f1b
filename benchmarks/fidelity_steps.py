"""Published steps, prefills and runs, predicted beside measured; none of them was fitted to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from capplan.cards.engine_card import load_engine
from capplan.cards.hardware import Band, Hardware
from capplan.cards.hardware_card import load_hardware
from capplan.cards.model import Model
from capplan.cards.model_card import load_model
from capplan.serving.closed_loop import closed_loop
from capplan.serving.layout import Layout
from capplan.serving.memory import memory
from capplan.serving.prefill import prefill
from capplan.serving.prepared import decode_kind
from capplan.serving.step import decode_step

TRUTH = Path(__file__).resolve().parent.parent / "tests" / "truth"

Pair = tuple[str, float, float]
"""Name, predicted and measured."""

COLLAPSE = {1024: 1620.0, 8192: 1218.0, 32768: 438.0}
"""Output tokens to token/s/GPU: DeepSeek-R1 FP8 on 8 H200, attention DP8, experts EP8, 1,024 prompt tokens, saturated
(TensorRT-LLM documentation, performance overview)."""


def _truth(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((TRUTH / f"{name}.json").read_text(encoding="utf-8"))
    return found


def _where(row: dict[str, Any]) -> tuple[Model, Hardware, Layout]:
    return load_model(row["model"]), load_hardware(row["gpu"]), Layout(**row["layout"])


def published_decode() -> Iterator[Pair]:
    """The frozen list of published decode rows on Hopper."""
    for row in _truth("published_decode")["rows"]:
        name = f"{row['id']} {row['model']} {row['gpu']} {Layout(**row['layout'])}, {row['quantity']}, {row['unit']}"
        yield name, _predicted(row), row["value"]


def _predicted(row: dict[str, Any]) -> float:
    place, options = _where(row), dict(row["options"])
    if row["quantity"] == "tpot":
        return 1e3 * closed_loop(*place, row["isl"], row["osl"], row["batch"], **options).tpot_seconds
    step = decode_step(*place, row["batch"], row["context"], **options)
    if row["quantity"] == "step":
        return float(step.seconds) * 1e3
    return float(step.tokens_per_second_per_gpu or 0.0)


def whole_steps() -> Iterator[Pair]:
    """Whole steps [ms] and prefills [token/s/GPU] of all GPUs."""
    measured = _truth("step_measurements")
    for row in measured["decode"]:
        step = decode_step(*_where(row), row["batch"], row["context"], **row.get("options", {}))
        name = f"{row['id']} {row['model']} {row['gpu']} {Layout(**row['layout'])}"
        yield f"{name} batch {row['batch']} context {row['context']}, ms", step.seconds * 1e3, row["milliseconds"]
    for row in measured["prefill"]:
        one = prefill(*_where(row), row["tokens"], prompts=row["prompts"], **row.get("options", {}))
        name = f"{row['id']} {row['model']} {row['gpu']} {Layout(**row['layout'])} prefill, token/s/GPU"
        yield name, float(one.tokens_per_second_per_gpu or 0.0), row["tokens_per_second_per_gpu"]


def own_prefills() -> list[float]:
    """Predicted over measured of Llama-3.1-8B prompts on one H200."""
    model, hardware = load_model("llama-3.1-8b"), load_hardware("h200")
    rows = _truth("h200_kernels")["prefill_llama_8b"]["rows"]
    return [float(prefill(model, hardware, Layout(), row[0]).seconds) / row[1] for row in rows]


def skew_that_explains() -> tuple[float, float, float]:
    """Expert skew that makes the balanced prefill of SGLang on 32 H100 the one without balancing, and both rates."""
    model, hardware, layout = load_model("deepseek-v3"), load_hardware("h100"), Layout(dp=32)

    def rate(skew: float) -> float:
        one = prefill(model, hardware, layout, 4096, prompts=128, overlap=True, skew=skew, engine="sglang")
        return float(one.tokens_per_second_per_gpu or 0.0)

    balanced, wanted = rate(1.0), 6287.75 / 7417.125
    low, high = 1.0, 8.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if rate(middle) / balanced > wanted else (low, middle)
    return low, balanced, rate(low)


def collapse() -> Iterator[Pair]:
    """Saturated throughput of DeepSeek-R1 on 8 H200 as outputs grow [token/s/GPU]."""
    model, hardware, layout = load_model("deepseek-r1"), load_hardware("h200"), Layout(dp=8, ep=8)
    budget = memory(model, hardware, layout, "tensorrt-llm", kv_dtype="fp8")
    for output, measured in COLLAPSE.items():
        slots = float(budget.instance.max_sequences(1024 + output))
        sizes = [size for size in (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384) if size < slots]
        best = max(
            closed_loop(model, hardware, layout, 1024, output, size, engine="tensorrt-llm", kv_dtype="fp8")
            .tokens_per_second for size in (*sizes, slots)
        )  # fmt: skip
        yield f"1,024 in, {output:,} out, at most {slots:,.0f} in flight", best / layout.gpus, measured


def band_rows() -> Iterator[tuple[str, Band, float, float]]:
    """Kind of error band, the band of the GPU, measured and predicted seconds of every whole step and prefill."""
    measured = _truth("step_measurements")
    for row in measured["decode"]:
        model, hardware, layout = _where(row)
        step = decode_step(model, hardware, layout, row["batch"], row["context"], **row.get("options", {}))
        engine = row.get("options", {}).get("engine")
        kind = decode_kind(model, None if engine is None else load_engine(engine))
        yield kind, hardware.bands[kind], row["milliseconds"] * 1e-3, float(step.seconds)
    for row in measured["prefill"]:
        model, hardware, layout = _where(row)
        one = prefill(model, hardware, layout, row["tokens"], prompts=row["prompts"], **row.get("options", {}))
        slower = float(one.tokens_per_second_per_gpu or 0.0) / row["tokens_per_second_per_gpu"]
        yield "prefill", hardware.bands["prefill"], slower * float(one.seconds), float(one.seconds)
