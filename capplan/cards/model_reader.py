"""From the plain data of a card to a :class:`~capplan.cards.model.Model`, without the schema's start-up cost.

The reader takes only what is certainly right: builders are called with the card's keys, so a missing or unknown key, a
number without its four parts or with another unit raises. :func:`capplan.cards.model_card.load_model` then lets the
schema say what is wrong in one line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from capplan.cards.kv import kv_element_bytes
from capplan.cards.model import Attention, FeedForward, LayerGroup, Matmul, Model
from capplan.cards.model_layers import dense_feed_forward, gqa_attention, mixture_feed_forward, mla_attention
from capplan.cards.number import KINDS, PARTS, Sources
from capplan.cards.weight_formats import weight_format

SCHEMA = "capplan.model/1"

UNITS: dict[str, tuple[str, float]] = {
    "hidden_size": ("element", 1e7),
    "vocab_size": ("token", 1e8),
    "max_context": ("token", 1e9),
    "count": ("layer", 1e5),
    "norms": ("norm", 100),
    "n_heads": ("head", 1e5),
    "n_kv_heads": ("head", 1e5),
    "head_dim": ("element", 1e7),
    "value_head_dim": ("element", 1e7),
    "window": ("token", 1e9),
    "q_lora_rank": ("element", 1e7),
    "kv_lora_rank": ("element", 1e7),
    "qk_nope_head_dim": ("element", 1e7),
    "qk_rope_head_dim": ("element", 1e7),
    "width": ("element", 1e7),
    "shared_width": ("element", 1e7),
    "n_experts": ("expert", 1e5),
    "top_k": ("expert", 1e5),
}
"""The unit of every number of a card and the most it may be; all are whole and above zero."""

_ATTENTION: dict[str, Callable[..., Attention]] = {"gqa": gqa_attention, "mla": mla_attention}
_FEED_FORWARD: dict[str, Callable[..., FeedForward]] = {"dense": dense_feed_forward, "mixture": mixture_feed_forward}
_PROVENANCE = {
    "repository": str, "file": str, "url": str, "commit": str, "retrieved_from": str, "model_type": str,
    "fields_read": list, "fields_unread": list, "fields_assumed": dict, "notes": list,
}  # fmt: skip


def model_from_data(data: Mapping[str, Any], file: str = "") -> Model:
    """The model a card describes.

    Parameters
    ----------
    data : a card as parsed from its file
    file : where it came from

    Returns
    -------
    model : with the sources of its numbers

    Raises
    ------
    KeyError, TypeError, ValueError : the card is not certainly right; its schema says what is wrong
    """
    values = {key: value for key, value in data.items() if value is not None}
    if values.pop("schema") != SCHEMA:
        raise ValueError("another schema")
    return _model(file, Sources(data), **values)


def _model(
    file: str,
    sources: Sources,
    *,
    name: str,
    hidden_size: Any,
    vocab_size: Any,
    max_context: Any,
    tied_embeddings: bool,
    layers: list[dict[str, Any]],
    provenance: dict[str, Any],
    aliases: list[str] | None = None,
    embedding_format: str = "bf16",
    lm_head_format: str = "bf16",
    kv_dtype: str = "bf16",
    mtp: dict[str, Any] | None = None,
) -> Model:
    hidden, vocab = _count("hidden_size", hidden_size), _count("vocab_size", vocab_size)
    kv_element_bytes(kv_dtype)
    _require(isinstance(name, str) and type(tied_embeddings) is bool and bool(layers))
    _require(all(value is None or type(value) is _PROVENANCE[key] for key, value in provenance.items()))
    return Model(
        name=name,
        hidden_size=hidden,
        vocab_size=vocab,
        max_context=_count("max_context", max_context),
        layers=tuple(_group(hidden, (), **layer) for layer in layers),
        embedding=Matmul("embedding", vocab, hidden, "row", weight_format(embedding_format)),
        lm_head=Matmul("lm_head", hidden, vocab, "column", weight_format(lm_head_format)),
        tied_embeddings=tied_embeddings,
        norm_parameters=hidden,
        mtp_layers=_mtp_layers(hidden, **mtp) if mtp is not None else (),
        mtp_copies_embeddings=mtp is not None and mtp["copies_embeddings"],
        kv_dtype=kv_dtype,
        aliases=_texts(aliases or []),
        fields_read=_texts(provenance.get("fields_read") or []),
        fields_unread=_texts(provenance.get("fields_unread") or []),
        sources=sources,
        provenance={key: value for key, value in provenance.items() if key not in ("fields_read", "fields_unread")},
        file=file,
    )


def _mtp_layers(
    hidden: int, *, layers: list[dict[str, Any]], copies_embeddings: bool, projection_format: str = "bf16"
) -> tuple[LayerGroup, ...]:
    """Multi-token-prediction layers, each behind a projection of twice the model's width to once."""
    _require(type(copies_embeddings) is bool)
    projection = Matmul("eh_proj", 2 * hidden, hidden, "replicated", weight_format(projection_format))
    return tuple(_group(hidden, (projection,), **layer) for layer in layers)


def _group(
    hidden: int,
    matmuls: tuple[Matmul, ...],
    *,
    count: Any,
    norms: Any,
    attention: dict[str, Any] | None = None,
    feed_forward: dict[str, Any] | None = None,
) -> LayerGroup:
    return LayerGroup(
        count=_count("count", count),
        attention=_attention(hidden, **attention) if attention is not None else None,
        feed_forward=_feed_forward(hidden, **feed_forward) if feed_forward is not None else None,
        other_parameters=_count("norms", norms) * hidden,
        matmuls=matmuls,
    )


def _attention(hidden: int, *, kind: str, **values: Any) -> Attention:
    attention = _ATTENTION[kind](hidden, **_values(values))
    _require(attention.n_heads % attention.n_kv_heads == 0)
    return attention


def _feed_forward(hidden: int, *, kind: str, **values: Any) -> FeedForward:
    if kind == "mixture":
        values.setdefault("router_format", "bf16")
    feed_forward = _FEED_FORWARD[kind](hidden, **_values(values))
    _require(feed_forward.top_k <= feed_forward.n_experts)
    return feed_forward


def _values(values: dict[str, Any]) -> dict[str, Any]:
    return {key: _value(key, value) for key, value in values.items() if value is not None}


def _value(key: str, value: Any) -> Any:
    if key in UNITS:
        return _count(key, value)
    if key.endswith("format"):
        return weight_format(value)
    _require(type(value) is bool)
    return value


def _count(key: str, number: Any) -> int:
    """The value of a number that has all its parts, the unit of its key and a whole value in range."""
    unit, most = UNITS[key]
    value, source = number["value"], number["source"]
    _require(number.keys() == PARTS and number["unit"] == unit and number["kind"] in KINDS)
    _require(isinstance(source, str) and 0 < len(source) <= 400 and type(value) is int and 1 <= value <= most)
    return int(value)


def _texts(values: Any) -> tuple[str, ...]:
    _require(type(values) is list and all(isinstance(value, str) for value in values))
    return tuple(values)


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError("not certainly right")
