"""A model as the formulas see it: layer groups, their matrices and what each layer caches.

Only the text part is described. Nothing here reads a file: :mod:`capplan.cards.model_card` reads cards and
:mod:`capplan.cards.huggingface` reads ``config.json``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from capplan.cards import model_totals as totals


@dataclass(frozen=True)
class WeightFormat:
    """How a matrix is stored, and which arithmetic multiplies it.

    ``bytes_per_element`` includes the scales of quantised formats (fp8 in 128 x 128 blocks: 1 + 4/16384).
    ``compute`` names the key of a hardware card's arithmetic rates.
    ``block_inputs`` x ``block_outputs`` elements share ``scale_bytes`` of scale (and zero point); 0 means no scales.
    ``quantise_bytes`` are read and written for each activation that is quantised in front of a product: two read and
    one written where a scale is known or found a group at a time.
    """

    name: str
    bytes_per_element: float
    compute: Literal["bf16", "fp8", "fp4"]
    element_bytes: float = 0.0
    scale_bytes: float = 0.0
    block_inputs: int = 0
    block_outputs: int = 0
    quantise_bytes: float = 3.0

    @property
    def scaled_in_blocks(self) -> bool:
        """Whether a product scales its partial sums by blocks of the matrix, not its result."""
        return self.compute == "fp8" and self.block_outputs > 1


@dataclass(frozen=True)
class Matmul:
    """One weight matrix of a layer: ``inputs`` x ``outputs`` elements.

    ``shard`` says what tensor parallelism does: ``column`` splits the outputs, ``row`` splits the inputs (an
    all-reduce follows), ``qkv`` splits query heads and, as far as there are any, KV heads, ``replicated`` does nothing.
    ``count`` is how many such matrices a layer holds (the experts of a mixture).
    """

    name: str
    inputs: int
    outputs: int
    shard: Literal["column", "row", "qkv", "replicated"]
    format: WeightFormat
    count: int = 1

    @property
    def parameters(self) -> int:
        """Elements of the matrix, times ``count``."""
        return self.inputs * self.outputs * self.count

    @cached_property
    def weight_bytes(self) -> float:
        """Bytes of the matrix with its scales, times ``count``; a part-filled block has a whole scale."""
        return totals.matmul_bytes(self)


@dataclass(frozen=True)
class Indexer:
    """What a sparse-attention layer chooses its tokens with: a small key of every token, scored by small queries."""

    n_heads: int
    head_dim: int
    matmuls: tuple[Matmul, ...]
    other_parameters: int = 0


@dataclass(frozen=True)
class Attention:
    """The attention of one layer, and what it caches a token.

    ``kind`` is ``gqa`` (also MHA and MQA; ``head_dim`` is the key width), ``mla`` (one latent of
    ``kv_lora_rank + qk_rope_head_dim`` elements a token; ``head_dim`` is nope + rope), ``cross`` (keys and values of
    an encoder's tokens: a token of text caches nothing) or ``compressed`` (one vector of ``head_dim`` elements is key
    and value; a window of them is kept, and one entry for every ``compress_ratio`` tokens, 0 for none).
    ``window`` is the number of tokens a sliding-window layer keeps, None for full attention.
    ``other_parameters`` are biases, norms and sinks: stored in bf16, too small to time; ``norm_parameters`` are
    those of them that are norms.
    ``q_lora_rank`` is the width of the compressed query of ``mla``, 0 where the query is not compressed.
    ``stores_kv`` is False where the layer reads the cache of an earlier one; ``key_is_value`` where one projection
    gives both (both are cached). ``selected_tokens`` is the most tokens (or entries) it reads, 0 for all: those its
    ``indexer`` chose, or that of an earlier layer.
    """

    kind: Literal["gqa", "mla", "cross", "compressed"]
    n_heads: int
    n_kv_heads: int
    head_dim: int
    value_head_dim: int
    matmuls: tuple[Matmul, ...]
    window: int | None = None
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    other_parameters: int = 0
    q_lora_rank: int = 0
    norm_parameters: int = 0
    indexer: Indexer | None = None
    selected_tokens: int = 0
    stores_kv: bool = True
    key_is_value: bool = False
    compress_ratio: int = 0

    @property
    def qk_nope_head_dim(self) -> int:
        """Width of a head's part without rotation; the whole key width minus the rotary one under ``mla``."""
        return self.head_dim - self.qk_rope_head_dim

    @property
    def projected_kv_width(self) -> int:
        """Outputs of the fused query-key-value projection for one KV head."""
        if not self.stores_kv:
            return 0
        return self.head_dim if self.key_is_value else self.head_dim + self.value_head_dim


