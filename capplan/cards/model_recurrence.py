"""Linear attention and state-space mixers from their dimensions: one small builder a kind.

The parameters are called as the keys of a card are. Weights of short convolutions are no matrices a token is multiplied
with: they count as other parameters.
"""

from __future__ import annotations

from capplan.cards.model import Matmul, Recurrence, WeightFormat

STATE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Element types of a recurrent state."""


def lightning_attention(
    hidden_size: int, *, n_heads: int, head_dim: int, format: WeightFormat, state_dtype: str = "fp32"
) -> Recurrence:
    """Lightning attention: queries, keys, values, an output gate, a norm; the state is one matrix a head."""
    width = n_heads * head_dim
    return Recurrence(
        kind="lightning",
        matmuls=(
            Matmul("qkv", hidden_size, 3 * width, "column", format),
            Matmul("output_gate", hidden_size, width, "column", format),
            Matmul("o", width, hidden_size, "row", format),
        ),
        state_elements=n_heads * head_dim * head_dim,
        state_bytes_per_element=STATE_BYTES[state_dtype],
        other_parameters=width,
        norm_parameters=width,
    )


def gated_delta(
    hidden_size: int,
    *,
    key_heads: int,
    value_heads: int,
    key_head_dim: int,
    value_head_dim: int,
    conv_kernel: int,
    format: WeightFormat,
    gate_format: WeightFormat,
    state_dtype: str = "fp32",
    conv_bias: bool = False,
    output_gate: bool = True,
) -> Recurrence:
    """Gated delta rule (Qwen3-Next): two gates of one element a value head, an output gate, a norm of a head."""
    keys, values = key_heads * key_head_dim, value_heads * value_head_dim
    channels = 2 * keys + values
    return Recurrence(
        kind="gated_delta",
        matmuls=(
            Matmul("qkvz", hidden_size, channels + values * output_gate, "column", format),
            Matmul("beta", hidden_size, value_heads, "column", gate_format),
            Matmul("decay", hidden_size, value_heads, "column", gate_format),
            Matmul("o", values, hidden_size, "row", format),
        ),
        state_elements=value_heads * key_head_dim * value_head_dim,
        state_bytes_per_element=STATE_BYTES[state_dtype],
        conv_elements=channels * (conv_kernel - 1),
        conv_channels=channels,
        other_parameters=channels * (conv_kernel + conv_bias) + 2 * value_heads + value_head_dim,
        norm_parameters=value_head_dim,
    )


def kimi_delta(
    hidden_size: int,
    *,
    n_heads: int,
    head_dim: int,
    conv_kernel: int,
    format: WeightFormat,
    gate_format: WeightFormat,
    state_dtype: str = "fp32",
    full_rank_gate: bool = False,
) -> Recurrence:
    """Kimi delta attention: decay of every channel through a low rank, an output gate of low or full rank."""
    width = n_heads * head_dim
    gate: tuple[Matmul, ...] = (Matmul("output_gate", hidden_size, width, "column", format),)
    if not full_rank_gate:
        gate = (
            Matmul("output_gate_a", hidden_size, head_dim, "replicated", format),
            Matmul("output_gate_b", head_dim, width, "column", format),
        )
    return Recurrence(
        kind="kimi_delta",
        matmuls=(
            Matmul("qkv", hidden_size, 3 * width, "column", format),
            Matmul("beta", hidden_size, n_heads, "column", gate_format),
            Matmul("forget_a", hidden_size, head_dim, "replicated", format),
            Matmul("forget_b", head_dim, width, "column", format),
            *gate,
            Matmul("o", width, hidden_size, "row", format),
        ),
        state_elements=n_heads * head_dim * head_dim,
        state_bytes_per_element=STATE_BYTES[state_dtype],
        conv_elements=3 * width * (conv_kernel - 1),
        conv_channels=3 * width,
        other_parameters=3 * width * conv_kernel + width + n_heads + head_dim,
        norm_parameters=head_dim,
    )


def mamba(
    hidden_size: int,
    *,
    inner_size: int,
    state_size: int,
    time_step_rank: int,
    conv_kernel: int,
    format: WeightFormat,
    state_dtype: str = "fp32",
    conv_bias: bool = True,
    projection_bias: bool = False,
    inner_norms: bool = False,
) -> Recurrence:
    """Selective state space (Mamba): a state of ``state_size`` elements for every channel.

    ``inner_norms`` are norms of the time step and of both state projections (Jamba).
    """
    low = time_step_rank + 2 * state_size
    biases = (2 * inner_size + hidden_size) * projection_bias + inner_size * (1 + conv_bias)
    return Recurrence(
        kind="mamba",
        matmuls=(
            Matmul("in", hidden_size, 2 * inner_size, "column", format),
            Matmul("x", inner_size, low, "row", format),
            Matmul("time_step", time_step_rank, inner_size, "column", format),
            Matmul("o", inner_size, hidden_size, "row", format),
        ),
        state_elements=inner_size * state_size,
        state_bytes_per_element=STATE_BYTES[state_dtype],
        conv_elements=inner_size * (conv_kernel - 1),
        conv_channels=inner_size,
        other_parameters=inner_size * (state_size + 1 + conv_kernel) + biases + low * inner_norms,
        norm_parameters=low * inner_norms,
    )


def mamba2(
    hidden_size: int,
    *,
    n_heads: int,
    head_dim: int,
    state_size: int,
    n_groups: int,
    conv_kernel: int,
    format: WeightFormat,
    state_dtype: str = "fp32",
    conv_bias: bool = True,
    projection_bias: bool = False,
    gated_norm: bool = True,
) -> Recurrence:
    """State-space duality (Mamba-2): a state matrix a head, state projections shared by groups of heads."""
    inner = n_heads * head_dim
    channels = inner + 2 * n_groups * state_size
    projected = inner + channels + n_heads
    biases = (projected + hidden_size) * projection_bias + channels * conv_bias
    norms = inner * gated_norm
    return Recurrence(
        kind="mamba2",
        matmuls=(
            Matmul("in", hidden_size, projected, "column", format),
            Matmul("o", inner, hidden_size, "row", format),
        ),
        state_elements=n_heads * head_dim * state_size,
        state_bytes_per_element=STATE_BYTES[state_dtype],
        conv_elements=channels * (conv_kernel - 1),
        conv_channels=channels,
        other_parameters=channels * conv_kernel + biases + 3 * n_heads + norms,
        norm_parameters=norms,
    )


def short_convolution(
    hidden_size: int, *, conv_kernel: int, format: WeightFormat, conv_bias: bool = False, projection_bias: bool = False
) -> Recurrence:
    """A gated short convolution (LFM2): the last inputs of the kernel are all its state."""
    biases = hidden_size * conv_bias + 4 * hidden_size * projection_bias
    return Recurrence(
        kind="short_conv",
        matmuls=(
            Matmul("in", hidden_size, 3 * hidden_size, "column", format),
            Matmul("o", hidden_size, hidden_size, "row", format),
        ),
        state_elements=0,
        state_bytes_per_element=STATE_BYTES["bf16"],
        conv_elements=hidden_size * (conv_kernel - 1),
        conv_channels=hidden_size,
        other_parameters=hidden_size * conv_kernel + biases,
    )
