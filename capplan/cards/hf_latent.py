"""Families with multi-head latent attention: DeepSeek, Kimi, GLM-5, LongCat, MiniCPM3, and DeepSeek-V4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capplan.cards.hf_family import CardPart, Family, Layer, ModuleNames, gated, layers_of
from capplan.cards.hf_fields import ConfigFields
from capplan.cards.hf_parts import MOST_HEADS, deepseek_mixture, dense, gqa, leading_dense, mixture, mla, window_of

_INDEX = {"index_query": ("self_attn.indexer.wq_b",), "index_key": ("self_attn.indexer.wk",)}
_LATENT = {
    "qkv_a": ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"),
    "q_b": ("self_attn.q_b_proj",),
    "kv_b": ("self_attn.kv_b_proj",),
    "o": ("self_attn.o_proj",),
}
MLA_MODULES = ModuleNames(attention=_LATENT)


def _mixture_layers(
    attention: Callable[[ConfigFields], CardPart], experts: Callable[[ConfigFields], CardPart] = deepseek_mixture
) -> Callable[[ConfigFields, int], list[Layer]]:
    """Leading dense layers, then mixtures."""

    def layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
        kinds = leading_dense(fields, n_layers)
        return layers_of(kinds, lambda sparse: Layer(attention(fields), experts(fields) if sparse else dense(fields)))

    return layers


def _deepseek_v2(fields: ConfigFields) -> CardPart:
    """Plain multi-head attention where ``use_mla`` is off: its latent fields are then null or 0."""
    fields.must_be("lm_head", True)
    fields.must_be("rm_head", False)
    if fields.value("use_mla") is False:
        fields.ignore("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        return gqa(fields)
    fields.must_be("use_mla", True)
    return mla(fields)


def _indexer(fields: ConfigFields) -> CardPart:
    """The lightning indexer of DeepSeek-V3.2: queries from the compressed query, one key, a norm with bias."""
    head_dim = fields.count("index_head_dim", unit="element")
    return {
        "n_heads": fields.count("index_n_heads", unit="head", most=MOST_HEADS),
        "head_dim": head_dim,
        "query_width": fields.count("q_lora_rank", unit="element"),
        "norm_elements": fields.number(2 * head_dim["value"], "parameter", note="norm of the key, with a bias"),
    }


def _sparse_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """DeepSeek-V3.2 and GLM-5: an indexer in every layer, or only where ``indexer_types`` says ``full``."""
    fields.ignore("indexer_rope_interleave", "index_share_for_mtp_iteration")
    fields.must_be("layer_types", ["indexed_attention"] * n_layers)
    owns = _index_owners(fields, n_layers)

    def build(kind: tuple[bool, bool]) -> Layer:
        sparse, own = kind
        selected = fields.count("index_topk", unit="token", most=10**9)
        attention = mla(fields, selected_tokens=selected, **({"indexer": _indexer(fields)} if own else {}))
        return Layer(attention, deepseek_mixture(fields) if sparse else dense(fields))

    return layers_of(list(zip(leading_dense(fields, n_layers), owns, strict=True)), build)


def _index_owners(fields: ConfigFields, n_layers: int) -> list[bool]:
    """Layers with an indexer of their own; the others read what an earlier one chose."""
    offset_and_step = ("index_skip_topk_offset", "index_topk_freq")
    if fields.has("indexer_types"):
        fields.ignore("index_topk_pattern", *offset_and_step)
        return [kind == "full" for kind in fields.words("indexer_types", n_layers, ("full", "shared"))]
    fields.ignore("indexer_types")
    if fields.has("index_topk_pattern"):
        fields.ignore(*offset_and_step)
        pattern = fields.value("index_topk_pattern")
        if not isinstance(pattern, str) or len(pattern) != n_layers or not set(pattern) <= set("FS"):
            raise fields.unsupported("index_topk_pattern", f"must be {n_layers} letters F (full) or S (shared)")
        return [letter == "F" for letter in pattern]
    fields.ignore("index_topk_pattern")
    step = fields.whole("index_topk_freq") if fields.has("index_topk_freq") else 1
    offset = fields.whole("index_skip_topk_offset", least=0) if fields.has("index_skip_topk_offset") else 2
    return [max(layer - offset + 1, 0) % step == 0 for layer in range(n_layers)]


def _longcat_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Each block has two attentions with a dense feed-forward each, and one mixture beside the first."""
    fields.ignore("mla_scale_q_lora", "mla_scale_kv_lora", "attention_method", "norm_topk_prob", "router_bias")
    fields.must_be("zero_expert_type", "identity")
    width = fields.count("ffn_hidden_size", unit="element")
    zero = fields.zero_or_count("zero_expert_num", unit="expert")
    options: dict[str, Any] = {"dense_width": width, **({"zero_experts": zero} if zero is not None else {})}
    experts = mixture(
        fields,
        experts=("n_routed_experts",),
        top_k=("moe_topk", "num_experts_per_tok"),
        width=("expert_ffn_hidden_size", "moe_intermediate_size"),
        **options,
    )
    slots = experts["n_experts"]["value"] + (zero["value"] if zero is not None else 0)
    if experts["top_k"]["value"] * experts["n_experts"]["value"] % slots:
        raise fields.unsupported("zero_expert_num", "only a whole mean number of real experts a token is modelled")
    first, second = Layer(mla(fields), experts), Layer(mla(fields), dense(fields, "ffn_hidden_size"))
    return [first, second] * n_layers


