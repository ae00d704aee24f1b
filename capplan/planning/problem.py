"""A scenario with its cards loaded: what the search and the evaluation work on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from capplan.cards.engine_card import load_engine
from capplan.cards.hardware_card import load_hardware
from capplan.cards.model_card import load_model
from capplan.cards.workload import Workload
from capplan.cards.workload_card import is_trace, length_law, load_workload
from capplan.errors import InputError, shown
from capplan.planning.scenario import LATENCY_KEYS, Scenario, WorkloadSection
from capplan.quantities.chain import Chain

if TYPE_CHECKING:
    from capplan.cards.arrivals import Arrivals
    from capplan.cards.engine import Engine
    from capplan.cards.hardware import Hardware
    from capplan.cards.model import Model

T = TypeVar("T")

PER_LAYOUT = ("memory", "prompt line")
PER_PROMPT = ("prompt quantiles", "prompt cost", "longest prompt")
_OF_PROMPTS = (*PER_PROMPT, "prefill pool")
"""What is kept under these names depends on no request, or on their prompts alone (the pool on the arrivals too)."""


@dataclass(frozen=True, eq=False)
class Problem:
    """One planning question in base units.

    ``rate`` is the offered request rate [1/s]; pools are sized for ``sizing_rate``, the rate that leaves the headroom
    free. ``targets`` maps ``ttft_p99`` and so on to seconds.
    """

    scenario: Scenario
    model: Model
    hardware: Hardware
    engine: Engine
    workload: Workload
    rate: float
    targets: Mapping[str, float]
    sized_rate: float | None = None
    store: dict[tuple[str, Hashable], Any] = field(default_factory=dict, compare=False, repr=False)
    """What was computed before, by its name and what it depends on beside the question: layout, instances, rate."""
    used: set[str] = field(default_factory=set, compare=False, repr=False)
    """Overrides that took part in some evaluation."""
    told: tuple[str, ...] = ()
    """What was taken from the trace because the scenario does not say it."""
    arrivals: Arrivals | None = None
    """The trace whose dispersion counts, at the time scale of every queue; None where the scenario says one number."""

    @property
    def sizing_rate(self) -> float:
        """Rate the pools are sized for: ``rate / (1 - headroom)``, or what a closed loop was found to cause [1/s]."""
        if self.sized_rate is not None:
            return self.sized_rate
        return self.rate / (1.0 - self.scenario.serving.headroom)

    @property
    def price_per_gpu_hour(self) -> float | None:
        """The negotiated price, else the card's [$/h]."""
        negotiated = self.scenario.hardware.price_per_gpu_hour
        return self.hardware.price_per_gpu_hour if negotiated is None else negotiated

    def timing(self, chain: Chain | None = None) -> dict[str, Any]:
        """Options every step and prefill time is computed with; the scenario's overrides always among them."""
        serving = self.scenario.serving
        overridden = self.chain() if self.scenario.override else None
        return {
            "chain": chain or overridden,
            "weight_dtype": serving.weight_dtype,
            "kv_dtype": serving.kv_dtype,
            "engine": self.engine,
            "overlap": serving.overlap,
            "skew": serving.skew,
        }

    def chain(self, *, record: bool = False) -> Chain:
        """A fresh chain with the scenario's overrides and engine settings; ``used`` remembers which took part."""
        serving = self.scenario.serving
        given = {"max_num_batched_tokens": serving.max_num_batched_tokens, "max_num_seqs": serving.max_num_seqs}
        settings = {name: value for name, value in given.items() if value is not None}
        chain = Chain({**settings, **self.scenario.override}, record=record)
        if not record:
            chain.used_overrides = self.used
        return chain

    def kept(self, what: str, place: Hashable, compute: Callable[[], T]) -> T:
        """The value computed for that layout (or layout, instances and rate), once."""
        key = (what, place)
        if key not in self.store:
            self.store[key] = compute()
        found: T = self.store[key]
        return found

    def at_rate(self, rate: float) -> Problem:
        """The same question at another offered rate [1/s]."""
        sized = None if self.sized_rate is None else self.sized_rate * rate / self.rate
        return replace(self, rate=rate, sized_rate=sized)

    def with_workload(self, workload: Workload) -> Problem:
        """The same question for other requests; what does not depend on them is kept."""
        lasting = PER_LAYOUT + (_OF_PROMPTS if workload.input == self.workload.input else ())
        store = {key: value for key, value in self.store.items() if key[0] in lasting}
        return replace(self, workload=workload, store=store)


def resolve(scenario: Scenario) -> Problem:
    """Load every card a scenario names; the rate of the trace where the scenario gives none.

    Raises
    ------
    InputError : an unknown card, an unreadable file, a law that is none
    """
    from capplan.planning.measured_arrivals import measured_rate

    slo = scenario.slo
    targets = {key: value for key in LATENCY_KEYS if (value := getattr(slo, key)) is not None}
    model, workload = load_model(scenario.model), _workload(scenario)
    if workload.mean_decode_steps <= 0:
        raise InputError("every output is one token, so nothing decodes; see capplan prefill", key="workload.output")
    if scenario.serving.mtp and not model.mtp_layers:
        raise InputError(f"{model.name} has no layers that predict further tokens", key="serving.mtp")
    if scenario.serving.skew != 1 and not model.is_mixture:
        raise InputError(f"{model.name} has no experts", key="serving.skew")
    rate, told = measured_rate(scenario.workload, workload)
    return Problem(
        scenario=scenario,
        model=model,
        hardware=load_hardware(scenario.hardware.gpu),
        engine=load_engine(scenario.serving.engine),
        workload=workload,
        rate=rate,
        targets=targets,
        told=told,
    )


def _workload(scenario: Scenario) -> Workload:
    section = scenario.workload
    if section.card or section.trace:
        workload = _read(section)
    else:
        workload = Workload(
            input=length_law(section.input, key="workload.input"),
            output=length_law(section.output, key="workload.output"),
            reasoning_share=section.reasoning_share,
        )
    budget = scenario.policy.thinking_budget
    return workload if budget is None else workload.with_budget(budget)


def _read(section: WorkloadSection) -> Workload:
    """The workload of a card or a trace; the scenario's share of reasoning where it says nothing of it itself."""
    if section.trace is not None and not is_trace(Path(section.trace)):
        raise InputError(f"{shown(section.trace)} must end in .csv, .jsonl or .ndjson, with or without .gz, or in "
                         "-dataset.json; a card goes under workload.card", key="workload.trace")  # fmt: skip
    workload = load_workload(section.card or section.trace or "", section.columns)
    if section.reasoning_share is None:
        return workload
    if workload.reasoning_share is not None:
        raise InputError(f"{workload.name} says itself which tokens are reasoning; leave it out",
                         key="workload.reasoning_share")  # fmt: skip
    return workload.with_reasoning_share(section.reasoning_share)
