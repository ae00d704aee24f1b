"""How many steps of a rank read how many prompt tokens, what these add to the step, and the longest of several ranks.

Numerical routines in NumPy: a compound Poisson recursion, no randomness.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from capplan.formulas import chunked_prefill as closed

if TYPE_CHECKING:
    from capplan.formulas.chunked_prefill_numeric import ChunkedRank

FloatArray = NDArray[np.float64]

_CELLS = 48
_FIXED_POINT_TURNS = 4
_ENDS = 6
_POSITIONS = 24
"""Places in a long prompt: the further a chunk is, the more tokens it attends to."""


@dataclass(frozen=True, eq=False)
class StepMixture:
    """Shares of steps by the prompt tokens they read.

    ``full_share`` of steps use the whole budget, ``prefill_share`` read anything. ``tokens`` read, ``seconds`` they add
    and ``shares`` list all kinds of steps, those with a full budget where ``full``; ``attention`` is g of what is read
    in steps that are not full [s/token^2].
    """

    full_share: float
    prefill_share: float
    attention: float
    tokens: FloatArray
    seconds: FloatArray
    shares: FloatArray
    full: NDArray[np.bool_]

    @property
    def mean(self) -> float:
        """Mean of what prompts add to a step [s]."""
        return float(self.shares @ self.seconds)

    def longest_of(self, ranks: int) -> StepMixture:
        """The largest of as many independent ones."""
        if ranks == 1:
            return self
        order = np.argsort(self.seconds, kind="stable")
        reached = np.minimum(np.cumsum(self.shares[order]), 1.0) ** ranks
        shares = np.empty_like(reached)
        shares[order] = np.diff(reached, prepend=0.0)
        some = 1 - (1 - self.prefill_share) ** ranks
        return replace(self, full_share=float(shares[self.full].sum()), prefill_share=some, shares=shares)

    def ends(self, full_seconds: float) -> StepMixture:
        """Steps that read the last chunk of a long prompt: any part of a full chunk, which takes ``full_seconds``."""
        part = (np.arange(_ENDS) + 0.5) / _ENDS
        tokens, seconds = part * self.tokens.max(), part * full_seconds
        none = np.zeros(_ENDS, dtype=bool)
        return replace(
            self, full_share=0.0, tokens=tokens, seconds=seconds, shares=np.full(_ENDS, 1 / _ENDS), full=none
        )

    def with_full(self, share: float) -> StepMixture:
        """The same with another share of full steps."""
        rest = (1 - share) / max(1 - self.full_share, 1e-300)
        scale = np.where(self.full, share / max(self.full_share, 1e-300), rest)
        return replace(self, full_share=share, shares=self.shares * scale)


def step_mixture(rank: ChunkedRank) -> StepMixture:
    """Steps of one rank: a fixed point between the length of a partial step and the prompts that arrive in it."""
    prompt_share = rank.request_rate * rank.step_mean * rank.prompt_mean / rank.room
    cells = _prompt_cells(rank)
    partial, full = rank.step_mean, 0.0
    for _ in range(_FIXED_POINT_TURNS):
        arrived = _compound_poisson(rank.request_rate * partial, cells)
        overrun = max(0.0, 1.0 - float(arrived.sum()))
        read = overrun / 2 + float(arrived @ np.arange(_CELLS)) / _CELLS
        full = min(max(float(closed.full_step_share(prompt_share, read)), 0.0), 0.999)
        partial = max((rank.step_mean - full * rank.full_step) / (1 - full), rank.empty_step)
    arrived = _compound_poisson(rank.request_rate * partial, cells)
    overrun = max(0.0, 1.0 - float(arrived.sum()))
    inside = np.full(_CELLS, overrun / _CELLS)
    grid = np.arange(_CELLS) * rank.room / _CELLS
    tokens = np.concatenate([grid, grid + rank.room / (2 * _CELLS)])
    shares = (1 - full) * np.concatenate([arrived, inside])
    return _with_seconds(
        rank, tokens, shares / (shares.sum() + full), 1 - (1 - full) * math.exp(-rank.request_rate * partial)
    )


def _with_seconds(rank: ChunkedRank, tokens: FloatArray, shares: FloatArray, any_share: float) -> StepMixture:
    """What the tokens cost: full chunks by their place in their prompt, the others so that all prompts are paid."""
    full = 1.0 - float(shares.sum())
    attended, part = full_chunks(rank, full)
    square = rank.prefill_square
    paid = full * rank.room * square * float(part @ attended)
    whole = rank.request_rate * rank.step_mean * square * rank.prompt_second / 2
    squares = float(shares @ tokens**2) / 2
    attention = min(max((whole - paid) / squares, 0.0), square) if squares > 0 else square
    return StepMixture(
        full,
        any_share,
        attention,
        np.concatenate([tokens, np.full(len(part), rank.room)]),
        np.concatenate(
            [rank.prefill * tokens + attention * tokens**2 / 2, rank.room * (rank.prefill + square * attended)]
        ),
        np.concatenate([shares, full * part]),
        np.arange(len(tokens) + len(part)) >= len(tokens),
    )


def full_chunks(rank: ChunkedRank, share: float) -> tuple[FloatArray, FloatArray]:
    """Full chunks by the mean tokens they attend to, and their shares.

    Prompts longer than the room make floor(P/K) of them; what these do not explain of ``share``, the share of full
    steps, is made of several short prompts.
    """
    room, weights = rank.room, rank.weights
    chunks = np.floor(rank.prompts / room)
    most = float(chunks.max())
    count = int(min(most, _POSITIONS))
    places = (np.arange(count) + 0.5) * most * room / max(count, 1)
    there = np.array([float(weights @ (chunks * room >= place)) for place in places])
    long = rank.request_rate * rank.step_mean * float(weights @ chunks)
    part = min(1.0, long / share) if share > 0 else float(most > 0)
    short = rank.prompts < room
    tokens = float(weights @ (rank.prompts * short))
    attended = float(weights @ (rank.prompts**2 * short)) / (2 * tokens) if tokens > 0 else room / 2
    shares = part * there / max(float(there.sum()), 1e-300)
    return np.append(places, attended), np.append(shares, 1.0 - float(shares.sum()))


def _prompt_cells(rank: ChunkedRank) -> FloatArray:
    """Law of a prompt on cells of the room, the mean kept; what exceeds the room is left out."""
    position = rank.prompts / rank.room * _CELLS
    lower = np.floor(position).astype(int)
    share = position - lower
    inside = lower < _CELLS
    cells = np.bincount(lower[inside], (rank.weights * (1 - share))[inside], _CELLS + 1)
    cells += np.bincount(lower[inside] + 1, (rank.weights * share)[inside], _CELLS + 1)
    result: FloatArray = cells[:_CELLS].astype(float)
    return result


def _compound_poisson(arrivals: float, cells: FloatArray) -> FloatArray:
    """Prompt tokens of a Poisson number of prompts, below the room: Panjer's recursion."""
    total = np.zeros(_CELLS)
    total[0] = math.exp(-arrivals * (1 - cells[0]))
    weighted = np.arange(_CELLS) * cells
    for j in range(1, _CELLS):
        total[j] = arrivals / j * float(weighted[1 : j + 1] @ total[j - 1 :: -1][:j])
    return total
