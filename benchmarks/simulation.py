"""The event simulation beside recorded runs of the scheduler: recomputed over generated tokens, run by run.

python benchmarks/simulation.py [GRID.json] [SWEEPS.json] [--requests N] [--every K]; without files the held-out runs
of the tests are used. GRID holds ``configs`` (or ``runs``) with truths and, in the full grid, their standard errors;
SWEEPS holds ``long_sweeps`` with two seeds each. A run agrees where the difference is within max(0.02, twice the
standard error) of the truth; the second count allows for the noise of the simulation too.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import capplan  # noqa: E402
from benchmarks.pressure_runs import TRUTH, law  # noqa: E402
from capplan import Layout, load_hardware, load_model, memory, prefill  # noqa: E402
from capplan.serving.linear import linear_coefficients  # noqa: E402
from capplan.simulation.arrivals import renewal_times  # noqa: E402
from capplan.simulation.pool import DecodePool  # noqa: E402
from capplan.simulation.population import lengths, under_way  # noqa: E402
from capplan.simulation.request import Request  # noqa: E402
from capplan.simulation.rules import RankRules, StepTime  # noqa: E402
from capplan.simulation.run import Outcome, run_closed, run_open, seeded  # noqa: E402

SWEEP_STEP = {"ta": 0.006, "tb": 2e-5, "tc": 4e-8, "td": 2.7e-5}


def simulated(case: dict[str, Any], requests: int, seed: int = 1) -> Outcome:
    """One configuration of the grid."""
    step, block = case["step"], case["block"]
    workload = capplan.Workload(input=law(case["prompt"], case["pcap"]), output=law(case["out"], case["lcap"]))
    policy = "reserve" if case["reserve_tokens"] else "swap" if case["swap"] else "recompute"
    rules = RankRules(
        case["pool"] // block, block, case["max_num_seqs"] or 1 << 30, case["budget"],
        case["watermark_tokens"] // block, policy, case["reserve_tokens"], bool(case["apc"]),
    )  # fmt: skip
    random, choices = seeded(seed)
    times = StepTime.linear(step["ta"], step["tb"], step["tc"], step["td"])
    pool, draw = DecodePool(1, 1, rules, times, "random", choices), lengths(workload, random)
    if case["N"]:
        return run_closed(pool, under_way(workload, case["N"], random), lambda now: Request(*next(draw), now), requests)
    arrivals = renewal_times(case["rate"], 1.0, random)
    return run_open(pool, (Request(*pair, now) for pair, now in zip(draw, arrivals)), requests)  # noqa: B905


def sweep_case(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the long sweeps as a configuration of the grid: prompts of 1,000 tokens, a budget of 2,048."""
    kind, *numbers = row["spec"]
    if kind == "bimodal":
        share, short, long, cv, limit = numbers
        out = ["bi", share, short, cv, long, cv]
    else:
        out, limit = ([{"lognormal": "ln"}.get(kind, kind), *numbers[:2]], numbers[-1])
    return {
        "kind": "sweep", "dist": row["dist"], "out": out, "lcap": limit, "prompt": ["fixed", 1000], "pcap": 1000,
        "pool": row["pool"], "N": row["N"], "rate": None, "max_num_seqs": None, "watermark_tokens": 0,
        "reserve_tokens": 0, "swap": 0, "apc": 0, "step": SWEEP_STEP, "budget": 2048, "block": 16,
        "truth": {"rho": row["rec_per_gen"], "band": abs(row["seeds"][0] - row["seeds"][1]) / 2},
    }  # fmt: skip


def compared(cases: list[dict[str, Any]], requests: int) -> Iterator[tuple[str, float, float, float]]:
    """(kind, difference of rho, its band, half the 95 % interval of the simulation)."""
    for case in cases:
        truth, run = case["truth"], simulated(case, requests)
        wanted = truth["swtok"] / 2 if case["swap"] else truth["rho"]
        found = run.recompute_per_token
        band = max(0.02, truth.get("band", 2 * truth.get("rho_se", 0.0)))
        kind = "fixed" if case["dist"].startswith("fixed") else case["kind"]
        yield kind, found.value - wanted, band, found.half_width
        if abs(found.value - wanted) > math.hypot(band, found.half_width):
            name = f"{case['kind']} {case['dist']} id {case.get('id')} N {case['N']} rate {case['rate']}"
            print(f"  outside: {name}: {found.value:.3f} +- {found.half_width:.3f}, truth {wanted:.3f} +- {band:.3f}")


PUBLISHED_POOL, PUBLISHED_REQUESTS, PUBLISHED_IN_FLIGHT = 299_584, 450, 128
PUBLISHED = {0.0: (1065, 11582), 0.02: (400, 12134), 0.05: (187, 12167), 0.10: (168, 11835)}
"""Watermark to preemptions and output tokens a second: Qwen2.5-7B on one GB200, 1,000 in and 5,000 out within 20 %."""
HELD = {64: 79.5, 128: 369.0}
"""Requests in flight to mean TTFT [s]: Llama-3.1-70B fp8 on one H200, TensorRT-LLM, 1,024 in and 8,192 out."""


