"""The attention of a model by what its layers cache: kinds of layers, and all of it in a few words."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from capplan.cards.model import Attention, Model


def attention_kinds(model: Model) -> Counter[Attention]:
    """Layers by what they cache; how their weights are stored does not matter here."""
    kinds: Counter[Attention] = Counter()
    for group in model.layers:
        if (attention := group.attention) is not None:
            indexer = attention.indexer
            if indexer is not None:
                indexer = replace(indexer, matmuls=(), other_parameters=0)
            plain = replace(attention, matmuls=(), other_parameters=0, norm_parameters=0, indexer=indexer)
            kinds[plain] += group.count
    return kinds


def attention_summary(model: Model) -> str:
    """The attention of a model in a few words: ``MLA 512+64``, ``GQA 8 x 128, 18 of 36 layers slide over 128``."""
    kinds = attention_kinds(model)
    names = dict.fromkeys(_name(kind) for kind in kinds)
    notes = [f"{count} of {model.n_layers} layers {note}" for kind, count in kinds.items() for note in _notes(kind)]
    recurrent = Counter(_RECURRENT[group.recurrence.kind] for group in _with_state(model) for _ in range(group.count))
    notes += [f"{count} of {model.n_layers} layers {name}" for name, count in recurrent.items()]
    return ", ".join([*names, *notes]) or "none"


_RECURRENT = {
    "lightning": "lightning attention",
    "gated_delta": "gated delta rule",
    "kimi_delta": "Kimi delta attention",
    "mamba": "Mamba",
    "mamba2": "Mamba-2",
    "short_conv": "short convolution",
}


def _with_state(model: Model) -> list[Any]:
    return [group for group in model.layers if group.recurrence is not None]


def _notes(kind: Attention) -> list[str]:
    notes = [f"slide over {kind.window:,}"] if kind.window is not None else []
    if kind.compress_ratio:
        notes.append(f"keep one entry per {kind.compress_ratio} tokens")
    if kind.selected_tokens:
        chosen = "" if kind.indexer is not None else " another chose"
        notes.append(f"read {kind.selected_tokens:,} {'entries' if kind.compress_ratio else 'tokens'}{chosen}")
    if not kind.stores_kv:
        notes.append("read the cache of another")
    return notes


def _name(kind: Attention) -> str:
    if kind.kind == "mla":
        return f"MLA {kind.kv_lora_rank}+{kind.qk_rope_head_dim}"
    if kind.kind == "compressed":
        return f"compressed {kind.head_dim}"
    if kind.kind == "cross":
        return f"cross-attention {kind.n_kv_heads} x {kind.head_dim}"
    shared = {kind.n_heads: "MHA", 1: "MQA"}.get(kind.n_kv_heads, "GQA")
    widths = f"{kind.head_dim}" if kind.head_dim == kind.value_head_dim else f"{kind.head_dim}/{kind.value_head_dim}"
    return f"{shared} {kind.n_kv_heads} x {widths}"
