"""Families of mixtures of experts with grouped-query attention: Mixtral, Qwen, gpt-oss, GLM-4.5, dots, Phi, ERNIE."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capplan.cards.hf_family import CardPart, Family, Layer, ModuleNames, gated, layers_of
from capplan.cards.hf_fields import ConfigFields
from capplan.cards.hf_parts import (
    Windows,
    deepseek_mixture,
    dense,
    every,
    flagged_gqa,
    gqa,
    leading_dense,
    mixture,
    qwen_windows,
    shared_by_count,
    shared_by_width,
    sparse_steps,
    window_of,
    windows_by_type,
    windows_or_none,
)


def mixture_layers(
    attention: Callable[[ConfigFields, int | None], CardPart],
    experts: Callable[[ConfigFields], CardPart],
    sparse: Callable[[ConfigFields, int], list[bool]] | None = None,
    windows: Callable[[ConfigFields, int], Windows] | None = None,
    *,
    plain: Callable[[ConfigFields], CardPart] = dense,
    norms: int = 2,
) -> Callable[[ConfigFields, int], list[Layer]]:
    """Layers that differ in their window, and in whether they are a mixture or dense."""

    def layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
        slides = windows(fields, n_layers) if windows is not None else [None] * n_layers
        mixed = sparse(fields, n_layers) if sparse is not None else [True] * n_layers

        def build(kind: tuple[int | None, bool]) -> Layer:
            window, is_mixture = kind
            return Layer(attention(fields, window), experts(fields) if is_mixture else plain(fields), norms=norms)

        return layers_of(list(zip(slides, mixed, strict=True)), build)

    return layers


def _qwen2(fields: ConfigFields, window: int | None) -> CardPart:
    return gqa(fields, window, qkv_bias=fields.flag("qkv_bias", True))


def _qwen3(fields: ConfigFields, window: int | None) -> CardPart:
    return flagged_gqa(fields, window, head_dim_required=True, qk_norm=True)


def _qwen3_windows(fields: ConfigFields, n_layers: int) -> Windows:
    fields.must_be("use_sliding_window", False)
    return qwen_windows(fields, n_layers)


def _qwen_steps(fields: ConfigFields, n_layers: int) -> list[bool]:
    sparse = sparse_steps(fields, n_layers)
    if all(sparse):
        fields.ignore("intermediate_size")
    return sparse


def _qwen2_mixture(fields: ConfigFields) -> CardPart:
    shared = shared_by_width(fields, "shared_expert_intermediate_size", shared_gate=True)
    return mixture(fields, experts=("num_experts",), **shared)


def _qwen3_mixture(fields: ConfigFields) -> CardPart:
    return mixture(fields, experts=("num_experts",))


def _plain(fields: ConfigFields, window: int | None) -> CardPart:
    return gqa(fields, window)


def local_experts(fields: ConfigFields, **options: Any) -> CardPart:
    """Mixtral and its relatives: ``intermediate_size`` is the width of one expert."""
    top_k = ("num_experts_per_tok", "experts_per_token")
    width = ("intermediate_size",)
    return mixture(fields, experts=("num_local_experts",), top_k=top_k, width=width, **options)


def _gpt_oss(fields: ConfigFields, window: int | None) -> CardPart:
    bias = fields.flag("attention_bias", True)
    return gqa(fields, window, head_dim_required=True, qkv_bias=bias, output_bias=bias, sinks=True)


def _gpt_oss_mixture(fields: ConfigFields) -> CardPart:
    return local_experts(fields, bias=True, router_bias=True)


def _gpt_oss_windows(fields: ConfigFields, n_layers: int) -> Windows:
    """Sliding and full layers take turns, sliding first, unless ``layer_types`` says otherwise."""
    if fields.has("layer_types"):
        return windows_by_type(fields, n_layers)
    return every(n_layers, 2, window_of(fields))


def _glm4(fields: ConfigFields, window: int | None) -> CardPart:
    """GLM-4.5: ``attention_bias`` means q, k and v; a norm of queries and keys where ``use_qk_norm`` says so."""
    fields.ignore("decoder_sparse_step", "moe_router_dtype")
    bias, norm = fields.flag("attention_bias", False), fields.flag("use_qk_norm", False)
    return gqa(fields, window, head_dim_required=True, qkv_bias=bias, qk_norm=norm)


def _dots(fields: ConfigFields, window: int | None) -> CardPart:
    return flagged_gqa(fields, window, qk_norm=True)


def _dots_windows(fields: ConfigFields, n_layers: int) -> Windows:
    """As Qwen where the flag is written; the class itself has none and goes by ``sliding_window``."""
    if fields.has("use_sliding_window"):
        return qwen_windows(fields, n_layers)
    if fields.has("layer_types") or not fields.has("sliding_window"):
        fields.ignore("max_window_layers")
        return windows_or_none(fields, n_layers)
    first = fields.whole("max_window_layers", least=0)
    return [None if layer < first else window_of(fields) for layer in range(n_layers)]


def _deepseek(fields: ConfigFields, window: int | None) -> CardPart:
    return flagged_gqa(fields, window)


def _grok(fields: ConfigFields, window: int | None) -> CardPart:
    fields.ignore("embedding_multiplier_scale", "output_multiplier_scale", "attn_output_multiplier", "max_attn_value")
    return gqa(fields, window)


def _phimoe(fields: ConfigFields, window: int | None) -> CardPart:
    fields.ignore("input_jitter_noise", "expert_dropout")
    return flagged_gqa(fields, window)


def _phimoe_ends(fields: ConfigFields) -> CardPart:
    """A last norm with a bias, and lm_head with one where the config says so."""
    norms = fields.number(2, "norm", note="a norm with a bias")
    return {"final_norms": norms, "lm_head_bias": fields.flag("lm_head_bias", False)}


def _ernie(fields: ConfigFields, window: int | None) -> CardPart:
    bias = fields.flag("use_bias", False)
    return gqa(fields, window, qkv_bias=bias, output_bias=bias)


def _ernie_sparse(fields: ConfigFields, n_layers: int) -> list[bool]:
    """Every ``moe_layer_interval``-th layer between the start and the end index, both included."""
    step, first = fields.whole("moe_layer_interval"), fields.whole("moe_layer_start_index", least=0)
    last = fields.value("moe_layer_end_index")
    if last in (None, -1):
        last = n_layers - 1
    if type(last) is not int or not first <= last < n_layers:
        raise fields.error("moe_layer_end_index", f"must be a whole number from {first} to {n_layers - 1}, or -1")
    return [first <= layer <= last and (layer + 1) % step == 0 for layer in range(n_layers)]


def _ernie_mixture(fields: ConfigFields) -> CardPart:
    """Each router carries a correction bias the class counts as parameters."""
    fields.ignore("moe_use_aux_free", "moe_capacity", "moe_gate", "moe_norm_min")
    bias = fields.flag("use_bias", False)
    experts = fields.count("moe_num_experts", unit="expert")
    correction = fields.number(experts["value"], "parameter", "moe_num_experts", note="e_score_correction_bias")
    shared = shared_by_count(fields, "moe_num_shared_experts")
    names = ("moe_num_experts",)
    return mixture(fields, experts=names, top_k=("moe_k",), bias=bias, other_parameters=correction, **shared)


def _ernie_dense(fields: ConfigFields) -> CardPart:
    return dense(fields, bias=fields.flag("use_bias", False))


_QWEN2_MODULES = ModuleNames(shared=gated("mlp.shared_expert"))
MIXTRAL_MODULES = ModuleNames(experts=gated("block_sparse_moe.experts.0", ("w1", "w3", "w2")))
_GPT_OSS = ModuleNames(experts={"gate_up": ("mlp.experts.gate_up_proj",), "down": ("mlp.experts.down_proj",)})
_GLM4_LAYERS = mixture_layers(_glm4, deepseek_mixture, leading_dense)
_GLM_MTP = ("num_nextn_predict_layers", True)
_QWEN2_LAYERS = mixture_layers(_qwen2, _qwen2_mixture, _qwen_steps, qwen_windows)
_QWEN3_LAYERS = mixture_layers(_qwen3, _qwen3_mixture, _qwen_steps, _qwen3_windows)

MOE_FAMILIES: dict[str, Family] = {
    "qwen2_moe": Family(("Qwen2MoeForCausalLM",), _QWEN2_LAYERS, _QWEN2_MODULES),
    "qwen3_moe": Family(("Qwen3MoeForCausalLM",), _QWEN3_LAYERS),
    "qwen3_vl_moe_text": Family((), _QWEN3_LAYERS),
    "mixtral": Family(
        ("MixtralForCausalLM",), mixture_layers(_plain, local_experts, windows=windows_or_none), MIXTRAL_MODULES
    ),
    "gpt_oss": Family(
        ("GptOssForCausalLM",), mixture_layers(_gpt_oss, _gpt_oss_mixture, windows=_gpt_oss_windows), _GPT_OSS
    ),
    "grok-1": Family(
        ("Grok1ModelForCausalLM",),
        mixture_layers(_grok, local_experts, windows=windows_or_none, norms=4),
        MIXTRAL_MODULES,
    ),
    "glm4_moe": Family(("Glm4MoeForCausalLM",), _GLM4_LAYERS, mtp=_GLM_MTP),
    "glm4v_moe_text": Family((), _GLM4_LAYERS, mtp=_GLM_MTP),
    "deepseek": Family(("DeepseekForCausalLM",), mixture_layers(_deepseek, deepseek_mixture, leading_dense)),
    "dots1": Family(("Dots1ForCausalLM",), mixture_layers(_dots, deepseek_mixture, leading_dense, _dots_windows)),
    "phimoe": Family(
        ("PhiMoEForCausalLM", "PhimoeForCausalLM"),
        mixture_layers(_phimoe, local_experts, windows=windows_or_none, norms=4),
        MIXTRAL_MODULES,
        ends=_phimoe_ends,
    ),
    "ernie4_5_moe": Family(
        ("Ernie4_5_MoeForCausalLM",),
        mixture_layers(_ernie, _ernie_mixture, _ernie_sparse, plain=_ernie_dense),
        defaults={"max_position_embeddings": 131072},
        tied=True,
        mtp_unknown=("num_nextn_predict_layers",),
    ),
}
"""By ``model_type``."""
