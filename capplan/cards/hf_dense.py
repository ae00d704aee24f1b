"""Families of dense models with grouped-query attention: Llama, Qwen, Mistral, Gemma, Phi and their relatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capplan.cards.hf_family import CardPart, Family, Layer, ModuleNames, layers_of
from capplan.cards.hf_fields import ConfigFields
from capplan.cards.hf_parts import (
    Windows,
    dense,
    every,
    flagged_dense,
    flagged_gqa,
    gqa,
    qwen_windows,
    window_of,
    windows_by_type,
    windows_or_none,
)

AttentionBuilder = Callable[[ConfigFields, "int | None"], CardPart]


def dense_layers(
    attention: AttentionBuilder,
    feed_forward: Callable[[ConfigFields], CardPart] = dense,
    windows: Callable[[ConfigFields, int], Windows] | None = None,
    norms: int = 2,
) -> Callable[[ConfigFields, int], list[Layer]]:
    """Layers that differ in their window only."""

    def layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
        kinds = windows(fields, n_layers) if windows is not None else [None] * n_layers
        return layers_of(kinds, lambda window: Layer(attention(fields, window), feed_forward(fields), norms=norms))

    return layers


def _llama(fields: ConfigFields, window: int | None) -> CardPart:
    return flagged_gqa(fields, window, kv_heads_default=True)


def _llama_windows(fields: ConfigFields, n_layers: int) -> Windows:
    fields.must_be("layer_types", ["full_attention"] * n_layers)
    return [None] * n_layers


def _qwen2(fields: ConfigFields, window: int | None) -> CardPart:
    """Qwen2 has a bias on q, k and v without a flag that says so."""
    fields.must_be("attention_bias", True)
    return gqa(fields, window, qkv_bias=True)


def _qwen3(fields: ConfigFields, window: int | None) -> CardPart:
    return flagged_gqa(fields, window, head_dim_required=True, qk_norm=True)


def _plain(fields: ConfigFields, window: int | None) -> CardPart:
    return gqa(fields, window)


def _mistral_windows(fields: ConfigFields, n_layers: int) -> Windows:
    """All layers slide, or none where the field is null; absent, the class would take 4,096."""
    if "sliding_window" not in fields.data and "layer_types" not in fields.data and not fields.prefix:
        raise fields.error("sliding_window", "is missing; write null for full attention")
    return windows_or_none(fields, n_layers)


def _gemma(fields: ConfigFields, window: int | None) -> CardPart:
    return flagged_gqa(fields, window, head_dim_required=True)


def _gemma3(fields: ConfigFields, window: int | None) -> CardPart:
    return flagged_gqa(fields, window, head_dim_required=True, qk_norm=True)


def _gemma2_windows(fields: ConfigFields, n_layers: int) -> Windows:
    """Sliding and full layers take turns, sliding first."""
    fields.ignore("sliding_window_size")
    if fields.has("layer_types"):
        return windows_by_type(fields, n_layers)
    return every(n_layers, 2, window_of(fields))


def _gemma3_windows(fields: ConfigFields, n_layers: int) -> Windows:
    """Every sixth layer is full unless the config says otherwise."""
    fields.must_be("use_bidirectional_attention", False)
    if fields.has("layer_types"):
        fields.ignore("sliding_window_pattern", "_sliding_window_pattern")
        return windows_by_type(fields, n_layers)
    return every(n_layers, fields.whole("sliding_window_pattern", "_sliding_window_pattern"), window_of(fields))


def _pattern_windows(fields: ConfigFields, n_layers: int) -> Windows:
    """``layer_types``, or a pattern that is a number (a full layer ends every period) or letters L and G."""
    if fields.has("layer_types") or not fields.has("sliding_window"):
        fields.ignore("sliding_window", "sliding_window_pattern")
        return windows_by_type(fields, n_layers) if fields.has("layer_types") else [None] * n_layers
    pattern = fields.value("sliding_window_pattern")
    if isinstance(pattern, str) and pattern and set(pattern) <= {"L", "G"} and len(pattern) <= n_layers:
        kinds = [pattern[layer % len(pattern)] for layer in range(n_layers - 1)] + ["G"]
        return [window_of(fields) if kind == "L" else None for kind in kinds]
    return every(n_layers, fields.whole("sliding_window_pattern"), window_of(fields))


def _phi3(fields: ConfigFields, window: int | None) -> CardPart:
    fields.must_be("attention_bias", False)
    fields.must_be("mlp_bias", False)
    fields.must_be("lm_head_bias", False)
    fields.must_be("full_attn_mod", 1)
    fields.ignore("interpolate_factor")
    return gqa(fields, window)


def _cohere(fields: ConfigFields, window: int | None) -> CardPart:
    """A norm of queries and keys has weights of its own for every head."""
    attention = flagged_gqa(fields, window)
    if not fields.flag("use_qk_norm", False):
        return attention
    return {**attention, **whole_qk_norm(fields, attention)}


def _cohere2_windows(fields: ConfigFields, n_layers: int) -> Windows:
    """Fields of the first configs say once more what the class does: blocks side by side, gates, rotary positions."""
    fields.must_be("use_parallel_block", True)
    fields.must_be("use_gated_activation", True)
    fields.must_be("position_embedding_type", "rope_gptj")
    fields.must_be("order_of_interleaved_layers", "local_attn_first")
    fields.must_be("use_embedding_sharing", fields.flag("tie_word_embeddings", True))
    fields.ignore("use_parallel_embedding")
    if fields.has("layer_switch") and fields.has("sliding_window_pattern"):
        fields.must_be("layer_switch", fields.value("sliding_window_pattern"))
    elif fields.has("layer_switch") and not fields.has("layer_types"):
        return every(n_layers, fields.whole("layer_switch"), window_of(fields))
    windows = _pattern_windows(fields, n_layers)
    if fields.has("layer_switch") and windows != every(n_layers, fields.whole("layer_switch"), window_of(fields)):
        raise fields.error("layer_switch", f"{fields.value('layer_switch')} differs from layer_types")
    return windows


def whole_qk_norm(fields: ConfigFields, attention: CardPart) -> CardPart:
    """Norms as wide as all query heads and as all key heads."""
    width = attention["head_dim"]["value"]
    elements = (attention["n_heads"]["value"] + attention["n_kv_heads"]["value"]) * width
    note = "norms over all query and all key heads"
    return {"norm_elements": fields.number(elements, "parameter", note=note)}


def _olmo2(fields: ConfigFields, window: int | None) -> CardPart:
    attention = flagged_gqa(fields, window, kv_heads_default=True)
    return {**attention, **whole_qk_norm(fields, attention)}


def _exaone4(fields: ConfigFields, window: int | None) -> CardPart:
    return gqa(fields, window, qk_norm=True)


def _seed(fields: ConfigFields, window: int | None) -> CardPart:
    return gqa(
        fields,
        window,
        qkv_bias=fields.flag("attention_bias", True),
        output_bias=fields.flag("attention_out_bias", False),
        head_dim_required=True,
    )


def _smollm3_windows(fields: ConfigFields, n_layers: int) -> Windows:
    fields.ignore("no_rope_layers", "no_rope_layer_interval")
    return qwen_windows(fields, n_layers)


def _granite(fields: ConfigFields, window: int | None) -> CardPart:
    fields.ignore("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling")
    return flagged_gqa(fields, window, kv_heads_default=True)


def _starcoder2(fields: ConfigFields, window: int | None) -> CardPart:
    bias = fields.flag("use_bias", True)
    fields.must_be("norm_type", "layer_norm")
    fields.must_be("mlp_type", "default")
    return gqa(fields, window, qkv_bias=bias, output_bias=bias)


def _starcoder2_dense(fields: ConfigFields) -> CardPart:
    return dense(fields, gated=False, bias=fields.flag("use_bias", True))


def _nemotron_dense(fields: ConfigFields) -> CardPart:
    return dense(fields, gated=False, bias=fields.flag("mlp_bias", False))


def _glm4(fields: ConfigFields, window: int | None) -> CardPart:
    return gqa(fields, window, qkv_bias=fields.flag("attention_bias", False))


def _hunyuan(fields: ConfigFields, window: int | None) -> CardPart:
    fields.must_be("use_cla", False)
    fields.must_be("add_classification_head", False)
    fields.must_be("norm_type", "hf_rms", "rms", "rmsnorm")
    # The sizes of a classification head that is not there, and of the vocabulary before it was padded.
    fields.ignore("attention_head_dim", "cla_share_factor", "dense_list", "org_vocab_size")
    return flagged_gqa(fields, window, qk_norm=fields.flag("use_qk_norm", True))


def _ernie(fields: ConfigFields, window: int | None) -> CardPart:
    bias = fields.flag("use_bias", False)
    return gqa(fields, window, qkv_bias=bias, output_bias=bias)


def _ernie_dense(fields: ConfigFields) -> CardPart:
    return dense(fields, bias=fields.flag("use_bias", False))


def _two_norms(fields: ConfigFields) -> CardPart:
    """A last norm with a bias: two vectors of the model's width."""
    return {"final_norms": fields.number(2, "norm", note="a norm with a bias")}


