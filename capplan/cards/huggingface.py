"""A model card from a Hugging Face ``config.json``.

Every field is either read, known to be harmless, or stops the import: a number from a config that was only half
understood would look as good as a right one.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from capplan.cards.hf_card import layer_card, layer_formats
from capplan.cards.hf_families import FAMILIES, GENERATORS, OVERRULED, RENAMED, WRAPPED, WRAPPERS, CardPart, Family
from capplan.cards.hf_family import Layer
from capplan.cards.hf_fields import ConfigFields, beside_text
from capplan.cards.hf_quantization import Quantization, read_quantization
from capplan.cards.model import Model
from capplan.cards.model_card import card_json, model_from_card
from capplan.cards.model_reader import SCHEMA
from capplan.cards.store import read_json
from capplan.errors import InputError, UnsupportedModelError

SIDE_CAR = "hf_quant_config.json"
MAX_LAYERS = 2_000
TEXT_PARTS = ("text_config", "language_config", "llm_config")
"""What wrappers call their text model."""

_SHARED = (
    "tie_word_embeddings", "quantization_config", "compression_config", "dtype", "torch_dtype", "expert_dtype",
    "vocab_size",
)  # fmt: skip
"""Fields a wrapper may give in place of its text model."""

_CONTEXT = (
    "max_position_embeddings", "max_seq_len", "max_sequence_length", "seq_length", "model_max_length", "n_positions",
    "max_context_length",
)  # fmt: skip
"""What configs call the longest sequence."""


class _Text(NamedTuple):
    """The fields of the text model and where in the file they sit."""

    fields: ConfigFields
    part: str | None


def import_config(
    data: dict[str, Any],
    *,
    name: str = "model",
    file: str = "config.json",
    side_car: dict[str, Any] | None = None,
    assume: Mapping[str, Any] | None = None,
    **origin: Any,
) -> Model:
    """The model a ``config.json`` describes.

    Parameters
    ----------
    data : the parsed file; the text part may sit in ``text_config``
    name : name of the model
    file : named in errors and in the provenance
    side_car : the parsed ``hf_quant_config.json``, where there is one
    assume : fields the user answers for, by name (``text_config.`` may be left out): they replace those of the file,
        count as understood and are recorded
    origin : ``repository``, ``url``, ``commit``, ``retrieved_from``, ``notes``, ``aliases``

    Returns
    -------
    model : every number with the field it came from

    Raises
    ------
    UnsupportedModelError : a model type, an architecture or a field that is not modelled; names field, value, effect
    InputError : a field missing or out of range
    """
    card = card_from_config(data, name=name, file=file, side_car=side_car, assume=assume, **origin)
    return model_from_card(card, file)


def card_from_config(
    data: dict[str, Any],
    *,
    name: str = "model",
    file: str = "config.json",
    side_car: dict[str, Any] | None = None,
    assume: Mapping[str, Any] | None = None,
    aliases: list[str] | None = None,
    **origin: Any,
) -> CardPart:
    """The plain data of the card a ``config.json`` gives; parameters and errors as for :func:`import_config`."""
    given = dict(assume or {})
    text = _text_fields(_assumed(data, given), file)
    fields = text.fields
    fields.read.update(name.removeprefix(fields.prefix) for name in given)
    if text.part is not None:
        _refuse_other_wrapper(data, fields, given)
    family = _family(fields, answered="model_type" in {key.rpartition(".")[2] for key in given})
    quantization = read_quantization(fields, side_car, str(Path(file).parent / SIDE_CAR))
    parts = _parts(fields, family, quantization)
    ignored = [fields.prefix + name for name in fields.ignored]
    unread = sorted({*fields.refuse_unknown(), *ignored, *_wrapper_unread(data, text, given)})
    _refuse_unmatched(fields, quantization)
    _refuse_idle(data, text, given)
    provenance = {
        **origin,
        "file": Path(file).name,
        "model_type": fields.data["model_type"],
        "fields_read": sorted(_fields_read(data, text)),
        "fields_unread": unread,
        "fields_assumed": fields.assumed,
        "assumed": {key: _short(value) for key, value in given.items()},
    }
    if notes := [*origin.get("notes", []), *_notes(fields, family)]:
        provenance["notes"] = notes
    return {"schema": SCHEMA, "name": _card_name(name), "aliases": aliases or [], **parts, "provenance": provenance}


def _assumed(data: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The config with the user's answers in the place of its own."""
    if not given:
        return data
    changed = {
        key: dict(value) if key in TEXT_PARTS and isinstance(value, dict) else value for key, value in data.items()
    }
    for key, value in given.items():
        part, _, inner = key.partition(".")
        if (inner or key) in _SHARED and _part_of(changed) is not None:
            changed.pop(inner or key, None)
        place = changed[part] if inner and isinstance(changed.get(part), dict) else _part_of(changed) or changed
        place[inner if inner and place is changed.get(part) else key] = value
    return changed


