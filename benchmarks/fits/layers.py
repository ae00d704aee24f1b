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
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fidelity_layers import TRUTH, Row, errors, predicted, ratios

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


MOST = 1500
"""Rows a fit looks at."""

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


MODULES = (
    ("dsa", "sglang", "sparse_attention/sglang/0.5.14/dsa"),
    ("dsa", "vllm", "sparse_attention/vllm/0.24.0/dsa"),
    ("dsa", "trtllm", "sparse_attention/trtllm/1.3.0rc23/dsa"),
    ("csa", "sglang", "sparse_attention/sglang/0.5.14/dsv4_csa"),
    ("csa", "vllm", "sparse_attention/vllm/0.24.0/dsv4_csa"),
    ("hca", "sglang", "sparse_attention/sglang/0.5.14/dsv4_hca"),
    ("hca", "vllm", "sparse_attention/vllm/0.24.0/dsv4_hca"),
    ("msa", "sglang", "msa/sglang/0.5.16/msa"),
    ("msa", "vllm", "msa/vllm/0.24.0/msa"),
    ("msa", "trtllm", "msa/trtllm/1.3.0rc23/msa"),
)
MODELS = {
    "deepseek-ai/DeepSeek-V3.2": ("deepseek-v3.2", 128),
    "zai-org/GLM-5": ("glm-5", 64),
    "zai-org/GLM-5-FP8": ("glm-5", 64),
    "zai-org/GLM-5.2": ("glm-5.2", 64),
    "zai-org/GLM-5.2-FP8": ("glm-5.2", 64),
    "sgl-project/DeepSeek-V4-Flash-FP8": ("deepseek-v4-flash", 64),
    "sgl-project/DeepSeek-V4-Pro-FP8": ("deepseek-v4-pro", 128),
    "MiniMaxAI/MiniMax-M3": ("minimax-m3", 64),
}
"""Name in the tables to model card and query heads."""
GEMMS = {"bfloat16": "bf16", "fp8_block": "fp8_block"}
"""Formats of the projections in the tables, and here."""


def module_rows(folder: Path, gpu: str) -> Iterator[Row]:
    """Attention modules with their projections, in prefill and decode."""
    for kind, engine, path in MODULES:
        for phase in ("generation", "context"):
            for row in read(folder / GPUS[gpu] / f"{path}_{phase}_module_perf.parquet"):
                yield from _module_row(gpu, kind, engine, phase, row)


def _module_row(gpu: str, kind: str, engine: str, phase: str, row: Row) -> Iterator[Row]:
    model, heads = MODELS.get(row["model"], ("", 0))
    if row["num_heads"] > heads or row["latency"] <= 0 or row["gemm_type"] not in GEMMS:
        return
    narrow = row["kv_cache_dtype"].startswith("fp8")
    layouts = ("bf16_fp8_index", "fp8_ds_mla") if kind == "dsa" else ("bf16", "fp8")
    yield {
        "gpu": gpu,
        "engine": engine,
        "kind": kind,
        "phase": phase,
        "model": model,
        "ratio": row.get("compress_ratio", 0),
        "indexer": kind != "hca" and "skip_indexer" not in row["op_name"],
        "gemm": GEMMS[row["gemm_type"]],
        "kv": layouts[narrow],
        "heads": row["num_heads"],
        "batch": row["batch_size"],
        "tokens": row["isl"],
        "cached": row["step"],
        "microseconds": row["latency"] * 1e3,
    }


@dataclass(frozen=True)
class Fit:
    """Constants fitted together: their start, the rows they are fitted to, how the source names them."""

    table: str
    rows: Callable[[Path, str], Iterator[Row]]
    chosen: Callable[[Row], bool]
    start: dict[str, float]
    words: str
    kept: int = 30
    """Rows of each group of the sample; a third of them of engines no constant was fitted to."""
    increments: bool = False
    """Fit what changes between neighbouring shapes, not the whole: projections and host time drop out."""


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


def _dsa(row: Row) -> bool:
    return row["kind"] == "dsa" and row["indexer"]


