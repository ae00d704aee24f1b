"""Bytes of key-value cache: what one token adds, what a sequence holds, and how ranks share it."""

from __future__ import annotations

from capplan.formulas import _ops
from capplan.formulas._ops import Value


def mha_kv_bytes(n_layers: Value, hidden_size: Value, context_tokens: Value, bytes_per_element: Value) -> Value:
    r"""KV-cache bytes of one sequence under plain multi-head attention.

    .. math:: \kappa = L \cdot 2\,d\,S\,w

    The special case of :func:`gqa_kv_bytes_per_token` with as many KV heads as query heads and ``head_dim * heads`` =
    ``hidden_size``. Any model with grouped queries, its own head width, a latent or a window needs another formula.

    Parameters
    ----------
    n_layers : layers L [-]
    hidden_size : width d of the model [elements]
    context_tokens : tokens of the sequence S [tokens]
    bytes_per_element : storage width w [B]

    Returns
    -------
    kv_bytes : of one sequence, whole model [B]

    Examples
    --------
    >>> mha_kv_bytes(32, 4096, 4096, 2)  # Llama-2-7B, 4k tokens
    2147483648

    References
    ----------
    arXiv:2309.06180, section 2.
    """
    return n_layers * 2 * hidden_size * context_tokens * bytes_per_element


def gqa_kv_bytes_per_token(
    n_layers: Value, n_kv_heads: Value, head_dim: Value, value_head_dim: Value, bytes_per_element: Value
) -> Value:
    r"""KV-cache bytes one more token adds under multi-head, grouped-query or multi-query attention.

    .. math:: \kappa = L\,H_\mathrm{kv}\,(d_k + d_v)\,w

    Parameters
    ----------
    n_layers : layers that hold keys and values L [-]
    n_kv_heads : key-value heads: as many as query heads (MHA), some (GQA) or one (MQA) [-]
    head_dim, value_head_dim : key and value width of a head [elements]
    bytes_per_element : storage width w [B]

    Returns
    -------
    kv_bytes_per_token : growth of the cache of the whole model, unsharded [B/token]

    Examples
    --------
    >>> gqa_kv_bytes_per_token(32, 8, 128, 128, 2)  # Llama-3.1-8B, bf16
    131072

    References
    ----------
    GQA: arXiv:2305.13245; MQA: arXiv:1911.02150.
    """
    return n_layers * n_kv_heads * (head_dim + value_head_dim) * bytes_per_element


def mla_kv_bytes_per_token(
    n_layers: Value, kv_lora_rank: Value, qk_rope_head_dim: Value, bytes_per_element: Value
) -> Value:
    r"""KV-cache bytes one more token adds under multi-head latent attention.

    .. math:: \kappa = L\,(d_c + d_r)\,w

    One latent of width :math:`d_c` serves keys and values; :math:`d_r` rotary dimensions are kept beside it.

    Parameters
    ----------
    n_layers : layers that hold a latent L [-]
    kv_lora_rank : latent width d_c [elements]
    qk_rope_head_dim : rotary width d_r [elements]
    bytes_per_element : storage width w [B]

    Returns
    -------
    kv_bytes_per_token : growth of the cache of the whole model, unsharded [B/token]; tensor parallelism replicates it

    Examples
    --------
    >>> mla_kv_bytes_per_token(61, 512, 64, 2)  # DeepSeek-V3, bf16
    70272

    References
    ----------
    DeepSeek-V2, arXiv:2405.04434, section 2.1; the value: arXiv:2505.09343, table 1.
    """
    return n_layers * (kv_lora_rank + qk_rope_head_dim) * bytes_per_element


def mla_fp8_layout_bytes_per_token(n_layers: Value, kv_lora_rank: Value, qk_rope_head_dim: Value) -> Value:
    r"""KV-cache bytes one more token adds in the layout ``fp8_ds_mla``.

    .. math:: \kappa = L\,(d_c + 4\,d_c/128 + 2\,d_r)

    The latent in fp8 with one fp32 scale per 128 elements, the rotary part in bf16.

    Parameters
    ----------
    n_layers : layers that hold a latent L [-]
    kv_lora_rank : latent width d_c, a multiple of 128 [elements]
    qk_rope_head_dim : rotary width d_r [elements]

    Returns
    -------
    kv_bytes_per_token : growth of the cache of the whole model, unsharded [B/token]

    Examples
    --------
    >>> mla_fp8_layout_bytes_per_token(1, 512, 64), mla_fp8_layout_bytes_per_token(61, 512, 64)
    (656.0, 40016.0)

    References
    ----------
    vLLM, cache type ``fp8_ds_mla`` (512 B + 16 B + 128 B).
    """
    return n_layers * (kv_lora_rank + 4 * _ops.ceil(kv_lora_rank / 128) + 2 * qk_rope_head_dim)