def first_come(pool: DecodePool, requests: list[Request], in_flight: int) -> None:
    """A benchmark from its first request to its last: as many in flight as it says, none after the last."""
    rest = iter(requests[in_flight:])

    def following(_: Request, now: float) -> Request | None:
        request = next(rest, None)
        if request is not None:
            request.arrival = request.submitted = now
        return request

    for request in requests[:in_flight]:
        pool.place(request)
    pool.run(iter(()), following)


def _served(model: str, gpu: str, running: float, context: float, engine: str) -> StepTime:
    """Step time of one GPU around a batch, with prompt chunks."""
    loaded, hardware = load_model(model), load_hardware(gpu)
    a, e, c = linear_coefficients(loaded, hardware, Layout(), running, context, engine=engine)
    seconds = prefill(loaded, hardware, Layout(), np.array([4096.0, 8192.0]), engine=engine).seconds
    return StepTime.linear(a, e, c, float(seconds[1] - seconds[0]) / 4096)


def published_count(watermark: float, seed: int) -> tuple[int, float]:
    """Preemptions and output tokens a second of the published runs."""
    random = Random(seed)
    requests = [Request(random.randint(800, 1200), random.randint(4000, 6000), 0.0) for _ in range(PUBLISHED_REQUESTS)]
    blocks = PUBLISHED_POOL // 16
    rules = RankRules(blocks, 16, 256, 8192, int(watermark * blocks))
    pool = DecodePool(1, 1, rules, _served("qwen2.5-7b", "gb200", 85, 3500, "vllm"), "random", random)
    first_come(pool, requests, PUBLISHED_IN_FLIGHT)
    made = sum(request.output for request in requests)
    return sum(r.preemptions for r in requests), made / max(r.finish for r in requests)


def held_ttft(in_flight: int, shortest: float) -> float:
    """Mean TTFT of ten rounds where the whole output is reserved, lengths uniform from that share on [s]."""
    random, capacity = Random(1), memory(
        load_model("llama-3.1-70b-fp8"), load_hardware("h200"), Layout(), "tensorrt-llm"
    ).capacity_tokens  # fmt: skip
    assert capacity is not None
    requests = [
        Request(random.randint(int(shortest * 1024), 1024), random.randint(int(shortest * 8192), 8192), 0.0)
        for _ in range(10 * in_flight)
    ]
    rules = RankRules(int(capacity // 32), 32, 2048, 8192, policy="reserve")
    times = _served("llama-3.1-70b-fp8", "h200", min(in_flight, capacity / 8192), 5000, "tensorrt-llm")
    first_come(pool := DecodePool(1, 1, rules, times, "random", random), requests, in_flight)
    return float(np.mean([request.first - request.arrival for request in pool.records.finished]))


def published() -> None:
    """Print the runs that others published beside the simulation."""
    for watermark, (wanted, rate) in PUBLISHED.items():
        count, served = np.mean([published_count(watermark, seed) for seed in range(4)], axis=0)
        print(
            f"Qwen2.5-7B, watermark {watermark:4.0%}: preemptions {count:5.0f} (published {wanted}, "
            f"x{count / wanted:.2f}), {served:,.0f} tokens/s (published {rate:,}, {served / rate - 1:+.0%})"
        )
    for in_flight, seconds in HELD.items():
        fixed, uniform = held_ttft(in_flight, 1.0), held_ttft(in_flight, 0.8)
        print(
            f"70B on one H200, {in_flight} in flight: TTFT published {seconds} s, lengths fixed {fixed:.0f} s, "
            f"from 0.8 to 1 of them {uniform:.0f} s ({uniform / seconds - 1:+.0%})"
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="*", default=[str(TRUTH / "preemption_runs.json")])
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    cases: list[dict[str, Any]] = []
    for file in options.files:
        data = json.loads(Path(file).read_text(encoding="utf-8"))
        rows = [sweep_case(row) for row in data["long_sweeps"]] if "long_sweeps" in data else None
        cases += rows or data.get("configs") or data["runs"]
    begin = time.perf_counter()
    found = list(compared(cases[:: options.every], options.requests))
    print(f"{'kind':8}{'runs':>5}{'median':>9}{'p90':>8}{'max':>8}{'outside':>9}{'outside, noise allowed':>24}")
    for kind in [*dict.fromkeys(row[0] for row in found), "all"]:
        part = [row[1:] for row in found if kind in ("all", row[0])]
        error = np.abs([row[0] for row in part])
        outside = sum(abs(d) > band for d, band, _ in part)
        beyond = sum(abs(d) > math.hypot(band, half) for d, band, half in part)
        print(
            f"{kind:8}{len(part):5}{np.median(error):9.4f}{np.quantile(error, 0.9):8.3f}{error.max():8.3f}"
            f"{outside:9}{beyond:24}"
        )
    published()
    print(f"{len(found)} runs of {options.requests} requests in {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
