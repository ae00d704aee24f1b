"""The parts of a layer as a model card may hold them; :mod:`capplan.cards.model_schema` puts them together."""

# No "from __future__ import annotations": pydantic would have to compile every annotation again at start-up.
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from capplan.cards.number_schema import Number

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)
_Name = Annotated[str, Field(min_length=1, max_length=40)]
_Formats = Annotated[dict[_Name, _Name], Field(max_length=40)]
_StateType = Literal["fp32", "bf16", "fp16"]


class IndexerCard(BaseModel):
    """What a sparse-attention layer chooses its tokens with."""

    model_config = _STRICT

    n_heads: Number
    head_dim: Number
    query_width: Number | None = None
    head_weights: bool = True
    norm_elements: Number | None = None
    compress_ratio: Number | None = None
    format: _Name
    weights_format: _Name | None = None


class GqaCard(BaseModel):
    """Multi-head, grouped-query or multi-query attention."""

    model_config = _STRICT

    kind: Literal["gqa"]
    n_heads: Number
    n_kv_heads: Number
    head_dim: Number
    value_head_dim: Number
    window: Number | None = None
    input_width: Number | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    norm_elements: Number | None = None
    sinks: bool = False
    output_gate: bool = False
    head_gate: bool = False
    key_is_value: bool = False
    stores_kv: bool = True
    other_parameters: Number | None = None
    indexer: IndexerCard | None = None
    selected_tokens: Number | None = None
    format: _Name
    formats: _Formats | None = None


class CrossCard(BaseModel):
    """Attention to the tokens of an encoder."""

    model_config = _STRICT

    kind: Literal["cross"]
    n_heads: Number
    n_kv_heads: Number
    head_dim: Number
    value_head_dim: Number
    qk_norm: bool = False
    format: _Name
    formats: _Formats | None = None


class MlaCard(BaseModel):
    """Multi-head latent attention; without ``q_lora_rank`` the query is not compressed."""

    model_config = _STRICT

    kind: Literal["mla"]
    n_heads: Number
    q_lora_rank: Number | None = None
    kv_lora_rank: Number
    qk_nope_head_dim: Number
    qk_rope_head_dim: Number
    value_head_dim: Number
    window: Number | None = None
    output_gate: bool = False
    other_parameters: Number | None = None
    indexer: IndexerCard | None = None
    selected_tokens: Number | None = None
    format: _Name
    formats: _Formats | None = None


class CompressedCard(BaseModel):
    """Attention to a window of tokens and to one entry for every ``compress_ratio`` tokens."""

    model_config = _STRICT

    kind: Literal["compressed"]
    n_heads: Number
    head_dim: Number
    qk_rope_head_dim: Number
    q_lora_rank: Number
    output_groups: Number
    output_rank: Number
    window: Number
    compress_ratio: Number | None = None
    overlap: bool = False
    indexer: IndexerCard | None = None
    selected_tokens: Number | None = None
    format: _Name
    formats: _Formats | None = None


class LightningCard(BaseModel):
    """Lightning attention."""

    model_config = _STRICT

    kind: Literal["lightning"]
    n_heads: Number
    head_dim: Number
    state_dtype: _StateType = "fp32"
    format: _Name
    formats: _Formats | None = None


class GatedDeltaCard(BaseModel):
    """The gated delta rule of Qwen3-Next."""

    model_config = _STRICT

    kind: Literal["gated_delta"]
    key_heads: Number
    value_heads: Number
    key_head_dim: Number
    value_head_dim: Number
    conv_kernel: Number
    conv_bias: bool = False
    output_gate: bool = True
    state_dtype: _StateType = "fp32"
    format: _Name
    gate_format: _Name = "bf16"
    formats: _Formats | None = None


class KimiDeltaCard(BaseModel):
    """Kimi delta attention."""

    model_config = _STRICT

    kind: Literal["kimi_delta"]
    n_heads: Number
    head_dim: Number
    conv_kernel: Number
    full_rank_gate: bool = False
    state_dtype: _StateType = "fp32"
    format: _Name
    gate_format: _Name = "bf16"
    formats: _Formats | None = None


class MambaCard(BaseModel):
    """A selective state space (Mamba)."""

    model_config = _STRICT

    kind: Literal["mamba"]
    inner_size: Number
    state_size: Number
    time_step_rank: Number
    conv_kernel: Number
    conv_bias: bool = True
    projection_bias: bool = False
    inner_norms: bool = False
    state_dtype: _StateType = "fp32"
    format: _Name
    formats: _Formats | None = None


class Mamba2Card(BaseModel):
    """State-space duality (Mamba-2)."""

    model_config = _STRICT

    kind: Literal["mamba2"]
    n_heads: Number
    head_dim: Number
    state_size: Number
    n_groups: Number
    conv_kernel: Number
    conv_bias: bool = True
    projection_bias: bool = False
    gated_norm: bool = True
    state_dtype: _StateType = "fp32"
    format: _Name
    formats: _Formats | None = None


class ShortConvolutionCard(BaseModel):
    """A gated short convolution (LFM2)."""

    model_config = _STRICT

    kind: Literal["short_conv"]
    conv_kernel: Number
    conv_bias: bool = False
    projection_bias: bool = False
    format: _Name
    formats: _Formats | None = None


class DenseCard(BaseModel):
    """A feed-forward block every token passes."""

    model_config = _STRICT

    kind: Literal["dense"]
    width: Number
    gated: bool = True
    bias: bool = False
    format: _Name
    formats: _Formats | None = None


class MixtureCard(BaseModel):
    """A mixture of experts; ``shared_width`` is the inner width of all shared experts together."""

    model_config = _STRICT

    kind: Literal["mixture"]
    width: Number
    n_experts: Number
    top_k: Number
    shared_width: Number | None = None
    shared_gate: bool = False
    dense_width: Number | None = None
    latent_width: Number | None = None
    latent_norm: bool = False
    zero_experts: Number | None = None
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    other_parameters: Number | None = None
    format: _Name
    shared_format: _Name | None = None
    router_format: _Name = "bf16"
    formats: _Formats | None = None


class MatrixCard(BaseModel):
    """A matrix beside attention and feed-forward, or a table a row of which is read."""

    model_config = _STRICT

    name: Annotated[str, Field(min_length=1, max_length=40)]
    inputs: Number
    outputs: Number
    format: _Name = "bf16"


_AttentionCard = GqaCard | MlaCard | CrossCard | CompressedCard
_RecurrenceCard = LightningCard | GatedDeltaCard | KimiDeltaCard | MambaCard | Mamba2Card | ShortConvolutionCard


class LayerCard(BaseModel):
    """Equal layers; ``norms`` is how many vectors of the model's width the norms of one of them have.

    ``copies`` is how often attention, feed-forward and norms are stored where layers share them.
    """

    model_config = _STRICT

    count: Number
    norms: Number | None = None
    attention: _AttentionCard | None = Field(default=None, discriminator="kind")
    recurrence: _RecurrenceCard | None = Field(default=None, discriminator="kind")
    feed_forward: DenseCard | MixtureCard | None = Field(default=None, discriminator="kind")
    matrices: list[MatrixCard] = Field(default_factory=list, max_length=40)
    extra_parameters: Number | None = None
    copies: Number | None = None
