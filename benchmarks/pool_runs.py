"""Aggregated and prefill pools against event simulations: chunked prefill, closed loop of users, queue of prompts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from capplan import Fixed, LogNormal, Mixture, Uniform, Workload
from capplan.serving.aggregated import Aggregated, aggregated
from capplan.serving.aggregated_loop import AggregatedLoop, aggregated_loop
from capplan.serving.prefill_queue import PrefillQueue, prefill_queue

TRUTH = Path(__file__).resolve().parents[1] / "tests" / "truth"
REASONING = ((0.827, 6.481, 0.722), (0.173, 8.156, 0.808))
MOST_PROMPT = 131_072


def runs(name: str) -> list[dict[str, Any]]:
    """The simulated runs of a file."""
    found: list[dict[str, Any]] = json.loads((TRUTH / f"{name}.json").read_text(encoding="utf-8"))["runs"]
    return found


def prompts(name: str) -> Any:
    """Law of the prompts of a chunked-prefill run."""
    return {
        "fixed": Fixed(1000),
        "ln1": LogNormal(1500, 1.0, max=MOST_PROMPT),
        "ln3": LogNormal(1269, 3.0, max=MOST_PROMPT),
        "prod": LogNormal(1269, math.sqrt((1269 / 208) ** 2 - 1), max=MOST_PROMPT),
    }[name]


def outputs(name: str, mean: float) -> Any:
    """Law of the outputs of a chunked-prefill run."""
    if name == "fixed":
        return Fixed(mean)
    if name == "ln1":
        return LogNormal(mean, 1.0)
    if name == "bimodal":
        return Mixture([(0.9, 0.4 * mean), (0.1, 6.4 * mean)])
    parts = [(w, math.exp(m + s * s / 2), math.sqrt(math.exp(s * s) - 1)) for w, m, s in REASONING]
    return Mixture([(w, LogNormal(middle, cv, max=32_768)) for w, middle, cv in parts])


@cache
def chunked_pairs(heavy: bool = False) -> list[tuple[Aggregated, dict[str, Any]]]:
    """(predicted, simulated) of prompts with a coefficient of variation up to 1, or of the heavier ones."""
    found = []
    for run in runs("chunked_prefill_runs"):
        cfg = run["cfg"]
        if (cfg["P"] in ("ln3", "prod")) == heavy:
            workload = Workload(prompts(cfg["P"]), outputs(cfg["L"], cfg["ml"]))
            step, prompt = (cfg["a"], cfg["e"], cfg["c"]), (cfg["d"], cfg["g"])
            found.append((aggregated(workload, run["rate"], step, prompt, cfg["C"]), run))
    return found


def loop_pairs(*, uniform: bool) -> Iterator[tuple[AggregatedLoop, dict[str, Any]]]:
    """(predicted, simulated) of N users whose lengths are uniform on 0.8 to 1 of the largest, or all equal."""
    for run in runs("closed_loop_runs"):
        cfg = run["cfg"]
        if bool(cfg["uni"]) == uniform:
            laws = [Uniform(0.8 * n, n) if uniform else Fixed(n) for n in (cfg["isl"], cfg["osl"])]
            step, prompt = (cfg["a"], cfg["e"], cfg["c"]), (cfg["d"], cfg["g"])
            yield aggregated_loop(Workload(*laws), cfg["N"], step, prompt, cfg["C"]), run["sim"]


def fits_a_step(loop: AggregatedLoop) -> bool:
    """Whether a prompt fits into one step of a loop that is not saturated."""
    return not loop.saturated and not any("fills more than one step" in text for text in loop.warnings)


def queue_pairs() -> Iterator[tuple[PrefillQueue, dict[str, Any]]]:
    """(predicted, simulated) of a queue of prompts before equal servers."""
    for run in runs("prefill_queue_runs"):
        workload = Workload(LogNormal(1500, run["cv"], max=MOST_PROMPT), 100)
        values, weights = workload.input.nodes(48)
        mean = float(weights @ _seconds(values, run["square"]))
        rate = run["rho"] * run["servers"] / mean
        yield (
            prefill_queue(workload, rate, lambda n, run=run: _seconds(n, run["square"]), run["servers"], run["ca2"]),
            run,
        )


def _seconds(tokens: Any, square: float) -> Any:
    return 2e-5 * tokens * (1 + square * tokens / 16384)
