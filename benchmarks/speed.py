"""Speed budgets beside what this machine measures: ``python benchmarks/speed.py [--quick]``.

Process budgets are ratios or wall-clock of fresh interpreters; the rest is measured inside one process. Absolute times
depend on the machine: a figure above its budget is printed, not raised.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = str(ROOT / "examples" / "reasoning-r1-h800.toml")
TINY = """
import typer
app = typer.Typer(rich_markup_mode=None, add_completion=False)
@app.command()
def show(word: str) -> None: print(word)
app(["word"])
"""
CLI = "from capplan.cli.main import run; run()"


def process_seconds(code: str, *arguments: str, runs: int) -> float:
    """Median wall-clock of a fresh interpreter that runs ``code``, its modules compiled before."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command, times = [sys.executable, "-c", code, *arguments], []
    for _ in range(runs + 1):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env=environment)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def call_seconds(call: Callable[[], object], seconds: float) -> float:
    """Best mean of repeated calls within about ``seconds``."""
    call()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(20):
            call()
        best = min(best, (time.perf_counter() - start) / 20)
    return best


def main(quick: bool) -> None:
    """Measure and print the table."""
    runs, seconds = (3, 0.2) if quick else (9, 1.0)
    rows = [*process_rows(runs), *step_rows(seconds), *search_rows(seconds), memory_row()]
    width = max(len(row[0]) for row in rows)
    print(f"{'':{width}}  {'measured':>14}  budget")
    for name, measured, budget in rows:
        print(f"{name:{width}}  {measured:>14}  {budget}")


def process_rows(runs: int) -> list[tuple[str, str, str]]:
    """Start-up and the two commands people type most."""
    floor = process_seconds("import typer, pydantic", runs=runs)
    tiny = process_seconds(TINY, runs=runs)
    kv = process_seconds(CLI, "kv", "deepseek-r1", "--context", "32k", runs=runs)
    plan = process_seconds(CLI, "plan", EXAMPLE, runs=runs)
    return [
        ("import typer + pydantic", f"{floor * 1e3:.0f} ms", ""),
        ("the smallest typer application", f"{tiny * 1e3:.0f} ms", "(typer 0.29 builds on pydantic when it runs)"),
        ("capplan kv deepseek-r1", f"{kv * 1e3:.0f} ms", ""),
        ("  against import typer + pydantic", f"{kv / floor:.2f} x", "<= 1.3 x"),
        ("  against the smallest application", f"{kv / tiny:.2f} x", ""),
        ("capplan plan (R1 on H800)", f"{plan * 1e3:.0f} ms", "< 500 ms"),
    ]


def step_rows(seconds: float) -> list[tuple[str, str, str]]:
    """One decode step, and a million at once."""
    import numpy as np

    from capplan import Layout, decode_step, load_hardware, load_model

    model, hardware, layout = load_model("deepseek-r1"), load_hardware("h800"), Layout(tp=2, dp=16)
    dense, h200, one = load_model("llama-3.1-8b"), load_hardware("h200"), Layout()
    batch = np.tile(np.arange(1.0, 1001.0), 500)
    moe = call_seconds(lambda: decode_step(model, hardware, layout, 512, 4096).seconds, seconds)
    scalar = call_seconds(lambda: decode_step(dense, h200, one, 64, 8192).seconds, seconds)
    start = time.perf_counter()
    decode_step(dense, h200, one, batch, 8192.0)
    array = len(batch) / (time.perf_counter() - start)
    start = time.perf_counter()
    decode_step(model, hardware, layout, batch * 16, 4096.0)
    array_moe = len(batch) / (time.perf_counter() - start)
    return [
        ("decode_step, dense", f"{scalar * 1e6:.1f} us", "< 50 us"),
        ("decode_step, mixture across nodes", f"{moe * 1e6:.1f} us", "< 50 us"),
        ("decode_step on arrays, dense", f"{array / 1e6:.1f} M/s", ">= 2 M/s per core"),
        ("decode_step on arrays, mixture", f"{array_moe / 1e6:.1f} M/s", ">= 2 M/s per core"),
    ]


def search_rows(seconds: float) -> list[tuple[str, str, str]]:
    """A percentile, and ten thousand layout x cap x pool points."""
    import numpy as np

    from capplan import Layout, concurrency, decode_step, load_hardware, load_model, load_workload

    workload = load_workload("reasoning-r1-production")
    state = call_seconds(
        lambda: concurrency(workload, 0.6, (0.02, 2e-4, 3e-8), dispersion=16, instances=32).tpot_quantile(0.99), seconds
    )
    closed, full = percentile_seconds(seconds)
    model, hardware = load_model("deepseek-r1"), load_hardware("h800")
    layouts = [Layout(tp=tp, dp=dp) for tp in (1, 2, 4, 8) for dp in (2, 4, 8, 16, 32) if tp * dp <= 256]
    caps = np.arange(1.0, 10_000 / len(layouts) + 1)
    start = time.perf_counter()
    for layout in layouts:
        decode_step(model, hardware, layout, caps * layout.dp, 4096.0)
    points = time.perf_counter() - start
    return [
        ("stationary batch with TPOT P99", f"{state * 1e3:.2f} ms", "< 1 ms a percentile"),
        *[(f"  {name}", f"{time * 1e3:.3f} ms", "< 1 ms a percentile") for name, time in (closed | full).items()],
        (f"{len(layouts) * len(caps):,} layout x cap points", f"{points * 1e3:.0f} ms", "< 1 s for 10,000"),
    ]


def percentile_seconds(seconds: float) -> tuple[dict[str, float], dict[str, float]]:
    """One percentile of a state that is known, each probability a new one; and a whole state of KV pressure."""
    from itertools import count

    from capplan import concurrency, kv_pressure, load_workload

    workload = load_workload("reasoning-r1-production")
    state = concurrency(workload, 0.6, (0.02, 2e-4, 3e-8), dispersion=16, instances=32)
    capacity, step = 4e5, (0.006, 2e-5, 4e-8, 2.7e-5)
    loops = {"open": {"request_rate": 2.0}, "closed": {"concurrency": 130}}
    ranks = {name: kv_pressure(workload, capacity, step_time=step, **load) for name, load in loops.items()}
    quantiles = {
        "concurrency: batch": state.quantile,
        "concurrency: step": state.step_quantile,
        "concurrency: ITL": state.itl_quantile,
        "concurrency: TPOT": state.tpot_quantile,
        "concurrency: TPOT of long outputs": lambda p: state.tpot_quantile(p, (4000.0, 1e9)),
        "concurrency: decode time": state.e2e_quantile,
        **{f"kv_pressure, {name}: largest gap": rank.gap_quantile for name, rank in ranks.items()},
        **{f"kv_pressure, {name}: first wait": rank.first_wait_quantile for name, rank in ranks.items()},
    }
    numbers = count()

    def timed(quantile: Callable[[float], object]) -> float:
        return call_seconds(lambda: quantile(0.95 + 0.04 * ((next(numbers) * 0.618034) % 1)), seconds / 4)

    whole = {
        f"kv_pressure, {name}: the whole state": call_seconds(
            lambda load=load: kv_pressure(workload, capacity, step_time=step, **load), seconds / 4
        )
        for name, load in loops.items()
    }
    return {name: timed(quantile) for name, quantile in quantiles.items()}, whole


def memory_row() -> tuple[str, str, str]:
    """Peak memory Python allocates in one plan."""
    from capplan import plan

    tracemalloc.start()
    plan(EXAMPLE).to_dict()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return ("memory of one plan", f"{peak / 1e6:.0f} MB", "< 200 MB")


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
