"""The model families of Hugging Face configs: one small builder a kind of attention or feed-forward, one table.

A family names the classes it stands for and the builders that read its fields. What a field is called and what its
absence means follows the configuration class of the family in transformers 4.5x/5.x; where absence would mean a
number, the field is required instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from capplan.cards.hf_fields import ConfigFields

MOST_HEADS = 100_000
MOST_EXPERTS = 100_000

CardPart = dict[str, Any]
"""The plain data of a part of a card; see :mod:`capplan.cards.model_reader`."""

AttentionBuilder = Callable[[ConfigFields, "int | None", str], CardPart]
FeedForwardBuilder = Callable[[ConfigFields, str], CardPart]
MixtureBuilder = Callable[[ConfigFields, str, str, str], CardPart]
WindowReader = Callable[[ConfigFields, int], "list[int | None]"]
MixtureReader = Callable[[ConfigFields, int], "list[bool]"]


@dataclass(frozen=True)
class ModuleNames:
    """What checkpoints of the family call the matrices of a layer, to tell which a quantiser left out."""

    attention: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    dense: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    experts: tuple[str, ...] = ("mlp.experts.0.gate_proj", "mlp.experts.0.up_proj", "mlp.experts.0.down_proj")
    shared: tuple[str, ...] = (
        "mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj", "mlp.shared_experts.down_proj",
    )  # fmt: skip


@dataclass(frozen=True)
class Family:
    """One ``model_type``: the architectures it may name and how its fields are read."""

    architectures: tuple[str, ...]
    attention: AttentionBuilder
    windows: WindowReader
    dense: FeedForwardBuilder
    mixture: MixtureBuilder | None = None
    mixture_layers: MixtureReader | None = None
    modules: ModuleNames = ModuleNames()
    mtp_field: str | None = None


def _heads(fields: ConfigFields, *, kv_heads_default: bool = False) -> tuple[CardPart, CardPart]:
    """Query and KV heads; null KV heads mean as many as query heads, absent ones only where the class says so."""
    heads = fields.count("num_attention_heads", unit="head", most=MOST_HEADS)
    if fields.has("num_key_value_heads"):
        kv_heads = fields.count("num_key_value_heads", unit="head", most=MOST_HEADS)
        if heads["value"] % kv_heads["value"]:
            raise fields.error("num_key_value_heads", f"{kv_heads['value']} must divide {heads['value']} heads")
        return heads, kv_heads
    if "num_key_value_heads" not in fields.data and not kv_heads_default:
        raise fields.error("num_key_value_heads", "is missing, and a default would be a guess")
    fields.ignore("num_key_value_heads")
    note = "no num_key_value_heads: as many as query heads"
    return heads, fields.number(heads["value"], "head", "num_attention_heads", note=note)


def _head_dim(fields: ConfigFields, heads: int, *, required: bool) -> CardPart:
    """The width of a head: explicit, or hidden_size / heads in families whose class computes it so."""
    if required or fields.has("head_dim"):
        return fields.count("head_dim", unit="element")
    fields.ignore("head_dim")
    hidden = fields.whole("hidden_size")
    if hidden % heads:
        raise fields.error("hidden_size", f"{hidden} is no multiple of {heads} heads, and head_dim is not given")
    return fields.number(hidden // heads, "element", "hidden_size", "num_attention_heads", note="quotient")


def _gqa(
    fields: ConfigFields,
    window: int | None,
    form: str,
    *,
    qkv_bias: bool,
    output_bias: bool,
    kv_heads_default: bool = False,
    head_dim_required: bool = False,
    qk_norm: bool = False,
    sinks: bool = False,
) -> CardPart:
    heads, kv_heads = _heads(fields, kv_heads_default=kv_heads_default)
    width = _head_dim(fields, heads["value"], required=head_dim_required)
    return {
        "kind": "gqa",
        "n_heads": heads,
        "n_kv_heads": kv_heads,
        "head_dim": width,
        "value_head_dim": width,
        "window": fields.number(window, "token", "sliding_window") if window is not None else None,
        "qkv_bias": qkv_bias,
        "output_bias": output_bias,
        "qk_norm": qk_norm,
        "sinks": sinks,
        "format": form,
    }


def _llama_attention(fields: ConfigFields, window: int | None, form: str) -> CardPart:
    bias = fields.flag("attention_bias", False)
    return _gqa(fields, window, form, qkv_bias=bias, output_bias=bias, kv_heads_default=True)


def _qwen2_attention(fields: ConfigFields, window: int | None, form: str) -> CardPart:
    """Qwen2 has a bias on q, k and v without a flag that says so."""
    return _gqa(fields, window, form, qkv_bias=True, output_bias=False)


def _qwen3_attention(fields: ConfigFields, window: int | None, form: str) -> CardPart:
    bias = fields.flag("attention_bias", False)
    return _gqa(fields, window, form, qkv_bias=bias, output_bias=bias, head_dim_required=True, qk_norm=True)


def _mistral_attention(fields: ConfigFields, window: int | None, form: str) -> CardPart:
    return _gqa(fields, window, form, qkv_bias=False, output_bias=False)


def _gpt_oss_attention(fields: ConfigFields, window: int | None, form: str) -> CardPart:
    bias = fields.flag("attention_bias", True)
    return _gqa(fields, window, form, qkv_bias=bias, output_bias=bias, head_dim_required=True, sinks=True)


def _mla(fields: ConfigFields, window: int | None, form: str) -> CardPart:
    """Multi-head latent attention; ``num_key_value_heads`` and ``head_dim`` of such configs mean nothing."""
    del window
    fields.must_be("attention_bias", False)
    fields.ignore("num_key_value_heads", "head_dim", "qk_head_dim")
    return {
        "kind": "mla",
        "n_heads": fields.count("num_attention_heads", unit="head", most=MOST_HEADS),
        "q_lora_rank": fields.zero_or_count("q_lora_rank", unit="element"),
        "kv_lora_rank": fields.count("kv_lora_rank", unit="element"),
        "qk_nope_head_dim": fields.count("qk_nope_head_dim", unit="element"),
        "qk_rope_head_dim": fields.count("qk_rope_head_dim", unit="element"),
        "value_head_dim": fields.count("v_head_dim", unit="element"),
        "format": form,
    }


def _dense(fields: ConfigFields, form: str) -> CardPart:
    return {"kind": "dense", "width": fields.count("intermediate_size", unit="element"), "format": form}


def _llama_dense(fields: ConfigFields, form: str) -> CardPart:
    return {**_dense(fields, form), "bias": fields.flag("mlp_bias", False)}


def _mixture(
    fields: ConfigFields, width: CardPart, form: str, rest: str, *, experts: str, top_k: tuple[str, ...]
) -> CardPart:
    n_experts = fields.count(experts, unit="expert", most=MOST_EXPERTS)
    return {
        "kind": "mixture",
        "width": width,
        "n_experts": n_experts,
        "top_k": fields.count(*top_k, unit="expert", most=n_experts["value"]),
        "format": form,
        "router_format": rest,
    }


def _qwen3_mixture(fields: ConfigFields, form: str, shared: str, rest: str) -> CardPart:
    del shared
    width = fields.count("moe_intermediate_size", unit="element")
    return _mixture(fields, width, form, rest, experts="num_experts", top_k=("num_experts_per_tok",))


def _deepseek_mixture(fields: ConfigFields, form: str, shared: str, rest: str) -> CardPart:
    """Shared experts are as wide as routed ones; all of them are one matrix."""
    width = fields.count("moe_intermediate_size", unit="element")
    mixture = _mixture(fields, width, form, rest, experts="n_routed_experts", top_k=("num_experts_per_tok",))
    experts = fields.zero_or_count("n_shared_experts", unit="expert")
    if experts is None:
        return mixture
    names = ("moe_intermediate_size", "n_shared_experts")
    shared_width = fields.number(width["value"] * experts["value"], "element", *names, note="product")
    return {**mixture, "shared_width": shared_width, "shared_format": shared}


def _local_experts(fields: ConfigFields, form: str, rest: str) -> CardPart:
    """Mixtral and gpt-oss: ``intermediate_size`` is the width of one expert."""
    width = fields.count("intermediate_size", unit="element")
    top_k = ("num_experts_per_tok", "experts_per_token")
    return _mixture(fields, width, form, rest, experts="num_local_experts", top_k=top_k)


def _mixtral_mixture(fields: ConfigFields, form: str, shared: str, rest: str) -> CardPart:
    del shared
    return _local_experts(fields, form, rest)


def _gpt_oss_mixture(fields: ConfigFields, form: str, shared: str, rest: str) -> CardPart:
    del shared
    return {**_local_experts(fields, form, rest), "bias": True, "router_bias": True}


def _window(fields: ConfigFields) -> int:
    return fields.whole("sliding_window", most=10**9)


def _no_windows(fields: ConfigFields, n_layers: int) -> list[int | None]:
    del fields
    return [None] * n_layers


def _windows_by_type(fields: ConfigFields, n_layers: int) -> list[int | None]:
    """One entry of ``layer_types`` a layer: full_attention or sliding_attention."""
    types = fields.value("layer_types")
    if not isinstance(types, list) or len(types) != n_layers:
        raise fields.error("layer_types", f"must name {n_layers} layers, one each")
    for kind in types:
        if kind not in ("full_attention", "sliding_attention"):
            raise fields.unsupported("layer_types", f"layer type {str(kind)[:40]!r} is not modelled")
    return [_window(fields) if kind == "sliding_attention" else None for kind in types]


def _qwen_windows(fields: ConfigFields, n_layers: int) -> list[int | None]:
    """Off unless ``use_sliding_window``; then the layers from ``max_window_layers`` on slide."""
    slides = fields.flag("use_sliding_window", False)
    if fields.has("layer_types"):
        fields.ignore("sliding_window", "max_window_layers")
        return _windows_by_type(fields, n_layers)
    if not slides:
        fields.ignore("sliding_window", "max_window_layers")
        return [None] * n_layers
    first = fields.whole("max_window_layers", least=0)
    return [None if layer < first else _window(fields) for layer in range(n_layers)]


def _qwen3_moe_windows(fields: ConfigFields, n_layers: int) -> list[int | None]:
    fields.must_be("use_sliding_window", False)
    return _qwen_windows(fields, n_layers)


def _mistral_windows(fields: ConfigFields, n_layers: int) -> list[int | None]:
    """All layers slide, or none where the field is null; absent, the class would take 4,096."""
    if "sliding_window" not in fields.data:
        raise fields.error("sliding_window", "is missing; write null for full attention")
    return _mixtral_windows(fields, n_layers)


def _mixtral_windows(fields: ConfigFields, n_layers: int) -> list[int | None]:
    """All layers slide, or none where the field is null or absent."""
    if fields.has("sliding_window"):
        return [_window(fields)] * n_layers
    fields.ignore("sliding_window")
    return [None] * n_layers


def _gpt_oss_windows(fields: ConfigFields, n_layers: int) -> list[int | None]:
    """Sliding and full layers take turns, sliding first, unless ``layer_types`` says otherwise."""
    if fields.has("layer_types"):
        return _windows_by_type(fields, n_layers)
    return [_window(fields) if layer % 2 == 0 else None for layer in range(n_layers)]


def _all_mixture(fields: ConfigFields, n_layers: int) -> list[bool]:
    del fields
    return [True] * n_layers


def _qwen3_mixture_layers(fields: ConfigFields, n_layers: int) -> list[bool]:
    """Every ``decoder_sparse_step``-th layer is a mixture, those of ``mlp_only_layers`` never."""
    step = fields.whole("decoder_sparse_step")
    dense = fields.value("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
        raise fields.error("mlp_only_layers", "must be a list of layer numbers")
    only_dense = set(dense)
    mixture = [layer not in only_dense and (layer + 1) % step == 0 for layer in range(n_layers)]
    if all(mixture):
        fields.ignore("intermediate_size")
    return mixture


def _deepseek_mixture_layers(fields: ConfigFields, n_layers: int) -> list[bool]:
    """The first ``first_k_dense_replace`` layers are dense, then every ``moe_layer_freq``-th is a mixture."""
    first = fields.whole("first_k_dense_replace", least=0)
    step = fields.whole("moe_layer_freq") if fields.has("moe_layer_freq") else fields.assume("moe_layer_freq", 1)
    return [layer >= first and layer % step == 0 for layer in range(n_layers)]


FAMILIES: dict[str, Family] = {
    "llama": Family(("LlamaForCausalLM", "LLaMAForCausalLM"), _llama_attention, _no_windows, _llama_dense),
    "qwen2": Family(("Qwen2ForCausalLM",), _qwen2_attention, _qwen_windows, _dense),
    "qwen3": Family(("Qwen3ForCausalLM",), _qwen3_attention, _qwen_windows, _dense),
    "mistral": Family(("MistralForCausalLM",), _mistral_attention, _mistral_windows, _dense),
    "qwen3_moe": Family(
        ("Qwen3MoeForCausalLM",),
        _qwen3_attention,
        _qwen3_moe_windows,
        _dense,
        _qwen3_mixture,
        _qwen3_mixture_layers,
    ),
    "mixtral": Family(
        ("MixtralForCausalLM",),
        _mistral_attention,
        _mixtral_windows,
        _dense,
        _mixtral_mixture,
        _all_mixture,
        ModuleNames(experts=tuple(f"block_sparse_moe.experts.0.w{matrix}" for matrix in (1, 2, 3))),
    ),
    "deepseek_v3": Family(
        ("DeepseekV3ForCausalLM",),
        _mla,
        _no_windows,
        _dense,
        _deepseek_mixture,
        _deepseek_mixture_layers,
        ModuleNames(
            attention=tuple(
                f"self_attn.{name}" for name in ("q_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "kv_b_proj", "o_proj")
            )
        ),
        mtp_field="num_nextn_predict_layers",
    ),
    "gpt_oss": Family(
        ("GptOssForCausalLM",),
        _gpt_oss_attention,
        _gpt_oss_windows,
        _dense,
        _gpt_oss_mixture,
        _all_mixture,
        ModuleNames(experts=("mlp.experts.gate_up_proj", "mlp.experts.down_proj")),
    ),
}
"""By ``model_type``. A family is added by its row here and, where its layers are new, a builder above."""
