"""How a checkpoint stores its weights and its KV cache: ``quantization_config`` and ModelOpt's side-car file."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from capplan.cards.hf_fields import ConfigFields
from capplan.errors import InputError

_TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "bf16"}
"""Element types of a checkpoint; engines serve float32 checkpoints in 16 bits."""

_NEVER_CONVERTED = re.compile(
    r"lm_head|embed|norm|vis|audio|multi_modal|projector|gate$|router|eh_proj|shared_head|mtp|merger"
)
"""Words of module names that no quantiser here touches, or that are not part of the text model."""

MAX_PATTERNS = 20_000
MAX_WILDCARDS = 500


@dataclass(frozen=True)
class Quantization:
    """Formats of a checkpoint.

    ``rest`` is the type of whatever is not quantised, ``quantized`` the format of the rest (None: nothing is),
    ``experts_only`` restricts it to routed experts, ``excluded`` are the module patterns left out.
    """

    rest: str
    quantized: str | None = None
    experts_only: bool = False
    kv_dtype: str | None = None
    excluded: ModulePatterns | None = None

    def format_of(self, modules: tuple[str, ...], *, experts: bool = False) -> str | None:
        """The format of a part of a layer, given the names of its matrices; None where they differ."""
        if self.quantized is None:
            return self.rest
        excluded = {self.excluded is not None and self.excluded.match(module) for module in modules}
        if self.experts_only and not experts:
            return self.rest
        if len(excluded) > 1:
            return None
        return self.rest if excluded == {True} else self.quantized


class ModulePatterns:
    """Names of modules left unquantised: whole names, parts of names, ``*`` wildcards, simple ``re:`` patterns."""

    def __init__(self, patterns: list[str]) -> None:
        names = [_plain(pattern) for pattern in patterns]
        self.used: set[str] = set()
        self.exact = {name for name in names if "*" not in name}
        wild = dict.fromkeys(name for name in names if "*" in name)
        self.wild = [(name, name[: name.index("*")], re.compile(fnmatch.translate(name))) for name in wild]
        if len(patterns) > MAX_PATTERNS or len(self.wild) > MAX_WILDCARDS:
            raise InputError(f"more than {MAX_WILDCARDS} wildcards or {MAX_PATTERNS:,} names")

    def match(self, module: str) -> bool:
        """Whether a module such as ``layers.3.self_attn.o_proj`` is left unquantised."""
        parts = module.split(".")
        spans = {".".join(parts[i:j]) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1)}
        prefixes = [".".join(parts[:j]) for j in range(1, len(parts) + 1)]
        hits = spans & self.exact
        for name, head, wild in self.wild:
            if module.startswith(head) and any(wild.match(prefix) for prefix in prefixes):
                hits.add(name)
        self.used |= hits
        return bool(hits)

    def unused(self) -> list[str]:
        """Patterns that met no module of the text model and name none that is never converted."""
        names = [*self.exact, *(name for name, _, _ in self.wild)]
        return sorted(name for name in names if name not in self.used and not _NEVER_CONVERTED.search(name))


def _plain(pattern: str) -> str:
    """A pattern with regular-expression dress and the prefixes of wrappers taken off."""
    if len(pattern) > 200:
        raise InputError("a module name is longer than 200 characters")
    name = pattern
    if name.startswith("re:"):
        name = name[3:].removeprefix("^").removesuffix("$").replace("\\.", "\0").replace(".*", "*").replace("\0", ".")
        if re.search(r"[\\^$+?{}\[\]()|]", name):
            raise InputError(f"{pattern!r} is a regular expression that is not understood")
    for prefix in ("model.", "language_model.", "model."):
        name = name.removeprefix(prefix)
    return name.removesuffix(".")


def read_quantization(fields: ConfigFields, side_car: dict[str, Any] | None, side_car_file: str) -> Quantization:
    """The formats of a checkpoint from its config and, where there is one, ``hf_quant_config.json``.

    Raises
    ------
    UnsupportedModelError : a method or an option that is not modelled
    """
    rest = _rest_type(fields)
    data = fields.value("quantization_config")
    if data is not None and not isinstance(data, dict):
        raise fields.error("quantization_config", "must be a table")
    if data is None and side_car is None:
        return Quantization(rest)
    inner = ConfigFields(data, fields.file, f"{fields.prefix}quantization_config.") if data is not None else None
    options = inner if inner is not None else _side_car_fields(side_car or {}, side_car_file)
    try:
        quantization = _method(options)(options, rest)
        options.refuse_unknown()
    except InputError as error:
        raise error.located(key=options.prefix.rstrip("."), file=options.file) from None
    return quantization


def _rest_type(fields: ConfigFields) -> str:
    name = fields.value("dtype") or fields.value("torch_dtype")
    fields.ignore("dtype", "torch_dtype")
    if name is not None and name not in (*_TYPES, "auto"):
        raise fields.unsupported("dtype" if fields.has("dtype") else "torch_dtype", "not a type of weights")
    if name not in ("bfloat16", "float16"):
        fields.assumed[f"{fields.prefix}dtype"] = f"bf16 ({name or 'none'} given)"
    return _TYPES.get(name, "bf16")


def _side_car_fields(side_car: dict[str, Any], file: str) -> ConfigFields:
    data = side_car.get("quantization")
    if not isinstance(data, dict):
        raise InputError("is missing or no table", key="quantization", file=file)
    return ConfigFields(data, file, "quantization.")


def _method(options: ConfigFields) -> Callable[[ConfigFields, str], Quantization]:
    name = options.value("quant_method")
    if name in (None, "modelopt", "modelopt_fp4") and options.has("quant_algo"):
        return _modelopt
    methods = {
        "fp8": _fp8,
        "mxfp4": _mxfp4,
        "awq": _four_bit_groups,
        "gptq": _four_bit_groups,
        "compressed-tensors": _compressed_tensors,
    }
    if not isinstance(name, str) or name not in methods:
        raise options.unsupported("quant_method", f"this method is not modelled (known: {', '.join(sorted(methods))})")
    return methods[name]


def _patterns(options: ConfigFields, *names: str) -> ModulePatterns | None:
    for name in names:
        value = options.value(name)
        if value is None:
            continue
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise options.error(name, "must be a list of module names")
        return ModulePatterns(value)
    return None


def _fp8(options: ConfigFields, rest: str) -> Quantization:
    options.must_be("fmt", "e4m3", "float8_e4m3fn")
    options.must_be("activation_scheme", "dynamic", "static")
    options.must_be("dequantize", False)
    options.must_be("scale_fmt", "ue8m0")
    block = options.value("weight_block_size")
    excluded = _patterns(options, "modules_to_not_convert", "ignored_layers")
    return Quantization(rest, _block_format(options, block), excluded=excluded)


def _block_format(options: ConfigFields, block: Any) -> str:
    if block is None:
        return "fp8"
    sizes = block if isinstance(block, list) else []
    if len(sizes) != 2 or not all(type(size) is int and 1 <= size <= 100_000 for size in sizes):
        raise options.unsupported("weight_block_size", "must be two block sizes")
    return "fp8_block" if sizes == [128, 128] else f"fp8_block_{sizes[0]}x{sizes[1]}"


def _mxfp4(options: ConfigFields, rest: str) -> Quantization:
    excluded = _patterns(options, "modules_to_not_convert")
    return Quantization(rest, "mxfp4", experts_only=True, excluded=excluded)


def _four_bit_groups(options: ConfigFields, rest: str) -> Quantization:
    options.must_be("bits", 4)
    options.must_be("w_bit", 4)
    options.must_be("lm_head", False)
    options.ignore("zero_point", "version", "backend", "do_fuse", "desc_act", "sym", "damp_percent", "true_sequential",
                   "static_groups", "checkpoint_format", "meta", "dataset", "tokenizer", "exllama_config", "pack_dtype",
                   "use_cuda_fp16", "use_exllama", "max_input_length", "model_seqlen", "pad_token_id", "batch_size",
                   "cache_block_outputs", "model_file_base_name", "model_name_or_path")  # fmt: skip
    group = options.whole("group_size", "q_group_size", most=100_000)
    excluded = _patterns(options, "modules_to_not_convert")
    return Quantization(rest, "int4" if group == 128 else f"int4_g{group}", excluded=excluded)


def _compressed_tensors(options: ConfigFields, rest: str) -> Quantization:
    groups = options.value("config_groups")
    if not isinstance(groups, dict) or len(groups) != 1 or not isinstance(group := next(iter(groups.values())), dict):
        raise options.unsupported("config_groups", "only one group of equal layers is modelled")
    if group.get("targets") != ["Linear"] or not isinstance(weights := group.get("weights"), dict):
        raise options.unsupported("config_groups", "only a group over all linear layers is modelled")
    options.ignore("format", "quantization_status", "global_compression_ratio", "version")
    for empty in ("sparsity_config", "transform_config"):
        options.must_be(empty, {})
    excluded = _patterns(options, "ignore")
    return Quantization(rest, _compressed_format(options, weights), False, _kv_type(options), excluded)


def _compressed_format(options: ConfigFields, weights: dict[str, Any]) -> str:
    kind = (weights.get("type"), weights.get("num_bits"), weights.get("strategy"))
    if kind == ("float", 8, "block"):
        return _block_format(options, weights.get("block_structure"))
    if kind in (("float", 8, "tensor"), ("float", 8, "channel")):
        return "fp8"
    if kind == ("int", 4, "group") and type(group := weights.get("group_size")) is int and 1 <= group <= 100_000:
        return "int4" if group == 128 else f"int4_g{group}"
    if kind in (("float", 4, "tensor_group"), ("float", 4, "group")) and weights.get("group_size") in (16, 32):
        return "nvfp4" if weights["group_size"] == 16 else "mxfp4"
    raise options.unsupported("config_groups", f"weights of type, bits, strategy {kind} are not modelled")


def _modelopt(options: ConfigFields, rest: str) -> Quantization:
    formats = {"FP8": "fp8", "NVFP4": "nvfp4", "FP8_PB_WO": "fp8_block"}
    algorithm = options.value("quant_algo")
    if algorithm not in formats:
        raise options.unsupported("quant_algo", f"this algorithm is not modelled (known: {', '.join(formats)})")
    if algorithm == "NVFP4":
        options.must_be("group_size", 16)
    options.ignore("group_size", "producer", "config_groups", "activation_scheme")
    excluded = _patterns(options, "exclude_modules", "ignore", "modules_to_not_convert")
    return Quantization(rest, formats[algorithm], False, _kv_type(options), excluded)


def _kv_type(options: ConfigFields) -> str | None:
    for name in ("kv_cache_quant_algo", "kv_cache_scheme"):
        value = options.value(name)
        if value is None:
            continue
        eight_bit_float = isinstance(value, dict) and (value.get("type"), value.get("num_bits")) == ("float", 8)
        if value == "FP8" or eight_bit_float:
            return "fp8"
        raise options.unsupported(name, "only an FP8 cache is modelled")
    return None
