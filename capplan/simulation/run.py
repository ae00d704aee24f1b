"""A run of a decode pool: from warm-up to the last measured request, open or closed loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from random import Random

import numpy as np
from numpy.typing import NDArray

from capplan.simulation.instance import Instance
from capplan.simulation.intervals import Estimate, mean, ratio
from capplan.simulation.pool import DecodePool
from capplan.simulation.records import Records
from capplan.simulation.request import Request

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]
"""Told of the measured requests that are complete, and how many there will be."""

WARM_UP = 0.1
"""Share of the measured requests that come before them and are dropped, on top of a stationary start."""
_TOLD = 2000


class Counter:
    """Marks the requests to be measured as they are made, and stops the pool when the last of them is complete."""

    def __init__(self, pool: DecodePool, requests: int, progress: Progress | None = None) -> None:
        self.pool = pool
        self.warm = max(1, round(WARM_UP * requests))
        self.wanted = requests
        self.measured: list[Request] = []
        self._made = 0
        self._done = 0
        self._progress = progress

    def made(self, request: Request) -> Request:
        """Note a request that is on its way to the pool."""
        self._made += 1
        if self.warm < self._made <= self.warm + self.wanted:
            request.measured = True
            self.measured.append(request)
        return request

    def finished(self, request: Request) -> None:
        """Note a complete request, or one that is refused."""
        if not request.measured:
            return
        self._done += 1
        if self._progress is not None and self._done % _TOLD == 0:
            self._progress(self._done, self.wanted)
        if self._done >= self.wanted:
            self.pool.stop()


def run_open(pool: DecodePool, feed: Iterator[Request], requests: int, progress: Progress | None = None) -> Outcome:
    """Measure ``requests`` requests of a feed without end."""
    counter = Counter(pool, requests, progress)

    def told(request: Request, _: float) -> None:
        counter.finished(request)

    pool.run((counter.made(request) for request in feed), told)
    return Outcome(pool.records, counter.measured, pool.instances)


def run_closed(
    pool: DecodePool,
    first: list[Request],
    following: Callable[[float], Request],
    requests: int,
    progress: Progress | None = None,
) -> Outcome:
    """Measure ``requests`` requests of a closed loop: each that is complete makes way for the next.

    ``following`` makes the next request from the time of the completion.
    """
    counter = Counter(pool, requests, progress)

    def answer(request: Request, time: float) -> Request:
        counter.finished(request)
        return counter.made(following(time))

    for request in first:
        pool.place(request)
    pool.run(iter(()), answer)
    return Outcome(pool.records, counter.measured, pool.instances)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a run found, as arrays over the measured requests and over the time in which they arrived."""

    records: Records
    requests: list[Request] = field(repr=False)
    instances: list[Instance] = field(repr=False)

    @cached_property
    def window(self) -> tuple[float, float]:
        """First and last arrival of a measured request [s]."""
        return self.requests[0].submitted, self.requests[-1].submitted

    @cached_property
    def complete(self) -> list[Request]:
        """Measured requests that the engine did not refuse, by arrival."""
        return [request for request in self.requests if request.finish >= 0]

    def _inside(self, ends: list[float]) -> NDArray[np.bool_]:
        at = np.array(ends)
        return np.asarray((at > self.window[0]) & (at <= self.window[1]))

    @cached_property
    def steps(self) -> tuple[Array, Array, Array]:
        """Runs of steps: seconds a step, steps, tokens."""
        r, inside = self.records, self._inside(self.records.step_end)
        number, tokens = (np.array(column, float)[inside] for column in (r.step_count, r.step_tokens))
        return np.array(r.step_duration)[inside] / number, number, tokens

    @property
    def step_mean(self) -> float:
        """Mean step [s]."""
        seconds, number, _ = self.steps
        return float(seconds @ number / number.sum())

    @cached_property
    def states(self) -> tuple[Array, Array, Array, Array]:
        """States of ranks: seconds, decoding requests, share of blocks in use, whether some wait for blocks."""
        r, inside = self.records, self._inside(self.records.rank_end)
        columns = (r.rank_duration, r.rank_batch, r.rank_used, r.rank_short)
        seconds, batch, used, short = (np.array(column, float)[inside] for column in columns)
        return seconds, batch, used, short

    @cached_property
    def recompute_per_token(self) -> Estimate:
        """Tokens computed again (or swapped out) over tokens generated [1]."""
        r, inside = self.records, self._inside(self.records.step_end)
        ends = np.array(r.step_end)
        lost = np.zeros(len(ends))
        if r.loss_time:
            place = np.minimum(np.searchsorted(ends, np.array(r.loss_time)), len(ends) - 1)
            np.add.at(lost, place, np.array(r.loss_tokens, float))
        return ratio(lost[inside], np.array(r.step_tokens, float)[inside])

    @cached_property
    def batch(self) -> Estimate:
        """Decoding requests of a rank over time [1]."""
        seconds, batch, _, _ = self.states
        return mean(batch, seconds)

    @cached_property
    def kv_use(self) -> Estimate:
        """Share of the blocks of a rank in use over time [1]."""
        seconds, _, used, _ = self.states
        return mean(used, seconds)

    @cached_property
    def overflow(self) -> Estimate:
        """Share of time in which requests wait for blocks [1]."""
        seconds, _, _, short = self.states
        return mean(short, seconds)

    def column(self, of: Callable[[Request], float]) -> Array:
        """A figure of every measured request."""
        return np.array([of(request) for request in self.complete])


def seeded(seed: int) -> tuple[np.random.Generator, Random]:
    """The two sources of randomness of a run: lengths and arrivals, and routing."""
    return np.random.default_rng(seed), Random(seed)
