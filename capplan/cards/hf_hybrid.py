"""Families that mix attention with linear attention or state-space layers, and those without any attention."""

from __future__ import annotations

from typing import Any

from capplan.cards.hf_family import CardPart, Family, Layer, ModuleNames, gated, layers_of
from capplan.cards.hf_fields import ConfigFields
from capplan.cards.hf_moe import local_experts
from capplan.cards.hf_parts import (
    MOST_HEADS,
    dense,
    flagged_dense,
    flagged_gqa,
    gqa,
    mixture,
    mla,
    shared_by_count,
    shared_by_width,
    sparse_steps,
)

STATE_TYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
NO_LIMIT = {"max_position_embeddings": 1_048_576}
"""A recurrent model has no longest sequence; this one is assumed, and said to be."""


def state_dtype(fields: ConfigFields, *names: str) -> str:
    """The type a recurrent state is kept in; where the config does not say, fp32 as engines keep it."""
    given = [name for name in names if fields.has(name)]
    fields.ignore(*names)
    if not given:
        return fields.assume("state_dtype", "fp32")
    name = fields.value(given[0])
    if not isinstance(name, str) or name not in STATE_TYPES:
        raise fields.unsupported(given[0], f"not a type of a state (known: {', '.join(STATE_TYPES)})")
    return STATE_TYPES[name]


def gated_delta(fields: ConfigFields) -> CardPart:
    """The gated delta rule of Qwen3-Next and Qwen3.5."""
    return {
        "kind": "gated_delta",
        "key_heads": fields.count("linear_num_key_heads", unit="head", most=MOST_HEADS),
        "value_heads": fields.count("linear_num_value_heads", unit="head", most=MOST_HEADS),
        "key_head_dim": fields.count("linear_key_head_dim", unit="element"),
        "value_head_dim": fields.count("linear_value_head_dim", unit="element"),
        "conv_kernel": fields.count("linear_conv_kernel_dim", unit="token"),
        "state_dtype": state_dtype(fields, "mamba_ssm_dtype"),
    }


def full_layers(fields: ConfigFields, n_layers: int, other: str) -> list[bool]:
    """Which layers have full attention: named one by one, or the last of every ``full_attention_interval``."""
    if fields.has("layer_types"):
        fields.ignore("full_attention_interval")
        kinds = fields.words("layer_types", n_layers, ("full_attention", other))
        return [kind == "full_attention" for kind in kinds]
    fields.ignore("layer_types")
    period = fields.whole("full_attention_interval")
    return [(layer + 1) % period == 0 for layer in range(n_layers)]


def _qwen_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Three layers of the gated delta rule, then one of attention with an output gate."""
    fields.must_be("use_sliding_window", False)
    fields.must_be("attn_output_gate", True)
    fields.ignore("mtp_use_dedicated_embeddings")
    full = full_layers(fields, n_layers, "linear_attention")
    sparse = _qwen_sparse(fields, n_layers)

    def build(kind: tuple[bool, bool]) -> Layer:
        attends, mixed = kind
        feed_forward = _qwen_mixture(fields) if mixed else dense(fields)
        if not attends:
            return Layer(None, feed_forward, gated_delta(fields))
        return Layer(flagged_gqa(fields, head_dim_required=True, qk_norm=True, output_gate=True), feed_forward)

    return layers_of(list(zip(full, sparse, strict=True)), build)


def _qwen_sparse(fields: ConfigFields, n_layers: int) -> list[bool]:
    if not fields.has("num_experts"):
        fields.must_be("mlp_only_layers", [])
        fields.ignore("num_experts", "mlp_only_layers")
        return [False] * n_layers
    if not fields.has("decoder_sparse_step"):
        fields.must_be("mlp_only_layers", [])
        fields.ignore("mlp_only_layers", "intermediate_size")
        return [True] * n_layers
    sparse = sparse_steps(fields, n_layers)
    if all(sparse):
        fields.ignore("intermediate_size")
    return sparse


def _qwen_mixture(fields: ConfigFields) -> CardPart:
    shared = shared_by_width(fields, "shared_expert_intermediate_size", shared_gate=True)
    return mixture(fields, experts=("num_experts",), **shared)


def _minimax_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Seven layers of lightning attention, then one of attention; every layer a mixture."""
    fields.ignore("postnorm", "shared_moe_mode", "rotary_dim", "block_size", "use_qk_norm")
    fields.ignore(
        *(name for name in fields.data if name.startswith("layernorm_") or name.endswith("_attn_alpha_factor"))
    )
    fields.ignore(*(name for name in fields.data if name.endswith(("_alpha_factor", "_beta_factor"))))
    fields.must_be("shared_intermediate_size", 0)
    fields.must_be("sliding_window", None)

    def build(attends: bool) -> Layer:
        if attends:
            return Layer(gqa(fields, head_dim_required=True), local_experts(fields))
        return Layer(None, local_experts(fields), _lightning(fields))

    return layers_of(_minimax_full(fields, n_layers), build)


