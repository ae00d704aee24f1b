"""How an engine cuts its KV pool into pages: kinds of layers, block tables, what a sequence holds and reserves.

vLLM gives every layer pages of one size. Layers that need the same tokens are one group whatever their widths; else
layers with narrow tokens get longer pages, a recurrent state is padded to a page, and each kind of layer is split
into groups of equally many layers, each with a block table of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from capplan.formulas import _ops, kv_groups
from capplan.formulas import memory as formulas

PAGE_ALIGNMENT_TOKENS = 16
"""Multiple of tokens attention kernels take (vLLM, ``MultipleOf(16)`` of FlashAttention and Triton)."""

STATE_PAGES_WITH_PREFIX_CACHING = 2
"""Pages of state a sequence reserves where prefixes are cached, else 1 (vLLM, ``mamba_cache_mode`` align, none)."""


@dataclass(frozen=True)
class LayerKind:
    """Layers of a GPU that cache the same: ``bytes_per_token`` of attention, or ``state_bytes`` a sequence."""

    layers: int
    bytes_per_token: float
    window: int | None = None
    state_bytes: float = 0.0


@dataclass(frozen=True)
class PageTable:
    """Block tables of one kind of layers: how many (a fraction where pools are apart), and the tokens of a page."""

    tables: float
    block_tokens: float
    window: int | None
    state_pages: int = 0

    def held_blocks(self, context: Any) -> Any:
        """Pages a running sequence holds in all tables of the kind."""
        if self.state_pages:
            return self.tables * self.state_pages
        if self.window is None:
            return self.tables * formulas.whole_blocks(context, self.block_tokens)
        return self.tables * kv_groups.windowed_held_blocks(context, self.block_tokens, self.window)

    def reserved_blocks(self, context: Any, chunk: float) -> Any:
        """Pages the engine reserves for the longest sequence, a chunk of prefill beside each window."""
        if self.state_pages or self.window is None:
            return self.held_blocks(context)
        return self.tables * formulas.windowed_worst_case_blocks(context, self.block_tokens, self.window, chunk)


@dataclass(frozen=True)
class Pages:
    """A pool cut into pages: ``block_bytes`` is one page of every layer that shares a table."""

    block_bytes: float
    tables: tuple[PageTable, ...]

    def held_bytes(self, context: Any) -> Any:
        """Bytes a running sequence of that context holds [B]."""
        return self.block_bytes * sum(table.held_blocks(context) for table in self.tables)

    def reserved_blocks(self, context: Any, chunk: float) -> Any:
        """Blocks the engine reserves for a sequence of the longest context."""
        return sum(table.reserved_blocks(context, chunk) for table in self.tables)

    @property
    def constant_bytes_per_token(self) -> bool:
        """Whether every token takes the same, so that the pool is a number of tokens."""
        return all(table.window is None and not table.state_pages for table in self.tables)


def shared_pages(kinds: list[LayerKind], block_tokens: float, *, prefix_caching: bool = True) -> Pages:
    """Pages as vLLM cuts them.

    Parameters
    ----------
    kinds : layers of one GPU by what they cache; equal ones are merged
    block_tokens : tokens of a page as configured [tokens]
    prefix_caching : a sequence with recurrent state reserves a second page for the state that is cached

    Returns
    -------
    pages : of that GPU

    References
    ----------
    vLLM, ``kv_cache_utils.get_kv_cache_groups`` and ``unify_kv_cache_spec_page_size``.
    """
    kinds = _merged(kinds)
    if not kinds:
        return Pages(0.0, ())
    if len({(kind.window, bool(kind.state_bytes)) for kind in kinds}) == 1 and not kinds[0].state_bytes:
        whole = sum(kind.layers * kind.bytes_per_token for kind in kinds)
        return Pages(block_tokens * whole, (PageTable(1, block_tokens, kinds[0].window),))
    page_bytes = _page_bytes(kinds, block_tokens)
    layers = kv_groups.layers_per_table(tuple(kind.layers for kind in kinds))
    state_pages = STATE_PAGES_WITH_PREFIX_CACHING if prefix_caching else 1
    tables = (_table(kind, layers, page_bytes, block_tokens, state_pages) for kind in kinds)
    return Pages(page_bytes * layers, tuple(tables))


def separate_pages(kinds: list[LayerKind], block_tokens: float) -> Pages:
    """Pages where every kind of layers has a pool of its own: nothing is padded, a window holds its tokens.

    A block is one page of every attention layer.
    """
    merged = _merged(kinds)
    whole = block_tokens * sum(kind.layers * kind.bytes_per_token for kind in merged)
    if not whole:
        states = sum(kind.layers * kind.state_bytes for kind in merged)
        return Pages(states, (PageTable(1, block_tokens, None, 1),) if states else ())
    return Pages(whole, tuple(_share(kind, block_tokens, whole) for kind in merged))


def _share(kind: LayerKind, block_tokens: float, whole: float) -> PageTable:
    """A kind of layers as a fraction of a table over all attention layers."""
    if kind.state_bytes:
        return PageTable(kind.layers * kind.state_bytes / whole, block_tokens, None, 1)
    return PageTable(block_tokens * kind.layers * kind.bytes_per_token / whole, block_tokens, kind.window)


def _merged(kinds: list[LayerKind]) -> list[LayerKind]:
    counts: dict[LayerKind, int] = {}
    for kind in kinds:
        if kind.layers and (kind.bytes_per_token or kind.state_bytes):
            alone = replace(kind, layers=1)
            counts[alone] = counts.get(alone, 0) + kind.layers
    return [replace(kind, layers=count) for kind, count in counts.items()]


def _page_bytes(kinds: list[LayerKind], block_tokens: float) -> float:
    """The largest page: of the widest attention layer, long enough to hold a state."""
    states = [kind.state_bytes for kind in kinds if kind.state_bytes]
    widths = [kind.bytes_per_token for kind in kinds if not kind.state_bytes]
    if not widths:
        return max(states)
    tokens = block_tokens
    if states:
        least = kv_groups.state_page_tokens(max(states), max(widths), PAGE_ALIGNMENT_TOKENS)
        tokens = max(block_tokens, float(least))
    return tokens * max(widths)


def _table(kind: LayerKind, layers: int, page_bytes: float, block_tokens: float, state_pages: int) -> PageTable:
    tables = int(_ops.ceil(kind.layers / layers))
    if kind.state_bytes:
        return PageTable(tables, block_tokens, None, state_pages)
    return PageTable(tables, float(formulas.floor(page_bytes / kind.bytes_per_token)), kind.window)
