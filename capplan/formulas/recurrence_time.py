"""Time of recurrent layers: linear attention, state-space mixers and short convolutions."""

from __future__ import annotations

from capplan.formulas import _ops
from capplan.formulas._ops import Value
from capplan.formulas.roofline import kernel_seconds


def decode_state_bytes(query_tokens: Value, state_bytes: Value, token_bytes: Value) -> Value:
    r"""Bytes one sequence moves in a decode step of one recurrent kernel.

    .. math:: V = (1 + q)\,\sigma + q\,\beta

    The state is read once and written behind every token: a step that verifies drafts must be able to fall back to
    the state after the last accepted one.

    Parameters
    ----------
    query_tokens : new tokens a sequence q; 1, or drafts + 1 [tokens]
    state_bytes : sigma, on this GPU [B]
    token_bytes : beta, activations in and out of one token [B/token]

    Returns
    -------
    moved_bytes : of one sequence [B]

    Examples
    --------
    >>> decode_state_bytes(1, 4194304, 49152) / 4194304  # Qwen3.5-397B-A17B: nearly two states
    2.01171875

    References
    ----------
    Kimi delta attention verifying 2, 4 and 8 tokens takes as long as 3, 5 and 9 states need: tables of
    aiconfigurator-core 0.12.0 (Apache-2.0, PyPI), sample in tests/truth/layer_kernels.json.
    """
    return (1 + query_tokens) * state_bytes + query_tokens * token_bytes


def decode_recurrence_seconds(
    sequences: Value,
    query_tokens: Value,
    state_bytes: Value,
    token_bytes: Value,
    convolution_state_bytes: Value,
    convolution_token_bytes: Value,
    floor_seconds: Value,
    stream_bandwidth: Value,
    convolution_bandwidth: Value,
) -> Value:
    r"""Time of one recurrent layer in a decode step: its state passes through the GPU, whatever the context.

    .. math:: t = t_0 + N \left(\frac{V}{B} + \frac{V_c}{B_c}\right)

    with :func:`decode_state_bytes` of the recurrence and of the short convolution in front of it; the two run one after
    the other, and :math:`t_0` is the floor of both.

    Parameters
    ----------
    sequences : N, on this GPU [1]
    query_tokens : new tokens a sequence [tokens]
    state_bytes, token_bytes : of the recurrence, as in :func:`decode_state_bytes`
    convolution_state_bytes, convolution_token_bytes : of the convolution, 0 where there is none
    floor_seconds : t_0 [s]
    stream_bandwidth : measured B, reading and writing together [B/s]
    convolution_bandwidth : the same of short convolutions, B_c [B/s]

    Returns
    -------
    recurrence_seconds : one layer, projections not included [s]

    Examples
    --------
    >>> one = decode_recurrence_seconds(256, 1, 2097152, 36864, 49152, 32768, 5.6e-6, 4.04e12, 2.73e12)
    >>> round(one * 1e6)  # 278 us measured on an H200, 32 value heads of 128 x 128
    286

    References
    ----------
    Gated delta rule and kimi delta attention: tests/truth/layer_kernels.json.
    """
    moved = decode_state_bytes(query_tokens, state_bytes, token_bytes)
    convolved = decode_state_bytes(query_tokens, convolution_state_bytes, convolution_token_bytes)
    return floor_seconds + sequences * (moved / stream_bandwidth + convolved / convolution_bandwidth)


def context_recurrence_seconds(
    prompts: Value,
    new_tokens: Value,
    state_bytes: Value,
    token_bytes: Value,
    convolution_state_bytes: Value,
    convolution_token_bytes: Value,
    busy_token_seconds: Value,
    floor_seconds: Value,
    stream_bandwidth: Value,
    convolution_bandwidth: Value,
    ramp_tokens: Value,
    lone_token_seconds: Value = 0.0,
) -> Value:
    r"""Time of one recurrent layer over equal prompts: linear in their tokens.

    .. math:: t = t_0 + (t_b^4 + t_f^4)^{1/4} + N \frac{2 \sigma_c + n \beta_c}{B_c}, \quad
              t_b = N \frac{2 \sigma + n \beta}{B}, \quad
              t_f = \max\left(N (n + s_0)\,\epsilon,\ \tau n\right)

    The scan multiplies chunks of tokens with the state, so a prompt costs as if it had :math:`s_0` tokens more.
    Chunks of one prompt follow each other: a lone prompt uses no more of the GPU than it has heads, and takes
    :math:`\tau` a token.

    Parameters
    ----------
    prompts : N, on this GPU [1]
    new_tokens : n of each [tokens]
    state_bytes, token_bytes : of the recurrence, as in :func:`decode_state_bytes`
    convolution_state_bytes, convolution_token_bytes : of the convolution, 0 where there is none
    busy_token_seconds : epsilon, FLOP of a token over the rate of a GPU full of prompts [s/token]
    floor_seconds, stream_bandwidth, convolution_bandwidth, ramp_tokens : t_0, B, B_c, s_0 of the kernels
    lone_token_seconds : tau, 0 where chunks of one prompt run side by side [s/token]

    Returns
    -------
    recurrence_seconds : one layer, projections not included [s]

    Examples
    --------
    >>> epsilon = 6 * 64 * 128 * 128 / 229e12
    >>> constants = 14e-6, 4.04e12, 2.73e12, 99.8, 48e-9
    >>> one = context_recurrence_seconds(16, 4096, 4194304, 61440, 73728, 49152, epsilon, *constants)
    >>> round(one * 1e3, 2)  # 3.06 ms measured on an H200, 64 value heads of 128 x 128
    3.08

    References
    ----------
    Chunked delta rule: Yang et al., arXiv:2412.06464, section 3.3. Measured: tests/truth/layer_kernels.json.
    """
    stream = prompts * (2 * state_bytes + new_tokens * token_bytes) / stream_bandwidth
    compute = _ops.maximum(prompts * (new_tokens + ramp_tokens) * busy_token_seconds, new_tokens * lone_token_seconds)
    convolved = prompts * (2 * convolution_state_bytes + new_tokens * convolution_token_bytes) / convolution_bandwidth
    return kernel_seconds(floor_seconds, stream, compute) + convolved
