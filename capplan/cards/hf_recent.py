"""Smaller families of 2024 to 2026: OLMo, Granite-3, Apertus, Arcee, EXAONE-MoE, LFM2, Step-3.5, Trinity, Ling."""

from __future__ import annotations

from capplan.cards.hf_dense import dense_layers, whole_qk_norm
from capplan.cards.hf_family import CardPart, Family, Layer, ModuleNames, gated, layers_of
from capplan.cards.hf_fields import ConfigFields
from capplan.cards.hf_moe import local_experts, mixture_layers
from capplan.cards.hf_parts import (
    MOST_HEADS,
    Windows,
    deepseek_mixture,
    dense,
    every,
    flagged_dense,
    flagged_gqa,
    gqa,
    leading_dense,
    mixture,
    shared_by_count,
    shared_by_width,
    window_of,
    windows_by_type,
    windows_or_none,
)


def _llama(fields: ConfigFields, window: int | None) -> CardPart:
    return flagged_gqa(fields, window, kv_heads_default=True)


def _headed(fields: ConfigFields, window: int | None) -> CardPart:
    return flagged_gqa(fields, window, head_dim_required=True)


def _normed(fields: ConfigFields, window: int | None) -> CardPart:
    return flagged_gqa(fields, window, qk_norm=True)


def _ungated(fields: ConfigFields) -> CardPart:
    return dense(fields, gated=False, bias=fields.flag("mlp_bias", False))


def _olmo_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Norms without weights."""
    return [Layer(_llama(fields, None), dense(fields), norms=0)] * n_layers


def _no_last_norm(fields: ConfigFields) -> CardPart:
    return {"final_norms": fields.number(0, "norm", note="no weights")}


def _olmoe(fields: ConfigFields, window: int | None) -> CardPart:
    attention = _llama(fields, window)
    return {**attention, **whole_qk_norm(fields, attention)}


def _olmoe_mixture(fields: ConfigFields) -> CardPart:
    return mixture(fields, experts=("num_experts",), width=("intermediate_size",))


def _granite_shared(fields: ConfigFields) -> CardPart:
    return local_experts(fields, **shared_by_width(fields, "shared_intermediate_size"))


def _apertus_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """An activation with two learnt numbers."""
    extra = fields.number(2, "parameter", note="of the activation")
    return [Layer(_normed(fields, None), _ungated(fields), extra_parameters=extra)] * n_layers


def _two_norms(fields: ConfigFields) -> CardPart:
    return {"final_norms": fields.number(2, "norm", note="a norm with a bias")}


def _hyperclova_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    norms = 2 + 2 * fields.flag("use_post_norm", False)
    return [Layer(_llama(fields, None), flagged_dense(fields), norms=norms)] * n_layers


def _cwm_windows(fields: ConfigFields, n_layers: int) -> Windows:
    return windows_by_type(fields, n_layers)


def _vault_windows(fields: ConfigFields, n_layers: int) -> Windows:
    return windows_by_type(fields, n_layers) if fields.has("layer_types") else every(n_layers, 2, window_of(fields))


def _counted_mixture(fields: ConfigFields) -> CardPart:
    return mixture(fields, experts=("num_experts",), **shared_by_count(fields, "num_shared_experts"))


def _exaone_moe(fields: ConfigFields, window: int | None) -> CardPart:
    fields.ignore("sliding_window_pattern")
    return gqa(fields, window, qk_norm=True)


def _hy_v3(fields: ConfigFields, window: int | None) -> CardPart:
    fields.ignore("enable_moe_fp32_combine", "moe_router_enable_expert_bias", "moe_router_use_sigmoid", "route_norm")
    return flagged_gqa(fields, window, head_dim_required=True, qk_norm=True)


def _solar(fields: ConfigFields, window: int | None) -> CardPart:
    fields.ignore("intermediate_size", "first_k_dense_replace", "moe_layer_freq")
    fields.must_be("use_qk_norm", False)
    return _headed(fields, window)


def _afmoe(fields: ConfigFields, window: int | None) -> CardPart:
    """Every query channel has an output gate."""
    fields.ignore("mup_enabled", "score_func", "route_norm", "route_scale", "load_balance_coeff", "num_expert_groups")
    fields.ignore("num_limited_groups", "global_attn_every_n_layers", "use_grouped_mm")
    return flagged_gqa(fields, window, head_dim_required=True, qk_norm=True, output_gate=True)


def _afmoe_sparse(fields: ConfigFields, n_layers: int) -> list[bool]:
    first = fields.whole("num_dense_layers", least=0)
    return [layer >= first for layer in range(n_layers)]


def _afmoe_windows(fields: ConfigFields, n_layers: int) -> Windows:
    if fields.has("layer_types"):
        return windows_by_type(fields, n_layers)
    return every(n_layers, fields.whole("global_attn_every_n_layers"), window_of(fields))


def _afmoe_mixture(fields: ConfigFields) -> CardPart:
    experts = fields.count("num_experts", unit="expert")
    bias = fields.number(experts["value"], "parameter", "num_experts", note="expert_bias")
    return {**_counted_mixture(fields), "other_parameters": bias}


def _lfm2_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Short convolutions with some layers of attention between them."""
    fields.ignore("use_pos_enc", "conv_dim", "conv_dim_out", "block_dim", "block_mlp_init_scale", "block_norm_eps")
    fields.ignore("block_out_init_scale", "block_use_swiglu", "block_use_xavier_init", "conv_use_xavier_init")
    fields.ignore("full_attn_idxs", "num_heads", "use_expert_bias", "theta")
    kinds = _lfm2_kinds(fields, n_layers)
    first = fields.whole("num_dense_layers", least=0) if fields.has("num_experts") else n_layers
    convolution = {
        "kind": "short_conv",
        "conv_kernel": fields.count("conv_L_cache", unit="token"),
        "conv_bias": fields.flag("conv_bias", False),
        "projection_bias": fields.flag("conv_bias", False),
    }

    def build(kind: tuple[str, bool]) -> Layer:
        word, mixed = kind
        block = mixture(fields, experts=("num_experts",)) if mixed else _lfm2_dense(fields)
        return Layer(gqa(fields, qk_norm=True), block) if word == "full_attention" else Layer(None, block, convolution)

    return layers_of([(word, layer >= first) for layer, word in enumerate(kinds)], build)


