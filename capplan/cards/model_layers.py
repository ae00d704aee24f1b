"""Attention and feed-forward layers from their dimensions: one small builder a kind.

The parameters are called as the keys of a card are.
"""

from __future__ import annotations

from dataclasses import replace

from capplan.cards.model import Attention, FeedForward, Indexer, Matmul, WeightFormat


def gqa_attention(
    hidden_size: int,
    *,
    n_heads: int,
    n_kv_heads: int,
    head_dim: int,
    value_head_dim: int,
    format: WeightFormat,
    window: int | None = None,
    input_width: int = 0,
    qkv_bias: bool = False,
    output_bias: bool = False,
    qk_norm: bool = False,
    norm_elements: int = 0,
    sinks: bool = False,
    output_gate: bool = False,
    head_gate: bool = False,
    key_is_value: bool = False,
    stores_kv: bool = True,
    other_parameters: int = 0,
    indexer: Indexer | None = None,
    selected_tokens: int = 0,
) -> Attention:
    """Multi-head, grouped-query or multi-query attention.

    ``qk_norm`` is a norm of queries and keys shared by all heads, ``norm_elements`` counts norms of another shape;
    ``output_gate`` is as wide as the queries and projected with them, ``head_gate`` has one element a head;
    a layer that stores no keys and values has no projection for them either.
    """
    attention = Attention(
        kind="gqa",
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        value_head_dim=value_head_dim,
        matmuls=(),
        window=window,
        indexer=indexer,
        selected_tokens=selected_tokens,
        key_is_value=key_is_value,
        stores_kv=stores_kv,
    )
    queries = n_heads * head_dim * (1 + output_gate)
    width = queries + n_kv_heads * attention.projected_kv_width
    qkv = Matmul("qkv", input_width or hidden_size, width, "qkv", format)
    output = Matmul("o", n_heads * value_head_dim, hidden_size, "row", format)
    gate = (Matmul("head_gate", hidden_size, n_heads, "column", format),) if head_gate else ()
    norms = (1 + stores_kv) * head_dim * qk_norm + norm_elements
    biases = qkv.outputs * qkv_bias + output.outputs * output_bias + n_heads * sinks + other_parameters
    return replace(attention, matmuls=(qkv, output, *gate), other_parameters=biases + norms, norm_parameters=norms)


def cross_attention(
    hidden_size: int,
    *,
    n_heads: int,
    n_kv_heads: int,
    head_dim: int,
    value_head_dim: int,
    format: WeightFormat,
    qk_norm: bool = False,
) -> Attention:
    """Attention to the tokens of an encoder: its keys and values do not grow with the text."""
    attention = gqa_attention(
        hidden_size,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        value_head_dim=value_head_dim,
        format=format,
        qk_norm=qk_norm,
    )
    return replace(attention, kind="cross")


def mla_attention(
    hidden_size: int,
    *,
    n_heads: int,
    kv_lora_rank: int,
    qk_nope_head_dim: int,
    qk_rope_head_dim: int,
    value_head_dim: int,
    format: WeightFormat,
    q_lora_rank: int = 0,
    window: int | None = None,
    output_gate: bool = False,
    other_parameters: int = 0,
    indexer: Indexer | None = None,
    selected_tokens: int = 0,
) -> Attention:
    """Multi-head latent attention; ``q_lora_rank`` 0 means the query is not compressed."""
    head_dim = qk_nope_head_dim + qk_rope_head_dim
    down, query = _mla_inputs(hidden_size, n_heads * head_dim, q_lora_rank, kv_lora_rank + qk_rope_head_dim, format)
    up = Matmul("kv_b", kv_lora_rank, n_heads * (qk_nope_head_dim + value_head_dim), "column", format)
    output = Matmul("o", n_heads * value_head_dim, hidden_size, "row", format)
    gate = (Matmul("output_gate", hidden_size, n_heads * value_head_dim, "column", format),) if output_gate else ()
    norms = q_lora_rank + kv_lora_rank
    return Attention(
        kind="mla",
        n_heads=n_heads,
        n_kv_heads=n_heads,
        head_dim=head_dim,
        value_head_dim=value_head_dim,
        matmuls=(down, query, up, output, *gate),
        window=window,
        kv_lora_rank=kv_lora_rank,
        qk_rope_head_dim=qk_rope_head_dim,
        other_parameters=norms + other_parameters,
        q_lora_rank=q_lora_rank,
        norm_parameters=norms,
        indexer=indexer,
        selected_tokens=selected_tokens,
    )


def _mla_inputs(
    hidden_size: int, query_width: int, q_lora_rank: int, latent: int, format: WeightFormat
) -> tuple[Matmul, Matmul]:
    """The matrices that read the hidden state; every rank needs the latent, so its projection is replicated."""
    if q_lora_rank:
        down = Matmul("qkv_a", hidden_size, q_lora_rank + latent, "replicated", format)
        return down, Matmul("q_b", q_lora_rank, query_width, "column", format)
    down = Matmul("kv_a", hidden_size, latent, "replicated", format)
    return down, Matmul("q", hidden_size, query_width, "column", format)


