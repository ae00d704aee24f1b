"""Parts of a layer from the fields of a config: one small builder a kind, with what families differ in as options.

What a field is called and what its absence means follows the configuration class of the family in transformers
4.5x/5.x; where absence would mean a number, the field is required instead.
"""

from __future__ import annotations

from typing import Any

from capplan.cards.hf_family import CardPart
from capplan.cards.hf_fields import ConfigFields

Windows = list["int | None"]
"""Tokens each layer keeps, None for all."""

MOST_HEADS = 100_000
MOST_EXPERTS = 100_000


def heads_of(fields: ConfigFields, *, kv_heads_default: bool = False) -> tuple[CardPart, CardPart]:
    """Query and KV heads; null KV heads mean as many as query heads, absent ones only where the class says so."""
    heads = fields.count("num_attention_heads", unit="head", most=MOST_HEADS)
    if fields.has("num_key_value_heads") or "num_key_value_heads" in fields.defaults:
        kv_heads = fields.count("num_key_value_heads", unit="head", most=MOST_HEADS)
        if heads["value"] % kv_heads["value"]:
            raise fields.error("num_key_value_heads", f"{kv_heads['value']} must divide {heads['value']} heads")
        return heads, kv_heads
    if "num_key_value_heads" not in fields.data and not kv_heads_default:
        raise fields.error("num_key_value_heads", "is missing, and a default would be a guess")
    if "num_key_value_heads" in fields.data:
        fields.ignore("num_key_value_heads")
    else:
        fields.assume("num_key_value_heads", heads["value"])
    note = "no num_key_value_heads: as many as query heads"
    return heads, fields.number(heads["value"], "head", "num_attention_heads", note=note)


def head_dim_of(fields: ConfigFields, heads: int, *, required: bool = False) -> CardPart:
    """The width of a head: explicit, or hidden_size / heads in families whose class computes it so."""
    if required or fields.has("head_dim") or "head_dim" in fields.defaults:
        return fields.count("head_dim", unit="element")
    fields.ignore("head_dim")
    hidden = fields.whole("hidden_size")
    if hidden % heads:
        raise fields.error("hidden_size", f"{hidden} is no multiple of {heads} heads, and head_dim is not given")
    return fields.number(hidden // heads, "element", "hidden_size", "num_attention_heads", note="quotient")


def gqa(
    fields: ConfigFields,
    window: int | None = None,
    *,
    window_field: str = "sliding_window",
    kv_heads_default: bool = False,
    head_dim_required: bool = False,
    **options: Any,
) -> CardPart:
    """Grouped-query attention; ``options`` are further keys of the card and replace what the fields say."""
    heads, kv_heads = heads_of(fields, kv_heads_default=kv_heads_default)
    width = head_dim_of(fields, heads["value"], required=head_dim_required)
    attention = {"kind": "gqa", "n_heads": heads, "n_kv_heads": kv_heads, "head_dim": width, "value_head_dim": width}
    if window is not None:
        attention["window"] = fields.number(window, "token", window_field)
    return {**attention, **options}


def flagged_gqa(fields: ConfigFields, window: int | None = None, **options: Any) -> CardPart:
    """Grouped-query attention whose ``attention_bias`` means all four projections."""
    bias = fields.flag("attention_bias", False)
    return gqa(fields, window, qkv_bias=bias, output_bias=bias, **options)


def mla(fields: ConfigFields, **options: Any) -> CardPart:
    """Multi-head latent attention; ``num_key_value_heads`` and ``head_dim`` of such configs mean nothing."""
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
        **options,
    }


def dense(fields: ConfigFields, *names: str, **options: Any) -> CardPart:
    """A feed-forward block every token passes."""
    return {"kind": "dense", "width": fields.count(*(names or ("intermediate_size",)), unit="element"), **options}


def flagged_dense(fields: ConfigFields, **options: Any) -> CardPart:
    """A feed-forward block with ``mlp_bias``."""
    return dense(fields, bias=fields.flag("mlp_bias", False), **options)


def mixture(
    fields: ConfigFields,
    *,
    experts: tuple[str, ...],
    top_k: tuple[str, ...] = ("num_experts_per_tok",),
    width: tuple[str, ...] = ("moe_intermediate_size",),
    **options: Any,
) -> CardPart:
    """A mixture of experts from the fields of those names; ``options`` are further keys of the card."""
    n_experts = fields.count(*experts, unit="expert", most=MOST_EXPERTS)
    slots = n_experts["value"] + (options["zero_experts"]["value"] if "zero_experts" in options else 0)
    return {
        "kind": "mixture",
        "width": fields.count(*width, unit="element"),
        "n_experts": n_experts,
        "top_k": fields.count(*top_k, unit="expert", most=slots),
        **options,
    }


