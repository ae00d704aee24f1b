"""Layers that read a part of their cache: their constants, their seconds, the bytes they move."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from capplan.cards.hardware import Hardware
from capplan.cards.kv import KvStream, kv_streams, kv_width_bytes
from capplan.cards.model import Attention
from capplan.formulas import _ops
from capplan.formulas._ops import Value
from capplan.formulas.attention_time import attention_flops_per_pair, causal_pairs
from capplan.formulas.gemm import ACTIVATION_BYTES
from capplan.formulas.kv_cache import held_tokens
from capplan.formulas.sparse_attention_time import (
    SCORE_BYTES,
    indexer_seconds,
    selected_pairs,
    sparse_attention_seconds,
)
from capplan.serving.layout import Layout
from capplan.serving.measured import measured
from capplan.serving.work import Work

HEAD_TILE = 64
"""Query heads one multiprocessor works on: sparse kernels over latents pad fewer to as many."""


BLOCK_TOKENS = 128
"""Tokens of a block that is chosen as a whole, with one score kept of it (MiniMax-M3)."""

LATENT_PASSES = 6
"""Times a query or an output of latent width moves: absorbed, rotated and copied to a tile, or rotated and quantised,
each written and read, beside the core itself. Counted in the kernels of vLLM and SGLang."""


@dataclass(frozen=True)
class SparseLayers:
    """Equal layers that read the tokens of a window, and entries of all tokens that were chosen.

    An entry is a token, or stands for ``tokens_per_entry`` of them; 0 where there is only the window.
    """

    count: float
    window: int | None
    tokens_per_entry: int
    selected_entries: int | None
    context_parallel: int
    exchange_bytes_per_row: float
    written_bytes_per_token: float
    pair_bytes: float
    flops_per_pair: float
    floor_seconds: float
    context_floor_seconds: float
    stream_bandwidth: float
    flops_per_second: float
    context_flops_per_second: float
    index_flops_per_pair: float
    """0 where the layer has no indexer: it reads all entries, or those an earlier layer chose."""
    index_key_bytes: float
    index_floor_seconds: float
    index_stream_bandwidth: float
    index_score_bandwidth: float
    index_flops_per_second: float
    index_entry_seconds: float


def is_sparse(attention: Attention) -> bool:
    """Whether a layer reads less than it caches, or caches less than its tokens."""
    return attention.kind == "compressed" or attention.indexer is not None or attention.selected_tokens > 0


def sparse_layers(attention: Attention, hardware: Hardware, layout: Layout, kv_dtype: str) -> SparseLayers:
    """One such layer on one GPU of a layout.

    Raises
    ------
    InputError : a hardware card without the constants of sparse attention
    """
    streams, kernels = kv_streams(attention, kv_dtype, tensor_parallel=layout.tp), hardware.kernels
    compressed, gqa = attention.kind == "compressed", attention.kind == "gqa"
    key, value = core_widths(attention)
    heads = -(-attention.n_heads // layout.tp) * layout.dcp
    exchanged = ACTIVATION_BYTES * heads * (key + value) * (layout.dcp - 1) / layout.dcp
    return SparseLayers(
        count=1.0,
        window=attention.window if compressed else 0,
        tokens_per_entry=attention.compress_ratio if compressed else 1,
        selected_entries=attention.selected_tokens or None,
        context_parallel=layout.dcp,
        exchange_bytes_per_row=exchanged,
        written_bytes_per_token=sum(stream.bytes_per_entry / stream.tokens_per_entry for stream in streams),
        pair_bytes=streams[0].bytes_per_entry,
        flops_per_pair=attention_flops_per_pair(heads if gqa else max(heads, HEAD_TILE), key, value),
        floor_seconds=kernels.attention_floor_seconds if gqa else kernels.mla_floor_seconds,
        context_floor_seconds=kernels.context_attention_floor_seconds,
        stream_bandwidth=measured(hardware, "sparse_stream_bandwidth"),
        flops_per_second=_rate(attention, hardware, narrow=kv_width_bytes(kv_dtype) < 2),
        context_flops_per_second=_rate(
            attention,
            hardware,
            narrow=attention.kind == "mla" and kv_width_bytes(kv_dtype) < 2 and 2 * heads < HEAD_TILE,
        ),
        **_indexer(attention, hardware, streams),
    )


def core_widths(attention: Attention) -> tuple[int, int]:
    """Elements of a key and of a value as the core sees them: latents are not expanded, in a prefill neither."""
    if attention.kind == "mla":
        return attention.kv_lora_rank + attention.qk_rope_head_dim, attention.kv_lora_rank
    return attention.head_dim, attention.value_head_dim


def moved_elements(attention: Attention, ways: int) -> float:
    """Elements of queries and outputs a token moves between the kernels of one layer, on one of ``ways`` GPUs."""
    heads, width = -(-attention.n_heads // ways), sum(core_widths(attention))
    return 2.0 * heads * width if attention.kind == "gqa" else LATENT_PASSES * max(heads, HEAD_TILE) * width


def _rate(attention: Attention, hardware: Hardware, *, narrow: bool) -> float:
    """Kernels over latents multiply in 16 bits; decode widens an 8-bit cache as it goes, and so does a prefill with
    few heads, to which widening all of it beforehand is not worth it (vLLM)."""
    if attention.kind == "gqa":
        return measured(hardware, "block_sparse_flops")
    return measured(hardware, "sparse_narrow_cache_flops" if narrow else "sparse_attention_flops")


def _indexer(attention: Attention, hardware: Hardware, streams: tuple[KvStream, ...]) -> dict[str, float]:
    indexer, kernels = attention.indexer, hardware.kernels
    blocks = attention.kind == "gqa"
    return {
        "index_flops_per_pair": 2.0 * indexer.n_heads * indexer.head_dim if indexer is not None else 0.0,
        "index_key_bytes": streams[-1].bytes_per_entry if indexer is not None else 0.0,
        "index_floor_seconds": (
            2 * kernels.elementwise_floor_seconds if blocks else measured(hardware, "indexer_floor_seconds")
        ),
        "index_stream_bandwidth": kernels.attention_stream_bandwidth,
        "index_score_bandwidth": measured(hardware, "indexer_score_bandwidth") * (BLOCK_TOKENS if blocks else 1),
        "index_flops_per_second": measured(hardware, "indexer_flops"),
        "index_entry_seconds": (
            kernels.attention_token_seconds if blocks else measured(hardware, "indexer_entry_seconds")
        ),
    }


def index_work(layer: SparseLayers, work: Work) -> tuple[Value, Value]:
    """Query-entry pairs one sequence scores, and index keys it holds, on one GPU."""
    ratio, ways = layer.tokens_per_entry, layer.context_parallel if not work.prefill else 1
    if work.prefill:
        pairs = causal_pairs(work.new_tokens, work.cached_tokens) / ratio
        return pairs, (work.cached_tokens + work.new_tokens) / ratio
    entries = work.cached_tokens / (ratio * ways)
    return work.new_tokens * entries, entries


def core_pairs(layer: SparseLayers, work: Work) -> Value:
    """Query-entry pairs the core of one sequence computes, on one GPU."""
    ratio, most = layer.tokens_per_entry, layer.selected_entries
    new, cached = work.new_tokens, work.cached_tokens
    if work.prefill:
        pairs = causal_pairs(new, cached, layer.window) if layer.window else 0.0 * new
        return pairs + selected_pairs(new, cached, ratio, most) if ratio else pairs
    tokens = held_tokens(cached, layer.window) if layer.window else 0.0 * cached
    if ratio:
        tokens = tokens + _ops.minimum(cached / ratio, most) if most else tokens + cached / ratio
    return new * tokens / layer.context_parallel


def indexers_seconds(work: Work, layers: tuple[SparseLayers, ...]) -> Value:
    """Indexers of all layers [s]."""
    total: Value = 0.0
    for layer in layers:
        if layer.index_flops_per_pair:
            pairs, entries = index_work(layer, work)
            total = total + layer.count * indexer_seconds(
                work.sequences,
                pairs,
                entries,
                layer.index_key_bytes,
                layer.index_flops_per_pair,
                layer.index_floor_seconds,
                layer.index_stream_bandwidth,
                layer.index_score_bandwidth,
                layer.index_flops_per_second,
                layer.index_entry_seconds,
            )
    return total


def sparse_cores_seconds(work: Work, layers: tuple[SparseLayers, ...]) -> Value:
    """Cores of all layers [s]."""
    total: Value = 0.0
    for layer in layers:
        total = total + layer.count * sparse_attention_seconds(
            work.sequences,
            core_pairs(layer, work),
            0.0 if work.prefill else layer.pair_bytes,
            layer.flops_per_pair,
            layer.context_floor_seconds if work.prefill else layer.floor_seconds,
            layer.stream_bandwidth,
            layer.context_flops_per_second if work.prefill else layer.flops_per_second,
        )
    return total


def sparse_read_bytes(work: Work, layers: tuple[SparseLayers, ...]) -> Value:
    """Cache read by one pass: index keys, and what was chosen; a prefill reads what it holds once [B]."""
    total: Value = 0.0
    for layer in layers:
        if work.prefill:
            held = work.cached_tokens * layer.written_bytes_per_token
        else:
            held = core_pairs(layer, work) * layer.pair_bytes
            if layer.index_flops_per_pair:
                held = held + index_work(layer, work)[1] * layer.index_key_bytes
        total = total + layer.count * work.sequences * held
    return total


def score_bytes(work: Work, layers: tuple[SparseLayers, ...]) -> Value:
    """Scores the indexers of one pass write and read again [B]."""
    scoring = (layer for layer in layers if layer.index_flops_per_pair)
    return sum(layer.count * work.sequences * SCORE_BYTES * index_work(layer, work)[0] for layer in scoring)


def sparse_kernels(work: Work, layers: tuple[SparseLayers, ...]) -> Iterator[tuple[Value, Value, Value, Value]]:
    """(how many, floor, streaming, computing) of indexers and cores [s]."""
    for layer in layers:
        pairs = work.sequences * core_pairs(layer, work)
        stream = 0.0 * pairs if work.prefill else pairs * layer.pair_bytes / layer.stream_bandwidth
        floor = layer.context_floor_seconds if work.prefill else layer.floor_seconds
        rate = layer.context_flops_per_second if work.prefill else layer.flops_per_second
        yield layer.count, floor, stream, pairs * layer.flops_per_pair / rate
        if layer.index_flops_per_pair:
            yield from _index_kernels(layer, work)


def _index_kernels(layer: SparseLayers, work: Work) -> Iterator[tuple[Value, Value, Value, Value]]:
    pairs, entries = index_work(layer, work)
    stream = work.sequences * entries * layer.index_key_bytes / layer.index_stream_bandwidth
    scored = work.sequences * pairs * SCORE_BYTES / layer.index_score_bandwidth
    busy = work.sequences * pairs * layer.index_flops_per_pair / layer.index_flops_per_second
    yield layer.count, layer.index_floor_seconds, stream, _ops.maximum(busy, entries * layer.index_entry_seconds)
    yield layer.count, 0.0, scored, 0.0 * scored
