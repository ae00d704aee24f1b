"""The quantisation methods of checkpoints: one reader each, from its options to formats.

Which modules a method leaves alone without saying so (embedding, lm_head, router, norms) follows the checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from capplan.cards.hf_fields import ConfigFields
from capplan.cards.hf_module_names import ModulePatterns
from capplan.cards.weight_formats import integer_group_name

MOST_IN_A_GROUP = 100_000

_HOW_IT_WAS_QUANTISED = """
    amp autoround_version backend batch_size block_name_to_quantize cache_block_outputs checkpoint_format
    damp_auto_increment damp_percent dataset desc_act do_fuse enable_minmax_tuning enable_quanted_input
    exllama_config gradient_accumulate_steps iters low_gpu_mem_usage lr max_input_length meta minmax_lr
    model_file_base_name model_name_or_path model_seqlen nsamples pack_dtype pad_token_id quant_block_list
    scale_dtype seqlen static_groups sym to_quant_block_names tokenizer true_sequential use_cuda_fp16 use_exllama
    version zero_point
"""
"""Options of AWQ, GPTQ and AutoRound that say how a checkpoint was made, or how engines should run it."""


@dataclass(frozen=True)
class Scheme:
    """What a quantisation config says; see :class:`capplan.cards.hf_quantization.Quantization`."""

    quantized: str | None
    experts_only: bool = False
    kv_dtype: str | None = None
    excluded: ModulePatterns | None = None
    experts: str | None = None
    named: tuple[tuple[ModulePatterns, str], ...] = ()
    lm_head: str | None = None


def _names(options: ConfigFields, *fields: str) -> ModulePatterns | None:
    """The module names under the first of ``fields`` that is there; several must agree."""
    given = [name for name in fields if options.value(name) is not None]
    for name in given:
        value = options.value(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise options.error(name, "must be a list of module names")
        if value != options.value(given[0]):
            raise options.error(name, f"differs from {given[0]}")
    return ModulePatterns(options.value(given[0])) if given else None


def fp8(options: ConfigFields) -> Scheme:
    """8-bit floats in blocks or with one scale a matrix (DeepSeek, Qwen, Mistral)."""
    options.must_be("fmt", "e4m3", "float8_e4m3fn")
    options.must_be("activation_scheme", "dynamic", "static")
    options.must_be("dequantize", False)
    options.must_be("scale_fmt", "ue8m0")
    form = _block_format(options, options.value("weight_block_size"))
    if not options.has("quantized_layers"):
        return Scheme(form, excluded=_names(options, "modules_to_not_convert", "ignored_layers"))
    return _requantized(options, form)


def _requantized(options: ConfigFields, form: str) -> Scheme:
    """An fp8 checkpoint of which ModelOpt stored some layers anew; what it ignored is still in fp8."""
    options.must_be("quant_algo", "MIXED_PRECISION")
    options.must_be("moe_quant_algo", "NVFP4")
    options.ignore("ignore", "exclude_modules", "config_groups", "group_size", "producer")
    named = _quantized_layers(options)
    return Scheme(form, kv_dtype=cache_type(options), named=named, lm_head=_head_format(named))


def _block_format(options: ConfigFields, block: Any) -> str:
    if block is None:
        return "fp8"
    sizes = block if isinstance(block, list) else []
    if len(sizes) != 2 or not all(type(size) is int and 1 <= size <= MOST_IN_A_GROUP for size in sizes):
        raise options.unsupported("weight_block_size", "must be two block sizes")
    return "fp8_block" if sizes == [128, 128] else f"fp8_block_{sizes[0]}x{sizes[1]}"


def fbgemm_fp8(options: ConfigFields) -> Scheme:
    """8-bit floats with one scale an output channel (Llama-3.1-405B-FP8)."""
    options.ignore("activation_scale_ub")
    return Scheme("fp8_channel", excluded=_names(options, "modules_to_not_convert"))


def mxfp4(options: ConfigFields) -> Scheme:
    """4-bit floats, 32 of which share one byte; routed experts only (gpt-oss)."""
    return Scheme("mxfp4", experts_only=True, excluded=_names(options, "modules_to_not_convert"))


def integer_groups(options: ConfigFields) -> Scheme:
    """Weight-only integers of AWQ, GPTQ and AutoRound; zero points are stored even where they are all alike."""
    options.must_be("bits", 4, 8)
    options.must_be("w_bit", 4, 8)
    bits = options.whole("bits", "w_bit", most=8)
    options.must_be("lm_head", False)
    options.must_be("data_type", "int")
    options.must_be("packing_format", "auto_round:auto_gptq", "auto_round:auto_awq")
    options.ignore(*_HOW_IT_WAS_QUANTISED.split())
    form = _integer_format(options, bits)
    return Scheme(form, excluded=_left_out_of_groups(options))


def _integer_format(options: ConfigFields, bits: int) -> str:
    if -1 in (options.value("group_size"), options.value("q_group_size")):
        options.must_be("group_size", -1)
        options.must_be("q_group_size", -1)
        return f"int{bits}_channel"
    group = options.whole("group_size", "q_group_size", most=MOST_IN_A_GROUP)
    return integer_group_name(bits, group, zero_points=True)


def _left_out_of_groups(options: ConfigFields) -> ModulePatterns | None:
    """``modules_to_not_convert``, the ``-:`` rules of GPTQModel, the 16-bit layers of AutoRound."""
    rules, layers = options.value("dynamic") or {}, options.value("extra_config") or {}
    if not isinstance(rules, dict) or not all(name.startswith("-:") for name in rules):
        raise options.unsupported("dynamic", "only rules that leave modules out are modelled")
    if not isinstance(layers, dict) or not all(_is_sixteen_bit(layer) for layer in layers.values()):
        raise options.unsupported("extra_config", "only layers left in 16 bits are modelled")
    names = options.value("modules_to_not_convert") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise options.error("modules_to_not_convert", "must be a list of module names")
    names = [*names, *("re:" + name.removeprefix("-:") for name in rules), *layers]
    return ModulePatterns(names) if names else None


def _is_sixteen_bit(layer: Any) -> bool:
    return isinstance(layer, dict) and type(layer.get("bits")) is int and layer["bits"] >= 16


_STORED_AS: dict[str, tuple[str, tuple[int, ...]] | None] = {
    "pack-quantized": ("int", (4, 8)),
    "int-quantized": ("int", (8,)),
    "float-quantized": ("float", (8,)),
    "nvfp4-pack-quantized": ("float", (4,)),
    "mxfp4-pack-quantized": ("float", (4,)),
    "mxfp8-quantized": ("float", (8,)),
    "mixed-precision": None,
}
"""What a ``format`` stores in as many bits as its weights have (compressed-tensors, ``CompressionFormat``)."""


def compressed_tensors(options: ConfigFields) -> Scheme:
    """One or several groups of layers, each with a format; the groups that name modules come first."""
    groups = options.value("config_groups")
    if not isinstance(groups, dict) or not groups or len(groups) > 100:
        raise options.unsupported("config_groups", "must be a table of groups of layers")
    options.must_be("format", *_STORED_AS)
    options.must_be("quantization_status", "compressed")
    options.ignore("global_compression_ratio", "version")
    for empty in ("sparsity_config", "transform_config"):
        options.must_be(empty, {})
    default, named = _groups(options, list(groups.values()))
    excluded, head = _names(options, "ignore"), _head_format(named)
    return Scheme(default, kv_dtype=cache_type(options), excluded=excluded, named=named, lm_head=head)


def _groups(options: ConfigFields, groups: list[Any]) -> tuple[str | None, tuple[tuple[ModulePatterns, str], ...]]:
    default: str | None = None
    named: list[tuple[ModulePatterns, str]] = []
    for group in groups:
        targets, form = _targets(options, group), _compressed_format(options, group)
        if "Linear" in targets and default not in (None, form):
            raise options.unsupported("config_groups", "two groups over all linear layers are not understood")
        default = form if "Linear" in targets else default
        if names := [target for target in targets if target != "Linear"]:
            named.append((ModulePatterns(names), form))
    return default, tuple(named)


def _targets(options: ConfigFields, group: Any) -> list[str]:
    """Names of modules, expressions, or ``Linear`` for all of them; other classes are not known."""
    targets = group.get("targets") if isinstance(group, dict) else None
    if not isinstance(targets, list) or not targets or not all(isinstance(target, str) for target in targets):
        raise options.unsupported("config_groups", "a group must name its targets")
    for target in targets:
        if target != "Linear" and target[:1].isupper():
            raise options.unsupported("config_groups", f"target {target[:40]!r} is not modelled")
    return targets


def _compressed_format(options: ConfigFields, group: dict[str, Any]) -> str:
    weights, inputs = group.get("weights"), group.get("input_activations")
    if not isinstance(weights, dict):
        raise options.unsupported("config_groups", "a group without weights is not modelled")
    kind, bits, strategy, size = (weights.get(name) for name in ("type", "num_bits", "strategy", "group_size"))
    _check_stored(options, group.get("format"), kind, bits)
    if (kind, bits) == ("float", 8) and strategy == "block":
        return _block_format(options, weights.get("block_structure"))
    if (kind, bits) == ("float", 8) and strategy in ("tensor", "channel", "group"):
        return _float8_format(options, strategy, size)
    if kind == "float" and bits == 4 and type(size) is int and size in (16, 32):
        return "mxfp4" if size == 32 else "nvfp4" if isinstance(inputs, dict) else "nvfp4_w4a16"
    if kind == "int" and type(bits) is int and bits in (4, 8):
        return _compressed_integers(options, weights, inputs)
    shown = f"{str(kind)[:20]}, {str(bits)[:20]}, {str(strategy)[:20]}"
    raise options.unsupported("config_groups", f"weights of type, bits, strategy {shown} are not modelled")


def _check_stored(options: ConfigFields, own: Any, kind: Any, bits: Any) -> None:
    """Refuse a format that does not store such weights in their number of bits; a group may have one of its own."""
    name = options.value("format") if own is None else own
    if name is not None and (not isinstance(name, str) or name not in _STORED_AS):
        known = ", ".join(_STORED_AS)
        raise options.unsupported("config_groups", f"format {str(name)[:40]!r} is not modelled (known: {known})")
    stored = None if name is None else _STORED_AS[name]
    if stored is not None and (kind != stored[0] or bits not in stored[1]):
        problem = f"format {name!r} does not store weights of type, bits {str(kind)[:20]}, {str(bits)[:20]}"
        raise options.unsupported("config_groups", problem)


def _float8_format(options: ConfigFields, strategy: str, size: Any) -> str:
    if strategy == "group" and not (type(size) is int and size == 32):
        raise options.unsupported("config_groups", "8-bit floats in groups other than 32 are not modelled")
    return {"tensor": "fp8", "channel": "fp8_channel", "group": "mxfp8"}[strategy]


def _compressed_integers(options: ConfigFields, weights: dict[str, Any], inputs: Any) -> str:
    bits, size, strategy = weights["num_bits"], weights.get("group_size"), weights.get("strategy")
    if strategy == "group" and type(size) is int and 1 <= size <= MOST_IN_A_GROUP:
        return integer_group_name(bits, size, zero_points=weights.get("symmetric") is False)
    if strategy in ("channel", "tensor") and bits == 8:
        return "int8_w8a8" if isinstance(inputs, dict) else "int8_channel"
    if strategy == "channel":
        return "int4_channel"
    raise options.unsupported("config_groups", f"integers by {str(strategy)[:20]!r} are not modelled")


_ALGORITHMS = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8_channel",
    "FP8_PB_WO": "fp8_block",
    "FP8_BLOCK_SCALES": "fp8_block",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A16_NVFP4": "nvfp4_w4a16",
    "MXFP8": "mxfp8",
    "W4A16_MXFP4": "mxfp4",
    "W4A8_MXFP4_FP8": "mxfp4",
    "W4A16_AWQ": "int4",
    "W8A16": "int8_channel",
    "INT8_SQ": "int8_w8a8",
    "W8A8_SQ_PER_CHANNEL": "int8_w8a8",
}
"""ModelOpt's algorithms (TensorRT-LLM, ``QuantAlgo``)."""


