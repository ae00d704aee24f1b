"""The laws of queues, percentiles and KV pressure beside simulations: errors against their targets.

``python -m benchmarks.tails [--details]``, from the repository root. Everything goes through public functions of the
package (``concurrency``, ``kv_pressure``, the pools), whose answers are compared with event simulations kept in
tests/truth. ``--details`` adds every percentile by shape index as median / 95th percentile / largest error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import pool_runs as pools  # noqa: E402
from benchmarks import pressure_runs as pressure  # noqa: E402
from benchmarks import tail_runs as tails  # noqa: E402


@dataclass(frozen=True)
class Figure:
    """One error against its target.

    Parameters
    ----------
    case, measure : what is compared, and how
    rows : runs compared
    error, target : in the unit of ``percent`` or absolute
    percent : whether both are relative errors
    reason : why a target is missed, or what the figure leaves out
    """

    case: str
    measure: str
    rows: int
    error: float
    target: float
    percent: bool = True
    reason: str = ""

    @property
    def met(self) -> bool:
        """Whether the error is within its target."""
        return self.error <= self.target

    def line(self) -> str:
        """A line of the table."""
        error, target = (f"{100 * x:.2f} %" if self.percent else f"{x:.4f}" for x in (self.error, self.target))
        verdict = "met" if self.met else f"MISSED: {self.reason or 'unexplained'}"
        return f"{self.case:42s}{self.measure:24s}{self.rows:5d}{error:>10s}{target:>10s}  {verdict}"


def off(ratios: list[float], share: float) -> float:
    """That percentile of |ratio - 1|."""
    return float(np.quantile(np.abs(np.array(ratios) - 1), share))


def batch_figures() -> list[Figure]:
    """Open loop on an ample pool: step time and TPOT."""
    found = []
    for kind, method, limits in (
        ("open_poisson", "closed", (0.005, 0.025)),
        ("open_poisson", "exact", (0.005, 0.025)),
        ("open_bursty", "exact", (None, 0.06)),
        ("open_bursty", "closed", (None, 0.06)),
    ):
        errors = collected(kind, method)["10 and more"]
        for name in ("step P99", "TPOT P99") if kind == "open_poisson" else ("step P99",):
            for share, label, limit in ((0.5, "median", limits[0]), (0.95, "p95", limits[1])):
                if limit is not None:
                    case = f"{kind}, {method}, shape >= 10"
                    ratios = errors[name]
                    found.append(Figure(case, f"{name} {label}", len(ratios), off(ratios, share), limit))
    return found


@cache
def collected(kind: str, method: str) -> dict[str, tails.Errors]:
    """Ratios of the counting rows by shape index."""
    return tails.collect(kind, method)


def class_figures() -> list[Figure]:
    """Requests by length: TPOT of short and long ones, and what a cap does to the short."""
    found = list(tails.by_length_ratios("open_poisson"))
    listed = []
    for name, label in (("tpot_s", "shortest 25 %"), ("tpot_l", "longest 5 %")):
        ratios = [ratio for state, which, ratio in found if which == name and state.shape_index >= 10]
        listed.append(
            Figure(f"TPOT of the {label}, shape >= 10", "TPOT P99 p95", len(ratios), off(ratios, 0.95), 0.025)
        )
    slow = tails.slowdown_ratios()
    return [*listed, Figure("slowdown of short requests behind a cap", "median", len(slow), off(slow, 0.5), 0.05)]


def routing_figures() -> list[Figure]:
    """Behind a router, and an hour of production traffic."""
    table = tails.routing_table()
    found = []
    for name in ("step P99", "TPOT P99"):
        ratios = [ratio for errors in table.values() for ratio in errors[name]]
        found.append(Figure("routing, four policies", f"{name} p95", len(ratios), off(ratios, 0.95), 0.09))
    barrier = [ratio for errors in tails.barrier_table().values() for ratio in errors["step mean"]]
    found.append(Figure("data-parallel barrier", "step mean p95", len(barrier), off(barrier, 0.95), 0.045))
    inside = [
        state.step_quantile(0.99) / row["T99"]
        for state, row in tails.hour_states()
        if not any("sixth of the record" in text for text in state.warnings)
    ]
    found.append(
        Figure("production hour, horizon within a sixth", "step P99 p95", len(inside), off(inside, 0.95), 0.09)
    )
    return found


def pool_figures() -> list[Figure]:
    """Chunked prefill, closed loop of users, queue of prompts."""
    chunked = [state.tpot_quantile(0.99) / run["tpot"][5] for state, run in pools.chunked_pairs()]
    itl = [state.itl_quantile(0.99) / run["itl"][5] for state, run in pools.chunked_pairs()]
    loops = [pair for pair in pools.loop_pairs(uniform=True) if pools.fits_a_step(pair[0])]
    first = [loop.ttft_mean / sim["ttft"] for loop, sim in loops]
    token = [loop.tpot_mean / sim["tpot"] for loop, sim in loops]
    queue = [
        state.ttft_quantile(0.99) / run["sim"][11]
        for state, run in pools.queue_pairs()
        if run["servers"] == 1 and run["ca2"] == 1
    ]
    return [
        Figure("chunked prefill, prompt cv <= 1", "TPOT P99 p95", len(chunked), off(chunked, 0.95), 0.15),
        Figure("chunked prefill, prompt cv <= 1", "ITL P99 median", len(itl), off(itl, 0.5), 0.03),
        Figure("closed loop, uniform lengths, P <= K", "TTFT p95", len(first), off(first, 0.95), 0.04),
        Figure("closed loop, uniform lengths, P <= K", "TPOT p95", len(token), off(token, 0.95), 0.02),
        Figure("prompts before one rank, Poisson", "TTFT P99 p95", len(queue), off(queue, 0.95), 0.08),
    ]


def pressure_figures() -> list[Figure]:
    """KV pressure on the simulated rules of the scheduler."""
    cases = (
        ("closed", "closed loop", 0.02, 0.006),
        ("open", "open loop, x_sat < .97", 0.04, 0.02),
        ("wm", "watermark", 0.04, 0.01),
        ("apc", "prefix caching", 0.04, 0.01),
        ("cap", "concurrency cap", 0.03, 0.006),
        ("res", "output reserved", 0.015, 0.02),
        ("swap", "swap", 0.045, 0.01),
    )
    found = []
    for kind, title, rho_limit, batch_limit in cases:
        pairs = pressure.grid_pairs(kind, "test")
        rho, batch = pressure.recompute_errors(pairs), pressure.batch_errors(pairs, over_time=kind == "open")
        found.append(Figure(f"KV pressure, {title}, test", "rho mean", len(rho), float(np.mean(rho)), rho_limit, False))
        found.append(
            Figure(f"KV pressure, {title}, test", "batch mean", len(batch), float(np.mean(batch)), batch_limit)
        )
    return found


def scheduler_figures() -> list[Figure]:
    """KV pressure on the scheduler itself: short windows of one seed, and long ones of its replica."""
    pairs = list(pressure.scheduler_pairs("closed"))
    rho = [abs(p.recompute_per_token - run["window"]["recompute_per_gen"]) for p, run in pairs]
    batch = [abs(p.batch / run["window"]["mean_running_time"] - 1) for p, run in pairs]
    spread = pressure.seed_spread()
    reason = f"two seeds of one configuration differ by {spread[0]:.3f} in rho and {spread[1]:.1%} in the batch"
    long = list(pressure.replica_pairs())
    long_rho = [abs(p.recompute_per_token - row["rec_per_gen"]) for p, row in long]
    long_batch = [abs(p.batch / row["run"] - 1) for p, row in long]
    return [
        Figure("vLLM scheduler, closed loop, one seed", "rho mean", len(rho), float(np.mean(rho)), 0.06, False, reason),
        Figure(
            "vLLM scheduler, closed loop, one seed", "batch mean", len(rho), float(np.mean(batch)), 0.03, True, reason
        ),
        Figure("its replica, long runs", "rho mean", len(long), float(np.mean(long_rho)), 0.03, False),
        Figure("its replica, long runs", "batch mean", len(long), float(np.mean(long_batch)), 0.01),
    ]


GROUPS: tuple[Callable[[], list[Figure]], ...] = (
    batch_figures,
    class_figures,
    routing_figures,
    pool_figures,
    pressure_figures,
    scheduler_figures,
)


def figures() -> list[Figure]:
    """Every error against its target."""
    return [figure for group in GROUPS for figure in group()]


def shown(ratios: list[float]) -> str:
    """median / p95 / max of the errors in per cent."""
    return "/".join(f"{100 * off(ratios, share):.1f}" for share in (0.5, 0.95, 1.0))


def details() -> None:
    """Every percentile by shape index, arrivals or policy."""
    blocks = {
        f"{kind}, {method}": collected(kind, method)
        for kind in ("open_poisson", "open_bursty")
        for method in ("closed", "exact")
    }
    blocks |= {
        "cap": tails.cap_table(),
        "routing": tails.routing_table(),
        "data-parallel barrier": tails.barrier_table(),
    }
    for title, block in blocks.items():
        groups, names = sorted(block), list(next(iter(block.values())))
        print(f"\n{title}\n{'':18s}" + "".join(f"{f'{g} ({len(block[g][names[0]])})':>24s}" for g in groups))
        for name in names:
            print(f"{name:18s}" + "".join(f"{shown(block[g][name]):>24s}" for g in groups))


def main() -> None:
    """Print the table."""
    print(f"{'case':42s}{'measure':24s}{'rows':>5s}{'error':>10s}{'target':>10s}")
    found = figures()
    for figure in found:
        print(figure.line())
    print(f"{sum(figure.met for figure in found)} of {len(found)} met")
    if "--details" in sys.argv[1:]:
        details()


if __name__ == "__main__":
    main()
