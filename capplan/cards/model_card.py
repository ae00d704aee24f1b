"""Model cards: the schema of a card file, reading and writing one, and finding a model by any of its names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from capplan.cards.kv import kv_element_bytes
from capplan.cards.model import Attention, FeedForward, LayerGroup, Matmul, Model
from capplan.cards.model_layers import dense_feed_forward, gqa_attention, mixture_feed_forward, mla_attention
from capplan.cards.number import Number
from capplan.cards.store import card_names, card_root, find_card, read_json
from capplan.cards.validation import one_line
from capplan.cards.weight_formats import weight_format
from capplan.errors import InputError

SCHEMA = "capplan.model/1"

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)
_Text = Annotated[str, Field(min_length=1, max_length=400)]


def _whole(unit: str, most: float) -> AfterValidator:
    def check(number: Number) -> Number:
        if number.unit != unit:
            raise ValueError(f"unit {number.unit!r} must be {unit!r}")
        if not 1 <= number.value <= most or number.value != int(number.value):
            raise ValueError(f"{number.value:g} must be a whole number from 1 to {most:,.0f}")
        return number

    return AfterValidator(check)


def _format_name(name: str) -> str:
    weight_format(name)
    return name


def _kv_type(name: str) -> str:
    kv_element_bytes(name)
    return name


Elements = Annotated[Number, _whole("element", 1e7)]
Heads = Annotated[Number, _whole("head", 1e5)]
Layers = Annotated[Number, _whole("layer", 1e5)]
Experts = Annotated[Number, _whole("expert", 1e5)]
Tokens = Annotated[Number, _whole("token", 1e9)]
Norms = Annotated[Number, _whole("norm", 100)]
Format = Annotated[str, Field(max_length=40), AfterValidator(_format_name)]
KvType = Annotated[str, Field(max_length=40), AfterValidator(_kv_type)]


class GqaCard(BaseModel):
    """Multi-head, grouped-query or multi-query attention."""

    model_config = _STRICT

    kind: Literal["gqa"]
    n_heads: Heads
    n_kv_heads: Heads
    head_dim: Elements
    value_head_dim: Elements
    window: Tokens | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False
    format: Format

    @model_validator(mode="after")
    def _heads_fit(self) -> GqaCard:
        if self.n_heads.value % self.n_kv_heads.value:
            raise ValueError(f"n_kv_heads {self.n_kv_heads.value:g} must divide n_heads {self.n_heads.value:g}")
        return self

    def attention(self, hidden_size: int) -> Attention:
        """The layer of a model of that width."""
        return gqa_attention(
            hidden_size,
            _int(self.n_heads),
            _int(self.n_kv_heads),
            _int(self.head_dim),
            _int(self.value_head_dim),
            weight_format(self.format),
            window=_int(self.window) if self.window is not None else None,
            qkv_bias=self.qkv_bias,
            output_bias=self.output_bias,
            qk_norm=self.qk_norm,
            sinks=self.sinks,
        )


class MlaCard(BaseModel):
    """Multi-head latent attention; without ``q_lora_rank`` the query is not compressed."""

    model_config = _STRICT

    kind: Literal["mla"]
    n_heads: Heads
    q_lora_rank: Elements | None = None
    kv_lora_rank: Elements
    qk_nope_head_dim: Elements
    qk_rope_head_dim: Elements
    value_head_dim: Elements
    format: Format

    def attention(self, hidden_size: int) -> Attention:
        """The layer of a model of that width."""
        return mla_attention(
            hidden_size,
            _int(self.n_heads),
            _int(self.q_lora_rank),
            _int(self.kv_lora_rank),
            _int(self.qk_nope_head_dim),
            _int(self.qk_rope_head_dim),
            _int(self.value_head_dim),
            weight_format(self.format),
        )


class DenseCard(BaseModel):
    """A feed-forward block every token passes."""

    model_config = _STRICT

    kind: Literal["dense"]
    width: Elements
    gated: bool = True
    bias: bool = False
    format: Format

    def feed_forward(self, hidden_size: int) -> FeedForward:
        """The block of a model of that width."""
        form = weight_format(self.format)
        return dense_feed_forward(hidden_size, _int(self.width), form, gated=self.gated, bias=self.bias)


class MixtureCard(BaseModel):
    """A mixture of experts; ``shared_width`` is the inner width of all shared experts together."""

    model_config = _STRICT

    kind: Literal["mixture"]
    width: Elements
    n_experts: Experts
    top_k: Experts
    shared_width: Elements | None = None
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    format: Format
    shared_format: Format | None = None
    router_format: Format = "bf16"

    @model_validator(mode="after")
    def _experts_fit(self) -> MixtureCard:
        if self.top_k.value > self.n_experts.value:
            raise ValueError(f"top_k {self.top_k.value:g} must not exceed n_experts {self.n_experts.value:g}")
        return self

    def feed_forward(self, hidden_size: int) -> FeedForward:
        """The block of a model of that width."""
        return mixture_feed_forward(
            hidden_size,
            _int(self.width),
            _int(self.n_experts),
            _int(self.top_k),
            weight_format(self.format),
            router_form=weight_format(self.router_format),
            shared_width=_int(self.shared_width),
            shared_form=weight_format(self.shared_format or self.format),
            gated=self.gated,
            bias=self.bias,
            router_bias=self.router_bias,
        )


class LayerCard(BaseModel):
    """Equal layers; ``norms`` is how many norms of the model's width one of them has."""

    model_config = _STRICT

    count: Layers
    norms: Norms
    attention: GqaCard | MlaCard | None = Field(default=None, discriminator="kind")
    feed_forward: DenseCard | MixtureCard | None = Field(default=None, discriminator="kind")

    def group(self, hidden_size: int, matmuls: tuple[Matmul, ...] = ()) -> LayerGroup:
        """The layers of a model of that width."""
        return LayerGroup(
            count=_int(self.count),
            attention=self.attention.attention(hidden_size) if self.attention is not None else None,
            feed_forward=self.feed_forward.feed_forward(hidden_size) if self.feed_forward is not None else None,
            other_parameters=_int(self.norms) * hidden_size,
            matmuls=matmuls,
        )


