"""Mixtures of experts with rules of their own: MiniMax-M2 and M3, Llama-4, Hunyuan."""

from __future__ import annotations

from typing import Any

from capplan.cards.hf_dense import whole_qk_norm
from capplan.cards.hf_family import LLAMA_ATTENTION, CardPart, Family, Layer, ModuleNames, gated, layers_of
from capplan.cards.hf_fields import ConfigFields
from capplan.cards.hf_moe import MIXTRAL_MODULES, local_experts, mixture_layers
from capplan.cards.hf_parts import (
    MOST_HEADS,
    Windows,
    dense,
    flagged_gqa,
    gqa,
    leading_dense,
    mixture,
)


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
    fields.ignore("rotary_dim", "swiglu_alpha", "use_gemma_norm", "use_routing_bias")
    sparse = _m3_sparse(fields, n_layers)

    def build(kind: tuple[bool, bool]) -> Layer:
        indexed, mixed = kind
        options: dict[str, Any] = {}
        if indexed:
            options = {"indexer": _m3_indexer(fields), "selected_tokens": _m3_selected(fields)}
        attention = gqa(fields, head_dim_required=True, qk_norm=True, **options)
        return Layer(attention, _m3_mixture(fields) if mixed else dense(fields, "dense_intermediate_size"))

    mixed_layers = leading_dense(fields, n_layers)
    if all(mixed_layers):
        fields.ignore("dense_intermediate_size")
    return layers_of(list(zip(sparse, mixed_layers, strict=True)), build)


_M3_NAMES = {
    "sparse_num_index_heads": ("index_n_heads",),
    "sparse_index_dim": ("index_head_dim",),
    "sparse_block_size": ("index_block_size",),
    "sparse_topk_blocks": ("index_topk_blocks",),
    "sparse_local_block": ("index_local_blocks",),
}


def _m3_options(fields: ConfigFields) -> ConfigFields:
    """The table of the sparse attention, or the config itself where it is written without one."""
    if not fields.has("sparse_attention_config"):
        return fields
    inner = fields.value("sparse_attention_config")
    if not isinstance(inner, dict):
        raise fields.error("sparse_attention_config", "must be a table")
    return ConfigFields(inner, fields.file, f"{fields.prefix}sparse_attention_config.")


def _m3_sparse(fields: ConfigFields, n_layers: int) -> list[bool]:
    options = _m3_options(fields)
    options.ignore(*_M3_NAMES)
    if options is fields:
        words = fields.words("layer_types", n_layers, ("full_attention", "minimax_m3_sparse"))
        return [word == "minimax_m3_sparse" for word in words]
    options.must_be("use_sparse_attention", True)
    options.must_be("sparse_disable_index_value", options.value("sparse_attention_freq"))
    options.ignore("sparse_init_block", "sparse_score_type")
    flags = options.whole_list("sparse_attention_freq", n_layers, least=0, most=1)
    options.refuse_unknown()
    return [bool(flag) for flag in flags]


def _m3_indexer(fields: ConfigFields) -> CardPart:
    options = _m3_options(fields)
    head_dim = options.count("sparse_index_dim", unit="element")
    return {
        "n_heads": options.count("sparse_num_index_heads", unit="head", most=MOST_HEADS),
        "head_dim": head_dim,
        "head_weights": False,
        "norm_elements": options.number(2 * head_dim["value"], "parameter", note="norms of queries and keys"),
    }


def _m3_selected(fields: ConfigFields) -> CardPart:
    """Whole blocks of keys: those chosen, and those next to the query."""
    options = _m3_options(fields)
    blocks = options.whole("sparse_topk_blocks") + options.whole("sparse_local_block", least=0)
    names = ("sparse_block_size", "sparse_topk_blocks", "sparse_local_block")
    return options.number(blocks * options.whole("sparse_block_size"), "token", *names, note="whole blocks")


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
        if any(not 0 <= layer < n_layers for layer in layers):
            raise fields.error("moe_layers", f"must be layer numbers below {n_layers}")
        return [layer in set(layers) for layer in range(n_layers)]
    step = fields.whole("interleave_moe_layer_step", least=0)
    return [step > 0 and (layer + 1) % step == 0 for layer in range(n_layers)]


def _llama4_mixture(fields: ConfigFields) -> CardPart:
    """One shared expert as wide as a routed one."""
    shared = fields.count("intermediate_size", unit="element")
    fields.ignore("intermediate_size_mlp")
    return local_experts(fields, shared_width=shared)


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
_M3_FAMILY = Family(
    ("MiniMaxM3ForCausalLM", "MiniMaxM3VLForCausalLM"),
    _minimax_m3_layers,
    _M3,
    synonyms=_M3_NAMES,
    mtp_unknown=("num_mtp_modules", "num_nextn_predict_layers", "mtp_transformer_layers", "use_mtp"),
)

SPARSE_FAMILIES: dict[str, Family] = {
    "minimax_m2": Family(
        ("MiniMaxM2ForCausalLM",),
        mixture_layers(_minimax_m2, _minimax_m2_mixture, windows=_minimax_m2_windows),
        MIXTRAL_MODULES,
        mtp_unknown=("num_mtp_modules", "num_nextn_predict_layers", "mtp_transformer_layers", "use_mtp"),
    ),
    "minimax_m3": _M3_FAMILY,
    "minimax_m3_vl_text": _M3_FAMILY,
    "llama4_text": Family(("Llama4ForCausalLM",), _llama4_layers, _LLAMA4),
    "hunyuan_v1_moe": Family(
        ("HunYuanMoEV1ForCausalLM",),
        _hunyuan_layers,
        _HUNYUAN,
        defaults={"max_position_embeddings": 2048},
    ),
}
"""By ``model_type``."""