def mla_expanded_kv_bytes_per_token(
    n_layers: Value, n_heads: Value, head_dim: Value, value_head_dim: Value, bytes_per_element: Value
) -> Value:
    r"""KV-cache bytes one more token adds where an engine stores latent attention expanded to full heads.

    .. math:: \kappa = L\,H\,(d_n + d_r + d_v)\,w

    Parameters
    ----------
    n_layers : layers L [-]
    n_heads : query heads H: each gets its own keys and values [-]
    head_dim : key width with its rotary part d_n + d_r [elements]
    value_head_dim : value width d_v [elements]
    bytes_per_element : storage width w [B]

    Returns
    -------
    kv_bytes_per_token : growth of the cache of the whole model, unsharded [B/token]

    Examples
    --------
    >>> mla_expanded_kv_bytes_per_token(61, 128, 192, 128, 2)  # DeepSeek-V3: 71 times the latent
    4997120

    References
    ----------
    DeepSeek-V2, arXiv:2405.04434, section 2.1.
    """
    return gqa_kv_bytes_per_token(n_layers, n_heads, head_dim, value_head_dim, bytes_per_element)


def held_tokens(context_tokens: Value, window_tokens: Value | None) -> Value:
    r"""Tokens a layer holds of a sequence: all, or the last ones of a sliding window.

    .. math:: S_\mathrm{held} = \min(S, W)

    Parameters
    ----------
    context_tokens : tokens of the sequence S [tokens]
    window_tokens : window W, or None for full attention [tokens]

    Returns
    -------
    tokens : held by one layer; engines that cut in pages hold a little more [tokens]

    Examples
    --------
    >>> held_tokens(8192, 128), held_tokens(8192, None)
    (128, 8192)

    References
    ----------
    Mistral 7B, arXiv:2310.06825, section 2.
    """
    return context_tokens if window_tokens is None else _ops.minimum(context_tokens, window_tokens)


def compressed_entries(context_tokens: Value, compress_ratio: Value) -> Value:
    r"""Entries a layer of compressed attention holds: one for every full block of tokens.

    .. math:: n = \lfloor S/r \rfloor

    Parameters
    ----------
    context_tokens : tokens of the sequence S [tokens]
    compress_ratio : tokens one entry stands for r [tokens]

    Returns
    -------
    entries : held by one layer [-]

    Examples
    --------
    >>> compressed_entries(1000, 4), compressed_entries(1000, 128)
    (250.0, 7.0)

    References
    ----------
    DeepSeek-V4, ``compress_ratios``: 4 in layers that select entries, 128 in layers that attend to all of them.
    """
    return 0.0 - _ops.ceil(-(context_tokens / compress_ratio))


def indexer_layout_bytes_per_token(index_head_dim: Value) -> Value:
    r"""Bytes one token takes in the cache of a sparse-attention indexer beside the layout ``fp8_ds_mla``.

    .. math:: \kappa = d_i + 4\,d_i/128

    The index key in fp8 with one fp32 scale per 128 elements.

    Parameters
    ----------
    index_head_dim : width of the index key d_i [elements]

    Returns
    -------
    kv_bytes_per_token : of one layer [B/token]

    Examples
    --------
    >>> indexer_layout_bytes_per_token(128)
    132.0

    References
    ----------
    vLLM, cache of the DeepSeek-V3.2 indexer (128 B + 4 B).
    """
    return index_head_dim + 4 * _ops.ceil(index_head_dim / 128)


