"""A scenario: what is to be served, on what, how well. TOML, JSON, a dictionary or keywords."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from capplan.cards.store import read_json, read_text
from capplan.cards.validation import one_line
from capplan.errors import InputError, UnknownNameError
from capplan.planning.scenario_paths import located_beside
from capplan.planning.settings import merged
from capplan.quantities import units
from capplan.quantities.registry import all_quantities, override_value


def _quantity_type(parse: Callable[..., float], example: str, meaning: str, **options: bool) -> Any:
    def read(value: Any) -> float:
        return parse(value, **options)

    schema = {"type": ["string", "number"], "description": meaning, "examples": [example]}
    return Annotated[float, BeforeValidator(read), WithJsonSchema(schema)]


if TYPE_CHECKING:
    Seconds: TypeAlias = float
    Rate: TypeAlias = float
    Tokens: TypeAlias = float
    Share: TypeAlias = float
    Money: TypeAlias = float
else:
    Seconds = _quantity_type(units.parse_seconds, "50ms", "a time with its unit", positive=True)
    Rate = _quantity_type(units.parse_rate, "20/s", "a rate with its unit", positive=True)
    Tokens = _quantity_type(units.parse_tokens, "16k", "a token count; k is 1,024", positive=True)
    Share = _quantity_type(units.parse_share, "0.1", "a share, 0.1 or 10%")
    Money = _quantity_type(units.parse_money, "2.0", "dollars")


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class HardwareSection(_Section):
    """Which GPU, how many at most, at what price."""

    gpu: str = Field(min_length=1)
    max_gpus: int = Field(default=1024, ge=1, le=1_000_000, strict=True)
    price_per_gpu_hour: Money | None = Field(default=None, le=1e6)


RATE_MISSING = "give exactly one of rate (for example '20/s') and concurrency (requests in flight)"


class WorkloadSection(_Section):
    """What arrives: a card, a trace, or two length laws; and how often."""

    card: str | None = Field(default=None, min_length=1)
    trace: str | None = Field(default=None, min_length=1)
    columns: dict[str, str] | None = Field(default=None, max_length=10)
    input: Any = None
    output: Any = None
    reasoning_share: Share | None = Field(default=None, ge=0, le=1)
    rate: Rate | None = None
    concurrency: int | None = Field(default=None, ge=1, le=10_000_000, strict=True)
    dispersion: float = Field(default=1.0, gt=0, le=1e6)
    dispersion_window: Seconds | None = None

    @model_validator(mode="after")
    def _one_source_of_lengths_and_load(self) -> WorkloadSection:
        if self.rate is not None and not 1e-6 <= self.rate <= 1e9:
            raise ValueError(f"rate = {self.rate:g}/s must lie between 1e-6/s and 1e9/s")
        laws = self.input is not None or self.output is not None
        if (self.card is not None) + (self.trace is not None) + laws != 1:
            raise ValueError("give exactly one of card, trace, or input together with output")
        if laws and (self.input is None or self.output is None):
            raise ValueError("input and output belong together: give both length laws")
        if self.columns is not None and self.trace is None:
            raise ValueError("columns belong to a trace")
        both, neither = None not in (self.rate, self.concurrency), self.rate is None and self.concurrency is None
        if both or (neither and not self.may_know_rate):
            raise ValueError(RATE_MISSING)
        return self

    @model_validator(mode="after")
    def _bursts_belong_to_arrivals(self) -> WorkloadSection:
        bursty = "dispersion" in self.model_fields_set and self.dispersion != 1.0
        if self.concurrency is not None and (bursty or self.dispersion_window is not None):
            raise ValueError("a closed loop (concurrency) has no dispersion of arrivals")
        if self.dispersion_window is not None and not bursty and not self.may_know_rate:
            raise ValueError("dispersion_window belongs to a dispersion")
        return self

    @property
    def may_know_rate(self) -> bool:
        """Whether the lengths come from a trace, or the file of a card that may be made of one."""
        return self.trace is not None or (self.card or "").lower().endswith(".json")


LATENCY_KEYS = tuple(
    f"{name}_{p}" for name in ("ttft", "tpot", "itl", "answer", "e2e") for p in ("p50", "p90", "p99", "p999")
)


class SloSection(_Section):
    """Targets, any subset. Latencies by percentile; ``kv_overflow`` is a share of time per rank."""

    ttft_p50: Seconds | None = None
    ttft_p90: Seconds | None = None
    ttft_p99: Seconds | None = None
    ttft_p999: Seconds | None = None
    tpot_p50: Seconds | None = None
    tpot_p90: Seconds | None = None
    tpot_p99: Seconds | None = None
    tpot_p999: Seconds | None = None
    itl_p50: Seconds | None = None
    itl_p90: Seconds | None = None
    itl_p99: Seconds | None = None
    itl_p999: Seconds | None = None
    answer_p50: Seconds | None = None
    answer_p90: Seconds | None = None
    answer_p99: Seconds | None = None
    answer_p999: Seconds | None = None
    e2e_p50: Seconds | None = None
    e2e_p90: Seconds | None = None
    e2e_p99: Seconds | None = None
    e2e_p999: Seconds | None = None
    kv_overflow: Share = 0.001
    attainment: Share | None = None

    @model_validator(mode="after")
    def _shares_below_one(self) -> SloSection:
        for name in ("kv_overflow", "attainment"):
            if (value := getattr(self, name)) is not None and not 0 < value < 1:
                raise ValueError(f"{name} = {value} must lie between 0 and 1")
        return self


class LayoutSection(_Section):
    """A fixed layout of an instance; what is not given is one."""

    tp: int = Field(default=1, ge=1, le=4096, strict=True)
    pp: int = Field(default=1, ge=1, le=4096, strict=True)
    dp: int = Field(default=1, ge=1, le=4096, strict=True)
    ep: int | None = Field(default=None, ge=1, le=4096, strict=True)
    dcp: int = Field(default=1, ge=1, le=4096, strict=True)
    redundant_experts: int = Field(default=0, ge=0, le=4096, strict=True)


LEAST_BATCHED_TOKENS = 64


class ServingSection(_Section):
    """How it is served. Layouts and caps are searched unless given."""

    engine: str = "vllm"
    mode: Literal["aggregated", "disaggregated", "auto"] = "auto"
    routing: Literal["random", "round-robin", "least-loaded", "least-kv"] = "least-loaded"
    headroom: Share = 0.1
    layout: LayoutSection | None = None
    prefill_layout: LayoutSection | None = None
    decode_layout: LayoutSection | None = None
    max_num_seqs: int | None = Field(default=None, ge=1, le=1_000_000, strict=True)
    max_num_batched_tokens: Tokens | None = None
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    overlap: bool = Field(default=False, strict=True)
    mtp: int = Field(default=0, ge=0, le=16, strict=True)
    acceptance: Share | None = None
    skew: float = Field(default=1.0, ge=1.0, le=1000.0)
    prefix_hit: Share = 0.0

    @model_validator(mode="after")
    def _consistent(self) -> ServingSection:
        if self.max_num_batched_tokens is not None and self.max_num_batched_tokens < LEAST_BATCHED_TOKENS:
            raise ValueError(f"max_num_batched_tokens must be {LEAST_BATCHED_TOKENS} or more")
        if self.mode == "aggregated" and self.prefill_layout:
            raise ValueError("prefill_layout has no part in mode aggregated")
        if not self.headroom < 0.95:
            raise ValueError(f"headroom = {self.headroom} must be below 0.95")
        if not self.prefix_hit < 1:
            raise ValueError(f"prefix_hit = {self.prefix_hit} must be below 1")
        if self.mtp and self.acceptance is None:
            raise ValueError("mtp needs acceptance, the share of draft tokens that are accepted (for example 0.85)")
        if self.acceptance is not None and not self.mtp:
            raise ValueError("acceptance is used only with mtp draft tokens")
        if self.layout and (self.prefill_layout or self.decode_layout):
            raise ValueError("give layout for all pools, or prefill_layout and decode_layout, not both")
        return self


class PolicySection(_Section):
    """What is done to requests."""

    thinking_budget: Tokens | None = None
    scheduler: Literal["fcfs"] = "fcfs"


class Scenario(_Section):
    """One planning question. See the published JSON Schema for every key."""

    model: str = Field(min_length=1)
    hardware: HardwareSection
    workload: WorkloadSection
    slo: SloSection = SloSection()
    serving: ServingSection = ServingSection()
    policy: PolicySection = PolicySection()
    override: dict[str, float] = Field(default_factory=dict)

    @field_validator("override", mode="before")
    @classmethod
    def _known_overrides(cls, override: Any) -> Any:
        if not isinstance(override, Mapping):
            return override
        return {name: override_value(str(name), value) for name, value in override.items()}


def scenario_schema() -> dict[str, Any]:
    """The JSON Schema of a scenario file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Scenario.model_json_schema()}


