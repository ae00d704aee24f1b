"""The schema of a model card: what its file may hold, and which line says what is wrong with one."""

# No "from __future__ import annotations": pydantic would have to compile every annotation again at start-up.
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from capplan.cards.kv import kv_element_bytes
from capplan.cards.model_reader import MAY_BE_ZERO, UNITS
from capplan.cards.model_schema_layers import CrossCard, GqaCard, LayerCard, MatrixCard, MixtureCard
from capplan.cards.number import plain_numbers
from capplan.cards.number_schema import Number
from capplan.cards.validation import one_line
from capplan.cards.weight_formats import weight_format
from capplan.errors import InputError

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)
_Text = Annotated[str, Field(min_length=1, max_length=400)]
_Name = Annotated[str, Field(min_length=1, max_length=40)]


class MtpCard(BaseModel):
    """Multi-token-prediction layers, each behind a projection of twice the model's width to once."""

    model_config = _STRICT

    layers: list[LayerCard] = Field(min_length=1, max_length=100)
    copies_embeddings: bool
    projection_format: _Name = "bf16"


class ProvenanceCard(BaseModel):
    """What was read: repository, file and commit, which fields were used, unused but harmless, or assumed."""

    model_config = _STRICT

    repository: _Text | None = None
    file: _Text
    url: _Text | None = None
    commit: _Text | None = None
    retrieved_from: _Text | None = None
    model_type: _Text | None = None
    fields_read: list[_Text] = Field(default_factory=list, max_length=1000)
    fields_unread: list[_Text] = Field(default_factory=list, max_length=1000)
    fields_assumed: dict[_Text, _Text] = Field(default_factory=dict, max_length=100)
    assumed: dict[_Text, _Text] = Field(default_factory=dict, max_length=100)
    notes: list[_Text] = Field(default_factory=list, max_length=100)


class ModelCard(BaseModel):
    """One model: dimensions of its layers, how its weights are stored, every number with unit, source and kind."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, title="capplan model card")

    schema_id: Literal["capplan.model/1"] = Field(alias="schema")
    name: str = Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    aliases: list[_Text] = Field(default_factory=list, max_length=20)
    hidden_size: Number
    vocab_size: Number
    max_context: Number
    tied_embeddings: bool
    embedding_format: _Name = "bf16"
    lm_head_format: _Name = "bf16"
    kv_dtype: _Name = "bf16"
    embedding_rows: Number | None = None
    embedding_width: Number | None = None
    final_norms: Number | None = None
    other_parameters: Number | None = None
    lm_head_bias: bool = False
    look_ups: list[MatrixCard] = Field(default_factory=list, max_length=10)
    projections: list[MatrixCard] = Field(default_factory=list, max_length=40)
    layers: list[LayerCard] = Field(min_length=1, max_length=1000)
    mtp: MtpCard | None = None
    provenance: ProvenanceCard

    @model_validator(mode="after")
    def _plausible(self) -> "ModelCard":
        for key, number in plain_numbers(self.model_dump()):
            _check_number(key, number)
        _check_names(self)
        for index, layer in enumerate(self.layers):
            _check_layer(layer, f"layers.{index}")
        for index, layer in enumerate(self.mtp.layers if self.mtp is not None else []):
            _check_layer(layer, f"mtp.layers.{index}")
        return self


def model_card_schema() -> dict[str, Any]:
    """The JSON Schema of a model card."""
    return ModelCard.model_json_schema(by_alias=True)


def validated(data: dict[str, Any], file: str) -> ModelCard:
    """A card from its parsed file.

    Raises
    ------
    InputError : unknown or missing key, a number without source, a value out of range; one line
    """
    try:
        return ModelCard.model_validate(data)
    except ValidationError as error:
        raise one_line(error, file, ModelCard) from None


def plain_data(card: ModelCard) -> dict[str, Any]:
    """The plain data of a card as its file has it: whole numbers, nothing that is left at its default."""
    data = card.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude_none=True)
    whole: dict[str, Any] = _whole_numbers(data)
    return whole


def _whole_numbers(part: Any) -> Any:
    if isinstance(part, dict):
        return {key: _whole_numbers(value) for key, value in part.items()}
    if isinstance(part, list):
        return [_whole_numbers(item) for item in part]
    return int(part) if isinstance(part, float) and part.is_integer() else part


def _check_number(key: str, number: dict[str, Any]) -> None:
    name = key.rpartition(".")[2]
    unit, most = UNITS[name]
    least = 0 if name in MAY_BE_ZERO else 1
    if number["unit"] != unit:
        raise InputError(f"unit {number['unit']!r} must be {unit!r}", key=key)
    if not least <= number["value"] <= most or not float(number["value"]).is_integer():
        raise InputError(f"{number['value']:g} must be a whole number from {least} to {most:,.0f}", key=key)


def _check_names(card: ModelCard) -> None:
    kv_element_bytes(card.kv_dtype)
    for key in ("embedding_format", "lm_head_format"):
        weight_format(getattr(card, key), key=key)
    if card.mtp is not None:
        weight_format(card.mtp.projection_format, key="mtp.projection_format")


def _check_layer(layer: LayerCard, key: str) -> None:
    attention, feed_forward = layer.attention, layer.feed_forward
    _check_formats(layer.model_dump(), key)
    if isinstance(attention, GqaCard | CrossCard) and attention.n_heads.value % attention.n_kv_heads.value:
        problem = f"{attention.n_kv_heads.value:g} must divide n_heads {attention.n_heads.value:g}"
        raise InputError(problem, key=f"{key}.attention.n_kv_heads")
    if isinstance(feed_forward, MixtureCard) and feed_forward.top_k.value > _slots(feed_forward):
        problem = f"{feed_forward.top_k.value:g} must not exceed n_experts {_slots(feed_forward):g}"
        raise InputError(problem, key=f"{key}.feed_forward.top_k")
    if layer.copies is not None and layer.copies.value > layer.count.value:
        raise InputError(f"{layer.copies.value:g} must not exceed count {layer.count.value:g}", key=f"{key}.copies")


def _slots(mixture: MixtureCard) -> float:
    return mixture.n_experts.value + (mixture.zero_experts.value if mixture.zero_experts is not None else 0)


def _check_formats(part: Any, key: str) -> None:
    """Every weight format named anywhere in a layer is a known one."""
    for name, inner in part.items() if isinstance(part, dict) else enumerate(part):
        place = f"{key}.{name}"
        if isinstance(inner, str) and str(name).endswith("format"):
            weight_format(inner, key=place)
        elif name == "formats" and inner is not None:
            for matrix, form in inner.items():
                weight_format(form, key=f"{place}.{matrix}")
        elif isinstance(inner, (dict, list)):
            _check_formats(inner, place)
