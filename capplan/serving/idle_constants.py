"""Which kernel constants cannot matter for a model and layout: nobody wants to read what an unused one assumes."""

from __future__ import annotations

from collections.abc import Iterator

from capplan.cards.hardware import Hardware
from capplan.cards.kv import kv_width_bytes
from capplan.cards.model import Matmul, Model
from capplan.serving.layout import Layout
from capplan.serving.recurrent_plan import LONE_TOKEN_SECONDS
from capplan.serving.sparse_plan import is_sparse

_ARITHMETICS = ("bf16", "fp8", "fp4")
_ALL_REDUCE = (
    "all_reduce_floor_seconds",
    "all_reduce_floor_per_gpu_seconds",
    "all_reduce_two_step_floor_seconds",
    "all_reduce_bandwidth",
)
_EXCHANGE = ("dispatch_floor_seconds", "combine_floor_seconds", "dispatch_bandwidth", "exchange_compute_share")
_RECURRENCE = (
    "recurrence_floor_seconds",
    "recurrence_stream_bandwidth",
    "recurrence_ramp_tokens",
    "context_recurrence_floor_seconds",
)
_MIXTURE = ("moe_floor_seconds", "moe_stream_bandwidth", "moe_narrow_outputs", "moe_row_passes")


def idle_constants(model: Model, hardware: Hardware, layout: Layout, kv_dtype: str, *, bare: bool = True) -> set[str]:
    """Names of the kernel constants that no step or prefill of this kind uses.

    Parameters
    ----------
    model : with the weight formats to be used
    hardware, layout : where it runs
    kv_dtype : of the cache
    bare : kernels alone, without an engine
    """
    return {
        *_idle_attention(model, kv_dtype),
        *_idle_sparse(model, kv_dtype),
        *_idle_recurrence(model),
        *_idle_arithmetic(model),
        *_idle_exchanges(model, hardware, layout),
        *_idle_around(model, layout, bare=bare),
    }


def _idle_around(model: Model, layout: Layout, *, bare: bool) -> Iterator[str]:
    """What engines add around prefill attention, and what is left of it where an exchange handles the pairs."""
    kinds = {g.attention.kind for g in model.layers if g.attention is not None and not is_sparse(g.attention)}
    if bare or "gqa" not in kinds:
        yield "context_attention_stream_bandwidth"
    if bare or "mla" not in kinds:
        yield "context_mla_stream_bandwidth"
    if layout.dp > 1:
        yield "moe_row_passes"
    if layout.dp > 1 or not any(matmul.format.scaled_in_blocks for matmul in _expert_matmuls(model)):
        yield "moe_quantise_passes"


def _idle_attention(model: Model, kv_dtype: str) -> Iterator[str]:
    attentions = [group.attention for group in model.layers if group.attention is not None]
    kinds = {attention.kind for attention in attentions}
    if not kinds & {"mla", "compressed"}:
        yield "mla_floor_seconds"
    if not any(attention.kind == "mla" and not is_sparse(attention) for attention in attentions):
        yield from ("mla_stream_bandwidth", "mla_decode_flops", "mla_token_seconds")
    if "gqa" not in kinds:
        yield from ("attention_floor_seconds", "attention_token_seconds")
    if kv_width_bytes(kv_dtype) >= 2:
        yield "attention_stream_bandwidth_fp8"


def _idle_sparse(model: Model, kv_dtype: str) -> Iterator[str]:
    layers = [g.attention for g in model.layers if g.attention is not None and is_sparse(g.attention)]
    latent = [attention for attention in layers if attention.kind != "gqa"]
    if not layers:
        yield "sparse_stream_bandwidth"
    if not any(attention.indexer is not None for attention in layers):
        yield from ("indexer_flops", "indexer_score_bandwidth")
    if not any(attention.indexer is not None for attention in latent):
        yield from ("indexer_floor_seconds", "indexer_entry_seconds")
    if not latent:
        yield "sparse_attention_flops"
    if not latent or kv_width_bytes(kv_dtype) >= 2:
        yield "sparse_narrow_cache_flops"
    if len(latent) == len(layers):
        yield "block_sparse_flops"


def _idle_recurrence(model: Model) -> Iterator[str]:
    kinds = {group.recurrence.kind for group in model.layers if group.recurrence is not None}
    if not kinds:
        yield "convolution_stream_bandwidth"
    if not kinds - {"short_conv"}:
        yield from _RECURRENCE
    if "mamba" not in kinds:
        yield "scan_element_seconds"
    if "kimi_delta" not in kinds:
        yield "kimi_delta_flops"
    yield from (constant for kind, constant in LONE_TOKEN_SECONDS.items() if kind not in kinds)
    if not kinds - {"short_conv", "mamba", "kimi_delta"}:
        yield "recurrence_flops"


def _idle_arithmetic(model: Model) -> Iterator[str]:
    experts = {matmul.format.compute for matmul in _expert_matmuls(model)}
    blocked = any(matmul.format.scaled_in_blocks for matmul in _other_matmuls(model))
    others = {matmul.format.compute for matmul in _other_matmuls(model) if not matmul.format.scaled_in_blocks}
    yield from (f"gemm_flops_{kind}" for kind in _ARITHMETICS if kind not in others)
    yield from (f"moe_flops_{kind}" for kind in _ARITHMETICS if kind not in experts)
    if not blocked:
        yield "gemm_flops_fp8_block"
    if "bf16" not in experts:
        yield "moe_padding_rows_bf16"
    if not experts - {"bf16"}:
        yield "moe_padding_rows"
    if not experts:
        yield from _MIXTURE


def _idle_exchanges(model: Model, hardware: Hardware, layout: Layout) -> Iterator[str]:
    if layout.gpus <= hardware.scale_up.gpus:
        yield from ("internode_floor_seconds", "internode_bandwidth")
    if layout.tp == 1 and layout.pp == 1:
        yield from _ALL_REDUCE
    if layout.dp == 1 or not model.is_mixture:
        yield from _EXCHANGE
    elif layout.tp * layout.dp > hardware.scale_up.gpus:
        yield "combine_floor_seconds"
    if layout.dp == 1 or not model.is_mixture or layout.tp * layout.dp <= hardware.scale_up.gpus:
        yield "dispatch_floor_per_doubling_seconds"


def _expert_matmuls(model: Model) -> Iterator[Matmul]:
    for group in model.layers:
        if group.feed_forward is not None:
            yield from group.feed_forward.expert_matmuls


def _other_matmuls(model: Model) -> Iterator[Matmul]:
    yield model.lm_head
    for group in model.layers:
        yield from group.matmuls
        yield from group.attention.matmuls if group.attention is not None else ()
        yield from group.feed_forward.matmuls if group.feed_forward is not None else ()