def _lfm2_kinds(fields: ConfigFields, n_layers: int) -> list[str]:
    """One word a layer, or the numbers of those with attention."""
    if fields.has("layer_types"):
        return fields.words("layer_types", n_layers, ("full_attention", "conv"))
    numbers = fields.value("full_attn_idxs")
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise fields.error("layer_types", "is missing, and so are the layer numbers in full_attn_idxs")
    return ["full_attention" if layer in set(numbers) else "conv" for layer in range(n_layers)]


def _lfm2_dense(fields: ConfigFields) -> CardPart:
    """Two thirds of the stated width, times a multiplier, rounded up to a multiple."""
    if not fields.has("block_auto_adjust_ff_dim"):
        return dense(fields)
    width, names = fields.whole("intermediate_size"), ["intermediate_size"]
    if fields.flag("block_auto_adjust_ff_dim", True):
        multiplier = fields.value("block_ffn_dim_multiplier")
        if type(multiplier) not in (int, float) or not 0 < multiplier <= 100:
            raise fields.error("block_ffn_dim_multiplier", "must be a number above 0 and at most 100")
        multiple = fields.whole("block_multiple_of")
        width = -(-int(multiplier * int(2 * width / 3)) // multiple) * multiple
        names += ["block_ffn_dim_multiplier", "block_multiple_of"]
    fields.ignore("block_multiple_of", "block_ffn_dim_multiplier")
    return {"kind": "dense", "width": fields.number(width, "element", *names)}


def _step_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Step-3.5 and 3.7: sliding layers with more heads, a gate of one element a head, one shared expert."""
    fields.must_be("use_head_wise_attn_gate", True)
    fields.must_be("attention_bias", False)
    fields.must_be("att_impl_type", "GQA")
    fields.ignore(
        "norm_expert_weight",
        "num_experts",
        "swiglu_limits",
        "swiglu_limits_shared",
        "partial_rotary_factors",
        "yarn_only_types",
        "use_moe",
    )
    fields.ignore("moe_router_activation", "moe_router_scaling_factor", "use_moe_router_bias", "need_fp32_gate", "sink")
    fields.ignore("zero_centered", "use_rope_layers", "rope_theta", "moe_every_n_layer", "moe_layer_offset")
    kinds = list(zip(_step_windows(fields, n_layers), _step_sparse(fields, n_layers), strict=True))

    def build(kind: tuple[int | None, bool]) -> Layer:
        window, mixed = kind
        return Layer(_step_attention(fields, window), _step_mixture(fields) if mixed else dense(fields))

    return layers_of(kinds, build)


def _step_windows(fields: ConfigFields, n_layers: int) -> Windows:
    """One word a layer; words beyond the layers are those of prediction layers."""
    words = fields.value("layer_types")
    if not isinstance(words, list) or len(words) < n_layers:
        raise fields.error("layer_types", f"must name at least {n_layers} layers, one each")
    for word in words:
        if word not in ("full_attention", "sliding_attention"):
            raise fields.unsupported("layer_types", f"layer type {str(word)[:40]!r} is not modelled")
    return [window_of(fields) if word == "sliding_attention" else None for word in words[:n_layers]]


def _step_sparse(fields: ConfigFields, n_layers: int) -> list[bool]:
    if fields.has("mlp_layer_types"):
        return leading_dense(fields, n_layers)
    given = fields.value("moe_layers_enum")
    items = given.split(",") if isinstance(given, str) else given
    if not isinstance(items, list) or not all(str(item).strip().isdigit() for item in items):
        raise fields.error("moe_layers_enum", "must be layer numbers between commas")
    numbers = {int(str(item)[:10]) for item in items}
    return [layer in numbers for layer in range(n_layers)]


def _step_attention(fields: ConfigFields, window: int | None) -> CardPart:
    """``attention_other_setting`` holds the heads of sliding layers."""
    attention = gqa(fields, window, head_dim_required=True, qk_norm=True, head_gate=True)
    other = fields.value("attention_other_setting")
    if window is None or other is None:
        return attention
    if not isinstance(other, dict):
        raise fields.error("attention_other_setting", "must be a table")
    inner = ConfigFields(other, fields.file, f"{fields.prefix}attention_other_setting.")
    inner.must_be("attention_type", "sliding_attention")
    inner.must_be("true_head_dim", inner.data.get("head_dim"))
    attention["n_heads"] = inner.count("num_attention_heads", unit="head", most=MOST_HEADS)
    groups = ("num_attention_groups", "num_key_value_heads")
    if any(inner.has(name) for name in groups):
        attention["n_kv_heads"] = inner.count(*groups, unit="head", most=MOST_HEADS)
    if inner.has("head_dim"):
        attention["head_dim"] = attention["value_head_dim"] = inner.count("head_dim", unit="element")
    if attention["n_heads"]["value"] % attention["n_kv_heads"]["value"]:
        raise inner.error("num_attention_heads", "must be a multiple of the KV heads")
    inner.refuse_unknown()
    return attention


def _step_mixture(fields: ConfigFields) -> CardPart:
    experts, top_k = ("n_routed_experts", "moe_num_experts"), ("num_experts_per_tok", "moe_top_k")
    shared = fields.count("share_expert_dim", "share_expert_dims", unit="element")
    return mixture(fields, experts=experts, top_k=top_k, shared_width=shared)


def _bailing(fields: ConfigFields, window: int | None) -> CardPart:
    """Ling: queries, keys and values fused, a norm of a head where the config says so."""
    fields.ignore("max_window_layers", "norm_head", "norm_softmax", "use_rmsnorm", "moe_router_enable_expert_bias")
    fields.ignore("num_expert_groups", "score_function", "router_dtype", "use_expert_bias", "mtp_loss_scaling_factor")
    fields.must_be("use_sliding_window", False)
    fields.must_be("sliding_window", None)
    bias, norm = fields.flag("use_qkv_bias", False), fields.flag("use_qk_norm", False)
    return gqa(fields, window, qk_norm=norm, qkv_bias=bias, output_bias=fields.flag("use_bias", False))


def _bailing_mixture(fields: ConfigFields) -> CardPart:
    """Shared experts have a width of their own where the config gives one."""
    width = "moe_shared_expert_intermediate_size"
    shared = shared_by_count(fields, "num_shared_experts", width if fields.has(width) else "moe_intermediate_size")
    fields.ignore("moe_shared_expert_intermediate_size")
    return mixture(fields, experts=("num_experts",), **shared)


_UNGATED = ModuleNames(dense={"up": ("mlp.up_proj",), "down": ("mlp.down_proj",)})
_BLOCK_SPARSE = ModuleNames(
    experts={"gate_up": ("block_sparse_moe.input_linear",), "down": ("block_sparse_moe.output_linear",)},
    shared={"gate_up": ("shared_mlp.input_linear",), "down": ("shared_mlp.output_linear",)},
)
_LFM2 = ModuleNames(
    attention={"qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "o": ("self_attn.out_proj",)},
    recurrence={"in": ("conv.in_proj",), "o": ("conv.out_proj",)},
    dense=gated("feed_forward", ("w1", "w3", "w2")),
    experts=gated("feed_forward.experts.0", ("w1", "w3", "w2")),
)
_BAILING = ModuleNames(attention={"qkv": ("attention.query_key_value",), "o": ("attention.dense",)})
_STEP = ModuleNames(
    experts=gated("moe.0"),
    shared=gated("share_expert"),
)
_HEADED = dense_layers(_headed, flagged_dense)
_STEP_FAMILY = Family(
    ("Step3p5ForCausalLM", "Step3p7ForCausalLM"),
    _step_layers,
    _STEP,
    synonyms={"num_key_value_heads": ("num_attention_groups",)},
    mtp_unknown=("num_nextn_predict_layers", "num_mtp_layers"),
)

RECENT_FAMILIES: dict[str, Family] = {
    "olmo": Family(("OlmoForCausalLM",), _olmo_layers, ends=_no_last_norm),
    "olmoe": Family(("OlmoeForCausalLM",), mixture_layers(_olmoe, _olmoe_mixture)),
    "granitemoe": Family(("GraniteMoeForCausalLM",), mixture_layers(_llama, local_experts), _BLOCK_SPARSE),
    "granitemoeshared": Family(
        ("GraniteMoeSharedForCausalLM",), mixture_layers(_llama, _granite_shared), _BLOCK_SPARSE
    ),
    "apertus": Family(("ApertusForCausalLM",), _apertus_layers, _UNGATED),
    "arcee": Family(("ArceeForCausalLM",), dense_layers(_llama, _ungated), _UNGATED),
    "internlm3": Family(("InternLM3ForCausalLM",), _HEADED),
    "helium": Family(("HeliumForCausalLM",), _HEADED),
    "jais2": Family(("Jais2ForCausalLM",), dense_layers(_headed, _ungated, norms=4), _UNGATED, ends=_two_norms),
    "hyperclovax": Family(("HyperCLOVAXForCausalLM",), _hyperclova_layers),
    "cwm": Family(("CwmForCausalLM",), dense_layers(_headed, flagged_dense, _cwm_windows)),
    "vaultgemma": Family(("VaultGemmaForCausalLM",), dense_layers(_headed, windows=_vault_windows), tied=True),
    "solar_open": Family(("SolarOpenForCausalLM",), mixture_layers(_solar, deepseek_mixture)),
    "exaone_moe": Family(
        ("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"),
        mixture_layers(_exaone_moe, _counted_mixture, leading_dense, windows_or_none),
        mtp_unknown=("num_nextn_predict_layers",),
    ),
    "hy_v3": Family(
        ("HYV3ForCausalLM", "HyV3ForCausalLM"),
        mixture_layers(_hy_v3, _counted_mixture, leading_dense),
        mtp_unknown=("num_nextn_predict_layers",),
    ),
    "afmoe": Family(
        ("AfmoeForCausalLM",), mixture_layers(_afmoe, _afmoe_mixture, _afmoe_sparse, _afmoe_windows, norms=4)
    ),
    "bailing_moe": Family(
        ("BailingMoeForCausalLM",), mixture_layers(_bailing, _bailing_mixture, leading_dense), _BAILING
    ),
    "bailing_moe_v2": Family(
        ("BailingMoeV2ForCausalLM",),
        mixture_layers(_bailing, _bailing_mixture, leading_dense),
        _BAILING,
        mtp_unknown=("num_nextn_predict_layers",),
    ),
    "lfm2": Family(
        ("Lfm2ForCausalLM",),
        _lfm2_layers,
        _LFM2,
        tied=True,
        synonyms={"intermediate_size": ("block_ff_dim",), "tie_word_embeddings": ("tie_embedding",)},
    ),
    "lfm2_moe": Family(
        ("Lfm2MoeForCausalLM",), _lfm2_layers, _LFM2, tied=True, synonyms={"tie_word_embeddings": ("tie_embedding",)}
    ),
    "step3p5": _STEP_FAMILY,
    "step3p7": _STEP_FAMILY,
}
"""By ``model_type``."""
