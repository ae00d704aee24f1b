"""``concurrency`` beside event simulations: batch, step time, ITL and TPOT, caps, routing, an hour of production."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from functools import cache
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
    found: list[dict[str, Any]] = _truth()[kind]
    return found


@cache
def _truth() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((ROOT / "tests/truth/tail_rows.json").read_text(encoding="utf-8"))
    return data


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


def spectrum_of(cfg: dict[str, Any], rate: float) -> Callable[[Any], Any] | None:
    """Spectrum of a row's arrivals over their rate, by the angular frequency; None for Poisson."""
    if cfg.get("arr") == "h2":
        share = 0.5 * (1 + math.sqrt((cfg["ca2"] - 1) / (cfg["ca2"] + 1)))
        fast, slow = 2 * share * rate, 2 * (1 - share) * rate
        return _renewal(lambda w: share * fast / (fast + 1j * w) + (1 - share) * slow / (slow + 1j * w))
    if cfg.get("arr") == "gamma":
        return _renewal(lambda w: (1 + 1j * w * cfg["ca2"] / rate) ** (-1 / cfg["ca2"]))
    if cfg.get("arr") == "mmpp":
        time = cfg["tau"] / 2
        return lambda w: 1 + 2 * rate * cfg["d"] ** 2 * time / (1 + (w * time) ** 2)
    return None


def _renewal(transform: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda w: ((1 + transform(w)) / (1 - transform(w))).real


def predict(row: dict[str, Any], method: str = "closed", **options: Any) -> Stationary:
    """The prediction for an open row."""
    par, cfg = row["par"], row["cfg"]
    workload = grid_workload(cfg["L"], cfg["P"])
    step = (par["a"], par["e"], par["c"])
    state = concurrency(workload, par["lam"], step, method=method, **options)
    index = dispersion_of(cfg, par["lam"], state.dispersion_horizon_seconds)
    if index == 1.0:
        return state
    spectrum = spectrum_of(cfg, par["lam"]) if method == "exact" else None
    return concurrency(workload, par["lam"], step, None, index, method=method, arrival_spectrum=spectrum, **options)


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
        cfg, state = row["cfg"], capped_state(row)
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


def slowdown_ratios() -> list[float]:
    """How much longer the shortest quarter of the requests takes behind a cap, predicted over simulated."""
    found = []
    for row in rows("cap"):
        if row["w"][0] >= 0.05 and row["se_wait_probability"] <= 0.1 * row["w"][0]:
            short = capped_state(row).slowdown(shortest_quarter(row["cfg"]) + 1)
            found.append(short / (row["short"][0] / row["short"][1]))
    return found


def shortest_quarter(cfg: dict[str, Any]) -> float:
    """Mean decode steps of the shortest quarter of the requests."""
    nodes = grid_workload(cfg["L"], cfg["P"]).decode_nodes(240)
    order = np.argsort(nodes.steps)
    left = 0.25 - np.concatenate([[0.0], np.cumsum(nodes.weights[order])[:-1]])
    share = np.clip(left, 0.0, nodes.weights[order])
    return float(nodes.steps[order] @ share / share.sum())


def capped_state(row: dict[str, Any]) -> Stationary:
    """The prediction for a row with a cap."""
    cfg, par = row["cfg"], row["par"]
    workload, step = grid_workload(cfg["L"], cfg["P"]), (par["a"], par["e"], par["c"])
    free = concurrency(workload, par["lam"], step)
    index = dispersion_of(cfg, par["lam"], free.dispersion_horizon_seconds) if free.stable else 1.0
    return concurrency(workload, par["lam"], step, cfg["m"], index)


def hour_states() -> Iterator[tuple[Stationary, dict[str, Any]]]:
    """An hour of production traffic, its dispersion taken over 1.5 relaxation times."""
    requests = _truth()["production_hour_requests"]
    workload, rate = Workload(joint=np.array(requests, float)), sum(row[2] for row in requests) / 3600
    for row in rows("production_hour"):
        step, share = (row["a"], row["e"], row["c"]), row["scale"] / row["G"]
        yield (
            concurrency(workload, rate * share, step, dispersion=row["idc"][1], dispersion_window=3600 / row["scale"]),
            row,
        )


def by_length_ratios(kind: str) -> Iterator[tuple[Stationary, str, float]]:
    """TPOT P99 of the shortest 25 % and of the longest 5 % of the requests, predicted over simulated."""
    for row in rows(kind):
        state = predict(row)
        if row["cfg"]["L"] != "fixed" and clean(row, state):
            short, long = row["L25_95"]
            for name, outputs in (("tpot_s", (2.0, short + 1)), ("tpot_l", (long + 1, math.inf))):
                yield state, name, state.tpot_quantile(0.99, outputs) / row[name][5]


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
