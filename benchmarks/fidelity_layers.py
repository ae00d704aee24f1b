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

from capplan.cards.hardware import Hardware
from capplan.cards.hardware_card import load_hardware
from capplan.cards.model import Recurrence
from capplan.cards.model_recurrence import gated_delta, kimi_delta
from capplan.cards.weight_formats import FORMATS
from capplan.serving.recurrent_plan import recurrent_layers, recurrent_layers_seconds
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


PREDICTORS = {"recurrence": recurrence_seconds}


def tables() -> Iterator[Table]:
    """Every group of the sample: GPU, kind, phase and engine."""
    for name, rows in truth().items():
        groups: dict[str, list[float]] = {}
        for row in rows:
            ratio = PREDICTORS[name](load_hardware(row["gpu"]), row) / (row["microseconds"] * 1e-6)
            groups.setdefault(f"{row['gpu']} {row['kind']} {row['phase']}, {row['engine']}", []).append(ratio)
        yield from groups.items()


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
