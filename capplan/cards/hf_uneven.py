"""Families whose layers differ from each other in shape, share caches or weights, or read an encoder.

Gemma-3n and Gemma-4, Llama-3.2-Vision, OpenELM, Nemotron's searched architectures, Zamba2, MiMo-V2.
"""

from __future__ import annotations

from typing import Any

from capplan.cards.hf_family import LLAMA_ATTENTION, CardPart, Family, Layer, ModuleNames, gated, layers_of
from capplan.cards.hf_fields import ConfigFields
from capplan.cards.hf_hybrid import state_dtype
from capplan.cards.hf_parts import (
    MOST_HEADS,
    SLIDING,
    deepseek_mixture,
    dense,
    every,
    flagged_gqa,
    gqa,
    head_dim_of,
    heads_of,
    leading_dense,
    window_of,
    windows_by_type,
)


def _matrix(fields: ConfigFields, name: str, inputs: int, outputs: int, *names: str) -> CardPart:
    return {
        "name": name,
        "inputs": fields.number(inputs, "element", *names),
        "outputs": fields.number(outputs, "element", *names),
    }


def _shared_from(fields: ConfigFields, n_layers: int) -> int:
    """The first layer that reads the cache of an earlier one."""
    shared = fields.whole("num_kv_shared_layers", least=0) if fields.has("num_kv_shared_layers") else 0
    fields.ignore("num_kv_shared_layers")
    if shared > n_layers:
        raise fields.error("num_kv_shared_layers", f"{shared} exceeds {n_layers} layers")
    return n_layers - shared


def _per_layer_inputs(fields: ConfigFields) -> tuple[CardPart, ...]:
    """What a layer does with its own embedding of a token: a gate down and a projection back."""
    small, hidden = fields.whole("hidden_size_per_layer_input"), fields.whole("hidden_size")
    names = ("hidden_size", "hidden_size_per_layer_input")
    return (
        _matrix(fields, "per_layer_gate", hidden, small, *names),
        _matrix(fields, "per_layer_projection", small, hidden, *names),
    )


def _per_layer_ends(fields: ConfigFields) -> CardPart:
    """The table of embeddings a layer, and the projection of the token's own embedding beside it."""
    small, hidden = fields.whole("hidden_size_per_layer_input"), fields.whole("hidden_size")
    rows, layers = fields.whole("vocab_size_per_layer_input"), fields.whole("num_hidden_layers")
    width, names = small * layers, ("hidden_size_per_layer_input", "num_hidden_layers")
    return {
        "look_ups": [_matrix(fields, "per_layer_embedding", rows, width, "vocab_size_per_layer_input", *names)],
        "projections": [_matrix(fields, "per_layer_model_projection", hidden, width, "hidden_size", *names)],
        "other_parameters": fields.number(small, "parameter", "hidden_size_per_layer_input", note="norm"),
    }


