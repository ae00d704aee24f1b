"""Predicted beside measured, all truth sets in one table. Run: ``python benchmarks/fidelity.py [--detail]``.

Errors are |predicted / measured - 1| in per cent of measured. A line with a target says whether it is reached; a target
that is missed stays here with its reason. Needs SciPy (the test extra) for the end-to-end rows, whose engine constants
are fitted anew on every split. ``--detail`` adds every kernel table and every slice.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import end_to_end
import end_to_end_rows
import fidelity_kernels
import fidelity_layers
import fidelity_steps
import numpy as np
from end_to_end_peer import peer_ratios

from capplan.cards.hardware_card import load_hardware
from capplan.formulas.error_band import coverage

Line = fidelity_kernels.Line

REASONS = {
    "prefill attention, Hopper": "one law and one factor an engine for three libraries; each alone fits within 6 / 17",
    "experts, TensorRT-LLM gated, Hopper": "per-tensor fp8 shares the rate of block fp8, which models are served in",
    "Hopper TPOT, new model family": "of 153 rows beyond 28 %, 48 are Qwen3-32B on SGLang 0.5.1, 22 Qwen3-235B on vLLM",
}


def scored(ratios: Any) -> tuple[float, float, float]:
    """Median and 90th percentile of the error, and median signed error [%]."""
    error = 100 * (np.asarray(ratios, float) - 1)
    return float(np.median(abs(error))), float(np.quantile(abs(error), 0.9)), float(np.median(error))


def printed(lines: Iterable[Line]) -> None:
    """Lines of ratios, with the verdict where there is a target."""
    for name, ratios, target in lines:
        median, high, bias = scored(ratios)
        line = f"{name:44} {len(ratios):5} {median:7.1f} {high:6.1f} {bias:+6.1f}"
        if target is not None:
            met = median <= target[0] and high <= target[1]
            reason = REASONS.get(name, "")
            verdict = "met" if met else f"MISSED{': ' if reason else ''}{reason}"
            line += f"   {target[0]:3.0f} / {target[1]:2.0f} {verdict}"
        print(line)


def pairs(title: str, found: Iterable[fidelity_steps.Pair]) -> list[float]:
    """Predicted beside measured of single rows."""
    print(f"\n{title:76} predicted measured  error %")
    ratios = []
    for name, predicted, measured in found:
        print(f"{name:76} {predicted:9.2f} {measured:8.2f} {100 * (predicted / measured - 1):+8.1f}")
        ratios.append(predicted / measured)
    return ratios


def end_to_end_lines(scores: end_to_end.Scores) -> Iterator[Line]:
    """TPOT and TTFT of public runs, each by constants that never saw its configuration."""
    rows = scores.table.rows
    mixture = np.array([row.card.is_mixture for row in rows])
    long = np.array([row.osl == 8192 for row in rows])
    yield "Hopper TPOT, five folds", scores.tpot, (9, 27)
    yield "Hopper TPOT, dense", scores.tpot[~mixture], (7, 20)
    yield "Hopper TPOT, mixtures", scores.tpot[mixture], (15, 35)
    yield "Hopper TPOT, 8,192 output tokens", scores.tpot[long], (8, 25)
    yield "Hopper TPOT, new model family", scores.new_family_tpot, (11, 28)
    yield "Hopper TPOT, test half by the train half", scores.half_tpot, None
    yield "Hopper TTFT, load generator calibrated", scores.ttft, (25, 60)
    yield "Hopper TTFT, another load generator", scores.uncalibrated_ttft, (35, 85)
    yield "B200 TPOT, constants of Hopper", scores.blackwell_tpot, (13, 40)
    yield "B200 TTFT, constants of Hopper", scores.blackwell_ttft, None


def slices(scores: end_to_end.Scores) -> Iterator[Line]:
    """TPOT by what a row is."""
    for title, key in end_to_end.SLICES.items():
        for name in sorted({key(row) for row in scores.table.rows}):
            yield f"  TPOT {title} {name}", scores.tpot[[key(row) == name for row in scores.table.rows]], None


def peer_lines(scores: end_to_end.Scores) -> Iterator[Line]:
    """Ours beside aiconfigurator's own predictions, on the rows it predicts.

    Once with the formats of the labels, as its authors judge it, once with those that our model is given.
    """
    dense = np.array([not row.card.is_mixture for row in scores.table.rows])
    for formats in ("labelled", "served"):
        known = peer_ratios(scores.table.rows, formats)
        for title, chosen in (("all", dense | True), ("dense", dense), ("mixtures", ~dense)):
            both = chosen & ~np.isnan(known[0])
            yield f"TPOT, {title}: this model", scores.tpot[both], None
            yield f"TPOT, {title}: aiconfigurator, {formats}", known[0][both], None
            yield f"TTFT, {title}: this model", scores.ttft[both], None
            yield f"TTFT, {title}: aiconfigurator, {formats}", known[1][both], None


def bands(scores: end_to_end.Scores) -> Iterator[str]:
    """Shares of the test half inside the 80 % bands of their cards, which come from the train half."""
    rows, test = scores.table.rows, scores.half
    dense = np.array([not row.card.is_mixture for row in rows])
    for kind, chosen, ratios in (
        ("decode_dense", test & dense, scores.tpot),
        ("decode_mixture", test & ~dense, scores.tpot),
        ("ttft", test, scores.ttft),
    ):
        inside = [
            coverage([1.0], [float(ratios[place])], band.low, band.high)
            for place in np.flatnonzero(chosen)
            for band in [load_hardware(rows[place].gpu).bands[kind]]
        ]
        yield f"{kind:44} {len(inside):5} {100 * sum(inside) / len(inside):6.0f} % inside"


def main() -> None:
    """Print everything."""
    detail, unknown = "--detail" in sys.argv[1:], [one for one in sys.argv[1:] if one != "--detail"]
    if unknown:
        sys.exit(f"{unknown[0]}: the one option is --detail")
    if importlib.util.find_spec("scipy") is None:
        sys.exit("needs SciPy: pip install '.[test]'")
    print(f"{'kernel tables, held rows':44}  rows  median    p90   bias   target")
    printed(fidelity_kernels.target_lines())
    printed(fidelity_kernels.detail_lines() if detail else ())
    print("\nown tables (one H200) and published ones (one H800)")
    printed(fidelity_kernels.own_lines())
    printed([("H200 prefill, Llama-3.1-8B", fidelity_steps.own_prefills(), None)])
    print("\nrecurrent, sparse and compressed layers, held rows")
    printed((name, ratios, None) for name, ratios in fidelity_layers.tables())
    decode = pairs("published decode on Hopper", fidelity_steps.published_decode())
    printed([("published decode on Hopper", decode, (12, 100))])
    pairs("whole steps and prefills", fidelity_steps.whole_steps())
    skew, balanced, uneven = fidelity_steps.skew_that_explains()
    print(f"sgl-001 (6,288 beside 7,417 balanced): fitted skew {skew:.2f} ({uneven:,.0f} beside {balanced:,.0f})")
    pairs("DeepSeek-R1 on 8 H200, saturated, token/s/GPU", fidelity_steps.collapse())
    print("\nend-to-end runs")
    end_to_end_rows.main(["--ids"] if detail else [])
    scores = end_to_end.judged()
    print(f"{'held out':44}  rows  median    p90   bias   target")
    printed(end_to_end_lines(scores))
    print("\non the rows that aiconfigurator predicts")
    printed(peer_lines(scores))
    printed(slices(scores) if detail else ())
    print("\n80 % error bands of the cards, test half (70 to 90 % should lie inside)")
    print("\n".join(bands(scores)))


if __name__ == "__main__":
    main()