@dataclass(frozen=True)
class Recurrence:
    """Linear attention or a state-space mixer: a state a sequence instead of a cache that grows.

    ``state_elements`` are kept in ``state_bytes_per_element``, ``conv_elements`` (the last inputs of the short
    convolution over ``conv_channels``, one column fewer than its kernel) in 16 bits.
    """

    kind: Literal["lightning", "gated_delta", "kimi_delta", "mamba", "mamba2", "short_conv"]
    matmuls: tuple[Matmul, ...]
    state_elements: int
    state_bytes_per_element: float
    conv_elements: int = 0
    other_parameters: int = 0
    norm_parameters: int = 0
    conv_channels: int = 0

    @property
    def state_bytes(self) -> float:
        """Bytes of one sequence in one layer [B]."""
        return totals.recurrence_bytes(self)


@dataclass(frozen=True)
class FeedForward:
    """The feed-forward part of one layer.

    Dense: ``matmuls`` only (gate and up fused as one ``column`` matrix, ``down`` as ``row``).
    Mixture: ``n_experts`` > 0; ``expert_matmuls`` describe ONE routed expert (their ``count`` is 1),
    ``matmuls`` holds what every token passes (``router``, ``shared_...`` experts, a ``dense_...`` block beside them,
    ``latent_...`` projections around experts that are narrower than the model).
    ``top_k`` is the mean number of real experts of a token, those that do nothing not counted.
    ``expert_other_parameters`` are the biases of ONE routed expert; ``other_parameters`` are all other biases.
    """

    matmuls: tuple[Matmul, ...]
    n_experts: int = 0
    top_k: int = 0
    expert_matmuls: tuple[Matmul, ...] = ()
    expert_width: int = 0
    gated: bool = True
    other_parameters: int = 0
    expert_other_parameters: int = 0


@dataclass(frozen=True)
class LayerGroup:
    """``count`` equal layers (not necessarily neighbours).

    ``other_parameters`` are the norms of one layer, ``extra_parameters`` scales and gates of single elements,
    ``matmuls`` what it holds beside attention, recurrence and feed-forward (the projection in front of a
    multi-token-prediction layer), ``state_bytes`` what it keeps a sequence, whatever the context.
    ``weight_copies`` is how often the group stores the weights of attention and feed-forward where layers share them
    (0: every layer has its own).
    """

    count: int
    attention: Attention | None
    feed_forward: FeedForward | None
    other_parameters: int = 0
    matmuls: tuple[Matmul, ...] = ()
    state_bytes: float = 0.0
    recurrence: Recurrence | None = None
    extra_parameters: int = 0
    weight_copies: int = 0

    @property
    def stored(self) -> int:
        """How many times the group stores attention, feed-forward and norms."""
        return self.weight_copies or self.count


