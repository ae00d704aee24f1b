"""Families whose layers differ in shape: Llama-3.2-Vision, OpenELM, searched architectures, MiMo-V2."""

from __future__ import annotations

from typing import Any

from capplan.cards.hf_family import LLAMA_ATTENTION, CardPart, Family, Layer, ModuleNames, layers_of
from capplan.cards.hf_fields import ConfigFields
from capplan.cards.hf_parts import (
    MOST_HEADS,
    SLIDING,
    deepseek_mixture,
    dense,
    gqa,
    head_dim_of,
    leading_dense,
    window_of,
)


def matrix(fields: ConfigFields, name: str, inputs: int, outputs: int, *names: str) -> CardPart:
    return {
        "name": name,
        "inputs": fields.number(inputs, "element", *names),
        "outputs": fields.number(outputs, "element", *names),
    }


def _mllama_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Some layers attend to the image instead of the text, behind two gates."""
    chosen = fields.value("cross_attention_layers")
    if not isinstance(chosen, list) or not all(type(layer) is int and 0 <= layer < n_layers for layer in chosen):
        raise fields.error("cross_attention_layers", f"must be a list of layer numbers below {n_layers}")
    numbers = set(chosen)

    def build(crosses: bool) -> Layer:
        if not crosses:
            return Layer(gqa(fields), dense(fields))
        gates = fields.number(2, "parameter", note="gates of attention and feed-forward")
        return Layer({**gqa(fields), "kind": "cross", "qk_norm": True}, dense(fields), extra_parameters=gates)

    return layers_of([layer in numbers for layer in range(n_layers)], build)


def _mllama_ends(fields: ConfigFields) -> CardPart:
    rows = fields.whole("vocab_size") + 8
    return {"embedding_rows": fields.number(rows, "token", "vocab_size", note="and 8 for the image")}


def _openelm_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Heads and widths of every layer in lists."""
    fields.ignore("num_gqa_groups", "qkv_multipliers", "activation_fn_name", "rope_max_length")
    fields.must_be("normalization_layer_name", "rms_norm")
    heads = fields.whole_list("num_query_heads", n_layers, most=MOST_HEADS)
    kv_heads = fields.whole_list("num_kv_heads", n_layers, most=MOST_HEADS)
    norm, glu = fields.flag("normalize_qk_projections", True), fields.flag("ffn_with_glu", True)

    def build(kind: tuple[int, int, int]) -> Layer:
        queries, keys, width = kind
        if queries % keys:
            raise fields.error("num_kv_heads", f"{keys} must divide {queries} heads")
        head_dim = fields.count("head_dim", unit="element")
        attention = {
            "kind": "gqa",
            "n_heads": fields.number(queries, "head", "num_query_heads"),
            "n_kv_heads": fields.number(keys, "head", "num_kv_heads"),
            "head_dim": head_dim,
            "value_head_dim": head_dim,
            "qk_norm": norm,
        }
        inner = fields.number(width, "element", "ffn_multipliers", "model_dim", "ffn_dim_divisor")
        return Layer(attention, {"kind": "dense", "width": inner, "gated": glu})

    return layers_of(list(zip(heads, kv_heads, _openelm_widths(fields, n_layers), strict=True)), build)


def _openelm_widths(fields: ConfigFields, n_layers: int) -> list[int]:
    """Multiples of the model's width, rounded to a multiple of the divisor, never down by more than a tenth."""
    multipliers, divisor = fields.value("ffn_multipliers"), fields.whole("ffn_dim_divisor")
    if not isinstance(multipliers, list) or len(multipliers) != n_layers:
        raise fields.error("ffn_multipliers", f"must be a list of {n_layers} numbers, one a layer")
    hidden, widths = fields.whole("hidden_size"), []
    for multiplier in multipliers:
        if type(multiplier) not in (int, float) or not 0 < multiplier <= 100:
            raise fields.error("ffn_multipliers", "must be numbers above 0 and at most 100")
        exact = multiplier * hidden
        width = max(divisor, int(exact + divisor / 2) // divisor * divisor)
        widths.append(width + divisor if width < 0.9 * exact else width)
    return widths


def _searched_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Nemotron's searched architectures: every block says with how many KV heads it attends, if any, and its width."""
    fields.ignore("intermediate_size", "num_key_value_heads")
    blocks = fields.value("block_configs")
    if not isinstance(blocks, list) or len(blocks) != n_layers:
        raise fields.error("block_configs", f"must be a list of {n_layers} tables, one a layer")
    kinds = [(_searched_heads(fields, block), _searched_width(fields, block)) for block in blocks]
    bias, mlp_bias = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)

    def build(kind: tuple[int | None, int | None]) -> Layer:
        in_group, width = kind
        attention = _searched_attention(fields, in_group, bias) if in_group is not None else None
        inner = fields.number(width, "element", "block_configs") if width is not None else None
        block = {"kind": "dense", "width": inner, "bias": mlp_bias} if inner is not None else None
        return Layer(attention, block, norms=(attention is not None) + (block is not None))

    return layers_of(kinds, build)


def _block_part(fields: ConfigFields, block: Any, name: str) -> ConfigFields | None:
    """One half of a block, None where it does nothing."""
    if not isinstance(block, dict) or not isinstance(part := block.get(name), dict):
        raise fields.error("block_configs", f"every entry must have a table {name}")
    inner = ConfigFields(part, fields.file, f"{fields.prefix}block_configs.{name}.")
    inner.must_be("replace_with_linear", False)
    inner.must_be("sparsify", None)
    return None if inner.flag("no_op", False) else inner