def _minimax_full(fields: ConfigFields, n_layers: int) -> list[bool]:
    for name in ("attn_type_list", "layer_types"):
        if isinstance(fields.data.get(name), list) and all(type(item) is int for item in fields.data[name]):
            return [flag == 1 for flag in fields.whole_list(name, n_layers, least=0, most=1)]
    if fields.has("attn_type_list"):
        raise fields.error("attn_type_list", f"must be a list of {n_layers} numbers 0 or 1, one a layer")
    return full_layers(fields, n_layers, "linear_attention")


def _lightning(fields: ConfigFields) -> CardPart:
    return {
        "kind": "lightning",
        "n_heads": fields.count("num_attention_heads", unit="head", most=MOST_HEADS),
        "head_dim": fields.count("head_dim", unit="element"),
        "state_dtype": state_dtype(fields),
    }


def _kimi_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Kimi delta attention and latent attention, with one-based lists of which is where."""
    fields.must_be("mla_use_nope", True, False)
    fields.must_be("moe_layer_freq", 1)
    fields.ignore("activation_situ_beta", "activation_situ_linear_beta", "use_grouped_topk")
    options = fields.value("linear_attn_config")
    if not isinstance(options, dict):
        raise fields.error("linear_attn_config", "must be a table")
    inner = ConfigFields(options, fields.file, f"{fields.prefix}linear_attn_config.")
    full = _kimi_full(inner, n_layers)
    first = fields.whole("first_k_dense_replace", least=0)
    residuals = tuple(_residual(fields, name) for name in ("attention_residual", "feed_residual"))
    if not fields.has("attn_res_block_size"):
        residuals = ()

    def build(kind: tuple[bool, bool]) -> Layer:
        attends, mixed = kind
        feed_forward = _kimi_mixture(fields) if mixed else dense(fields)
        options: dict[str, Any] = {"norms": 2 + len(residuals), "matrices": residuals}
        if not attends:
            return Layer(None, feed_forward, _kimi_delta(fields, inner), **options)
        attention = mla(fields, output_gate=fields.flag("mla_use_output_gate", False))
        return Layer(attention, feed_forward, **options)

    layers = layers_of([(full[layer], layer >= first) for layer in range(n_layers)], build)
    inner.refuse_unknown()
    return layers


def _residual(fields: ConfigFields, name: str) -> CardPart:
    """Attention over the residual streams of earlier blocks of layers: one query of the model's width, and a norm."""
    names = ("attn_res_block_size", "hidden_size")
    return {
        "name": name,
        "inputs": fields.number(fields.whole("hidden_size"), "element", *names),
        "outputs": fields.number(1, "element", *names),
    }


def _kimi_ends(fields: ConfigFields) -> CardPart:
    if not fields.has("attn_res_block_size"):
        fields.ignore("attn_res_block_size")
        return {}
    fields.whole("attn_res_block_size")
    norms = fields.number(2, "norm", note="the last one, and that of the last residual")
    return {"final_norms": norms, "projections": [_residual(fields, "output_residual")]}


def _kimi_full(inner: ConfigFields, n_layers: int) -> list[bool]:
    lists = {}
    for name in ("full_attn_layers", "kda_layers"):
        value = inner.value(name)
        if not isinstance(value, list) or not all(type(layer) is int and 1 <= layer <= n_layers for layer in value):
            raise inner.error(name, f"must be a list of layer numbers from 1 to {n_layers}")
        lists[name] = set(value)
    if (
        lists["full_attn_layers"] & lists["kda_layers"]
        or len(lists["full_attn_layers"] | lists["kda_layers"]) != n_layers
    ):
        raise inner.error("kda_layers", f"must be the {n_layers} layers that full_attn_layers leaves out")
    return [layer + 1 in lists["full_attn_layers"] for layer in range(n_layers)]