_LLAMA = dense_layers(_llama, flagged_dense, _llama_windows)
_PHI3 = ModuleNames(
    attention={"qkv": ("self_attn.qkv_proj",), "o": ("self_attn.o_proj",)},
    dense={"gate_up": ("mlp.gate_up_proj",), "down": ("mlp.down_proj",)},
)
_UNGATED = ModuleNames(dense={"up": ("mlp.up_proj",), "down": ("mlp.down_proj",)})
_FC = ModuleNames(dense={"up": ("mlp.c_fc",), "down": ("mlp.c_proj",)})

_LLAMA_DEFAULTS: dict[str, Any] = {
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
    "vocab_size": 32000, "max_position_embeddings": 2048,
}  # fmt: skip
_MISTRAL_DEFAULTS: dict[str, Any] = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 131072,
}  # fmt: skip
_GEMMA3_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262208, "max_position_embeddings": 131072, "sliding_window_pattern": 6, "sliding_window": 4096,
    "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256,
}  # fmt: skip

_QWEN2_DEFAULTS: dict[str, Any] = {
    "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 32, "vocab_size": 151936, "max_position_embeddings": 32768,
}  # fmt: skip

_QWEN2 = dense_layers(_qwen2, windows=qwen_windows)
_QWEN3 = dense_layers(_qwen3, windows=qwen_windows)
_MISTRAL = dense_layers(_plain, windows=_mistral_windows)
_HUNYUAN = dense_layers(_hunyuan)