def shared_by_count(fields: ConfigFields, number: str, width: str = "moe_intermediate_size") -> CardPart:
    """The shared width where experts are counted: as wide as routed ones, all of them one matrix."""
    experts = fields.zero_or_count(number, unit="expert")
    if experts is None:
        return {}
    product = fields.whole(width) * experts["value"]
    return {"shared_width": fields.number(product, "element", width, number, note="product")}


def shared_by_width(fields: ConfigFields, width: str, **options: Any) -> CardPart:
    """The shared width where the config states it; no shared expert where it is 0, null or absent."""
    shared = fields.zero_or_count(width, unit="element")
    return {"shared_width": shared, **options} if shared is not None else {}


def deepseek_mixture(fields: ConfigFields, **options: Any) -> CardPart:
    """Routed and shared experts as DeepSeek, GLM and their relatives name them."""
    shared = shared_by_count(fields, "n_shared_experts")
    return mixture(fields, experts=("n_routed_experts",), **shared, **options)


def window_of(fields: ConfigFields, name: str = "sliding_window") -> int:
    """The tokens a sliding layer keeps."""
    return fields.whole(name, most=10**9)


SLIDING = ("full_attention", "sliding_attention")


def windows_by_type(fields: ConfigFields, n_layers: int) -> list[int | None]:
    """One entry of ``layer_types`` a layer: full_attention or sliding_attention."""
    types = fields.words("layer_types", n_layers, SLIDING)
    return [window_of(fields) if kind == "sliding_attention" else None for kind in types]


def every(n_layers: int, period: int, window: int) -> list[int | None]:
    """Sliding layers with a full one as the last of every ``period``."""
    return [None if (layer + 1) % period == 0 else window for layer in range(n_layers)]


def windows_or_none(fields: ConfigFields, n_layers: int) -> list[int | None]:
    """All layers slide, or none where the field is null or absent."""
    if fields.has("layer_types"):
        return windows_by_type(fields, n_layers)
    if fields.has("sliding_window"):
        return [window_of(fields)] * n_layers
    fields.ignore("sliding_window", "layer_types")
    return [None] * n_layers


def qwen_windows(fields: ConfigFields, n_layers: int) -> list[int | None]:
    """Off unless ``use_sliding_window``; then the layers from ``max_window_layers`` on slide."""
    slides = fields.flag("use_sliding_window", False)
    if fields.has("layer_types"):
        fields.ignore("sliding_window", "max_window_layers")
        windows = windows_by_type(fields, n_layers)
        if not slides and any(window is not None for window in windows):
            problem = "false (or absent) rules out the sliding_attention that layer_types names; say which holds"
            raise fields.error("use_sliding_window", problem)
        return windows
    if not slides:
        fields.ignore("sliding_window", "max_window_layers", "layer_types")
        return [None] * n_layers
    first = fields.whole("max_window_layers", least=0)
    return [None if layer < first else window_of(fields) for layer in range(n_layers)]


def leading_dense(fields: ConfigFields, n_layers: int) -> list[bool]:
    """Which layers are a mixture: named one by one, or every ``moe_layer_freq``-th after ``first_k_dense_replace``."""
    if fields.has("mlp_layer_types"):
        fields.ignore("first_k_dense_replace", "moe_layer_freq")
        return [kind == "sparse" for kind in fields.words("mlp_layer_types", n_layers, ("dense", "sparse"))]
    fields.ignore("mlp_layer_types")
    if isinstance(fields.data.get("moe_layer_freq"), list):
        fields.ignore("first_k_dense_replace")
        return [bool(flag) for flag in fields.whole_list("moe_layer_freq", n_layers, least=0, most=1)]
    first = fields.whole("first_k_dense_replace", least=0)
    step = fields.whole("moe_layer_freq") if fields.has("moe_layer_freq") else fields.assume("moe_layer_freq", 1)
    return [layer >= first and layer % step == 0 for layer in range(n_layers)]


def sparse_steps(fields: ConfigFields, n_layers: int) -> list[bool]:
    """Which layers are a mixture: every ``decoder_sparse_step``-th, those of ``mlp_only_layers`` never."""
    step = fields.whole("decoder_sparse_step")
    only = fields.value("mlp_only_layers") or []
    if not isinstance(only, list) or not all(type(layer) is int for layer in only):
        raise fields.error("mlp_only_layers", "must be a list of layer numbers")
    if any(not 0 <= layer < n_layers for layer in only):
        raise fields.error("mlp_only_layers", f"must be layer numbers below {n_layers}")
    dense_layers = set(only)
    return [layer not in dense_layers and (layer + 1) % step == 0 for layer in range(n_layers)]