def _long(row: Row) -> bool:
    return float(row["microseconds"]) > HOST


def _vllm_dsa(row: Row) -> bool:
    return _dsa(row) and row["engine"] == "vllm" and (row["phase"] == "generation" or _long(row))


def _sglang_decode(row: Row) -> bool:
    """Beyond the tokens it selects; larger batches leave CUDA graphs and take 1.3 ms whatever they hold."""
    return (
        _dsa(row)
        and (row["engine"], row["phase"]) == ("sglang", "generation")
        and row["batch"] <= 256
        and row["cached"] >= 2048
    )


def _vllm_msa(row: Row) -> bool:
    return (row["kind"], row["engine"], row["phase"]) == ("msa", "vllm", "context") and _long(row)


HOST = 3000.0
"""Microseconds a prompt takes at least, while the host launches its attention module kernel by kernel."""

FITS += (
    Fit(
        "modules",
        module_rows,
        _vllm_dsa,
        {
            "indexer_flops": 1.3e15,
            "indexer_score_bandwidth": 1.5e12,
            "sparse_stream_bandwidth": 3.7e12,
            "sparse_attention_flops": 600e12,
        },
        "attention modules of vLLM with an indexer, what more context or longer prompts of as many tokens add",
        0,
        increments=True,
    ),
    Fit(
        "modules",
        module_rows,
        _vllm_msa,
        {"block_sparse_flops": 400e12},
        "block-sparse attention modules of vLLM in prefill, projections from the GEMM constants",
        0,
    ),
    Fit(
        "modules",
        module_rows,
        _sglang_decode,
        {"indexer_floor_seconds": 20e-6, "indexer_entry_seconds": 3e-10, "sparse_narrow_cache_flops": 400e12},
        "attention modules of SGLang in decode, projections from the GEMM constants",
        24,
    ),
)


def fitted(hardware: Hardware, fit: Fit, rows: list[Row]) -> dict[str, float]:
    """Constants that leave the smallest robust error of the logarithm, every group of rows weighing the same."""
    import numpy
    from scipy.optimize import least_squares

    pairs = neighbours(rows) if fit.increments else [(row, None) for row in rows]
    sizes = Counter((row["kind"], row["phase"]) for row, _ in pairs)
    weights = numpy.array([sizes[row["kind"], row["phase"]] ** -0.5 for row, _ in pairs])
    names, scales = list(fit.start), numpy.array(list(fit.start.values()))
    more, less = [row for row, _ in pairs], [row for _, row in pairs if row is not None]
    measured = _difference(_measured(more), _measured(less))

    def residuals(factors: Any) -> Any:
        changed = {name: float(value) for name, value in zip(names, numpy.exp(factors) * scales, strict=True)}
        card = with_constants(hardware, changed)
        found = _difference(predicted(card, fit.table, more), predicted(card, fit.table, less))
        errors = numpy.log(numpy.maximum(found, 1e-9) / measured)
        # Far from the truth an error counts as it is, not squared.
        return weights * numpy.sign(errors) * numpy.sqrt(2 * (numpy.sqrt(1 + (errors / NEAR) ** 2) - 1)) * NEAR

    found = least_squares(residuals, numpy.zeros(len(names)), bounds=(-2, 2))
    return {name: float(f"{value:.3g}") for name, value in zip(names, numpy.exp(found.x) * scales, strict=True)}


def _measured(rows: list[Row]) -> list[float]:
    return [row["microseconds"] * 1e-6 for row in rows]


def _difference(more: list[float], less: list[float]) -> Any:
    import numpy

    return numpy.array(more) - numpy.array(less) if less else numpy.array(more)


def neighbours(rows: list[Row]) -> list[tuple[Row, Row]]:
    """Pairs of the next larger and a shape that differ by a tenth of the time: more context, or longer prompts."""
    series: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        same = tuple(row[name] for name in ("kind", "engine", "phase", "model", "indexer", "gemm", "kv", "heads"))
        if row["phase"] == "generation":
            series.setdefault((*same, row["batch"]), []).append(row)
        elif row["cached"] == 0:
            series.setdefault((*same, row["batch"] * row["tokens"]), []).append(row)
    pairs = []
    for members in series.values():
        members.sort(key=lambda row: (row["cached"], row["tokens"]))
        pairs += [(more, less) for less, more in pairwise(members) if more["microseconds"] > 1.1 * less["microseconds"]]
    return pairs


