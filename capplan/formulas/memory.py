"""Memory of one GPU: what engines leave for the KV cache, and the blocks it is cut into."""

from __future__ import annotations

from capplan.formulas import _ops
from capplan.formulas._ops import Value


def total_weights_bytes(
    attention_weights_bytes: Value,
    feed_forward_weights_bytes: Value,
    expert_weights_bytes: Value,
    embedding_weights_bytes: Value,
) -> Value:
    r"""Weights on one GPU.

    .. math:: W = W_\mathrm{attention} + W_\mathrm{feed forward} + W_\mathrm{experts} + W_\mathrm{embeddings}

    Parameters
    ----------
    attention_weights_bytes, feed_forward_weights_bytes, expert_weights_bytes, embedding_weights_bytes : by part, as
        the layout divides them [B]

    Returns
    -------
    weights_bytes : on one GPU [B]

    References
    ----------
    :mod:`capplan.serving.weights`.
    """
    return attention_weights_bytes + feed_forward_weights_bytes + expert_weights_bytes + embedding_weights_bytes


def utilization_room_bytes(
    hbm_bytes: Value,
    memory_fraction: Value,
    weights_bytes: Value,
    activation_peak_bytes: Value,
    graph_bytes: Value,
    other_bytes: Value,
) -> Value:
    r"""Room for KV cache where a share of the whole memory must hold everything (vLLM).

    .. math:: B_\mathrm{KV} = u\,M - W - A - G - O

    Parameters
    ----------
    hbm_bytes : memory the driver reports M [B]
    memory_fraction : share the engine may use u [-]
    weights_bytes : weights on this GPU W [B]
    activation_peak_bytes : largest allocation of a forward pass A [B]
    graph_bytes : CUDA graphs G, where the engine deducts them [B]
    other_bytes : CUDA context and libraries O [B]

    Returns
    -------
    room_bytes : for the KV cache; below zero by as much as is missing [B]

    Examples
    --------
    >>> round(utilization_room_bytes(79.19, 0.95, 14.99, 1.89, 0, 0.25), 2)  # Llama-3.1-8B, one H100 [GiB]: 58.11
    58.1

    References
    ----------
    vLLM, ``Worker.determine_available_memory``; the row: llm-d-planner pull request 205.
    """
    return memory_fraction * hbm_bytes - weights_bytes - activation_peak_bytes - graph_bytes - other_bytes


def static_fraction_room_bytes(
    hbm_bytes: Value, memory_fraction: Value, weights_bytes: Value, other_bytes: Value
) -> Value:
    r"""Room for KV cache where a share of the memory free at start holds weights and KV (SGLang).

    .. math:: B_\mathrm{KV} = (F - W) - (1 - f)\,F, \qquad F = M - O

    Activations and CUDA graphs live in the other share.

    Parameters
    ----------
    hbm_bytes : memory the driver reports M [B]
    memory_fraction : share for weights and KV f [-]
    weights_bytes : weights on this GPU W [B]
    other_bytes : CUDA context and libraries before weights are loaded O [B]

    Returns
    -------
    room_bytes : for the KV cache; below zero by as much as is missing [B]

    Examples
    --------
    >>> static_fraction_room_bytes(80, 0.875, 20, 0)
    50.0

    References
    ----------
    SGLang, ``ModelRunner.profile_max_num_token``.
    """
    free_before = hbm_bytes - other_bytes
    return free_before - weights_bytes - (1 - memory_fraction) * free_before


def free_fraction_room_bytes(
    hbm_bytes: Value, memory_fraction: Value, weights_bytes: Value, activation_peak_bytes: Value, other_bytes: Value
) -> Value:
    r"""Room for KV cache where a share of what is left after a warm-up run is taken (TensorRT-LLM).

    .. math:: B_\mathrm{KV} = f\,F\ \text{if}\ F > 0,\ \text{else}\ F, \qquad F = M - W - A - O

    Parameters
    ----------
    hbm_bytes : memory the driver reports M [B]
    memory_fraction : share of the free memory f [-]
    weights_bytes : weights on this GPU W [B]
    activation_peak_bytes : largest allocation of a forward pass A [B]
    other_bytes : CUDA context and libraries O [B]

    Returns
    -------
    room_bytes : for the KV cache; below zero where weights and activations do not fit [B]

    Examples
    --------
    >>> free_fraction_room_bytes(80, 0.5, 20, 4, 1)
    27.5

    References
    ----------
    TensorRT-LLM, ``KvCacheConfig.free_gpu_memory_fraction``.
    """
    free = hbm_bytes - weights_bytes - activation_peak_bytes - other_bytes
    return _ops.where(free > 0, memory_fraction * free, free)


