"""The product's kernel formulas over the rows of a measured table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from kernel_tables import KernelTable

from capplan.cards.hardware import Kernels
from capplan.formulas.attention_time import (
    attention_flops_per_pair,
    context_attention_seconds,
    decode_attention_seconds,
)
from capplan.formulas.collectives import all_reduce_seconds, dispatch_floor_seconds, exchange_seconds
from capplan.formulas.experts import expert_term, experts_seconds, handling_term
from capplan.formulas.gemm import gemm_term, gemms_seconds

HEAD = 128
"""Width of a head in the grouped-query tables."""
MLA_KEY, MLA_VALUE, MLA_ROPE = 512, 512, 64
EXPANDED_KEY, EXPANDED_VALUE = 192, 128
WIDTHS = {"bf16": 2.0, "fp8": 1.0, "fp8_block": 1.0 + 4 / 128**2, "fp4": 0.5 + 1 / 16, "mxfp4": 0.5 + 1 / 32}
"""Bytes of a stored element, scales included."""
ARITHMETIC = {"bf16": "bf16", "fp8": "fp8", "fp8_block": "fp8", "fp4": "fp4", "mxfp4": "bf16"}
QUANTISE_BYTES = {"fp8": 8, "fp4": 8, "fp8_block": 3}
"""Moved for each activation that a table quantises first: read twice to scale a whole tensor and once to convert it, or
once for scales of groups."""
NODE = 8
"""GPUs of a node in the exchange tables."""


_SHARES = {
    "context_attention_factor": 1.0,
    "fp8_kv_share": 1.0,
    "quantise_seconds": 0.0,
    "bare": 0.0,
    "sustained": 0.0,
    "kernel_time_factor": 1.0,
}


def table_seconds(kernels: Kernels, table: KernelTable, engine_shares: dict[str, float] | None = None) -> Any:
    """Predicted seconds of every row.

    ``engine_shares`` are the engine's ``kernel_time_factor``, ``context_attention_factor`` and ``fp8_kv_share``,
    ``quantise_seconds`` of a table that quantises activations in separate kernels, ``bare`` for the kernel alone,
    which runs for a short time unless ``sustained`` is set.
    """
    shares = {**_SHARES, **(engine_shares or {})}
    kernels, group = kernels.slowed(shares["kernel_time_factor"]), table.group
    for prefix, model in _MODELS.items():
        if group.startswith(prefix):
            return model(kernels, table.columns, group.removeprefix(prefix), shares)
    raise KeyError(group)


def _gemm(kernels: Kernels, c: dict[str, Any], kind: str, shares: dict[str, float]) -> Any:
    term = gemm_term(
        c["inputs"],
        c["outputs"],
        WIDTHS[kind],
        kernels.gemm_floor_seconds,
        kernels.gemm_stream_bandwidth,
        kernels.gemm_narrow_outputs,
        getattr(kernels, f"gemm_flops_{kind}"),
    )
    seconds = gemms_seconds(c["rows"], [term])
    if not shares["quantise_seconds"]:
        return seconds
    quantised = QUANTISE_BYTES[kind] * c["rows"] * c["inputs"] / kernels.gemm_stream_bandwidth
    return seconds + shares["quantise_seconds"] + quantised


def _gqa_decode(kernels: Kernels, c: dict[str, Any], kind: str, shares: dict[str, float]) -> Any:
    wide = kind == "bf16"
    narrow = min(kernels.attention_stream_bandwidth_fp8 * shares["fp8_kv_share"], kernels.attention_stream_bandwidth)
    return decode_attention_seconds(
        c["sequences"],
        c["context"],
        1,
        c["kv_heads"] * 2 * HEAD * (2 if wide else 1),
        attention_flops_per_pair(c["heads"], HEAD, HEAD),
        kernels.attention_floor_seconds,
        kernels.attention_stream_bandwidth if wide else narrow,
        kernels.context_attention_flops * kernels.sustained_share,
        kernels.attention_ramp_tokens,
        kernels.attention_token_seconds,
    )


def _mla_decode(kernels: Kernels, c: dict[str, Any], kind: str, shares: dict[str, float]) -> Any:
    wide = kind == "bf16"
    narrow = min(kernels.attention_stream_bandwidth_fp8 * shares["fp8_kv_share"], kernels.mla_stream_bandwidth)
    return decode_attention_seconds(
        c["sequences"],
        c["context"],
        1,
        (MLA_VALUE + MLA_ROPE) * (2 if wide else 1),
        attention_flops_per_pair(c["heads"], MLA_KEY + MLA_ROPE, MLA_VALUE),
        kernels.mla_floor_seconds,
        kernels.mla_stream_bandwidth if wide else narrow,
        kernels.mla_decode_flops,
        kernels.attention_ramp_tokens,
        kernels.mla_token_seconds,
    )


def _context(kernels: Kernels, c: dict[str, Any], kind: str, shares: dict[str, float]) -> Any:
    bare, latent = bool(shares["bare"]), kind == "mla"
    key, value = (EXPANDED_KEY, EXPANDED_VALUE) if latent else (HEAD, HEAD)
    engine = kernels.context_mla_stream_bandwidth if latent else kernels.context_attention_stream_bandwidth
    return shares["context_attention_factor"] * context_attention_seconds(
        c["prompts"],
        c["tokens"],
        0.0,
        None,
        (c["heads"] if latent else c["kv_heads"]) * (key + value) * 2,
        c["heads"] * (key + value) * 2,
        attention_flops_per_pair(c["heads"], key, value),
        kernels.context_attention_floor_seconds,
        kernels.attention_stream_bandwidth if bare else engine,
        kernels.context_attention_flops * (1.0 if bare and not shares["sustained"] else kernels.sustained_share),
        kernels.context_attention_token_seconds * (key + value) / (2 * HEAD),
    )


def _moe(kernels: Kernels, c: dict[str, Any], kind: str, _shares: dict[str, float]) -> Any:
    local = c["experts"] / c["ranks"]
    pairs = np.maximum(c["tokens"] * c["top_k"] / c["ranks"], 1.0)
    distinct = np.minimum(local, np.ceil(pairs))
    padding = kernels.moe_padding_rows_bf16 if ARITHMETIC[kind] == "bf16" else kernels.moe_padding_rows
    sides = ((c["hidden"], 2 * c["width"]), (c["width"], c["hidden"]))
    terms = [
        expert_term(
            inputs,
            outputs,
            WIDTHS[kind],
            kernels.moe_floor_seconds / 2,
            kernels.moe_stream_bandwidth,
            kernels.moe_narrow_outputs,
            getattr(kernels, f"moe_flops_{ARITHMETIC[kind]}"),
            padding,
        )
        for inputs, outputs in sides
    ]
    row_bytes = 2 * sum(inputs + outputs for inputs, outputs in sides)
    passes = kernels.moe_row_passes + (kind == "fp8_block") * kernels.moe_quantise_passes
    terms.append(handling_term(passes * row_bytes, kernels.moe_stream_bandwidth))
    return experts_seconds(pairs, distinct, terms)


def _all_reduce(kernels: Kernels, c: dict[str, Any], _kind: str, _shares: dict[str, float]) -> Any:
    seconds = np.empty(len(c["bytes"]))
    for gpus in set(c["gpus"].tolist()):
        rows = c["gpus"] == gpus
        seconds[rows] = all_reduce_seconds(
            c["bytes"][rows],
            gpus,
            kernels.all_reduce_floor_seconds,
            kernels.all_reduce_floor_per_gpu_seconds,
            kernels.all_reduce_two_step_floor_seconds,
            kernels.all_reduce_bandwidth,
        )
    return seconds


def _exchange(way: str) -> Callable[..., Any]:
    def model(kernels: Kernels, c: dict[str, Any], _kind: str, _shares: dict[str, float]) -> Any:
        payload = c["tokens"] * c["top_k"] * c["hidden"] * (1 if way == "dispatch" else 2)
        nodes = c["nodes"]
        inside = getattr(kernels, f"{way}_floor_seconds")
        beyond = exchange_floor_seconds(way, nodes, inside, kernels)
        return exchange_seconds(
            payload * (NODE - 1) / (NODE * nodes),
            payload * (nodes - 1) / nodes,
            kernels.dispatch_bandwidth,
            kernels.internode_bandwidth,
            beyond,
        )

    return model


def exchange_floor_seconds(way: str, nodes: Any, inside: float, kernels: Kernels) -> Any:
    """Start-up of an exchange: inside a node its own, beyond it the network's; a dispatch grows with the nodes."""
    if way == "combine":
        return np.where(nodes > 1, kernels.internode_floor_seconds, inside)
    return dispatch_floor_seconds(nodes, inside, kernels.dispatch_floor_per_doubling_seconds)


_MODELS: dict[str, Callable[..., Any]] = {
    "gemm_": _gemm,
    "gqa_decode_": _gqa_decode,
    "mla_decode_": _mla_decode,
    "context_": _context,
    "moe_": _moe,
    "all_reduce": _all_reduce,
    "dispatch": _exchange("dispatch"),
    "combine": _exchange("combine"),
}