def _kimi_delta(fields: ConfigFields, inner: ConfigFields) -> CardPart:
    inner.ignore("gate_lower_bound")
    return {
        "kind": "kimi_delta",
        "n_heads": inner.count("num_heads", unit="head", most=MOST_HEADS),
        "head_dim": inner.count("head_dim", unit="element"),
        "conv_kernel": inner.count("short_conv_kernel_size", unit="token"),
        "full_rank_gate": inner.flag("use_full_rank_gate", False),
        "state_dtype": state_dtype(fields),
    }


def _kimi_mixture(fields: ConfigFields) -> CardPart:
    """Experts as wide as the model, or between projections to ``routed_expert_hidden_size``."""
    options: dict[str, Any] = shared_by_count(fields, "num_shared_experts")
    if (latent := fields.zero_or_count("routed_expert_hidden_size", unit="element")) is not None:
        options |= {"latent_width": latent, "latent_norm": fields.flag("latent_moe_use_norm", False)}
    top_k = ("num_experts_per_token", "num_experts_per_tok")
    return mixture(fields, experts=("num_experts",), top_k=top_k, **options)


def mamba2_of(
    fields: ConfigFields,
    heads: str,
    head_dim: str,
    state: str,
    groups: str,
    kernel: str,
    **options: Any,
) -> CardPart:
    """A Mamba-2 mixer from the fields of those names."""
    return {
        "kind": "mamba2",
        "n_heads": fields.count(heads, unit="head", most=MOST_HEADS),
        "head_dim": fields.count(head_dim, unit="element"),
        "state_size": fields.count(state, unit="element"),
        "n_groups": fields.count(groups, unit="head"),
        "conv_kernel": fields.count(kernel, unit="token"),
        **options,
    }


def _common_mamba2(fields: ConfigFields, **options: Any) -> CardPart:
    """The names Bamba, Falcon-H1 and Granite-4 share."""
    fields.ignore("mamba_expand", "mamba_norm_before_gate", "mamba_d_ssm")
    inner = fields.whole("mamba_n_heads") * fields.whole("mamba_d_head")
    if fields.has("mamba_d_ssm") and fields.whole("mamba_d_ssm") != inner:
        raise fields.error(
            "mamba_d_ssm", f"{fields.data['mamba_d_ssm']} differs from mamba_n_heads * mamba_d_head {inner}"
        )
    return mamba2_of(
        fields,
        "mamba_n_heads",
        "mamba_d_head",
        "mamba_d_state",
        "mamba_n_groups",
        "mamba_d_conv",
        conv_bias=fields.flag("mamba_conv_bias", True),
        state_dtype=state_dtype(fields, "mamba_ssm_cache_dtype", "mamba_ssm_dtype"),
        **options,
    )


def _nemotron_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """One mixer or feed-forward block a layer, by letter: M(amba), * attention, E(xperts), - dense."""
    fields.ignore(
        "expand",
        "chunk_size",
        "mamba_num_groups",
        "moe_shared_expert_overlap",
        "mamba_ssm_cache_dtype",
        "mlp_hidden_act",
    )
    fields.must_be("sliding_window", None)
    letters = _nemotron_letters(fields, n_layers)
    fields.ignore(*("intermediate_size", "mlp_bias") if "-" not in letters else ())
    builders = {
        "M": lambda: Layer(recurrence=_nemotron_mamba(fields), norms=1),
        "*": lambda: Layer(flagged_gqa(fields, head_dim_required=True), norms=1),
        "E": lambda: Layer(feed_forward=_nemotron_mixture(fields), norms=1),
        "-": lambda: Layer(feed_forward=flagged_dense(fields, gated=False), norms=1),
    }
    return layers_of(letters, lambda letter: builders[letter]())


_NEMOTRON_WORDS = {"mamba": "M", "attention": "*", "moe": "E", "mlp": "-"}


def _nemotron_letters(fields: ConfigFields, n_layers: int) -> list[str]:
    for name in ("layers_block_type", "layer_types"):
        if fields.has(name):
            fields.ignore("hybrid_override_pattern")
            return [_NEMOTRON_WORDS[word] for word in fields.words(name, n_layers, tuple(_NEMOTRON_WORDS))]
        fields.ignore(name)
    pattern = fields.value("hybrid_override_pattern")
    if not isinstance(pattern, str) or len(pattern) != n_layers:
        raise fields.error("hybrid_override_pattern", f"must be {n_layers} letters, one a layer")
    if not set(pattern) <= set(_NEMOTRON_WORDS.values()):
        raise fields.unsupported("hybrid_override_pattern", "only the letters M, *, E and - are modelled")
    return list(pattern)