class MtpCard(BaseModel):
    """Multi-token-prediction layers, each behind a projection of twice the model's width to once."""

    model_config = _STRICT

    layers: list[LayerCard] = Field(min_length=1, max_length=100)
    copies_embeddings: bool
    projection_format: Format = "bf16"


class ProvenanceCard(BaseModel):
    """What was read: repository, file and commit, which fields were used and which are known not to matter."""

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
    notes: list[_Text] = Field(default_factory=list, max_length=100)


class ModelCard(BaseModel):
    """One model: dimensions of its layers, how its weights are stored, every number with unit, source and kind."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, title="capplan model card")

    schema_id: Literal["capplan.model/1"] = Field(alias="schema")
    name: str = Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    aliases: list[_Text] = Field(default_factory=list, max_length=20)
    hidden_size: Elements
    vocab_size: Annotated[Number, _whole("token", 1e8)]
    max_context: Tokens
    tied_embeddings: bool
    embedding_format: Format = "bf16"
    lm_head_format: Format = "bf16"
    kv_dtype: KvType = "bf16"
    layers: list[LayerCard] = Field(min_length=1, max_length=1000)
    mtp: MtpCard | None = None
    provenance: ProvenanceCard


def model_card_schema() -> dict[str, Any]:
    """The JSON Schema of a model card."""
    return ModelCard.model_json_schema(by_alias=True)


def model_from_card(card: ModelCard, file: str = "") -> Model:
    """The model a card describes."""
    hidden, vocab = _int(card.hidden_size), _int(card.vocab_size)
    return Model(
        name=card.name,
        hidden_size=hidden,
        vocab_size=vocab,
        max_context=_int(card.max_context),
        layers=tuple(layer.group(hidden) for layer in card.layers),
        embedding=Matmul("embedding", vocab, hidden, "row", weight_format(card.embedding_format)),
        lm_head=Matmul("lm_head", hidden, vocab, "column", weight_format(card.lm_head_format)),
        tied_embeddings=card.tied_embeddings,
        norm_parameters=hidden,
        mtp_layers=_mtp_layers(card.mtp, hidden),
        mtp_copies_embeddings=card.mtp is not None and card.mtp.copies_embeddings,
        kv_dtype=card.kv_dtype,
        aliases=tuple(card.aliases),
        fields_read=tuple(card.provenance.fields_read),
        fields_unread=tuple(card.provenance.fields_unread),
        sources=dict(_numbers(card, "")),
        provenance=card.provenance.model_dump(exclude={"fields_read", "fields_unread"}),
        file=file,
    )


def _mtp_layers(mtp: MtpCard | None, hidden: int) -> tuple[LayerGroup, ...]:
    if mtp is None:
        return ()
    projection = Matmul("eh_proj", 2 * hidden, hidden, "replicated", weight_format(mtp.projection_format))
    return tuple(layer.group(hidden, (projection,)) for layer in mtp.layers)


def _numbers(part: Any, key: str) -> Iterator[tuple[str, Number]]:
    """Every number of a card with its dotted key."""
    if isinstance(part, Number):
        yield key, part
    elif isinstance(part, list):
        for index, item in enumerate(part):
            yield from _numbers(item, f"{key}.{index}")
    elif isinstance(part, BaseModel):
        for name in type(part).model_fields:
            yield from _numbers(getattr(part, name), f"{key}.{name}" if key else name)


def _int(number: Number | None) -> int:
    return int(number.value) if number is not None else 0


def card_json(card: ModelCard) -> str:
    """A card as the text of its file; what is left at its default is not written."""
    data = card.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude_none=True)
    return json.dumps(_whole_numbers({"schema": SCHEMA, **data}), indent=1, ensure_ascii=False) + "\n"


def _whole_numbers(part: Any) -> Any:
    if isinstance(part, dict):
        return {key: _whole_numbers(value) for key, value in part.items()}
    if isinstance(part, list):
        return [_whole_numbers(item) for item in part]
    return int(part) if isinstance(part, float) and part.is_integer() else part


def read_model_card(data: dict[str, Any], file: str) -> ModelCard:
    """A card from its parsed file.

    Raises
    ------
    InputError : unknown or missing key, a number without source, a value out of range; one line
    """
    try:
        return ModelCard.model_validate(data)
    except ValidationError as error:
        raise one_line(error, file, ModelCard) from None
    except InputError as error:
        raise error.located(file=file) from None


def load_model(name_or_path: str | Path) -> Model:
    """Read a model: a shipped card, a card file, or a Hugging Face ``config.json``.

    Parameters
    ----------
    name_or_path : card name or alias (``deepseek-r1``, ``r1``, ``Qwen/Qwen3-32B``; case does not matter), a card file,
        a ``config.json``, or a folder that holds one (with ``hf_quant_config.json`` beside it where there is one)

    Returns
    -------
    model : its text part

    Raises
    ------
    UnknownNameError : no such card, alias or file
    UnsupportedModelError : a config with a field or layer kind that is not modelled
    InputError : not readable, not valid

    Examples
    --------
    >>> load_model("llama-3.1-8b").parameters_total
    8030261248
    """
    text = str(name_or_path)
    path = find_card("models", text) if text.lower() in card_names("models") else find_card("models", text, _aliases())
    stamps = tuple(_stamp(place) for place in (path, path / "config.json", path.parent / "hf_quant_config.json"))
    return _read(path, stamps)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


@cache
def _read(path: Path, _stamps: tuple[Any, ...]) -> Model:
    file = path / "config.json" if path.is_dir() else path
    data = read_json(file)
    if "schema" in data:
        return model_from_card(read_model_card(data, str(file)), str(file))
    from capplan.cards.huggingface import import_file

    return model_from_card(import_file(file, data), str(file))


@cache
def _aliases() -> dict[str, str]:
    """Alias in small letters to card name, over all shipped cards."""
    found: dict[str, str] = {}
    for name in card_names("models"):
        for alias in read_json(card_root() / "models" / f"{name}.json").get("aliases", []):
            found[str(alias).lower()] = name
    return found