def is_modelopt(options: ConfigFields, method: Any) -> bool:
    """Whether the options are ModelOpt's, which need not say so."""
    return method in (None, "modelopt", "modelopt_fp4", "modelopt_mixed") and options.has("quant_algo")


def modelopt(options: ConfigFields) -> Scheme:
    """NVIDIA ModelOpt: one algorithm for all linear layers, or one a layer (``MIXED_PRECISION``)."""
    excluded = _names(options, "exclude_modules", "ignore", "modules_to_not_convert")
    options.ignore("group_size", "producer", "config_groups", "activation_scheme")
    if options.value("quant_algo") == "MIXED_PRECISION":
        named = _quantized_layers(options)
        return Scheme(None, kv_dtype=cache_type(options), excluded=excluded, named=named, lm_head=_head_format(named))
    form = _algorithm(options, options.value("quant_algo"), options.value("group_size"))
    return Scheme(form, kv_dtype=cache_type(options), excluded=excluded)


def _algorithm(options: ConfigFields, name: Any, group: Any) -> str:
    """The format of an algorithm; a group size it does not have is refused."""
    if not isinstance(name, str) or name not in _ALGORITHMS:
        known = ", ".join(_ALGORITHMS)
        raise options.unsupported("quant_algo", f"algorithm {str(name)[:40]!r} is not modelled (known: {known})")
    form = _ALGORITHMS[name]
    if form == "int4" and type(group) is int and 1 <= group <= MOST_IN_A_GROUP:
        return integer_group_name(4, group, zero_points=False)
    size = {"nvfp4": 16, "nvfp4_w4a16": 16, "mxfp4": 32, "mxfp8": 32}.get(form)
    if size is not None and group is not None and (type(group) is not int or group != size):
        raise options.unsupported("group_size", f"{name} has groups of {size}")
    return form


