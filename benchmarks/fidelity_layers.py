"""Predicted over measured for layers beyond plain attention, from the sample in tests/truth/layer_kernels.json.

Run: ``python benchmarks/fidelity_layers.py``. Every prediction goes through the plan a decode step or a prefill uses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy

from capplan.cards.hardware import Hardware
from capplan.cards.hardware_card import load_hardware
from capplan.cards.model import LayerGroup, Model, Recurrence
from capplan.cards.model_card import load_model
from capplan.cards.model_recurrence import gated_delta, kimi_delta
from capplan.cards.weight_formats import FORMATS
from capplan.serving.kernel_plan import build_plan
from capplan.serving.layout import Layout
from capplan.serving.passes import evaluate, pass_parts
from capplan.serving.recurrent_plan import recurrent_layers, recurrent_layers_seconds
from capplan.serving.sparse_plan import is_sparse
from capplan.serving.work import Work

TRUTH = Path(__file__).resolve().parent.parent / "tests" / "truth" / "layer_kernels.json"

Row = dict[str, Any]
Table = tuple[str, list[float]]
"""Name, and predicted over measured of every row."""


def truth() -> dict[str, list[Row]]:
    """The sample: rows by kind of kernel, each a dictionary."""
    tables = json.loads(TRUTH.read_text(encoding="utf-8"))["tables"]
    return {
        name: [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]] for name, table in tables.items()
    }


def one_pass(sequences: Any, new_tokens: Any, cached: Any, phase: str) -> Work:
    """What equal sequences bring to one kernel."""
    return Work(sequences, new_tokens, cached, sequences * new_tokens, sequences, 1.0, prefill=phase == "context")


@cache
def delta_rule(kind: str, key_heads: int, value_heads: int) -> Recurrence:
    """A delta rule with heads of 128 x 128."""
    wide = FORMATS["bf16"]
    if kind == "kimi_delta":
        return kimi_delta(7168, n_heads=value_heads, head_dim=128, conv_kernel=4, format=wide, gate_format=wide)
    return gated_delta(
        4096,
        key_heads=key_heads,
        value_heads=value_heads,
        key_head_dim=128,
        value_head_dim=128,
        conv_kernel=4,
        format=wide,
        gate_format=wide,
    )


def recurrence_seconds(hardware: Hardware, row: Row) -> float:
    """Convolution and recurrence of one layer; the recurrence alone where the row has no convolution [s]."""
    layers = recurrent_layers(delta_rule(row["kind"], row["key_heads"], row["value_heads"]), hardware, 1)
    if row["kernels"] == "recurrence":
        layers = replace(layers, convolution_state_bytes=0.0, convolution_token_bytes=0.0)
    work = one_pass(float(row["batch"]), float(row["tokens"]), 0.0, row["phase"])
    return float(recurrent_layers_seconds(work, (layers,)))


MODULE_PARTS = (
    "attention_seconds",
    "sparse_attention_seconds",
    "indexer_seconds",
    "linear_seconds",
    "elementwise_seconds",
)


@cache
def attention_layer(name: str, ratio: int, own_indexer: bool, gemm: str) -> tuple[Model, LayerGroup]:
    """A model, and one of its layers without its feed-forward and hyper-connections."""
    model = load_model(name).with_weight_dtype(gemm)
    for group in model.layers:
        attention = group.attention
        if attention is None or not is_sparse(attention) or attention.compress_ratio != ratio:
            continue
        if (attention.indexer is not None) == own_indexer:
            return model, replace(group, count=1, feed_forward=None, matmuls=())
    raise LookupError(f"{name} has no such layer")


def module_seconds(hardware: Hardware, rows: list[Row]) -> list[float]:
    """Attention modules of one layer, projections and small kernels included; rows of one shape of it [s]."""
    first = rows[0]
    model, group = attention_layer(first["model"], first["ratio"], first["indexer"], first["gemm"])
    assert group.attention is not None
    tp = group.attention.n_heads // first["heads"]
    plan = build_plan(model, (group,), hardware, Layout(tp=tp), first["kv"], None)
    batch, tokens, cached = (numpy.array([float(row[key]) for row in rows]) for key in ("batch", "tokens", "cached"))
    parts, _ = pass_parts(plan, one_pass(batch, tokens, cached, first["phase"]), evaluate)
    return [float(value) for value in sum(parts[name] for name in MODULE_PARTS if name in parts)]


def predicted(hardware: Hardware, table: str, rows: list[Row]) -> list[float]:
    """Seconds of every row."""
    if table == "recurrence":
        return [recurrence_seconds(hardware, row) for row in rows]
    groups: dict[tuple[Any, ...], list[int]] = {}
    for place, row in enumerate(rows):
        key = tuple(row[name] for name in ("model", "ratio", "indexer", "gemm", "kv", "heads", "phase"))
        groups.setdefault(key, []).append(place)
    seconds = [0.0] * len(rows)
    for places in groups.values():
        for place, value in zip(places, module_seconds(hardware, [rows[place] for place in places]), strict=True):
            seconds[place] = value
    return seconds


def tables() -> Iterator[Table]:
    """Every group of the sample: GPU, kind, phase and engine."""
    for name, rows in truth().items():
        groups: dict[str, list[Row]] = {}
        for row in rows:
            groups.setdefault(f"{row['gpu']} {row['kind']} {row['phase']}, {row['engine']}", []).append(row)
        for group, members in groups.items():
            yield group, ratios(load_hardware(members[0]["gpu"]), name, members)


def ratios(hardware: Hardware, table: str, rows: list[Row]) -> list[float]:
    """Predicted over measured."""
    seconds = predicted(hardware, table, rows)
    return [value / (row["microseconds"] * 1e-6) for value, row in zip(seconds, rows, strict=True)]


def errors(ratios: list[float]) -> tuple[float, float, float]:
    """Median and 90th percentile of the error, and median signed error."""
    size = sorted(abs(ratio - 1) for ratio in ratios)
    signed = sorted(ratio - 1 for ratio in ratios)
    return size[len(size) // 2], size[min(int(0.9 * len(size)), len(size) - 1)], signed[len(signed) // 2]


def main() -> None:
    """Print the tables."""
    print(f"{'table':48} rows  median    p90   bias  (% of measured)")
    for name, ratios in tables():
        median, high, bias = (100 * value for value in errors(ratios))
        print(f"{name:48} {len(ratios):4} {median:7.1f} {high:6.1f} {bias:+6.1f}")


if __name__ == "__main__":
    main()
