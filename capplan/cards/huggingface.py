"""A model card from a Hugging Face ``config.json``.

Every field is either read, known to be harmless, or stops the import: a number from a config that was only half
understood would look as good as a right one.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from capplan.cards.hf_families import FAMILIES, CardPart, Family
from capplan.cards.hf_fields import WRAPPER_HARMLESS, ConfigFields
from capplan.cards.hf_quantization import Quantization, read_quantization
from capplan.cards.model import Model
from capplan.cards.model_card import card_json
from capplan.cards.model_reader import SCHEMA, model_from_data
from capplan.cards.store import read_json
from capplan.errors import InputError, UnsupportedModelError

SIDE_CAR = "hf_quant_config.json"
MAX_LAYERS = 2_000


class LayerKind(NamedTuple):
    """What tells one layer from another: window, mixture or dense, and the formats of its parts."""

    window: int | None
    mixture: bool
    attention_format: str
    feed_forward_format: str
    shared_format: str


def import_config(
    data: dict[str, Any],
    *,
    name: str = "model",
    file: str = "config.json",
    side_car: dict[str, Any] | None = None,
    **origin: Any,
) -> Model:
    """The model a ``config.json`` describes.

    Parameters
    ----------
    data : the parsed file; the text part may sit in ``text_config``
    name : name of the model
    file : named in errors and in the provenance
    side_car : the parsed ``hf_quant_config.json``, where there is one
    origin : ``repository``, ``url``, ``commit``, ``retrieved_from``, ``notes``, ``aliases``

    Returns
    -------
    model : every number with the field it came from

    Raises
    ------
    UnsupportedModelError : a model type, an architecture or a field that is not modelled; names field, value, effect
    InputError : a field missing or out of range
    """
    return model_from_data(card_from_config(data, name=name, file=file, side_car=side_car, **origin), file)


def card_from_config(
    data: dict[str, Any],
    *,
    name: str = "model",
    file: str = "config.json",
    side_car: dict[str, Any] | None = None,
    aliases: list[str] | None = None,
    **origin: Any,
) -> CardPart:
    """The plain data of the card a ``config.json`` gives; parameters and errors as for :func:`import_config`."""
    text = _text_fields(data, file)
    family = _family(text)
    quantization = read_quantization(text, side_car, str(Path(file).parent / SIDE_CAR))
    parts = _parts(text, family, quantization)
    unread = sorted([*text.refuse_unknown(), *_wrapper_unread(data, text)])
    _refuse_unmatched(text, quantization)
    inner = data.get("text_config") or data
    provenance = {
        **origin,
        "file": Path(file).name,
        "model_type": text.data["model_type"],
        "fields_read": sorted(text.prefix + field if field in inner else field for field in text.read),
        "fields_unread": unread,
        "fields_assumed": text.assumed,
    }
    return {"schema": SCHEMA, "name": _card_name(name), "aliases": aliases or [], **parts, "provenance": provenance}


def card_from_file(file: Path, data: dict[str, Any] | None = None, **origin: Any) -> CardPart:
    """As :func:`card_from_config`, for a file and the ``hf_quant_config.json`` that lies beside it."""
    beside = file.parent / SIDE_CAR if file.name == "config.json" else file.with_suffix(f".{SIDE_CAR}")
    side_car = read_json(beside) if beside.is_file() else None
    origin.setdefault("name", file.resolve().parent.name if file.name == "config.json" else file.stem)
    return card_from_config(data if data is not None else read_json(file), file=str(file), side_car=side_car, **origin)


def write_card(config: Path, card_file: Path, **origin: Any) -> None:
    """Import a ``config.json`` and write its card; ``origin`` as for :func:`import_config`."""
    card_file.write_text(card_json(card_from_file(config, **origin), str(card_file)) + "\n", encoding="utf-8")


def _card_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("._-")[:100] or "model"


def _text_fields(data: dict[str, Any], file: str) -> ConfigFields:
    """The fields of the text model, with what a wrapper says about it taken along."""
    inner = data.get("text_config")
    if inner is None:
        return ConfigFields(data, file)
    if not isinstance(inner, dict):
        raise InputError("must be a table", key="text_config", file=file)
    merged = dict(inner)
    outer = ConfigFields(data, file)
    for name in ("tie_word_embeddings", "quantization_config", "dtype", "torch_dtype"):
        if not outer.has(name):
            continue
        if merged.get(name) is not None and merged[name] != data[name]:
            raise outer.error(name, f"{str(data[name])[:40]} differs from the one in text_config")
        merged[name] = data[name]
    merged.pop("architectures", None)
    return ConfigFields(merged, file, "text_config.")


def _wrapper_unread(data: dict[str, Any], text: ConfigFields) -> list[str]:
    """Fields of a multimodal wrapper that do not concern its text model; refuses one that might."""
    if not text.prefix:
        return []
    outer = ConfigFields({k: v for k, v in data.items() if not k.startswith(WRAPPER_HARMLESS)}, text.file)
    outer.ignore("text_config", "tie_word_embeddings", "quantization_config", "dtype", "torch_dtype", "vocab_size")
    outer.refuse_unknown()
    return sorted(set(data) - {"text_config"} - text.read)


def _family(text: ConfigFields) -> Family:
    name = text.value("model_type")
    if not isinstance(name, str):
        raise text.error("model_type", "is missing: it says how the other fields are to be read")
    if name not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise UnsupportedModelError(
            f"model type {name[:60]!r} is not modelled (known: {known})", key=f"{text.prefix}model_type", file=text.file
        )
    family = FAMILIES[name]
    architectures = text.value("architectures") or []
    for architecture in architectures if isinstance(architectures, list) else [architectures]:
        if architecture not in family.architectures:
            raise text.unsupported("architectures", f"{str(architecture)[:60]!r} is not the {name} that is modelled")
    return family


def _parts(text: ConfigFields, family: Family, quantization: Quantization) -> dict[str, Any]:
    """The fields of the card that describe the model itself."""
    n_layers = text.whole("num_hidden_layers", most=MAX_LAYERS)
    kinds = _layer_kinds(text, family, quantization, n_layers)
    counts = Counter(kinds)
    rest = quantization.rest
    return {
        "hidden_size": text.count("hidden_size", unit="element"),
        "vocab_size": text.count("vocab_size", unit="token", most=10**8),
        "max_context": text.count("max_position_embeddings", unit="token", most=10**9),
        "tied_embeddings": text.flag("tie_word_embeddings", False),
        "embedding_format": rest,
        "lm_head_format": quantization.lm_head_format,
        "kv_dtype": quantization.kv_dtype or "bf16",
        "layers": [_layer(text, family, kind, count, rest, n_layers) for kind, count in counts.items()],
        "mtp": _mtp(text, family, quantization, kinds[-1], n_layers),
    }


def _layer_kinds(text: ConfigFields, family: Family, quantization: Quantization, n_layers: int) -> list[LayerKind]:
    windows = family.windows(text, n_layers)
    mixture = family.mixture_layers(text, n_layers) if family.mixture_layers is not None else [False] * n_layers
    return [
        LayerKind(windows[layer], mixture[layer], *_formats(text, family, quantization, layer, mixture[layer]))
        for layer in range(n_layers)
    ]


def _formats(
    text: ConfigFields, family: Family, quantization: Quantization, layer: int, mixture: bool
) -> tuple[str, str, str]:
    """Formats of attention, feed-forward (or experts) and shared experts of one layer."""
    modules = family.modules
    feed_forward = modules.experts if mixture else modules.dense
    shared = modules.shared if mixture else ()
    formats = []
    for names, experts in ((modules.attention, False), (feed_forward, mixture), (shared, False)):
        form = quantization.format_of(tuple(f"layers.{layer}.{name}" for name in names), experts=experts)
        if form is None:
            raise text.unsupported("quantization_config", f"layer {layer} has only some of {names[0]}, ... quantised")
        formats.append(form)
    return formats[0], formats[1], formats[2]


def _layer(text: ConfigFields, family: Family, kind: LayerKind, count: int, rest: str, n_layers: int) -> CardPart:
    note = "" if count == n_layers else f"{count} of {n_layers} are of this kind"
    return {
        "count": text.number(count, "layer", "num_hidden_layers", note=note),
        "norms": text.number(2, "norm", note="before attention and before feed-forward"),
        "attention": family.attention(text, kind.window, kind.attention_format),
        "feed_forward": _feed_forward(text, family, kind, rest),
    }


def _feed_forward(text: ConfigFields, family: Family, kind: LayerKind, rest: str) -> CardPart:
    if kind.mixture and family.mixture is not None:
        return family.mixture(text, kind.feed_forward_format, kind.shared_format, rest)
    return family.dense(text, kind.feed_forward_format)


def _mtp(
    text: ConfigFields, family: Family, quantization: Quantization, last: LayerKind, n_layers: int
) -> CardPart | None:
    """Multi-token-prediction layers: a layer like the last one, behind a projection and with three norms more."""
    if family.mtp_field is None or (count := text.zero_or_count(family.mtp_field, unit="layer")) is None:
        return None
    rest = quantization.rest
    kind = LayerKind(last.window, last.mixture, *_formats(text, family, quantization, n_layers, last.mixture))
    layer = {
        "count": count,
        "norms": text.number(5, "norm", note="two of the layer, enorm, hnorm and shared_head.norm"),
        "attention": family.attention(text, kind.window, kind.attention_format),
        "feed_forward": _feed_forward(text, family, kind, rest),
    }
    return {"layers": [layer], "copies_embeddings": True, "projection_format": rest}


def _refuse_unmatched(text: ConfigFields, quantization: Quantization) -> None:
    """A module pattern that met nothing may name something that was not understood."""
    n_layers = int(text.data["num_hidden_layers"])
    for pattern in quantization.unused():
        match = re.match(r"layers\.(\d{1,6})(\.|\*|$)", pattern)
        if match is None or int(match[1]) < n_layers:
            raise text.unsupported("quantization_config", f"it names {pattern[:60]!r}, which no layer has")