def _minicpm3_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    fields.ignore("scale_emb", "dim_model_base", "scale_depth")
    if not fields.has("v_head_dim"):
        heads, hidden = fields.whole("num_attention_heads"), fields.whole("hidden_size")
        width = fields.number(hidden // heads, "element", "hidden_size", "num_attention_heads", note="quotient")
        fields.data = {**fields.data, "v_head_dim": hidden // heads}
        return [Layer(mla(fields, value_head_dim=width), dense(fields))] * n_layers
    return [Layer(mla(fields), dense(fields))] * n_layers


def _v4_attention(fields: ConfigFields, ratio: int) -> CardPart:
    """A window of tokens, and an entry for every ``ratio`` tokens; at a ratio of 4 an indexer chooses entries."""
    attention: CardPart = {
        "kind": "compressed",
        "n_heads": fields.count("num_attention_heads", unit="head", most=MOST_HEADS),
        "head_dim": fields.count("head_dim", unit="element"),
        "qk_rope_head_dim": fields.count("qk_rope_head_dim", unit="element"),
        "q_lora_rank": fields.count("q_lora_rank", unit="element"),
        "output_groups": fields.count("o_groups", unit="head"),
        "output_rank": fields.count("o_lora_rank", unit="element"),
        "window": fields.number(window_of(fields), "token", "sliding_window"),
    }
    if ratio:
        attention["compress_ratio"] = fields.number(ratio, "token", "compress_ratios")
    if ratio == 4:
        selected = fields.count("index_topk", unit="token", most=10**9)
        attention |= {"overlap": True, "indexer": _v4_indexer(fields, ratio), "selected_tokens": selected}
    return attention


def _v4_indexer(fields: ConfigFields, ratio: int) -> CardPart:
    head_dim = fields.count("index_head_dim", unit="element")
    return {
        "n_heads": fields.count("index_n_heads", unit="head", most=MOST_HEADS),
        "head_dim": head_dim,
        "query_width": fields.count("q_lora_rank", unit="element"),
        "norm_elements": fields.number(head_dim["value"], "parameter", note="norm of the key"),
        "compress_ratio": fields.number(ratio, "token", "compress_ratios"),
    }


def _v4_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """DeepSeek-V4: compressed attention, hyper-connections around attention and feed-forward, all layers mixtures."""
    fields.must_be("num_key_value_heads", 1)
    fields.must_be("attention_bias", False)
    fields.ignore("compress_rope_theta", "hc_eps", "hc_sinkhorn_iters", "num_hash_layers", "intermediate_size")
    ratios = _v4_ratios(fields, n_layers)
    streams, hidden = fields.whole("hc_mult", most=100), fields.whole("hidden_size")
    width = (2 + streams) * streams
    matrices = tuple(_hyper_matrix(fields, name, streams * hidden, width) for name in ("attention_hc", "feed_hc"))
    extra = fields.number(2 * (width + 3), "parameter", "hc_mult", note="bases and scales of hyper-connections")
    return layers_of(
        ratios,
        lambda ratio: Layer(
            _v4_attention(fields, ratio), deepseek_mixture(fields), matrices=matrices, extra_parameters=extra
        ),
    )


_V4_WORDS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


def _v4_ratios(fields: ConfigFields, n_layers: int) -> list[int]:
    """Tokens an entry stands for, one number a layer; entries beyond the layers are those of prediction layers."""
    if fields.has("layer_types"):
        fields.must_be("compress_rates", {word: ratio for word, ratio in _V4_WORDS.items() if ratio})
        fields.ignore("mlp_layer_types", "compress_ratios")
        return [_V4_WORDS[word] for word in fields.words("layer_types", n_layers, tuple(_V4_WORDS))]
    value = fields.value("compress_ratios")
    if not isinstance(value, list) or len(value) < n_layers:
        raise fields.error("compress_ratios", f"must be a list of at least {n_layers} whole numbers, one a layer")
    for ratio in value:
        if type(ratio) is not int or ratio not in (0, 4, 128):
            raise fields.unsupported(
                "compress_ratios", f"only ratios of 0, 4 and 128 are modelled, not {str(ratio)[:20]}"
            )
    return list(value[:n_layers])


def _hyper_matrix(fields: ConfigFields, name: str, inputs: int, outputs: int) -> CardPart:
    note = "mixing of the residual streams"
    return {
        "name": name,
        "inputs": fields.number(inputs, "element", "hc_mult", "hidden_size", note=note),
        "outputs": fields.number(outputs, "element", "hc_mult", note=note),
    }


def _v4_ends(fields: ConfigFields) -> CardPart:
    streams, hidden = fields.whole("hc_mult"), fields.whole("hidden_size")
    return {
        "projections": [_hyper_matrix(fields, "head_hc", streams * hidden, streams)],
        "other_parameters": fields.number(
            streams + 1, "parameter", "hc_mult", note="base and scale of the last mixing"
        ),
    }


_DEEPSEEK = _mixture_layers(mla)
_MTP = ("num_nextn_predict_layers", True)
_SPARSE_MODULES = ModuleNames(attention={**_LATENT, **_INDEX})
_V4_MODULES = ModuleNames(
    attention={
        "qkv_a": ("attn.wq_a", "attn.wkv"), "q_b": ("attn.wq_b",), "o_a": ("attn.wo_a",), "o_b": ("attn.wo_b",),
    },
    experts=gated("ffn.experts.0", ("w1", "w3", "w2")),
    shared=gated("ffn.shared_experts", ("w1", "w3", "w2")),
)  # fmt: skip

LATENT_FAMILIES: dict[str, Family] = {
    "deepseek_v2": Family(
        ("DeepseekV2ForCausalLM",),
        _mixture_layers(_deepseek_v2),
        MLA_MODULES,
        defaults={"max_position_embeddings": 2048},
    ),
    "deepseek_v3": Family(("DeepseekV3ForCausalLM",), _DEEPSEEK, MLA_MODULES, mtp=_MTP),
    "kimi_k2": Family(("DeepseekV3ForCausalLM", "KimiK2ForCausalLM"), _DEEPSEEK, MLA_MODULES, mtp=_MTP),
    "deepseek_v32": Family(("DeepseekV32ForCausalLM",), _sparse_layers, _SPARSE_MODULES, mtp=_MTP),
    "glm_moe_dsa": Family(("GlmMoeDsaForCausalLM",), _sparse_layers, _SPARSE_MODULES, mtp=_MTP),
    "mistral4": Family(("Mistral4ForCausalLM",), _DEEPSEEK, MLA_MODULES),
    "glm4_moe_lite": Family(("Glm4MoeLiteForCausalLM",), _DEEPSEEK, MLA_MODULES, mtp=_MTP),
    "longcat_flash": Family(
        ("LongcatFlashForCausalLM",),
        _longcat_layers,
        MLA_MODULES,
        synonyms={"num_hidden_layers": ("num_layers",)},
        defaults={"max_position_embeddings": 131072},
        mtp_unknown=("num_nextn_predict_layers", "mtp_num_layers"),
    ),
    "minicpm3": Family(("MiniCPM3ForCausalLM",), _minicpm3_layers, MLA_MODULES, tied=True),
    "deepseek_v4": Family(
        ("DeepseekV4ForCausalLM",), _v4_layers, _V4_MODULES, ends=_v4_ends, mtp_unknown=("num_nextn_predict_layers",)
    ),
}
"""By ``model_type``."""
