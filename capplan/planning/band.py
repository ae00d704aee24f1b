"""The error band of a plan: solved again with all predicted times at both ends of theirs.

Errors of predictions have common causes, so they do not average out over steps or requests: one factor moves every
decode step, one every prefill pass, both to the same end together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from capplan.cards.engine import bands_of
from capplan.planning.deploy import view_of
from capplan.planning.latency import PERCENTILES
from capplan.planning.pools import LATENCIES
from capplan.serving.prepared import decode_kind

if TYPE_CHECKING:
    from capplan.cards.hardware import Band
    from capplan.planning.deploy import Outcome
    from capplan.planning.plan import Plan
    from capplan.planning.pools import ClientView, Pools
    from capplan.planning.problem import Problem

End = Literal["low", "high"]

_TIMELESS = frozenset({"memory", "safe cap", "prompt quantiles", "longest prompt", "longest output", "request nodes"})
"""What is kept under these names depends on no step time."""


@dataclass(frozen=True, eq=False)
class BandEnd:
    """A plan at one end of the error band.

    ``outcome`` is solved again there; ``view`` shows the pools of the plan itself there, None where they cannot keep
    up with their requests.
    """

    outcome: Outcome
    view: ClientView | None

    @property
    def gpus_total(self) -> int | None:
        """GPUs that meet every target if times are like this; None where no number up to the limit does."""
        pools = self.outcome.pools
        return pools.gpus if self.outcome.feasible and pools is not None else None


@dataclass(frozen=True, eq=False)
class PlanBand:
    """Both ends: ``low``, all times as short as their band has them, and ``high``.

    ``bands`` are the bands of the times of the plan by kind; ``nominal`` is the view of the plan.
    """

    bands: dict[str, Band]
    sources: dict[str, str]
    """Kind of the card's number behind each band: fitted, measured or assumed."""
    low: BandEnd
    high: BandEnd
    nominal: ClientView | None

    def latency(self, name: str, p: float) -> tuple[float | None, float | None]:
        """A percentile of a latency of the plan's pools at both ends [s]; None where they cannot keep up.

        The time to first token has a band of its own, which queues and load generators widen: the wider one counts.
        """
        ends = [None if end.view is None else end.view.percentile(name, p) for end in (self.low, self.high)]
        if name != "ttft" or self.nominal is None:
            return ends[0], ends[1]
        own, nominal = self.bands["ttft"], self.nominal.percentile(name, p)
        low, high = ends
        low = None if low is None else min(low, own.low * nominal)
        return low, None if high is None else max(high, own.high * nominal)

    def to_dict(self) -> dict[str, Any]:
        """Factors with the kind of their source, and every latency percentile at both ends, for JSON."""
        ends = {
            f"{name}_{label}_seconds": self.latency(name, p) for name in LATENCIES for label, p in PERCENTILES.items()
        }
        return {
            "factors": {
                kind: {"low": band.low, "high": band.high, "source_kind": self.sources[kind]}
                for kind, band in self.bands.items()
            },
            "low": {key: low for key, (low, _) in ends.items()},
            "high": {key: high for key, (_, high) in ends.items()},
        }


def plan_band(
    plan: Plan, search: Callable[..., Outcome], load: Callable[[Problem, Pools], Pools | None]
) -> PlanBand | None:
    """Both ends of a plan's error band; None where no card has a band for one of its times.

    Parameters
    ----------
    plan : the plan with times as predicted
    search : answers a changed question, starting from given pools
    load : looks at given pools under a changed question
    """
    problem, known = plan.problem, bands_of(plan.problem.hardware, plan.problem.model, plan.problem.engine)
    kinds = (decode_kind(problem.model, problem.engine), "prefill", "ttft")
    if any(kind not in known for kind in kinds):
        return None
    bands = {kind: known[kind] for kind in kinds}

    def end(which: End) -> BandEnd:
        asked = with_times(problem, getattr(bands[kinds[0]], which), getattr(bands["prefill"], which))
        if plan.feasible:
            outcome = search(asked, plan.outcome.pools)
        else:  # what is infeasible with times as predicted is so with longer ones
            outcome = search(asked) if which == "low" else plan.outcome
        return BandEnd(outcome, _view(plan, asked, load))

    return PlanBand(bands, _sources(problem, bands), end("low"), end("high"), plan.view)


def _view(plan: Plan, asked: Problem, load: Callable[[Problem, Pools], Pools | None]) -> ClientView | None:
    """The pools of the plan under another question."""
    if plan.view is None or plan.outcome.pools is None:
        return None
    loaded = load(asked, plan.outcome.pools)
    return None if loaded is None else view_of(asked, loaded)


def _sources(problem: Problem, bands: dict[str, Band]) -> dict[str, str]:
    engine, numbers = problem.engine, {}
    for kind, band in bands.items():
        card = engine if engine.bands.get(kind) is band else problem.hardware
        numbers[kind] = card.sources.get(f"bands.{kind}.high")
    return {kind: "given" if number is None else number.kind for kind, number in numbers.items()}


def with_times(problem: Problem, decode: float, prefill: float) -> Problem:
    """The same question with every predicted decode and prefill time multiplied by a factor.

    What was computed before is used again: as it is where it depends on no time, multiplied where it is a time.
    """
    override = dict(problem.scenario.override)
    for name, factor in (("decode_time_factor", decode), ("prefill_time_factor", prefill)):
        override[name] = factor * override.get(name, 1.0)
    scenario = problem.scenario.model_copy(update={"override": override})
    decode, prefill = _effective(problem, "step_seconds", decode), _effective(problem, "prefill_seconds", prefill)
    moved = ((key, _moved(key[0], value, decode, prefill)) for key, value in problem.store.items())
    store: dict[tuple[str, Hashable], Any] = {key: value for key, value in moved if value is not None}
    return replace(problem, scenario=scenario, store=store, used=set(override))


def _effective(problem: Problem, total: str, factor: float) -> float:
    """A time that the scenario gives is not a prediction, and stays."""
    return 1.0 if total in problem.scenario.override else factor


def _moved(what: str, value: Any, decode: float, prefill: float) -> Any:
    """A kept value under other times; None where it has to be computed again."""
    if what in _TIMELESS:
        return value
    if what == "step table":
        return replace(value, seconds=decode * value.seconds)
    if what == "prompt cost":
        return replace(value, alone_seconds=prefill * value.alone_seconds, share_seconds=prefill * value.share_seconds)
    return None
