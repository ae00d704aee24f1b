"""The schema of an engine card: what its file may hold, and which line says what is wrong with one."""

# No "from __future__ import annotations": pydantic would have to compile every annotation again.
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from capplan.cards.engine import MemoryFormula, SchedulerPolicy, TtftEvent
from capplan.cards.number_schema import BandCard, Number
from capplan.cards.validation import one_line

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)
_Version = Annotated[str, Field(pattern=r"^\d{1,6}(\.\d{1,6}){0,3}$")]


class EngineNumbers(BaseModel):
    """Sourced constants; a card has those of all versions and those of a range, which win."""

    model_config = _STRICT

    memory_fraction: Number | None = None
    block_tokens: Number | None = None
    activation_bytes_per_logit: Number | None = None
    activation_hidden_widths: Number | None = None
    activation_inner_widths: Number | None = None
    mla_workspace_tokens: Number | None = None
    mxfp4_hidden_multiple: Number | None = None
    mxfp4_inner_multiple: Number | None = None
    graph_bytes: Number | None = None
    other_bytes: Number | None = None
    other_bytes_parallel: Number | None = None
    other_bytes_pipeline: Number | None = None
    watermark_share: Number | None = None
    layer_overhead_seconds: Number | None = None
    step_gap_seconds: Number | None = None
    sequence_overhead_seconds: Number | None = None
    kernel_time_factor: Number | None = None
    context_attention_factor: Number | None = None
    fp8_kv_share: Number | None = None
    ttft_base_seconds: Number | None = None
    ttft_sqrt_factor: Number | None = None
    ttft_linear_factor: Number | None = None


class BatchDefaultsCard(BaseModel):
    """Batch limits on GPUs of at least some memory."""

    model_config = _STRICT

    hbm_bytes_at_least: Number
    max_batched_tokens: Number
    max_sequences: Number
    graph_sequences: Number
    graph_sequences_wide: Number
    not_for: list[str] = Field(default_factory=list, max_length=40)


class StaticReserveCard(BaseModel):
    """The terms of the memory an engine keeps free."""

    model_config = _STRICT

    base_bytes: Number
    bytes_per_batched_token: Number
    bytes_per_graph_sequence: Number
    bytes_per_gpu: Number
    bytes_per_graph_sequence_and_dp_rank: Number
    least_bytes: Number
    least_bytes_from_hbm_bytes: Number


class VersionRange(BaseModel):
    """Constants from one version until before another; ``until`` is absent on the newest range."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    since: _Version
    until: _Version | None = None
    numbers: EngineNumbers
    batch_defaults: list[BatchDefaultsCard] | None = Field(default=None, min_length=1, max_length=20)
    """In place of those of the card."""


class CalibratedForCard(BaseModel):
    """Whose measured runs gave the constants: names of a hardware card and of a model card."""

    model_config = _STRICT

    gpu: str = Field(min_length=1, max_length=80)
    model: str = Field(min_length=1, max_length=80)


class EngineCard(BaseModel):
    """One serving engine over its versions, every number with its unit, source and kind."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, title="capplan engine card")

    schema_id: Literal["capplan.engine/1"] = Field(alias="schema")
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,39}$")
    title: str = Field(min_length=1, max_length=80)
    aliases: list[str] = Field(default_factory=list, max_length=20)
    memory_formula: MemoryFormula
    scheduler_policy: SchedulerPolicy
    ttft_order: list[TtftEvent] = Field(min_length=1, max_length=10)
    ttft_order_aggregated: list[TtftEvent] = Field(min_length=1, max_length=10)
    flags: dict[str, str] = Field(default_factory=dict, max_length=60)
    kv_dtypes: dict[str, str] = Field(default_factory=dict, max_length=60)
    sparse_latent_kv: dict[str, str] = Field(default_factory=dict, max_length=60)
    documents: dict[str, str] = Field(max_length=60)
    """Source of each field that is no number."""
    batch_defaults: list[BatchDefaultsCard] = Field(min_length=1, max_length=20)
    static_reserve: StaticReserveCard | None = None
    calibrated_for: CalibratedForCard | None = None
    bands: dict[Literal["decode_dense", "decode_mixture"], BandCard] | None = None
    """Count before those of the hardware card, for the pair of ``calibrated_for`` alone."""
    numbers: EngineNumbers
    versions: list[VersionRange] = Field(min_length=1, max_length=50)


def engine_card_schema() -> dict[str, Any]:
    """The JSON Schema of an engine card."""
    return EngineCard.model_json_schema(by_alias=True)


def validated(data: dict[str, Any], file: str) -> dict[str, Any]:
    """The plain data of a card, as the schema leaves them.

    Raises
    ------
    InputError : unknown or missing key, a number without source, a value of the wrong type; one line
    """
    try:
        return EngineCard.model_validate(data).model_dump(by_alias=True, exclude_none=True)
    except ValidationError as error:
        raise one_line(error, file, EngineCard) from None