def with_constants(hardware: Hardware, constants: dict[str, float]) -> Hardware:
    """The card with these constants."""
    return replace(hardware, kernels=replace(hardware.kernels, **constants))


def report(folder: Path, gpu: str, sample: dict[str, list[Row]]) -> dict[str, dict[str, Any]]:
    """Fit one GPU, print constants and residuals, add to the sample; entries for the card."""
    entries: dict[str, dict[str, Any]] = {}
    card = with_constants(load_hardware(gpu), {name: value for fit in FITS for name, value in fit.start.items()})
    for fit in FITS:
        rows = list(fit.rows(folder, gpu))
        chosen = [row for row in rows if fit.chosen(row)]
        if not chosen:
            continue
        half = [row for row in chosen if digest(row) % 2]
        if not fit.increments and len(half) > MOST:
            half = sorted(half, key=digest)[:MOST]
        constants = fitted(card, fit, half)
        card = with_constants(card, constants)
        held = [row for row in rows if not digest(row) % 2]
        median, high, _ = errors(_judged(card, fit, [row for row in held if fit.chosen(row)]))
        words = f"fitted to {len(half)} rows of {SOURCE}, {fit.words}: {100 * median:.1f} % median, {100 * high:.0f} %"
        entries |= {name: entry(name, value, f"{words} p90 error of the rest") for name, value in constants.items()}
        print(f"\n{gpu}: {', '.join(f'{name} {value:.3g}' for name, value in constants.items())}; {words}")
        if fit.kept:
            _residuals(card, fit, held)
            if gpu in SAMPLED:
                sample.setdefault(fit.table, []).extend(_sample(fit, held))
    return entries


def _judged(card: Hardware, fit: Fit, rows: list[Row]) -> list[float]:
    """Predicted over measured of what was fitted."""
    if not fit.increments:
        return ratios(card, fit.table, rows)
    more, less = ([pair[place] for pair in neighbours(rows)] for place in (0, 1))
    found = _difference(predicted(card, fit.table, more), predicted(card, fit.table, less))
    return [float(ratio) for ratio in found / _difference(_measured(more), _measured(less))]


def _groups(rows: list[Row]) -> dict[tuple[str, ...], list[Row]]:
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["kind"], row["phase"], row["engine"]), []).append(row)
    return groups


def _residuals(card: Hardware, fit: Fit, rows: list[Row]) -> None:
    for name, group in _groups(rows).items():
        median, high, bias = (100 * error for error in errors(ratios(card, fit.table, group)))
        print(f"  {' '.join(name):40} {len(group):6} held rows {median:6.1f} {high:6.1f} {bias:+6.1f} %")
        late = [row for row in group if row["phase"] == "context" and _long(row)]
        if late and fit.table == "modules":
            median, high, bias = (100 * error for error in errors(ratios(card, fit.table, late)))
            print(
                f"  {'   of them beyond host time':40} {len(late):6} held rows {median:6.1f} {high:6.1f} {bias:+6.1f} %"
            )


def _sample(fit: Fit, rows: list[Row]) -> Iterator[Row]:
    for group in _groups(rows).values():
        timed = [row for row in group if fit.table == "recurrence" or row["phase"] == "generation" or _long(row)]
        yield from sorted(timed, key=digest)[: fit.kept if group[0]["engine"] == "vllm" else fit.kept // 3]


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
        entries = report(folder, gpu, samples)
        entries |= {name: entry(name, *given, "assumed") for name, given in ASSUMED.get(gpu, {}).items()}
        if "--cards" in arguments:
            write_card(gpu, entries)
    if "--sample" in arguments:
        write_sample(samples)


if __name__ == "__main__":
    main(sys.argv[1:])
