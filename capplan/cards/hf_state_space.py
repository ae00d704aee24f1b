"""Families with Mamba layers, alone or beside attention: Nemotron-H and -3, Granite-4, Falcon-H1, Jamba, Zamba2."""

from __future__ import annotations

from typing import Any

from capplan.cards.hf_family import CardPart, Family, Layer, ModuleNames, gated, layers_of
from capplan.cards.hf_fields import ConfigFields
from capplan.cards.hf_hybrid import NO_LIMIT, state_dtype
from capplan.cards.hf_moe import local_experts
from capplan.cards.hf_parts import (
    MOST_HEADS,
    dense,
    flagged_dense,
    flagged_gqa,
    gqa,
    heads_of,
    mixture,
    shared_by_width,
)
from capplan.cards.hf_uneven import matrix


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


_NEMOTRON_WORDS = {
    "mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "moe": "E", "mlp": "-",
}  # fmt: skip


def _nemotron_letters(fields: ConfigFields, n_layers: int) -> list[str]:
    for name in ("layers_block_type", "layer_types"):
        if fields.has(name):
            fields.ignore("hybrid_override_pattern")
            return [_NEMOTRON_WORDS[word] for word in fields.words(name, n_layers, tuple(_NEMOTRON_WORDS))]
        fields.ignore(name)
    pattern = fields.value("hybrid_override_pattern")
    if not isinstance(pattern, (str, list)) or len(pattern) != n_layers:
        raise fields.error("hybrid_override_pattern", f"must be {n_layers} letters, one a layer")
    if any(letter not in _NEMOTRON_WORDS.values() for letter in pattern):
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
    fields.must_be("normalization_function", "rmsnorm")
    experts = fields.zero_or_count("num_local_experts", unit="expert")
    kinds = fields.words("layer_types", n_layers, ("mamba", "linear_attention", "attention", "full_attention"))

    def build(kind: str) -> Layer:
        feed_forward = _granite_mixture(fields) if experts is not None else dense(fields, "shared_intermediate_size")
        if kind in ("mamba", "linear_attention"):
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
    fields.ignore("use_mambapy")
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


def _zamba_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Mamba-2 layers; in front of some a transformer block of twice the width whose weights a few copies share."""
    fields.must_be("use_shared_attention_lora", False)
    fields.must_be("use_shared_attention_adapter", False)
    fields.must_be("add_bias_linear", False)
    fields.must_be("gated_linear_unit", True)
    fields.must_be("use_conv_bias", True)
    fields.must_be("sliding_window", None)
    fields.ignore(
        "kv_channels", "num_query_groups", "use_mem_rope", "ft_lora", "use_long_context", "attention_head_dim"
    )
    fields.must_be("use_shared_block_lora", True)
    fields.must_be("use_shared_mlp_adapter", True)
    fields.ignore("hybrid_layer_ids", "intermediate_size")
    kinds = fields.words("layers_block_type", n_layers, ("mamba", "linear_attention", "hybrid"))
    mixer = _zamba_mamba(fields)
    return layers_of(
        kinds, lambda kind: _zamba_hybrid(fields, mixer) if kind == "hybrid" else Layer(None, None, mixer, 1)
    )


def _zamba_mamba(fields: ConfigFields) -> CardPart:
    head_dim = fields.whole("mamba_headdim")
    inner = fields.whole("mamba_expand") * fields.whole("hidden_size")
    if inner % head_dim:
        raise fields.error("mamba_headdim", f"{head_dim} must divide the inner width {inner}")
    heads = fields.number(inner // head_dim, "head", "mamba_expand", "hidden_size", "mamba_headdim", note="quotient")
    if fields.has("n_mamba_heads") and fields.whole("n_mamba_heads") != heads["value"]:
        raise fields.error(
            "n_mamba_heads", f"{fields.data['n_mamba_heads']} differs from {heads['value']}, the quotient"
        )
    return {
        "kind": "mamba2",
        "n_heads": heads,
        "head_dim": fields.count("mamba_headdim", unit="element"),
        "state_size": fields.count("mamba_d_state", unit="element"),
        "n_groups": fields.count("mamba_ngroups", unit="head"),
        "conv_kernel": fields.count("mamba_d_conv", unit="token"),
        "state_dtype": state_dtype(fields),
    }


def _zamba_hybrid(fields: ConfigFields, mixer: CardPart) -> Layer:
    hidden, rank = fields.whole("hidden_size"), fields.whole("adapter_rank")
    heads, kv_heads = heads_of(fields)
    width = fields.number(
        2 * hidden // heads["value"], "element", "hidden_size", "num_attention_heads", note="of twice"
    )
    block = dense(fields, "ffn_hidden_size")
    names = ("hidden_size", "adapter_rank")
    attention = {
        "kind": "gqa",
        "n_heads": heads,
        "n_kv_heads": kv_heads,
        "head_dim": width,
        "value_head_dim": width,
        "input_width": fields.number(2 * hidden, "element", "hidden_size", note="hidden state and embedding"),
    }
    return Layer(
        attention,
        block,
        mixer,
        norms=3,
        matrices=(
            matrix(fields, "hybrid_projection", hidden, hidden, "hidden_size"),
            matrix(fields, "adapter_down", hidden, rank, *names),
            matrix(fields, "adapter_up", rank, 2 * block["width"]["value"], *names, "ffn_hidden_size"),
        ),
        extra_parameters=fields.number(hidden, "parameter", "hidden_size", note="norm in front of the mixer"),
        copies=fields.count("num_mem_blocks", unit="layer"),
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

_ZAMBA_NAMES = {
    "mamba_d_state": ("state_size",), "mamba_d_conv": ("conv_dimension",), "mamba_expand": ("expansion_factor",),
    "adapter_rank": ("lora_rank",), "ffn_hidden_size": ("intermediate_size",),
}  # fmt: skip
_ZAMBA = ModuleNames(recurrence={"in": ("mamba.in_proj",), "o": ("mamba.out_proj",)})

STATE_SPACE_FAMILIES: dict[str, Family] = {
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
    "zamba2": Family(("Zamba2ForCausalLM",), _zamba_layers, _ZAMBA, tied=True, synonyms=_ZAMBA_NAMES),
}
"""By ``model_type``."""
