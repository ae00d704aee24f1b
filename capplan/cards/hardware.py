"""A GPU as the formulas see it: data-sheet numbers, and the few constants of its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any


@dataclass(frozen=True)
class Fabric:
    """One kind of link. ``bandwidth`` is one GPU's, in one direction, as the data sheet has it [B/s]."""

    name: str
    bandwidth: float
    gpus: int = 1
    """GPUs that reach each other over it (72 in one NVL72 rack; 1 where it is the GPU's own)."""


@dataclass(frozen=True)
class Kernels:
    """Constants of the kernel formulas, each measured, fitted or borrowed from the family (then ``assumed``).

    Seconds, B/s, FLOP/s and plain numbers. See ``capplan.formulas.roofline`` for what each one does.
    """

    gemm_floor_seconds: float
    gemm_stream_bandwidth: float
    gemm_narrow_outputs: float
    gemm_flops_bf16: float
    gemm_flops_fp8: float
    gemm_flops_fp4: float
    gemm_flops_fp8_block: float
    """Of fp8 in blocks of 128 x 128, whose scales are applied between partial sums."""
    attention_floor_seconds: float
    attention_stream_bandwidth: float
    attention_stream_bandwidth_fp8: float
    mla_floor_seconds: float
    mla_stream_bandwidth: float
    mla_decode_flops: float
    context_attention_floor_seconds: float
    context_attention_flops: float
    context_attention_stream_bandwidth: float
    """Rate at which an engine loads queries, keys and values and stores outputs, which no arithmetic hides."""
    context_mla_stream_bandwidth: float
    """The same for latents expanded to heads."""
    moe_floor_seconds: float
    moe_stream_bandwidth: float
    moe_row_passes: float
    """How many times over the bytes of a token-expert pair are moved around its products."""
    moe_quantise_passes: float
    """The same, beyond it, where activations are quantised a group at a time in front of each product."""
    moe_flops_bf16: float
    moe_flops_fp8: float
    moe_flops_fp4: float
    elementwise_floor_seconds: float
    all_reduce_floor_seconds: float
    all_reduce_floor_per_gpu_seconds: float
    all_reduce_bandwidth: float
    dispatch_floor_seconds: float
    dispatch_floor_per_doubling_seconds: float
    """What a dispatch needs longer to start over twice as many nodes."""
    combine_floor_seconds: float
    dispatch_bandwidth: float
    internode_floor_seconds: float
    internode_bandwidth: float
    attention_ramp_tokens: float = 0.0
    attention_token_seconds: float = 0.0
    """Time of one cached token of a lone sequence, which cannot use the whole GPU; the same for MLA below."""
    mla_token_seconds: float = 0.0
    context_attention_token_seconds: float = 0.0
    """Time of one key of 128 elements, and its value, for the last tile of queries, on one multiprocessor."""
    moe_narrow_outputs: float = 0.0
    moe_padding_rows: float = 0.0
    moe_padding_rows_bf16: float = 0.0
    """The same where experts are multiplied in bf16, whose tiles are smaller."""
    all_reduce_two_step_floor_seconds: float = 0.0
    exchange_compute_share: float = 0.0
    """Multiprocessors the exchange for many tokens takes away from computation it overlaps with."""
    recurrence_floor_seconds: float = 0.0
    recurrence_stream_bandwidth: float = 0.0
    """Of recurrent states, read and written; 0 on a card without constants of recurrent layers."""
    recurrence_flops: float = 0.0
    """Rate of a chunked scan, counted on its products with the state alone."""
    kimi_delta_flops: float = 0.0
    recurrence_ramp_tokens: float = 0.0
    recurrence_token_seconds: float = 0.0
    """Time of one token of a lone prompt in a scan whose chunks follow each other; also that of kimi delta below."""
    kimi_delta_token_seconds: float = 0.0
    context_recurrence_floor_seconds: float = 0.0
    convolution_stream_bandwidth: float = 0.0
    scan_element_seconds: float = 0.0
    """Time of one state element and token in the selective scan of Mamba, which uses no matrix unit."""
    indexer_floor_seconds: float = 0.0
    indexer_flops: float = 0.0
    """Of the scores of an indexer; 0 on a card without constants of sparse attention."""
    indexer_score_bandwidth: float = 0.0
    indexer_entry_seconds: float = 0.0
    sparse_stream_bandwidth: float = 0.0
    sparse_attention_flops: float = 0.0
    sparse_narrow_cache_flops: float = 0.0
    """The same over an 8-bit cache, which is widened first."""
    block_sparse_flops: float = 0.0
    sustained_share: float = 1.0
    """Arithmetic rate of a long run under the power limit over that of a short one; 1 where nobody measured it."""

    def slowed(self, factor: float) -> Kernels:
        """The same with products, attention and experts taking ``factor`` times as long, as they do inside an engine.

        The constants of all other kernels, and of exchanges, are those of engines already.
        """
        changed = {}
        for constant in fields(self):
            name, value = constant.name, getattr(self, constant.name)
            if not name.startswith(_SLOWED) or not value:
                continue
            if "_seconds" in name:
                changed[name] = value * factor
            elif "_bandwidth" in name or "_flops" in name:
                changed[name] = value / factor
        return replace(self, **changed)


_SLOWED = ("gemm", "attention", "mla", "context_attention", "context_mla", "moe")


BAND_KINDS = ("decode_kernels", "decode_dense", "decode_mixture", "prefill", "ttft")
"""Kinds of predicted time with an error band of their own: a decode step of bare kernels; one with an engine, of a
dense model and of a mixture of experts; a prefill pass; a time to first token."""


@dataclass(frozen=True)
class Band:
    """An 80 % band around a prediction: measured over predicted at its 10th and 90th percentile [1]."""

    low: float
    high: float
    assumed: bool = False
    """Whether an end of it is no figure of measured rows."""


@dataclass(frozen=True)
class Hardware:
    """One GPU kind and the node around it. All numbers in base units, for one GPU."""

    name: str
    vendor: str
    architecture: str
    hbm_bytes: float
    """Bytes the driver reports, not the marketing figure."""
    hbm_bandwidth: float
    peak_flops: dict[str, float] = field(hash=False)
    """Dense peak by arithmetic: ``bf16``, ``fp8``, ``fp4`` where the GPU has it."""
    scale_up: Fabric
    """NVLink, Infinity Fabric or PCIe: what tensor parallelism uses."""
    nic: Fabric
    """InfiniBand or RoCE, a GPU's share."""
    pcie_bandwidth: float
    gpus_per_node: int
    kernels: Kernels
    bands: Mapping[str, Band] = field(default_factory=dict, hash=False)
    """Error band of each of :data:`BAND_KINDS` that is known."""
    price_per_gpu_hour: float | None = None
    aliases: tuple[str, ...] = ()
    sources: Mapping[str, Any] = field(default_factory=dict, compare=False, hash=False, repr=False)
    """Dotted key of the card -> :class:`capplan.cards.number.Number`, every number of the card."""
    file: str = field(default="", compare=False)