def default_static_fraction(
    hbm_bytes: Value,
    max_batched_tokens: Value,
    graph_sequences: Value,
    gpus: Value,
    dp_ranks: Value,
    base_bytes: Value,
    bytes_per_batched_token: Value,
    bytes_per_graph_sequence: Value,
    bytes_per_gpu: Value,
    bytes_per_graph_sequence_and_dp_rank: Value,
    least_bytes: Value,
) -> Value:
    r"""Share for weights and KV that SGLang chooses when none is given.

    .. math:: f = 1 - \max(b_0 + b_t T + b_g G + b_n N + b_d G D,\ b_\mathrm{least}) / M

    Parameters
    ----------
    hbm_bytes : memory of the GPU M [B]
    max_batched_tokens : tokens of a prefill chunk T, at least 2,048 [tokens]
    graph_sequences : largest batch captured as a CUDA graph G [sequences]
    gpus : tensor-parallel times pipeline GPUs N [GPUs]
    dp_ranks : data-parallel attention ranks D, 0 without attention data parallelism [-]
    base_bytes, bytes_per_batched_token, bytes_per_graph_sequence, bytes_per_gpu : b_0, b_t, b_g, b_n [B]
    bytes_per_graph_sequence_and_dp_rank : b_d; half as much again above 300 captured sequences [B]
    least_bytes : least that stays free [B]

    Returns
    -------
    memory_fraction : share for weights and KV [-]

    Examples
    --------
    >>> MiB = 2**20
    >>> f = default_static_fraction(81559*MiB, 8192, 256, 1, 0, 512*MiB, 1.5*MiB, 2*MiB, 128*MiB, 3*MiB, 10240*MiB)
    >>> round(f, 3)  # one H100
    0.835

    References
    ----------
    SGLang, ``ServerArgs._handle_gpu_memory_settings``.
    """
    per_rank = bytes_per_graph_sequence_and_dp_rank * _ops.where(graph_sequences > 300, 1.5, 1.0)
    kept = base_bytes + bytes_per_batched_token * _ops.maximum(max_batched_tokens, 2048)
    kept = kept + graph_sequences * (bytes_per_graph_sequence + per_rank * dp_ranks) + bytes_per_gpu * gpus
    return 1 - _ops.maximum(kept, least_bytes) / hbm_bytes


def whole_blocks(context_tokens: Value, block_tokens: Value) -> Value:
    r"""Blocks a paged cache gives a sequence.

    .. math:: n = \lceil S/b \rceil

    Parameters
    ----------
    context_tokens : cached tokens S [tokens]
    block_tokens : tokens of a block b [tokens]

    Returns
    -------
    blocks : whole blocks [-]

    Examples
    --------
    >>> whole_blocks(33, 16)
    3.0

    References
    ----------
    PagedAttention, arXiv:2309.06180.
    """
    return _ops.ceil(context_tokens / block_tokens)


def pool_bytes(kv_room_bytes: Value) -> Value:
    r"""KV cache of one GPU: the room there is, nothing where memory is missing.

    .. math:: B = \max(B_\mathrm{KV}, 0)

    Parameters
    ----------
    kv_room_bytes : what the engine's formula leaves, below zero where memory is missing [B]

    Returns
    -------
    kv_pool_bytes : of one GPU [B]

    References
    ----------
    The engine's formula: :func:`utilization_room_bytes` and its kin.
    """
    return _ops.maximum(kv_room_bytes, 0.0)


