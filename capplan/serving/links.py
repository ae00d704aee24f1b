"""Bytes a pass moves over each link of the busiest GPU, and what its time is spent on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from capplan.formulas import _ops, collectives, experts
from capplan.formulas._ops import Value
from capplan.formulas.attention_time import causal_pairs
from capplan.formulas.gemm import ACTIVATION_BYTES, GemmTerm
from capplan.formulas.kv_cache import held_tokens
from capplan.formulas.roofline import kernel_seconds
from capplan.serving.recurrent_plan import recurrent_bytes, recurrent_kernels
from capplan.serving.sparse_plan import score_bytes, sparse_kernels, sparse_read_bytes
from capplan.serving.step_plan import AttentionLayers, ExpertLayers, StepPlan
from capplan.serving.work import Work

Kernel = tuple[Value, Value, Value, Value]
"""(how many, floor, streaming, computing) of equal kernels [s]."""


def exchange_elements(plan: StepPlan, work: Work, layers: ExpertLayers, rows: Value) -> tuple[Value, Value]:
    """Elements the busiest GPU sends to experts inside its node and outside it, one layer, one way.

    The exchange for few tokens sends every copy to its GPU; what the busiest expert rank receives may exceed what
    any rank sends. The one for many sends a token once to each node that wants it, where NVLink passes it on.
    """
    node, nodes = plan.expert_group.gpus, plan.expert_group.nodes
    gpus, tokens = node * nodes, work.rows / plan.layout.tp
    if not work.prefill:
        copies = min(layers.top_k * layers.shards, gpus)
        elements = plan.hidden_size * _ops.maximum(tokens * copies, rows)
        return elements * (node - 1) / gpus, elements * (gpus - node) / gpus
    elements = plan.hidden_size * tokens * work.skew
    near = min(collectives.distinct_destinations(layers.ranks, layers.top_k) * layers.shards, gpus)
    far = collectives.distinct_destinations(nodes, layers.top_k) if nodes > 1 else 0.0
    return elements * near * (node - 1) / node, elements * far * (nodes - 1) / nodes


def logits_gather(plan: StepPlan, work: Work) -> dict[str, Any]:
    """Arguments of the exchange that collects the logits of a tensor-parallel lm_head."""
    gathered = work.head_rows * plan.logits_bytes_per_row
    return _exchange(plan, gathered, plan.tensor_group.gpus, plan.tensor_group.nodes)


def _exchange(plan: StepPlan, gathered: Value, gpus: int, nodes: int) -> dict[str, Any]:
    kernels, all_gpus = plan.kernels, gpus * nodes
    return {
        "intranode_bytes": gathered * (gpus - 1) / all_gpus,
        "internode_bytes": gathered * (all_gpus - gpus) / all_gpus,
        "intranode_bandwidth": kernels.all_reduce_bandwidth,
        "internode_bandwidth": kernels.internode_bandwidth,
        "floor_seconds": kernels.internode_floor_seconds if nodes > 1 else plan.all_reduce_floor_seconds,
    }


def stage_send(plan: StepPlan, work: Work) -> dict[str, Any]:
    """Arguments of the exchange that hands hidden states to the next pipeline stage."""
    sent, near = work.rows * ACTIVATION_BYTES * plan.hidden_size / plan.layout.tp, plan.stages_share_a_node
    kernels = plan.kernels
    return {
        "intranode_bytes": sent if near else 0.0 * sent,
        "internode_bytes": 0.0 * sent if near else sent,
        "intranode_bandwidth": kernels.all_reduce_bandwidth,
        "internode_bandwidth": kernels.internode_bandwidth,
        "floor_seconds": kernels.all_reduce_floor_seconds if near else kernels.internode_floor_seconds,
    }


def link_bytes(plan: StepPlan, work: Work) -> dict[str, Value]:
    """Bytes of one pass on the busiest GPU by link [B]."""
    zero = 0.0 * work.rows
    near, far = _network_bytes(plan, work)
    scale_up = "pcie" if plan.hardware.scale_up.name.lower().startswith("pcie") else "nvlink"
    totals = {"hbm": hbm_bytes(plan, work), "nvlink": zero, "pcie": zero, "nic": far + zero}
    totals[scale_up] = near + zero
    return totals


def hbm_bytes(plan: StepPlan, work: Work) -> Value:
    """Weights, cache, recurrent states, experts and activations of one pass [B]."""
    traffic = plan.traffic
    total = traffic.weight_bytes + traffic.bytes_per_row * work.rows
    total = total + traffic.head_weight_bytes + traffic.head_bytes_per_row * work.head_rows
    total = total + kv_read_bytes(plan, work) + kv_written_bytes(plan, work) + score_bytes(work, plan.sparse)
    total = total + recurrent_bytes(work, plan.recurrences)
    for layers in plan.mixtures:
        rows, distinct = mixture_load(layers, work)
        total = total + layers.count * (distinct * layers.expert_bytes + rows * layers.row_bytes)
    return total


def kv_read_bytes(plan: StepPlan, work: Work) -> Value:
    """Cache read by one pass: what the sequences hold before it [B]."""
    total: Value = sparse_read_bytes(work, plan.sparse)
    for layer in plan.attentions:
        tokens = held_tokens(work.cached_tokens, layer.window) / layer.context_parallel
        total = total + layer.count * work.sequences * tokens * layer.kv_bytes_per_token
    return total


def kv_written_bytes(plan: StepPlan, work: Work) -> Value:
    """Cache the new tokens of one pass add [B]."""
    storing = (layer for layer in plan.attentions if layer.stores_kv)
    dense = sum(layer.count * layer.kv_bytes_per_token / layer.context_parallel for layer in storing)
    sparse = sum(layer.count * layer.written_bytes_per_token / layer.context_parallel for layer in plan.sparse)
    return (dense + sparse) * work.rows


def context_parallel_bytes(plan: StepPlan, work: Work) -> Value:
    """Queries and outputs one GPU sends in a pass under decode context parallelism [B]."""
    dense = sum(layer.count * layer.exchange_bytes_per_row for layer in plan.attentions)
    return (dense + sum(layer.count * layer.exchange_bytes_per_row for layer in plan.sparse)) * work.rows


def mixture_load(layers: ExpertLayers, work: Work) -> tuple[Value, Value]:
    """Token-expert pairs and distinct experts on the busiest expert-parallel rank."""
    rows = experts.busiest_rank_rows(work.all_tokens * layers.top_k, layers.experts, layers.ranks, work.skew)
    distinct = experts.distinct_experts(work.all_tokens, layers.experts, layers.top_k)
    return rows, experts.busiest_rank_distinct(distinct, layers.experts, layers.ranks)


def _network_bytes(plan: StepPlan, work: Work) -> tuple[Value, Value]:
    near: Value = 0.0
    far: Value = 0.0
    if plan.layout.tp > 1:
        group, message = plan.tensor_group, ACTIVATION_BYTES * plan.hidden_size * work.rows
        gather = logits_gather(plan, work)
        near = plan.all_reduces * collectives.all_reduce_bytes(message, group.gpus) + gather["intranode_bytes"]
        far = plan.all_reduces * collectives.all_reduce_bytes(message / group.gpus, group.nodes)
        far = far + gather["internode_bytes"]
    if plan.layout.dcp > 1 and not work.prefill:
        near = near + context_parallel_bytes(plan, work)
    if plan.layout.pp > 1:
        send = stage_send(plan, work)
        near, far = near + send["intranode_bytes"], far + send["internode_bytes"]
    if plan.layout.dp > 1:
        for layers in plan.mixtures:
            inside, outside = exchange_elements(plan, work, layers, mixture_load(layers, work)[0])
            width = layers.count * (layers.dispatch_width + ACTIVATION_BYTES)
            near, far = near + inside * width, far + outside * width
    return near, far


def time_shares(plan: StepPlan, work: Work) -> dict[str, Value]:
    """Seconds of one pass on the GPU by what they are spent on: ``hbm``, ``compute``, ``latency`` [s].

    A kernel's floor is latency; the rest of it is booked to the longer of streaming and computing.
    """
    zero = 0.0 * work.rows
    shares = {"hbm": zero, "compute": zero, "latency": zero}
    for count, floor, stream, compute in _kernels(plan, work):
        bound = count * kernel_seconds(0.0, stream, compute)
        streams = stream >= compute
        shares["latency"] = shares["latency"] + count * floor
        shares["hbm"] = shares["hbm"] + _ops.where(streams, bound, 0.0 * bound)
        shares["compute"] = shares["compute"] + _ops.where(streams, 0.0 * bound, bound)
    return shares


def _kernels(plan: StepPlan, work: Work) -> Iterator[Kernel]:
    latent_rows = work.rows + (work.sequences * work.cached_tokens if work.prefill else 0.0)
    latent = plan.latent_gemms if work.prefill else plan.latent_split_gemms
    yield from (_gemm(term, work.rows) for term in (*plan.gemms, plan.elementwise))
    yield from (_gemm(term, latent_rows) for term in latent)
    yield from (_gemm(term, work.head_rows) for term in (*plan.head, plan.sampling))
    yield from recurrent_kernels(work, plan.recurrences)
    yield from sparse_kernels(work, plan.sparse)
    for layer in plan.attentions:
        yield from _attention(layer, work)
    for layers in plan.mixtures:
        yield from _experts(layers, *mixture_load(layers, work))


def _gemm(term: GemmTerm, rows: Value) -> Kernel:
    count, floor, stream, stream_per_row, compute_per_row = term
    return count, floor, stream + stream_per_row * rows, compute_per_row * rows


def _attention(layer: AttentionLayers, work: Work) -> Iterator[Kernel]:
    """The kernel as if it used the whole GPU; what one multiprocessor makes it take longer is latency."""
    if work.prefill:
        yield from _context_attention(layer, work)
        return
    held = held_tokens(work.cached_tokens, layer.window) / layer.context_parallel
    tokens = work.sequences * (held + layer.ramp_tokens)
    stream = tokens * layer.kv_bytes_per_token / layer.stream_bandwidth
    compute = tokens * (work.new_tokens * layer.flops_per_pair / layer.flops_per_second)
    walked = kernel_seconds(0.0, stream, _ops.maximum(compute, held * layer.token_seconds))
    yield layer.count, layer.floor_seconds + walked - kernel_seconds(0.0, stream, compute), stream, compute


def _context_attention(layer: AttentionLayers, work: Work) -> Iterator[Kernel]:
    pairs = causal_pairs(work.new_tokens, work.cached_tokens, layer.window)
    compute = work.sequences * pairs * layer.context_flops_per_pair / layer.context_flops_per_second
    keys = work.new_tokens + work.cached_tokens
    moved = keys * layer.context_kv_bytes_per_token + work.new_tokens * layer.context_query_bytes_per_token
    walk = layer.context_token_seconds * held_tokens(keys, layer.window)
    walked = kernel_seconds(layer.context_floor_seconds, compute, walk) - compute
    yield layer.count, walked, 0.0 * compute, compute
    yield layer.count, 0.0, work.sequences * moved / layer.context_stream_bandwidth, 0.0 * compute


def _experts(layers: ExpertLayers, rows: Value, distinct: Value) -> Iterator[Kernel]:
    for floor, per_expert, per_row, compute_per_row, padding in layers.terms:
        yield layers.count, floor, distinct * per_expert + rows * per_row, (rows + distinct * padding) * compute_per_row
