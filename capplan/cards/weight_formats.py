"""The weight formats checkpoints are stored in."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal

from capplan.cards.model import WeightFormat
from capplan.errors import UnknownNameError

_INTEGER_GROUPS = re.compile(r"int([48])(_sym)?_g([1-9]\d{0,5})", re.ASCII)
_BLOCKED = re.compile(r"fp8_block_([1-9]\d{0,5})x([1-9]\d{0,5})", re.ASCII)

SIXTEEN_BIT = ("bf16", "fp16")
"""Formats that hold every matrix, not only those a quantiser touches."""

_WHOLE_ROW = 1 << 30
"""A block wider than any matrix: one scale an output channel."""


def _scaled(
    name: str,
    compute: Literal["bf16", "fp8", "fp4"],
    element_bytes: float,
    scale_bytes: float = 0.0,
    block_inputs: int = 0,
    block_outputs: int = 1,
) -> WeightFormat:
    if not block_inputs:
        return WeightFormat(name, element_bytes, compute, element_bytes)
    average = element_bytes + scale_bytes / (block_inputs * block_outputs)
    return WeightFormat(name, average, compute, element_bytes, scale_bytes, block_inputs, block_outputs)


def integer_group_name(bits: int, group_size: int, *, zero_points: bool) -> str:
    """The name of a weight-only integer format; ``int4`` alone is AWQ and GPTQ with groups of 128."""
    if (bits, group_size, zero_points) == (4, 128, True):
        return "int4"
    return f"int{bits}{'' if zero_points else '_sym'}_g{group_size}"


def integer_group(bits: int, group_size: int, *, zero_points: bool) -> WeightFormat:
    """Integers with a 16-bit scale a group and, in AWQ and GPTQ, a zero point as wide as an element.

    Multiplied in bf16. Symmetric compressed-tensors weights have no zero points.
    """
    name = integer_group_name(bits, group_size, zero_points=zero_points)
    return _scaled(name, "bf16", bits / 8, 2 + zero_points * bits / 8, group_size)


def fp8_block(block_inputs: int, block_outputs: int) -> WeightFormat:
    """8-bit floats with one fp32 scale a block (DeepSeek-V3: 128 x 128)."""
    usual = (block_inputs, block_outputs) == (128, 128)
    name = "fp8_block" if usual else f"fp8_block_{block_outputs}x{block_inputs}"
    return _scaled(name, "fp8", 1.0, 4.0, block_inputs, block_outputs)


FORMATS: dict[str, WeightFormat] = {
    format.name: format
    for format in (
        _scaled("bf16", "bf16", 2.0),
        _scaled("fp16", "bf16", 2.0),
        # One scale a matrix is not counted.
        _scaled("fp8", "fp8", 1.0),
        # One scale for all activations of a step, found at run time: read for it, scaled, read and converted again.
        replace(_scaled("fp8_dynamic", "fp8", 1.0), quantise_bytes=8.0),
        _scaled("fp8_channel", "fp8", 1.0, 2.0, _WHOLE_ROW),
        fp8_block(128, 128),
        _scaled("mxfp8", "fp8", 1.0, 1.0, 32),
        # Hardware cards have no rate of 8-bit integers of their own: assumed to be that of 8-bit floats.
        _scaled("int8_w8a8", "fp8", 1.0, 2.0, _WHOLE_ROW),
        # Weight-only formats: activations stay in 16 bits, and so does the multiplication.
        _scaled("int8", "bf16", 1.0),
        _scaled("int8_channel", "bf16", 1.0, 2.0, _WHOLE_ROW),
        _scaled("int4_channel", "bf16", 0.5, 2.0, _WHOLE_ROW),
        integer_group(4, 128, zero_points=True),
        _scaled("mxfp4", "bf16", 0.5, 1.0, 32),
        _scaled("nvfp4", "fp4", 0.5, 1.0, 16),
        _scaled("nvfp4_w4a16", "bf16", 0.5, 1.0, 16),
    )
}
"""By name. MXFP4, MXFP8: OCP Microscaling Formats 1.0 (32 elements share one byte); NVFP4: 16 share an fp8 scale."""


def weight_format(name: str, *, key: str | None = None, file: str | None = None) -> WeightFormat:
    """The format of that name.

    ``int4_g<group>`` and ``int8_g<group>`` give other groups, ``int4_sym_g<group>`` those without zero points,
    ``fp8_block_<rows>x<columns>`` other blocks.

    Raises
    ------
    UnknownNameError : no such format
    """
    if not isinstance(name, str):
        raise UnknownNameError.among(repr(name), FORMATS, "weight format", key=key, file=file)
    if name in FORMATS:
        return FORMATS[name]
    if match := _INTEGER_GROUPS.fullmatch(name):
        return integer_group(int(match[1]), int(match[3]), zero_points=not match[2])
    if match := _BLOCKED.fullmatch(name):
        return fp8_block(int(match[2]), int(match[1]))
    raise UnknownNameError.among(name, FORMATS, "weight format", key=key, file=file)