def pool_bytes_of_blocks(num_gpu_blocks: Value, block_bytes: Value) -> Value:
    r"""KV cache of one GPU from the number of blocks an engine reports.

    .. math:: B = n\,B_\mathrm{block}

    Parameters
    ----------
    num_gpu_blocks : blocks n [-]
    block_bytes : one block over the layers it spans [B]

    Returns
    -------
    kv_pool_bytes : of one GPU [B]

    Examples
    --------
    >>> pool_bytes_of_blocks(7351, 16 * 524288) / 2**30  # Llama-2-7B on an 80 GB A100
    57.4296875

    References
    ----------
    vLLM prints the number at start-up; the value: vllm-project/vllm pull request 2031.
    """
    return num_gpu_blocks * block_bytes


def pool_bytes_of_gib(kv_pool_gib: Value) -> Value:
    r"""KV cache of one GPU from a figure in GiB.

    .. math:: B = 2^{30}\,g

    Parameters
    ----------
    kv_pool_gib : pool g [GiB]

    Returns
    -------
    kv_pool_bytes : of one GPU [B]

    References
    ----------
    IEC 80000-13.
    """
    return kv_pool_gib * 2**30


def capacity_tokens(kv_pool_bytes: Value, block_tokens: Value, kv_bytes_per_token: Value) -> Value:
    r"""Tokens a pool holds in whole blocks.

    .. math:: C = b \lfloor B / (b \kappa) \rfloor

    Parameters
    ----------
    kv_pool_bytes : pool of one GPU B [B]
    block_tokens : tokens of a block b [tokens]
    kv_bytes_per_token : bytes of one token on that GPU kappa [B/token]

    Returns
    -------
    capacity_tokens : of the rank the GPU belongs to [tokens]

    Examples
    --------
    >>> capacity_tokens(58.11 * 2**30, 16, 131072)  # Llama-3.1-8B, one H100, vLLM 0.19: 476,016 in the log
    476032.0

    References
    ----------
    vLLM, ``get_num_blocks``; the row: llm-d-planner pull request 205.
    """
    return block_tokens * pool_blocks(kv_pool_bytes, block_tokens, kv_bytes_per_token)


def pool_blocks(kv_pool_bytes: Value, block_tokens: Value, kv_bytes_per_token: Value) -> Value:
    r"""Whole blocks that fit into a pool.

    .. math:: n = \lfloor B / (b \kappa) \rfloor

    Parameters
    ----------
    kv_pool_bytes : pool B [B]
    block_tokens : tokens of a block b [tokens]
    kv_bytes_per_token : bytes of one token on this GPU kappa [B/token]

    Returns
    -------
    blocks : whole blocks [-]

    Examples
    --------
    >>> 16 * pool_blocks(16 * 2**30, 16, 57344)  # Qwen2.5-7B, 16 GiB
    299584.0

    References
    ----------
    vLLM, ``get_num_blocks``; the value: vllm-project/vllm pull request 44594.
    """
    return floor(kv_pool_bytes / (block_tokens * kv_bytes_per_token))


def floor(x: Value) -> Value:
    """Round down, forgiving the same rounding noise as :func:`capplan.formulas._ops.ceil`.

    >>> floor(2.9), floor(0.1 * 3 * 10)
    (2.0, 3.0)
    """
    return 0.0 - _ops.ceil(-x)


def windowed_worst_case_blocks(
    max_context_tokens: Value, block_tokens: Value, window_tokens: Value, max_batched_tokens: Value
) -> Value:
    r"""Blocks an engine reserves for one sliding-window layer of the longest sequence.

    .. math:: n = \lceil \min(S,\ W - 1 + T)/b \rceil + 1

    A chunk of prefill is written before the tokens that left the window are freed.

    Parameters
    ----------
    max_context_tokens : longest sequence S [tokens]
    block_tokens : tokens of a block b [tokens]
    window_tokens : window W [tokens]
    max_batched_tokens : tokens of a step T [tokens]

    Returns
    -------
    blocks : of one layer [-]

    Examples
    --------
    >>> windowed_worst_case_blocks(9472, 16, 128, 8192)  # gpt-oss-120b
    521.0

    References
    ----------
    vLLM, ``SlidingWindowSpec.max_memory_usage_bytes``.
    """
    return _ops.ceil(_ops.minimum(max_context_tokens, window_tokens - 1 + max_batched_tokens) / block_tokens) + 1
