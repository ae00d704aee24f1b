"""Families of mixtures of experts with grouped-query attention: Mixtral, Qwen, gpt-oss, GLM-4.5, Llama-4, ..."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capplan.cards.hf_dense import whole_qk_norm
from capplan.cards.hf_family import LLAMA_ATTENTION, CardPart, Family, Layer, ModuleNames, gated, layers_of
from capplan.cards.hf_fields import ConfigFields
from capplan.cards.hf_parts import (
    MOST_HEADS,
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

Windows = list["int | None"]


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


def _deepseek(fields: ConfigFields, window: int | None) -> CardPart:
    return flagged_gqa(fields, window)


def _grok(fields: ConfigFields, window: int | None) -> CardPart:
    fields.ignore("embedding_multiplier_scale", "output_multiplier_scale", "attn_output_multiplier", "max_attn_value")
    return gqa(fields, window)


def _minimax_m2(fields: ConfigFields, window: int | None) -> CardPart:
    """Norms over all query and all key heads."""
    fields.must_be("use_qk_norm", True)
    fields.must_be("qk_norm_type", "per_layer")
    fields.ignore("rotary_dim", "use_routing_bias", "attn_window_size", "layernorm_full_attention_beta")
    fields.ignore("layernorm_linear_attention_beta", "layernorm_mlp_beta")
    attention = gqa(fields, window, head_dim_required=True)
    return {**attention, **whole_qk_norm(fields, attention)}


def _minimax_m2_windows(fields: ConfigFields, n_layers: int) -> Windows:
    if fields.has("attn_type_list"):
        for kind in fields.whole_list("attn_type_list", n_layers, least=0, most=1):
            if kind != 1:
                raise fields.unsupported("attn_type_list", "only full attention (1) is modelled here")
    fields.must_be("sliding_window", None)
    fields.must_be("layer_types", ["full_attention"] * n_layers)
    return [None] * n_layers


def _minimax_m2_mixture(fields: ConfigFields) -> CardPart:
    fields.must_be("shared_intermediate_size", 0)
    fields.ignore("shared_moe_mode")
    return local_experts(fields)


def _minimax_m3_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Leading dense layers with full attention, then mixtures with block-sparse attention behind a small indexer."""
    fields.must_be("use_qk_norm", True)
    fields.must_be("qk_norm_type", "per_head")
    fields.must_be("attention_output_gate", False)
    fields.ignore("rotary_dim", "swiglu_alpha", "use_gemma_norm", "use_routing_bias", "layer_types")
    sparse = _m3_sparse(fields, n_layers)

    def build(kind: tuple[bool, bool]) -> Layer:
        indexed, mixed = kind
        options: dict[str, Any] = {"indexer": _m3_indexer(fields)} if indexed else {}
        attention = gqa(fields, head_dim_required=True, qk_norm=True, **options)
        return Layer(attention, _m3_mixture(fields) if mixed else dense(fields, "dense_intermediate_size"))

    return layers_of(list(zip(sparse, leading_dense(fields, n_layers), strict=True)), build)


def _m3_options(fields: ConfigFields) -> ConfigFields:
    inner = fields.value("sparse_attention_config")
    if not isinstance(inner, dict):
        raise fields.error("sparse_attention_config", "must be a table")
    return ConfigFields(inner, fields.file, f"{fields.prefix}sparse_attention_config.")


def _m3_sparse(fields: ConfigFields, n_layers: int) -> list[bool]:
    options = _m3_options(fields)
    options.must_be("use_sparse_attention", True)
    options.must_be("sparse_disable_index_value", options.value("sparse_attention_freq"))
    options.ignore("sparse_init_block", "sparse_score_type", "sparse_num_index_heads", "sparse_index_dim")
    options.ignore("sparse_block_size", "sparse_topk_blocks", "sparse_local_block")
    flags = options.whole_list("sparse_attention_freq", n_layers, least=0, most=1)
    options.refuse_unknown()
    return [bool(flag) for flag in flags]


def _m3_indexer(fields: ConfigFields) -> CardPart:
    options = _m3_options(fields)
    block = options.whole("sparse_block_size")
    blocks = options.whole("sparse_topk_blocks") + options.whole("sparse_local_block", least=0)
    names = ("sparse_block_size", "sparse_topk_blocks", "sparse_local_block")
    head_dim = options.count("sparse_index_dim", unit="element")
    return {
        "n_heads": options.count("sparse_num_index_heads", unit="head", most=MOST_HEADS),
        "head_dim": head_dim,
        "token_top_k": options.number(block * blocks, "token", *names, note="whole blocks"),
        "head_weights": False,
        "norm_elements": options.number(2 * head_dim["value"], "parameter", note="norms of queries and keys"),
    }


