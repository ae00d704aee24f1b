"""Time of the attention core: decode over a cache, prefill over a prompt."""

from __future__ import annotations

from capplan.formulas import _ops
from capplan.formulas._ops import Value
from capplan.formulas.roofline import kernel_seconds


def attention_flops_per_pair(n_heads: Value, key_width: Value, value_width: Value) -> Value:
    r"""FLOP of one query token with one key token, all heads of this GPU.

    .. math:: f = 2 H (d_k + d_v)

    Expanded attention takes the head dimensions; absorbed MLA decode takes ``d_k = d_c + d_r`` and ``d_v = d_c``, the
    latent serving as key and value of every head.

    Parameters
    ----------
    n_heads : query heads on this GPU H [1]
    key_width, value_width : elements multiplied for the score, and for the output, d_k and d_v [elements]

    Returns
    -------
    flops_per_pair : [FLOP]

    Examples
    --------
    >>> attention_flops_per_pair(128, 512 + 64, 512)  # DeepSeek-V3 decode
    278528

    References
    ----------
    Absorption: DeepSeek-V2, arXiv:2405.04434, section 2.1.2.
    """
    return 2 * n_heads * (key_width + value_width)


def decode_attention_seconds(
    sequences: Value,
    context_tokens: Value,
    query_tokens: Value,
    kv_bytes_per_token: Value,
    flops_per_pair: Value,
    floor_seconds: Value,
    stream_bandwidth: Value,
    flops_per_second: Value,
    ramp_tokens: Value,
    token_seconds: Value = 0.0,
) -> Value:
    r"""Time of one decode-attention kernel: the whole cache is read once, whatever the number of query tokens.

    .. math:: t = t_0 + (t_b^4 + t_f^4)^{1/4}, \quad t_b = \frac{N (S + s_0) \kappa}{B}, \quad
              t_f = \max\left(\frac{N q (S + s_0) f}{R},\ \tau S\right)

    Each sequence ends in a part-filled tile and merges its partial results: it costs as if it held :math:`s_0` tokens
    more. One sequence can be spread over so many multiprocessors only, so a lone long one takes :math:`\tau` a token
    however much of the GPU idles. Grouped-query attention is bound by the cache read; absorbed MLA with 128 heads by
    arithmetic, with the 16 heads of an eighth of a model by the read again.

    Parameters
    ----------
    sequences : N, on this GPU [1]
    context_tokens : cached tokens S of each, the window where there is one [tokens]
    query_tokens : new tokens a sequence q; 1, or drafts + 1 [tokens]
    kv_bytes_per_token : kappa, of one layer on this GPU [B/token]
    flops_per_pair : f from :func:`attention_flops_per_pair` [FLOP]
    floor_seconds : t_0 [s]
    stream_bandwidth : measured B for this cache type [B/s]
    flops_per_second : measured R of the attention kernel [FLOP/s]
    ramp_tokens : s_0 [tokens]
    token_seconds : tau [s/token]

    Returns
    -------
    attention_seconds : one layer [s]

    Examples
    --------
    >>> round(decode_attention_seconds(64, 8192, 1, 4096, 16384, 12.7e-6, 4.55e12, 7.6e14, 80) * 1e6)  # measured 485
    489

    References
    ----------
    FlashAttention-3 on one H200, 90 GQA and 20 MLA shapes: tests/truth/h200_kernels.json.
    """
    tokens = sequences * (context_tokens + ramp_tokens)
    return kernel_seconds(
        floor_seconds,
        tokens * (kv_bytes_per_token / stream_bandwidth),
        _ops.maximum(tokens * (query_tokens * (flops_per_pair / flops_per_second)), context_tokens * token_seconds),
    )


def causal_pairs(new_tokens: Value, cached_tokens: Value = 0, window_tokens: Value | None = None) -> Value:
    r"""Query-key pairs of a causal prompt, part of which is already cached.

    .. math:: \sum_{i=1}^{n} \min(c + i, W)

    Parameters
    ----------
    new_tokens : n [tokens]
    cached_tokens : c, whose keys are read but whose queries are not computed again [tokens]
    window_tokens : W of a sliding window, None for full attention [tokens]

    Returns
    -------
    pairs : [1]

    Examples
    --------
    >>> causal_pairs(4), causal_pairs(2, 3), causal_pairs(4, 0, 2)
    (10.0, 9.0, 7.0)
    """
    if window_tokens is None:
        return new_tokens * cached_tokens + new_tokens * (new_tokens + 1) / 2
    growing = _ops.minimum(new_tokens, _ops.maximum(window_tokens - cached_tokens, 0.0))
    return causal_pairs(growing, cached_tokens) + (new_tokens - growing) * window_tokens


def context_attention_seconds(
    prompts: Value,
    new_tokens: Value,
    cached_tokens: Value,
    window_tokens: Value | None,
    kv_bytes_per_token: Value,
    query_bytes_per_token: Value,
    flops_per_pair: Value,
    floor_seconds: Value,
    stream_bandwidth: Value,
    flops_per_second: Value,
    token_seconds: Value = 0.0,
) -> Value:
    r"""Time of one prefill-attention kernel over equal prompts.

    .. math:: t = t_0 + (t_f^4 + (\tau\,(n + c))^4)^{1/4} + \frac{V}{B}, \quad t_f = \frac{N f\,\mathrm{pairs}}{R},
              \quad V = N\,[(n + c)\,\kappa + n\,q]

    The last tile of queries walks over all keys on one multiprocessor: with few heads and prompts that walk,
    :math:`\tau` a key, is what takes long. Queries and outputs, keys and values are loaded and stored while no tile is
    computed yet or any more, so their time is added.

    Parameters
    ----------
    prompts : N, on this GPU [1]
    new_tokens : n of each [tokens]
    cached_tokens : prefix hit c of each, attended to but not computed again [tokens]
    window_tokens : sliding window, None for full attention [tokens]
    kv_bytes_per_token : kappa, keys and values of one layer as the kernel reads them, on this GPU [B/token]
    query_bytes_per_token : q, queries in and outputs out, on this GPU [B/token]
    flops_per_pair : f from :func:`attention_flops_per_pair` [FLOP]
    floor_seconds, stream_bandwidth, flops_per_second, token_seconds : t_0, B, R, tau of the kernel

    Returns
    -------
    attention_seconds : one layer [s]

    Examples
    --------
    >>> one = context_attention_seconds(1, 4096, 0, None, 4096, 16384, 16384, 8e-6, 1.6e12, 760e12, 7e-9)
    >>> round(one * 1e6)  # 196 us measured
    241

    References
    ----------
    FlashAttention-3 on one H200: tests/truth/h200_kernels.json.
    """
    keys = new_tokens + cached_tokens
    seen = keys if window_tokens is None else _ops.minimum(keys, window_tokens)
    moved = prompts * (keys * kv_bytes_per_token + new_tokens * query_bytes_per_token)
    pairs = prompts * causal_pairs(new_tokens, cached_tokens, window_tokens)
    computed = pairs * (flops_per_pair / flops_per_second)
    return kernel_seconds(floor_seconds, computed, seen * token_seconds) + moved / stream_bandwidth
