"""Fit the constants of recurrent and sparse layers to kernel tables, and keep a sample of the tables.

The tables are those of the PyPI package aiconfigurator-core 0.12.0 (Apache-2.0), unpacked::

    python benchmarks/fits/layers.py FOLDER/aiconfigurator_core/systems/data [--sample] [--cards]

prints constants and residuals. Constants are fitted to one half of the shapes, told apart by a hash of the shape;
residuals and the sample are of the other half. ``--sample`` rewrites tests/truth/layer_kernels.json, ``--cards`` the
constants on the hardware cards (then run benchmarks/borrow_kernels.py).
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from math import log
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fidelity_layers import PREDICTORS, TRUTH, Row, errors

from capplan.cards.hardware import Hardware
from capplan.cards.hardware_card import load_hardware

SOURCE = "kernel tables of aiconfigurator-core 0.12.0 (Apache-2.0, PyPI)"
GPUS = {
    "h200": "h200_sxm",
    "h100-sxm": "h100_sxm",
    "b200": "b200_sxm",
    "b300": "b300_sxm",
    "gb200": "gb200",
    "gb300": "gb300",
}
"""Hardware card to folder of the tables."""

SAMPLED = ("h200", "h100-sxm", "b200")

RECURRENCES = (
    ("gated_delta", "vllm", "linear_attention/vllm/0.24.0/gdn_perf.parquet"),
    ("gated_delta", "sglang", "linear_attention/sglang/0.5.14/gdn_perf.parquet"),
    ("gated_delta", "trtllm", "linear_attention/trtllm/1.3.0rc20/gdn_perf.parquet"),
    ("kimi_delta", "vllm", "kda/vllm/0.1.dev19262/kda_perf.parquet"),
    ("kimi_delta", "sglang", "kda/sglang/0.5.16/kda_perf.parquet"),
)


NEAR = 0.1
"""Relative errors below this are squared, those beyond it are not."""


def digest(row: Row) -> int:
    """A number for the shape of a row, whatever the GPU and the measurement."""
    shape = [value for key, value in sorted(row.items()) if key not in ("gpu", "microseconds")]
    return int(sha256(json.dumps(shape).encode()).hexdigest(), 16)


def read(path: Path) -> list[Row]:
    """The rows of a parquet file; none where there is no such table."""
    from pyarrow import parquet

    return parquet.read_table(path).to_pylist() if path.is_file() else []


def recurrence_rows(folder: Path, gpu: str) -> Iterator[Row]:
    """Recurrence and convolution of equal shapes, their times added.

    The convolution of kimi delta prompts in vLLM is left out: its rows hold 0.8 ms of host time each.
    """
    for kind, engine, path in RECURRENCES:
        found: dict[tuple[Any, ...], dict[str, list[float]]] = {}
        for row in read(folder / GPUS[gpu] / path):
            key = row["phase"], row["batch_size"], row["seq_len"], row["num_k_heads"], row["num_v_heads"]
            part = "convolution" if "conv" in row["kernel_source"] else row["kernel_source"]
            found.setdefault(key, {}).setdefault(part, []).append(row["latency"] * 1e3)
        for key, parts in found.items():
            yield from _recurrence_row(gpu, kind, engine, key, parts)


def _recurrence_row(gpu: str, kind: str, engine: str, key: Any, parts: dict[str, list[float]]) -> Iterator[Row]:
    alone = (kind, engine, key[0]) == ("kimi_delta", "vllm", "context")
    scans = [min(times) for part, times in parts.items() if part != "convolution"]
    if not scans or not ("convolution" in parts or alone):
        return
    phase, batch, tokens, key_heads, value_heads = key
    yield {
        "gpu": gpu,
        "engine": engine,
        "kind": kind,
        "kernels": "recurrence" if alone else "both",
        "phase": phase,
        "batch": batch,
        "tokens": tokens,
        "key_heads": key_heads,
        "value_heads": value_heads,
        # Where an engine has two kernels for a shape it takes the faster one.
        "microseconds": min(scans) + (0.0 if alone else min(parts["convolution"])),
    }


@dataclass(frozen=True)
class Fit:
    """Constants fitted together: their start, the rows they are fitted to, how the source names them."""

    table: str
    rows: Callable[[Path, str], Iterator[Row]]
    chosen: Callable[[Row], bool]
    start: dict[str, float]
    words: str
    kept: int
    """Rows of each group of the sample; a third of them of engines no constant was fitted to."""


FITS = (
    Fit(
        "recurrence",
        recurrence_rows,
        lambda row: row["engine"] == "vllm",
        {
            "recurrence_floor_seconds": 5.5e-6,
            "recurrence_stream_bandwidth": 4.1e12,
            "recurrence_flops": 270e12,
            "kimi_delta_flops": 100e12,
            "recurrence_ramp_tokens": 130.0,
            "recurrence_token_seconds": 5e-8,
            "kimi_delta_token_seconds": 8e-8,
            "context_recurrence_floor_seconds": 12e-6,
            "convolution_stream_bandwidth": 2.6e12,
        },
        "gated-delta and kimi-delta kernels of vLLM",
        30,
    ),
)


ASSUMED = {
    "h200": {
        "scan_element_seconds": (
            2.7e-13,
            "an exponential a state element and token, 16 a clock on each of 132 multiprocessors at 1.76 GHz (CUDA C++ "
            "Programming Guide, arithmetic throughput); nobody measured it",
        )
    }
}
"""Constants no table holds, by card."""


def fitted(hardware: Hardware, fit: Fit, rows: list[Row]) -> dict[str, float]:
    """Constants that leave the smallest robust error of the logarithm, every group of rows weighing the same."""
    import numpy
    from scipy.optimize import least_squares

    sizes = Counter((row["kind"], row["phase"]) for row in rows)
    weights = numpy.array([sizes[row["kind"], row["phase"]] ** -0.5 for row in rows])
    names, scales = list(fit.start), numpy.array(list(fit.start.values()))
    predict = PREDICTORS[fit.table]

    def residuals(factors: Any) -> Any:
        changed = {name: float(value) for name, value in zip(names, numpy.exp(factors) * scales, strict=True)}
        card = replace(hardware, kernels=replace(hardware.kernels, **changed))
        errors = numpy.array([log(predict(card, row) / (row["microseconds"] * 1e-6)) for row in rows])
        # Far from the truth an error counts as it is, not squared.
        return weights * numpy.sign(errors) * numpy.sqrt(2 * (numpy.sqrt(1 + (errors / NEAR) ** 2) - 1)) * NEAR

    found = least_squares(residuals, numpy.zeros(len(names)))
    return {name: float(f"{value:.3g}") for name, value in zip(names, numpy.exp(found.x) * scales, strict=True)}


def with_constants(hardware: Hardware, constants: dict[str, float]) -> Hardware:
    """The card with these constants."""
    return replace(hardware, kernels=replace(hardware.kernels, **constants))


def report(folder: Path, gpu: str, fit: Fit, sample: list[Row]) -> dict[str, dict[str, Any]]:
    """Fit one GPU, print constants and residuals, add to the sample; entries for the card."""
    rows = list(fit.rows(folder, gpu))
    chosen = [row for row in rows if fit.chosen(row)]
    if not chosen:
        return {}
    half = [row for row in chosen if digest(row) % 2 and digest(row) // 2 % max(len(chosen) // 1500, 1) == 0]
    constants = fitted(load_hardware(gpu), fit, half)
    card = with_constants(load_hardware(gpu), constants)
    print(f"\n{gpu}: {', '.join(f'{name} {value:.3g}' for name, value in constants.items())}")
    held = [row for row in rows if not digest(row) % 2]
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in held:
        groups.setdefault((row["kind"], row["phase"], row["engine"]), []).append(row)
    for name, group in groups.items():
        median, high, bias = (100 * error for error in errors([_ratio(card, fit, row) for row in group]))
        print(f"  {' '.join(name):40} {len(group):6} held rows {median:6.1f} {high:6.1f} {bias:+6.1f} %")
        if gpu in SAMPLED:
            sample += sorted(group, key=digest)[: fit.kept if fit.chosen(group[0]) else fit.kept // 3]
    median, high, _ = errors([_ratio(card, fit, row) for row in held if fit.chosen(row)])
    words = f"fitted to {len(half)} rows of {SOURCE}, {fit.words}: {100 * median:.1f} % median, {100 * high:.0f} % p90"
    return {name: entry(name, value, f"{words} error on the other half") for name, value in constants.items()}


def _ratio(card: Hardware, fit: Fit, row: Row) -> float:
    return PREDICTORS[fit.table](card, row) / (row["microseconds"] * 1e-6)


def entry(name: str, value: float, source: str, kind: str = "fitted") -> dict[str, Any]:
    """A constant as a card holds it."""
    from capplan.cards.hardware_card import kernel_base_unit

    return {"value": value, "unit": kernel_base_unit(name), "kind": kind, "source": source}


def write_sample(samples: dict[str, list[Row]]) -> None:
    """The sample as columns and rows, one row a line."""
    source = f"{SOURCE}; a sample of the shapes no constant was fitted to, chosen by hash (benchmarks/fits/layers.py)"
    tables = ",\n".join(f"{json.dumps(name)}: {_table(rows)}" for name, rows in samples.items())
    TRUTH.write_text(f'{{"source": {json.dumps(source)},\n"tables": {{\n{tables}\n}}}}\n', encoding="utf-8")


def _table(rows: list[Row]) -> str:
    columns = [key for key in rows[0] if key != "microseconds"]
    lines = (json.dumps([*(row[key] for key in columns), float(f"{row['microseconds']:.4g}")]) for row in rows)
    body = ",\n".join(lines)
    return f'{{"columns": {json.dumps([*columns, "microseconds"])}, "rows": [\n{body}\n]}}'


def write_card(gpu: str, entries: dict[str, dict[str, Any]]) -> None:
    """Put constants on a card, in front of ``sustained_share`` where it is the last."""
    from borrow_kernels import CARDS, render

    path = CARDS / f"{gpu}.json"
    card = json.loads(path.read_text(encoding="utf-8"))
    card["kernels"] = {**card["kernels"], **entries}
    path.write_text(render(card) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> None:
    """Fit every GPU that has tables."""
    folder = Path(arguments[0])
    samples: dict[str, list[Row]] = {}
    for gpu in GPUS:
        entries: dict[str, dict[str, Any]] = {}
        for fit in FITS:
            entries |= report(folder, gpu, fit, samples.setdefault(fit.table, []))
        entries |= {name: entry(name, *given, "assumed") for name, given in ASSUMED.get(gpu, {}).items()}
        if "--cards" in arguments:
            write_card(gpu, entries)
    if "--sample" in arguments:
        write_sample(samples)


if __name__ == "__main__":
    main(sys.argv[1:])