def _m3_mixture(fields: ConfigFields) -> CardPart:
    """One shared expert of its own width."""
    fields.must_be("n_shared_experts", 1)
    width = ("moe_intermediate_size", "intermediate_size")
    shared = fields.count("shared_intermediate_size", unit="element")
    return mixture(fields, experts=("num_local_experts",), width=width, shared_width=shared)


def _llama4_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Three of four layers attend within chunks; every ``interleave_moe_layer_step``-th is a mixture."""
    fields.ignore("use_qk_norm", "for_llm_compressor", "attn_temperature_tuning", "attn_scale", "floor_scale")
    fields.ignore("_attn_implementation_autoset")
    windows = _llama4_windows(fields, n_layers)
    sparse = _llama4_sparse(fields, n_layers)

    def build(kind: tuple[int | None, bool]) -> Layer:
        window, mixed = kind
        attention = flagged_gqa(fields, window, window_field="attention_chunk_size")
        return Layer(attention, _llama4_mixture(fields) if mixed else dense(fields, "intermediate_size_mlp"))

    return layers_of(list(zip(windows, sparse, strict=True)), build)


def _llama4_windows(fields: ConfigFields, n_layers: int) -> Windows:
    chunk = fields.whole("attention_chunk_size", most=10**9) if fields.has("attention_chunk_size") else None
    fields.ignore("attention_chunk_size")
    if fields.has("layer_types"):
        fields.ignore("no_rope_layers", "no_rope_layer_interval", "nope_layer_interval")
        kinds = fields.words("layer_types", n_layers, ("full_attention", "chunked_attention"))
        return [chunk if kind == "chunked_attention" else None for kind in kinds]
    if fields.value("no_rope_layers"):
        fields.ignore("no_rope_layer_interval", "nope_layer_interval")
        flags = fields.whole_list("no_rope_layers", n_layers, least=0, most=1)
        return [chunk if flag else None for flag in flags]
    names = ("no_rope_layer_interval", "nope_layer_interval")
    period = fields.whole(*names) if any(fields.has(name) for name in names) else fields.assume(names[0], 4)
    return [None if (layer + 1) % period == 0 else chunk for layer in range(n_layers)]


def _llama4_sparse(fields: ConfigFields, n_layers: int) -> list[bool]:
    if fields.has("moe_layers"):
        fields.ignore("interleave_moe_layer_step")
        layers = fields.value("moe_layers")
        if not isinstance(layers, list) or not all(type(layer) is int for layer in layers):
            raise fields.error("moe_layers", "must be a list of layer numbers")
        return [layer in set(layers) for layer in range(n_layers)]
    step = fields.whole("interleave_moe_layer_step", least=0)
    return [step > 0 and (layer + 1) % step == 0 for layer in range(n_layers)]


def _llama4_mixture(fields: ConfigFields) -> CardPart:
    """One shared expert as wide as a routed one."""
    shared = fields.count("intermediate_size", unit="element")
    fields.ignore("intermediate_size_mlp")
    return local_experts(fields, shared_width=shared)


def _phimoe(fields: ConfigFields, window: int | None) -> CardPart:
    fields.ignore("input_jitter_noise", "expert_dropout")
    return flagged_gqa(fields, window)


def _phimoe_ends(fields: ConfigFields) -> CardPart:
    """A last norm with a bias, and lm_head with one where the config says so."""
    ends: CardPart = {"final_norms": fields.number(2, "norm", note="a norm with a bias")}
    if fields.flag("lm_head_bias", False):
        ends["other_parameters"] = fields.number(fields.whole("vocab_size"), "parameter", "lm_head_bias", "vocab_size")
    return ends


def _hunyuan_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Lists of one entry a layer, or one number for all."""
    fields.must_be("use_cla", False)
    fields.must_be("use_mixed_mlp_moe", True)
    fields.ignore("attention_head_dim", "cla_share_factor", "moe_drop_tokens", "moe_random_routing_dropped_token")
    fields.ignore("capacity_factor", "moe_layer_num_skipped")
    experts = fields.whole("num_experts")
    kinds = list(zip(*(_per_layer(fields, n_layers, name) for name in _HUNYUAN_LISTS), strict=True))

    def build(kind: tuple[int, ...]) -> Layer:
        attention = flagged_gqa(fields, qk_norm=fields.flag("use_qk_norm", True))
        return Layer(attention, _hunyuan_mixture(fields, experts, *kind))

    return layers_of(kinds, build)


_HUNYUAN_LISTS = ("moe_intermediate_size", "moe_topk", "num_shared_expert")


def _per_layer(fields: ConfigFields, n_layers: int, name: str) -> list[int]:
    if not isinstance(fields.data.get(name), list):
        return [fields.whole(name, least=0)] * n_layers
    return fields.whole_list(name, n_layers, least=0)


