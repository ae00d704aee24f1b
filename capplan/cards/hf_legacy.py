"""Families with field names of their own: GPT-2 and its relatives, OPT, BLOOM, MPT, Falcon, ChatGLM, Qwen-1, DBRX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capplan.cards.hf_dense import dense_layers, whole_qk_norm
from capplan.cards.hf_family import CardPart, Family, Layer, ModuleNames, gated
from capplan.cards.hf_fields import ConfigFields
from capplan.cards.hf_moe import mixture_layers
from capplan.cards.hf_parts import MOST_HEADS, dense, flagged_gqa, gqa, mixture

Layers = Callable[[ConfigFields, int], list[Layer]]

GPT_NAMES = {
    "num_hidden_layers": ("n_layer",),
    "hidden_size": ("n_embd",),
    "num_attention_heads": ("n_head",),
    "intermediate_size": ("n_inner",),
    "max_position_embeddings": ("n_positions",),
}


def mha(fields: ConfigFields, *, kv_heads: CardPart | None = None, **options: Any) -> CardPart:
    """Multi-head attention, or with ``kv_heads`` what a family shares; heads as wide as hidden_size / heads."""
    heads = fields.count("num_attention_heads", unit="head", most=MOST_HEADS)
    hidden = fields.whole("hidden_size")
    if hidden % heads["value"]:
        raise fields.error("hidden_size", f"{hidden} is no multiple of {heads['value']} heads")
    width = fields.number(hidden // heads["value"], "element", "hidden_size", "num_attention_heads", note="quotient")
    keys = kv_heads or fields.number(heads["value"], "head", "num_attention_heads", note="as many as query heads")
    if heads["value"] % keys["value"]:
        raise fields.error("num_attention_heads", f"{heads['value']} must be a multiple of {keys['value']} KV heads")
    return {"kind": "gqa", "n_heads": heads, "n_kv_heads": keys, "head_dim": width, "value_head_dim": width, **options}


def one_head(fields: ConfigFields, note: str) -> CardPart:
    """The single KV head of multi-query attention."""
    return fields.number(1, "head", note=note)


def wide(fields: ConfigFields, name: str = "intermediate_size", times: int = 4) -> CardPart:
    """The inner width; null means four times that of the model."""
    if fields.has(name):
        return fields.count(name, unit="element")
    fields.ignore(name)
    return fields.number(times * fields.whole("hidden_size"), "element", "hidden_size", note=f"{times} times")


def ungated(fields: ConfigFields, *, bias: bool = True, width: CardPart | None = None) -> CardPart:
    """Two matrices without a gate."""
    return {"kind": "dense", "width": width or wide(fields), "gated": False, "bias": bias}


def _equal(attention: CardPart, block: CardPart, norms: int, n_layers: int) -> list[Layer]:
    return [Layer(attention, block, norms=norms)] * n_layers


def positions(fields: ConfigFields, extra: int = 0) -> CardPart:
    """A table of learnt positions."""
    rows, hidden = fields.whole("max_position_embeddings") + extra, fields.whole("hidden_size")
    note = f"and {extra} more" if extra else ""
    return {
        "name": "positions",
        "inputs": fields.number(rows, "element", "max_position_embeddings", note=note),
        "outputs": fields.number(hidden, "element", "hidden_size"),
    }


def two_norms(fields: ConfigFields) -> CardPart:
    """A last norm with a bias: two vectors of the model's width."""
    return {"final_norms": fields.number(2, "norm", note="a norm with a bias")}


def _with_positions(fields: ConfigFields) -> CardPart:
    return {**two_norms(fields), "look_ups": [positions(fields)]}


def _head_bias(fields: ConfigFields) -> CardPart:
    return {**two_norms(fields), "lm_head_bias": True}


def _gpt2(fields: ConfigFields, n_layers: int) -> list[Layer]:
    fields.ignore("n_ctx")
    fields.must_be("add_cross_attention", False)
    return _equal(mha(fields, qkv_bias=True, output_bias=True), ungated(fields), 4, n_layers)


