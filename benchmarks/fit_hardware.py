"""Fit the kernel constants of the hardware cards to measured kernel tables, and write them to the cards.

    python benchmarks/fit_hardware.py SYSTEMS [--gpu h200 ...] [--write] [--sample]

``SYSTEMS`` is the folder ``aiconfigurator_core/systems`` of the PyPI package aiconfigurator-core 0.12.0 (Apache-2.0);
needs pyarrow and SciPy. Fitted to the rows whose label hash is below a half, judged on the others; every constant is
written with the rows it was fitted to and its held median and p90 error. ``--sample`` rewrites
``tests/truth/kernel_tables.csv``. Afterwards ``benchmarks/borrow_kernels.py`` fills what no table tells.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from borrow_kernels import CARDS, render
from kernel_models import table_seconds
from kernel_tables import SYSTEMS, KernelTable, read_tables, write_sample

from capplan.cards.engine_card import load_engine
from capplan.cards.hardware import Hardware, Kernels
from capplan.cards.hardware_card import kernel_base_unit, load_hardware

PACKAGE = "aiconfigurator-core 0.12.0 (Apache-2.0, PyPI)"
OWN = Path(__file__).resolve().parent.parent / "tests" / "truth" / "h200_kernels.json"
SAMPLED = {"h100-sxm": 160, "h200": 160, "b200": 80}
"""Held rows of each table kept in the tests; 12 on the other GPUs."""
ALL_KEPT = "gqa_decode_bf16"
"""Table whose errors have so long a tail that on these GPUs all held rows are kept."""


USABLE = (0.22, 0.6)
"""Held median and p90 error above which a fit is not written: the form does not hold there, the card borrows."""


KERNEL_TIME_FACTOR = load_engine("vllm").kernel_time_factor
"""Kernels as engines call them over kernels alone, by which the tables of engines are read."""

NEGLIGIBLE = 0.5
"""Rows, columns or tokens below which a constant is written as none."""


@dataclass(frozen=True)
class Fit:
    """Constants fitted together, and to which tables."""

    constants: tuple[str, ...]
    groups: tuple[str, ...]
    engines: tuple[str, ...] = ("tensorrt-llm", "vllm", "sglang", "torch")
    nuisance: str = ""
    """A constant of the tables, not of the card."""
    anchor: str = ""
    """Engine whose times are taken as they are; those of the others may all be longer or shorter by one factor."""


FITS = (
    Fit(("gemm_floor_seconds", "gemm_stream_bandwidth", "gemm_narrow_outputs", "gemm_flops_bf16"), ("gemm_bf16",)),
    Fit(("gemm_flops_fp8",), ("gemm_fp8",), ("tensorrt-llm", "torch"), "quantise_seconds"),
    Fit(
        ("gemm_flops_fp8_block",),
        ("gemm_fp8_block",),
        ("tensorrt-llm", "sglang"),
        "quantise_seconds",
    ),
    Fit(("gemm_flops_fp4",), ("gemm_fp4",), ("tensorrt-llm",), "quantise_seconds"),
    Fit(
        ("context_attention_floor_seconds", "context_attention_stream_bandwidth", "context_attention_flops",
         "context_attention_token_seconds"),
        ("context_gqa",),
        anchor="vllm",
    ),
    Fit(("context_mla_stream_bandwidth",), ("context_mla",), ("tensorrt-llm",)),
    Fit(
        ("attention_floor_seconds", "attention_stream_bandwidth", "attention_ramp_tokens", "attention_token_seconds"),
        ("gqa_decode_bf16",),
    ),
    Fit(("attention_stream_bandwidth_fp8",), ("gqa_decode_fp8",), ("vllm", "torch")),
    Fit(
        ("mla_floor_seconds", "mla_stream_bandwidth", "mla_decode_flops", "mla_token_seconds"), ("mla_decode_bf16",)
    ),
    Fit(
        ("moe_floor_seconds", "moe_stream_bandwidth", "moe_narrow_outputs", "moe_row_passes", "moe_quantise_passes",
         "moe_flops_bf16", "moe_flops_fp8", "moe_padding_rows", "moe_padding_rows_bf16"),
        ("moe_bf16", "moe_fp8_block"),
        ("tensorrt-llm",),
    ),
    Fit(("moe_flops_fp4",), ("moe_fp4",), ("tensorrt-llm",)),
    Fit(
        ("all_reduce_floor_seconds", "all_reduce_floor_per_gpu_seconds", "all_reduce_two_step_floor_seconds",
         "all_reduce_bandwidth"),
        ("all_reduce",),
        ("tensorrt-llm",),
    ),
    Fit(
        ("dispatch_floor_seconds", "dispatch_floor_per_doubling_seconds", "combine_floor_seconds",
         "dispatch_bandwidth", "internode_floor_seconds", "internode_bandwidth"),
        ("dispatch", "combine"),
    ),
)  # fmt: skip
"""In an order in which later fits rest on earlier ones."""


@dataclass(frozen=True)
class Fitted:
    """What a fit gives."""

    fit: Fit
    kernels: Kernels
    rows: int
    median: float
    high: float
    nuisance: float


def fitted(fit: Fit, hardware: Hardware, tables: Sequence[KernelTable]) -> Fitted | None:
    """The constants of one fit, none above a peak of the data sheet; None where the GPU has no such table."""
    from scipy.optimize import least_squares

    kernels = hardware.kernels
    chosen = [table for table in tables if table.group in fit.groups and table.engine in fit.engines]
    if not chosen:
        return None
    seen = [table if table.engine == "torch" else _told(table.fitted()) for table in chosen]
    names = [name for name in fit.constants if _shown(name, chosen, hardware)]
    start = [getattr(kernels, name) or 1e-9 for name in names] + ([5e-6] if fit.nuisance else [])

    weights = _weights(seen)

    def residuals(logs: Any) -> Any:
        trial, extra = _with(kernels, fit, names, logs)
        errors = (_errors(fit, trial, table, extra) for table in seen)
        return np.concatenate([weight * error for weight, error in zip(weights, errors, strict=True)])

    most = [_most(name, hardware) for name in names] + [1.0] * bool(fit.nuisance)
    start = [min(value, 0.9 * limit) for value, limit in zip(start, most, strict=True)]
    bounds = (np.log(start) - 5, np.minimum(np.log(most), np.log(start) + 5))
    found = least_squares(residuals, np.log(start), loss="soft_l1", f_scale=0.05, bounds=bounds)
    best, extra = _with(kernels, fit, names, found.x)
    held = [_told(table.held()) for table in chosen if table.engine != "torch"]
    errors = np.concatenate([abs(np.expm1(_errors(fit, best, table, extra))) for table in held])
    fine = np.concatenate([table.plausible for table in held])
    if not fine.all():
        print(f"  {(~fine).mean():.1%} implausible; with them {np.median(errors):.1%} {np.quantile(errors, 0.9):.1%}")
    errors = errors[fine]
    rows, extra_value = sum(len(table) for table in seen), next(iter(extra.values()), 0.0)
    return Fitted(replace(fit, constants=tuple(names)), best, rows, float(np.median(errors)),
                  float(np.quantile(errors, 0.9)), extra_value)  # fmt: skip


def _errors(fit: Fit, kernels: Kernels, table: KernelTable, extra: dict[str, float]) -> Any:
    """Logarithm of predicted over measured."""
    own = {"bare": 1.0} if table.engine == "torch" else {"kernel_time_factor": KERNEL_TIME_FACTOR, **extra}
    errors = np.log(table_seconds(kernels, table, own) / table.seconds)
    return errors if fit.anchor == "" or table.engine in (fit.anchor, "torch") else errors - np.median(errors)


def _weights(tables: Sequence[KernelTable]) -> list[float]:
    """Own rows count as much as all others together: only they are of kernels alone."""
    others = sum(len(table) for table in tables if table.engine != "torch")
    return [(others / len(table)) ** 0.5 if table.engine == "torch" and others else 1.0 for table in tables]


def _told(table: KernelTable) -> KernelTable:
    """The rows that tell the constant.

    The rate of an 8-bit cache shows where 100 MB and more of it are read; that of block fp8 where many rows are
    multiplied.
    """
    c = table.columns
    if table.group == "gqa_decode_fp8":
        return table.where((c["sequences"] * c["context"] * c["kv_heads"] * 256 > 1e8) & (c["context"] >= 4096))
    return table.where(c["rows"] >= 1024) if table.group == "gemm_fp8_block" else table


def _most(name: str, hardware: Hardware) -> float:
    if "stream_bandwidth" in name:
        return hardware.hbm_bandwidth
    if name == "gemm_flops_fp8_block":
        return _most("gemm_flops_fp8", hardware)
    kind = name.rsplit("_", 1)[-1]
    if name.startswith("moe_flops"):  # a grouped product is no faster than a plain one
        return float(getattr(hardware.kernels, name.replace("moe", "gemm")))
    if "_flops" in name:
        return hardware.peak_flops.get(kind if kind in ("bf16", "fp8", "fp4") else "bf16", 1e16)
    return 1e16


def _shown(name: str, tables: Sequence[KernelTable], hardware: Hardware) -> bool:
    """Whether the tables can tell the constant.

    In the tables of experts in block fp8 the handling of pairs hides the arithmetic; on Hopper that is known from
    products alone.
    """
    if name == "moe_flops_fp8" and hardware.architecture == "Hopper":
        return False
    if name.startswith("internode") or "doubling" in name:
        return any((table.columns["nodes"] > 1).any() for table in tables)
    if name in ("moe_flops_fp8", "moe_padding_rows", "moe_quantise_passes"):
        return any(table.group == "moe_fp8_block" for table in tables)
    return True


def _with(kernels: Kernels, fit: Fit, names: Sequence[str], logs: Any) -> tuple[Kernels, dict[str, float]]:
    values = np.exp(logs)
    trial = replace(kernels, **dict(zip(names, map(float, values), strict=False)))
    return trial, {fit.nuisance: float(values[-1])} if fit.nuisance else {}


def own_tables() -> Iterator[KernelTable]:
    """Tables measured for this project on one H200."""
    measured = json.loads(OWN.read_text())
    for kind in ("bf16", "fp8"):
        yield _own(f"gemm_{kind}", [row[1:] for row in measured["gemm"]["rows"] if row[0] == kind])
        rows = [[*row[2:4], *row[:2], row[5]] for row in measured["gqa_decode"]["rows"] if row[4] == kind]
        yield _own(f"gqa_decode_{kind}", rows)
    rows = [[1, row[1], 32, 8, row[2]] for row in measured["context_attention"]["rows"] if row[0] == "gqa"]
    yield _own("context_gqa", rows)
    yield _own("mla_decode_bf16", [[*row[:2], 128, row[2]] for row in measured["mla_decode"]["rows"]])


def _own(group: str, rows: list[list[float]]) -> KernelTable:
    values = np.array(rows, float)
    return KernelTable("h200", "torch", group, values[:, :-1], values[:, -1])


def fit_card(gpu: str, tables: Sequence[KernelTable]) -> Iterator[Fitted]:
    """All fits of one GPU, later ones with the constants of earlier ones."""
    hardware = load_hardware(CARDS / f"{gpu}.json")
    for fit in FITS:
        result = fitted(fit, hardware, tables)
        if result is not None:
            hardware = replace(hardware, kernels=result.kernels)
            yield result


def write_card(gpu: str, results: Sequence[Fitted]) -> None:
    """Put the constants on the card, those of a law that holds for the kernels of this GPU."""
    path = CARDS / f"{gpu}.json"
    card = json.loads(path.read_text(encoding="utf-8"))
    for result in results:
        if result.median > USABLE[0] or result.high > USABLE[1]:
            continue
        for name in result.fit.constants:
            value, unit = float(f"{getattr(result.kernels, name):.4g}"), kernel_base_unit(name)
            if unit == "1" and value < NEGLIGIBLE:
                value = 0.0
            card["kernels"][name] = {"value": value, "unit": unit, "kind": "fitted", "source": _source(gpu, result)}
    path.write_text(render(card) + "\n", encoding="utf-8")


def _source(gpu: str, result: Fitted) -> str:
    own = "; with own H200 rows" if gpu == "h200" and "torch" in result.fit.engines else ""
    error = f"held error {result.median:.1%} median, {result.high:.0%} p90"
    groups = ", ".join(result.fit.groups)
    return f"fitted to {result.rows} rows of the kernel tables {groups} of {PACKAGE}{own}: {error}"


def _sample(gpu: str, table: KernelTable) -> KernelTable:
    whole = table.group == ALL_KEPT and gpu in SAMPLED
    return table.sample(len(table) if whole else SAMPLED.get(gpu, 12))


def main() -> None:
    """Fit, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("systems", type=Path)
    parser.add_argument("--gpu", nargs="*", default=list(SYSTEMS))
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--sample", action="store_true")
    arguments = parser.parse_args()
    sampled: list[KernelTable] = []
    for gpu in arguments.gpu:
        tables = list(read_tables(arguments.systems, gpu))
        sampled += [_sample(gpu, table) for table in tables]
        results = list(fit_card(gpu, [*tables, *(own_tables() if gpu == "h200" else ())]))
        for result in results:
            constants = "  ".join(f"{name} {getattr(result.kernels, name):.4g}" for name in result.fit.constants)
            extra = f"  {result.fit.nuisance} {result.nuisance:.3g}" if result.fit.nuisance else ""
            print(f"{gpu:13} {result.median:6.1%} {result.high:6.1%} {result.rows:5}  {constants}{extra}", flush=True)
        if arguments.write:
            write_card(gpu, results)
    if arguments.sample:
        write_sample(sampled)


if __name__ == "__main__":
    main()
