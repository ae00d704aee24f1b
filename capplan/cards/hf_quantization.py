"""How a checkpoint stores its weights and its KV cache: ``quantization_config`` and ModelOpt's side-car file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from capplan.cards.hf_fields import ConfigFields
from capplan.cards.hf_module_names import ModulePatterns
from capplan.cards.hf_quantization_methods import METHODS, Scheme, cache_type, is_modelopt, modelopt
from capplan.errors import InputError

__all__ = ["ModulePatterns", "Quantization", "read_quantization"]

_TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "bf16"}
"""Element types of a checkpoint; engines serve float32 checkpoints in 16 bits."""

_PREDICTION_LAYERS = (
    "num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "mtp_num_layers", "num_mtp_modules",
    "mtp_transformer_layers",
)  # fmt: skip
"""What configs call the multi-token-prediction layers, which checkpoints number after the last one."""

_EXPERT_TYPES = {"fp8": None, "fp4": "mxfp4"}
"""``expert_dtype`` of DeepSeek-V4: what its routed experts are stored in; fp8 is what the rest is in."""


@dataclass(frozen=True)
class Quantization:
    """Formats of a checkpoint.

    ``rest`` is the type of whatever is not quantised, ``quantized`` the format of the rest (None: nothing is),
    ``experts_only`` restricts it to routed experts, ``experts`` is the format of routed experts where it differs,
    ``excluded`` are the module patterns left out, ``named`` modules with a format of their own (first match wins),
    ``lm_head`` is the format of lm_head.
    """

    rest: str
    quantized: str | None = None
    experts_only: bool = False
    kv_dtype: str | None = None
    excluded: ModulePatterns | None = None
    experts: str | None = None
    named: tuple[tuple[ModulePatterns, str], ...] = ()
    lm_head: str = ""

    @property
    def lm_head_format(self) -> str:
        """Format of lm_head: quantised only where the config names it."""
        return self.lm_head or self.rest

    def module_format(self, module: str, *, experts: bool = False) -> str:
        """The format of one matrix, such as ``layers.3.self_attn.o_proj``; ``experts``: of a routed expert."""
        if self.excluded is not None and self.excluded.match(module):
            return self.rest
        named = next((form for patterns, form in self.named if patterns.match(module)), None)
        if named is not None:
            return named
        if experts and self.experts is not None:
            return self.experts
        return self.rest if self.experts_only and not experts else self.quantized or self.rest

    def format_of(self, modules: tuple[str, ...], *, experts: bool = False) -> str | None:
        """The format of a part of a layer, given the names of its matrices; None where they differ."""
        formats = {self.module_format(module, experts=experts) for module in modules}
        if len(formats) > 1:
            return None
        return formats.pop() if formats else self.quantized or self.rest

    def unused(self) -> list[str]:
        """Module patterns that met no module and name none that is never converted."""
        patterns = [*([self.excluded] if self.excluded is not None else []), *(names for names, _ in self.named)]
        return sorted({name for names in patterns for name in names.unused()})


def read_quantization(fields: ConfigFields, side_car: dict[str, Any] | None, side_car_file: str) -> Quantization:
    """The formats of a checkpoint from its config and, where there is one, ``hf_quant_config.json``.

    Raises
    ------
    UnsupportedModelError : a method or an option that is not modelled
    InputError : a config and a side-car file that differ
    """
    rest = _rest_type(fields)
    inner = _config_options(fields)
    beside = _side_car_options(side_car, side_car_file) if side_car is not None else None
    options = inner if inner is not None else beside
    scheme = Scheme(None) if options is None else _fitting_scheme(fields, options)
    experts = _expert_type(fields, scheme)
    agreed = None
    if inner is not None and beside is not None:
        agreed = _agreeing_cache_type(fields, scheme, inner, beside)
    return Quantization(
        rest,
        scheme.quantized,
        scheme.experts_only,
        scheme.kv_dtype or agreed,
        scheme.excluded,
        experts or scheme.experts,
        scheme.named,
        scheme.lm_head or rest,
    )


def _rest_type(fields: ConfigFields) -> str:
    name = fields.value("dtype") or fields.value("torch_dtype")
    fields.ignore("dtype", "torch_dtype")
    if name is not None and (not isinstance(name, str) or name not in (*_TYPES, "auto")):
        raise fields.unsupported("dtype" if fields.has("dtype") else "torch_dtype", "not a type of weights")
    if name not in ("bfloat16", "float16"):
        fields.assumed[f"{fields.prefix}dtype"] = f"bf16 ({name or 'none'} given)"
    return _TYPES.get(name or "", "bf16")


def _config_options(fields: ConfigFields) -> ConfigFields | None:
    """``quantization_config``, or ``compression_config`` as compressed-tensors once called it."""
    given = [name for name in ("quantization_config", "compression_config") if fields.has(name)]
    fields.ignore("quantization_config", "compression_config")
    if not given:
        return None
    name, *others = given
    data = fields.value(name)
    if not isinstance(data, dict):
        raise fields.error(name, "must be a table")
    if any(fields.value(other) != data for other in others):
        raise fields.error(others[0], f"differs from {name}")
    return ConfigFields(data, fields.file, f"{fields.prefix}{name}.")


def _side_car_options(side_car: dict[str, Any], file: str) -> ConfigFields:
    data = side_car.get("quantization") if isinstance(side_car, dict) else None
    if not isinstance(data, dict):
        raise InputError("is missing or no table", key="quantization", file=file)
    return ConfigFields(data, file, "quantization.")


def _scheme(options: ConfigFields) -> Scheme:
    try:
        scheme = _method(options)(options)
        options.refuse_unknown()
    except InputError as error:
        raise error.located(key=options.prefix.rstrip("."), file=options.file) from None
    return scheme


def _method(options: ConfigFields) -> Callable[[ConfigFields], Scheme]:
    name = options.value("quant_method")
    if is_modelopt(options, name):
        return modelopt
    if not isinstance(name, str) or name not in METHODS:
        raise options.unsupported("quant_method", f"this method is not modelled (known: {', '.join(sorted(METHODS))})")
    return METHODS[name]


def _expert_type(fields: ConfigFields, scheme: Scheme) -> str | None:
    """What ``expert_dtype`` beside the quantisation config says of routed experts named nowhere else."""
    name = fields.value("expert_dtype")
    if name is None:
        return None
    if not isinstance(name, str) or name not in _EXPERT_TYPES:
        raise fields.unsupported("expert_dtype", f"only {', '.join(_EXPERT_TYPES)} is modelled")
    if scheme.quantized is None:
        raise fields.unsupported("expert_dtype", "without a quantization_config it is not understood")
    return _EXPERT_TYPES[name]


def _fitting_scheme(fields: ConfigFields, options: ConfigFields) -> Scheme:
    """What the options say, refused where it is not said of this model."""
    scheme = _scheme(options)
    _refuse_without_experts(fields, scheme, options)
    _refuse_alien_layers(fields, options, scheme)
    return scheme


def _refuse_alien_layers(fields: ConfigFields, options: ConfigFields, scheme: Scheme) -> None:
    """Refuse a config that names layers the model does not have: it was written for another one."""
    n_layers = fields.data.get(fields.called("num_hidden_layers"))
    predicting = [fields.data.get(name) for name in _PREDICTION_LAYERS]
    most = sum(count for count in (n_layers, *predicting) if type(count) is int and count > 0)
    patterns = (scheme.excluded, *(names for names, _ in scheme.named))
    last = max((names.last_layer() for names in patterns if names is not None), default=-1)
    if type(n_layers) is int and last >= most:
        problem = f"names layer {last}, and the model has {most} (num_hidden_layers and prediction layers)"
        raise InputError(problem, key=options.prefix.rstrip("."), file=options.file)


def _refuse_without_experts(fields: ConfigFields, scheme: Scheme, options: ConfigFields) -> None:
    counts = (value for name, value in fields.data.items() if "expert" in name)
    if scheme.experts_only and not any(type(count) is int and count > 0 for count in counts):
        raise options.unsupported("quant_method", "it stores routed experts only, and the config counts none")


def _agreeing_cache_type(fields: ConfigFields, scheme: Scheme, inner: ConfigFields, beside: ConfigFields) -> str | None:
    """The type of the cache the side-car file names; refuses one that says other things than the config."""
    algorithm, other = inner.data.get("quant_algo"), beside.data.get("quant_algo")
    if algorithm is not None and other is not None:
        _refuse_difference(beside, "quant_algo", other, algorithm)
        if inner.has("group_size") and beside.has("group_size"):
            _refuse_difference(beside, "group_size", beside.data["group_size"], inner.data["group_size"])
    quantized = scheme.quantized if other is None else _fitting_scheme(fields, beside).quantized
    if algorithm is None and quantized != scheme.quantized:
        method = str(inner.data.get("quant_method"))[:40]
        raise beside.error("quant_algo", f"{str(other)[:40]!r} differs from {method!r} in the config")
    stored = cache_type(beside)
    if stored is not None and scheme.kv_dtype is not None:
        _refuse_difference(beside, "kv_cache_quant_algo", stored, scheme.kv_dtype)
    return stored


def _refuse_difference(beside: ConfigFields, name: str, given: Any, expected: Any) -> None:
    if given != expected:
        raise beside.error(name, f"{str(given)[:40]!r} differs from {str(expected)[:40]!r} in the config")