def _refuse_idle(data: dict[str, Any], text: _Text, given: dict[str, Any]) -> None:
    """An answer about a field that nothing reads is a slip of the pen, unless it answers for one that is there."""
    fields, tables = text.fields, [table for table in (data, _part_of(data)) if table is not None]
    for key, value in given.items():
        name = key.rpartition(".")[2]
        answers = any(name in table and value in (None, table[name]) for table in tables)
        if answers or name in fields.asked or name in _SHARED:
            continue
        near = difflib.get_close_matches(name[:60], sorted(fields.asked), n=1, cutoff=0.5)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"has no effect on this model{meant}", key=f"--assume {key[:60]}", file=fields.file)


def _part_of(data: dict[str, Any]) -> dict[str, Any] | None:
    return next((data[part] for part in TEXT_PARTS if isinstance(data.get(part), dict)), None)


def _short(value: Any) -> str:
    return str(value)[:200] or "''"


def _fields_read(data: dict[str, Any], text: _Text) -> list[str]:
    inner = data if text.part is None else data.get(text.part) or {}
    read = text.fields.read - text.fields.ignored
    return [text.fields.prefix + field if field in inner else field for field in read]


def _notes(fields: ConfigFields, family: Family) -> list[str]:
    """What the model has that is not counted."""
    held = [name for name in family.mtp_unknown if fields.value(name)]
    return [f"multi-token-prediction layers ({', '.join(held)}) are not modelled and not counted"] if held else []


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


def _text_fields(data: dict[str, Any], file: str) -> _Text:
    """The fields of the text model, with what a wrapper says about it taken along."""
    part = next((name for name in TEXT_PARTS if data.get(name) is not None), None)
    if part is None:
        return _Text(_flat_fields(data, file), None)
    inner = data[part]
    if not isinstance(inner, dict):
        raise InputError("must be a table", key=part, file=file)
    merged, outer = dict(inner), ConfigFields(data, file)
    for name in _SHARED:
        if not outer.has(name):
            continue
        if merged.get(name) is not None and merged[name] != data[name]:
            raise outer.error(name, f"{str(data[name])[:40]} differs from the one in {part}")
        merged[name] = data[name]
    merged.pop("architectures", None)
    if isinstance(wrapper := data.get("model_type"), str):
        inner_type = OVERRULED.get(wrapper) or merged.get("model_type") or WRAPPED.get(wrapper)
        merged["model_type"] = inner_type
    return _Text(ConfigFields(merged, file, f"{part}."), part)


def _refuse_other_wrapper(data: dict[str, Any], text: ConfigFields, given: dict[str, Any]) -> None:
    """A wrapper of a class that does not generate text is refused; of one that is not known, a note says so."""
    outer = ConfigFields(data, text.file)
    names = data.get("architectures") or []
    for name in names if isinstance(names, list) else [names]:
        if not str(name).endswith(GENERATORS) and "architectures" not in given:
            raise outer.unsupported("architectures", f"{str(name)[:60]!r} is no class known to wrap a text model")
    wrapper = data.get("model_type")
    if not isinstance(wrapper, str) or wrapper not in WRAPPERS:
        shown = f"the wrapper {str(wrapper)[:60]!r} is not known" if wrapper else "the wrapper does not say what it is"
        text.assumed[f"{text.prefix}model_type"] = (
            f"{text.data['model_type']}: the text part alone is modelled; {shown}"
        )


def _flat_fields(data: dict[str, Any], file: str) -> ConfigFields:
    """A config whose text fields sit beside those of other parts, as early vision models had them."""
    fields = ConfigFields(data, file)
    if isinstance(data.get("vision_config"), dict):
        fields.beside = True
    return fields


def _wrapper_unread(data: dict[str, Any], text: _Text, given: dict[str, Any]) -> list[str]:
    """Fields of a multimodal wrapper that do not concern its text model; refuses one that might."""
    if text.part is None:
        return []
    outer = ConfigFields({k: v for k, v in data.items() if not beside_text(k)}, text.fields.file)
    same = [name for name, value in data.items() if name in text.fields.data and text.fields.data[name] == value]
    outer.ignore(text.part, *_SHARED, *given, *same)
    outer.refuse_unknown()
    return sorted(set(data) - {text.part, *_SHARED})


