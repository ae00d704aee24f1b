"""Sums over the layers of a model: parameters, bytes, operations. :class:`~capplan.cards.model.Model` exposes them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from capplan.errors import InputError
from capplan.formulas import weights
from capplan.formulas.kv_cache import held_tokens

if TYPE_CHECKING:
    from capplan.cards.model import Attention, FeedForward, LayerGroup, Matmul, Model, WeightFormat

OTHER_BYTES = 2
"""Biases, norms and sinks are stored in 16 bits."""


def check_context(context: Any) -> None:
    """Refuse a context that is no number of tokens; symbols pass.

    Raises
    ------
    InputError : negative, NaN, infinite or no number
    """
    if isinstance(context, (int, float)):
        good = not isinstance(context, bool) and 0 <= context < math.inf
    elif hasattr(context, "dtype") and context.dtype.kind in "iuf":
        good = bool(((context >= 0) & (context < math.inf)).all())
    else:
        good = hasattr(context, "free_symbols")
    if not good:
        raise InputError(f"{str(context)[:60]} must be a finite number of tokens, 0 or more", key="context")


def matmul_bytes(matmul: Matmul) -> float:
    """Bytes of a matrix with its scales, times its count."""
    form = matmul.format
    if not form.block_inputs:
        return matmul.parameters * form.bytes_per_element
    return matmul.count * float(
        weights.scaled_weight_bytes(
            matmul.inputs,
            matmul.outputs,
            form.element_bytes,
            form.scale_bytes,
            form.block_inputs,
            form.block_outputs,
        )
    )


def layer_matmuls(group: LayerGroup) -> Iterator[tuple[int, Matmul]]:
    """Every matrix of a layer group with the number of times the group holds it."""
    feed_forward = group.feed_forward
    if group.attention is not None:
        yield from ((group.count, matmul) for matmul in group.attention.matmuls)
    if feed_forward is not None:
        yield from ((group.count, matmul) for matmul in feed_forward.matmuls)
        yield from ((group.count * feed_forward.n_experts, matmul) for matmul in feed_forward.expert_matmuls)
    yield from ((group.count, matmul) for matmul in group.matmuls)


def layer_other_parameters(group: LayerGroup) -> int:
    """Biases, norms and sinks of one layer, those of all its experts included."""
    attention = group.attention.other_parameters if group.attention is not None else 0
    feed_forward = group.feed_forward
    if feed_forward is None:
        return group.other_parameters + attention
    experts = feed_forward.n_experts * feed_forward.expert_other_parameters
    return group.other_parameters + attention + feed_forward.other_parameters + experts


def layer_parameters(group: LayerGroup) -> int:
    """Parameters of one layer."""
    matrices = sum(times * matmul.parameters for times, matmul in layer_matmuls(group))
    return matrices // group.count + layer_other_parameters(group)


def parameters_by_part(model: Model) -> dict[str, int]:
    """Parameters by part of the model; parts the model lacks are left out."""
    parts = dict.fromkeys(
        ("embedding", "attention", "dense_feed_forward", "routed_experts", "shared_experts", "router", "norms"), 0
    )
    parts["embedding"] = model.embedding.parameters
    parts["norms"] = model.norm_parameters
    for group in model.layers:
        for part, parameters in _layer_parts(group):
            parts[part] += group.count * parameters
    parts["lm_head"] = 0 if model.tied_embeddings else model.lm_head.parameters
    return {part: parameters for part, parameters in parts.items() if parameters}


def _layer_parts(group: LayerGroup) -> Iterator[tuple[str, int]]:
    yield "norms", group.other_parameters
    if (attention := group.attention) is not None:
        yield "norms", attention.norm_parameters
        yield "attention", attention.other_parameters - attention.norm_parameters + _elements(attention.matmuls)
    if (feed_forward := group.feed_forward) is not None:
        yield from _feed_forward_parts(feed_forward)


def _feed_forward_parts(feed_forward: FeedForward) -> Iterator[tuple[str, int]]:
    if not feed_forward.n_experts:
        yield "dense_feed_forward", _elements(feed_forward.matmuls) + feed_forward.other_parameters
        return
    expert = _elements(feed_forward.expert_matmuls) + feed_forward.expert_other_parameters
    yield "routed_experts", feed_forward.n_experts * expert
    yield "router", feed_forward.other_parameters
    for matmul in feed_forward.matmuls:
        yield "router" if matmul.name == "router" else "shared_experts", matmul.parameters


def _elements(matmuls: tuple[Matmul, ...]) -> int:
    return sum(matmul.parameters for matmul in matmuls)


def parameters_active(model: Model) -> int:
    """Parameters one token passes, the embedding look-up not counted."""
    look_up = 0 if model.tied_embeddings else model.embedding.parameters
    idle = sum(group.count * _idle_expert_parameters(group.feed_forward) for group in model.layers)
    return model.parameters_total - look_up - idle


def _idle_expert_parameters(feed_forward: FeedForward | None) -> int:
    if feed_forward is None:
        return 0
    expert = _elements(feed_forward.expert_matmuls) + feed_forward.expert_other_parameters
    return (feed_forward.n_experts - feed_forward.top_k) * expert


def matmul_parameters_active(model: Model) -> int:
    """Matrix elements one token is multiplied with, lm_head included."""
    return model.lm_head.parameters + sum(group.count * _active_elements(group) for group in model.layers)


def _active_elements(group: LayerGroup) -> int:
    attention = _elements(group.attention.matmuls) if group.attention is not None else 0
    beside = _elements(group.matmuls)
    if (feed_forward := group.feed_forward) is None:
        return attention + beside
    always = attention + beside + _elements(feed_forward.matmuls)
    return int(weights.mixture_active_parameters(always, _elements(feed_forward.expert_matmuls), feed_forward.top_k))


def weight_bytes(model: Model, *, mtp: bool) -> float:
    """Bytes of all matrices in their formats, and of biases, norms and sinks."""
    size = sum(times * matmul.weight_bytes for times, matmul in model.matmuls())
    size += OTHER_BYTES * (model.norm_parameters + _other_parameters(model.layers))
    return float(size + mtp_bytes(model)) if mtp else float(size)


def mtp_bytes(model: Model) -> float:
    """Bytes the multi-token-prediction layers add to the checkpoint."""
    size = sum(times * matmul.weight_bytes for group in model.mtp_layers for times, matmul in layer_matmuls(group))
    size += OTHER_BYTES * _other_parameters(model.mtp_layers)
    return size + (model.embedding.weight_bytes + model.lm_head.weight_bytes if model.mtp_copies_embeddings else 0)


def _other_parameters(groups: tuple[LayerGroup, ...]) -> int:
    return sum(group.count * layer_other_parameters(group) for group in groups)


def flops_per_token(model: Model, context: Any, *, expanded: bool) -> Any:
    """Operations of one new token: linear layers, lm_head and attention over ``context`` tokens."""
    check_context(context)
    linear = weights.linear_flops_per_token(model.matmul_parameters_active)
    return linear + sum(
        group.count * attention_flops_per_token(group.attention, context, expanded=expanded)
        for group in model.layers
        if group.attention is not None
    )


def attention_flops_per_token(attention: Attention, context: Any, *, expanded: bool = False) -> Any:
    """Operations of one attention layer for one new token."""
    held = held_tokens(context, attention.window)
    if attention.kind == "mla" and not expanded:
        return weights.mla_absorbed_attention_flops_per_token(
            attention.n_heads, attention.kv_lora_rank, attention.qk_rope_head_dim, held
        )
    return weights.attention_flops_per_token(attention.n_heads, attention.head_dim, attention.value_head_dim, held)


def with_weight_dtype(model: Model, dtype: str, known: dict[str, Model]) -> Model:
    """The model with every quantisable matrix in another format; ``known`` keeps those already made."""
    from capplan.cards.weight_formats import FORMATS, SIXTEEN_BIT, weight_format

    form = weight_format(dtype, key="weight_dtype")
    if form.name not in known:
        known[form.name] = _in_formats(model, form, form if form.name in SIXTEEN_BIT else FORMATS["bf16"])
    return known[form.name]


def _in_formats(model: Model, form: WeightFormat, rest: WeightFormat) -> Model:
    return replace(
        model,
        layers=tuple(_reformatted(group, form, rest) for group in model.layers),
        mtp_layers=tuple(_reformatted(group, form, rest) for group in model.mtp_layers),
        embedding=replace(model.embedding, format=rest),
        lm_head=replace(model.lm_head, format=rest),
    )


def _reformatted(group: LayerGroup, form: WeightFormat, rest: WeightFormat) -> LayerGroup:
    attention, feed_forward = group.attention, group.feed_forward
    if attention is not None:
        attention = replace(attention, matmuls=_in_format(attention.matmuls, form, rest))
    if feed_forward is not None:
        feed_forward = replace(
            feed_forward,
            matmuls=_in_format(feed_forward.matmuls, form, rest),
            expert_matmuls=_in_format(feed_forward.expert_matmuls, form, rest),
        )
    beside = _in_format(group.matmuls, rest, rest)
    return replace(group, attention=attention, feed_forward=feed_forward, matmuls=beside)


def _in_format(matmuls: tuple[Matmul, ...], form: WeightFormat, rest: WeightFormat) -> tuple[Matmul, ...]:
    return tuple(replace(matmul, format=rest if matmul.name == "router" else form) for matmul in matmuls)
