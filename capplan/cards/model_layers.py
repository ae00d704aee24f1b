"""Attention and feed-forward layers from their dimensions: one small builder a kind.

The parameters are called as the keys of a card are.
"""

from __future__ import annotations

from capplan.cards.model import Attention, FeedForward, Matmul, WeightFormat


def gqa_attention(
    hidden_size: int,
    *,
    n_heads: int,
    n_kv_heads: int,
    head_dim: int,
    value_head_dim: int,
    format: WeightFormat,
    window: int | None = None,
    qkv_bias: bool = False,
    output_bias: bool = False,
    qk_norm: bool = False,
    sinks: bool = False,
) -> Attention:
    """Multi-head, grouped-query or multi-query attention; the norm of queries and keys is shared by all heads."""
    qkv = Matmul("qkv", hidden_size, n_heads * head_dim + n_kv_heads * (head_dim + value_head_dim), "qkv", format)
    output = Matmul("o", n_heads * value_head_dim, hidden_size, "row", format)
    norms = 2 * head_dim * qk_norm
    biases = qkv.outputs * qkv_bias + output.outputs * output_bias + n_heads * sinks
    return Attention(
        kind="gqa",
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        value_head_dim=value_head_dim,
        matmuls=(qkv, output),
        window=window,
        other_parameters=biases + norms,
        norm_parameters=norms,
    )


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
) -> Attention:
    """Multi-head latent attention; ``q_lora_rank`` 0 means the query is not compressed."""
    head_dim = qk_nope_head_dim + qk_rope_head_dim
    down, query = _mla_inputs(hidden_size, n_heads * head_dim, q_lora_rank, kv_lora_rank + qk_rope_head_dim, format)
    up = Matmul("kv_b", kv_lora_rank, n_heads * (qk_nope_head_dim + value_head_dim), "column", format)
    output = Matmul("o", n_heads * value_head_dim, hidden_size, "row", format)
    return Attention(
        kind="mla",
        n_heads=n_heads,
        n_kv_heads=n_heads,
        head_dim=head_dim,
        value_head_dim=value_head_dim,
        matmuls=(down, query, up, output),
        kv_lora_rank=kv_lora_rank,
        qk_rope_head_dim=qk_rope_head_dim,
        other_parameters=q_lora_rank + kv_lora_rank,
        q_lora_rank=q_lora_rank,
        norm_parameters=q_lora_rank + kv_lora_rank,
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
    gated: bool = True,
    bias: bool = False,
    router_bias: bool = False,
) -> FeedForward:
    """A router, ``n_experts`` routed experts of ``width`` and, where ``shared_width`` is set, a shared expert."""
    always = [Matmul("router", hidden_size, n_experts, "replicated", router_format)]
    if shared_width:
        form = shared_format or format
        always += feed_forward_matmuls(hidden_size, shared_width, form, gated=gated, prefix="shared_")
    expert = feed_forward_matmuls(hidden_size, width, format, gated=gated)
    return FeedForward(
        matmuls=tuple(always),
        n_experts=n_experts,
        top_k=top_k,
        expert_matmuls=expert,
        expert_width=width,
        gated=gated,
        other_parameters=n_experts * router_bias,
        expert_other_parameters=sum(matmul.outputs for matmul in expert) * bias,
    )
