"""Weights on one GPU: how tensor, expert, pipeline and data parallelism divide a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from capplan.cards.model import Attention, LayerGroup, Matmul, Model, Recurrence
from capplan.cards.model_totals import OTHER_BYTES
from capplan.formulas import _ops, kv_cache
from capplan.serving.layout import Layout

_END_SHARE = 0.1
"""Kinds of layers that make up less than this share stand together at one end of the model (leading dense layers)."""


@dataclass(frozen=True)
class WeightShares:
    """Bytes of weights on one GPU of the busiest pipeline stage, by part."""

    attention: float
    feed_forward: float
    """Dense feed-forward, shared experts, routers, norms and projections between layers."""
    experts: float
    embeddings: float


def weights_per_gpu(
    model: Model, layout: Layout, *, mtp: bool = False, mxfp4_multiples: tuple[int, int] = (1, 1)
) -> WeightShares:
    """Weights on the GPU that holds most of them.

    Attention, dense feed-forward and shared experts are split over tensor parallelism and repeated on every
    data-parallel rank; projections to a latent are replicated; KV heads are replicated once there are more ranks than
    heads; routed experts are divided by expert parallelism and :func:`expert_shards`, with redundant copies added;
    embedding and lm_head are split over tensor parallelism.

    Parameters
    ----------
    model : from :func:`~capplan.cards.model_card.load_model`, in the weight format that is served
    layout : of one instance
    mtp : count the multi-token-prediction layers
    mxfp4_multiples : what an engine pads hidden size and width of experts in MXFP4 to [elements]

    Returns
    -------
    shares : bytes by part [B]
    """
    attention = feed_forward = experts = 0.0
    for count, group in stage_layers(model, layout.pp, mtp=mtp):
        stored = count * group.stored / group.count
        attention += stored * _attention_bytes(group.attention, layout.tp)
        attention += count * _recurrence_bytes(group.recurrence, layout.tp)
        feed_forward += stored * _always_bytes(group, layout.tp) + count * _beside_bytes(group, layout.tp)
        experts += stored * _expert_bytes(group, layout, model, mxfp4_multiples)
    return WeightShares(attention, feed_forward, experts, _embedding_bytes(model, layout, mtp))


def stage_layers(model: Model, pp: int, *, mtp: bool = False) -> Iterator[tuple[float, LayerGroup]]:
    """Layers of the fullest pipeline stage: how many of each group, and the group.

    Kinds of layers are taken as evenly spread, except a few leading ones, which leave the other stages to the rest.
    """
    stage = float(_ops.ceil(model.n_layers / pp))
    few = {id(g) for g in model.layers if pp > 1 and len(model.layers) > 1 and g.count < _END_SHARE * model.n_layers}
    rest = sum(group.count for group in model.layers if id(group) not in few) or model.n_layers
    for group in model.layers:
        if id(group) not in few or rest == model.n_layers:
            yield group.count * min(stage, rest) / rest, group
    if mtp:
        yield from ((float(group.count), group) for group in model.mtp_layers)


def expert_shards(layout: Layout, *, mixture: bool = True) -> int:
    """GPUs that split each routed expert: all GPUs of a stage hold one copy of the experts between them.

    Where expert parallelism is narrower than ``tp * dp``, tensor parallelism takes the rest, across data-parallel
    ranks too (vLLM, "Expert Parallel Deployment").
    """
    return layout.tp * layout.dp // layout.expert_parallel(mixture=mixture)


def _matmul_bytes(matmul: Matmul, tp: int) -> float:
    return matmul.weight_bytes if matmul.shard == "replicated" else matmul.weight_bytes / tp


def _attention_bytes(attention: Attention | None, tp: int) -> float:
    if attention is None:
        return 0.0
    sharded = sum(
        matmul.weight_bytes * _qkv_share(matmul, attention, tp) if matmul.shard == "qkv" else _matmul_bytes(matmul, tp)
        for matmul in attention.matmuls
    )
    other = attention.other_parameters
    if (indexer := attention.indexer) is not None:
        sharded += sum(_matmul_bytes(matmul, tp) for matmul in indexer.matmuls)
        other += indexer.other_parameters
    return sharded + OTHER_BYTES * other


def _recurrence_bytes(recurrence: Recurrence | None, tp: int) -> float:
    if recurrence is None:
        return 0.0
    return sum(_matmul_bytes(m, tp) for m in recurrence.matmuls) + OTHER_BYTES * recurrence.other_parameters


def _qkv_share(matmul: Matmul, attention: Attention, tp: int) -> float:
    """Share of the fused query-key-value projection on one rank: query heads split, KV heads at least one."""
    key_value = attention.n_kv_heads * attention.projected_kv_width
    kv_heads = float(kv_cache.kv_heads_per_rank(attention.n_kv_heads, tp))
    on_rank = (matmul.outputs - key_value) / tp + kv_heads * attention.projected_kv_width
    return on_rank / matmul.outputs


def _always_bytes(group: LayerGroup, tp: int) -> float:
    """What every token passes in feed-forward, and norms."""
    feed_forward = group.feed_forward
    if feed_forward is None:
        return OTHER_BYTES * group.other_parameters
    sharded = sum(_matmul_bytes(matmul, tp) for matmul in feed_forward.matmuls)
    return sharded + OTHER_BYTES * (group.other_parameters + feed_forward.other_parameters)


def _beside_bytes(group: LayerGroup, tp: int) -> float:
    """What every layer of the group has of its own beside attention, recurrence and feed-forward."""
    return sum(_matmul_bytes(matmul, tp) for matmul in group.matmuls) + OTHER_BYTES * group.extra_parameters


def _expert_bytes(group: LayerGroup, layout: Layout, model: Model, multiples: tuple[int, int]) -> float:
    feed_forward = group.feed_forward
    if feed_forward is None or not feed_forward.n_experts:
        return 0.0
    parallel = layout.expert_parallel(mixture=model.is_mixture)
    shards = expert_shards(layout, mixture=model.is_mixture)
    one = sum(
        _expert_matmul_bytes(matmul, feed_forward.expert_width, shards, multiples)
        for matmul in feed_forward.expert_matmuls
    )
    one += OTHER_BYTES * feed_forward.expert_other_parameters / shards
    local = float(_ops.ceil((feed_forward.n_experts + layout.redundant_experts) / parallel))
    return local * one


def _expert_matmul_bytes(matmul: Matmul, width: int, shards: int, multiples: tuple[int, int]) -> float:
    """One matrix of an expert on one GPU, padded where the engine pads it."""
    if matmul.format.name != "mxfp4" or multiples == (1, 1):
        return matmul.weight_bytes / shards
    hidden, inner = multiples
    across = matmul.inputs if matmul.shard == "column" else matmul.outputs
    parts = (matmul.outputs if matmul.shard == "column" else matmul.inputs) / width
    padded = float(_ops.ceil(across / hidden)) * hidden * float(_ops.ceil(width / shards / inner)) * inner
    return matmul.format.bytes_per_element * parts * padded


def _embedding_bytes(model: Model, layout: Layout, mtp: bool) -> float:
    """Both ends of the model; with a pipeline they are on different stages, and the larger one counts."""
    first, last = _matmul_bytes(model.embedding, layout.tp), _matmul_bytes(model.lm_head, layout.tp)
    bias = model.lm_head.outputs * model.lm_head_bias
    norm = OTHER_BYTES * (model.norm_parameters + model.other_parameters + bias)
    first += sum(_matmul_bytes(matmul, layout.tp) for matmul in (*model.look_ups, *model.projections))
    ends = max(first, last) if layout.pp > 1 or model.tied_embeddings else first + last
    return norm + ends + (first + last if mtp and model.mtp_copies_embeddings else 0.0)
