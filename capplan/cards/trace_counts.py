"""Counts of request lengths in bounded memory: marginals nearly exact, the joint law in cells once pairs are many."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from capplan.formulas.joint_cells import compact_joint

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

MANY_PAIRS = 100_000
"""Above so many distinct (prompt, output) pairs a trace is kept in cells."""
MARGINAL_BITS = 14
"""Lengths below 2^15 tokens are counted one by one; longer ones to 2^-15 of themselves."""
PROMPT_BITS, OUTPUT_BITS = 5, 6
_PENDING = 1 << 18
_LOADED_GROUPS, _LOADED_CELLS = 200, 16
_OUTPUT_MASK = (1 << 30) - 1


def cell_of(tokens: IntArray, bits: int) -> IntArray:
    """Number of the cell of a length: one token wide below 2^(bits+1), then 2^bits cells an octave."""
    shift = np.maximum(np.frexp(tokens.astype(float))[1].astype(np.int64) - 1 - bits, 0)
    cell: IntArray = (shift << bits) + (tokens >> shift)
    return cell


def middle_of(cell: IntArray, bits: int) -> FloatArray:
    """The middle of a cell [token]."""
    shift = np.maximum((cell >> bits) - 1, 0)
    low = (cell - (shift << bits)) << shift
    middle: FloatArray = low + ((1 << shift) - 1) / 2
    return middle


class LengthCounts:
    """How often each length occurs."""

    def __init__(self) -> None:
        self._counts = np.zeros(1 << MARGINAL_BITS, dtype=np.int64)

    def add(self, tokens: IntArray) -> None:
        """Count these lengths."""
        found = np.bincount(cell_of(tokens, MARGINAL_BITS))
        if len(found) > len(self._counts):
            self._counts = np.concatenate([self._counts, np.zeros(len(found) - len(self._counts), dtype=np.int64)])
        self._counts[: len(found)] += found

    def values(self) -> tuple[FloatArray, FloatArray]:
        """Lengths [token], increasing, and the number of requests of each."""
        cells = np.flatnonzero(self._counts)
        return middle_of(cells, MARGINAL_BITS), self._counts[cells].astype(float)


class JointCounts:
    """How often each pair (prompt, output) occurs, or how much falls into each cell once pairs are many."""

    def __init__(self) -> None:
        self.inputs, self.outputs = LengthCounts(), LengthCounts()
        self.reasoning: JointCounts | None = None
        """Pairs of reasoning (as ``inputs``) and output tokens; None where the trace does not tell them."""
        self.requests = 0
        self._in_cells = False
        self._pending: list[IntArray] = []
        self._waiting = 0
        self._keys = np.zeros(0, dtype=np.int64)
        self._sums = np.zeros((0, 3))

    def add(self, prompts: IntArray, outputs: IntArray, thoughts: IntArray | None = None) -> None:
        """Count these requests; with their reasoning tokens, where the trace tells them."""
        self.inputs.add(prompts)
        self.outputs.add(outputs)
        if thoughts is not None:
            self.reasoning = self.reasoning or JointCounts()
            self.reasoning.add(thoughts, outputs)
        self.requests += len(prompts)
        self._pending.append(prompts << 30 | outputs)
        self._waiting += len(prompts)
        if self._waiting >= _PENDING:
            self._settle()

    def reasoning_values(self) -> tuple[FloatArray, FloatArray] | None:
        """Reasoning tokens and the number of requests of each; None where the trace does not tell them."""
        return None if self.reasoning is None else self.reasoning.inputs.values()

    def rows(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Prompts, outputs (means, where in cells) [token] and numbers of requests."""
        self._settle()
        count = self._sums[:, 0]
        return self._sums[:, 1] / count, self._sums[:, 2] / count, count

    def sample(self) -> FloatArray:
        """Rows (prompt, output, requests) for a :class:`~capplan.cards.workload.Workload`, few enough to plan with."""
        rows = self.rows()
        if self._in_cells:
            rows = compact_joint(*rows, _LOADED_GROUPS, _LOADED_CELLS)
        return np.column_stack(rows)

    def _settle(self) -> None:
        if self._pending:
            pairs, count = np.unique(np.concatenate(self._pending), return_counts=True)
            self._pending, self._waiting = [], 0
            self._merge(pairs, count)

    def _merge(self, pairs: IntArray, count: Any) -> None:
        prompts, outputs = (pairs >> 30).astype(float), (pairs & _OUTPUT_MASK).astype(float)
        sums = np.column_stack([count, count * prompts, count * outputs])
        keys = _cells(pairs) if self._in_cells else pairs
        self._keys, self._sums = _summed(np.concatenate([self._keys, keys]), np.concatenate([self._sums, sums]))
        if not self._in_cells and len(self._keys) > MANY_PAIRS:
            self._in_cells = True
            self._keys, self._sums = _summed(_cells(self._keys), self._sums)


def _cells(pairs: IntArray) -> IntArray:
    cells: IntArray = cell_of(pairs >> 30, PROMPT_BITS) << 30 | cell_of(pairs & _OUTPUT_MASK, OUTPUT_BITS)
    return cells


def _summed(keys: IntArray, sums: FloatArray) -> tuple[IntArray, FloatArray]:
    distinct, index = np.unique(keys, return_inverse=True)
    return distinct, np.column_stack([np.bincount(index, column, len(distinct)) for column in sums.T])
