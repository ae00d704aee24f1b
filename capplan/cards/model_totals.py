"""Sums over the layers of a model: parameters, bytes, operations. :class:`~capplan.cards.model.Model` exposes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from capplan.errors import InputError, shown
from capplan.formulas import kv_cache, weights

if TYPE_CHECKING:
    from capplan.cards.model import Attention, FeedForward, LayerGroup, Matmul, Model, Recurrence, WeightFormat

OTHER_BYTES = 2
"""Biases, norms and sinks are stored in 16 bits."""


MOST_TOKENS = 1e18
"""No context is longer."""


def check_context(context: Any) -> None:
    """Refuse a context that is no number of tokens; symbols pass.

    Raises
    ------
    InputError : negative, NaN, infinite or no number
    """
    if isinstance(context, (int, float)):
        good = not isinstance(context, bool) and 0 <= context <= MOST_TOKENS
    elif hasattr(context, "dtype") and context.dtype.kind in "iuf":
        good = bool(((context >= 0) & (context <= MOST_TOKENS)).all())
    else:
        good = hasattr(context, "free_symbols")
    if not good:
        raise InputError(f"{shown(context)} must be a finite number of tokens, 0 or more", key="context")


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


def recurrence_bytes(recurrence: Recurrence) -> float:
    """Bytes of the state of one sequence in one layer."""
    return float(
        kv_cache.recurrent_state_bytes(
            recurrence.state_elements, recurrence.state_bytes_per_element, recurrence.conv_elements, OTHER_BYTES
        )
    )


def layer_matmuls(group: LayerGroup) -> Iterator[tuple[int, Matmul]]:
    """Every matrix of a layer group with the number of times the group holds it."""
    attention, feed_forward, stored = group.attention, group.feed_forward, group.stored
    if attention is not None:
        yield from ((stored, matmul) for matmul in attention.matmuls)
        if attention.indexer is not None:
            yield from ((stored, matmul) for matmul in attention.indexer.matmuls)
    if group.recurrence is not None:
        yield from ((group.count, matmul) for matmul in group.recurrence.matmuls)
    if feed_forward is not None:
        yield from ((stored, matmul) for matmul in feed_forward.matmuls)
        yield from ((stored * feed_forward.n_experts, matmul) for matmul in feed_forward.expert_matmuls)
    yield from ((group.count, matmul) for matmul in group.matmuls)


def group_other_parameters(group: LayerGroup) -> int:
    """Biases, norms, sinks and scales of all layers of a group, those of all their experts included."""
    shared, own = group.other_parameters, group.extra_parameters
    if (attention := group.attention) is not None:
        shared += attention.other_parameters
        shared += attention.indexer.other_parameters if attention.indexer is not None else 0
    if (feed_forward := group.feed_forward) is not None:
        shared += feed_forward.other_parameters + feed_forward.n_experts * feed_forward.expert_other_parameters
    if group.recurrence is not None:
        own += group.recurrence.other_parameters
    return group.stored * shared + group.count * own


def group_parameters(group: LayerGroup) -> int:
    """Parameters of all layers of a group."""
    return sum(times * matmul.parameters for times, matmul in layer_matmuls(group)) + group_other_parameters(group)


_PARTS = (
    "embedding", "look_ups", "attention", "recurrence", "indexer", "dense_feed_forward", "routed_experts",
    "shared_experts", "latent_projections", "router", "norms", "other",
)  # fmt: skip


def parameters_by_part(model: Model) -> dict[str, int]:
    """Parameters by part of the model; parts the model lacks are left out."""
    parts = dict.fromkeys(_PARTS, 0)
    parts["embedding"] = model.embedding.parameters
    parts["look_ups"] = _elements(model.look_ups)
    parts["norms"] = model.norm_parameters
    parts["other"] = _elements(model.projections) + model.other_parameters
    for group in model.layers:
        for part, parameters in _group_parts(group):
            parts[part] += parameters
    parts["lm_head"] = _head_bias(model) + (0 if model.tied_embeddings else model.lm_head.parameters)
    return {part: parameters for part, parameters in parts.items() if parameters}


def _head_bias(model: Model) -> int:
    return model.lm_head.outputs * model.lm_head_bias


def _group_parts(group: LayerGroup) -> Iterator[tuple[str, int]]:
    yield "other", group.count * (group.extra_parameters + _elements(group.matmuls))
    yield "norms", group.stored * group.other_parameters
    if (attention := group.attention) is not None:
        yield from ((part, group.stored * parameters) for part, parameters in _attention_parts(attention))
    if (recurrence := group.recurrence) is not None:
        yield "norms", group.count * recurrence.norm_parameters
        own = recurrence.other_parameters - recurrence.norm_parameters
        yield "recurrence", group.count * (own + _elements(recurrence.matmuls))
    if (feed_forward := group.feed_forward) is not None:
        yield from ((part, group.stored * parameters) for part, parameters in _feed_forward_parts(feed_forward))


def _attention_parts(attention: Attention) -> Iterator[tuple[str, int]]:
    yield "norms", attention.norm_parameters
    yield "attention", attention.other_parameters - attention.norm_parameters + _elements(attention.matmuls)
    if attention.indexer is not None:
        yield "indexer", attention.indexer.other_parameters + _elements(attention.indexer.matmuls)


_MIXTURE_PARTS = {"shared": "shared_experts", "dense": "dense_feed_forward", "latent": "latent_projections"}


def _feed_forward_parts(feed_forward: FeedForward) -> Iterator[tuple[str, int]]:
    if not feed_forward.n_experts:
        yield "dense_feed_forward", _elements(feed_forward.matmuls) + feed_forward.other_parameters
        return
    expert = _elements(feed_forward.expert_matmuls) + feed_forward.expert_other_parameters
    yield "routed_experts", feed_forward.n_experts * expert
    yield "router", feed_forward.other_parameters
    for matmul in feed_forward.matmuls:
        yield _MIXTURE_PARTS.get(matmul.name.partition("_")[0], "router"), matmul.parameters


def _elements(matmuls: tuple[Matmul, ...]) -> int:
    return sum(matmul.parameters for matmul in matmuls)


def parameters_active(model: Model) -> int:
    """Parameters one token passes, the embedding look-up not counted."""
    look_up = 0 if model.tied_embeddings else model.embedding.parameters
    idle = sum(group.stored * _idle_expert_parameters(group.feed_forward) for group in model.layers)
    return model.parameters_total - look_up - _elements(model.look_ups) - idle


def _idle_expert_parameters(feed_forward: FeedForward | None) -> int:
    if feed_forward is None:
        return 0
    expert = _elements(feed_forward.expert_matmuls) + feed_forward.expert_other_parameters
    return (feed_forward.n_experts - feed_forward.top_k) * expert


def matmul_parameters_active(model: Model) -> int:
    """Matrix elements one token is multiplied with, lm_head included; shared weights as often as they are used."""
    ends = model.lm_head.parameters + _elements(model.projections)
    return ends + sum(group.count * _active_elements(group) for group in model.layers)


def _active_elements(group: LayerGroup) -> int:
    always = _elements(group.matmuls)
    if (attention := group.attention) is not None:
        always += _elements(attention.matmuls)
        always += _elements(attention.indexer.matmuls) if attention.indexer is not None else 0
    if group.recurrence is not None:
        always += _elements(group.recurrence.matmuls)
    if (feed_forward := group.feed_forward) is None:
        return always
    always += _elements(feed_forward.matmuls)
    return int(weights.mixture_active_parameters(always, _elements(feed_forward.expert_matmuls), feed_forward.top_k))


def weight_bytes(model: Model, *, mtp: bool) -> float:
    """Bytes of all matrices in their formats, and of biases, norms and sinks."""
    size = sum(times * matmul.weight_bytes for times, matmul in model.matmuls())
    ends = model.norm_parameters + model.other_parameters + _head_bias(model)
    size += OTHER_BYTES * (ends + _other_parameters(model.layers))
    return float(size + mtp_bytes(model)) if mtp else float(size)


def mtp_bytes(model: Model) -> float:
    """Bytes the multi-token-prediction layers add to the checkpoint."""
    size = sum(times * matmul.weight_bytes for group in model.mtp_layers for times, matmul in layer_matmuls(group))
    size += OTHER_BYTES * _other_parameters(model.mtp_layers)
    return size + (model.embedding.weight_bytes + model.lm_head.weight_bytes if model.mtp_copies_embeddings else 0)


def _other_parameters(groups: tuple[LayerGroup, ...]) -> int:
    return sum(group_other_parameters(group) for group in groups)


def flops_per_token(model: Model, context: Any, *, expanded: bool) -> Any:
    """Operations of one new token: linear layers, lm_head and attention over ``context`` tokens.

    The update of a recurrent state (a few operations an element of it) is not counted.
    """
    check_context(context)
    linear = weights.linear_flops_per_token(model.matmul_parameters_active)
    return linear + sum(
        group.count * attention_flops_per_token(group.attention, context, expanded=expanded)
        for group in model.layers
        if group.attention is not None
    )


def attention_flops_per_token(attention: Attention, context: Any, *, expanded: bool = False) -> Any:
    """Operations of one attention layer for one new token; cross-attention sees no token of the text."""
    if attention.kind == "cross":
        return 0
    keys, chosen = _attended(attention, context)
    scored = 0
    if (indexer := attention.indexer) is not None:
        scored = weights.indexer_flops_per_token(indexer.n_heads, indexer.head_dim, keys)
    if attention.kind == "mla" and not expanded:
        return scored + weights.mla_absorbed_attention_flops_per_token(
            attention.n_heads, attention.kv_lora_rank, attention.qk_rope_head_dim, chosen
        )
    heads, key, value = attention.n_heads, attention.head_dim, attention.value_head_dim
    return scored + weights.attention_flops_per_token(heads, key, value, chosen)


def _attended(attention: Attention, context: Any) -> tuple[Any, Any]:
    """Keys an indexer scores, and tokens or entries attention then reads."""
    held = kv_cache.held_tokens(context, attention.window)
    most = attention.selected_tokens or None
    if attention.kind != "compressed":
        return held, kv_cache.held_tokens(held, most)
    if not attention.compress_ratio:
        return 0, held
    entries = kv_cache.compressed_entries(context, attention.compress_ratio)
    return entries, held + kv_cache.held_tokens(entries, most)


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
        look_ups=_in_format(model.look_ups, rest, rest),
        projections=_in_format(model.projections, rest, rest),
    )


def _reformatted(group: LayerGroup, form: WeightFormat, rest: WeightFormat) -> LayerGroup:
    changes: dict[str, Any] = {"matmuls": _in_format(group.matmuls, rest, rest)}
    if (attention := group.attention) is not None:
        indexer = attention.indexer
        if indexer is not None:
            indexer = replace(indexer, matmuls=_in_format(indexer.matmuls, form, rest))
        changes["attention"] = replace(attention, matmuls=_in_format(attention.matmuls, form, rest), indexer=indexer)
    if group.recurrence is not None:
        changes["recurrence"] = replace(group.recurrence, matmuls=_in_format(group.recurrence.matmuls, form, rest))
    if (feed_forward := group.feed_forward) is not None:
        changes["feed_forward"] = replace(
            feed_forward,
            matmuls=_in_format(feed_forward.matmuls, form, rest),
            expert_matmuls=_in_format(feed_forward.expert_matmuls, form, rest),
        )
    return replace(group, **changes)


_KEPT = frozenset({"router", "shared_gate", "index_weights", "beta", "decay"})
"""Small matrices that decide over others: no quantiser touches them."""


def _in_format(matmuls: tuple[Matmul, ...], form: WeightFormat, rest: WeightFormat) -> tuple[Matmul, ...]:
    return tuple(replace(matmul, format=rest if matmul.name in _KEPT else form) for matmul in matmuls)
