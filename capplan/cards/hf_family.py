"""What a model family is to the importer: the layers its fields describe, and what its checkpoints call their modules.

A family is one function from the fields of a config to a list of layers, one entry a layer. Layers that are equal are
the same object; formats are filled in by :mod:`capplan.cards.huggingface`, which knows how each module is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from capplan.cards.hf_fields import ConfigFields

CardPart = dict[str, Any]
"""The plain data of a part of a card; see :mod:`capplan.cards.model_reader`."""

_Kind = TypeVar("_Kind", bound=Hashable)

Modules = Mapping[str, tuple[str, ...]]
"""Name of a matrix on a card to the modules of a layer that make it up."""


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer without formats; ``norms`` counts vectors of the model's width (a norm with bias is two)."""

    attention: CardPart | None = None
    feed_forward: CardPart | None = None
    recurrence: CardPart | None = None
    norms: int = 2
    matrices: tuple[CardPart, ...] = ()
    extra_parameters: CardPart | None = None
    copies: CardPart | None = None


LLAMA_ATTENTION: Modules = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
}


def gated(prefix: str, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> Modules:
    """The modules of a gated feed-forward block."""
    gate, up, down = (f"{prefix}.{name}" for name in names)
    return {"gate_up": (gate, up), "down": (down,)}


@dataclass(frozen=True)
class ModuleNames:
    """What checkpoints of the family call the matrices of a layer, to tell which a quantiser left out."""

    attention: Modules = field(default_factory=lambda: LLAMA_ATTENTION)
    recurrence: Modules = field(default_factory=dict)
    dense: Modules = field(default_factory=lambda: gated("mlp"))
    experts: Modules = field(default_factory=lambda: gated("mlp.experts.0"))
    shared: Modules = field(default_factory=lambda: gated("mlp.shared_experts"))
    latent: Modules = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """One ``model_type``.

    Parameters
    ----------
    architectures : classes of checkpoints it stands for
    layers : from the fields and the number of layers, one entry a layer
    modules : names of matrices in checkpoints
    tied : whether the class ties embedding and lm_head where the config does not say
    synonyms : what the family calls a field, by the usual name
    defaults : what the class takes where a nested text part leaves a field out, and for fields that change no size
    ends : further fields of the card: tables, projections, norms outside the layers
    mtp : which field counts multi-token-prediction layers like the last one, and whether they copy embeddings
    mtp_unknown : fields that count prediction layers of a shape that is not modelled: noted and not counted
    """

    architectures: tuple[str, ...]
    layers: Callable[[ConfigFields, int], list[Layer]]
    modules: ModuleNames = ModuleNames()
    tied: bool = False
    synonyms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    ends: Callable[[ConfigFields], CardPart] | None = None
    mtp: tuple[str, bool] | None = None
    mtp_unknown: tuple[str, ...] = ()


def layers_of(kinds: Sequence[_Kind], build: Callable[[_Kind], Layer]) -> list[Layer]:
    """One layer a kind, made once and repeated."""
    made = {kind: build(kind) for kind in dict.fromkeys(kinds)}
    return [made[kind] for kind in kinds]
