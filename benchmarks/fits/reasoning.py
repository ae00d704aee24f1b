"""Reasoning tokens of the card reasoning-r1-production: one law a class.

    python benchmarks/fits/reasoning.py HISTOGRAMS [--write]

HISTOGRAMS is ServeGen's day of deepseek-r1 as ``field,value,expected_requests`` (its field ``reason_ratio`` is used).
The published histograms do not link reasoning and output; the hour regenerated from the parameters of each client does
(``tests/truth/traces``). So the ratio of every request of that hour is laid on outputs that are uniform inside its bin,
as on the card, and all are weighted by iterative proportional fitting until class and output bin have the shares of the
card, the ratio has the histogram of the day, and reasoning tokens have the quantiles of the day's sample of 300,000
requests.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

from capplan.calibration.workload_fit_card import card_text
from capplan.formulas.joint_cells import compact_sample

ROOT = Path(__file__).resolve().parents[2]
CARD = ROOT / "workloads" / "reasoning-r1-production.json"
HOUR = ROOT / "tests" / "truth" / "traces" / "servegen_deepseek-r1_synth_1h.csv.gz"
DAY = {0.1: 182.8, 0.25: 292.9, 0.5: 477.9, 0.75: 972.4, 0.9: 2705.5, 0.95: 4690.0, 0.99: 11177.7}
"""Quantiles of reasoning tokens in the sample of the day; its mean is 1,139.0 [token]."""
TURNS, PLACES, GROUPS, RATIO_BINS = 200, 8, 100, 40
LEAST_OF_CELL = 8
SOURCE = "ServeGen (Alibaba), reasoning/deepseek-r1, a production day of 2025, 1.38 M requests"


def main(histograms: Path, *, write: bool) -> None:
    """Fit the laws, print what they give, write the card."""
    card = json.loads(CARD.read_text(encoding="utf-8"))
    laws = fitted(card, *hour(), ratio_shares(histograms))
    shares = np.array([kind["share"]["value"] for kind in card["classes"]])
    told(shares / shares.sum(), laws)
    if write:
        for kind, (tokens, weights) in zip(card["classes"], laws, strict=True):
            kind["reasoning"] = {
                "law": "empirical",
                "values": numbers(tokens, "token"),
                "weights": numbers(weights, "1"),
            }
        one_line = re.compile(r'\{\s+("value": [^{}]*?)\s+\}')
        text = one_line.sub(lambda m: "{" + re.sub(r"\s*\n\s*", " ", m[1]) + "}", card_text(card))
        CARD.write_text(text, encoding="utf-8")


def hour() -> tuple[Any, Any, Any]:
    """Prompts, outputs and reasoning ratios of the regenerated hour."""
    with gzip.open(HOUR, "rt", encoding="utf-8") as stream:
        rows = np.array([[float(row[name]) for name in ("input_tokens", "output_tokens", "reason_tokens")]
                         for row in csv.DictReader(stream)])  # fmt: skip
    return rows[:, 0], rows[:, 1], rows[:, 2] / rows[:, 1]


def ratio_shares(path: Path) -> tuple[Any, Any]:
    """Edges of bins of equal mass of the ratio, and the shares of the day in them."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["field"] == "reason_ratio"]
    found = np.array([[float(row["value"]), float(row["expected_requests"])] for row in rows])
    values, weights = found[np.argsort(found[:, 0])].T
    reached = np.cumsum(weights) / weights.sum()
    edges = np.unique(values[np.searchsorted(reached, np.arange(1, RATIO_BINS) / RATIO_BINS)])
    place = np.searchsorted(edges, values, side="left")
    return edges, np.bincount(place, weights, len(edges) + 1) / weights.sum()


