"""Put what the end-to-end rows say on the cards: constants of the engines, error bands of the measured GPUs.

    python benchmarks/write_constants.py

Constants are those of the Hopper train half. Bands are the p10 and p90 of measured over predicted on the rows of the
train half, each by constants that never saw its configuration, for Hopper, and on all kept rows for the B200, to which
nothing was fitted; the test half is left to judge them. Run ``benchmarks/borrow_kernels.py`` afterwards.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
from borrow_kernels import CARDS, render
from end_to_end import FIRST_TOKEN, STEP, Kind, Scores, judged, prompt_costs

from capplan.formulas.error_band import band_factors

ENGINES = CARDS.parent / "engines"
PLACES: dict[str, tuple[Kind, ...]] = {
    "vllm": (("vllm", "inferencex"),),
    "tensorrt-llm": (("tensorrt-llm", "inferencex"),),
    "sglang": (("sglang", "aiconfigurator, prompts first"), ("sglang", "inferencex")),
}
"""Engine to the clients whose TTFT constants its card has, in the order of the card."""
RUNS = "published Hopper runs (aiconfigurator-core 0.12.0, PyPI; benchmarks/end_to_end.py)"


def engine_number(name: str, value: float, client: str) -> dict[str, Any]:
    """A constant as a card has it."""
    if name in STEP:
        source = f"fitted to the train half of {RUNS}, one set for all engines; layer and step trade off"
    else:
        source = f"fitted to the train half of {RUNS}, {client}: calibration of a closed loop, no prediction"
    unit = "s" if name.endswith("_seconds") else "1"
    shown = 0.0 if value < 1e-9 else float(f"{value:.3g}")
    return {"value": shown, "unit": unit, "kind": "fitted", "source": source}


def write_engine(name: str, scores: Scores) -> None:
    """Replace the constants on their lines, in the order of the clients where the card has ranges of versions."""
    path, seen = ENGINES / f"{name}.json", dict.fromkeys((*STEP, *FIRST_TOKEN), 0)
    lines = path.read_text(encoding="utf-8").splitlines()
    for place, line in enumerate(lines):
        found = re.match(r'(\s*)"(\w+)": \{.*\}(,?)$', line)
        if found is None or found[2] not in seen:
            continue
        kind = PLACES[name][min(seen[found[2]], len(PLACES[name]) - 1)]
        number = json.dumps(engine_number(found[2], scores.constants[kind][found[2]], kind[1]))
        lines[place] = f'{found[1]}"{found[2]}": {number}{found[3]}'
        seen[found[2]] += 1
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_bands(gpus: tuple[str, ...], found: dict[str, Any], words: str) -> None:
    """Bands from predicted over measured, by kind."""
    for gpu in gpus:
        path = CARDS / f"{gpu}.json"
        card = json.loads(path.read_text(encoding="utf-8"))
        for kind, ratios in found.items():
            low, high = band_factors((1 / np.asarray(ratios)).tolist(), [1.0] * len(ratios))
            source = f"p10 and p90 of measured over predicted, {len(ratios)} {words}"
            card["bands"][kind] = {
                end: {"value": float(f"{value:.3g}"), "unit": "1", "kind": "measured", "source": source}
                for end, value in (("low", low), ("high", high))
            }
        path.write_text(render(card) + "\n", encoding="utf-8")


def main() -> None:
    """Fit, judge and write."""
    scores = judged()
    for name in PLACES:
        write_engine(name, scores)
    mixture = np.array([row.card.is_mixture for row in scores.table.rows])
    train = ~scores.half
    hopper = {
        "decode_dense": scores.tpot[train & ~mixture],
        "decode_mixture": scores.tpot[train & mixture],
        "prefill": prompt_costs(scores.table.where(train), scores.constants),
        "ttft": scores.ttft[train],
    }
    write_bands(("h100-sxm", "h200"), hopper, "held rows of the train half of public Hopper runs")
    mixture = np.array([row.card.is_mixture for row in scores.blackwell.rows])
    b200 = {
        "decode_dense": scores.blackwell_tpot[~mixture],
        "decode_mixture": scores.blackwell_tpot[mixture],
        "ttft": scores.blackwell_ttft,
    }
    write_bands(("b200",), b200, "public B200 runs, by the engine constants of Hopper")


if __name__ == "__main__":
    main()