DENSE_FAMILIES: dict[str, Family] = {
    "llama": Family(("LlamaForCausalLM", "LLaMAForCausalLM"), _LLAMA, defaults=_LLAMA_DEFAULTS),
    "qwen2": Family(("Qwen2ForCausalLM",), _QWEN2, defaults=_QWEN2_DEFAULTS),
    "qwen3": Family(("Qwen3ForCausalLM",), _QWEN3),
    "qwen2_vl": Family(("Qwen2VLForConditionalGeneration",), _QWEN2),
    "qwen2_vl_text": Family((), _QWEN2),
    "qwen2_5_vl": Family(("Qwen2_5_VLForConditionalGeneration",), _QWEN2),
    "qwen2_5_vl_text": Family((), _QWEN2),
    "qwen3_vl_text": Family((), _QWEN3),
    "mimo": Family(("MiMoForCausalLM",), _QWEN2, mtp_unknown=("num_nextn_predict_layers",)),
    "mistral": Family(("MistralForCausalLM",), _MISTRAL, defaults=_MISTRAL_DEFAULTS),
    "ministral": Family(("MinistralForCausalLM",), _MISTRAL),
    "ministral3": Family(("Ministral3ForCausalLM",), dense_layers(_plain, windows=windows_or_none)),
    "gemma": Family(("GemmaForCausalLM",), dense_layers(_gemma), tied=True),
    "gemma2": Family(("Gemma2ForCausalLM",), dense_layers(_gemma, windows=_gemma2_windows, norms=4), tied=True),
    "gemma3_text": Family(
        ("Gemma3ForCausalLM",),
        dense_layers(_gemma3, windows=_gemma3_windows, norms=4),
        tied=True,
        defaults=_GEMMA3_DEFAULTS,
    ),
    "phi3": Family(("Phi3ForCausalLM",), dense_layers(_phi3, windows=windows_or_none), _PHI3),
    "cohere": Family(("CohereForCausalLM",), dense_layers(_cohere, norms=1), tied=True),
    "cohere2": Family(("Cohere2ForCausalLM",), dense_layers(_cohere, windows=_cohere2_windows, norms=1), tied=True),
    "olmo2": Family(("Olmo2ForCausalLM",), dense_layers(_olmo2)),
    "olmo3": Family(("Olmo3ForCausalLM",), dense_layers(_olmo2, windows=windows_or_none)),
    "exaone4": Family(("Exaone4ForCausalLM",), dense_layers(_exaone4, windows=_pattern_windows)),
    "granite": Family(("GraniteForCausalLM",), dense_layers(_granite, flagged_dense)),
    "starcoder2": Family(
        ("Starcoder2ForCausalLM",),
        dense_layers(_starcoder2, _starcoder2_dense, windows_or_none, norms=4),
        _FC,
        tied=True,
        ends=_two_norms,
    ),
    "nemotron": Family(
        ("NemotronForCausalLM",), dense_layers(_llama, _nemotron_dense, norms=4), _UNGATED, ends=_two_norms
    ),
    "glm": Family(("GlmForCausalLM",), dense_layers(_glm4), _PHI3),
    "glm4": Family(("Glm4ForCausalLM",), dense_layers(_glm4, norms=4), _PHI3),
    "glm4v_text": Family((), dense_layers(_glm4, norms=4), _PHI3),
    "hunyuan_v1_dense": Family(("HunYuanDenseV1ForCausalLM",), _HUNYUAN),
    "ernie4_5": Family(("Ernie4_5ForCausalLM",), dense_layers(_ernie, _ernie_dense), tied=True),
    "seed_oss": Family(("SeedOssForCausalLM",), dense_layers(_seed, flagged_dense)),
    "smollm3": Family(("SmolLM3ForCausalLM",), dense_layers(_llama, flagged_dense, _smollm3_windows), tied=True),
}
"""By ``model_type``. A family is added by its row here and, where its layers are new, a builder above."""