def fitted(
    card: dict[str, Any], prompts: Any, outputs: Any, ratios: Any, day: tuple[Any, Any]
) -> list[tuple[Any, Any]]:
    """Reasoning tokens and weights of each class."""
    cells = [one for place, kind in enumerate(card["classes"]) for one in cells_of(place, kind, prompts, outputs)]
    ratio = np.concatenate([np.repeat(ratios[rows], PLACES) for _, _, _, rows in cells])
    tokens = ratio * np.concatenate([np.tile(places(bin_), len(rows)) for _, _, bin_, rows in cells])
    cell = np.repeat(np.arange(len(cells)), [PLACES * len(rows) for _, _, _, rows in cells])
    margins = [
        (np.searchsorted(tuple(DAY.values()), tokens), np.diff([0.0, *DAY, 1.0])),
        (np.searchsorted(day[0], ratio, side="left"), day[1]),
        (cell, np.array([share for _, share, _, _ in cells])),
    ]
    weights = raked(margins)
    home = np.array([place for place, _, _, _ in cells])[cell]
    return [compact(tokens[home == place], weights[home == place]) for place in range(len(card["classes"]))]


def places(bin_: tuple[float, float]) -> Any:
    """Outputs that stand for a bin [token]."""
    return bin_[0] + (bin_[1] - bin_[0]) * (np.arange(PLACES) + 0.5) / PLACES


def compact(tokens: Any, weights: Any) -> tuple[Any, Any]:
    """Few weighted values with the first three moments; weights sum to 1."""
    points, mass = compact_sample(tokens, weights, GROUPS)
    return points[mass > 0], mass[mass > 0] / mass.sum()


def cells_of(place: int, kind: dict[str, Any], prompts: Any, outputs: Any) -> list[tuple[int, float, Any, Any]]:
    """Class, share, output bin and members (rows of the hour) of the output bins of a class that hold requests.

    Where the class has few in a bin, all requests of the bin stand for them.
    """
    inside = (prompts >= kind["input"]["edges"]["values"][0]) & (prompts < kind["input"]["edges"]["values"][-1])
    edges, shares = kind["output"]["edges"]["values"], np.array(kind["output"]["shares"]["values"])
    found = []
    for low, high, share in zip(edges, edges[1:], shares / shares.sum(), strict=False):
        rows = np.flatnonzero((outputs >= low) & (outputs < high) & inside)
        if len(rows) < LEAST_OF_CELL:
            rows = np.flatnonzero((outputs >= low) & (outputs < high))
        if share > 0 and not len(rows):
            rows = np.argsort(-outputs)[:LEAST_OF_CELL]
        if share > 0:
            found.append((place, float(share * kind["share"]["value"]), (low, high), rows))
    return found


def raked(margins: list[tuple[Any, Any]]) -> Any:
    """Weights whose sums over each labelling are the shares wanted: exactly for the last, nearly for the others."""
    weights = np.ones(len(margins[0][0]))
    for _ in range(TURNS):
        for label, shares in margins:
            sums = np.bincount(label, weights, len(shares))
            weights = weights * np.divide(shares, sums, out=np.zeros(len(shares)), where=sums > 0)[label]
    return weights


def numbers(values: Any, unit: str) -> dict[str, Any]:
    """Sourced numbers of the card."""
    return {"values": [float(f"{one:.6g}") for one in values], "unit": unit, "source": SOURCE, "kind": "fitted"}


def told(shares: Any, laws: list[tuple[Any, Any]]) -> None:
    """Mean and quantiles beside those of the day."""
    tokens = np.concatenate([values for values, _ in laws])
    weights = np.concatenate([share * mass for share, (_, mass) in zip(shares, laws, strict=True)])
    order = np.argsort(tokens)
    reached = np.cumsum(weights[order])
    print(f"mean {weights @ tokens:,.1f}, day 1,139.0")
    for p, known in DAY.items():
        print(f"P{100 * p:g} {tokens[order][np.searchsorted(reached, p)]:,.1f}, day {known:,.1f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), write="--write" in sys.argv[2:])
