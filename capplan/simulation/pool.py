"""A pool of instances: requests arrive, are routed to ranks, and leave; one event after another in order of time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Literal

from capplan.simulation.instance import Instance
from capplan.simulation.records import Records
from capplan.simulation.request import Request
from capplan.simulation.rules import RankRules, StepTime

OnFinish = Callable[[Request, float], Request | None]
Routing = Literal["random", "round-robin", "least-loaded", "least-kv"]


class DecodePool:
    """Equal instances of ranks behind one router.

    ``feed`` yields requests in order of the time they reach the pool. ``on_finish(request, time)`` is told of every
    complete request; a closed loop answers with the next one (which may reach the pool later).
    """

    def __init__(
        self,
        instances: int,
        ranks: int,
        rules: RankRules,
        times: StepTime,
        routing: Routing,
        random: Random,
    ) -> None:
        self.records = Records()
        self.instances = [Instance(ranks, rules, times, self.records) for _ in range(instances)]
        self.rules = rules
        self._ranks = ranks
        self._load = [0] * (instances * ranks)
        self._routing = routing
        self._random = random
        self._next = 0
        self._stopped = False
        self._on_finish: OnFinish | None = None
        self._events: list[tuple[float, int, int, Request | None]] = []
        self._order = count()

    # -- routing ---------------------------------------------------------------------------------------------------

    def _route(self, time: float) -> int:
        """The rank, over all instances, that a request goes to; the first of equals after the one chosen last."""
        load = self._load
        if len(load) == 1:
            return 0
        if self._routing == "random":
            return self._random.randrange(len(load))
        chosen = self._next
        if self._routing == "least-loaded":
            around = load[chosen:] + load[:chosen]
            chosen = (chosen + around.index(min(around))) % len(load)
        elif self._routing == "least-kv":
            work = [self._instance(rank).work_at(rank % self._ranks, time) for rank in range(len(load))]
            turned = work[chosen:] + work[:chosen]
            chosen = (chosen + turned.index(min(turned))) % len(load)
        self._next = (chosen + 1) % len(load)
        return chosen

    def _instance(self, rank: int) -> Instance:
        return self.instances[rank // self._ranks]

    # -- events ----------------------------------------------------------------------------------------------------

    def place(self, request: Request) -> None:
        """Put a request that is already under way into the pool, before it runs."""
        if self._too_long(request):
            return
        rank = self._route(0.0)
        self._load[rank] += 1
        request.rank = rank
        self._instance(rank).receive(rank % self._ranks, request, 0.0)

    def run(self, feed: Iterator[Request], on_finish: OnFinish | None = None) -> Records:
        """Run until the feed is empty and every request is complete, or a closed loop ends its feed."""
        self._on_finish = on_finish
        for index, instance in enumerate(self.instances):
            if any(rank.waiting for rank in instance.ranks):
                self._restart(index, 0.0)
        self._pull(feed)
        events = self._events
        while events and not self._stopped:
            time, order, index, request = heappop(events)
            if request is not None:
                if index < 0:
                    self._pull(feed)
                self._arrive(request, time)
            elif self.instances[index].version == order:
                self._boundary(index)
        return self.records

    def stop(self) -> None:
        """End the run after the present event."""
        self._stopped = True

    def _pull(self, feed: Iterator[Request]) -> None:
        request = next(feed, None)
        if request is not None:
            heappush(self._events, (request.submitted, -next(self._order), -1, request))

    def _arrive(self, request: Request, time: float) -> None:
        if self._too_long(request):
            return
        rank = self._route(time)
        self._load[rank] += 1
        request.rank = rank
        index = rank // self._ranks
        instance = self.instances[index]
        idle = instance.idle
        if instance.receive(rank % self._ranks, request, time):
            if idle:
                self._restart(index, time)
            else:
                heappush(self._events, (instance.end, instance.version, index, None))

    def _too_long(self, request: Request) -> bool:
        """Whether the KV pool of a rank cannot hold the request to its end; the engine refuses it."""
        if self.rules.blocks_of(request.prompt + request.output) <= self.rules.blocks:
            return False
        self.records.refused += 1
        if self._on_finish is not None:
            self._on_finish(request, request.submitted)
        return True

    def _boundary(self, index: int) -> None:
        """The run of an instance is over: completions, what they cause, and the next run."""
        instance = self.instances[index]
        time = instance.end
        for rank, request in instance.finish_run():
            self._load[index * self._ranks + rank] -= 1
            self.records.finished.append(request)
            following = self._on_finish(request, time) if self._on_finish is not None else None
            if following is not None:
                self._follow(following, time, index)
        self._restart(index, time)

    def _follow(self, request: Request, time: float, index: int) -> None:
        """The next request of a closed loop; one for the instance at its boundary is there before the next step."""
        if request.submitted > time:
            heappush(self._events, (request.submitted, -next(self._order), 0, request))
            return
        if self._too_long(request):
            return
        rank = self._route(time)
        self._load[rank] += 1
        request.rank = rank
        place, instance = rank // self._ranks, self._instance(rank)
        idle = instance.idle
        if place == index:
            instance.follow(rank % self._ranks, request)
        elif instance.receive(rank % self._ranks, request, time):
            if idle:
                self._restart(place, time)
            else:
                heappush(self._events, (instance.end, instance.version, place, None))

    def _restart(self, index: int, time: float) -> None:
        instance = self.instances[index]
        instance.start(time)
        if not instance.idle:
            heappush(self._events, (instance.end, instance.version, index, None))
