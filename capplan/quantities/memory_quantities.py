"""Named quantities of the memory topic: bytes on one GPU of the busiest pipeline stage of one data-parallel rank."""

from __future__ import annotations

from capplan.quantities.quantity import Quantity, with_ranges

_CARD = "hardware card"
_ENGINE = "engine card"
_MEMORY = "capplan.formulas.memory"

_QUANTITIES: tuple[Quantity, ...] = (
    Quantity("hbm_bytes", "B", "memory of one GPU as the driver reports it", "hardware card", _CARD),
    Quantity(
        "attention_weights_bytes",
        "B",
        "weights of attention on one GPU: split over TP, latent projections replicated",
        "sum over the layers of a stage",
        "capplan.serving.weights",
    ),
    Quantity(
        "feed_forward_weights_bytes",
        "B",
        "dense feed-forward, shared experts, routers and norms on one GPU",
        "sum over the layers of a stage, split over TP",
        "capplan.serving.weights",
    ),
    Quantity(
        "expert_weights_bytes",
        "B",
        "routed and redundant experts on one GPU",
        "layers x ceil((experts + redundant) / ep) x bytes of one expert",
        "capplan.serving.weights",
    ),
    Quantity(
        "embedding_weights_bytes",
        "B",
        "embedding and lm_head on one GPU",
        "split over TP; the larger one with a pipeline",
        "capplan.serving.weights",
    ),
    Quantity(
        "weights_bytes",
        "B",
        "weights on one GPU",
        "attention_weights_bytes + feed_forward_weights_bytes + expert_weights_bytes + embedding_weights_bytes",
        f"{_MEMORY}.total_weights_bytes",
    ),
    Quantity(
        "max_num_batched_tokens", "token", "tokens of the largest step", "the engine's default on this GPU", _ENGINE
    ),
    Quantity("max_num_seqs", "1", "largest batch of one rank the engine prepares for", "the engine's default", _ENGINE),
    Quantity(
        "activation_peak_bytes",
        "B",
        "largest allocation of a forward pass on one GPU",
        "2 max_num_batched_tokens hidden + max(layer, expanded latent, logits)",
        "capplan.formulas.activation_memory.activation_peak_bytes",
    ),
    Quantity("graph_bytes", "B", "CUDA graphs on one GPU, where the engine deducts them", "engine card", _ENGINE),
    Quantity("other_bytes", "B", "CUDA context and libraries on one GPU", "engine card", _ENGINE),
    Quantity(
        "gpu_memory_utilization",
        "1",
        "share of the memory a vLLM-like engine may use",
        "the engine's default",
        _ENGINE,
    ),
    Quantity(
        "mem_fraction_static",
        "1",
        "share of the free memory that holds weights and KV in SGLang",
        "1 - max(reserve, least) / hbm_bytes",
        f"{_MEMORY}.default_static_fraction",
    ),
    Quantity(
        "free_gpu_memory_fraction",
        "1",
        "share of the memory left after a warm-up run that TensorRT-LLM gives the KV cache",
        "the engine's default",
        _ENGINE,
    ),
    Quantity(
        "kv_room_bytes",
        "B",
        "memory of one GPU left for the KV cache; below zero by what is missing",
        "the engine's formula over hbm_bytes, weights_bytes, activation_peak_bytes, graph_bytes, other_bytes",
        _MEMORY,
        signed=True,
    ),
    Quantity("kv_block_tokens", "token", "tokens of one block of the paged cache", "engine card", _ENGINE),
    Quantity(
        "kv_bytes_per_token_per_gpu",
        "B",
        "bytes one more token of a sequence takes on one GPU",
        "capplan.cards.kv.kv_bytes_per_rank at one token",
        "capplan.formulas.kv_cache",
    ),
    Quantity("kv_pool_gib", "GiB", "KV cache of one GPU as given by the user [GiB]", "the user's number", "user"),
    Quantity("num_gpu_blocks", "1", "blocks of the KV cache as the engine reports them", "the user's number", "user"),
    Quantity(
        "kv_pool_bytes",
        "B",
        "KV cache of one GPU",
        "max(kv_room_bytes, 0); from num_gpu_blocks or kv_pool_gib where given",
        _MEMORY,
    ),
    Quantity(
        "kv_capacity_tokens",
        "token",
        "tokens one rank holds in whole blocks, where every token takes the same",
        "kv_block_tokens floor(kv_pool_bytes / (kv_block_tokens kv_bytes_per_token_per_gpu))",
        f"{_MEMORY}.pool_blocks",
    ),
)

QUANTITIES = with_ranges(
    _QUANTITIES,
    positive=(
        "hbm_bytes", "kv_block_tokens", "max_num_batched_tokens", "max_num_seqs", "kv_bytes_per_token_per_gpu",
        "gpu_memory_utilization", "mem_fraction_static", "free_gpu_memory_fraction",
    ),
    whole=("kv_block_tokens", "max_num_batched_tokens", "max_num_seqs", "num_gpu_blocks", "kv_capacity_tokens"),
    shares=("gpu_memory_utilization", "mem_fraction_static", "free_gpu_memory_fraction"),
)  # fmt: skip
