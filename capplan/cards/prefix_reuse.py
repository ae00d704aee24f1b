"""Hits of a prefix cache, from the block hashes of a trace."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

CACHE_BLOCKS = (1_000, 10_000, 100_000, 500_000)
"""Sizes of the caches that are played through; the largest stands for an infinite one."""
BLOCK_TOKENS = 512
"""Tokens of a hashed block in the Mooncake traces."""


@dataclass(frozen=True)
class CacheHits:
    """Hits of one least-recently-used cache.

    Parameters
    ----------
    capacity_blocks : its size
    token_share : hit prompt tokens over prompt tokens [1]
    block_share : hit blocks over blocks [1]
    filled : whether it was ever full; one that was not hits as much as an infinite one
    """

    capacity_blocks: int
    token_share: float
    block_share: float
    filled: bool


class _Cache:
    """One least-recently-used cache of block hashes, in the order of their last use."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.filled = False
        self.hit_blocks = self.hit_tokens = 0
        self._order: OrderedDict[Any, None] = OrderedDict()

    def touch(self, hashes: Sequence[Any], prompt: int, block_tokens: int) -> None:
        """One prompt: blocks found, then all of them are the last used."""
        order, hits = self._order, 0
        for one in hashes:
            if one in order:
                hits += 1
                order.move_to_end(one)
                continue
            if len(order) >= self.capacity:
                self.filled = True
                order.popitem(last=False)
            order[one] = None
        self.hit_blocks += hits
        self.hit_tokens += min(hits * block_tokens, prompt)


class PrefixReuse:
    """Plays the prompts of a trace, in their order, through caches of several sizes."""

    def __init__(self, capacities: Sequence[int] = CACHE_BLOCKS, block_tokens: int = BLOCK_TOKENS) -> None:
        self.block_tokens = block_tokens
        self._caches = [_Cache(capacity) for capacity in sorted(capacities)]
        self.blocks = self.tokens = 0

    def add(self, hashes: Iterable[Sequence[Any]], prompts: Iterable[int]) -> None:
        """Play some more prompts: their block hashes and their lengths [token]."""
        for one, prompt in zip(hashes, prompts, strict=True):
            self.blocks += len(one)
            self.tokens += prompt
            for cache in self._caches:
                cache.touch(one, prompt, self.block_tokens)

    def hits(self) -> tuple[CacheHits, ...]:
        """Hits by size of the cache; empty where no prompt had a block."""
        if not self.blocks or not self.tokens:
            return ()
        return tuple(
            CacheHits(cache.capacity, cache.hit_tokens / self.tokens, cache.hit_blocks / self.blocks, cache.filled)
            for cache in self._caches
        )