def _hunyuan_mixture(fields: ConfigFields, experts: int, width: int, top_k: int, shared: int) -> CardPart:
    """Shared experts are as wide as ``intermediate_size`` each."""
    if not 1 <= top_k <= experts or not width:
        raise fields.error(
            "moe_topk", f"{top_k} must be a whole number from 1 to {experts}, with experts of some width"
        )
    part: CardPart = {
        "kind": "mixture",
        "width": fields.number(width, "element", "moe_intermediate_size"),
        "n_experts": fields.number(experts, "expert", "num_experts"),
        "top_k": fields.number(top_k, "expert", "moe_topk"),
    }
    if shared:
        inner = shared * fields.whole("intermediate_size")
        part["shared_width"] = fields.number(inner, "element", "intermediate_size", "num_shared_expert", note="product")
    return part


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
_MIXTRAL = ModuleNames(experts=gated("block_sparse_moe.experts.0", ("w1", "w3", "w2")))
_GPT_OSS = ModuleNames(experts={"gate_up": ("mlp.experts.gate_up_proj",), "down": ("mlp.experts.down_proj",)})
_LLAMA4 = ModuleNames(
    dense=gated("feed_forward"),
    experts=gated("feed_forward.experts.0"),
    shared=gated("feed_forward.shared_expert"),
)
_M3 = ModuleNames(
    attention={
        **LLAMA_ATTENTION, "index_query": ("self_attn.index_q_proj",), "index_key": ("self_attn.index_k_proj",),
    },
    experts=gated("block_sparse_moe.experts.0", ("w1", "w3", "w2")),
    shared=gated("block_sparse_moe.shared_experts"),
)  # fmt: skip
_HUNYUAN = ModuleNames(shared=gated("mlp.shared_mlp"))
_GLM4_LAYERS = mixture_layers(_glm4, deepseek_mixture, leading_dense)
_GLM_MTP = ("num_nextn_predict_layers", True)
_QWEN2_LAYERS = mixture_layers(_qwen2, _qwen2_mixture, _qwen_steps, qwen_windows)
_QWEN3_LAYERS = mixture_layers(_qwen3, _qwen3_mixture, _qwen_steps, _qwen3_windows)

MOE_FAMILIES: dict[str, Family] = {
    "qwen2_moe": Family(("Qwen2MoeForCausalLM",), _QWEN2_LAYERS, _QWEN2_MODULES),
    "qwen3_moe": Family(("Qwen3MoeForCausalLM",), _QWEN3_LAYERS),
    "qwen3_vl_moe_text": Family((), _QWEN3_LAYERS),
    "mixtral": Family(
        ("MixtralForCausalLM",), mixture_layers(_plain, local_experts, windows=windows_or_none), _MIXTRAL
    ),
    "gpt_oss": Family(
        ("GptOssForCausalLM",), mixture_layers(_gpt_oss, _gpt_oss_mixture, windows=_gpt_oss_windows), _GPT_OSS
    ),
    "grok-1": Family(
        ("Grok1ModelForCausalLM",), mixture_layers(_grok, local_experts, windows=windows_or_none, norms=4), _MIXTRAL
    ),
    "glm4_moe": Family(("Glm4MoeForCausalLM",), _GLM4_LAYERS, mtp=_GLM_MTP),
    "glm4v_moe_text": Family((), _GLM4_LAYERS, mtp=_GLM_MTP),
    "deepseek": Family(("DeepseekForCausalLM",), mixture_layers(_deepseek, deepseek_mixture, leading_dense)),
    "dots1": Family(("Dots1ForCausalLM",), mixture_layers(_dots, deepseek_mixture, leading_dense, qwen_windows)),
    "minimax_m2": Family(
        ("MiniMaxM2ForCausalLM",),
        mixture_layers(_minimax_m2, _minimax_m2_mixture, windows=_minimax_m2_windows),
        _MIXTRAL,
        mtp_unknown=("num_mtp_modules", "num_nextn_predict_layers", "mtp_transformer_layers", "use_mtp"),
    ),
    "minimax_m3": Family(
        ("MiniMaxM3ForCausalLM",),
        _minimax_m3_layers,
        _M3,
        mtp_unknown=("num_mtp_modules", "num_nextn_predict_layers", "mtp_transformer_layers", "use_mtp"),
    ),
    "llama4_text": Family(("Llama4ForCausalLM",), _llama4_layers, _LLAMA4),
    "phimoe": Family(
        ("PhiMoEForCausalLM", "PhimoeForCausalLM"),
        mixture_layers(_phimoe, local_experts, windows=windows_or_none, norms=4),
        _MIXTRAL,
        ends=_phimoe_ends,
    ),
    "hunyuan_v1_moe": Family(
        ("HunYuanMoEV1ForCausalLM",),
        _hunyuan_layers,
        _HUNYUAN,
        defaults={"max_position_embeddings": 2048},
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
