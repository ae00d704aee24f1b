"""A prefill pool: ranks that read prompts first come, first served."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from random import Random

from capplan.simulation.pool import Routing
from capplan.simulation.request import Request


@dataclass(frozen=True)
class PromptTimes:
    """What a prompt costs, by its tokens.

    Parameters
    ----------
    busy : how long it keeps a rank from the next prompt [s]
    own : from the start of its reading until its KV cache is where it decodes [s]
    """

    busy: Callable[[int], float]
    own: Callable[[int], float]


class PrefillPool:
    """``ranks`` equal ranks; each takes the head of one queue when it is free.

    With ``random`` or ``round-robin`` routing every rank has a queue of its own, to which prompts are sent blindly.

    Examples
    --------
    >>> pool = PrefillPool(1, PromptTimes(busy=lambda tokens: tokens / 1000, own=lambda tokens: tokens / 1000))
    >>> first, second = Request(2000, 1, 0.0), Request(500, 1, 1.0)
    >>> pool.serve(first), pool.serve(second)  # the second waits until 2.0
    (2.0, 2.5)
    """

    def __init__(
        self, ranks: int, times: PromptTimes, routing: Routing = "least-loaded", choices: Random | None = None
    ) -> None:
        self._free = [0.0] * ranks
        heapify(self._free)
        self._times = times
        self._routing, self._choices, self._turn = routing, choices or Random(0), 0
        self.arrivals: list[float] = []
        self.busy: list[float] = []
        """When each prompt arrived, and how long it kept its rank [s]."""

    def serve(self, request: Request) -> float:
        """When a request that arrives now, at ``request.arrival``, reaches the decode pool [s]."""
        busy = self._times.busy(request.prompt)
        start = self._begun(request.arrival, busy)
        self.arrivals.append(request.arrival)
        self.busy.append(busy)
        request.submitted = start + self._times.own(request.prompt)
        return request.submitted

    def _begun(self, arrival: float, busy: float) -> float:
        """When the prompt's rank begins with it [s]."""
        if self._routing in ("random", "round-robin"):
            self._turn = (self._turn + 1) % len(self._free)
            rank = self._turn if self._routing == "round-robin" else self._choices.randrange(len(self._free))
            start = max(arrival, self._free[rank])
            self._free[rank] = start + busy
            return start
        start = max(arrival, self._free[0])
        heapreplace(self._free, start + busy)
        return start

    def feed(self, arrivals: Iterator[Request]) -> Iterator[Request]:
        """The requests of ``arrivals`` in the order in which they reach the decode pool."""
        under_way: list[tuple[float, int, Request]] = []
        number = count()
        for request in arrivals:
            while under_way and under_way[0][0] <= request.arrival:
                yield heappop(under_way)[2]
            heappush(under_way, (self.serve(request), next(number), request))
        while under_way:
            yield heappop(under_way)[2]
