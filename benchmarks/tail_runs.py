"""Closed forms and spectrum beside event simulations: errors of batch, step time and TPOT, by shape index.

Run from the repository root: ``python -m benchmarks.tails``. Entries are |predicted / simulated - 1| in per cent as
median / 95th percentile / largest, over the runs whose own standard error is below 2 %.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from capplan.cards.workload import Workload  # noqa: E402
from capplan.formulas.barrier import barrier_step_mean  # noqa: E402
from capplan.formulas.lengths import running_weight_cube  # noqa: E402
from capplan.serving.stationary import Stationary, concurrency  # noqa: E402
from tests.reference.tail_laws import grid_workload  # noqa: E402

Errors = dict[str, list[float]]
_ROUTES = {0: "random", 1: "round-robin", 2: "least-loaded", 3: "least-kv"}
_BARRIER_ROUTES = {0: "random", 1: "round-robin", 2: "least-loaded"}
_RELAXATIONS = 1500


def rows(kind: str) -> list[dict[str, Any]]:
    """The simulated runs of a kind."""
    data = json.loads((ROOT / "tests/truth/tail_rows.json").read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = data[kind]
    return found


def hyperexponential_dispersion(ca2: float, rate: float, horizon: float) -> float:
    """Index of dispersion of counts of a balanced-means two-phase renewal stream over a window [1]."""
    share = 0.5 * (1 + math.sqrt((ca2 - 1) / (ca2 + 1)))
    fast, slow = 2 * share * rate, 2 * (1 - share) * rate
    decay = (share * slow + (1 - share) * fast) * horizon
    return 1 + (ca2 - 1) * (1 + math.expm1(-decay) / decay)


def gamma_dispersion(ca2: float, rate: float, horizon: float) -> float:
    """The same for a renewal stream with gamma gaps, from its spectrum."""
    omega = np.geomspace(1e-5 / horizon, 4e4 / horizon, 6000)
    transform = (1 + 1j * omega * ca2 / rate) ** (-1 / ca2)
    spectrum = ((1 + transform) / (1 - transform)).real
    window = horizon * np.sinc(omega * horizon / (2 * math.pi)) ** 2
    return float(1 + np.trapezoid((spectrum - 1) * window, omega) / math.pi)


def modulated_dispersion(depth: float, correlation: float, rate: float, horizon: float) -> float:
    """The same for a rate that switches between (1 + d) and (1 - d), with an exponential correlation time [s]."""
    y = horizon / correlation
    return 1 + 2 * rate * depth**2 * correlation * (1 + math.expm1(-y) / y)


def dispersion_of(cfg: dict[str, Any], rate: float, horizon: float) -> float:
    """Index of dispersion at the horizon of a row's arrivals."""
    if cfg.get("arr") == "h2":
        return hyperexponential_dispersion(cfg["ca2"], rate, horizon)
    if cfg.get("arr") == "gamma":
        return gamma_dispersion(cfg["ca2"], rate, horizon)
    if cfg.get("arr") == "mmpp":
        return modulated_dispersion(cfg["d"], cfg["tau"] / 2, rate, horizon)
    return 1.0


def predict(row: dict[str, Any], method: str = "closed", **options: Any) -> Stationary:
    """The prediction for an open row."""
    par, cfg = row["par"], row["cfg"]
    workload = grid_workload(cfg["L"], cfg["P"])
    step = (par["a"], par["e"], par["c"])
    state = concurrency(workload, par["lam"], step, method=method, **options)
    index = dispersion_of(cfg, par["lam"], state.dispersion_horizon_seconds)
    return state if index == 1.0 else concurrency(workload, par["lam"], step, None, index, method=method, **options)


def clean(row: dict[str, Any], state: Stationary) -> bool:
    """Whether a run is long enough, and its batch large enough, to judge a percentile."""
    noise = max(row["se"][0] / row["Tt"][5], row["se"][1] / row["tpot"][5])
    return state.mean > 2 and row["steps"] > _RELAXATIONS * state.moments.relaxation and noise < 0.02


def open_errors(kind: str, method: str) -> Iterator[tuple[dict[str, Any], Stationary, dict[str, float]]]:
    """Each clean row with its prediction and its ratios predicted / simulated."""
    for row in rows(kind):
        state = predict(row, method)
        if not clean(row, state):
            continue
        pairs = {
            "step mean": (state.step_mean_over_time, row["Tt"][0]),
            "step P50": (state.step_quantile(0.5), row["Tt"][2]),
            "step P99": (state.step_quantile(0.99), row["Tt"][5]),
            "step P99.9": (state.step_quantile(0.999), row["Tt"][6]),
            "ITL P99": (state.itl_quantile(0.99), row["Tk"][5]),
            "TPOT mean": (state.tpot_mean, row["tpot"][0]),
            "TPOT P50": (state.tpot_quantile(0.5), row["tpot"][2]),
            "TPOT P99": (state.tpot_quantile(0.99), row["tpot"][5]),
            "batch mean": (state.mean, row["Nt"][0]),
            "batch P99": (state.quantile(0.99), row["Nt"][5]),
            "decode time P99": (state.e2e_quantile(0.99), row["e2e"][5]),
        }
        yield row, state, {name: predicted / simulated for name, (predicted, simulated) in pairs.items()}


def group(index: float) -> str:
    """Range of the shape index."""
    return "10 and more" if index >= 10 else "2 to 10" if index >= 2 else "below 2"