def _gemma3n_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Alternating updates of several residual streams, a low-rank shortcut, embeddings a layer, shared caches."""
    fields.ignore("activation_sparsity_pattern", "altup_active_idx", "altup_coef_clip", "altup_correct_scale")
    first, streams = _shared_from(fields, n_layers), fields.whole("altup_num_inputs")
    kinds = list(zip(windows_by_type(fields, n_layers), _widths(fields, n_layers), strict=True))
    hidden, rank = fields.whole("hidden_size"), fields.whole("laurel_rank")
    matrices = (
        _matrix(fields, "altup_router", hidden, streams, "hidden_size", "altup_num_inputs"),
        _matrix(fields, "altup_correction", streams, streams, "altup_num_inputs"),
        _matrix(fields, "altup_prediction", streams, streams**2, "altup_num_inputs"),
        _matrix(fields, "laurel_left", hidden, rank, "hidden_size", "laurel_rank"),
        _matrix(fields, "laurel_right", rank, hidden, "hidden_size", "laurel_rank"),
        *_per_layer_inputs(fields),
    )
    scale = fields.number(hidden, "parameter", "hidden_size", note="altup.correct_output_scale")

    def build(kind: tuple[int | None, int, bool]) -> Layer:
        window, width, stores = kind
        block = {"kind": "dense", "width": fields.number(width, "element", "intermediate_size")}
        attention = flagged_gqa(fields, window, head_dim_required=True, qk_norm=True, stores_kv=stores)
        return Layer(attention, block, norms=7, matrices=matrices, extra_parameters=scale)

    return layers_of([(*kind, layer < first) for layer, kind in enumerate(kinds)], build)


def _widths(fields: ConfigFields, n_layers: int) -> list[int]:
    if isinstance(fields.data.get("intermediate_size"), list):
        return fields.whole_list("intermediate_size", n_layers)
    return [fields.whole("intermediate_size")] * n_layers


def _gemma3n_ends(fields: ConfigFields) -> CardPart:
    ends = _per_layer_ends(fields)
    hidden, streams = fields.whole("hidden_size"), fields.whole("altup_num_inputs")
    for index in range(1, streams):
        for name in ("altup_projection", "altup_unembed_projection"):
            ends["projections"].append(_matrix(fields, f"{name}_{index}", hidden, hidden, "hidden_size"))
    return ends


def _gemma4_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Sliding layers, full layers of another geometry, experts beside the dense block, shared caches."""
    fields.must_be("use_bidirectional_attention", "vision")
    first, per_layer = (
        _shared_from(fields, n_layers),
        fields.zero_or_count("hidden_size_per_layer_input", unit="element"),
    )
    windows = _gemma4_windows(fields, n_layers)
    matrices = _per_layer_inputs(fields) if per_layer is not None else ()
    mixed = fields.flag("enable_moe_block", False)
    wide = fields.flag("use_double_wide_mlp", False)
    if not mixed:
        fields.ignore("num_experts", "top_k_experts", "moe_intermediate_size")

    def build(kind: tuple[int | None, bool]) -> Layer:
        window, stores = kind
        block = _gemma4_mixture(fields) if mixed else _gemma4_dense(fields, twice=wide and not stores)
        norms = 4 + 3 * mixed + bool(matrices)
        return Layer(_gemma4_attention(fields, window, stores), block, norms=norms, matrices=matrices)

    return layers_of([(window, layer < first) for layer, window in enumerate(windows)], build)


def _gemma4_windows(fields: ConfigFields, n_layers: int) -> list[int | None]:
    if fields.has("layer_types"):
        return windows_by_type(fields, n_layers)
    fields.assume("layer_types", "a full layer after five sliding ones")
    return [*every(n_layers, 6, window_of(fields))[:-1], None]


def _gemma4_attention(fields: ConfigFields, window: int | None, stores: bool) -> CardPart:
    """Full layers have heads of ``global_head_dim`` and, where keys are values, their own number of KV heads."""
    key_is_value = fields.flag("attention_k_eq_v", False)
    attention = flagged_gqa(fields, window, head_dim_required=True, qk_norm=True, stores_kv=stores)
    fields.ignore("global_head_dim", "num_global_key_value_heads")
    if window is not None:
        return attention
    width = fields.count("global_head_dim", unit="element")
    attention |= {"head_dim": width, "value_head_dim": width, "key_is_value": key_is_value}
    if key_is_value and fields.has("num_global_key_value_heads"):
        attention["n_kv_heads"] = fields.count("num_global_key_value_heads", unit="head", most=MOST_HEADS)
    return attention


def _gemma4_dense(fields: ConfigFields, *, twice: bool) -> CardPart:
    width = fields.whole("intermediate_size") * (1 + twice)
    note = "twice as wide where the cache is shared" if twice else ""
    return {"kind": "dense", "width": fields.number(width, "element", "intermediate_size", note=note)}


def _gemma4_mixture(fields: ConfigFields) -> CardPart:
    """A router with a scale of its input and one an expert."""
    experts = fields.count("num_experts", unit="expert")
    scales = fields.whole("hidden_size") + experts["value"]
    return {
        "kind": "mixture",
        "width": fields.count("moe_intermediate_size", unit="element"),
        "n_experts": experts,
        "top_k": fields.count("top_k_experts", unit="expert", most=experts["value"]),
        "dense_width": fields.count("intermediate_size", unit="element"),
        "other_parameters": fields.number(scales, "parameter", "hidden_size", "num_experts", note="router scales"),
    }


def _gemma4_ends(fields: ConfigFields) -> CardPart:
    if fields.zero_or_count("hidden_size_per_layer_input", unit="element") is None:
        fields.ignore("vocab_size_per_layer_input")
        return {}
    return _per_layer_ends(fields)


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


