"""Pages of a KV cache that several kinds of layers share: full attention, sliding windows, recurrent state.

An engine that serves all of them from one pool gives every layer pages of the same size and a block table to a group
of layers. Symbols: S context, b tokens of a page, W window.
"""

from __future__ import annotations

from capplan.formulas import _ops
from capplan.formulas._ops import Value

_PADDED_UP_TO = 1.5
"""Kinds that differ by less than this factor in layers are all padded to the larger number (vLLM)."""


def layers_per_table(layer_counts: tuple[int, ...]) -> int:
    r"""Layers that share one block table.

    .. math:: g = \min_k n_k,\quad g = \max_k n_k \text{ where } \max_k n_k < 1.5 \min_k n_k

    Parameters
    ----------
    layer_counts : layers of each kind n_k, all above zero [layers]

    Returns
    -------
    layers : of one table; the last table of a kind is padded [layers]

    Examples
    --------
    >>> layers_per_table((10, 52)), layers_per_table((13, 12))  # Gemma-3-27B; gpt-oss-20b with a draft layer
    (10, 13)

    References
    ----------
    vLLM, ``kv_cache_utils._get_kv_cache_groups_uniform_page_size``.
    """
    fewest, most = min(layer_counts), max(layer_counts)
    return most if most < _PADDED_UP_TO * fewest else fewest


def state_page_tokens(state_bytes: Value, kv_bytes_per_token: Value, alignment_tokens: Value) -> Value:
    r"""Tokens of a page that is as large as a recurrent state.

    .. math:: b = a \lceil B / (a \kappa) \rceil

    Parameters
    ----------
    state_bytes : state of one layer on one GPU B [B]
    kv_bytes_per_token : of one attention layer on that GPU kappa [B/token]
    alignment_tokens : multiple the attention kernels take a [tokens]

    Returns
    -------
    page_tokens : of an attention layer [tokens]

    Examples
    --------
    >>> state_page_tokens(32 * 128 * 128 * 2 + 3 * 8192 * 2, 2048, 16)  # Qwen3-Next-80B-A3B: 544 in vLLM's log
    544.0

    References
    ----------
    vLLM, ``HybridAttentionMambaModelConfig``, "Setting attention block size to ... tokens".
    """
    return alignment_tokens * _ops.ceil(state_bytes / (alignment_tokens * kv_bytes_per_token))


def windowed_held_blocks(context_tokens: Value, block_tokens: Value, window_tokens: Value) -> Value:
    r"""Pages a sliding-window layer holds of a running sequence.

    .. math:: n = \min(\lceil S/b \rceil,\ \lceil (W - 1)/b \rceil + 1)

    The window begins anywhere in a page; pages it has left are freed.

    Parameters
    ----------
    context_tokens : tokens of the sequence S [tokens]
    block_tokens : tokens of a page b [tokens]
    window_tokens : window W [tokens]

    Returns
    -------
    blocks : of one layer [-]

    Examples
    --------
    >>> windowed_held_blocks(8192, 16, 128), windowed_held_blocks(40, 16, 128)
    (9.0, 3.0)

    References
    ----------
    vLLM, ``SlidingWindowManager.remove_skipped_blocks``.
    """
    whole = _ops.ceil(context_tokens / block_tokens)
    return _ops.minimum(whole, _ops.ceil((window_tokens - 1) / block_tokens) + 1)
