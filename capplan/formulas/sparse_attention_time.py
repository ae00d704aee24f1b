"""Time of attention that reads a part of its cache: an indexer that chooses, and the core that reads what it chose."""

from __future__ import annotations

from capplan.formulas import _ops
from capplan.formulas._ops import Value
from capplan.formulas.attention_time import causal_pairs
from capplan.formulas.roofline import kernel_seconds

SCORE_BYTES = 8
"""A score of 32 bits is written by the kernel that computes it and read by the one that selects."""


def indexer_seconds(
    sequences: Value,
    pairs: Value,
    entries: Value,
    key_bytes: Value,
    flops_per_pair: Value,
    floor_seconds: Value,
    stream_bandwidth: Value,
    score_bandwidth: Value,
    flops_per_second: Value,
    entry_seconds: Value = 0.0,
) -> Value:
    r"""Time an indexer takes to score all entries of the cache and to select the best, one layer.

    .. math:: t = t_0 + (t_b^4 + t_f^4)^{1/4} + N P \frac{8\,\mathrm{B}}{B_s}, \quad
              t_b = \frac{N E \kappa}{B}, \quad t_f = \max\left(\frac{N P f}{R},\ \tau E\right)

    Index keys of a sequence are read once whatever the number of its queries; every pair of query and entry is scored,
    and its score written and read again. One row of scores is selected from by one multiprocessor, so a lone row
    takes :math:`\tau` an entry.

    Parameters
    ----------
    sequences : N, on this GPU [1]
    pairs : query-entry pairs of one sequence P [1]
    entries : index keys held of each sequence E [1]
    key_bytes : kappa, one index key [B]
    flops_per_pair : f, ``2 * heads * width`` of the indexer, which tensor parallelism does not split [FLOP]
    floor_seconds : t_0, of scoring, selection and the small kernels in front of them [s]
    stream_bandwidth : B, reading index keys [B/s]
    score_bandwidth : B_s, of scores written and selected from [B/s]
    flops_per_second : measured R of the scoring kernel [FLOP/s]
    entry_seconds : tau [s]

    Returns
    -------
    indexer_seconds : projections of the indexer not included [s]

    Examples
    --------
    >>> decode = indexer_seconds(64, 65536, 65536, 132, 16384, 20e-6, 4.55e12, 9.8e11, 1.32e15)
    >>> round(decode * 1e6)  # DeepSeek-V3.2, 64 sequences of 65,536 tokens
    177

    References
    ----------
    DeepSeek-V3.2, arXiv:2512.02556, section 2.1: lightning indexer and selection of the best tokens.
    """
    read = sequences * entries * (key_bytes / stream_bandwidth)
    compute = _ops.maximum(sequences * pairs * (flops_per_pair / flops_per_second), entries * entry_seconds)
    return kernel_seconds(floor_seconds, read, compute) + sequences * pairs * (SCORE_BYTES / score_bandwidth)


def selected_pairs(
    new_tokens: Value, cached_tokens: Value, tokens_per_entry: Value, selected_entries: Value | None
) -> Value:
    r"""Pairs of the queries of a prompt with the entries each of them reads.

    .. math:: \sum_{i=1}^{n} \min\left(\frac{c + i}{r},\ k\right)

    Parameters
    ----------
    new_tokens : n [tokens]
    cached_tokens : c [tokens]
    tokens_per_entry : r; 1 where every token is an entry [tokens]
    selected_entries : k, None where all are read [1]

    Returns
    -------
    pairs : [1]

    Examples
    --------
    >>> selected_pairs(4, 0, 1, 2), selected_pairs(4, 4, 4, None)
    (7.0, 6.5)
    """
    most = None if selected_entries is None else selected_entries * tokens_per_entry
    return causal_pairs(new_tokens, cached_tokens, most) / tokens_per_entry


def sparse_attention_seconds(
    sequences: Value,
    pairs: Value,
    pair_bytes: Value,
    flops_per_pair: Value,
    floor_seconds: Value,
    stream_bandwidth: Value,
    flops_per_second: Value,
) -> Value:
    r"""Time of the core over the entries that were chosen: every query gathers its own.

    .. math:: t = t_0 + (t_b^4 + t_f^4)^{1/4}, \quad t_b = \frac{N P \kappa}{B}, \quad t_f = \frac{N P f}{R}

    In a prompt neighbouring queries choose much the same entries, which a cache holds: there ``pair_bytes`` is 0.

    Parameters
    ----------
    sequences : N, on this GPU [1]
    pairs : query-entry pairs of one sequence P, from :func:`selected_pairs` [1]
    pair_bytes : kappa, bytes gathered for one pair [B]
    flops_per_pair : f of all heads of this GPU [FLOP]
    floor_seconds : t_0 [s]
    stream_bandwidth : B of scattered entries [B/s]
    flops_per_second : measured R [FLOP/s]

    Returns
    -------
    attention_seconds : one layer [s]

    Examples
    --------
    >>> one = sparse_attention_seconds(128, 2048, 1152, 278528, 17.4e-6, 3.7e12, 580e12)
    >>> round(one * 1e6)  # DeepSeek-V3.2, whatever the context beyond 2,048 tokens
    149

    References
    ----------
    FlashMLA, github.com/deepseek-ai/FlashMLA: sparse decode reaches 410, sparse prefill 640 TFLOP/s on an H800.
    """
    return kernel_seconds(
        floor_seconds,
        sequences * pairs * (pair_bytes / stream_bandwidth),
        sequences * pairs * (flops_per_pair / flops_per_second),
    )