def _quantized_layers(options: ConfigFields) -> tuple[tuple[ModulePatterns, str], ...]:
    """Modules by format from ``quantized_layers``."""
    layers = options.value("quantized_layers")
    if not isinstance(layers, dict) or not layers:
        raise options.unsupported("quantized_layers", "must say which layer is stored how")
    by_format: dict[str, list[str]] = {}
    for name, layer in layers.items():
        if not isinstance(layer, dict):
            raise options.unsupported("quantized_layers", f"{name[:60]!r} is not understood")
        form = _algorithm(options, layer.get("quant_algo"), layer.get("group_size"))
        by_format.setdefault(form, []).append(name)
    return tuple((ModulePatterns(names), form) for form, names in by_format.items())


def _head_format(named: tuple[tuple[ModulePatterns, str], ...]) -> str | None:
    return next((form for patterns, form in named if patterns.match("lm_head")), None)


def cache_type(options: ConfigFields) -> str | None:
    """The element type of the KV cache the checkpoint comes with scales for."""
    found = {_one_cache_type(options, name) for name in ("kv_cache_quant_algo", "kv_cache_scheme")} - {None}
    if len(found) > 1:
        raise options.error("kv_cache_scheme", "differs from kv_cache_quant_algo")
    return found.pop() if found else None


def _one_cache_type(options: ConfigFields, name: str) -> str | None:
    value = options.value(name)
    if value is None:
        return None
    if isinstance(value, dict) and value.get("num_bits") == 8:
        value = {"float": "FP8", "int": "INT8"}.get(str(value.get("type")), value)
    types = {"FP8": "fp8", "INT8": "int8"}
    if not isinstance(value, str) or value not in types:
        raise options.unsupported(name, "only a cache of FP8 or INT8 is modelled")
    return types[value]


METHODS: dict[str, Callable[[ConfigFields], Scheme]] = {
    "fp8": fp8,
    "fbgemm_fp8": fbgemm_fp8,
    "mxfp4": mxfp4,
    "awq": integer_groups,
    "gptq": integer_groups,
    "auto-round": integer_groups,
    "intel/auto-round": integer_groups,
    "compressed-tensors": compressed_tensors,
}
"""By ``quant_method``."""
