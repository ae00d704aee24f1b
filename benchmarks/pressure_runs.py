"""KV pressure against simulated runs of the vLLM v1 scheduler rules, and against the scheduler itself."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import capplan

TRUTH = Path(__file__).resolve().parents[1] / "tests" / "truth"
# production lengths of a reasoning model as two lognormal laws: weights, means of the logarithm, its deviations
REASONING = ((0.827, 6.481, 0.722), (0.173, 8.156, 0.808))
Pair = tuple[Any, dict[str, Any]]


@cache
def grid() -> list[dict[str, Any]]:
    """The simulated configurations."""
    found: list[dict[str, Any]] = json.loads((TRUTH / "preemption_runs.json").read_text(encoding="utf-8"))["runs"]
    return found


@cache
def scheduler() -> dict[str, Any]:
    """Runs of the unmodified scheduler, and long runs of its exact replica."""
    found: dict[str, Any] = json.loads((TRUTH / "scheduler_runs.json").read_text(encoding="utf-8"))
    return found


def law(spec: list[Any], limit: float) -> Any:
    """Length law of a configuration: ln (mean, cv), exp, fixed, bi (share, mean, cv, mean, cv), r1."""
    kind, *numbers = spec
    if kind == "fixed":
        return capplan.Fixed(numbers[0])
    if kind == "ln":
        return capplan.LogNormal(*numbers, max=limit)
    if kind == "exp":
        return capplan.Exponential(numbers[0], max=limit)
    if kind == "bi":
        share, short, short_cv, long, long_cv = numbers
        parts = ((share, short, short_cv), (1 - share, long, long_cv))
    else:
        parts = tuple((w, math.exp(m + s * s / 2), math.sqrt(math.exp(s * s) - 1)) for w, m, s in REASONING)
    return capplan.Mixture([(w, capplan.LogNormal(mean, cv, max=limit)) for w, mean, cv in parts])


def predicted(case: dict[str, Any]) -> Any:
    """The law's answer for a configuration of the grid."""
    step = case["step"]
    workload = capplan.Workload(input=law(case["prompt"], case["pcap"]), output=law(case["out"], case["lcap"]))
    policy = "reserve" if case["reserve_tokens"] else "swap" if case["swap"] else "recompute"
    return capplan.kv_pressure(
        workload, case["pool"], concurrency=case["N"], request_rate=case["rate"],
        step_time=(step["ta"], step["tb"], step["tc"], step["td"]), max_num_seqs=case["max_num_seqs"],
        watermark=case["watermark_tokens"] / case["pool"], policy=policy, reserve_tokens=case["reserve_tokens"],
        prefix_caching=bool(case["apc"]), block_size=case["block"], token_budget=case["budget"],
    )  # fmt: skip


@cache
def grid_pairs(kind: str, split: str | None = None) -> list[Pair]:
    """(predicted, simulated) of a kind, without fixed lengths (convoys) and without metastable loads."""
    cases = [case for case in grid() if case["kind"] == kind and case["dist"] != "fixed"]
    pairs = [(predicted(case), case["truth"]) for case in cases if split is None or case["split"] == split]
    return [pair for pair in pairs if not pair[0].metastable]


def recompute_errors(pairs: list[Pair]) -> list[float]:
    """|rho predicted - simulated|; of swapped tokens half of what crosses the link."""
    return [
        abs(p.swapped_per_token - t["swtok"]) / 2 if t["swtok"] else abs(p.recompute_per_token - t["rho"])
        for p, t in pairs
    ]


def batch_errors(pairs: list[Pair], *, over_time: bool = False) -> list[float]:
    """|B predicted / simulated - 1|."""
    return [abs(p.batch / t["Bt" if over_time else "B"] - 1) for p, t in pairs]


def scheduler_law(spec: list[Any]) -> Any:
    """Length law of a run of the scheduler: fixed n, lognormal (mean, cv, cap), bimodal (share, n, n, cv, cap)."""
    kind, *numbers = spec
    if kind == "fixed":
        return capplan.Fixed(numbers[0])
    if kind == "lognormal":
        return capplan.LogNormal(numbers[0], numbers[1], max=numbers[2])
    share, short, long, cv, limit = numbers
    return capplan.Mixture([(w, capplan.LogNormal(n, cv, max=limit)) for w, n in ((share, short), (1 - share, long))])


def drawn_outputs(spec: list[Any], mean: float, second: float) -> Any:
    """The law bent (a power of its lengths) and scaled to the first two moments of the outputs a run drew."""
    values, weights = scheduler_law(spec).nodes(200)
    low, high = 0.3, 3.0
    for _ in range(50):
        power = (low + high) / 2
        ratio = float(weights @ values ** (2 * power)) / float(weights @ values**power) ** 2
        low, high = (power, high) if ratio < second / mean**2 else (low, power)
    bent = values ** ((low + high) / 2)
    return capplan.Empirical(np.maximum(bent * mean / float(weights @ bent), 1.0), weights)


def scheduler_pairs(mode: str) -> Iterator[Pair]:
    """(predicted, run) of the unmodified scheduler in a mode, closed or open, without fixed lengths."""
    for run in scheduler()["runs"]:
        par, step, drawn = run["params"], run["params"]["step"], run["drawn"]
        if par["out"][0] == "fixed" or par["mode"] != mode:
            continue
        workload = capplan.Workload(
            input=scheduler_law(par["prompt"]), output=drawn_outputs(par["out"], drawn["mean_L"], drawn["EL2"])
        )
        load = {"concurrency": par["N"]} if mode == "closed" else {"request_rate": par["rate"]}
        yield capplan.kv_pressure(
            workload, par["pool_tokens"], step_time=(step["a"], step["b"], step["c"], step["d"]),
            max_num_seqs=par["max_num_seqs"], watermark=par["watermark"], prefix_caching=par["prefix_caching"],
            block_size=par["block_size"], token_budget=par["max_num_batched_tokens"], **load,
        ), run  # fmt: skip


def seed_spread() -> tuple[float, float]:
    """Mean difference of two runs of one configuration that differ by their seed: of rho, of B (relative)."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for run in scheduler()["runs"]:
        runs.setdefault(run["id"].rsplit("-s", 1)[0], []).append(run["window"])
    pairs = [pair for pair in runs.values() if len(pair) == 2]
    rho = [abs(a["recompute_per_gen"] - b["recompute_per_gen"]) for a, b in pairs]
    batch = [abs(a["mean_running_time"] / b["mean_running_time"] - 1) for a, b in pairs]
    return float(np.mean(rho)), float(np.mean(batch))


def replica_pairs() -> Iterator[Pair]:
    """(predicted, row) of the long runs of the replica, without fixed lengths."""
    for row in scheduler()["long_sweeps"]:
        if row["spec"][0] != "fixed":
            workload = capplan.Workload(input=1000, output=drawn_outputs(row["spec"], row["EL"], row["EL2"]))
            yield capplan.kv_pressure(workload, row["pool"], concurrency=row["N"], token_budget=2048), row
