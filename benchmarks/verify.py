"""Closed forms beside the event simulation on random stationary scenarios of a prefill and a decode pool.

python benchmarks/verify.py [--scenarios 300] [--requests 80000]. Lengths of cv 0.3 to 2, bimodal and of production
cards; arrivals Poisson (half of the scenarios) or hyperexponential with ca2 up to 30; 1 to 16 instances, four ways of
routing; KV pools of 0.5 to 4 times the mean demand at loads of at most 0.9 of the full rank. A scenario is flagged
where a closed form warns, or where the predicted KV overflow is above 1 %, so that the pool is not ample. A run is as
long as 200 relaxation times of one instance hold requests, 10,000 at least and ``--requests`` at most; one of fewer
than 50 is too short to judge a P99 and counted apart.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import capplan  # noqa: E402
from benchmarks.tail_runs import hyperexponential_dispersion  # noqa: E402
from capplan.cards.workload_card import load_workload  # noqa: E402
from capplan.formulas.queueing_numeric import mgk_queue  # noqa: E402
from capplan.planning.latency import probability_grid  # noqa: E402
from capplan.planning.pressure import FREQUENT  # noqa: E402
from capplan.serving.pressure import KvPressure, kv_pressure  # noqa: E402
from capplan.serving.stationary import ROUTINGS, Stationary, concurrency  # noqa: E402
from capplan.simulation.arrivals import renewal_times  # noqa: E402
from capplan.simulation.intervals import Estimate, quantile  # noqa: E402
from capplan.simulation.pool import DecodePool  # noqa: E402
from capplan.simulation.population import lengths, under_way  # noqa: E402
from capplan.simulation.prefill import PrefillPool, PromptTimes  # noqa: E402
from capplan.simulation.request import Request  # noqa: E402
from capplan.simulation.rules import RankRules, StepTime  # noqa: E402
from capplan.simulation.run import Outcome, run_open, seeded  # noqa: E402

BLOCK = 16
MOST_LOAD = 0.9
RELAXATIONS, LEAST_RELAXATIONS = 200, 50
LEAST_REQUESTS = 10_000
READING_RATE = 20_000.0
"""Prompt tokens a prefill rank reads a second."""


@dataclass(frozen=True)
class Case:
    """One random scenario."""

    name: str
    workload: Any
    step: tuple[float, float, float]
    rate: float
    """Of one decoding instance [1/s]."""
    dispersion: float
    instances: int
    routing: str
    pool_tokens: float
    prefill_ranks: int

    @property
    def total_rate(self) -> float:
        """Of the whole stream [1/s]."""
        return self.rate * self.instances


def drawn_case(seed: int, *, small: bool = False) -> Case:
    """Random scenarios until one has a stationary state with a full KV pool too; ``small`` ones run quickly."""
    random = np.random.default_rng(seed)
    while True:
        case = _candidate(random, *((40, 4) if small else (100, 16)))
        pressure = predicted_pressure(case)
        if pressure.load_saturated is not None and pressure.load_saturated <= MOST_LOAD:
            return case


def _workload(random: np.random.Generator) -> tuple[str, Any]:
    kind = random.choice(["lognormal", "bimodal", "reasoning", "chat"], p=[0.5, 0.2, 0.2, 0.1])
    if kind == "reasoning":
        return kind, load_workload("reasoning-r1-production")
    if kind == "chat":
        return kind, load_workload("chat-azure-2023")
    mean = float(np.exp(random.uniform(math.log(200), math.log(3000))))
    prompt_mean = mean * float(np.exp(random.uniform(math.log(0.2), math.log(3))))
    prompt = capplan.LogNormal(prompt_mean, float(random.uniform(0.3, 1.5)), max=32_768)
    if kind == "bimodal":
        parts = [(0.8, capplan.LogNormal(mean / 2, 0.6)), (0.2, capplan.LogNormal(3 * mean, 0.6, max=32_768))]
        return kind, capplan.Workload(input=prompt, output=capplan.Mixture(parts))
    cv = float(random.uniform(0.3, 2.0))
    return f"cv {cv:.1f}", capplan.Workload(input=prompt, output=capplan.LogNormal(mean, cv, max=32_768))


def _candidate(random: np.random.Generator, largest_ratio: float, most_instances: int) -> Case:
    name, workload = _workload(random)
    a, ratio = float(random.uniform(0.006, 0.02)), float(np.exp(random.uniform(math.log(15), math.log(largest_ratio))))
    share, load = float(random.uniform(0.0, 0.85)), float(random.uniform(0.3, 0.9))
    b = a / ratio
    e, c = b * (1 - share), b * share / workload.mean_context
    rate = load / (workload.mean_decode_steps * b)
    batch = ratio * load / (1 - load)
    pool = float(np.exp(random.uniform(math.log(0.5), math.log(4.0)))) * batch * workload.mean_context
    bursty, instances = random.random() < 0.5, int(random.integers(1, most_instances + 1))
    return Case(
        name, workload, (a, e, c), rate, float(np.exp(random.uniform(0.0, math.log(30.0)))) if bursty else 1.0,
        instances, str(random.choice(ROUTINGS)), pool,
        max(1, math.ceil(rate * instances * workload.input.mean / READING_RATE / random.uniform(0.3, 0.85))),
    )  # fmt: skip


def predicted(case: Case) -> Stationary:
    """The stationary batch, the dispersion taken at its own horizon."""
    options: dict[str, Any] = {"routing": case.routing, "instances": case.instances}
    calm = concurrency(case.workload, case.rate, case.step, **options)
    if case.dispersion == 1.0:
        return calm
    index = hyperexponential_dispersion(case.dispersion, case.total_rate, calm.dispersion_horizon_seconds)
    return concurrency(case.workload, case.rate, case.step, dispersion=index, **options)


def predicted_pressure(case: Case, peakedness: float = 1.0, held_size_share: float = 1.0) -> KvPressure:
    """KV pressure of one instance; prompts are read elsewhere."""
    return kv_pressure(
        case.workload, case.pool_tokens, request_rate=case.rate, step_time=case.step, block_size=BLOCK,
        peakedness=peakedness, held_size_share=held_size_share, prompts_elsewhere=True,
    )  # fmt: skip


def predicted_ttft_p99(case: Case, state: Stationary) -> float:
    """Queue and reading of the prompt, half a step, and the first step."""
    middle, width = probability_grid()
    service = np.maximum(np.asarray(case.workload.input.quantile(middle), float), 1.0) / READING_RATE
    queue = mgk_queue(case.total_rate, service, width, case.prefill_ranks, case.dispersion)
    return queue.sojourn_quantile(0.99) + 1.5 * state.step_mean


def simulated(case: Case, requests: int, seed: int) -> Outcome:
    """Prefill pool and decode pool, one event after another."""
    random, choices = seeded(seed)
    rules = RankRules(int(case.pool_tokens // BLOCK), BLOCK)
    pool = DecodePool(case.instances, 1, rules, StepTime.linear(*case.step), case.routing, choices)
    draw = lengths(case.workload, random)
    a, e, c = case.step
    b = e + c * case.workload.mean_context
    mean = case.instances * a / b * (load := case.rate * case.workload.mean_decode_steps * b) / (1 - load)
    for request in under_way(case.workload, int(random.poisson(mean)), random):
        pool.place(request)
    arrivals = renewal_times(case.total_rate, case.dispersion, random)
    feed = (Request(*next(draw), now, 0, loaded=True) for now in arrivals)
    prefill = PrefillPool(case.prefill_ranks, PromptTimes(_reading, _reading))
    return run_open(pool, prefill.feed(feed), requests)


def _reading(tokens: int) -> float:
    return tokens / READING_RATE


@dataclass(frozen=True)
class Compared:
    """Closed form and simulation of one scenario."""

    case: Case
    flags: tuple[str, ...]
    pressure_flags: tuple[str, ...]
    tpot: tuple[float, Estimate]
    ttft: tuple[float, Estimate]
    overflow: tuple[float, Estimate]
    preemptions: tuple[float, float]
    relaxations: float
    """Relaxation times in the run, those of all instances together [1]."""


def compare(case: Case, requests: int, seed: int) -> Compared:
    """One scenario."""
    state = predicted(case)
    calm = concurrency(case.workload, case.rate, case.step)
    pressure = predicted_pressure(case, state.peakedness(calm), state.held_size_share)
    one = case.rate * state.relaxation_seconds
    number = int(min(max(RELAXATIONS * one, LEAST_REQUESTS), requests))
    run = simulated(case, number, seed)
    steps = run.column(lambda r: r.output - 1.0)
    tpot = (run.column(lambda r: r.finish) - run.column(lambda r: r.first))[steps > 0] / steps[steps > 0]
    ttft = run.column(lambda r: r.first) - run.column(lambda r: r.arrival)
    return Compared(
        case, flags(state, pressure), pressure.warnings,
        (float(state.tpot_quantile(0.99)), quantile(tpot, 0.99)),
        (predicted_ttft_p99(case, state), quantile(ttft, 0.99)),
        (pressure.overflow_probability, run.overflow),
        (pressure.preemptions_per_request, float(run.column(lambda r: float(r.preemptions)).mean())),
        number / one,
    )  # fmt: skip


def flags(state: Stationary, pressure: KvPressure) -> tuple[str, ...]:
    """Why the law of TPOT is outside its range: its own warnings, or a KV pool that is not ample."""
    if pressure.overflow_probability > FREQUENT:
        return (*state.warnings, f"KV overflow {pressure.overflow_probability:.1%}")
    return state.warnings


def error(pair: tuple[float, Estimate]) -> float:
    """Relative difference of the closed form to the simulation."""
    return pair[0] / pair[1].value - 1


def within(pair: tuple[float, Estimate], relative: float, widths: float) -> bool:
    """Whether the difference is at most the larger of a share and so many half widths."""
    return abs(pair[0] - pair[1].value) <= max(relative * pair[1].value, widths * pair[1].half_width)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--scenarios", type=int, default=300)
    parser.add_argument("--requests", type=int, default=80_000)
    parser.add_argument("--first", type=int, default=1000)
    options = parser.parse_args()
    begin = time.perf_counter()
    found = []
    for number in range(options.scenarios):
        seed = options.first + number
        found.append(compare(drawn_case(seed), options.requests, seed))
        if number % 25 == 24:
            print(f"{number + 1} scenarios, {time.perf_counter() - begin:.0f} s", file=sys.stderr)
    _tpot_table(found)
    _ttft_table(found)
    _overflow_table(found)
    print(f"{len(found)} scenarios of {options.requests} requests in {time.perf_counter() - begin:.0f} s")


def _groups(found: list[Compared]) -> list[tuple[str, list[Compared]]]:
    tests: list[tuple[str, Callable[[Compared], bool]]] = [
        ("not flagged", lambda f: not f.flags),
        ("  Poisson", lambda f: not f.flags and f.case.dispersion == 1),
        ("  ca2 1-10", lambda f: not f.flags and 1 < f.case.dispersion <= 10),
        ("  ca2 10-30", lambda f: not f.flags and f.case.dispersion > 10),
        *((f"  {name}", lambda f, name=name: not f.flags and f.case.routing == name) for name in ROUTINGS),
        ("flagged", lambda f: bool(f.flags)),
    ]  # fmt: skip
    judged = [f for f in found if f.relaxations >= LEAST_RELAXATIONS]
    short = [f for f in found if f.relaxations < LEAST_RELAXATIONS]
    return [*((name, [f for f in judged if test(f)]) for name, test in tests), ("too short to judge", short)]


def _tpot_table(found: list[Compared]) -> None:
    print(f"TPOT P99{'':20}{'runs':>6}{'median':>9}{'p90':>8}{'max':>8}{'bias':>8}{'5 % or CI':>11}{'5 % or 2 CI':>13}")
    for name, part in _groups(found):
        if part:
            errors = np.array([error(f.tpot) for f in part])
            inside = [np.mean([within(f.tpot, 0.05, widths) for f in part]) for widths in (1, 2)]
            print(f"  {name:26}{len(part):6}{np.median(abs(errors)):9.1%}{np.quantile(abs(errors), 0.9):8.1%}"
                  f"{abs(errors).max():8.1%}{np.median(errors):+8.1%}{inside[0]:11.1%}{inside[1]:13.1%}")  # fmt: skip
    for f in found:
        if not f.flags and not within(f.tpot, 0.05, 2):
            print(
                f"    outside: {_described(f)}: {error(f.tpot):+.1%} (+- {f.tpot[1].half_width / f.tpot[1].value:.1%})"
            )


def _described(f: Compared) -> str:
    case = f.case
    state = predicted(case)
    return (
        f"{case.name}, ca2 {case.dispersion:.1f}, {case.instances} x {case.routing}, load {state.load:.2f}, batch "
        f"{state.mean:.0f}, shape {state.shape_index:.1f}, {f.relaxations:.0f} relaxations"
    )


def _ttft_table(found: list[Compared]) -> None:
    print(f"TTFT P99{'':20}{'runs':>6}{'median':>9}{'p90':>8}{'max':>8}{'bias':>8}{'within 30 %':>13}")
    for name, part in _groups(found):
        if part:
            errors = np.array([error(f.ttft) for f in part])
            inside = np.mean(abs(errors) <= 0.3)
            print(f"  {name:26}{len(part):6}{np.median(abs(errors)):9.1%}{np.quantile(abs(errors), 0.9):8.1%}"
                  f"{abs(errors).max():8.1%}{np.median(errors):+8.1%}{inside:13.1%}")  # fmt: skip


def _overflow_table(found: list[Compared]) -> None:
    print(f"KV overflow{'':17}{'runs':>6}{'median':>9}{'p90':>8}{'max':>8}{'bias':>8}{'within 0.02':>13}")
    tests: list[tuple[str, Callable[[Compared], bool]]] = [
        ("Poisson, not flagged", lambda f: f.case.dispersion == 1 and not f.pressure_flags),
        ("bursty, not flagged", lambda f: f.case.dispersion > 1 and not f.pressure_flags),
        ("flagged", lambda f: bool(f.pressure_flags)),
    ]  # fmt: skip
    for name, test in tests:
        part = [f for f in found if test(f)]
        errors = np.array([f.overflow[0] - f.overflow[1].value for f in part])
        if len(errors):
            inside = np.mean(abs(errors) <= 0.02)
            print(f"  {name:26}{len(errors):6}{np.median(abs(errors)):9.4f}{np.quantile(abs(errors), 0.9):8.3f}"
                  f"{abs(errors).max():8.3f}{errors.mean():+8.3f}{inside:13.1%}")  # fmt: skip
        for f in part:
            if "not" in name and abs(f.overflow[0] - f.overflow[1].value) > 0.02:
                print(f"    outside: {_described(f)}: {f.overflow[0]:.3f}, simulated {f.overflow[1].value:.3f}")


if __name__ == "__main__":
    main()