def _searched_heads(fields: ConfigFields, block: Any) -> int | None:
    inner = _block_part(fields, block, "attention")
    if inner is None:
        return None
    inner.must_be("window_length", None)
    inner.must_be("num_sink_tokens", None)
    inner.must_be("unshifted_sink", False)
    inner.ignore("use_prefill_window_in_sink_attention")
    in_group = inner.whole("n_heads_in_group", most=MOST_HEADS)
    inner.refuse_unknown()
    return in_group


def _searched_width(fields: ConfigFields, block: Any) -> int | None:
    """Two thirds of a multiple of the model's width, rounded up to 256."""
    inner = _block_part(fields, block, "ffn")
    if inner is None:
        return None
    if inner.has("intermediate_size"):
        return inner.whole("intermediate_size")
    multiplier = inner.value("ffn_mult")
    if type(multiplier) not in (int, float) or not 0 < multiplier <= 100:
        raise inner.error("ffn_mult", "must be a number above 0 and at most 100")
    inner.ignore("intermediate_size", "moe", "gated", "hidden_act")
    inner.refuse_unknown()
    exact = int(2 * multiplier * fields.whole("hidden_size") / 3)
    return -(-exact // 256) * 256


def _searched_attention(fields: ConfigFields, in_group: int, bias: bool) -> CardPart:
    heads = fields.count("num_attention_heads", unit="head", most=MOST_HEADS)
    if heads["value"] % in_group:
        raise fields.error("block_configs", f"n_heads_in_group {in_group} must divide {heads['value']} heads")
    width = head_dim_of(fields, heads["value"])
    kv_heads = heads["value"] // in_group
    return {
        "kind": "gqa",
        "n_heads": heads,
        "n_kv_heads": fields.number(kv_heads, "head", "num_attention_heads", "block_configs", note="quotient"),
        "head_dim": width,
        "value_head_dim": width,
        "qkv_bias": bias,
        "output_bias": bias,
    }


def _mimo_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """MiMo-V2: keys wider than values; sliding layers with their own number of KV heads, and sinks."""
    fields.ignore("attention_value_scale", "swa_rope_theta", "attention_projection_layout")
    windows, sparse = _mimo_windows(fields, n_layers), leading_dense(fields, n_layers)

    def build(kind: tuple[int | None, bool]) -> Layer:
        window, mixed = kind
        return Layer(_mimo_attention(fields, window), deepseek_mixture(fields) if mixed else dense(fields))

    return layers_of(list(zip(windows, sparse, strict=True)), build)


def _mimo_windows(fields: ConfigFields, n_layers: int) -> list[int | None]:
    """``hybrid_layer_pattern``: 1 for a sliding layer."""
    window = window_of(fields, "sliding_window_size") if fields.has("sliding_window_size") else window_of(fields)
    fields.ignore("sliding_window", "sliding_window_size", "attention_chunk_size", "hybrid_block_size")
    if fields.has("hybrid_layer_pattern"):
        fields.ignore("layer_types")
        return [
            window if flag else None for flag in fields.whole_list("hybrid_layer_pattern", n_layers, least=0, most=1)
        ]
    return [window if kind == "sliding_attention" else None for kind in fields.words("layer_types", n_layers, SLIDING)]


_MIMO_HEADS = ("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim")


def _mimo_attention(fields: ConfigFields, window: int | None) -> CardPart:
    slides = window is not None
    own = slides and any(fields.has(f"swa_{name}") for name in _MIMO_HEADS)
    prefix = "swa_" if own else ""
    names = {
        "n_heads": (f"{prefix}num_attention_heads", "head"),
        "n_kv_heads": (f"{prefix}num_key_value_heads", "head"),
        "head_dim": (f"{prefix}head_dim", "element"),
        "value_head_dim": (f"{prefix}v_head_dim", "element"),
    }
    attention: CardPart = {"kind": "gqa", "qkv_bias": fields.flag("attention_bias", False)}
    attention |= {key: fields.count(name, unit=unit) for key, (name, unit) in names.items()}
    if slides and not own:
        keys = fields.assume("swa_num_key_value_heads", 2 * attention["n_kv_heads"]["value"])
        note = "twice, as the class has it"
        attention["n_kv_heads"] = fields.number(keys, "head", "num_key_value_heads", note=note)
    if attention["n_heads"]["value"] % attention["n_kv_heads"]["value"]:
        raise fields.error(names["n_kv_heads"][0], f"must divide {attention['n_heads']['value']} heads")
    kind = "swa" if slides else "full"
    attention["sinks"] = fields.flag(f"add_{kind}_attention_sink_bias", slides)
    fields.ignore("add_swa_attention_sink_bias", "add_full_attention_sink_bias")
    if slides:
        attention["window"] = fields.number(window or 0, "token", "sliding_window")
    return attention


_MLLAMA = ModuleNames(attention={**LLAMA_ATTENTION})
_OPENELM = ModuleNames(
    attention={"qkv": ("attn.qkv_proj",), "o": ("attn.out_proj",)},
    dense={"gate_up": ("ffn.proj_1",), "down": ("ffn.proj_2",)},
)
UNEVEN_FAMILIES: dict[str, Family] = {
    "mllama_text_model": Family((), _mllama_layers, _MLLAMA, ends=_mllama_ends),
    "openelm": Family(
        ("OpenELMForCausalLM",),
        _openelm_layers,
        _OPENELM,
        synonyms={
            "num_hidden_layers": ("num_transformer_layers",),
            "hidden_size": ("model_dim",),
            "tie_word_embeddings": ("share_input_output_layers",),
        },
        tied=True,
    ),
    "nemotron-nas": Family(("DeciLMForCausalLM",), _searched_layers),
    "mimo_v2_flash": Family(
        ("MiMoV2FlashForCausalLM",), _mimo_layers, mtp_unknown=("num_nextn_predict_layers", "num_mtp_layers")
    ),
}
"""By ``model_type``."""