def shown(ratios: list[float]) -> str:
    """median / p95 / max of the errors in per cent."""
    errors = 100 * np.abs(np.array(ratios) - 1)
    return "/".join(f"{value:.1f}" for value in (np.median(errors), np.percentile(errors, 95), errors.max()))


def table(title: str, collected: dict[str, Errors]) -> None:
    """Print one block: quantities down, groups across."""
    groups = sorted(collected)
    print(f"\n{title}")
    names = list(next(iter(collected.values())))
    print(f"{'':18s}" + "".join(f"{g + ' (' + str(len(collected[g][names[0]])) + ')':>24s}" for g in groups))
    for name in names:
        print(f"{name:18s}" + "".join(f"{shown(collected[g][name]):>24s}" for g in groups))


def collect(kind: str, method: str) -> dict[str, Errors]:
    """Ratios of the open runs of a kind by shape index."""
    collected: dict[str, Errors] = {}
    for _, state, ratios in open_errors(kind, method):
        for name, ratio in ratios.items():
            collected.setdefault(group(state.shape_index), {}).setdefault(name, []).append(ratio)
    return collected


def cap_table() -> dict[str, Errors]:
    """Waiting and TPOT behind a cap; waits only where at least 5 % wait."""
    collected: dict[str, Errors] = {}
    for row in rows("cap"):
        cfg, par = row["cfg"], row["par"]
        workload, step = grid_workload(cfg["L"], cfg["P"]), (par["a"], par["e"], par["c"])
        free = concurrency(workload, par["lam"], step)
        index = dispersion_of(cfg, par["lam"], free.dispersion_horizon_seconds) if free.stable else 1.0
        state = concurrency(workload, par["lam"], step, cfg["m"], index)
        if row["w"][0] < 0.05 or row["se_wait_probability"] > 0.1 * row["w"][0]:
            continue
        pairs = {
            "P(wait)": (state.wait_probability, row["w"][0]),
            "wait mean": (state.wait_mean, row["w"][1]),
            "TPOT mean": (state.tpot_mean, row["tpot"][0]),
            "TPOT P50": (state.tpot_quantile(0.5), row["tpot"][2]),
            "TPOT P99": (state.tpot_quantile(0.99), row["tpot"][5]),
            "wait P99": (state.wait_quantile(0.99), row["w"][8] - row["w"][2]),
        }
        for name, (predicted, simulated) in pairs.items():
            collected.setdefault(cfg["arr"], {}).setdefault(name, []).append(predicted / simulated)
    return collected


def routing_step(cfg: dict[str, Any], workload: Workload) -> tuple[float, tuple[float, float, float]]:
    """Rate and step time of a routing or barrier row: a = 12 ms, b = a / ab, c = sh b / theta."""
    a = 0.012
    b = a / cfg["ab"]
    m = workload.decode_moments
    c = cfg["sh"] * b / workload.mean_context
    return cfg["x"] / (m.m01 * b), (a, b - c * workload.mean_context, c)


def routing_table() -> dict[str, Errors]:
    """Mean and P99 of step time and P99 of TPOT behind a router."""
    collected: dict[str, Errors] = {}
    for row in rows("routing"):
        cfg = row["cfg"]
        workload = grid_workload(cfg["L"], cfg["P"])
        rate, step = routing_step(cfg, workload)
        state = concurrency(workload, rate, step, routing=_ROUTES[cfg["pol"]], instances=cfg["G"])
        pairs = {
            "batch std": (math.sqrt(state.moments.batch_variance), row["sdN"]),
            "step std": (state.step_std, row["sdT"]),
            "step P99": (state.step_quantile(0.99), row["T99"]),
            "TPOT P99": (state.tpot_quantile(0.99), row["tpot"][3]),
        }
        for name, (predicted, simulated) in pairs.items():
            collected.setdefault(_ROUTES[cfg["pol"]], {}).setdefault(name, []).append(predicted / simulated)
    return collected


def barrier_table() -> dict[str, Errors]:
    """Mean step of data-parallel ranks that wait for the slowest."""
    collected: dict[str, Errors] = {}
    for row in rows("dp_barrier"):
        cfg = row["cfg"]
        workload = grid_workload(cfg["L"], cfg["P"])
        rate, (a, e, c) = routing_step(cfg, workload)
        m, b = workload.decode_moments, e + c * workload.mean_context
        i00, i01, i11 = workload.overlap
        light = (e * e * i00 + 2 * e * c * i01 + c * c * i11) / (b * b * m.m01)
        mean = barrier_step_mean(
            a, e, c, rate, m.m01, workload.mean_context, workload.context_std,
            running_weight_cube(e, c, m), cfg["D"], _BARRIER_ROUTES[cfg["pol"]], light,
        )  # fmt: skip
        collected.setdefault(_BARRIER_ROUTES[cfg["pol"]], {}).setdefault("step mean", []).append(mean / row["ET"])
    return collected


def main() -> None:
    """Print every table."""
    jobs: list[tuple[str, Callable[[], dict[str, Errors]]]] = [
        (f"{kind}, {method}", lambda kind=kind, method=method: collect(kind, method))  # type: ignore[misc]
        for kind in ("open_poisson", "open_bursty")
        for method in ("closed", "exact")
    ]
    jobs += [("cap", cap_table), ("routing", routing_table), ("data-parallel barrier", barrier_table)]
    for title, job in jobs:
        table(title, job())


if __name__ == "__main__":
    main()
