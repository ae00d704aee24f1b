"""Gemma-3n and Gemma-4: embeddings a layer, shared caches, experts beside a dense block, layers of two geometries."""

from __future__ import annotations

from capplan.cards.hf_family import CardPart, Family, Layer, ModuleNames, gated, layers_of
from capplan.cards.hf_fields import ConfigFields
from capplan.cards.hf_parts import (
    MOST_HEADS,
    every,
    flagged_gqa,
    window_of,
    windows_by_type,
)
from capplan.cards.hf_uneven import matrix


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
        matrix(fields, "per_layer_gate", hidden, small, *names),
        matrix(fields, "per_layer_projection", small, hidden, *names),
    )


def _per_layer_ends(fields: ConfigFields) -> CardPart:
    """The table of embeddings a layer, and the projection of the token's own embedding beside it."""
    small, hidden = fields.whole("hidden_size_per_layer_input"), fields.whole("hidden_size")
    rows, layers = fields.whole("vocab_size_per_layer_input"), fields.whole("num_hidden_layers")
    width, names = small * layers, ("hidden_size_per_layer_input", "num_hidden_layers")
    return {
        "look_ups": [matrix(fields, "per_layer_embedding", rows, width, "vocab_size_per_layer_input", *names)],
        "projections": [matrix(fields, "per_layer_model_projection", hidden, width, "hidden_size", *names)],
        "other_parameters": fields.number(small, "parameter", "hidden_size_per_layer_input", note="norm"),
    }


def _gemma3n_layers(fields: ConfigFields, n_layers: int) -> list[Layer]:
    """Alternating updates of several residual streams, a low-rank shortcut, embeddings a layer, shared caches."""
    fields.ignore("activation_sparsity_pattern", "altup_active_idx", "altup_coef_clip", "altup_correct_scale")
    first, streams = _shared_from(fields, n_layers), fields.whole("altup_num_inputs")
    kinds = list(zip(windows_by_type(fields, n_layers), _widths(fields, n_layers), strict=True))
    hidden, rank = fields.whole("hidden_size"), fields.whole("laurel_rank")
    matrices = (
        matrix(fields, "altup_router", hidden, streams, "hidden_size", "altup_num_inputs"),
        matrix(fields, "altup_correction", streams, streams, "altup_num_inputs"),
        matrix(fields, "altup_prediction", streams, streams**2, "altup_num_inputs"),
        matrix(fields, "laurel_left", hidden, rank, "hidden_size", "laurel_rank"),
        matrix(fields, "laurel_right", rank, hidden, "hidden_size", "laurel_rank"),
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
            ends["projections"].append(matrix(fields, f"{name}_{index}", hidden, hidden, "hidden_size"))
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
    fields.ignore("global_head_dim", "num_global_key_value_heads", "per_layer_config")
    if window is not None:
        return attention
    width = _global_head_dim(fields)
    attention |= {"head_dim": width, "value_head_dim": width, "key_is_value": key_is_value}
    if key_is_value and fields.has("num_global_key_value_heads"):
        attention["n_kv_heads"] = fields.count("num_global_key_value_heads", unit="head", most=MOST_HEADS)
    return attention


def _global_head_dim(fields: ConfigFields) -> CardPart:
    """Stated as such, or for every full layer in ``per_layer_config``."""
    if fields.has("global_head_dim") or not isinstance(fields.data.get("per_layer_config"), dict):
        return fields.count("global_head_dim", unit="element")
    tables = list(fields.data["per_layer_config"].values())
    if not tables or any(not isinstance(table, dict) or table.keys() - {"head_dim"} for table in tables):
        raise fields.unsupported("per_layer_config", "only one head_dim for all full layers is modelled")
    inner = [ConfigFields(table, fields.file, f"{fields.prefix}per_layer_config.") for table in tables]
    if len({table.whole("head_dim") for table in inner}) > 1:
        raise fields.unsupported("per_layer_config", "only one head_dim for all full layers is modelled")
    return inner[0].count("head_dim", unit="element")


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


_GEMMA4 = ModuleNames(experts=gated("experts.0"), shared=gated("mlp"))
GEMMA_FAMILIES: dict[str, Family] = {
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
}  # fmt: skip
"""By ``model_type``."""