SECTIONS: Mapping[str, type[_Section]] = {
    "hardware": HardwareSection,
    "workload": WorkloadSection,
    "slo": SloSection,
    "serving": ServingSection,
    "policy": PolicySection,
}
_SHORT_NAMES = {
    "workload": "workload.card",
    **{name: f"serving.layout.{name}" for name in LayoutSection.model_fields},
}


def full_key(key: str) -> str:
    """The dotted key behind a flag or keyword: ``tpot_p99`` is ``slo.tpot_p99``, ``kv_pool_gib`` an override.

    Raises
    ------
    UnknownNameError : no scenario key has that name
    """
    if "." in key or key == "model":
        head, _, rest = key.partition(".")
        sections = [section for section, schema in SECTIONS.items() if head in schema.model_fields]
        return f"{sections[0]}.{key}" if rest and head not in SECTIONS and sections else key
    if key in _SHORT_NAMES:
        return _SHORT_NAMES[key]
    for section, schema in SECTIONS.items():
        if key in schema.model_fields:
            return f"{section}.{key}"
    if key in all_quantities():
        return f"override.{key}"
    leaves = [leaf for schema in SECTIONS.values() for leaf in schema.model_fields]
    raise UnknownNameError.among(key, ["model", *leaves], "scenario key")


def load_scenario(source: str | Path | Mapping[str, Any] | Scenario, **overrides: Any) -> Scenario:
    """Read a scenario from a TOML or JSON file, a dictionary or another scenario, with keys replaced.

    Parameters
    ----------
    source : path, mapping or :class:`Scenario`; an empty mapping if everything is given by keyword
    overrides : ``tpot_p99="30ms"`` or, for any key, ``**{"slo.tpot_p99": "30ms"}``

    Raises
    ------
    InputError : unreadable file, unknown key, wrong unit or type; one line that names file and key
    """
    file = str(source) if isinstance(source, (str, Path)) else None
    data = scenario_data(source, **overrides)
    for key, remedy in _NEEDED.items():
        if _lacks(data, key):
            raise InputError(f"is missing; {remedy}", key=key, file=file)
    try:
        return Scenario.model_validate(data)
    except ValidationError as error:
        raise _placed(one_line(error, file, Scenario)) from None