def compressed_attention(
    hidden_size: int,
    *,
    n_heads: int,
    head_dim: int,
    qk_rope_head_dim: int,
    q_lora_rank: int,
    output_groups: int,
    output_rank: int,
    window: int,
    format: WeightFormat,
    compress_ratio: int = 0,
    overlap: bool = False,
    indexer: Indexer | None = None,
    selected_tokens: int = 0,
) -> Attention:
    """Attention to a window of tokens and to compressed entries; one vector is key and value for all heads.

    ``overlap`` makes an entry out of two blocks of tokens, with twice the width of projections. The output
    projection runs over ``output_groups`` groups of heads, each to ``output_rank`` elements.
    """
    matmuls = [
        Matmul("qkv_a", hidden_size, q_lora_rank + head_dim, "replicated", format),
        Matmul("q_b", q_lora_rank, n_heads * head_dim, "column", format),
        Matmul("o_a", n_heads * head_dim // output_groups, output_groups * output_rank, "column", format),
        Matmul("o_b", output_groups * output_rank, hidden_size, "row", format),
    ]
    norms, others = q_lora_rank + head_dim, n_heads
    if compress_ratio:
        width = head_dim * (1 + overlap)
        matmuls.append(Matmul("compressor", hidden_size, 2 * width, "replicated", format))
        norms, others = norms + head_dim, others + compress_ratio * width
    return Attention(
        kind="compressed",
        n_heads=n_heads,
        n_kv_heads=1,
        head_dim=head_dim,
        value_head_dim=head_dim,
        matmuls=tuple(matmuls),
        window=window,
        qk_rope_head_dim=qk_rope_head_dim,
        other_parameters=norms + others,
        q_lora_rank=q_lora_rank,
        norm_parameters=norms,
        indexer=indexer,
        selected_tokens=selected_tokens,
        key_is_value=True,
        compress_ratio=compress_ratio,
    )


def token_indexer(
    hidden_size: int,
    *,
    n_heads: int,
    head_dim: int,
    format: WeightFormat,
    weights_format: WeightFormat | None = None,
    query_width: int = 0,
    head_weights: bool = True,
    norm_elements: int = 0,
    compress_ratio: int = 0,
) -> Indexer:
    """The indexer of a sparse-attention layer.

    ``query_width`` is what its queries are projected from (the compressed query of latent attention), 0 for the
    hidden state; ``head_weights`` is a projection to one weight a head; ``compress_ratio`` above 0 makes a key of
    that many tokens and those before them.
    """
    key = Matmul("index_key", hidden_size, head_dim, "replicated", format)
    if compress_ratio:
        key = Matmul("index_key", hidden_size, 4 * head_dim, "replicated", format)
    query = Matmul("index_query", query_width or hidden_size, n_heads * head_dim, "replicated", format)
    small = weights_format or format
    weights = (Matmul("index_weights", hidden_size, n_heads, "replicated", small),) if head_weights else ()
    others = norm_elements + compress_ratio * 2 * head_dim
    return Indexer(n_heads, head_dim, (query, key, *weights), others)


def feed_forward_matmuls(
    hidden_size: int, width: int, format: WeightFormat, *, gated: bool, prefix: str = ""
) -> tuple[Matmul, Matmul]:
    """The two matrices of a feed-forward block, gate and up fused."""
    first = f"{prefix}gate_up" if gated else f"{prefix}up"
    return (
        Matmul(first, hidden_size, (1 + gated) * width, "column", format),
        Matmul(f"{prefix}down", width, hidden_size, "row", format),
    )


def dense_feed_forward(
    hidden_size: int, *, width: int, format: WeightFormat, gated: bool = True, bias: bool = False
) -> FeedForward:
    """A feed-forward block every token passes."""
    matmuls = feed_forward_matmuls(hidden_size, width, format, gated=gated)
    biases = sum(matmul.outputs for matmul in matmuls) * bias
    return FeedForward(matmuls, gated=gated, other_parameters=biases)


def mixture_feed_forward(
    hidden_size: int,
    *,
    width: int,
    n_experts: int,
    top_k: int,
    format: WeightFormat,
    router_format: WeightFormat,
    shared_width: int = 0,
    shared_format: WeightFormat | None = None,
    shared_gate: bool = False,
    dense_width: int = 0,
    latent_width: int = 0,
    latent_norm: bool = False,
    zero_experts: int = 0,
    gated: bool = True,
    bias: bool = False,
    router_bias: bool = False,
    other_parameters: int = 0,
) -> FeedForward:
    """A router, ``n_experts`` routed experts of ``width`` and, where they are, shared experts and a dense block.

    ``latent_width`` is the width experts read and write where it is not the model's, ``zero_experts`` are slots of
    the router that do nothing: of ``top_k`` only a share reaches an expert, all slots taken as equally likely.
    """
    slots = n_experts + zero_experts
    always = [Matmul("router", hidden_size, slots, "replicated", router_format)]
    if shared_width:
        form = shared_format or format
        always += feed_forward_matmuls(hidden_size, shared_width, form, gated=gated, prefix="shared_")
    if shared_gate:
        always.append(Matmul("shared_gate", hidden_size, 1, "replicated", router_format))
    if dense_width:
        always += feed_forward_matmuls(hidden_size, dense_width, shared_format or format, gated=gated, prefix="dense_")
    if latent_width:
        always += _latent_projections(hidden_size, latent_width, shared_format or format)
    expert = feed_forward_matmuls(latent_width or hidden_size, width, format, gated=gated)
    return FeedForward(
        matmuls=tuple(always),
        n_experts=n_experts,
        top_k=top_k * n_experts // slots,
        expert_matmuls=expert,
        expert_width=width,
        gated=gated,
        other_parameters=slots * router_bias + latent_norm * latent_width + other_parameters,
        expert_other_parameters=sum(matmul.outputs for matmul in expert) * bias,
    )


def _latent_projections(hidden_size: int, latent_width: int, format: WeightFormat) -> tuple[Matmul, Matmul]:
    return (
        Matmul("latent_down", hidden_size, latent_width, "replicated", format),
        Matmul("latent_up", latent_width, hidden_size, "replicated", format),
    )
