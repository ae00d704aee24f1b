"""The card of a layer from what a family says of it and what the quantisation says of its modules."""

from __future__ import annotations

from collections import Counter

from capplan.cards.hf_family import CardPart, Family, Layer, Modules
from capplan.cards.hf_fields import ConfigFields
from capplan.cards.hf_quantization import Quantization
from capplan.cards.hf_quantization_methods import MOST_IN_A_GROUP
from capplan.cards.weight_formats import weight_format

Formats = tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
"""Part of a layer (``attention``, ``recurrence``, ``feed_forward``, ``shared``) to its matrices and their formats."""


def layer_formats(
    fields: ConfigFields, family: Family, quantization: Quantization, layer: Layer, number: int
) -> Formats:
    """How each matrix of layer ``number`` is stored.

    Raises
    ------
    UnsupportedModelError : one matrix in several formats
    """
    names = family.modules
    parts: dict[str, tuple[Modules, bool]] = {}
    if layer.attention is not None:
        parts["attention"] = (names.attention, False)
    if layer.recurrence is not None:
        parts["recurrence"] = (names.recurrence, False)
    if (feed_forward := layer.feed_forward) is not None:
        mixture = feed_forward["kind"] == "mixture"
        parts["feed_forward"] = (names.experts if mixture else names.dense, mixture)
        if mixture:
            parts["shared"] = (names.shared, False)
            parts["latent"] = (names.latent, False)
    formats = [
        (part, _matrix_formats(fields, quantization, modules, number, experts))
        for part, (modules, experts) in parts.items()
    ]
    _check_groups(fields, layer, dict(formats).get("feed_forward", ()))
    return (*formats, ("rest", (("", quantization.rest),)))


def _check_groups(fields: ConfigFields, layer: Layer, matrices: tuple[tuple[str, str], ...]) -> None:
    """Refuse a group of elements that does not divide the rows of the feed-forward matrices it scales."""
    if (feed_forward := layer.feed_forward) is None:
        return
    rows = {"down": feed_forward["width"]["value"]}
    if "latent_width" not in feed_forward:
        rows |= dict.fromkeys(("gate_up", "up"), fields.whole("hidden_size"))
    for matrix, form in matrices:
        if matrix in rows and rows[matrix] % _group(form):
            problem = f"groups of {_group(form)} do not divide the {rows[matrix]:,} inputs of {matrix} ({form})"
            raise fields.error("quantization_config", problem)


def _group(name: str) -> int:
    """Elements of a row that share a scale; 1 in formats without groups."""
    form = weight_format(name)
    return form.block_inputs if form.block_outputs == 1 and 1 < form.block_inputs <= MOST_IN_A_GROUP else 1


def _matrix_formats(
    fields: ConfigFields, quantization: Quantization, modules: Modules, number: int, experts: bool
) -> tuple[tuple[str, str], ...]:
    formats = {}
    for matrix, names in modules.items():
        form = quantization.format_of(tuple(f"layers.{number}.{name}" for name in names), experts=experts)
        if form is None:
            raise fields.unsupported(
                "quantization_config", f"layer {number} has only some of {names[0]}, ... quantised"
            )
        formats[matrix] = form
    return tuple(formats.items()) or (("", quantization.format_of((), experts=experts) or quantization.rest),)


def layer_card(fields: ConfigFields, layer: Layer, formats: Formats, count: int, n_layers: int) -> CardPart:
    """The card of ``count`` of ``n_layers`` layers that are equal."""
    forms = {part: dict(matrices) for part, matrices in formats}
    note = "" if count == n_layers else f"{count} of {n_layers} are of this kind"
    card: CardPart = {
        "count": fields.number(count, "layer", "num_hidden_layers", note=note),
        "norms": fields.number(layer.norms, "norm", note="of the width of the model, a bias counts as one more"),
        "attention": _attention(layer.attention, forms),
        "recurrence": _recurrence(layer.recurrence, forms),
        "feed_forward": _feed_forward(layer.feed_forward, forms),
        "matrices": [{**matrix, "format": forms["rest"][""]} for matrix in layer.matrices],
        "extra_parameters": layer.extra_parameters,
        "copies": layer.copies,
    }
    if not layer.norms:
        del card["norms"]
    return {key: value for key, value in card.items() if value is not None and value != []}


def _stored(part: CardPart, formats: dict[str, str]) -> CardPart:
    """A part with the format most of its matrices have, and those that differ by name."""
    most = Counter(formats.values()).most_common(1)[0][0]
    others = {matrix: form for matrix, form in formats.items() if form != most}
    return {**part, "format": most, **({"formats": others} if others else {})}


def _attention(part: CardPart | None, forms: dict[str, dict[str, str]]) -> CardPart | None:
    if part is None:
        return None
    own = {matrix: form for matrix, form in forms["attention"].items() if not matrix.startswith("index_")}
    stored = _stored(part, own)
    if (indexer := part.get("indexer")) is not None:
        form = forms["attention"].get("index_query", stored["format"])
        stored["indexer"] = {**indexer, "format": form, "weights_format": forms["rest"][""]}
    return stored


def _recurrence(part: CardPart | None, forms: dict[str, dict[str, str]]) -> CardPart | None:
    if part is None:
        return None
    gates = {"gate_format": forms["rest"][""]} if part["kind"] in ("gated_delta", "kimi_delta") else {}
    return {**_stored(part, forms["recurrence"]), **gates}


def _feed_forward(part: CardPart | None, forms: dict[str, dict[str, str]]) -> CardPart | None:
    """Experts in one format, what every token passes in another, the router in neither.

    Projections around narrower experts that no module names are stored as the shared experts are.
    """
    if part is None:
        return None
    stored = _stored(part, forms["feed_forward"])
    if part["kind"] == "dense":
        return stored
    stored["router_format"] = forms["rest"][""]
    if "shared_width" in part or "dense_width" in part or "latent_width" in part:
        shared = Counter(forms["shared"].values()).most_common(1)[0][0]
        named = {f"shared_{name}": form for name, form in forms["shared"].items() if form != shared}
        named |= {name: form for name, form in forms["latent"].items() if name and form != shared}
        stored["shared_format"] = shared
        if named:
            stored["formats"] = {**stored.get("formats", {}), **named}
    return stored