def _family(text: ConfigFields, *, answered: bool) -> Family:
    name = text.value("model_type")
    if not isinstance(name, str):
        raise text.error("model_type", "is missing: it says how the other fields are to be read")
    if name not in FAMILIES:
        near = ", ".join(difflib.get_close_matches(name[:60], FAMILIES, n=5, cutoff=0.4)) or "none is like it"
        problem = f"model type {name[:60]!r} is not modelled (known: {len(FAMILIES)}, nearest: {near})"
        raise UnsupportedModelError(problem, key=f"{text.prefix}model_type", file=text.file)
    architectures = text.value("architectures") or []
    architectures = architectures if isinstance(architectures, list) else [architectures]
    family = FAMILIES[
        next((RENAMED[item] for item in architectures if isinstance(item, str) and item in RENAMED), name)
    ]
    text.synonyms = family.synonyms
    # A part inside a wrapper is written without what equals the defaults of its class.
    text.defaults = family.defaults if text.prefix else {}
    for architecture in architectures:
        if architecture not in family.architectures and not answered:
            raise text.unsupported("architectures", f"{str(architecture)[:60]!r} is not the {name} that is modelled")
    return family


def _parts(text: ConfigFields, family: Family, quantization: Quantization) -> dict[str, Any]:
    """The fields of the card that describe the model itself."""
    n_layers = _n_layers(text)
    layers = family.layers(text, n_layers)
    formats = [layer_formats(text, family, quantization, layer, number) for number, layer in enumerate(layers)]
    kinds = Counter(zip(layers, formats, strict=True))
    total = sum(kinds.values())
    rest = quantization.rest
    return {
        "hidden_size": text.count("hidden_size", unit="element"),
        "vocab_size": text.count("vocab_size", unit="token", most=10**8),
        "max_context": _max_context(text, family),
        "tied_embeddings": text.flag("tie_word_embeddings", family.tied),
        "embedding_format": rest,
        "lm_head_format": quantization.lm_head_format,
        "kv_dtype": quantization.kv_dtype or "bf16",
        **(family.ends(text) if family.ends is not None else {}),
        "layers": [layer_card(text, layer, forms, count, total) for (layer, forms), count in kinds.items()],
        "mtp": _mtp(text, family, quantization, layers[-1], n_layers),
    }


def _n_layers(text: ConfigFields) -> int:
    """The number of layers, or where only their kinds are listed how many there are."""
    kinds = text.data.get("layers_block_type")
    if text.has("num_hidden_layers") or not isinstance(kinds, list) or not 0 < len(kinds) <= MAX_LAYERS:
        return text.whole("num_hidden_layers", most=MAX_LAYERS)
    text.value("layers_block_type")
    return len(kinds)


def _max_context(text: ConfigFields, family: Family) -> CardPart:
    names = [name for name in _CONTEXT if text.has(name)]
    if names:
        # A further name is the length of a tokenizer or of training, which need not be that of the positions.
        text.ignore(*names[1:])
        return text.count(names[0], unit="token", most=10**9)
    default = family.defaults.get("max_position_embeddings")
    if default is None:
        return text.count(*_CONTEXT, unit="token", most=10**9)
    text.assume("max_position_embeddings", default)
    return text.number(default, "token", note="max_position_embeddings: default of the class")


def _mtp(text: ConfigFields, family: Family, quantization: Quantization, last: Layer, n_layers: int) -> CardPart | None:
    """Multi-token-prediction layers: a layer like the last one, behind a projection and with three norms more."""
    for name in family.mtp_unknown:
        text.ignore(name)
    if family.mtp is None or (count := text.zero_or_count(family.mtp[0], unit="layer")) is None:
        return None
    card = layer_card(text, last, layer_formats(text, family, quantization, last, n_layers), 1, 1)
    note = f"{last.norms} of the layer, enorm, hnorm and shared_head.norm"
    card = {**card, "count": count, "norms": text.number(last.norms + 3, "norm", note=note)}
    return {"layers": [card], "copies_embeddings": family.mtp[1], "projection_format": quantization.rest}


def _refuse_unmatched(text: ConfigFields, quantization: Quantization) -> None:
    """A module pattern that met nothing may name something that was not understood."""
    n_layers = _n_layers(text)
    for pattern in quantization.unused():
        match = re.match(r"layers\.(\d{1,6})(\.|\*|$)", pattern)
        if match is None or int(match[1]) < n_layers:
            raise text.unsupported("quantization_config", f"it names {pattern[:60]!r}, which no layer has")
