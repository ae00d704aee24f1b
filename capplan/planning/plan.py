"""``plan``: from a scenario to pools, percentiles, cost, what binds and what breaks next."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from capplan.errors import InputError
from capplan.planning.deploy import Outcome, aggregated, aggregated_within, disaggregated, reload, view_of
from capplan.planning.measured_arrivals import plan_at_own_horizon
from capplan.planning.pools import Binding, ClientView, Pools
from capplan.planning.problem import Problem, resolve
from capplan.planning.scenario import Scenario, load_scenario
from capplan.quantities.chain import Chain

if TYPE_CHECKING:
    from capplan.planning.band import PlanBand
    from capplan.planning.margins import Margins
    from capplan.planning.naive import NaiveAnswer
    from capplan.planning.relaxation import Relaxation
    from capplan.planning.summary import PoolSummary


@dataclass(frozen=True, repr=False)
class Plan:
    """The answer to a scenario.

    Percentiles, use and links are those at the offered rate; the pools are sized for ``problem.sizing_rate``, which
    leaves the headroom free, and ``binding`` is told there.
    """

    problem: Problem
    outcome: Outcome
    pools_at_rate: Pools | None
    search: Callable[..., Outcome] | None = None
    """How a changed question is answered again, where that is no search at a given rate; takes pools to start from."""
    load: Callable[[Problem, Pools], Pools | None] | None = None
    """How given pools are looked at again under a changed question, where the rate is not given."""

    def __repr__(self) -> str:
        verdict = f"{self.gpus_total} GPUs" if self.feasible else "infeasible"
        return f"<Plan: {self.problem.model.name} on {self.problem.hardware.name}, {verdict}>"

    def __str__(self) -> str:
        return self.to_text()

    @property
    def feasible(self) -> bool:
        """Whether every target is met with at most ``max_gpus``."""
        return self.outcome.feasible

    @cached_property
    def nearest(self) -> dict[str, float]:
        """Where infeasible: scenario keys and the values that make it feasible, in base units; each searched again.

        ``max_gpus``: with the targets as they are. Latency keys, ``kv_overflow``: together, with the GPUs there are.
        ``rate``: with both as they are.
        """
        from capplan.planning.nearest import nearest_feasible

        if self.feasible:
            return {}
        return nearest_feasible(self.problem, self.search or _best_outcome, open_loop=self.search is None)

    @property
    def binding(self) -> Binding | None:
        """The target that keeps the plan from being cheaper: what the next smaller pool has, at the sized rate."""
        return self.outcome.binding

    @cached_property
    def view(self) -> ClientView | None:
        """Client latencies at the offered rate; None where a pool is missing."""
        pools = self.pools_at_rate
        if pools is None or (pools.mode == "disaggregated" and pools.prefill is None):
            return None
        return view_of(self.problem, pools)

    @cached_property
    def pools(self) -> tuple[PoolSummary, ...]:
        """Summaries of the pools, prefill first."""
        from capplan.planning.summary import decode_summary, prefill_summary

        pools = self.pools_at_rate
        if pools is None:
            return ()
        if pools.mode == "aggregated":
            return (decode_summary(self.problem, pools.decode, "both", {}),)
        rate = self.problem.rate
        first = [prefill_summary(self.problem, pools.prefill, rate)] if pools.prefill else []
        return (*first, decode_summary(self.problem, pools.decode, "decode"))

    @cached_property
    def band(self) -> PlanBand | None:
        """The plan solved again with all predicted times at either end of their error band; None without a band."""
        from capplan.planning.band import plan_band

        return plan_band(self, self.search or _best_outcome, self.load or _load)

    @property
    def gpus_total(self) -> int:
        """GPUs of all pools."""
        return sum(pool.gpus for pool in self.pools)

    @property
    def cost_per_hour(self) -> float | None:
        """GPUs times price [$/h]; None where no price is known."""
        price = self.problem.price_per_gpu_hour
        return None if price is None else price * self.gpus_total

    @cached_property
    def cost_per_million_output_tokens(self) -> float | None:
        """Cost of all pools over all output tokens at the offered rate [$ per 10^6 tokens]."""
        from capplan.formulas.cost import cost_per_million_tokens

        if self.cost_per_hour is None or not self.gpus_total:
            return None
        return float(cost_per_million_tokens(self.cost_per_hour, self.problem.rate * self.problem.workload.output.mean))

    @cached_property
    def margins(self) -> Margins | None:
        """How far load and lengths can grow before a target is missed."""
        from capplan.planning.margins import margins

        return margins(self.problem, self.outcome.pools) if self.feasible and self.outcome.pools else None

    @cached_property
    def relaxation(self) -> Relaxation | None:
        """What loosening the binding latency target by a fifth would save."""
        from capplan.planning.relaxation import relaxation

        if not self.feasible or self.outcome.pools is None:
            return None
        return relaxation(self.problem, self.binding, self.outcome.pools.gpus, self.search or _best_outcome)

    @cached_property
    def naive(self) -> NaiveAnswer | None:
        """What mean lengths and a FLOP ratio would have said."""
        from capplan.planning.naive import naive_answer

        return naive_answer(self.problem, self.outcome.pools) if self.outcome.pools else None

    @cached_property
    def assumptions(self) -> tuple[str, ...]:
        """Everything the answer rests on that nobody measured or the user did not say."""
        from capplan.planning.assumptions import assumptions

        return assumptions(self.problem, self.outcome.pools)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Where a law was used outside its validity range, or the requests outside the model's."""
        from capplan.planning.warnings import warnings

        return () if self.pools_at_rate is None else warnings(self.problem, self.pools_at_rate)

    def to_dict(self) -> dict[str, Any]:
        """The whole answer for JSON; keys carry units."""
        from capplan.planning.report import plan_dict

        return plan_dict(self)

    def to_text(self) -> str:
        """The whole answer for a person."""
        from capplan.planning.report import plan_text

        return plan_text(self)

    def to_markdown(self) -> str:
        """The whole answer for a person, its tables in Markdown."""
        from capplan.planning.report import plan_markdown

        return plan_markdown(self)

    def chains(self) -> dict[str, Chain]:
        """Role of a pool to its chain of named quantities, for ``explain``."""
        from capplan.planning.explained import plan_chains

        return plan_chains(self)


