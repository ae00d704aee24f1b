"""Parameters, bytes of weights and floating-point operations of one token."""

from __future__ import annotations

from capplan.formulas import _ops
from capplan.formulas._ops import Value


def gqa_attention_parameters(
    hidden_size: Value, n_heads: Value, n_kv_heads: Value, head_dim: Value, value_head_dim: Value
) -> Value:
    r"""Matrix elements of one attention layer with query, key, value and output projections.

    .. math:: N = d\,(H d_k + H_\mathrm{kv} (d_k + d_v) + H d_v)

    Parameters
    ----------
    hidden_size : width d of the model [elements]
    n_heads, n_kv_heads : query and key-value heads H, H_kv [-]
    head_dim, value_head_dim : key and value width of one head [elements]

    Returns
    -------
    parameters : biases and norms not counted [parameters]

    Examples
    --------
    >>> 32 * gqa_attention_parameters(4096, 32, 8, 128, 128)  # Llama-3.1-8B
    1342177280

    References
    ----------
    GQA: arXiv:2305.13245.
    """
    return hidden_size * (n_heads * head_dim + n_kv_heads * (head_dim + value_head_dim) + n_heads * value_head_dim)


def mla_attention_parameters(
    hidden_size: Value,
    n_heads: Value,
    q_lora_rank: Value,
    kv_lora_rank: Value,
    qk_nope_head_dim: Value,
    qk_rope_head_dim: Value,
    value_head_dim: Value,
) -> Value:
    r"""Matrix elements of one layer of multi-head latent attention with a compressed query.

    .. math:: N = d (d_q + d_c + d_r) + d_q H (d_n + d_r) + d_c H (d_n + d_v) + H d_v d

    Parameters
    ----------
    hidden_size : width d of the model [elements]
    n_heads : query heads H [-]
    q_lora_rank, kv_lora_rank : latent widths d_q, d_c of query and key-value [elements]
    qk_nope_head_dim, qk_rope_head_dim, value_head_dim : widths d_n, d_r, d_v of a head [elements]

    Returns
    -------
    parameters : norms of the latents not counted [parameters]

    Examples
    --------
    >>> 61 * mla_attention_parameters(7168, 128, 1536, 512, 128, 64, 128)  # DeepSeek-V3
    11413422080

    References
    ----------
    DeepSeek-V2, arXiv:2405.04434, appendix C.
    """
    down = hidden_size * (q_lora_rank + kv_lora_rank + qk_rope_head_dim)
    up_query = q_lora_rank * n_heads * (qk_nope_head_dim + qk_rope_head_dim)
    up_key_value = kv_lora_rank * n_heads * (qk_nope_head_dim + value_head_dim)
    return down + up_query + up_key_value + n_heads * value_head_dim * hidden_size


def gated_feed_forward_parameters(hidden_size: Value, width: Value) -> Value:
    r"""Matrix elements of a gated feed-forward block (SwiGLU): gate, up and down.

    .. math:: N = 3 d w

    Parameters
    ----------
    hidden_size : width d of the model [elements]
    width : inner width w [elements]

    Returns
    -------
    parameters : biases not counted [parameters]

    Examples
    --------
    >>> 32 * gated_feed_forward_parameters(4096, 14336)  # Llama-3.1-8B
    5637144576

    References
    ----------
    GLU variants: arXiv:2002.05202.
    """
    return 3 * hidden_size * width


def mixture_active_parameters(shared: Value, one_expert: Value, top_k: Value) -> Value:
    r"""Parameters a token passes in a mixture of experts.

    .. math:: N_\mathrm{active} = N_\mathrm{shared} + k N_\mathrm{expert}

    Parameters
    ----------
    shared : what every token passes: attention, router, shared experts, lm_head [parameters]
    one_expert : one routed expert [parameters]
    top_k : routed experts a token is sent to [-]

    Returns
    -------
    parameters : of one token [parameters]

    References
    ----------
    arXiv:1701.06538.
    """
    return shared + top_k * one_expert


def scaled_weight_bytes(
    inputs: Value,
    outputs: Value,
    element_bytes: Value,
    scale_bytes: Value,
    block_inputs: Value,
    block_outputs: Value,
) -> Value:
    r"""Bytes of a weight matrix whose blocks of elements share a scale.

    .. math:: B = m n\,w + \lceil m/b_m \rceil \lceil n/b_n \rceil\,s

    Parameters
    ----------
    inputs, outputs : rows m and columns n of the matrix [elements]
    element_bytes : storage of one element w [B]
    scale_bytes : storage of the scale (and zero point) of a block s [B]
    block_inputs, block_outputs : elements of a block b_m x b_n; a block larger than the matrix means one scale

    Returns
    -------
    weight_bytes : elements and scales [B]

    Examples
    --------
    >>> scaled_weight_bytes(7168, 576, 1, 4, 128, 128) - 7168 * 576  # 56 x 5 scales, the last column of them half used
    1120.0

    References
    ----------
    fp8 in 128 x 128 blocks: DeepSeek-V3, arXiv:2412.19437, section 3.3; MXFP4: OCP Microscaling Formats 1.0.
    """
    scales = _ops.ceil(inputs / block_inputs) * _ops.ceil(outputs / block_outputs)
    return inputs * outputs * element_bytes + scales * scale_bytes


