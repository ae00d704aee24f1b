"""All pools of a plan together: what a client sees, and which targets are met."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal, cast

from capplan.planning.latency import PERCENTILES, Law
from capplan.planning.problem import Problem

if TYPE_CHECKING:
    from capplan.planning.aggregated_pool import AggregatedPool
    from capplan.planning.decode_pool import DecodePool
    from capplan.planning.prefill_pool import PrefillPool
    from capplan.serving.stationary import Stationary

LATENCIES = ("ttft", "tpot", "itl", "step", "answer", "e2e")


@dataclass(frozen=True)
class Check:
    """One target beside what was predicted.

    ``strain`` replaces value over target as the measure of how far off it is where that says little: an overflow
    probability of 10 times the target is a few per cent too much KV cache.
    """

    name: str
    value: float
    target: float
    strain: float | None = field(default=None, compare=False)

    @property
    def ratio(self) -> float:
        """How much of the target is used up; above 1 is a violation."""
        if self.strain is not None:
            return self.strain
        if self.target <= 0:
            return math.inf if self.value > 0 else 0.0
        return self.value / self.target

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        return self.value <= self.target * (1 + 1e-9)


@dataclass(frozen=True)
class Binding(Check):
    """The target that keeps a pool from being smaller; ``gpus`` is the size of the next smaller pool, which misses it.

    None where no smaller pool could be tried: then it is the target closest to its limit.
    """

    gpus: int | None = None


@dataclass(frozen=True, eq=False)
class ClientView:
    """Latencies of one deployment, as laws where they are sums.

    ``prefilled`` is the time to the first token with a slot free in the decode batch; the wait for a slot under a cap
    comes on top.
    """

    problem: Problem
    prefilled: Law
    stationary: Stationary

    def percentile(self, name: str, p: float) -> float:
        """Percentile of a latency [s]: ``name`` is one of :data:`LATENCIES`."""
        if name in ("ttft", "answer", "e2e"):
            return float(getattr(self, name).quantile(p))
        quantile = {
            "tpot": self.stationary.tpot_quantile,
            "itl": self.stationary.itl_quantile,
            "step": self.stationary.step_quantile,
        }[name]
        return float(quantile(p))

    def all_percentiles(self) -> dict[str, float]:
        """``ttft_p50_seconds`` and so on, for every latency and percentile."""
        return {
            f"{name}_{label}_seconds": self.percentile(name, p)
            for name in LATENCIES
            for label, p in PERCENTILES.items()
        }

    @cached_property
    def ttft(self) -> Law:
        """Time to the first token, the wait for a slot under a cap included."""
        if self.stationary.wait_probability <= 0:
            return self.prefilled
        return self.prefilled.plus(Law.from_quantiles(self.stationary.wait_quantile))

    @cached_property
    def decode_seconds(self) -> Law:
        """Time from the first to the last token, with the wait for a slot under a cap."""
        return Law.from_quantiles(self.stationary.e2e_quantile)

    @cached_property
    def e2e(self) -> Law:
        """Time to the last token; TTFT and decode time are taken as independent."""
        return self.prefilled.plus(self.decode_seconds)

    @cached_property
    def answer(self) -> Law:
        """Time to the first token after the reasoning; TTFT where the workload does not reason, or does not say."""
        if not self.problem.workload.reasoning_share:
            return self.ttft
        return self.prefilled.plus(Law.from_quantiles(self.stationary.thinking_quantile))

    @cached_property
    def attainment(self) -> float:
        """Share of requests that meet every latency target; targets on different latencies taken as independent."""
        shares: dict[str, float] = {}
        for key, target in self.problem.targets.items():
            name = key.rpartition("_")[0]
            shares[name] = min(shares.get(name, 1.0), self._share_within(name, target))
        return math.prod(shares.values())

    def _share_within(self, name: str, target: float) -> float:
        if name in ("ttft", "answer", "e2e"):
            return float(getattr(self, name).share_within(target))
        within = {"tpot": self.stationary.tpot_share_within, "itl": self.stationary.itl_share_within}[name]
        return float(within(target))


def first_token_seconds(problem: Problem, pool: DecodePool) -> float:
    """What decode adds to TTFT when the first token comes from the decode pool: the step under way, and the first.

    The residual of the running step is E[T^2]/(2 E[T]), about half a step; a step is the time-weighted mean.
    """
    order = problem.engine.ttft_order
    mean = pool.stationary.step_mean
    return (0.5 * mean if "decode-admission" in order else 0.0) + (mean if "first-step" in order else 0.0)


def split_view(problem: Problem, prefill: PrefillPool, decode: DecodePool) -> ClientView:
    """The client's latencies where prefill and decode are apart."""
    delay = first_token_seconds(problem, decode)
    return ClientView(problem, prefill.ttft.shifted(delay), decode.stationary)


def latency_checks(view: ClientView, targets: Mapping[str, float], names: tuple[str, ...]) -> list[Check]:
    """The targets on the given latencies beside their predictions."""
    checks = []
    for key, target in targets.items():
        name, _, label = key.rpartition("_")
        if name in names:
            checks.append(Check(key, view.percentile(name, PERCENTILES[label]), target))
    return checks


Mode = Literal["aggregated", "disaggregated"]


@dataclass(frozen=True, eq=False)
class Pools:
    """A complete deployment: a decode and a prefill pool, or one pool for both."""

    mode: Mode
    decode: DecodePool
    prefill: PrefillPool | None

    @property
    def both(self) -> AggregatedPool | None:
        """The one pool of an aggregated deployment."""
        return cast("AggregatedPool", self.decode) if self.mode == "aggregated" else None

    @property
    def gpus(self) -> int:
        """GPUs of all pools."""
        return self.decode.gpus + (self.prefill.gpus if self.prefill else 0)