def plan(scenario: str | Path | Mapping[str, Any] | Scenario = {}, **overrides: Any) -> Plan:  # noqa: B006
    """Size the pools of a scenario: the fewest GPUs whose percentiles meet every target.

    Parameters
    ----------
    scenario : path of a TOML or JSON file, a dictionary or a :class:`Scenario`; empty if all keys are given by keyword.
        The keys are listed in docs/scenario.md
    overrides : scenario keys that replace the file's: ``tpot_p99="30ms"``, or ``**{"slo.tpot_p99": "30ms"}``

    Returns
    -------
    plan : :class:`Plan` with ``.feasible .nearest .binding .pools .gpus_total .cost_per_hour .margins .relaxation``
        ``.band .warnings .assumptions``, percentiles as ``.view.percentile("tpot", 0.99)`` [s], everything as
        ``.to_dict()`` or ``.to_text()``. An infeasible scenario is an answer too: ``.nearest`` tells what can be had

    Raises
    ------
    InputError : a scenario that cannot be read or names something unknown
    """
    loaded = load_scenario(scenario, **overrides)
    try:
        problem = resolve(loaded)
    except InputError as error:
        raise error.located(file=str(scenario)) if isinstance(scenario, (str, Path)) else error from None
    if problem.scenario.workload.concurrency is not None:
        return _closed_loop(problem, problem.scenario.workload.concurrency)
    return plan_at_own_horizon(problem, _plan)


def _plan(problem: Problem, near: Pools | None = None) -> Plan:
    outcome = _best_outcome(problem, near)
    at_rate = None
    if outcome.pools is not None:
        at_rate = _load(problem, outcome.pools) or outcome.pools
    answer = Plan(problem, outcome, at_rate)
    _refuse_unused(answer)
    return answer


def _load(problem: Problem, pools: Pools) -> Pools | None:
    """Given pools at the offered rate."""
    return reload(problem, pools, problem.rate)


def _refuse_unused(answer: Plan) -> None:
    """An override that took no part in any evaluation is an error, never ignored."""
    problem = answer.problem
    overrides = problem.scenario.override.keys()
    if overrides - problem.used and answer.pools:  # summarising the pools evaluates what the search does not
        for name in sorted(overrides - problem.used):
            raise InputError("has no part in this plan", key=f"override.{name}")


def _best_outcome(problem: Problem, near: Pools | None = None) -> Outcome:
    serving = problem.scenario.serving
    split = serving.mode == "auto" and (serving.prefill_layout or serving.decode_layout)
    mode = "disaggregated" if split else serving.mode  # a layout of one pool asks for two
    if mode == "aggregated":
        return aggregated(problem, near)
    apart = disaggregated(problem, near)
    if mode == "disaggregated":
        return apart
    if apart.pools is None or not apart.feasible:
        return min(apart, aggregated(problem, near), key=_rank)
    together = aggregated_within(problem, apart.pools.gpus - 1, near)
    return apart if together is None else min(apart, together, key=_rank)


def _rank(outcome: Outcome) -> tuple[int, float]:
    if outcome.feasible and outcome.pools is not None:
        return 0, outcome.pools.gpus
    return 1, max((check.ratio for check in outcome.missed), default=math.inf)


