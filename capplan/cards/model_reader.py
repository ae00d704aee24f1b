"""From the plain data of a card to a :class:`~capplan.cards.model.Model`, without the schema's start-up cost.

The reader takes only what is certainly right: builders are called with the card's keys, so a missing or unknown key, a
number without its four parts or with another unit raises. :func:`capplan.cards.model_card.load_model` then lets the
schema say what is wrong in one line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from capplan.cards import model_layers as build
from capplan.cards import model_recurrence as recurrences
from capplan.cards.kv import kv_element_bytes
from capplan.cards.model import Attention, FeedForward, LayerGroup, Matmul, Model, Recurrence
from capplan.cards.number import KINDS, PARTS, Sources
from capplan.cards.weight_formats import weight_format

SCHEMA = "capplan.model/1"

UNITS: dict[str, tuple[str, float]] = {
    "hidden_size": ("element", 1e7),
    "vocab_size": ("token", 1e8),
    "max_context": ("token", 1e9),
    "count": ("layer", 1e5),
    "norms": ("norm", 100),
    "copies": ("layer", 1e5),
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
    "dense_width": ("element", 1e7),
    "latent_width": ("element", 1e7),
    "input_width": ("element", 1e7),
    "query_width": ("element", 1e7),
    "n_experts": ("expert", 1e5),
    "top_k": ("expert", 1e5),
    "zero_experts": ("expert", 1e5),
    "selected_tokens": ("token", 1e9),
    "compress_ratio": ("token", 1e7),
    "output_groups": ("head", 1e5),
    "output_rank": ("element", 1e7),
    "norm_elements": ("parameter", 1e9),
    "other_parameters": ("parameter", 1e12),
    "extra_parameters": ("parameter", 1e12),
    "final_norms": ("norm", 100),
    "embedding_rows": ("token", 1e8),
    "embedding_width": ("element", 1e7),
    "inputs": ("element", 1e8),
    "outputs": ("element", 1e8),
    "inner_size": ("element", 1e7),
    "state_size": ("element", 1e7),
    "n_groups": ("head", 1e5),
    "time_step_rank": ("element", 1e7),
    "conv_kernel": ("token", 1e5),
    "key_heads": ("head", 1e5),
    "value_heads": ("head", 1e5),
    "key_head_dim": ("element", 1e7),
}
"""The unit of every number of a card and the most it may be; all are whole and, with few exceptions, above zero."""

MAY_BE_ZERO = frozenset({"final_norms"})

_ATTENTION: dict[str, Callable[..., Attention]] = {
    "gqa": build.gqa_attention,
    "mla": build.mla_attention,
    "cross": build.cross_attention,
    "compressed": build.compressed_attention,
}
_RECURRENCE: dict[str, Callable[..., Recurrence]] = {
    "lightning": recurrences.lightning_attention,
    "gated_delta": recurrences.gated_delta,
    "kimi_delta": recurrences.kimi_delta,
    "mamba": recurrences.mamba,
    "mamba2": recurrences.mamba2,
    "short_conv": recurrences.short_convolution,
}
_FEED_FORWARD: dict[str, Callable[..., FeedForward]] = {
    "dense": build.dense_feed_forward,
    "mixture": build.mixture_feed_forward,
}
_PROVENANCE = {
    "repository": str, "file": str, "url": str, "commit": str, "retrieved_from": str, "model_type": str,
    "fields_read": list, "fields_unread": list, "fields_assumed": dict, "assumed": dict, "notes": list,
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
    embedding_rows: Any = None,
    embedding_width: Any = None,
    final_norms: Any = None,
    other_parameters: Any = None,
    lm_head_bias: bool = False,
    look_ups: list[dict[str, Any]] | None = None,
    projections: list[dict[str, Any]] | None = None,
) -> Model:
    hidden, vocab = _count("hidden_size", hidden_size), _count("vocab_size", vocab_size)
    rows = _optional("embedding_rows", embedding_rows, vocab)
    width = _optional("embedding_width", embedding_width, hidden)
    kv_element_bytes(kv_dtype)
    _require(isinstance(name, str) and type(tied_embeddings) is type(lm_head_bias) is bool and bool(layers))
    _require(all(value is None or type(value) is _PROVENANCE[key] for key, value in provenance.items()))
    return Model(
        name=name,
        hidden_size=hidden,
        vocab_size=vocab,
        max_context=_count("max_context", max_context),
        layers=tuple(_group(hidden, (), **layer) for layer in layers),
        embedding=Matmul("embedding", rows, width, "row", weight_format(embedding_format)),
        lm_head=Matmul("lm_head", width, vocab, "column", weight_format(lm_head_format)),
        tied_embeddings=tied_embeddings,
        norm_parameters=_optional("final_norms", final_norms, 1) * hidden,
        mtp_layers=_mtp_layers(hidden, **mtp) if mtp is not None else (),
        mtp_copies_embeddings=mtp is not None and mtp["copies_embeddings"],
        look_ups=tuple(_matrix(**table) for table in look_ups or ()),
        projections=tuple(_matrix(**matrix) for matrix in projections or ()),
        other_parameters=_optional("other_parameters", other_parameters, 0),
        lm_head_bias=lm_head_bias,
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
    norms: Any = None,
    attention: dict[str, Any] | None = None,
    recurrence: dict[str, Any] | None = None,
    feed_forward: dict[str, Any] | None = None,
    matrices: list[dict[str, Any]] | None = None,
    extra_parameters: Any = None,
    copies: Any = None,
) -> LayerGroup:
    layers, mixer = _count("count", count), _recurrence(hidden, **recurrence) if recurrence is not None else None
    stored = _optional("copies", copies, 0)
    _require(stored <= layers)
    return LayerGroup(
        count=layers,
        attention=_attention(hidden, **attention) if attention is not None else None,
        feed_forward=_feed_forward(hidden, **feed_forward) if feed_forward is not None else None,
        other_parameters=_optional("norms", norms, 0) * hidden,
        matmuls=matmuls + tuple(_matrix(**matrix) for matrix in matrices or ()),
        state_bytes=mixer.state_bytes if mixer is not None else 0.0,
        recurrence=mixer,
        extra_parameters=_optional("extra_parameters", extra_parameters, 0),
        weight_copies=stored,
    )


def _attention(hidden: int, *, kind: str, indexer: dict[str, Any] | None = None, **values: Any) -> Attention:
    formats = values.pop("formats", None)
    attention = _ATTENTION[kind](hidden, **_values(values), **_indexer(hidden, indexer))
    _require(attention.n_heads % attention.n_kv_heads == 0)
    return replace(attention, matmuls=_in_formats(attention.matmuls, formats))


def _indexer(hidden: int, indexer: dict[str, Any] | None) -> dict[str, Any]:
    if indexer is None:
        return {}
    return {"indexer": build.token_indexer(hidden, **_values(indexer))}


def _recurrence(hidden: int, *, kind: str, **values: Any) -> Recurrence:
    formats, state_dtype = values.pop("formats", None), values.pop("state_dtype", None)
    options = {} if state_dtype is None else {"state_dtype": state_dtype}
    if kind in ("gated_delta", "kimi_delta"):
        values.setdefault("gate_format", "bf16")
    mixer = _RECURRENCE[kind](hidden, **_values(values), **options)
    return replace(mixer, matmuls=_in_formats(mixer.matmuls, formats))


def _feed_forward(hidden: int, *, kind: str, **values: Any) -> FeedForward:
    formats = values.pop("formats", None)
    if kind == "mixture":
        values.setdefault("router_format", "bf16")
    feed_forward = _FEED_FORWARD[kind](hidden, **_values(values))
    _require(feed_forward.top_k <= feed_forward.n_experts)
    return replace(
        feed_forward,
        matmuls=_in_formats(feed_forward.matmuls, formats),
        expert_matmuls=_in_formats(feed_forward.expert_matmuls, formats),
    )


def _matrix(*, name: str, inputs: Any, outputs: Any, format: str = "bf16") -> Matmul:
    _require(isinstance(name, str) and 0 < len(name) <= 40)
    return Matmul(name, _count("inputs", inputs), _count("outputs", outputs), "replicated", weight_format(format))


def _in_formats(matmuls: tuple[Matmul, ...], formats: dict[str, str] | None) -> tuple[Matmul, ...]:
    """Matrices with a format of their own, by name."""
    if not formats:
        return matmuls
    return tuple(
        replace(matmul, format=weight_format(formats[matmul.name])) if matmul.name in formats else matmul
        for matmul in matmuls
    )


def _values(values: dict[str, Any]) -> dict[str, Any]:
    return {key: _value(key, value) for key, value in values.items() if value is not None}


def _value(key: str, value: Any) -> Any:
    if key in UNITS:
        return _count(key, value)
    if key.endswith("format"):
        return weight_format(value)
    _require(type(value) is bool)
    return value


def _optional(key: str, number: Any, default: int) -> int:
    return default if number is None else _count(key, number)


def _count(key: str, number: Any) -> int:
    """The value of a number that has all its parts, the unit of its key and a whole value in range."""
    unit, most = UNITS[key]
    value, source = number["value"], number["source"]
    _require(number.keys() == PARTS and number["unit"] == unit and number["kind"] in KINDS)
    _require(isinstance(source, str) and 0 < len(source) <= 400)
    _require(type(value) is int and (key not in MAY_BE_ZERO) <= value <= most)
    return int(value)


def _texts(values: Any) -> tuple[str, ...]:
    _require(type(values) is list and all(isinstance(value, str) for value in values))
    return tuple(values)


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError("not certainly right")