def recurrent_state_bytes(
    state_elements: Value, bytes_per_state_element: Value, conv_elements: Value, bytes_per_conv_element: Value
) -> Value:
    r"""Bytes one layer of linear attention or of a state-space model keeps of a sequence, whatever its length.

    .. math:: B = n_s w_s + n_c w_c

    Parameters
    ----------
    state_elements : of the recurrent state n_s [elements]
    bytes_per_state_element : storage width w_s; engines often keep the state in fp32 [B]
    conv_elements : last inputs of the short convolution n_c, one column fewer than the kernel has [elements]
    bytes_per_conv_element : storage width w_c [B]

    Returns
    -------
    state_bytes : of one layer and sequence [B]

    Examples
    --------
    >>> 36 * recurrent_state_bytes(524288, 4, 24576, 2)  # Qwen3-Next-80B-A3B
    77266944

    References
    ----------
    Mamba-2, arXiv:2405.21060; gated delta rule, arXiv:2412.06464.
    """
    return state_elements * bytes_per_state_element + conv_elements * bytes_per_conv_element


def summed_kv_bytes_per_token(**kv_bytes_per_token: Value) -> Value:
    r"""KV-cache bytes one more token adds over several kinds of layers.

    .. math:: \kappa = \sum_k \kappa_k

    Parameters
    ----------
    kv_bytes_per_token : of all layers of one kind, one argument a kind [B/token]

    Returns
    -------
    kv_bytes_per_token : of the whole model, unsharded [B/token]

    Examples
    --------
    >>> summed_kv_bytes_per_token(full_layers=36864, window_layers=36864)  # gpt-oss-120b
    73728

    References
    ----------
    The definition.
    """
    return sum(kv_bytes_per_token.values())


def sequence_kv_bytes(
    context_tokens: Value,
    kv_bytes_per_token: Value,
    window_kv_bytes_per_token: Value,
    window_tokens: Value,
    state_bytes: Value,
) -> Value:
    r"""KV-cache bytes of one sequence where some layers slide over a window.

    .. math:: \kappa(S) = S\,\kappa - (S - \min(S, W))\,\kappa_W + B_0

    Parameters
    ----------
    context_tokens : tokens of the sequence S [tokens]
    kv_bytes_per_token : growth while the window is open, all layers kappa [B/token]
    window_kv_bytes_per_token : the part of it that stops growing at the window kappa_W [B/token]
    window_tokens : window W [tokens]
    state_bytes : recurrent state that does not grow B_0 [B]

    Returns
    -------
    kv_bytes : of one sequence, whole model [B]

    Examples
    --------
    >>> sequence_kv_bytes(8192, 49152, 24576, 128, 0)  # gpt-oss-20b
    204472320

    References
    ----------
    Mistral 7B, arXiv:2310.06825, section 2.
    """
    beyond = context_tokens - held_tokens(context_tokens, window_tokens)
    return context_tokens * kv_bytes_per_token - beyond * window_kv_bytes_per_token + state_bytes


def kv_heads_per_rank(n_kv_heads: Value, tensor_parallel: Value) -> Value:
    r"""Key-value heads on one rank: split over tensor parallelism, replicated once there are more ranks than heads.

    .. math:: h = \max(1, \lceil H_\mathrm{kv}/T \rceil)

    Parameters
    ----------
    n_kv_heads : key-value heads H_kv [-]
    tensor_parallel : ranks T [GPUs]

    Returns
    -------
    heads : of the busiest rank [-]

    Examples
    --------
    >>> kv_heads_per_rank(8, 2), kv_heads_per_rank(8, 32)
    (4.0, 1.0)

    References
    ----------
    vLLM, ``ModelConfig.get_num_kv_heads``.
    """
    return _ops.maximum(1.0, _ops.ceil(n_kv_heads / tensor_parallel))


def busiest_stage_share(n_layers: Value, pipeline_parallel: Value) -> Value:
    r"""Share of the layers on the fullest pipeline stage.

    .. math:: s = \lceil L/P \rceil / L

    Parameters
    ----------
    n_layers : layers L [-]
    pipeline_parallel : stages P [-]

    Returns
    -------
    share : 1 without a pipeline [-]

    Examples
    --------
    >>> busiest_stage_share(61, 1), busiest_stage_share(80, 4)
    (1.0, 0.25)

    References
    ----------
    arXiv:1811.06965.
    """
    return _ops.ceil(n_layers / pipeline_parallel) / n_layers
