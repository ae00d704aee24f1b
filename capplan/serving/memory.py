"""Memory of one rank: what weights, activations and the engine leave for the KV cache, and the sequences that fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from capplan.cards.engine import Engine
from capplan.cards.engine_card import load_engine
from capplan.cards.hardware import Hardware
from capplan.cards.kv import kv_bytes_per_rank, kv_streams
from capplan.cards.model import Model
from capplan.cards.number import Number
from capplan.errors import InputError
from capplan.formulas import activation_memory
from capplan.formulas import memory as formulas
from capplan.quantities.chain import Chain
from capplan.quantities.registry import override_value
from capplan.serving.activations import expansion_peak, layer_peak
from capplan.serving.kv_pages import LayerKind, Pages, separate_pages, shared_pages
from capplan.serving.layout import Layout, check_heads, check_types
from capplan.serving.memory_budget import InstanceBudget, MemoryBudget
from capplan.serving.step_time import check_drafts, check_switch
from capplan.serving.weights import weights_per_gpu

__all__ = ["InstanceBudget", "MemoryBudget", "memory"]

_FRACTIONS = {
    "utilization": "gpu_memory_utilization",
    "static-fraction": "mem_fraction_static",
    "free-fraction": "free_gpu_memory_fraction",
}
_ROOMS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "utilization": (formulas.utilization_room_bytes, ()),
    "static-fraction": (formulas.static_fraction_room_bytes, ("activation_peak_bytes", "graph_bytes")),
    "free-fraction": (formulas.free_fraction_room_bytes, ("graph_bytes",)),
}
"""Formula of each engine, and the needs it does not count."""
_GIVEN_POOLS = frozenset({"kv_pool_bytes", "kv_pool_gib", "num_gpu_blocks"})


def memory(
    model: Model,
    hardware: Hardware,
    layout: Layout,
    engine: str | Engine = "vllm",
    chain: Chain | None = None,
    *,
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
    mtp: int = 0,
    unified_pages: bool = False,
    expand_mla: bool = False,
    prefix_caching: bool = True,
    **overrides: Any,
) -> MemoryBudget:
    """Memory budget of one data-parallel rank of an instance.

    Parameters
    ----------
    model : from :func:`~capplan.cards.model_card.load_model`
    hardware : from :func:`~capplan.cards.hardware_card.load_hardware`
    layout : of the instance
    engine : an engine card by name (``vllm``, ``vllm@0.11``, ``sglang``, ``tensorrt-llm``, ``none``) or loaded
    chain : named quantities with their overrides; a new one where none is given
    weight_dtype, kv_dtype : None is the checkpoint's; where an indexer chooses latents the engine may store another
        layout instead (``sparse_latent_kv`` of its card), and the budget says so
    mtp : draft tokens of multi-token prediction; above 0 its weights count
    unified_pages : the engine gives sliding-window layers as many pages as full ones
    expand_mla : the engine stores latent attention expanded to full heads
    prefix_caching : sequences with a recurrent state hold a second copy of it for the cache of prefixes
    overrides : named quantities that replace computed ones, in base units or as text (``kv_pool_gib=24``,
        ``num_gpu_blocks=20000``, ``gpu_memory_utilization=0.95``, ``weights_bytes="60GiB"``)

    Returns
    -------
    budget : bytes of one GPU, tokens and sequences of the rank; what does not fit is told, not raised

    Raises
    ------
    InputError : an unknown name, a value out of range, or an override this engine has no use for

    Examples
    --------
    >>> from capplan import Layout, load_hardware, load_model
    >>> budget = memory(load_model("llama-3.1-8b"), load_hardware("h100"), Layout(), "vllm@0.19")
    >>> budget.max_sequences(8192)  # 1 GiB each
    54

    References
    ----------
    :mod:`capplan.formulas.memory`.
    """
    check_types(model, hardware, layout)
    check_heads(model, layout)
    drafts, _ = check_drafts(mtp, None)
    flags = {"unified_pages": unified_pages, "expand_mla": expand_mla, "prefix_caching": prefix_caching}
    switches = [check_switch(value, name) for name, value in flags.items()]
    chain = Chain(record=True) if chain is None else chain
    inner = _with_overrides(chain, overrides)
    served = model if weight_dtype is None else model.with_weight_dtype(weight_dtype)
    if not isinstance(engine, (str, Engine)):
        raise InputError(f"must be an engine card or its name, not {type(engine).__name__}", key="engine")
    loaded = engine if isinstance(engine, Engine) else load_engine(engine)
    stored = _stored_kv_dtype(model, loaded, kv_dtype, expand_mla=expand_mla)
    budget = _Rank(served, hardware, layout, loaded, inner, stored, drafts > 0, *switches).budget()
    if unused := sorted(overrides.keys() - inner.used_overrides):
        raise InputError(f"has no part in the memory of engine {loaded.name!r}", key=f"override.{unused[0]}")
    chain.links.update(inner.links)
    chain.used_overrides |= inner.used_overrides
    return budget


def _with_overrides(chain: Chain, overrides: dict[str, Any]) -> Chain:
    if not overrides:
        return chain
    values = {name: override_value(name, value) for name, value in overrides.items()}
    return Chain({**chain.overrides, **values}, record=chain.record)


def _stored_kv_dtype(model: Model, engine: Engine, kv_dtype: str | None, *, expand_mla: bool) -> str | None:
    """What the engine stores the cache in: where an indexer chooses latents, its own layout for the type asked for."""
    kinds = [group.attention for group in model.layers if group.attention is not None]
    chosen = any(kind.indexer is not None for kind in kinds) and all(kind.kind == "mla" for kind in kinds)
    asked = model.kv_dtype if kv_dtype is None else kv_dtype
    if not chosen or expand_mla or not isinstance(asked, str):
        return kv_dtype
    return engine.sparse_latent_kv.get(asked, asked)


@dataclass(frozen=True)
class _Rank:
    """One evaluation of the budget: the inputs every step of the chain needs."""

    model: Model
    hardware: Hardware
    layout: Layout
    engine: Engine
    chain: Chain
    kv_dtype: str | None
    """As stored; None is the checkpoint's."""
    mtp: bool
    unified_pages: bool
    expand_mla: bool
    prefix_caching: bool

    def budget(self) -> MemoryBudget:
        hbm = self._from_card("hbm_bytes", self.hardware, "hbm_bytes")
        needs = {"weights_bytes": self._weights(), **self._engine_needs()}
        room = self._room(hbm, needs)
        block = self._from_card("kv_block_tokens", self.engine, "block_tokens")
        per_token = float(self.chain.given("kv_bytes_per_token_per_gpu", self._one_token(), "capplan.cards.kv"))
        pages = self._pages(block)
        pool = self._pool(room, pages.block_bytes)
        # A pool that is given needs room beside the weights all the same; what else the engine needs is then unknown.
        given = bool(_GIVEN_POOLS & self.chain.overrides.keys())
        over = needs["weights_bytes"] + pool - hbm if given else -room
        return MemoryBudget(
            hbm_bytes=hbm,
            **needs,
            kv_pool_bytes=pool,
            kv_bytes_per_token=per_token,
            block_tokens=block,
            block_bytes=pages.block_bytes,
            capacity_tokens=self._capacity(pool, block, per_token) if pages.constant_bytes_per_token else None,
            fits=over <= 0 if given else room > 0,
            missing_bytes=max(over, 0.0),
            engine=f"{self.engine.name} {self.engine.version}",
            layout=self.layout,
            assumptions=self._assumptions(),
            held_bytes=self._held_bytes,
            paged_bytes=pages.held_bytes,
            worst_case_blocks=self._worst_case(pages),
        )

    def _from_card(self, name: str, card: Hardware | Engine, key: str) -> float:
        """A number of a card under its quantity name, with its source; an assumed one is marked."""
        number: Number | None = card.sources.get(key)
        source = f"{card.name} card: {number.source}" if number else f"{card.name} card"
        assumed = number is not None and number.kind == "assumed"
        return float(self.chain.given(name, getattr(card, key), source, assumed=assumed))

    def _weights(self) -> float:
        multiples = (self.engine.mxfp4_hidden_multiple, self.engine.mxfp4_inner_multiple)
        shares = weights_per_gpu(self.model, self.layout, mtp=self.mtp, mxfp4_multiples=multiples)
        source = f"capplan.serving.weights: {self.model.name}, {self.layout}"
        named = {
            "attention_weights_bytes": shares.attention,
            "feed_forward_weights_bytes": shares.feed_forward,
            "expert_weights_bytes": shares.experts,
            "embedding_weights_bytes": shares.embeddings,
        }
        parts = {name: self.chain.given(name, value, source) for name, value in named.items()}
        return float(self.chain.derive("weights_bytes", formulas.total_weights_bytes, **parts))

    def _engine_needs(self) -> dict[str, float]:
        """Activation peak, CUDA graphs and libraries, as far as the engine's formula counts them."""
        return {
            "activation_peak_bytes": self._activation_peak(),
            "graph_bytes": self._from_card("graph_bytes", self.engine, "graph_bytes"),
            "other_bytes": self._from_card("other_bytes", self.engine, self._other_key()),
        }

    def _other_key(self) -> str:
        if self.layout.tp > 1 or (self.layout.dp > 1 and self.model.is_mixture):
            return "other_bytes_parallel"
        return "other_bytes_pipeline" if self.layout.pp > 1 else "other_bytes"

    def _activation_peak(self) -> float:
        tier, source = self.engine.batch_defaults_on(self.hardware), f"{self.engine.name} card, on this GPU"
        tokens = float(self.chain.given("max_num_batched_tokens", float(tier.max_batched_tokens), source))
        sequences = float(self.chain.given("max_num_seqs", float(tier.max_sequences), source))
        counted = self.engine.memory_formula != "static-fraction" and self.engine.activation_hidden_widths > 0
        per_logit = self.engine.activation_bytes_per_logit
        return float(
            self.chain.derive(
                "activation_peak_bytes",
                activation_memory.activation_peak_bytes,
                max_batched_tokens=tokens if counted else 0.0,
                hidden_size=self.model.hidden_size,
                layer_bytes=layer_peak(self.model, self.layout, self.engine, tokens),
                expansion_bytes=expansion_peak(self.model, self.layout, self.engine),
                logits_bytes=activation_memory.logits_peak_bytes(sequences, self.model.vocab_size, per_logit),
            )
        )

    def _room(self, hbm: float, needs: dict[str, float]) -> float:
        formula, left_out = _ROOMS[self.engine.memory_formula]
        counted = {name: value for name, value in needs.items() if name not in left_out}
        fraction = self._fraction(hbm)
        return float(self.chain.derive("kv_room_bytes", formula, hbm_bytes=hbm, memory_fraction=fraction, **counted))

    def _fraction(self, hbm: float) -> float:
        name = _FRACTIONS[self.engine.memory_formula]
        if self.engine.memory_fraction is None and name not in self.chain.overrides:
            return self._default_fraction(name, hbm)
        if self.engine.memory_fraction is None:
            fraction = float(self.chain.given(name, None))
        else:
            fraction = self._from_card(name, self.engine, "memory_fraction")
        if not 0 < fraction <= 1:
            raise InputError(f"{fraction:g} must be above 0 and at most 1", key=f"override.{name}")
        return fraction

    def _default_fraction(self, name: str, hbm: float) -> float:
        reserve, tier = self.engine.static_reserve, self.engine.batch_defaults_on(self.hardware)
        if reserve is None:
            raise InputError(f"engine {self.engine.name!r} has no default; give one", key=f"override.{name}")
        stage = self.layout.tp * self.layout.dp
        least = reserve.least_bytes if hbm > reserve.least_bytes_from_hbm_bytes else 0.0
        return float(
            self.chain.derive(
                name,
                formulas.default_static_fraction,
                hbm_bytes=hbm,
                max_batched_tokens=tier.max_batched_tokens,
                graph_sequences=tier.graph_sequences_wide if stage >= 4 else tier.graph_sequences,
                gpus=self.layout.gpus,
                dp_ranks=self.layout.dp if self.layout.dp > 1 else 0,
                base_bytes=reserve.base_bytes,
                bytes_per_batched_token=reserve.bytes_per_batched_token,
                bytes_per_graph_sequence=reserve.bytes_per_graph_sequence,
                bytes_per_gpu=reserve.bytes_per_gpu,
                bytes_per_graph_sequence_and_dp_rank=reserve.bytes_per_graph_sequence_and_dp_rank,
                least_bytes=least,
            )
        )

    def _pool(self, room: float, block_bytes: float) -> float:
        """The pool: what the user gave in blocks, else in GiB, else the room there is."""
        chain = self.chain
        given = {name: chain.given(name, None) for name in ("num_gpu_blocks", "kv_pool_gib") if name in chain.overrides}
        if "num_gpu_blocks" in given:
            blocks = {"num_gpu_blocks": given["num_gpu_blocks"], "block_bytes": block_bytes}
            return float(chain.derive("kv_pool_bytes", formulas.pool_bytes_of_blocks, **blocks))
        if "kv_pool_gib" in given:
            return float(chain.derive("kv_pool_bytes", formulas.pool_bytes_of_gib, **given))
        return float(chain.derive("kv_pool_bytes", formulas.pool_bytes, kv_room_bytes=room))

    def _pages(self, block: float) -> Pages:
        """The pool cut into pages, as the engine does it."""
        if self.engine.memory_formula == "utilization":
            return shared_pages(self._layer_kinds, block, prefix_caching=self.prefix_caching)
        return separate_pages(self._layer_kinds, block)

    @cached_property
    def _layer_kinds(self) -> list[LayerKind]:
        """What the layers of the fullest stage cache on one GPU; states are split like query heads."""
        dtype = self.model.kv_dtype if self.kv_dtype is None else self.kv_dtype
        kinds = []
        for group in self.model.layers:
            layers = -(-group.count // self.layout.pp)
            if (attention := group.attention) is not None:
                tp, expand = self.layout.tp, self.expand_mla
                for stream in kv_streams(attention, dtype, tensor_parallel=tp, expand_mla=expand):
                    width = stream.bytes_per_entry / stream.tokens_per_entry / self.layout.dcp
                    kinds.append(LayerKind(layers, width, None if self.unified_pages else stream.window))
            if group.state_bytes:
                kinds.append(LayerKind(layers, 0.0, state_bytes=group.state_bytes / self.layout.tp))
        return kinds

    def _capacity(self, pool: float, block: float, per_token: float) -> float:
        """Tokens of the rank, where every token takes the same."""
        inputs = {"kv_pool_bytes": pool, "block_tokens": block, "kv_bytes_per_token": per_token}
        return float(self.chain.derive("kv_capacity_tokens", formulas.capacity_tokens, **inputs))

    def _held_bytes(self, context: Any) -> Any:
        layout, options = self.layout, {"unified_pages": self.unified_pages, "expand_mla": self.expand_mla}
        return kv_bytes_per_rank(self.model, context, self.kv_dtype, layout.tp, layout.pp, layout.dcp, **options)

    def _one_token(self) -> float:
        return float(self._held_bytes(1)) - float(self._held_bytes(0))

    def _worst_case(self, pages: Pages) -> Callable[[Any], Any]:
        tokens = float(self.engine.batch_defaults_on(self.hardware).max_batched_tokens)
        chunk = float(self.chain.overrides.get("max_num_batched_tokens", tokens))
        return lambda context: pages.reserved_blocks(context, chunk)

    def _assumptions(self) -> tuple[str, ...]:
        """The version the numbers are for, and what nobody measured."""
        links = [link for name, link in self.chain.links.items() if link.assumed and name in _names()]
        assumed = tuple(f"{link.name} = {link.value:g} ({link.source})" for link in links)
        told = [f"engine {self.engine.name}, versions {self.engine.version}"]
        if self.kv_dtype in self.engine.sparse_latent_kv.values():
            told.append(f"KV cache stored as {self.kv_dtype} (layout of {self.engine.name})")
        return (*told, *assumed)


@cache
def _names() -> frozenset[str]:
    """Quantities of a memory budget; a chain may hold others too."""
    from capplan.quantities.memory_quantities import QUANTITIES

    return frozenset(quantity.name for quantity in QUANTITIES)
