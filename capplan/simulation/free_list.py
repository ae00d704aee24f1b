"""The list of free blocks with prefix caching: the longest unused is taken first, what is left can be found again."""

from __future__ import annotations

from collections import deque

from capplan.simulation.request import Request


class FreeList:
    """Free blocks in the order in which they will be taken.

    A request that is preempted puts its blocks at the end, tail first, so that its leading blocks last longest.

    Examples
    --------
    >>> blocks, request = FreeList(4), Request(64, 1, 0.0)
    >>> blocks.put(3, request)
    >>> blocks.take(5)
    >>> blocks.found(request)
    2
    """

    def __init__(self, blocks: int) -> None:
        self._parts: deque[list[int]] = deque([[blocks]])
        self._of: dict[Request, list[int]] = {}

    def put(self, blocks: int, request: Request | None = None) -> None:
        """Blocks become free; with ``request`` it may come back for them."""
        part = [blocks]
        self._parts.append(part)
        if request is not None:
            self._of[request] = part

    def take(self, blocks: int) -> None:
        """Blocks are taken from the front."""
        while blocks > 0:
            part = self._parts[0]
            some = min(part[0], blocks)
            part[0] -= some
            blocks -= some
            if not part[0]:
                self._parts.popleft()

    def found(self, request: Request) -> int:
        """Leading blocks of a preempted request that are still there; they are taken out."""
        part = self._of.pop(request, None)
        if part is None:
            return 0
        left, part[0] = part[0], 0
        return left
