"""Named quantities of a model: its size, its cache, its work a token."""

from __future__ import annotations

from capplan.quantities.quantity import Quantity, with_ranges

_MODEL = "capplan.cards.model.Model"
_KV = "capplan.formulas.kv_cache"
_WEIGHTS = "capplan.formulas.weights"
_LAYERS_FORMULA = (
    "n_layers * n_kv_heads * (head_dim + value_head_dim) * bytes_per_element; latent attention: "
    "n_layers * (kv_lora_rank + qk_rope_head_dim) * bytes_per_element; index keys: "
    "n_layers * index_head_dim * bytes_per_element; compressed entries: head_dim * bytes_per_element / compress_ratio"
)
_LAYERS_SOURCE = f"{_KV}.gqa_kv_bytes_per_token, {_KV}.mla_kv_bytes_per_token"

_QUANTITIES: tuple[Quantity, ...] = (
    Quantity(
        "parameters_total",
        "parameter",
        "Parameters of the text part, every stored matrix once, multi-token-prediction layers not counted.",
        "embedding + attention + feed_forward + routed_experts + shared_experts + router + norms + lm_head",
        _MODEL,
    ),
    Quantity(
        "parameters_active",
        "parameter",
        "Parameters one token passes; the embedding look-up is not counted.",
        "parameters_total - embedding - (n_experts - top_k) * parameters_of_one_expert",
        _MODEL,
    ),
    Quantity(
        "matmul_parameters_active",
        "parameter",
        "Matrix elements one token is multiplied with, lm_head included.",
        "parameters_active - biases - norms - sinks",
        _MODEL,
    ),
    Quantity(
        "model_weight_bytes",
        "B",
        "Bytes of all weights as stored, with the scales of quantised formats, unsharded.",
        "sum(inputs * outputs * element_bytes + ceil(inputs / block) * ceil(outputs / block) * scale_bytes)",
        f"{_WEIGHTS}.scaled_weight_bytes",
    ),
    Quantity(
        "linear_flops_per_token",
        "FLOP",
        "Operations of the weight matrices for one token.",
        "2 * matmul_parameters_active",
        f"{_WEIGHTS}.linear_flops_per_token",
    ),
    Quantity(
        "attention_flops_per_token",
        "FLOP",
        "Operations of all attention layers for one token over its context.",
        "sum(2 * n_heads * (head_dim + value_head_dim) * min(context, window)); latent attention in decode: "
        "sum(2 * n_heads * (2 * kv_lora_rank + qk_rope_head_dim) * context)",
        f"{_WEIGHTS}.attention_flops_per_token, {_WEIGHTS}.mla_absorbed_attention_flops_per_token",
    ),
    Quantity(
        "kv_bytes_per_token",
        "B/token",
        "Bytes one more token adds to the KV cache at short context, whole model, unsharded.",
        "kv_bytes_per_token_full_layers + kv_bytes_per_token_window_layers",
        f"{_KV}.summed_kv_bytes_per_token",
    ),
    Quantity(
        "kv_bytes_per_token_full_layers",
        "B/token",
        "The part of kv_bytes_per_token in layers that keep every token.",
        _LAYERS_FORMULA,
        _LAYERS_SOURCE,
    ),
    Quantity(
        "kv_bytes_per_token_window_layers",
        "B/token",
        "The part of kv_bytes_per_token in layers that keep a sliding window; it stops growing there.",
        _LAYERS_FORMULA,
        _LAYERS_SOURCE,
    ),
    Quantity(
        "kv_bytes_per_sequence",
        "B",
        "Bytes one sequence of the given context holds, recurrent state included, whole model, unsharded.",
        "context_tokens * kv_bytes_per_token - max(context_tokens - window_tokens, 0) * "
        "kv_bytes_per_token_window_layers + state_bytes_per_sequence",
        f"{_KV}.sequence_kv_bytes",
    ),
    Quantity(
        "state_bytes_per_sequence",
        "B",
        "Bytes a sequence keeps whatever its context: recurrent state of linear attention and state-space layers.",
        "sum over layers that have one",
        _MODEL,
    ),
)

QUANTITIES = with_ranges(
    _QUANTITIES,
    positive=("parameters_total", "parameters_active", "matmul_parameters_active", "model_weight_bytes"),
)
