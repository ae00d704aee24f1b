"""The chain of named quantities behind the KV cache of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capplan.cards.kv import kv_bytes, kv_width_bytes, layer_kv_bytes_per_token
from capplan.cards.kv_summary import attention_kinds
from capplan.cards.model import Attention, Model
from capplan.cards.model_totals import check_context
from capplan.formulas import kv_cache
from capplan.quantities.chain import Chain

_FULL, _WINDOW = "kv_bytes_per_token_full_layers", "kv_bytes_per_token_window_layers"


def build_kv_chain(model: Model, context: Any, kv_dtype: str | None, overrides: Mapping[str, Any] | None) -> Chain:
    """The chain of :func:`capplan.cards.kv.kv_chain`."""
    check_context(context)
    dtype = model.kv_dtype if kv_dtype is None else kv_dtype
    chain = Chain(overrides, record=True)
    kinds = attention_kinds(model)
    full = _layers(chain, _FULL, {kind: n for kind, n in kinds.items() if kind.window is None}, dtype)
    slides = _layers(chain, _WINDOW, {kind: n for kind, n in kinds.items() if kind.window is not None}, dtype)
    state = chain.given("state_bytes_per_sequence", model.state_bytes_per_sequence, "model card")
    parts = {"full_layers": full, "window_layers": slides}
    growth = chain.derive("kv_bytes_per_token", kv_cache.summed_kv_bytes_per_token, **parts)
    windows = {kind.window for kind in kinds if kind.window is not None}
    if len(windows) > 1 or any(kind.compress_ratio for kind in kinds):
        chain.derive("kv_bytes_per_sequence", kv_bytes, model=model, context=context, kv_dtype=dtype)
        return chain
    chain.derive(
        "kv_bytes_per_sequence",
        kv_cache.sequence_kv_bytes,
        context_tokens=context,
        kv_bytes_per_token=growth,
        window_kv_bytes_per_token=slides,
        window_tokens=windows.pop() if windows else None,
        state_bytes=state,
    )
    return chain


def _layers(chain: Chain, name: str, kinds: dict[Attention, int], kv_dtype: str) -> Any:
    """Bytes a token takes in all layers of some kinds, by the formula of the kind where there is one kind only."""
    kinds = {kind: count for kind, count in kinds.items() if kind.stores_kv and kind.kind != "cross"}
    if not kinds:
        return 0.0
    if len(kinds) > 1 or any(kind.indexer is not None or kind.kind == "compressed" for kind in kinds):
        parts = {
            f"kind_{index}": count * layer_kv_bytes_per_token(kind, kv_dtype)
            for index, (kind, count) in enumerate(kinds.items(), 1)
        }
        return chain.derive(name, kv_cache.summed_kv_bytes_per_token, **parts)
    kind, count = next(iter(kinds.items()))
    formula, inputs = _formula(kind, count, kv_dtype)
    return chain.derive(name, formula, **inputs)


def _formula(kind: Attention, n_layers: int, kv_dtype: str) -> tuple[Any, dict[str, Any]]:
    latent = {"kv_lora_rank": kind.kv_lora_rank, "qk_rope_head_dim": kind.qk_rope_head_dim}
    if kv_dtype == "fp8_ds_mla" and kind.kind == "mla":
        return kv_cache.mla_fp8_layout_bytes_per_token, {"n_layers": n_layers, **latent}
    width = {"bytes_per_element": kv_width_bytes(kv_dtype)}
    if kind.kind == "mla":
        return kv_cache.mla_kv_bytes_per_token, {"n_layers": n_layers, **latent, **width}
    heads = {"n_kv_heads": kind.n_kv_heads, "head_dim": kind.head_dim, "value_head_dim": kind.value_head_dim}
    return kv_cache.gqa_kv_bytes_per_token, {"n_layers": n_layers, **heads, **width}
