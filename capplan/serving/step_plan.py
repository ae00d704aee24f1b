"""A forward pass on the busiest GPU as numbers: what kinds of kernels, how many, with which constants."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from capplan.cards.hardware import Hardware, Kernels
from capplan.formulas.experts import ExpertTerm
from capplan.formulas.gemm import GemmTerm
from capplan.serving.layout import Layout
from capplan.serving.recurrent_plan import RecurrentLayers
from capplan.serving.sparse_plan import SparseLayers


@dataclass(frozen=True)
class AttentionLayers:
    """Equal attention cores: how many, and the constants of their decode and prefill kernels."""

    count: float
    window: int | None
    context_parallel: int
    exchange_bytes_per_row: float
    """Queries gathered and outputs scattered over decode context parallelism, sent by one GPU."""
    kv_bytes_per_token: float
    stores_kv: bool
    """False where the layer reads the cache of an earlier one."""
    flops_per_pair: float
    floor_seconds: float
    stream_bandwidth: float
    flops_per_second: float
    ramp_tokens: float
    token_seconds: float
    context_kv_bytes_per_token: float
    context_query_bytes_per_token: float
    context_flops_per_pair: float
    context_floor_seconds: float
    context_stream_bandwidth: float
    context_flops_per_second: float
    context_token_seconds: float


@dataclass(frozen=True)
class ExpertLayers:
    """Equal layers of routed experts: how many, how they are spread, and the constants of their products."""

    count: float
    experts: int
    """All experts of a layer, copies of busy ones included."""
    top_k: int
    ranks: int
    shards: int
    """GPUs that split one expert among them."""
    terms: tuple[ExpertTerm, ...]
    expert_bytes: float
    row_bytes: float
    dispatch_width: int
    """Bytes of an element on its way to an expert."""


@dataclass(frozen=True)
class Traffic:
    """HBM bytes a pass moves besides the KV cache and the experts."""

    weight_bytes: float
    bytes_per_row: float
    head_weight_bytes: float
    head_bytes_per_row: float


@dataclass(frozen=True)
class Group:
    """GPUs that exchange data: how many in one scale-up domain, and how many domains."""

    gpus: int
    nodes: int


@dataclass(frozen=True)
class StepPlan:
    """One forward pass on the busiest GPU."""

    layout: Layout
    hardware: Hardware
    hidden_size: int
    layers: float
    """Those with a mixer or a feed-forward alone count by their share of the small kernels of a layer."""
    gemms: tuple[GemmTerm, ...]
    latent_gemms: tuple[GemmTerm, ...]
    """Products that expand the latents of MLA: in prefill also those of cached tokens."""
    latent_split_gemms: tuple[GemmTerm, ...]
    """The same as decode runs them, absorbed into query and output: two products, one floor more."""
    attentions: tuple[AttentionLayers, ...]
    recurrences: tuple[RecurrentLayers, ...]
    sparse: tuple[SparseLayers, ...]
    mixtures: tuple[ExpertLayers, ...]
    elementwise: GemmTerm
    head: tuple[GemmTerm, ...]
    sampling: GemmTerm
    all_reduces: float
    all_reduce_floor_seconds: float
    all_reduce_floor_per_gpu_seconds: float
    logits_bytes_per_row: float
    engine_gap_seconds: float
    engine_gap_per_sequence_seconds: float
    traffic: Traffic
    tensor_group: Group
    expert_group: Group
    stages_share_a_node: bool

    @cached_property
    def indexed(self) -> tuple[SparseLayers, ...]:
        """Sparse layers with an indexer of their own."""
        return tuple(layer for layer in self.sparse if layer.index_flops_per_pair)

    @property
    def kernels(self) -> Kernels:
        """Kernel constants of the GPU."""
        return self.hardware.kernels


def group_of(gpus: int, hardware: Hardware) -> Group:
    """A group of that many GPUs over as few scale-up domains as hold it."""
    nodes = -(-gpus // hardware.scale_up.gpus)
    return Group(gpus // nodes if gpus % nodes == 0 else hardware.scale_up.gpus, nodes)