def scenario_data(source: str | Path | Mapping[str, Any] | Scenario, **overrides: Any) -> dict[str, Any]:
    """What a scenario says, its keys replaced, before anything is checked.

    Raises
    ------
    InputError : unreadable file, a keyword that is no scenario key
    """
    return merged(_read(source), {full_key(key): value for key, value in overrides.items()})


def _placed(error: InputError) -> InputError:
    """An error that names its own, longer key keeps that one alone."""
    if error.key and error.problem.startswith(f"{error.key}."):
        key, _, problem = error.problem.partition(": ")
        return type(error)(problem, key=key, file=error.file)
    return error


_NEEDED = {
    "model": "name a model card or a config.json (--model deepseek-r1)",
    "hardware.gpu": "name a hardware card (--gpu h200)",
    "workload": "say what arrives (--workload chat-azure-2023, --trace FILE, or --input and --output) and how often",
}


def _lacks(data: Mapping[str, Any], key: str) -> bool:
    """Whether a key without which nothing can be planned is missing; what is there but wrong is told later."""
    section, _, leaf = key.partition(".")
    value = data.get(section)
    return section not in data or (bool(leaf) and isinstance(value, Mapping) and not value)


def _read(source: str | Path | Mapping[str, Any] | Scenario) -> dict[str, Any]:
    if isinstance(source, Scenario):
        return _readable(source)
    if isinstance(source, Mapping):
        return dict(source)
    if not isinstance(source, (str, Path)):
        raise InputError(f"must be a path, a dictionary or a Scenario, not {type(source).__name__}", key="scenario")
    path = Path(source)
    return located_beside(read_json(path) if path.suffix.lower() == ".json" else _read_toml(path), path)


def _readable(scenario: Scenario) -> dict[str, Any]:
    """A scenario as input again: numbers get the unit their key wants."""
    data = scenario.model_dump(exclude_unset=True)
    for key, value in data.get("slo", {}).items():
        if key in LATENCY_KEYS and value is not None:
            data["slo"][key] = f"{value!r}s"
    if (rate := data.get("workload", {}).get("rate")) is not None:
        data["workload"]["rate"] = f"{rate!r}/s"
    return data


def _read_toml(path: Path) -> dict[str, Any]:
    text = read_text(path)
    try:
        return _toml(text)
    except InputError as error:
        raise error.located(file=str(path)) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not valid TOML ({str(error).splitlines()[0][:120]})", file=str(path)) from None


MOST_KEY_PARTS = 32


def _toml(text: str) -> dict[str, Any]:
    """TOML text as a dictionary; ``tomli`` stands in on Python 3.10."""
    for number, line in enumerate(text.splitlines(), 1):  # the parser takes quadratic time over a key of many parts
        if line.partition("=")[0].count(".") > MOST_KEY_PARTS and line.lstrip()[:1] not in ("#", '"', "'"):
            raise InputError(f"line {number}: a key of more than {MOST_KEY_PARTS} parts")
    parser = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    data: dict[str, Any] = parser.loads(text)
    return data


def parse_setting(setting: str) -> tuple[str, Any]:
    """``slo.tpot_p99=30ms`` as key and value; the value is read as TOML where it is TOML, else as text.

    Raises
    ------
    InputError : no ``=`` in it
    """
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise InputError(f"{setting[:80]!r} must look like slo.tpot_p99=30ms", key="--set")
    return key.strip(), parse_value(text.strip())


def parse_value(text: str) -> Any:
    """A command-line value: a TOML number, boolean, table or array where it is one, else the text."""
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text) if len(text) < 19 else text
    if re.fullmatch(r"[+-]?\d+\.\d*(e[+-]?\d+)?", text):
        return float(text)
    if text in ("true", "false"):
        return text == "true"
    if text.startswith(("{", "[")):
        return _read_inline(text)
    return text


def _read_inline(text: str) -> Any:
    try:
        return _toml(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        raise InputError(f"{text[:80]!r} is neither a TOML table nor an array", key="--set") from None
