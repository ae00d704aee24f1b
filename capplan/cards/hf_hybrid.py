"""Families that mix attention with linear attention: Qwen3-Next and 3.5, MiniMax-M1, Kimi-Linear and K3."""

from __future__ import annotations

from typing import Any

from capplan.cards.hf_family import CardPart, Family, Layer, ModuleNames, gated, layers_of
from capplan.cards.hf_fields import ConfigFields
from capplan.cards.hf_moe import local_experts
from capplan.cards.hf_parts import (
    MOST_HEADS,
    dense,
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
}
"""By ``model_type``."""
