"""Memory of one forward pass: what an engine sets aside for the largest step beside weights and KV cache."""

from __future__ import annotations

from capplan.formulas import _ops
from capplan.formulas._ops import Value


def logits_peak_bytes(max_sequences: Value, vocabulary: Value, activation_bytes_per_logit: Value) -> Value:
    r"""Bytes the sampler allocates for the largest batch: logits, their copies, the sort of a top-p cut.

    .. math:: A_\mathrm{logits} = S\,V\,w

    On vLLM it sets the activation peak of most models: 4.76 GiB for Llama-3.1-8B on 0.11.

    Parameters
    ----------
    max_sequences : sequences of the largest batch S [sequences]
    vocabulary : entries V [-]
    activation_bytes_per_logit : bytes alive for one entry w; a constant of the engine's version [B]

    Returns
    -------
    logits_bytes : on one GPU of the last stage; logits are gathered on every rank [B]

    Examples
    --------
    >>> round(logits_peak_bytes(1024, 128256, 38.4) / 2**30, 2)
    4.7

    References
    ----------
    Start-up logs: llm-d-planner pull request 205; constants on the engine cards.
    """
    return max_sequences * vocabulary * activation_bytes_per_logit


def layer_peak_bytes(
    max_batched_tokens: Value,
    hidden_size: Value,
    inner_width: Value,
    routed_rows: Value,
    activation_hidden_widths: Value,
    activation_inner_widths: Value,
) -> Value:
    r"""Bytes one layer has alive for a batch of prefill tokens, in 16 bits.

    .. math:: A_\mathrm{layer} = 2\,T\,(n_h d + n_i I + r d)

    Parameters
    ----------
    max_batched_tokens : tokens of a step T [tokens]
    hidden_size : width of the model d [elements]
    inner_width : feed-forward width of one token on this GPU, over all experts it visits there I [elements]
    routed_rows : copies of a token that experts on this GPU hold r [-]
    activation_hidden_widths, activation_inner_widths : vectors of each width alive at once n_h, n_i [-]

    Returns
    -------
    layer_bytes : on one GPU [B]

    Examples
    --------
    >>> round(layer_peak_bytes(8192, 4096, 14336, 0, 6, 3) / 2**30, 2)  # Llama-3.1-8B, one stage of two: measured 1.1
    1.03

    References
    ----------
    Start-up logs: llm-d-planner pull request 205; constants on the engine cards.
    """
    widths = activation_hidden_widths * hidden_size + activation_inner_widths * inner_width + routed_rows * hidden_size
    return 2 * max_batched_tokens * widths


def latent_expansion_bytes(
    workspace_tokens: Value, n_heads: Value, qk_nope_head_dim: Value, value_head_dim: Value, tensor_parallel: Value
) -> Value:
    r"""Bytes of keys and values that a latent is expanded to at once when a prompt attends to earlier chunks.

    .. math:: A_\mathrm{latent} = 2\,T_w\,\frac{H}{t}\,(d_n + d_v)

    Parameters
    ----------
    workspace_tokens : tokens expanded at once T_w [tokens]
    n_heads : heads H [-]
    qk_nope_head_dim, value_head_dim : widths d_n, d_v of one head [elements]
    tensor_parallel : ranks t that split the heads [GPUs]

    Returns
    -------
    expansion_bytes : on one GPU, in 16 bits [B]

    Examples
    --------
    >>> latent_expansion_bytes(65536, 128, 128, 128, 1) / 2**30  # DeepSeek-V3 under data parallelism
    4.0

    References
    ----------
    vLLM, ``MLACommonMetadataBuilder.chunked_prefill_workspace_size``.
    """
    return 2 * workspace_tokens * n_heads / tensor_parallel * (qk_nope_head_dim + value_head_dim)


def activation_peak_bytes(
    max_batched_tokens: Value, hidden_size: Value, layer_bytes: Value, expansion_bytes: Value, logits_bytes: Value
) -> Value:
    r"""Largest allocation of a forward pass: the hidden states of the batch and the hungriest of its moments.

    .. math:: A = 2\,T\,d + \max(A_\mathrm{layer},\ A_\mathrm{latent},\ A_\mathrm{logits})

    Parameters
    ----------
    max_batched_tokens : tokens of a step T [tokens]
    hidden_size : width of the model d [elements]
    layer_bytes : of one layer, :func:`layer_peak_bytes` [B]
    expansion_bytes : of an expanded latent, :func:`latent_expansion_bytes` [B]
    logits_bytes : of the sampler, :func:`logits_peak_bytes` [B]

    Returns
    -------
    activation_peak_bytes : on one GPU [B]

    Examples
    --------
    >>> activation_peak_bytes(8192, 4096, 0, 0, 0) / 2**20
    64.0

    References
    ----------
    vLLM profiles it with a run of the largest batch; constants on the engine cards.
    """
    peak = _ops.maximum(_ops.maximum(layer_bytes, expansion_bytes), logits_bytes)
    return 2 * max_batched_tokens * hidden_size + peak
