"""The model families of Hugging Face configs: one small builder a kind of attention or feed-forward, one table.

A family names the classes it stands for and the builders that read its fields. What a field is called and what its
absence means follows the configuration class of the family in transformers 4.5x/5.x; where absence would mean a
number, the field is required instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from capplan.cards.hf_fields import ConfigFields
from capplan.cards.model_card import DenseCard, GqaCard, MixtureCard, MlaCard
from capplan.cards.number import Number

AttentionBuilder = Callable[[ConfigFields, "Number | None", str], "GqaCard | MlaCard"]
FeedForwardBuilder = Callable[[ConfigFields, str], DenseCard]
MixtureBuilder = Callable[[ConfigFields, str, str, str], MixtureCard]
WindowReader = Callable[[ConfigFields, int], "list[Number | None]"]
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


def _heads(fields: ConfigFields, *, kv_heads_default: bool = False) -> tuple[Number, Number]:
    """Query and KV heads; null KV heads mean as many as query heads, absent ones only where the class says so."""
    heads = fields.count("num_attention_heads", unit="head", most=100_000)
    if fields.has("num_key_value_heads"):
        return heads, fields.count("num_key_value_heads", unit="head", most=100_000)
    if "num_key_value_heads" not in fields.data and not kv_heads_default:
        raise fields.error("num_key_value_heads", "is missing, and a default would be a guess")
    fields.ignore("num_key_value_heads")
    note = "no num_key_value_heads: as many as query heads"
    return heads, fields.number(int(heads.value), "head", "num_attention_heads", note=note)


def _head_dim(fields: ConfigFields, heads: Number, *, required: bool) -> Number:
    """The width of a head: explicit, or hidden_size / heads in families whose class computes it so."""
    if required or fields.has("head_dim"):
        return fields.count("head_dim", unit="element")
    fields.ignore("head_dim")
    hidden = int(fields.count("hidden_size", unit="element").value)
    if hidden % int(heads.value):
        raise fields.error(
            "hidden_size", f"{hidden} is no multiple of {heads.value:g} heads, and head_dim is not given"
        )
    return fields.number(hidden // int(heads.value), "element", "hidden_size", "num_attention_heads", note="quotient")


def _gqa(
    fields: ConfigFields,
    window: Number | None,
    form: str,
    *,
    kv_heads_default: bool = False,
    head_dim_required: bool = False,
    qkv_bias: bool | None = None,
    bias_default: bool = False,
    qk_norm: bool = False,
    sinks: bool = False,
) -> GqaCard:
    heads, kv_heads = _heads(fields, kv_heads_default=kv_heads_default)
    width = _head_dim(fields, heads, required=head_dim_required)
    bias = fields.flag("attention_bias", bias_default) if qkv_bias is None else False
    return GqaCard(
        kind="gqa",
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=width,
        value_head_dim=width,
        window=window,
        qkv_bias=bias if qkv_bias is None else qkv_bias,
        output_bias=bias,
        qk_norm=qk_norm,
        sinks=sinks,
        format=form,
    )


def _llama_attention(fields: ConfigFields, window: Number | None, form: str) -> GqaCard:
    return _gqa(fields, window, form, kv_heads_default=True)


def _qwen2_attention(fields: ConfigFields, window: Number | None, form: str) -> GqaCard:
    """Qwen2 has a bias on q, k and v without a flag that says so."""
    return _gqa(fields, window, form, qkv_bias=True)


def _qwen3_attention(fields: ConfigFields, window: Number | None, form: str) -> GqaCard:
    return _gqa(fields, window, form, head_dim_required=True, qk_norm=True)


def _mistral_attention(fields: ConfigFields, window: Number | None, form: str) -> GqaCard:
    return _gqa(fields, window, form, qkv_bias=False)


def _gpt_oss_attention(fields: ConfigFields, window: Number | None, form: str) -> GqaCard:
    return _gqa(fields, window, form, head_dim_required=True, bias_default=True, sinks=True)


def _mla(fields: ConfigFields, window: Number | None, form: str) -> MlaCard:
    """Multi-head latent attention; ``num_key_value_heads`` and ``head_dim`` of such configs mean nothing."""
    del window
    fields.must_be("attention_bias", False)
    fields.ignore("num_key_value_heads", "head_dim", "qk_head_dim")
    return MlaCard(
        kind="mla",
        n_heads=fields.count("num_attention_heads", unit="head", most=100_000),
        q_lora_rank=fields.optional_count("q_lora_rank", unit="element"),
        kv_lora_rank=fields.count("kv_lora_rank", unit="element"),
        qk_nope_head_dim=fields.count("qk_nope_head_dim", unit="element"),
        qk_rope_head_dim=fields.count("qk_rope_head_dim", unit="element"),
        value_head_dim=fields.count("v_head_dim", unit="element"),
        format=form,
    )


def _dense(fields: ConfigFields, form: str) -> DenseCard:
    width = fields.count("intermediate_size", unit="element")
    return DenseCard(kind="dense", width=width, format=form)


def _llama_dense(fields: ConfigFields, form: str) -> DenseCard:
    width = fields.count("intermediate_size", unit="element")
    return DenseCard(kind="dense", width=width, bias=fields.flag("mlp_bias", False), format=form)


def _qwen3_mixture(fields: ConfigFields, form: str, shared: str, rest: str) -> MixtureCard:
    del shared
    return MixtureCard(
        kind="mixture",
        width=fields.count("moe_intermediate_size", unit="element"),
        n_experts=fields.count("num_experts", unit="expert", most=100_000),
        top_k=fields.count("num_experts_per_tok", unit="expert", most=100_000),
        format=form,
        router_format=rest,
    )


def _deepseek_mixture(fields: ConfigFields, form: str, shared: str, rest: str) -> MixtureCard:
    width = fields.count("moe_intermediate_size", unit="element")
    experts = fields.optional_count("n_shared_experts", unit="expert")
    shared_width = None
    if experts is not None:
        product = int(width.value * experts.value)
        names = ("moe_intermediate_size", "n_shared_experts")
        shared_width = fields.number(product, "element", *names, note="product")
    return MixtureCard(
        kind="mixture",
        width=width,
        n_experts=fields.count("n_routed_experts", unit="expert", most=100_000),
        top_k=fields.count("num_experts_per_tok", unit="expert", most=100_000),
        shared_width=shared_width,
        format=form,
        shared_format=shared if shared_width is not None else None,
        router_format=rest,
    )


def _local_experts(fields: ConfigFields, form: str, rest: str, *, bias: bool) -> MixtureCard:
    """Mixtral and gpt-oss: ``intermediate_size`` is the width of one expert."""
    return MixtureCard(
        kind="mixture",
        width=fields.count("intermediate_size", unit="element"),
        n_experts=fields.count("num_local_experts", unit="expert", most=100_000),
        top_k=fields.count("num_experts_per_tok", "experts_per_token", unit="expert", most=100_000),
        bias=bias,
        router_bias=bias,
        format=form,
        router_format=rest,
    )


def _mixtral_mixture(fields: ConfigFields, form: str, shared: str, rest: str) -> MixtureCard:
    del shared
    return _local_experts(fields, form, rest, bias=False)


def _gpt_oss_mixture(fields: ConfigFields, form: str, shared: str, rest: str) -> MixtureCard:
    del shared
    return _local_experts(fields, form, rest, bias=True)


def _window(fields: ConfigFields) -> Number:
    return fields.count("sliding_window", unit="token", most=10**9)


def _no_windows(fields: ConfigFields, n_layers: int) -> list[Number | None]:
    del fields
    return [None] * n_layers


def _windows_by_type(fields: ConfigFields, n_layers: int) -> list[Number | None]:
    """One entry of ``layer_types`` a layer: full_attention or sliding_attention."""
    types = fields.value("layer_types")
    if not isinstance(types, list) or len(types) != n_layers:
        raise fields.error("layer_types", f"must name {n_layers} layers, one each")
    for kind in types:
        if kind not in ("full_attention", "sliding_attention"):
            raise fields.unsupported("layer_types", f"layer type {str(kind)[:40]!r} is not modelled")
    return [_window(fields) if kind == "sliding_attention" else None for kind in types]


def _qwen_windows(fields: ConfigFields, n_layers: int) -> list[Number | None]:
    """Off unless ``use_sliding_window``; then the layers from ``max_window_layers`` on slide."""
    if not fields.flag("use_sliding_window", False):
        fields.ignore("sliding_window", "max_window_layers")
        if fields.has("layer_types"):
            return _windows_by_type(fields, n_layers)
        return [None] * n_layers
    if fields.has("layer_types"):
        fields.ignore("max_window_layers")
        return _windows_by_type(fields, n_layers)
    first = int(fields.count("max_window_layers", unit="layer", least=0).value)
    return [None if layer < first else _window(fields) for layer in range(n_layers)]


def _qwen3_moe_windows(fields: ConfigFields, n_layers: int) -> list[Number | None]:
    fields.must_be("use_sliding_window", False)
    return _qwen_windows(fields, n_layers)


def _mistral_windows(fields: ConfigFields, n_layers: int) -> list[Number | None]:
    """All layers slide, or none where the field is null; absent, the class would take 4,096."""
    if "sliding_window" not in fields.data:
        raise fields.error("sliding_window", "is missing; write null for full attention")
    if not fields.has("sliding_window"):
        fields.ignore("sliding_window")
        return [None] * n_layers
    return [_window(fields)] * n_layers


def _mixtral_windows(fields: ConfigFields, n_layers: int) -> list[Number | None]:
    return _mistral_windows(fields, n_layers) if fields.has("sliding_window") else [None] * n_layers


def _gpt_oss_windows(fields: ConfigFields, n_layers: int) -> list[Number | None]:
    """Sliding and full layers take turns, sliding first, unless ``layer_types`` says otherwise."""
    if fields.has("layer_types"):
        return _windows_by_type(fields, n_layers)
    return [_window(fields) if layer % 2 == 0 else None for layer in range(n_layers)]


def _all_mixture(fields: ConfigFields, n_layers: int) -> list[bool]:
    del fields
    return [True] * n_layers


def _qwen3_mixture_layers(fields: ConfigFields, n_layers: int) -> list[bool]:
    """Every ``decoder_sparse_step``-th layer is a mixture, those of ``mlp_only_layers`` never."""
    step = int(fields.count("decoder_sparse_step", unit="layer").value)
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
    first = int(fields.count("first_k_dense_replace", unit="layer", least=0).value)
    step = int(fields.count("moe_layer_freq", unit="layer").value)
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
