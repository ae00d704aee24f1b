"""The weight formats checkpoints are stored in."""

from __future__ import annotations

import re
from typing import Literal

from capplan.cards.model import WeightFormat
from capplan.errors import UnknownNameError

_GROUPED = re.compile(r"int4_g([1-9]\d{0,5})", re.ASCII)
_BLOCKED = re.compile(r"fp8_block_([1-9]\d{0,5})x([1-9]\d{0,5})", re.ASCII)

SIXTEEN_BIT = ("bf16", "fp16")
"""Formats that hold every matrix, not only those a quantiser touches."""


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


def int4_group(group_size: int) -> WeightFormat:
    """4-bit integers with a bf16 scale and a 4-bit zero point a group (AWQ, GPTQ); multiplied in bf16."""
    name = "int4" if group_size == 128 else f"int4_g{group_size}"
    return _scaled(name, "bf16", 0.5, 2.5, group_size)


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
        # One scale a matrix or a channel is below 0.1 % of the bytes and not counted.
        _scaled("fp8", "fp8", 1.0),
        fp8_block(128, 128),
        # Weight-only formats: activations stay in 16 bits, and so does the multiplication.
        _scaled("int8", "bf16", 1.0),
        int4_group(128),
        _scaled("mxfp4", "bf16", 0.5, 1.0, 32),
        _scaled("nvfp4", "fp4", 0.5, 1.0, 16),
    )
}
"""By name. MXFP4: OCP Microscaling Formats 1.0 (32 elements share one byte); NVFP4: 16 share an fp8 scale."""


def weight_format(name: str, *, key: str | None = None, file: str | None = None) -> WeightFormat:
    """The format of that name; ``int4_g<group>`` and ``fp8_block_<rows>x<columns>`` give other block sizes.

    Raises
    ------
    UnknownNameError : no such format
    """
    if not isinstance(name, str):
        raise UnknownNameError.among(repr(name), FORMATS, "weight format", key=key, file=file)
    if name in FORMATS:
        return FORMATS[name]
    if match := _GROUPED.fullmatch(name):
        return int4_group(int(match[1]))
    if match := _BLOCKED.fullmatch(name):
        return fp8_block(int(match[2]), int(match[1]))
    raise UnknownNameError.among(name, FORMATS, "weight format", key=key, file=file)