def _nemotron_mamba(fields: ConfigFields) -> CardPart:
    return mamba2_of(
        fields,
        "mamba_num_heads",
        "mamba_head_dim",
        "ssm_state_size",
        "n_groups",
        "conv_kernel",
        conv_bias=fields.flag("use_conv_bias", True),
        projection_bias=fields.flag("mamba_proj_bias", False) or fields.flag("use_bias", False),
        state_dtype=state_dtype(fields, "mamba_ssm_cache_dtype"),
    )


def _nemotron_mixture(fields: ConfigFields) -> CardPart:
    """Experts without a gate, between projections to ``moe_latent_size`` where there is one."""
    options: dict[str, Any] = {"gated": False}
    if (shared := fields.zero_or_count("n_shared_experts", unit="expert")) is not None:
        width = fields.whole("moe_shared_expert_intermediate_size") * shared["value"]
        names = ("moe_shared_expert_intermediate_size", "n_shared_experts")
        options["shared_width"] = fields.number(width, "element", *names, note="product")
    else:
        fields.ignore("moe_shared_expert_intermediate_size")
    if (latent := fields.zero_or_count("moe_latent_size", unit="element")) is not None:
        options["latent_width"] = latent
    return mixture(fields, experts=("n_routed_experts",), **options)


def _granite_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Mamba-2 and attention layers, each with experts and a dense block that is always on, or with that block only."""
    fields.must_be("position_embedding_type", "nope", "rope")
    experts = fields.zero_or_count("num_local_experts", unit="expert")
    kinds = fields.words("layer_types", n_layers, ("mamba", "attention"))

    def build(kind: str) -> Layer:
        feed_forward = _granite_mixture(fields) if experts is not None else dense(fields, "shared_intermediate_size")
        if kind == "mamba":
            bias = fields.flag("mamba_proj_bias", False)
            return Layer(None, feed_forward, _common_mamba2(fields, projection_bias=bias))
        return Layer(flagged_gqa(fields), feed_forward)

    if experts is None:
        fields.ignore("intermediate_size", "num_experts_per_tok")
    return layers_of(kinds, build)


def _granite_mixture(fields: ConfigFields) -> CardPart:
    return local_experts(fields, **shared_by_width(fields, "shared_intermediate_size"))


def _bamba_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    indices = fields.value("attn_layer_indices")
    if not isinstance(indices, list) or not all(type(layer) is int and 0 <= layer < n_layers for layer in indices):
        raise fields.error("attn_layer_indices", f"must be a list of layer numbers below {n_layers}")
    chosen = set(indices)

    def build(attends: bool) -> Layer:
        if attends:
            return Layer(flagged_gqa(fields), flagged_dense(fields))
        bias = fields.flag("mamba_proj_bias", False)
        return Layer(None, flagged_dense(fields), _common_mamba2(fields, projection_bias=bias))

    return layers_of([layer in chosen for layer in range(n_layers)], build)


def _falcon_h1_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Attention and Mamba-2 side by side in every layer."""
    fields.must_be("mamba_use_mlp", True)
    fields.must_be("attn_layer_indices", None)
    fields.ignore(*(name for name in fields.data if name.endswith(("_multiplier", "_multipliers"))))
    bias = fields.flag("mamba_proj_bias", False) or fields.flag("projectors_bias", False)
    mixer = _common_mamba2(fields, gated_norm=fields.flag("mamba_rms_norm", False), projection_bias=bias)
    return [Layer(flagged_gqa(fields), flagged_dense(fields), mixer)] * n_layers