def _zamba_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Mamba-2 layers; in front of some a transformer block of twice the width whose weights a few copies share."""
    fields.must_be("use_shared_attention_lora", False)
    fields.must_be("use_shared_attention_adapter", False)
    fields.must_be("add_bias_linear", False)
    fields.must_be("gated_linear_unit", True)
    fields.must_be("sliding_window", None)
    fields.ignore(
        "kv_channels", "num_query_groups", "use_mem_rope", "ft_lora", "use_long_context", "attention_head_dim"
    )
    fields.must_be("use_shared_block_lora", True)
    fields.must_be("use_shared_mlp_adapter", True)
    fields.ignore("hybrid_layer_ids", "intermediate_size")
    kinds = fields.words("layers_block_type", n_layers, ("mamba", "hybrid"))
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
            _matrix(fields, "hybrid_projection", hidden, hidden, "hidden_size"),
            _matrix(fields, "adapter_down", hidden, rank, *names),
            _matrix(fields, "adapter_up", rank, 2 * block["width"]["value"], *names, "ffn_hidden_size"),
        ),
        extra_parameters=fields.number(hidden, "parameter", "hidden_size", note="norm in front of the mixer"),
        copies=fields.count("num_mem_blocks", unit="layer"),
    )


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


def _mimo_attention(fields: ConfigFields, window: int | None) -> CardPart:
    slides = window is not None
    prefix = "swa_" if slides and fields.has("swa_num_key_value_heads") else ""
    names = {
        "n_heads": (f"{prefix}num_attention_heads", "head"),
        "n_kv_heads": (f"{prefix}num_key_value_heads", "head"),
        "head_dim": (f"{prefix}head_dim", "element"),
        "value_head_dim": (f"{prefix}v_head_dim", "element"),
    }
    attention: CardPart = {"kind": "gqa", "qkv_bias": fields.flag("attention_bias", False)}
    attention |= {key: fields.count(name, unit=unit) for key, (name, unit) in names.items()}
    if attention["n_heads"]["value"] % attention["n_kv_heads"]["value"]:
        raise fields.error(names["n_kv_heads"][0], f"must divide {attention['n_heads']['value']} heads")
    kind = "swa" if slides else "full"
    attention["sinks"] = fields.flag(f"add_{kind}_attention_sink_bias", slides)
    fields.ignore("add_swa_attention_sink_bias", "add_full_attention_sink_bias")
    if slides:
        attention["window"] = fields.number(window or 0, "token", "sliding_window")
    return attention


_GEMMA4 = ModuleNames(experts=gated("experts.0"), shared=gated("mlp"))
_MLLAMA = ModuleNames(attention={**LLAMA_ATTENTION})
_OPENELM = ModuleNames(
    attention={"qkv": ("attn.qkv_proj",), "o": ("attn.out_proj",)},
    dense={"gate_up": ("ffn.proj_1",), "down": ("ffn.proj_2",)},
)
_ZAMBA_NAMES = {
    "mamba_d_state": ("state_size",), "mamba_d_conv": ("conv_dimension",), "mamba_expand": ("expansion_factor",),
    "adapter_rank": ("lora_rank",), "ffn_hidden_size": ("intermediate_size",),
}  # fmt: skip
_ZAMBA = ModuleNames(recurrence={"in": ("mamba.in_proj",), "o": ("mamba.out_proj",)})

UNEVEN_FAMILIES: dict[str, Family] = {
    "gemma3n_text": Family(
        ("Gemma3nForCausalLM",),
        _gemma3n_layers,
        tied=True,
        ends=_gemma3n_ends,
        defaults={
            "max_position_embeddings": 32768, "vocab_size": 262400, "vocab_size_per_layer_input": 262144,
            "hidden_size_per_layer_input": 256, "laurel_rank": 64, "altup_num_inputs": 4, "num_kv_shared_layers": 15,
        },
    ),
    "gemma4_text": Family(("Gemma4ForCausalLM",), _gemma4_layers, _GEMMA4, tied=True, ends=_gemma4_ends),
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
    "zamba2": Family(("Zamba2ForCausalLM",), _zamba_layers, _ZAMBA, tied=True, synonyms=_ZAMBA_NAMES),
    "mimo_v2_flash": Family(
        ("MiMoV2FlashForCausalLM",), _mimo_layers, mtp_unknown=("num_nextn_predict_layers", "num_mtp_layers")
    ),
}  # fmt: skip
"""By ``model_type``."""