@dataclass(frozen=True)
class Model:
    """The text part of a model: layers, matrices with their stored formats, and where each number comes from.

    Parameters
    ----------
    name : card name, or the repository an imported ``config.json`` belongs to
    hidden_size, vocab_size : widths of the model [elements]
    max_context : longest sequence the model was made for [tokens]
    layers : groups of equal layers, multi-token-prediction layers not among them
    embedding, lm_head : the matrices at both ends; where ``tied_embeddings`` is set they are stored once
    norm_parameters : the norm in front of lm_head, and norms that belong to no layer [parameters]
    mtp_layers : multi-token-prediction layers; in no total unless asked for
    mtp_copies_embeddings : the checkpoint stores embedding and lm_head a second time with the MTP layers
    look_ups : further tables a row is read from (positions, embeddings a layer); no token is multiplied with them
    projections : further matrices every token is multiplied with, outside the layers
    other_parameters : scales that belong to no layer [parameters]
    lm_head_bias : whether lm_head adds a bias
    kv_dtype : element type of the KV cache the checkpoint declares, else ``bf16``
    fields_read, fields_unread : keys of the ``config.json`` that were used, and those known to be harmless
    sources : dotted key of the card to :class:`capplan.cards.number.Number`
    provenance : repository, file, url, commit of what was read
    file : the file this was read from
    """

    name: str
    hidden_size: int
    vocab_size: int
    max_context: int
    layers: tuple[LayerGroup, ...]
    embedding: Matmul
    lm_head: Matmul
    tied_embeddings: bool
    norm_parameters: int = 0
    mtp_layers: tuple[LayerGroup, ...] = ()
    mtp_copies_embeddings: bool = False
    look_ups: tuple[Matmul, ...] = ()
    projections: tuple[Matmul, ...] = ()
    other_parameters: int = 0
    lm_head_bias: bool = False
    kv_dtype: str = "bf16"
    aliases: tuple[str, ...] = ()
    fields_read: tuple[str, ...] = field(default=(), compare=False)
    fields_unread: tuple[str, ...] = field(default=(), compare=False)
    sources: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    provenance: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    file: str = field(default="", compare=False)

    @cached_property
    def n_layers(self) -> int:
        """Layers of the model, multi-token prediction not counted."""
        return sum(group.count for group in self.layers)

    @cached_property
    def is_mixture(self) -> bool:
        """Whether any layer routes tokens to experts."""
        return any(group.feed_forward is not None and group.feed_forward.n_experts for group in self.layers)

    @cached_property
    def parameters_by_part(self) -> Mapping[str, int]:
        """Parameters by part: embedding, look_ups, attention, recurrence, indexer, dense_feed_forward, routed_experts,
        shared_experts, latent_projections, router, norms, other, lm_head; parts a model lacks are absent."""
        return totals.parameters_by_part(self)

    @cached_property
    def parameters_total(self) -> int:
        """All parameters of the text part, each stored matrix once, MTP layers not counted."""
        return sum(self.parameters_by_part.values())

    @cached_property
    def parameters_active(self) -> int:
        """Parameters one token passes: ``top_k`` of the experts, lm_head, no embedding look-up."""
        return totals.parameters_active(self)

    @cached_property
    def matmul_parameters_active(self) -> int:
        """Matrix elements one token is multiplied with: ``parameters_active`` without biases, norms and sinks."""
        return totals.matmul_parameters_active(self)

    @cached_property
    def mtp_parameters(self) -> int:
        """Parameters of the multi-token-prediction layers, copies of embedding and lm_head not counted."""
        return sum(totals.group_parameters(group) for group in self.mtp_layers)

    @cached_property
    def state_bytes_per_sequence(self) -> float:
        """Bytes a sequence keeps whatever its context (recurrent state); 0 for pure attention [B]."""
        return float(sum(group.count * group.state_bytes for group in self.layers))

    def weight_bytes(self, dtype: str | None = None, *, mtp: bool = False) -> float:
        """Bytes of the weights of the whole model.

        Parameters
        ----------
        dtype : None for the checkpoint as stored, with scales and modules left unquantised; a format name
            (``bf16``, ``fp8``, ``mxfp4``, ...) for everything quantisable in that format
        mtp : count the multi-token-prediction layers as the checkpoint stores them

        Returns
        -------
        weight_bytes : unsharded [B]

        Raises
        ------
        UnknownNameError : no such format
        """
        return totals.weight_bytes(self if dtype is None else self.with_weight_dtype(dtype), mtp=mtp)

    def with_weight_dtype(self, dtype: str) -> Model:
        """The same model with every quantisable matrix stored in ``dtype``.

        A quantised format takes the projections of attention, feed-forward and experts; embedding, lm_head, router,
        norms and biases stay in bf16. A 16-bit format takes all matrices.

        Raises
        ------
        UnknownNameError : no such format
        """
        return totals.with_weight_dtype(self, dtype, self._variants)

    @cached_property
    def _variants(self) -> dict[str, Model]:
        return {}

    def flops_per_token(self, context: Any, *, expanded: bool = False) -> Any:
        """Floating-point operations of one new token with ``context`` tokens before it.

        Parameters
        ----------
        context : cached tokens; a number, an array or a symbol [tokens]
        expanded : latent attention as prefill computes it (keys and values expanded) instead of absorbed as in decode

        Returns
        -------
        flops : linear layers, lm_head and attention [FLOP]

        Raises
        ------
        InputError : a context that is negative, NaN or infinite
        """
        return totals.flops_per_token(self, context, expanded=expanded)

    def matmuls(self) -> Iterator[tuple[int, Matmul]]:
        """Every matrix with the number of times the model holds it: layers, then embedding and, untied, lm_head."""
        for group in self.layers:
            yield from totals.layer_matmuls(group)
        yield from ((1, matmul) for matmul in (*self.projections, *self.look_ups, self.embedding))
        if not self.tied_embeddings:
            yield 1, self.lm_head
