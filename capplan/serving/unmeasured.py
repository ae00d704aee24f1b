"""Kernels whose times come from another engine, or from no measurement."""

from __future__ import annotations

from collections.abc import Iterator

from capplan.cards.engine import Engine
from capplan.cards.model import Model
from capplan.serving.sparse_plan import is_sparse

_MEASURED_SCANS = frozenset({"gated_delta", "kimi_delta", "short_conv"})
_RECURRENT_ENGINES = ("none", "vllm")
_SPARSE_ENGINES = ("none", "vllm", "sglang")


def unmeasured_kernels(model: Model, engine: Engine | str | None) -> Iterator[str]:
    """What the time of a model rests on beyond its cards, one line each.

    Parameters
    ----------
    model : whose layers run
    engine : that runs them; None for bare kernels
    """
    name = engine.name if isinstance(engine, Engine) else (engine or "none").partition("@")[0].lower()
    kinds = {group.recurrence.kind for group in model.layers if group.recurrence is not None}
    if unknown := kinds - _MEASURED_SCANS:
        yield f"scans of {', '.join(sorted(unknown))} layers have not been measured in public"
    if kinds & _MEASURED_SCANS and not name.startswith(_RECURRENT_ENGINES):
        yield f"recurrent layers take the time of vLLM's kernels, not of {name}'s (docs/step-time.md)"
    sparse = any(is_sparse(group.attention) for group in model.layers if group.attention is not None)
    if sparse and not name.startswith(_SPARSE_ENGINES):
        yield f"sparse attention takes the time of vLLM's and SGLang's kernels, not of {name}'s (docs/step-time.md)"