def _time_step_rank(fields: ConfigFields, name: str) -> CardPart:
    """A number, or ``auto`` for a sixteenth of the width of the model."""
    if fields.value(name) == "auto":
        rank = -(-fields.whole("hidden_size") // 16)
        return fields.number(rank, "element", name, "hidden_size", note="a sixteenth, rounded up")
    return fields.count(name, unit="element")


def _mamba(fields: ConfigFields, n_layers: int) -> list[Layer]:
    fields.ignore("expand", "use_mambapy", "use_falcon_mambapy", "mixer_rms_eps")
    mixer = {
        "kind": "mamba",
        "inner_size": fields.count("intermediate_size", unit="element"),
        "state_size": fields.count("state_size", unit="element"),
        "time_step_rank": _time_step_rank(fields, "time_step_rank"),
        "conv_kernel": fields.count("conv_kernel", unit="token"),
        "conv_bias": fields.flag("use_conv_bias", True),
        "projection_bias": fields.flag("use_bias", False),
        "state_dtype": state_dtype(fields),
    }
    return [Layer(recurrence=mixer, norms=1)] * n_layers


def _mamba2(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Mamba-2 layers with nothing beside them."""
    fields.ignore("expand", "intermediate_size", "time_step_rank", "norm_before_gate", "chunk_size")
    mixer = mamba2_of(
        fields,
        "num_heads",
        "head_dim",
        "state_size",
        "n_groups",
        "conv_kernel",
        gated_norm=fields.flag("rms_norm", True),
        conv_bias=fields.flag("use_conv_bias", True),
        projection_bias=fields.flag("use_bias", False),
        state_dtype=state_dtype(fields),
    )
    return [Layer(recurrence=mixer, norms=1)] * n_layers


def _jamba_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Attention and experts each at a period and an offset; all other layers Mamba, all other blocks dense."""
    fields.must_be("sliding_window", None)
    attends, mixed = (_periodic(fields, f"{name}_layer_period", f"{name}_layer_offset") for name in ("attn", "expert"))

    def build(kind: tuple[bool, bool]) -> Layer:
        attention, experts = kind
        options: dict[str, Any] = {"experts": ("num_experts",), "width": ("intermediate_size",)}
        feed_forward = mixture(fields, **options) if experts else dense(fields)
        return Layer(gqa(fields), feed_forward) if attention else Layer(None, feed_forward, _jamba_mamba(fields))

    return layers_of([(attends(layer), mixed(layer)) for layer in range(n_layers)], build)


def _periodic(fields: ConfigFields, period: str, offset: str) -> Any:
    step, first = fields.whole(period), fields.whole(offset, least=0)
    return lambda layer: layer % step == first


def _jamba_mamba(fields: ConfigFields) -> CardPart:
    width = fields.whole("mamba_expand") * fields.whole("hidden_size")
    return {
        "kind": "mamba",
        "inner_size": fields.number(width, "element", "mamba_expand", "hidden_size", note="product"),
        "state_size": fields.count("mamba_d_state", unit="element"),
        "time_step_rank": _time_step_rank(fields, "mamba_dt_rank"),
        "conv_kernel": fields.count("mamba_d_conv", unit="token"),
        "conv_bias": fields.flag("mamba_conv_bias", True),
        "projection_bias": fields.flag("mamba_proj_bias", False),
        "inner_norms": True,
        "state_dtype": state_dtype(fields),
    }


_QWEN_MODULES = ModuleNames(
    recurrence={
        "qkvz": ("linear_attn.in_proj_qkvz",),
        "beta": ("linear_attn.in_proj_ba",),
        "decay": ("linear_attn.in_proj_ba",),
        "o": ("linear_attn.out_proj",),
    },
    shared=gated("mlp.shared_expert"),
)
_QWEN35_MODULES = ModuleNames(
    recurrence={
        "qkvz": ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z"),
        "beta": ("linear_attn.in_proj_b",),
        "decay": ("linear_attn.in_proj_a",),
        "o": ("linear_attn.out_proj",),
    },
    shared=gated("mlp.shared_expert"),
)
_MINIMAX = ModuleNames(
    recurrence={
        "qkv": ("self_attn.qkv_proj",), "output_gate": ("self_attn.output_gate",), "o": ("self_attn.out_proj",),
    },
    experts=gated("block_sparse_moe.experts.0", ("w1", "w3", "w2")),
)  # fmt: skip
_KIMI = ModuleNames(
    attention={
        "qkv_a": ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"),
        "q_b": ("self_attn.q_b_proj",),
        "kv_a": ("self_attn.kv_a_proj_with_mqa",),
        "q": ("self_attn.q_proj",),
        "kv_b": ("self_attn.kv_b_proj",),
        "output_gate": ("self_attn.g_proj",),
        "o": ("self_attn.o_proj",),
    },
    recurrence={
        "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "beta": ("self_attn.b_proj",),
        "forget_a": ("self_attn.f_a_proj",),
        "forget_b": ("self_attn.f_b_proj",),
        "output_gate": ("self_attn.g_proj",),
        "output_gate_a": ("self_attn.g_a_proj",),
        "output_gate_b": ("self_attn.g_b_proj",),
        "o": ("self_attn.o_proj",),
    },
    experts=gated("block_sparse_moe.experts.0", ("w1", "w3", "w2")),
    shared=gated("block_sparse_moe.shared_experts"),
)
_NEMOTRON = ModuleNames(
    attention={"qkv": ("mixer.q_proj", "mixer.k_proj", "mixer.v_proj"), "o": ("mixer.o_proj",)},
    recurrence={"in": ("mixer.in_proj",), "o": ("mixer.out_proj",)},
    dense={"up": ("mixer.up_proj",), "down": ("mixer.down_proj",)},
    experts={"up": ("mixer.experts.0.up_proj",), "down": ("mixer.experts.0.down_proj",)},
    shared={"up": ("mixer.shared_experts.up_proj",), "down": ("mixer.shared_experts.down_proj",)},
    latent={"latent_down": ("mixer.fc1_latent_proj",), "latent_up": ("mixer.fc2_latent_proj",)},
)
_MAMBA = {"in": ("mamba.in_proj",), "o": ("mamba.out_proj",)}
_GRANITE = ModuleNames(
    recurrence=_MAMBA,
    dense={"gate_up": ("shared_mlp.input_linear",), "down": ("shared_mlp.output_linear",)},
    experts={"gate_up": ("block_sparse_moe.input_linear",), "down": ("block_sparse_moe.output_linear",)},
    shared={"gate_up": ("shared_mlp.input_linear",), "down": ("shared_mlp.output_linear",)},
)
_FEED_FORWARD = ModuleNames(recurrence=_MAMBA, dense=gated("feed_forward"), experts=gated("feed_forward.experts.0"))
_MIXER = ModuleNames(recurrence={"in": ("mixer.in_proj",), "o": ("mixer.out_proj",)})

HYBRID_FAMILIES: dict[str, Family] = {
    "qwen3_next": Family(("Qwen3NextForCausalLM",), _qwen_layers, _QWEN_MODULES),
    "qwen3_5_text": Family(
        ("Qwen3_5ForCausalLM",), _qwen_layers, _QWEN35_MODULES, mtp=("mtp_num_hidden_layers", False)
    ),
    "qwen3_5_moe_text": Family(
        ("Qwen3_5MoeForCausalLM",), _qwen_layers, _QWEN35_MODULES, mtp=("mtp_num_hidden_layers", False)
    ),
    "minimax_m1": Family(("MiniMaxM1ForCausalLM",), _minimax_layers, _MINIMAX),
    "minimax_text_01": Family(("MiniMaxText01ForCausalLM",), _minimax_layers, _MINIMAX),
    "minimax": Family(("MiniMaxForCausalLM",), _minimax_layers, _MINIMAX),
    "kimi_linear": Family(
        ("KimiLinearForCausalLM",), _kimi_layers, _KIMI, ends=_kimi_ends, mtp_unknown=("num_nextn_predict_layers",)
    ),
    "nemotron_h": Family(
        ("NemotronHForCausalLM",),
        _nemotron_layers,
        _NEMOTRON,
        synonyms={"head_dim": ("attention_head_dim",)},
        mtp_unknown=("num_nextn_predict_layers", "mtp_hybrid_override_pattern", "mtp_layers_block_type"),
    ),
    "granitemoehybrid": Family(("GraniteMoeHybridForCausalLM",), _granite_layers, _GRANITE, tied=True),
    "bamba": Family(("BambaForCausalLM",), _bamba_layers, _FEED_FORWARD),
    "falcon_h1": Family(("FalconH1ForCausalLM",), _falcon_h1_layers, _FEED_FORWARD),
    "mamba": Family(("MambaForCausalLM",), _mamba, _MIXER, tied=True, defaults=NO_LIMIT),
    "falcon_mamba": Family(("FalconMambaForCausalLM",), _mamba, _MIXER, tied=True, defaults=NO_LIMIT),
    "mamba2": Family(("Mamba2ForCausalLM",), _mamba2, _MIXER, defaults=NO_LIMIT),
    "jamba": Family(("JambaForCausalLM",), _jamba_layers, _FEED_FORWARD),
}
"""By ``model_type``."""