def linear_flops_per_token(matmul_parameters_active: Value) -> Value:
    r"""Floating-point operations of the weight matrices for one token: a multiply and an add an element.

    .. math:: F = 2 N

    Parameters
    ----------
    matmul_parameters_active : matrix elements one token is multiplied with, lm_head included (also where it is tied
        to the embedding), the embedding look-up not [parameters]

    Returns
    -------
    flops : per token [FLOP]

    Examples
    --------
    >>> linear_flops_per_token(36_624_596_992)  # DeepSeek-V3
    73249193984

    References
    ----------
    arXiv:2001.08361, section 2.1.
    """
    return 2 * matmul_parameters_active


def attention_flops_per_token(n_heads: Value, head_dim: Value, value_head_dim: Value, context_tokens: Value) -> Value:
    r"""Floating-point operations of one attention layer for one new token: scores and weighted values.

    .. math:: F = 2 H (d_k + d_v)\,S

    Query heads count, so grouped queries do not reduce it. A sliding window caps S.

    Parameters
    ----------
    n_heads : query heads H [-]
    head_dim, value_head_dim : key and value width of a head [elements]
    context_tokens : cached tokens attended to S [tokens]

    Returns
    -------
    flops : per new token and layer [FLOP]

    Examples
    --------
    >>> attention_flops_per_token(32, 128, 128, 1)  # one layer of Llama-3.1-8B
    16384

    References
    ----------
    arXiv:2211.05102, section 2.
    """
    return 2 * n_heads * (head_dim + value_head_dim) * context_tokens


def mla_absorbed_attention_flops_per_token(
    n_heads: Value, kv_lora_rank: Value, qk_rope_head_dim: Value, context_tokens: Value
) -> Value:
    r"""Floating-point operations of one latent-attention layer in decode, where the up-projections are absorbed.

    .. math:: F = 2 H (2 d_c + d_r)\,S

    Scores run over the latent and the rotary part, values over the latent.

    Parameters
    ----------
    n_heads : query heads H [-]
    kv_lora_rank, qk_rope_head_dim : latent width d_c and rotary width d_r [elements]
    context_tokens : cached tokens attended to S [tokens]

    Returns
    -------
    flops : per new token and layer [FLOP]

    Examples
    --------
    >>> mla_absorbed_attention_flops_per_token(128, 512, 64, 1)  # one layer of DeepSeek-V3
    278528

    References
    ----------
    DeepSeek-V2, arXiv:2405.04434, section 2.1.
    """
    return 2 * n_heads * (2 * kv_lora_rank + qk_rope_head_dim) * context_tokens


def mla_expanded_attention_flops_per_token(
    n_heads: Value, qk_nope_head_dim: Value, qk_rope_head_dim: Value, value_head_dim: Value, context_tokens: Value
) -> Value:
    r"""Floating-point operations of one latent-attention layer in prefill, where keys and values are expanded.

    .. math:: F = 2 H (d_n + d_r + d_v)\,S

    Parameters
    ----------
    n_heads : query heads H [-]
    qk_nope_head_dim, qk_rope_head_dim, value_head_dim : widths of a head d_n, d_r, d_v [elements]
    context_tokens : tokens attended to S [tokens]

    Returns
    -------
    flops : per new token and layer; expanding the latents themselves is a matrix product and counted there [FLOP]

    Examples
    --------
    >>> mla_expanded_attention_flops_per_token(128, 128, 64, 128, 1)  # one layer of DeepSeek-V3
    81920

    References
    ----------
    DeepSeek-V2, arXiv:2405.04434, section 2.1.
    """
    return attention_flops_per_token(n_heads, qk_nope_head_dim + qk_rope_head_dim, value_head_dim, context_tokens)


def indexer_flops_per_token(n_heads: Value, head_dim: Value, context_tokens: Value) -> Value:
    r"""Floating-point operations of the indexer of one sparse-attention layer for one new token.

    .. math:: F = 2 H_i d_i\,S

    The indexer scores every cached token; attention then reads the best of them only.

    Parameters
    ----------
    n_heads : heads of the indexer H_i [-]
    head_dim : width of one of them d_i [elements]
    context_tokens : index keys scored S [tokens]

    Returns
    -------
    flops : per new token and layer [FLOP]

    Examples
    --------
    >>> indexer_flops_per_token(64, 128, 1)  # one layer of DeepSeek-V3.2
    16384

    References
    ----------
    DeepSeek-V3.2, arXiv:2512.02556, section 2.1.
    """
    return 2 * n_heads * head_dim * context_tokens
