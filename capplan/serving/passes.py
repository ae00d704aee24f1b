"""Evaluating a :class:`~capplan.serving.kernel_plan.StepPlan`: seconds by part for one pass of one micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from capplan.errors import InputError
from capplan.formulas import collectives, experts
from capplan.formulas._ops import Value
from capplan.formulas.attention_time import context_attention_seconds, decode_attention_seconds
from capplan.formulas.gemm import ACTIVATION_BYTES, gemms_seconds
from capplan.formulas.kv_cache import held_tokens
from capplan.serving import links
from capplan.serving.recurrent_plan import recurrent_layers_seconds
from capplan.serving.sparse_plan import indexers_seconds, sparse_cores_seconds
from capplan.serving.step_plan import AttentionLayers, ExpertLayers, StepPlan
from capplan.serving.work import Work

Derive = Callable[..., Any]
"""``Chain.derive``, or :func:`evaluate` where nobody asked for a chain."""

Parts = dict[str, Value]


def evaluate(_name: str, formula: Callable[..., Any], **inputs: Any) -> Any:
    """A quantity without a chain: just the formula."""
    return formula(**inputs)


def pass_parts(plan: StepPlan, work: Work, derive: Derive) -> tuple[Parts, Parts]:
    """Seconds of one pass by part: what the GPU computes, and what it waits for its peers."""
    rows = work.rows
    compute = {
        **attention_parts(plan, work, derive),
        "linear_seconds": linear_part(plan, work, derive),
        "elementwise_seconds": derive("elementwise_seconds", gemms_seconds, rows=rows, terms=(plan.elementwise,)),
        "lm_head_seconds": derive("lm_head_seconds", gemms_seconds, rows=work.head_rows, terms=plan.head),
        "sampling_seconds": derive("sampling_seconds", gemms_seconds, rows=work.head_rows, terms=(plan.sampling,)),
    }
    exchange: Parts = {}
    add_exchanges(plan, work, derive, compute, exchange)
    return compute, exchange


def add_exchanges(
    plan: StepPlan, work: Work, derive: Derive, compute: Parts, exchange: Parts, sent: Sequence[Work] = ()
) -> None:
    """Experts, and what the GPU waits for its peers; ``sent`` are parts of the pass that go to the experts each in the
    form of its own, the whole pass where there are none."""
    if plan.mixtures:
        add_mixtures(plan, work, derive, compute, exchange, sent)
    if plan.layout.tp > 1:
        add_tensor_parallel(plan, work, derive, exchange)
    if plan.layout.dcp > 1 and not work.prefill:
        exchange["context_parallel_seconds"] = context_parallel_part(plan, work, derive)
    if plan.layout.pp > 1:
        exchange["pipeline_seconds"] = pipeline_part(plan, work, derive)


def linear_part(plan: StepPlan, work: Work, derive: Derive) -> Value:
    """Dense products of all layers; a prefill expands the latents of cached tokens as well."""
    terms, latent_rows = plan.gemms, None
    if plan.latent_gemms:
        if work.prefill:
            latent_rows = work.rows + work.sequences * work.cached_tokens
        else:
            terms = terms + plan.latent_split_gemms
    return derive("linear_seconds", linear_seconds, rows=work.rows, terms=terms, latent_rows=latent_rows,
                  latent_terms=plan.latent_gemms)  # fmt: skip


def linear_seconds(rows: Value, terms: Any, latent_rows: Value | None, latent_terms: Any) -> Value:
    """Products of the new tokens, and those that expand latents where there are any [s]."""
    seconds = gemms_seconds(rows, terms)
    return seconds if latent_rows is None else seconds + gemms_seconds(latent_rows, latent_terms)


def attention_parts(plan: StepPlan, work: Work, derive: Derive) -> Parts:
    """Attention of all kinds and recurrences, as far as the model has them."""
    parts: Parts = {}
    if plan.attentions:
        parts["attention_seconds"] = attention_part(plan, work, derive)
    for name, formula, layers in (
        ("sparse_attention_seconds", sparse_cores_seconds, plan.sparse),
        ("indexer_seconds", indexers_seconds, plan.indexed),
        ("recurrence_seconds", recurrent_layers_seconds, plan.recurrences),
    ):
        if layers:
            parts[name] = derive(name, formula, work=work, layers=layers)
    return parts


def attention_part(plan: StepPlan, work: Work, derive: Derive) -> Value:
    """Attention cores of all layers."""
    if work.prefill:
        return derive(
            "attention_seconds",
            context_attention_layers_seconds,
            prompts=work.sequences,
            new_tokens=work.new_tokens,
            cached_tokens=work.cached_tokens,
            layers=plan.attentions,
        )
    return derive(
        "attention_seconds",
        decode_attention_layers_seconds,
        sequences=work.sequences,
        context_tokens=work.cached_tokens,
        query_tokens=work.new_tokens,
        layers=plan.attentions,
    )


def decode_attention_layers_seconds(
    sequences: Value, context_tokens: Value, query_tokens: Value, layers: tuple[AttentionLayers, ...]
) -> Value:
    """Decode attention of all layers [s]."""
    total: Value = 0.0
    for layer in layers:
        total = total + layer.count * decode_attention_seconds(
            sequences,
            held_tokens(context_tokens, layer.window) / layer.context_parallel,
            query_tokens,
            layer.kv_bytes_per_token,
            layer.flops_per_pair,
            layer.floor_seconds,
            layer.stream_bandwidth,
            layer.flops_per_second,
            layer.ramp_tokens,
            layer.token_seconds,
        )
    return total


def context_attention_layers_seconds(
    prompts: Value, new_tokens: Value, cached_tokens: Value, layers: tuple[AttentionLayers, ...]
) -> Value:
    """Prefill attention of all layers [s]."""
    total: Value = 0.0
    for layer in layers:
        total = total + layer.count * context_attention_seconds(
            prompts,
            new_tokens,
            cached_tokens,
            layer.window,
            layer.context_kv_bytes_per_token,
            layer.context_query_bytes_per_token,
            layer.context_flops_per_pair,
            layer.context_floor_seconds,
            layer.context_stream_bandwidth,
            layer.context_flops_per_second,
            layer.context_token_seconds,
        )
    return total


def add_mixtures(
    plan: StepPlan, work: Work, derive: Derive, compute: Parts, exchange: Parts, sent: Sequence[Work]
) -> None:
    """Routed experts of all layers and, where attention is data-parallel, their dispatch and combine."""
    seconds: Value = 0.0
    for layers in plan.mixtures:
        rows, distinct = mixture_load(layers, work, derive)
        one = derive("expert_layer_seconds", experts.experts_seconds, rows=rows, distinct=distinct, terms=layers.terms)
        seconds = seconds + derive("experts_seconds", all_layers_seconds, layers=layers.count, layer_seconds=one)
        if plan.layout.dp > 1:
            parts = [(part, links.mixture_load(layers, part)[0]) for part in sent] or [(work, rows)]
            elements = [links.exchange_elements(plan, part, layers, taken) for part, taken in parts]
            near, far = (sum(ways) for ways in zip(*elements, strict=True))
            _add_exchange(plan, layers, near, far, derive, exchange)
    compute["experts_seconds"] = seconds


def mixture_load(layers: ExpertLayers, work: Work, derive: Derive) -> tuple[Value, Value]:
    """Token-expert pairs and distinct experts on the busiest expert-parallel rank."""
    pairs = work.all_tokens * layers.top_k
    rows = derive(
        "expert_rows",
        experts.busiest_rank_rows,
        rows=pairs,
        experts=layers.experts,
        ranks=layers.ranks,
        skew=work.skew,
    )
    distinct = derive(
        "distinct_experts",
        experts.distinct_experts,
        tokens=work.all_tokens,
        experts=layers.experts,
        top_k=layers.top_k,
    )
    if type(distinct) is float and distinct > layers.experts * (1 + 1e-9):
        raise InputError(f"{distinct:g} experts: a layer has {layers.experts:g}", key="override.distinct_experts")
    local = derive(
        "distinct_experts_per_rank",
        experts.busiest_rank_distinct,
        distinct=distinct,
        experts=layers.experts,
        ranks=layers.ranks,
    )
    return rows, local


def all_layers_seconds(layers: Value, layer_seconds: Value) -> Value:
    """Equal layers, one after the other [s]."""
    return layers * layer_seconds


def _add_exchange(
    plan: StepPlan, layers: ExpertLayers, near: Value, far: Value, derive: Derive, exchange: Parts
) -> None:
    kernels, nodes = plan.kernels, plan.expert_group.nodes
    floors = {
        "dispatch": collectives.dispatch_floor_seconds(
            float(nodes), kernels.dispatch_floor_seconds, kernels.dispatch_floor_per_doubling_seconds
        ),
        "combine": kernels.combine_floor_seconds if nodes == 1 else kernels.internode_floor_seconds,
    }
    for way, width in (("dispatch", layers.dispatch_width), ("combine", ACTIVATION_BYTES)):
        one = derive(
            f"{way}_layer_seconds",
            collectives.exchange_seconds,
            intranode_bytes=near * width,
            internode_bytes=far * width,
            intranode_bandwidth=kernels.dispatch_bandwidth,
            internode_bandwidth=kernels.internode_bandwidth,
            floor_seconds=floors[way],
        )
        name = f"{way}_seconds"
        seconds = derive(name, all_layers_seconds, layers=layers.count, layer_seconds=one)
        exchange[name] = exchange.get(name, 0.0) + seconds


def add_tensor_parallel(plan: StepPlan, work: Work, derive: Derive, exchange: Parts) -> None:
    """All-reduces of all layers, over NVLink and, where the group spans nodes, over the network; gathered logits."""
    kernels, group = plan.kernels, plan.tensor_group
    message = ACTIVATION_BYTES * plan.hidden_size * work.rows
    one = derive(
        "all_reduce_layer_seconds",
        collectives.all_reduce_seconds,
        message_bytes=message,
        gpus=group.gpus,
        floor_seconds=plan.all_reduce_floor_seconds,
        floor_per_gpu_seconds=plan.all_reduce_floor_per_gpu_seconds,
        two_step_floor_seconds=kernels.all_reduce_two_step_floor_seconds,
        bandwidth=kernels.all_reduce_bandwidth,
    )
    if group.nodes > 1:
        one = one + derive(
            "internode_all_reduce_layer_seconds",
            collectives.internode_all_reduce_seconds,
            message_bytes=message,
            nodes=group.nodes,
            gpus_per_node=group.gpus,
            floor_seconds=kernels.internode_floor_seconds,
            bandwidth=kernels.internode_bandwidth,
        )
    exchange["all_reduce_seconds"] = derive(
        "all_reduce_seconds", all_layers_seconds, layers=plan.all_reduces, layer_seconds=one
    )
    exchange["logits_gather_seconds"] = derive("logits_gather_seconds", collectives.exchange_seconds,
                                               **links.logits_gather(plan, work))  # fmt: skip


def context_parallel_part(plan: StepPlan, work: Work, derive: Derive) -> Value:
    """Queries gathered before, and outputs scattered after, attention whose cache is spread over ranks."""
    layers = sum(layer.count for layer in plan.attentions) + sum(layer.count for layer in plan.sparse)
    start = plan.all_reduce_floor_seconds + plan.all_reduce_floor_per_gpu_seconds * plan.layout.dcp
    return derive(
        "context_parallel_seconds",
        collectives.exchange_seconds,
        intranode_bytes=links.context_parallel_bytes(plan, work),
        internode_bytes=0.0 * work.rows,
        intranode_bandwidth=plan.kernels.all_reduce_bandwidth,
        internode_bandwidth=plan.kernels.internode_bandwidth,
        floor_seconds=2 * start * layers,
    )


def pipeline_part(plan: StepPlan, work: Work, derive: Derive) -> Value:
    """Hidden states handed from stage to stage."""
    return derive("pipeline_seconds", all_layers_seconds, layers=plan.layout.pp - 1,
                  layer_seconds=collectives.exchange_seconds(**links.stage_send(plan, work)))  # fmt: skip
