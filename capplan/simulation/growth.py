"""How much of a KV pool the decoding requests of a rank take in the steps ahead, without going step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from capplan.simulation.request import Request

Units = NDArray[np.int64]


class HeldByContext:
    """Units of a pool that a request holds, by its cached tokens: whole, none without tokens, never fewer for more.

    Parameters
    ----------
    of_tokens : an array of token counts to what each takes of the pool; fractions are rounded up

    Examples
    --------
    >>> window = HeldByContext(lambda tokens: np.minimum(tokens, 4))
    >>> [window(tokens) for tokens in (0, 3, 4, 100)]
    [0, 3, 4, 4]
    """

    def __init__(self, of_tokens: Callable[[NDArray[np.float64]], object]) -> None:
        self._of_tokens = of_tokens
        self._table: Units = np.zeros(1, np.int64)

    def upto(self, tokens: int) -> Units:
        """The table of 0, 1, 2, ... tokens, up to that many at least."""
        if tokens >= len(self._table):
            counts = np.arange(1.0, max(2 * len(self._table), tokens + 1, 4096))
            units = np.ceil(np.asarray(self._of_tokens(counts), float)).astype(np.int64)
            self._table = np.concatenate([np.zeros(1, np.int64), units])
        return self._table

    def __call__(self, tokens: int) -> int:
        """Units of one request."""
        return int(self.upto(tokens)[tokens])


class Growth(Protocol):
    """The decoding requests of a rank, each of which holds ``step - request.offset`` tokens at the start of a step."""

    def add(self, request: Request) -> None:
        """A request decodes from now on."""

    def remove(self, request: Request) -> None:
        """A request decodes no more."""

    def at(self, step: int) -> int:
        """What they take in that step."""

    def taken(self, start: int, stop: int) -> int:
        """What they take in the steps from ``start`` to before ``stop``."""

    def takers(self, step: int) -> list[tuple[Request, int]]:
        """Requests that take something in that step, and how much."""

    def covered(self, step: int, steps: int, free: int) -> int:
        """How many of the next ``steps`` steps a free part of the pool covers."""


class EvenGrowth:
    """A block every so many tokens.

    ``members[p]`` are the requests that need a new block in steps s = p (mod block size), ``crossing[p]`` their number
    (twice in a row, so that a cycle is a slice).
    """

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._number = 0
        self._members: list[dict[Request, None]] = [{} for _ in range(block_size)]
        self._crossing = [0] * (2 * block_size)

    def add(self, request: Request) -> None:
        """A request decodes from now on."""
        phase = request.offset % self._size
        self._members[phase][request] = None
        self._count(phase, 1)

    def remove(self, request: Request) -> None:
        """A request decodes no more."""
        phase = request.offset % self._size
        del self._members[phase][request]
        self._count(phase, -1)

    def _count(self, phase: int, more: int) -> None:
        self._number += more
        self._crossing[phase] += more
        self._crossing[phase + self._size] += more

    def at(self, step: int) -> int:
        """Blocks they take in that step."""
        return self._crossing[step % self._size]

    def taken(self, start: int, stop: int) -> int:
        """Blocks they take in the steps from ``start`` to before ``stop``."""
        cycles, rest = divmod(stop - start, self._size)
        first = start % self._size
        return cycles * self._number + sum(self._crossing[first : first + rest])

    def takers(self, step: int) -> list[tuple[Request, int]]:
        """Requests that take a block in that step."""
        return [(request, 1) for request in self._members[step % self._size]]

    def covered(self, step: int, steps: int, free: int) -> int:
        """How many of the next ``steps`` steps so many free blocks cover."""
        n, size = self._number, self._size
        if (steps // size + 1) * n <= free:
            return steps
        cycles, left = divmod(free, n)
        covered, phase = cycles * size, step % size
        while covered < steps and (need := self._crossing[phase]) <= left:
            left -= need
            covered += 1
            phase = phase + 1 if phase + 1 < size else 0
        return min(steps, covered)


class TabulatedGrowth:
    """What a table says, where a token does not always take the same: sliding windows, recurrent states."""

    def __init__(self, held: HeldByContext) -> None:
        self._held = held
        self._requests: dict[Request, None] = {}
        self._offsets: Units | None = None

    def add(self, request: Request) -> None:
        """A request decodes from now on."""
        self._requests[request] = None
        self._offsets = None

    def remove(self, request: Request) -> None:
        """A request decodes no more."""
        del self._requests[request]
        self._offsets = None

    def _tokens(self, step: int) -> Units:
        """Cached tokens of each at the start of a step."""
        if self._offsets is None:
            self._offsets = np.array([request.offset for request in self._requests], np.int64)
        return step - self._offsets

    def _units(self, step: int) -> Units:
        tokens = self._tokens(step)
        return self._held.upto(int(tokens.max(initial=0)))[tokens]

    def at(self, step: int) -> int:
        """Units they take in that step."""
        return self.taken(step, step + 1)

    def taken(self, start: int, stop: int) -> int:
        """Units they take in the steps from ``start`` to before ``stop``."""
        return int((self._units(stop) - self._units(start)).sum())

    def takers(self, step: int) -> list[tuple[Request, int]]:
        """Requests that take something in that step, and how much."""
        more = self._units(step + 1) - self._units(step)
        return [(request, units) for request, units in zip(self._requests, more.tolist(), strict=True) if units]

    def covered(self, step: int, steps: int, free: int) -> int:
        """How many of the next ``steps`` steps a free part of the pool covers, by halving: nobody ever gives back."""
        if self.taken(step, step + steps) <= free:
            return steps
        enough, short = 0, steps
        while short - enough > 1:
            middle = (enough + short) // 2
            enough, short = (middle, short) if self.taken(step, step + middle) <= free else (enough, middle)
        return enough
