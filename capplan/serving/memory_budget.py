"""The answer of :func:`capplan.serving.memory.memory`: bytes of one GPU, tokens and sequences of a rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from capplan.cards.model_totals import MOST_TOKENS
from capplan.errors import InputError, shown
from capplan.formulas import memory as formulas
from capplan.serving.layout import Layout


@dataclass(frozen=True)
class InstanceBudget:
    """The data-parallel ranks of an instance together."""

    rank: MemoryBudget
    dp: int

    @property
    def capacity_tokens(self) -> float | None:
        """Tokens all ranks hold; None where that is no constant [tokens]."""
        tokens = self.rank.capacity_tokens
        return None if tokens is None else self.dp * tokens

    def max_sequences(self, context: Any) -> Any:
        """Sequences of that context all ranks hold; see :meth:`MemoryBudget.max_sequences`."""
        return self.dp * self.rank.max_sequences(context)


@dataclass(frozen=True)
class MemoryBudget:
    """Memory of one data-parallel rank (``tp * pp`` GPUs); every byte is of ONE GPU of its busiest stage.

    ``fits`` is False and ``missing_bytes`` (a GPU) above zero where weights and what the engine needs leave no room.
    ``capacity_tokens`` is None where sliding windows or a recurrent state make bytes no constant a token.
    ``block_bytes`` is one block of the paged cache over the layers it spans.
    ``engine`` names the engine and the range of versions its numbers are for; ``assumptions`` list what nobody
    measured.
    """

    hbm_bytes: float
    weights_bytes: float
    activation_peak_bytes: float
    graph_bytes: float
    other_bytes: float
    kv_pool_bytes: float
    kv_bytes_per_token: float
    block_tokens: float
    block_bytes: float
    capacity_tokens: float | None
    fits: bool
    missing_bytes: float
    engine: str
    layout: Layout
    assumptions: tuple[str, ...]
    held_bytes: Callable[[Any], Any] = field(repr=False, compare=False)
    """Bytes of a sequence on one GPU as a function of its context, not rounded to blocks."""
    paged_bytes: Callable[[Any], Any] = field(repr=False, compare=False)
    """The same as the engine's pages hold it."""
    worst_case_blocks: Callable[[Any], Any] = field(repr=False, compare=False)
    """Blocks an engine reserves for a sequence of the longest context."""

    @property
    def instance(self) -> InstanceBudget:
        """All data-parallel ranks."""
        return InstanceBudget(self, self.layout.dp)

    def kv_bytes(self, context: Any) -> Any:
        """Bytes a sequence of that context holds on one GPU, in whole blocks [B]."""
        return self.paged_bytes(context)

    def max_sequences(self, context: Any) -> Any:
        """Sequences of that context the rank holds at once.

        Parameters
        ----------
        context : cached tokens of each sequence; a number or an array [tokens]

        Returns
        -------
        sequences : whole ones, 0 where nothing fits

        Raises
        ------
        InputError : a context that is no finite number above zero
        """
        _check_context(context)
        if self.capacity_tokens is not None:
            blocks = formulas.whole_blocks(context, self.block_tokens)
            fitting = formulas.floor(self.capacity_tokens / self.block_tokens / blocks)
        else:
            fitting = formulas.floor(self.kv_pool_bytes / self.kv_bytes(context))
        return int(fitting) if isinstance(fitting, float) else fitting

    def worst_case_sequences(self, max_context: Any) -> Any:
        """Sequences of the longest context as engines print it ("maximum concurrency"), not rounded.

        Sliding-window layers count a chunk of prefill beside their window. A worst case, no admission limit.

        Parameters
        ----------
        max_context : longest context the engine allows; a number or an array [tokens]

        Returns
        -------
        sequences : with a fraction

        Raises
        ------
        InputError : a context that is no finite number above zero
        """
        _check_context(max_context)
        return formulas.floor(self.kv_pool_bytes / self.block_bytes) / self.worst_case_blocks(max_context)


def _check_context(context: Any) -> None:
    if isinstance(context, (int, float)) and not isinstance(context, bool):
        good = 0 < context <= MOST_TOKENS
    else:
        number = hasattr(context, "dtype") and context.dtype.kind in "iuf"
        good = number and bool(((context > 0) & (context <= MOST_TOKENS)).all())
    if not good:
        raise InputError(f"{shown(context)} must be a finite number of tokens above zero", key="context")
