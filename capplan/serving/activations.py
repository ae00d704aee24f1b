"""The largest allocation of a forward pass on one GPU, from the model, its layout and the engine."""

from __future__ import annotations

from capplan.cards.engine import Engine
from capplan.cards.model import FeedForward, LayerGroup, Model
from capplan.formulas import activation_memory as formulas
from capplan.serving.layout import Layout
from capplan.serving.weights import expert_shards


def layer_peak(model: Model, layout: Layout, engine: Engine, max_batched_tokens: float) -> float:
    """Bytes of the hungriest layer for the largest step [B]; 0 where the engine's formula does not count them."""
    peaks = (_layer_bytes(group, model, layout, engine, max_batched_tokens) for group in model.layers)
    return max(peaks, default=0.0)


def expansion_peak(model: Model, layout: Layout, engine: Engine) -> float:
    """Bytes of the largest latent expansion, 0 for models without a latent [B]."""
    return max((_expansion_bytes(group, layout, engine) for group in model.layers), default=0.0)


def _layer_bytes(group: LayerGroup, model: Model, layout: Layout, engine: Engine, tokens: float) -> float:
    inner, rows = _widths(group.feed_forward, layout, model)
    hidden_widths, inner_widths = engine.activation_hidden_widths, engine.activation_inner_widths
    routed = rows if inner_widths else 0.0
    return float(formulas.layer_peak_bytes(tokens, model.hidden_size, inner, routed, hidden_widths, inner_widths))


def _widths(feed_forward: FeedForward | None, layout: Layout, model: Model) -> tuple[float, float]:
    """Feed-forward width of one token of the rank on one GPU, and the copies of it that experts there hold.

    The experts of a GPU see their share of the tokens of all ranks they serve.
    """
    if feed_forward is None:
        return 0.0, 0.0
    dense = sum(matmul.inputs for matmul in feed_forward.matmuls if matmul.shard == "row") / layout.tp
    if not feed_forward.n_experts:
        return dense, 0.0
    parallel = layout.expert_parallel(mixture=model.is_mixture)
    rows = feed_forward.top_k * layout.dp / parallel
    return dense + rows * feed_forward.expert_width / expert_shards(layout), rows


def _expansion_bytes(group: LayerGroup, layout: Layout, engine: Engine) -> float:
    attention = group.attention
    if attention is None or attention.kind != "mla":
        return 0.0
    widths = (attention.n_heads, attention.qk_nope_head_dim, attention.value_head_dim)
    return float(formulas.latent_expansion_bytes(engine.mla_workspace_tokens, *widths, layout.tp))
