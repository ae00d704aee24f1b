"""The schema of a workload card: what its file may hold, and which line says what is wrong with one."""

# No "from __future__ import annotations": pydantic would have to compile every annotation again.
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from capplan.cards.number import Kind
from capplan.cards.number_schema import Number
from capplan.cards.validation import one_line

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)
_Text = Field(min_length=1, max_length=2000)


class Numbers(BaseModel):
    """A list of sourced numbers: one unit, source and kind for all."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    values: list[float] = Field(min_length=1, max_length=20_000)
    unit: str = Field(min_length=1, max_length=40)
    source: str = Field(min_length=1, max_length=400)
    kind: Kind


class _Law(BaseModel):
    model_config = _STRICT


class FixedCard(_Law):
    """Every request the same."""

    law: Literal["fixed"]
    tokens: Number


class UniformCard(_Law):
    """Equal density between two lengths."""

    law: Literal["uniform"]
    low: Number
    high: Number
    max: Number | None = None


class ExponentialCard(_Law):
    """Exponential, mean before the cut."""

    law: Literal["exponential"]
    mean: Number
    max: Number | None = None


class LogNormalCard(_Law):
    """Lognormal, mean and cv before the cut."""

    law: Literal["lognormal"]
    mean: Number
    cv: Number
    max: Number | None = None


class GammaCard(_Law):
    """Gamma, mean and cv before the cut."""

    law: Literal["gamma"]
    mean: Number
    cv: Number
    max: Number | None = None


class ParetoCard(_Law):
    """Pareto tail from a smallest length on."""

    law: Literal["pareto"]
    minimum: Number
    alpha: Number
    max: Number | None = None


class EmpiricalCard(_Law):
    """Weighted values."""

    law: Literal["empirical"]
    values: Numbers
    weights: Numbers | None = None
    max: Number | None = None


class HistogramCard(_Law):
    """Bins, uniform inside."""

    law: Literal["histogram"]
    edges: Numbers
    shares: Numbers
    max: Number | None = None


class MixturePart(BaseModel):
    """One law of a mixture and its weight."""

    model_config = _STRICT

    weight: Number
    law: "LawCard"


class MixtureCard(_Law):
    """A length drawn from one of several laws."""

    law: Literal["mixture"]
    parts: list[MixturePart] = Field(min_length=1, max_length=100)


LawCard = Annotated[
    FixedCard
    | UniformCard
    | ExponentialCard
    | LogNormalCard
    | GammaCard
    | ParetoCard
    | EmpiricalCard
    | HistogramCard
    | MixtureCard,
    Field(discriminator="law"),
]


class JointCard(BaseModel):
    """Pairs of prompt and output tokens with their weights: three lists of one length."""

    model_config = _STRICT

    input: Numbers
    output: Numbers
    weights: Numbers


class ClassCard(BaseModel):
    """One kind of request: either two laws, independent inside it, or its pairs; and its reasoning tokens."""

    model_config = _STRICT

    name: str = Field(min_length=1, max_length=80)
    share: Number
    input: LawCard | None = None
    output: LawCard | None = None
    joint: JointCard | None = None
    reasoning: LawCard | None = None

    @model_validator(mode="after")
    def _laws_or_pairs(self) -> "ClassCard":
        laws = (self.input is not None) + (self.output is not None)
        if laws != (2 if self.joint is None else 0):
            raise ValueError("a class has input and output, or joint")
        return self


class TraceCard(BaseModel):
    """The file a card was made of."""

    model_config = _STRICT

    file: str = Field(min_length=1, max_length=255)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    requests: Number
    failed: Number


class ArrivalsCard(BaseModel):
    """Rate and index of dispersion of the counts of arrivals over windows."""

    model_config = _STRICT

    rate: Number
    span: Number
    windows: Numbers | None = None
    dispersion: Numbers | None = None
    drifts: bool = False
    busiest_rate: Number | None = None
    time_step: Number | None = None


class HoursCard(BaseModel):
    """One value an hour: rate, mean tokens, and KV tokens held per second of step time."""

    model_config = _STRICT

    rate: Numbers
    input_mean: Numbers
    output_mean: Numbers
    kv_load: Numbers


class PrefixHitsCard(BaseModel):
    """Share of prompt tokens found in a least-recently-used prefix cache, by its size."""

    model_config = _STRICT

    block_tokens: Number
    capacity: Numbers
    token_share: Numbers


class WorkloadCard(BaseModel):
    """The requests of one kind of service, every number with its unit, source and kind."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, title="capplan workload card")

    schema_id: Literal["capplan.workload/1"] = Field(alias="schema")
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,59}$")
    title: str = _Text
    description: str = _Text
    licence: str = _Text
    fit: str | None = Field(default=None, max_length=4000)
    reasoning_share: Number | None = None
    classes: list[ClassCard] = Field(min_length=1, max_length=200)
    targets: dict[str, Number] = Field(default_factory=dict, max_length=100)
    trace: TraceCard | None = None
    arrivals: ArrivalsCard | None = None
    hours: HoursCard | None = None
    prefix_hits: PrefixHitsCard | None = None


MixturePart.model_rebuild()
MixtureCard.model_rebuild()
ClassCard.model_rebuild()
WorkloadCard.model_rebuild()


def workload_card_schema() -> dict[str, Any]:
    """The JSON Schema of a workload card."""
    return WorkloadCard.model_json_schema(by_alias=True)


def validated(data: dict[str, Any], file: str) -> dict[str, Any]:
    """The plain data of a card, as the schema leaves them.

    Raises
    ------
    InputError : unknown or missing key, a number without source, a value of the wrong type; one line
    """
    try:
        return WorkloadCard.model_validate(data).model_dump(by_alias=True, exclude_none=True)
    except ValidationError as error:
        raise one_line(error, file, WorkloadCard) from None