def _gptj(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Attention and feed-forward side by side behind one norm."""
    fields.must_be("rotary", True)
    return _equal(mha(fields), ungated(fields), 2, n_layers)


def _neox(fields: ConfigFields, n_layers: int) -> list[Layer]:
    fields.ignore("use_parallel_residual")
    bias = fields.flag("attention_bias", True)
    return _equal(mha(fields, qkv_bias=bias, output_bias=bias), ungated(fields), 4, n_layers)


def _bigcode(fields: ConfigFields, n_layers: int) -> list[Layer]:
    fields.ignore("runner_max_sequence_length", "inference_runner", "validate_runner_input", "pre_allocate_kv_cache")
    fields.ignore("num_key_value_heads")
    keys = one_head(fields, "multi_query") if fields.flag("multi_query", True) else None
    return _equal(mha(fields, kv_heads=keys, qkv_bias=True, output_bias=True), ungated(fields), 4, n_layers)


def _opt(fields: ConfigFields, n_layers: int) -> list[Layer]:
    fields.must_be("enable_bias", True)
    fields.must_be("layer_norm_elementwise_affine", True)
    fields.must_be("output_projection", True)
    block = ungated(fields, width=fields.count("ffn_dim", unit="element"))
    return _equal(mha(fields, qkv_bias=True, output_bias=True), block, 4, n_layers)


def _opt_ends(fields: ConfigFields) -> CardPart:
    """Positions with two rows more; narrower embeddings between projections; no last norm where norms come last."""
    ends: CardPart = {"look_ups": [positions(fields, 2)]}
    last = fields.flag("do_layer_norm_before", True) and not fields.flag("_remove_final_layer_norm", False)
    ends["final_norms"] = fields.number(2 * last, "norm", note="a norm with a bias" if last else "no last norm")
    hidden = fields.whole("hidden_size")
    width = fields.whole("word_embed_proj_dim") if fields.has("word_embed_proj_dim") else hidden
    if width != hidden:
        ends["embedding_width"] = fields.number(width, "element", "word_embed_proj_dim")
        ends["projections"] = [_projection(fields, "project_in", width, hidden)]
        ends["projections"].append(_projection(fields, "project_out", hidden, width))
    return ends


def _projection(fields: ConfigFields, name: str, inputs: int, outputs: int) -> CardPart:
    names = ("word_embed_proj_dim", "hidden_size")
    return {
        "name": name,
        "inputs": fields.number(inputs, "element", *names),
        "outputs": fields.number(outputs, "element", *names),
    }


def _bloom(fields: ConfigFields, n_layers: int) -> list[Layer]:
    fields.ignore("apply_residual_connection_post_layernorm", "slow_but_exact", "unk_token_id", "bias_dropout_fusion")
    fields.ignore(
        "masked_softmax_fusion", "skip_bias_add", "skip_bias_add_qkv", "offset_alibi", "attention_softmax_in_fp32"
    )
    return _equal(mha(fields, qkv_bias=True, output_bias=True), ungated(fields), 4, n_layers)


def _bloom_ends(fields: ConfigFields) -> CardPart:
    return {"final_norms": fields.number(4, "norm", note="norms with a bias, one behind the embedding")}


def _mpt(fields: ConfigFields, n_layers: int) -> list[Layer]:
    fields.ignore("embedding_fraction", "init_config", "init_device", "learned_pos_emb", "verbose", "tokenizer_name")
    fields.must_be("no_bias", True)
    fields.must_be("norm_type", "low_precision_layernorm")
    options = _options(fields, "attn_config")
    options.must_be("attn_type", "multihead_attention")
    options.must_be("qk_ln", False)
    options.must_be("prefix_lm", False)
    options.must_be("alibi", True)
    options.ignore("alibi_bias_max", "attn_impl", "attn_pdrop", "attn_uses_sequence_id", "softmax_scale")
    options.ignore("model_type", "attn_type")
    options.refuse_unknown()
    times = fields.whole("expansion_ratio", most=100)
    return _equal(mha(fields), ungated(fields, bias=False, width=wide(fields, "n_inner", times)), 2, n_layers)


def _options(fields: ConfigFields, name: str) -> ConfigFields:
    inner = fields.value(name)
    if not isinstance(inner, dict):
        raise fields.error(name, "must be a table")
    options = ConfigFields(inner, fields.file, f"{fields.prefix}{name}.")
    # Tables inside a config carry the defaults of every config class; only their own fields count.
    options.ignore("tie_word_embeddings", "model_type")
    return options


def _falcon(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """One KV head where ``multi_query`` is set, whatever ``num_kv_heads`` says, unless the decoder is the new one."""
    fields.must_be("bias", False)
    fields.ignore("apply_residual_connection_post_layernorm", "alibi")
    new, parallel = fields.flag("new_decoder_architecture", False), fields.flag("parallel_attn", True)
    many, keys = fields.flag("multi_query", True), None
    if new:
        keys = fields.count("num_kv_heads", unit="head", most=MOST_HEADS)
    elif many:
        keys = one_head(fields, "multi_query")
    fields.must_be("num_ln_in_parallel_attn", 1, 2)
    two = (new and fields.value("num_ln_in_parallel_attn") != 1) or not parallel
    fields.ignore("num_kv_heads")
    return _equal(
        mha(fields, kv_heads=keys), ungated(fields, bias=False, width=_falcon_width(fields)), 2 + 2 * two, n_layers
    )


def _falcon_width(fields: ConfigFields) -> CardPart:
    """``ffn_hidden_size``, else ``ff_factor`` (four) times the width of the model; both must agree."""
    times = fields.whole("ff_factor", most=1000) if fields.has("ff_factor") else 4
    width = wide(fields, "n_inner" if fields.has("n_inner") else "ffn_hidden_size", times)
    if fields.has("ff_factor") and width["value"] != times * fields.whole("hidden_size"):
        raise fields.error("ff_factor", f"{times} times hidden_size differs from the inner width {width['value']}")
    return width


def _phi(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Attention and feed-forward side by side behind one norm."""
    fields.must_be("qk_layernorm", False)
    fields.ignore("n_head_kv", "flash_attn", "flash_rotary", "fused_dense", "img_processor")
    attention = gqa(fields, qkv_bias=True, output_bias=True, kv_heads_default=True)
    return _equal(attention, ungated(fields), 2, n_layers)


def _stablelm(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Norms of queries and keys, where they are on, have weights of their own for every head and no bias."""
    parallel = fields.flag("use_parallel_residual", False)
    attention = gqa(fields, qkv_bias=fields.flag("use_qkv_bias", False))
    if fields.flag("qk_layernorm", False):
        attention = {**attention, **whole_qk_norm(fields, attention)}
    return _equal(attention, dense(fields), 4 - 2 * parallel, n_layers)


def _chatglm(fields: ConfigFields, n_layers: int) -> list[Layer]:
    fields.must_be("rmsnorm", True)
    fields.must_be("post_layer_norm", True)
    fields.must_be("add_bias_linear", False)
    fields.must_be("apply_residual_connection_post_layernorm", False)
    fields.ignore("multi_query_attention", "prefix_projection", "pre_seq_len", "quantization_bit", "kv_channels")
    fields.ignore("rope_ratio", "interleaved_qkv", "eos_token_id")
    keys = None
    if fields.flag("multi_query_attention", False):
        keys = fields.count("multi_query_group_num", unit="head", most=MOST_HEADS)
    fields.ignore("multi_query_group_num")
    width = fields.count("kv_channels", unit="element")
    attention = mha(fields, kv_heads=keys, qkv_bias=fields.flag("add_qkv_bias", False))
    attention |= {"head_dim": width, "value_head_dim": width}
    return _equal(attention, dense(fields, "ffn_hidden_size"), 2, n_layers)


def _baichuan(fields: ConfigFields, n_layers: int) -> list[Layer]:
    fields.ignore("_from_model_config", "gradient_checkpointing", "model_max_length")
    return _equal(mha(fields), dense(fields), 2, n_layers)


def _internlm2(fields: ConfigFields, window: int | None) -> CardPart:
    fields.must_be("bias", False)
    fields.ignore("attn_implementation")
    return gqa(fields, window)


def _qwen(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Qwen-1: ``intermediate_size`` is gate and up together."""
    fields.must_be("no_bias", True)
    fields.ignore("bf16", "fp16", "fp32", "kv_channels", "onnx_safe", "use_dynamic_ntk", "use_logn_attn", "seq_length")
    fields.ignore("use_cache_quantization", "use_cache_kernel", "softmax_in_fp32")
    fields.must_be("use_cache_quantization", False)
    both = fields.whole("intermediate_size")
    if both % 2:
        raise fields.error("intermediate_size", f"{both} must be even: gate and up together")
    width = fields.number(both // 2, "element", "intermediate_size", note="half: gate and up together")
    return _equal(mha(fields, qkv_bias=True), {"kind": "dense", "width": width}, 2, n_layers)


def _exaone(fields: ConfigFields, window: int | None) -> CardPart:
    fields.must_be("attention_bias", False)
    return gqa(fields, window)


def _dbrx(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Norms without bias; experts in a table of their own."""
    attn, ffn = _options(fields, "attn_config"), _options(fields, "ffn_config")
    attn.ignore("clip_qkv", "attn_pdrop", "rope_theta")
    ffn.ignore("ffn_act_fn", "moe_jitter_eps", "moe_loss_weight", "moe_normalize_expert_weights")
    ffn.must_be("uniform_expert_assignment", False)
    attention = mha(fields, kv_heads=attn.count("kv_n_heads", unit="head", most=MOST_HEADS))
    names = {"experts": ("moe_num_experts",), "top_k": ("moe_top_k",), "width": ("ffn_hidden_size",)}
    experts = mixture(ffn, **names)
    attn.refuse_unknown()
    ffn.refuse_unknown()
    return _equal(attention, experts, 2, n_layers)


def _phi3small(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Every second layer reads blocks of the past only; all of them keep all of it. Biases everywhere."""
    fields.ignore("dense_attention_every_n_layers", "rope_position_scale", "rope_embedding_base", "gegelu_pad_to_256")
    fields.ignore(*(name for name in fields.data if name.startswith("blocksparse_")), "ff_dim_multiplier")
    fields.ignore("attention_bias", "pad_sequence_to_multiple_of_64", "dummy_token_indices")
    attention = gqa(fields, qkv_bias=True, output_bias=True)
    return _equal(attention, {**dense(fields, "ff_intermediate_size"), "bias": True}, 4, n_layers)


def _minicpm_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Dense, or a mixture where there are experts."""
    fields.must_be("sparse_config", {})
    fields.ignore("mup_denominator")

    def attention(inner: ConfigFields, window: int | None) -> CardPart:
        return flagged_gqa(inner, window, kv_heads_default=True)

    if not fields.has("num_experts") or fields.value("num_experts") == 0:
        fields.ignore("num_experts", "num_experts_per_tok")
        return dense_layers(attention)(fields, n_layers)
    experts = mixture(fields, experts=("num_experts",), width=("intermediate_size",))
    return mixture_layers(attention, lambda _: experts)(fields, n_layers)


_FUSED = ModuleNames(attention={"qkv": ("self_attn.W_pack",), "o": ("self_attn.o_proj",)}, dense=gated("mlp"))
_INTERNLM = ModuleNames(
    attention={"qkv": ("attention.wqkv",), "o": ("attention.wo",)}, dense=gated("feed_forward", ("w1", "w3", "w2"))
)
_GLM = ModuleNames(
    attention={"qkv": ("self_attention.query_key_value",), "o": ("self_attention.dense",)},
    dense={"gate_up": ("mlp.dense_h_to_4h",), "down": ("mlp.dense_4h_to_h",)},
)
_GPT = ModuleNames(
    attention={"qkv": ("attn.c_attn",), "o": ("attn.c_proj",)},
    dense={"up": ("mlp.c_fc",), "down": ("mlp.c_proj",)},
)
_PLAIN = ModuleNames(dense={"up": ("mlp.fc1",), "down": ("mlp.fc2",)})
_CONTEXT_2048 = {"max_position_embeddings": 2048}

LEGACY_FAMILIES: dict[str, Family] = {
    "gpt2": Family(("GPT2LMHeadModel",), _gpt2, _GPT, tied=True, synonyms=GPT_NAMES, ends=_with_positions),
    "gptj": Family(("GPTJForCausalLM",), _gptj, _PLAIN, synonyms=GPT_NAMES, ends=_head_bias),
    "gpt_neox": Family(("GPTNeoXForCausalLM",), _neox, _GLM, ends=two_norms, defaults=_CONTEXT_2048),
    "gpt_bigcode": Family(
        ("GPTBigCodeForCausalLM",), _bigcode, _GPT, tied=True, synonyms=GPT_NAMES, ends=_with_positions
    ),
    "opt": Family(("OPTForCausalLM",), _opt, _PLAIN, tied=True, ends=_opt_ends),
    "bloom": Family(
        ("BloomForCausalLM",), _bloom, _GLM, tied=True, synonyms=GPT_NAMES, ends=_bloom_ends, defaults=_CONTEXT_2048
    ),
    "mpt": Family(
        ("MptForCausalLM", "MPTForCausalLM"),
        _mpt,
        tied=True,
        synonyms={"num_hidden_layers": ("n_layers",), "hidden_size": ("d_model",), "num_attention_heads": ("n_heads",)},
    ),
    "falcon": Family(
        ("FalconForCausalLM", "RWForCausalLM"),
        _falcon,
        _GLM,
        tied=True,
        synonyms={
            "num_hidden_layers": ("n_layer",),
            "num_attention_heads": ("n_head",),
            "num_kv_heads": ("n_head_kv",),
        },
        ends=two_norms,
        defaults=_CONTEXT_2048,
    ),
    "phi": Family(("PhiForCausalLM",), _phi, _PLAIN, ends=_head_bias),
    "phi-msft": Family(("PhiForCausalLM",), _phi, _PLAIN, synonyms=GPT_NAMES, ends=_head_bias),
    "stablelm": Family(("StableLmForCausalLM",), _stablelm, ends=two_norms),
    "chatglm": Family(
        ("ChatGLMModel", "ChatGLMForConditionalGeneration"),
        _chatglm,
        _GLM,
        synonyms={"num_hidden_layers": ("num_layers",), "vocab_size": ("padded_vocab_size",)},
    ),
    "baichuan": Family(("BaichuanForCausalLM", "BaiChuanForCausalLM"), _baichuan, _FUSED),
    "internlm2": Family(("InternLM2ForCausalLM",), dense_layers(_internlm2), _INTERNLM),
    "qwen": Family(("QWenLMHeadModel",), _qwen, _GPT),
    "exaone": Family(("ExaoneForCausalLM",), dense_layers(_exaone), synonyms={"num_hidden_layers": ("num_layers",)}),
    "dbrx": Family(
        ("DbrxForCausalLM",),
        _dbrx,
        synonyms={"num_hidden_layers": ("n_layers",), "hidden_size": ("d_model",), "num_attention_heads": ("n_heads",)},
    ),
    "phi3small": Family(("Phi3SmallForCausalLM",), _phi3small, tied=True, ends=two_norms),
    "minicpm": Family(("MiniCPMForCausalLM",), _minicpm_layers, tied=True),
}
"""By ``model_type``."""
