"""Recurrent layers of a pass: their constants, their seconds, the bytes they move."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from capplan.cards.hardware import Hardware
from capplan.cards.model import Recurrence
from capplan.cards.model_totals import OTHER_BYTES
from capplan.formulas import _ops
from capplan.formulas._ops import Value
from capplan.formulas.gemm import ACTIVATION_BYTES
from capplan.formulas.recurrence_time import context_recurrence_seconds, decode_recurrence_seconds
from capplan.serving.measured import measured
from capplan.serving.work import Work

STATE_PRODUCTS = {"gated_delta": 3, "kimi_delta": 3, "lightning": 2, "mamba2": 2, "mamba": 2, "short_conv": 0}
"""Products of a token with the state: the delta rule reads it with the key and with the query and adds to it, the
others only add and read. Work inside a chunk is in the measured rate."""

LONE_TOKEN_SECONDS = {"gated_delta": "recurrence_token_seconds", "kimi_delta": "kimi_delta_token_seconds"}
"""Kinds whose chunks of one prompt follow each other; the chunked scans of the others run side by side."""


@dataclass(frozen=True)
class RecurrentLayers:
    """Equal recurrences: how many, and the constants of their decode and prefill kernels."""

    count: float
    state_bytes: float
    token_bytes: float
    convolution_state_bytes: float
    convolution_token_bytes: float
    floor_seconds: float
    stream_bandwidth: float
    convolution_bandwidth: float
    context_floor_seconds: float
    busy_token_seconds: float
    lone_token_seconds: float
    ramp_tokens: float


def recurrent_layers(recurrence: Recurrence, hardware: Hardware, ways: int) -> RecurrentLayers:
    """One recurrence on one of ``ways`` tensor-parallel GPUs, which split its heads.

    Raises
    ------
    InputError : a hardware card without the constants of recurrent layers
    """
    convolution = OTHER_BYTES * recurrence.conv_elements
    state, width = recurrence.state_bytes - convolution, projected_width(recurrence)
    lone, scans, kernels = recurrence.kind in LONE_TOKEN_SECONDS, recurrence.kind != "short_conv", hardware.kernels
    return RecurrentLayers(
        count=1.0,
        state_bytes=state / ways,
        token_bytes=1.5 * ACTIVATION_BYTES * width / ways if scans else 0.0,
        convolution_state_bytes=convolution / ways,
        convolution_token_bytes=2 * ACTIVATION_BYTES * recurrence.conv_channels / ways,
        floor_seconds=measured(hardware, "recurrence_floor_seconds") if scans else kernels.elementwise_floor_seconds,
        stream_bandwidth=measured(hardware, "recurrence_stream_bandwidth"),
        convolution_bandwidth=measured(hardware, "convolution_stream_bandwidth"),
        context_floor_seconds=(
            measured(hardware, "context_recurrence_floor_seconds") if scans else kernels.elementwise_floor_seconds
        ),
        busy_token_seconds=recurrence.state_elements / ways * _element_seconds(recurrence.kind, hardware),
        lone_token_seconds=measured(hardware, LONE_TOKEN_SECONDS[recurrence.kind]) if lone else 0.0,
        ramp_tokens=measured(hardware, "recurrence_ramp_tokens") if scans else 0.0,
    )


def projected_width(recurrence: Recurrence) -> int:
    """Elements of a token that enter a recurrence: what tensor parallelism splits by columns, and no low rank."""
    return max(matmul.outputs for matmul in recurrence.matmuls if matmul.shard == "column")


def _element_seconds(kind: str, hardware: Hardware) -> float:
    """Time of one state element and token on a busy GPU. Mamba multiplies no matrices: one exponential each."""
    if kind == "mamba":
        return measured(hardware, "scan_element_seconds")
    rate = measured(hardware, "kimi_delta_flops" if kind == "kimi_delta" else "recurrence_flops")
    return 2 * STATE_PRODUCTS[kind] / rate


def recurrent_layers_seconds(work: Work, layers: tuple[RecurrentLayers, ...]) -> Value:
    """Recurrences of all layers [s]."""
    total: Value = 0.0
    for layer in layers:
        total = total + layer.count * _layer_seconds(layer, work)
    return total


def _layer_seconds(layer: RecurrentLayers, work: Work) -> Value:
    moved = (
        layer.state_bytes,
        layer.token_bytes,
        layer.convolution_state_bytes,
        layer.convolution_token_bytes,
    )
    rates = layer.stream_bandwidth, layer.convolution_bandwidth
    if not work.prefill:
        return decode_recurrence_seconds(work.sequences, work.new_tokens, *moved, layer.floor_seconds, *rates)
    return context_recurrence_seconds(
        work.sequences,
        work.new_tokens,
        *moved,
        layer.busy_token_seconds,
        layer.context_floor_seconds,
        *rates,
        layer.ramp_tokens,
        layer.lone_token_seconds,
    )


def recurrent_bytes(work: Work, layers: tuple[RecurrentLayers, ...]) -> Value:
    """HBM bytes of states and of the activations that pass recurrence and convolution [B]."""
    return sum(layer.count * sum(_streams(layer, work)) for layer in layers)


def _streams(layer: RecurrentLayers, work: Work) -> tuple[Value, Value]:
    """Bytes of recurrence and convolution of one layer."""
    passes = 2.0 if work.prefill else 1.0 + work.new_tokens
    return (
        work.sequences * (passes * layer.state_bytes + work.new_tokens * layer.token_bytes),
        work.sequences * (passes * layer.convolution_state_bytes + work.new_tokens * layer.convolution_token_bytes),
    )


def recurrent_kernels(work: Work, layers: tuple[RecurrentLayers, ...]) -> Iterator[tuple[Value, Value, Value, Value]]:
    """(how many, floor, streaming, computing) of the kernels of all recurrences [s]."""
    for layer in layers:
        moved, convolved = _streams(layer, work)
        stream = moved / layer.stream_bandwidth
        yield layer.count, 0.0, convolved / layer.convolution_bandwidth, 0.0 * stream
        if not work.prefill:
            yield layer.count, layer.floor_seconds, stream, 0.0 * stream
            continue
        busy = work.sequences * (work.new_tokens + layer.ramp_tokens) * layer.busy_token_seconds
        compute = _ops.maximum(busy, work.new_tokens * layer.lone_token_seconds)
        yield layer.count, layer.context_floor_seconds, stream, compute