CLOSED_LOOP_TURNS = 9
CLOSE_ENOUGH = 0.01
ACCEPTED = 0.05
"""How far the requests held in the plan found may be below those that were asked for."""
LITTLE_LOAD = 1 / 256
FASTEST = 4.0
"""Times the sized rate up to which the rate of a closed loop is looked for under other step times."""


def _closed_loop(problem: Problem, in_flight: int) -> Plan:
    """Pools for ``in_flight / (1 - headroom)`` requests, looked at with as many as there are."""
    wanted = in_flight / (1 - problem.scenario.serving.headroom)

    def search(asked: Problem, near: Pools | None = None) -> Outcome:
        return _sized_closed_loop(asked, wanted, near).outcome

    answer = replace(_sized_closed_loop(problem, wanted), search=search)
    pools = answer.outcome.pools
    if not answer.feasible or pools is None:
        return answer
    nominal = _rate_in_flight(answer.problem, pools, in_flight, answer.problem.rate)

    def load(asked: Problem, kept: Pools) -> Pools | None:
        return reload(asked, kept, _rate_in_flight(asked, kept, in_flight, FASTEST * asked.sizing_rate))

    looked_at = replace(answer.problem, rate=nominal)
    return replace(answer, problem=looked_at, pools_at_rate=reload(answer.problem, pools, nominal), load=load)


def _rate_in_flight(problem: Problem, pools: Pools, in_flight: int, most: float) -> float:
    """The rate, up to ``most``, at which given pools hold that many requests [1/s]."""
    low, high = 0.0, most
    for _ in range(CLOSED_LOOP_TURNS + 3):
        middle = (low + high) / 2
        loaded = reload(problem, pools, middle)
        below = loaded is not None and middle * view_of(problem, loaded).e2e.mean <= in_flight
        low, high = (middle, high) if below else (low, middle)
    return low or high


def _sized_closed_loop(problem: Problem, in_flight: float, near: Pools | None = None) -> Plan:
    """The rate that keeps so many requests in flight, rate * E2E = in flight, by bracketing; and its plan.

    A rate that cannot be served counts as too high. Where no rate that can be served holds so many, the answer is
    the infeasible one.
    """
    low, high = _first_rates(problem, in_flight, near)
    if not low.plan.feasible:
        return high.plan
    for _ in range(CLOSED_LOOP_TURNS):
        if min(abs(low.held / in_flight - 1), abs(high.held / in_flight - 1)) < CLOSE_ENOUGH:
            break
        if high.held < in_flight:
            low, high = high, _tried(problem, high.rate * min(4.0, 1.05 * in_flight / high.held), near)
            continue
        middle = _tried(problem, _between(low, high, in_flight), near)
        low, high = (low, middle) if middle.held > in_flight else (middle, high)
    if low.held >= (1 - ACCEPTED) * in_flight and abs(low.held - in_flight) < abs(high.held - in_flight):
        return low.plan
    return high.plan


def _first_rates(problem: Problem, in_flight: float, near: Pools | None) -> tuple[_Tried, _Tried]:
    """Little load, and a rate that may be too high: where pools of a like question are known, two about right."""
    limit = min((t for key, t in problem.targets.items() if key.startswith("tpot")), default=0.05)
    rate = in_flight / (problem.workload.mean_decode_steps * limit)
    if near is None or problem.sized_rate is None:
        return _tried(problem, rate * LITTLE_LOAD, near), _tried(problem, rate, near)
    first = _tried(problem, problem.sized_rate, near)
    second = _tried(problem, first.rate * in_flight / first.held, near) if first.plan.feasible else first
    low, high = sorted((first, second), key=lambda tried: tried.rate)
    return (low if low.held <= in_flight else _tried(problem, rate * LITTLE_LOAD, near)), high


class _Tried(NamedTuple):
    """A rate, the requests it keeps in flight (infinite where it cannot be served), and its plan."""

    rate: float
    held: float
    plan: Plan


def _tried(problem: Problem, rate: float, near: Pools | None) -> _Tried:
    answer = _plan(replace(problem, rate=rate, sized_rate=rate), near)
    held = rate * answer.view.e2e.mean if answer.feasible and answer.view is not None else math.inf
    return _Tried(rate, held, answer)


def _between(low: _Tried, high: _Tried, in_flight: float) -> float:
    """Interpolated in the logarithms where both hold a finite number, else the geometric middle."""
    if not math.isfinite(high.held) or high.held <= low.held:
        return math.sqrt(low.rate * high.rate)
    share = math.log(in_flight / low.held) / math.log(high.held / low.held)
    return float(low.rate * (high.rate / low.rate) ** min(0.95, max(0.05, share)))
