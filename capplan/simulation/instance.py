"""Ranks that step together: a step lasts as long as its slowest rank needs."""

from __future__ import annotations

import math

from capplan.simulation.rank import Rank
from capplan.simulation.records import Records
from capplan.simulation.request import Request
from capplan.simulation.rules import RankRules, StepTime

Piece = tuple[int, float, float]
"""Steps, seconds of the first of them, and by how much each is longer than the one before."""


class Instance:
    """One instance: its ranks, its step count, and the run of steps it is in.

    The run started at ``time`` with step ``step`` and ends at ``end``, after the steps of ``pieces``. An idle instance
    is in no run.
    """

    def __init__(self, ranks: int, rules: RankRules, times: StepTime, records: Records) -> None:
        self.ranks = [Rank(rules, times) for _ in range(ranks)]
        self.times = times
        self.records = records
        self.step = 0
        self.time = 0.0
        self.end = math.inf
        self.pieces: list[Piece] = []
        self.run_steps = 0
        self.present = 0
        """Requests running and waiting."""
        self.version = 0
        """Counts the runs planned, so that a run that was cut short is known as such."""
        self._seen = [0.0] * ranks
        times.until(1)
        self._lines = [(times.constant[0], 0.0)] * ranks
        self._blocks = rules.blocks

    @property
    def idle(self) -> bool:
        """Whether no step is under way."""
        return not self.pieces

    # -- runs ------------------------------------------------------------------------------------------------------

    def start(self, time: float) -> None:
        """Begin the next run of steps at ``time``, or become idle."""
        self.time = time
        extra: dict[int, float] = {}
        joined: list[Rank] = []
        for index, rank in enumerate(self.ranks):
            if rank.due <= self.step:
                if seconds := self._begin(index, rank):
                    extra[index] = seconds
                if rank.joined:
                    joined.append(rank)
        self.version += 1
        self.pieces, self.end, self.run_steps = [], math.inf, 0
        if self.present:
            self._plan(extra)
            self._first_tokens(joined)

    def _begin(self, index: int, rank: Rank) -> float:
        before, again = rank.preemptions, rank.lost - rank.reused
        self._note(index, rank)
        extra = rank.begin(self.step, self.time)
        if rank.preemptions > before or rank.lost - rank.reused != again:
            self.records.loss_time.append(self.time)
            self.records.loss_tokens.append(rank.lost - rank.reused - again)
        n, slope = rank.decoding, self._tabulated(rank.decoding) * rank.decoding
        at = self.times.constant[n] + self.times.per_token[n] * rank.context
        self._lines[index] = (at - slope * self.step, slope)
        return extra

    def _tabulated(self, batch: int) -> float:
        if batch >= len(self.times.per_token):
            self.times.until(batch)
        return self.times.per_token[batch]

    def _plan(self, extra: dict[int, float]) -> None:
        """Steps until some rank must be looked at, and how long they last."""
        steps = max(1, min([rank.due for rank in self.ranks]) - self.step)
        if len(self.ranks) == 1:
            at, slope = self._lines[0]
            self.pieces = [(steps, at + slope * self.step + extra.get(0, 0.0), slope)]
        elif extra or steps == 1:
            seconds = [at + slope * self.step for at, slope in self._lines]
            for index, more in extra.items():
                seconds[index] += more
            self.pieces = [(steps, max(seconds), 0.0)]
        else:
            self.pieces = slowest_pieces(self._lines, self.step, steps)
        self.run_steps = steps
        self.end = self.time + sum([seconds_of(*piece) for piece in self.pieces])

    def _first_tokens(self, joined: list[Rank]) -> None:
        """Requests that decode from this step on get a token at its end."""
        for rank in joined:
            for request in rank.joined:
                rank.token(request, self.time + self.pieces[0][1])
            rank.joined.clear()

    def finish_run(self) -> list[tuple[int, Request]]:
        """Take the run as done; returns the ranks' numbers and the requests that are complete."""
        steps, records = self.run_steps, self.records
        records.step_end.append(self.end)
        records.step_duration.append(self.end - self.time)
        records.step_count.append(steps)
        records.step_tokens.append(steps * sum([rank.decoding for rank in self.ranks]))
        self.step += steps
        self.time = self.end
        done: list[tuple[int, Request]] = []
        for index, rank in enumerate(self.ranks):
            if rank.due <= self.step:
                self._note(index, rank)
                done += [(index, request) for request in rank.end(self.step, self.time)]
        self.present -= len(done)
        return done

    def _note(self, index: int, rank: Rank) -> None:
        """Write down the state a rank was in until now."""
        duration = self.time - self._seen[index]
        if duration <= 0.0:
            return
        batch, free = rank.decoding, rank.free
        rank.pass_steps(self.step)
        records = self.records
        records.rank_end.append(self.time)
        records.rank_duration.append(duration)
        records.rank_batch.append(batch)
        records.rank_used.append(1.0 - (free + rank.free) / (2 * self._blocks))
        records.rank_short.append(rank.short)
        self._seen[index] = self.time

    # -- arrivals --------------------------------------------------------------------------------------------------

    def receive(self, index: int, request: Request, time: float) -> bool:
        """Put a request into the queue of a rank at ``time``; returns whether the run now ends earlier, or starts."""
        rank = self.ranks[index]
        held_back = rank.held_back
        rank.waiting.append(request)
        self.present += 1
        if self.idle:
            rank.due = self.step
            return True
        if held_back:
            return False
        return self._cut(rank, time)

    def follow(self, index: int, request: Request) -> None:
        """Put a request into the queue of a rank between two runs."""
        self.ranks[index].waiting.append(request)
        self.ranks[index].due = self.step
        self.present += 1

    def _cut(self, rank: Rank, time: float) -> bool:
        """End the run at the first boundary at or after ``time``."""
        steps, end, kept = 0, self.time, []
        for number, first, slope in self.pieces:
            whole = seconds_of(number, first, slope)
            if end + whole < time:
                kept.append((number, first, slope))
                steps, end = steps + number, end + whole
                continue
            inside = steps_until(time - end, number, first, slope)
            kept.append((inside, first, slope))
            steps, end = steps + inside, end + seconds_of(inside, first, slope)
            break
        earlier = steps < self.run_steps
        rank.due = min(rank.due, self.step + steps)
        if earlier:
            self.pieces, self.end, self.run_steps = kept, end, steps
            self.version += 1
        return earlier

    def work_at(self, index: int, time: float) -> float:
        """What the requests of a rank, waiting ones included, add to a step at ``time``, e n + c S [s]."""
        rank, times = self.ranks[index], self.times
        passed = self.step - rank.seen
        if self.pieces and self.end > self.time:
            passed += int(self.run_steps * min(1.0, max(0.0, (time - self.time) / (self.end - self.time))))
        tokens = rank.context + rank.decoding * passed + sum([r.prompt + r.made for r in rank.waiting])
        batch = rank.decoding + len(rank.waiting)
        slope = self._tabulated(batch)
        return times.constant[batch] - times.constant[0] + slope * tokens


def seconds_of(steps: int, first: float, slope: float) -> float:
    """Time of so many steps, each ``slope`` longer than the one before [s]."""
    return steps * (first + slope * (steps - 1) / 2)


def steps_until(seconds: float, most: int, first: float, slope: float) -> int:
    """Fewest steps, at least one and at most ``most``, that last ``seconds`` or longer.

    Examples
    --------
    >>> steps_until(3.0, 10, 1.0, 0.0), steps_until(3.1, 10, 1.0, 0.0), steps_until(2.1, 10, 1.0, 0.1)
    (3, 4, 2)
    """
    if slope * most < 1e-9 * first:
        steps = math.ceil(seconds / first)
    else:
        middle = first - slope / 2
        steps = math.ceil((math.sqrt(middle * middle + 2 * slope * max(seconds, 0.0)) - middle) / slope)
    steps = min(max(steps, 1), most)
    while steps > 1 and seconds_of(steps - 1, first, slope) >= seconds:
        steps -= 1
    while steps < most and seconds_of(steps, first, slope) < seconds:
        steps += 1
    return steps


def slowest_pieces(lines: list[tuple[float, float]], step: int, steps: int) -> list[Piece]:
    """The largest of linear functions of the step count over ``steps`` steps from ``step`` on, piece by piece.

    Examples
    --------
    >>> slowest_pieces([(1.0, 0.0), (0.0, 0.5)], 0, 5)
    [(3, 1.0, 0.0), (2, 1.5, 0.5)]
    """
    pieces: list[Piece] = []
    last = step + steps - 1
    while step <= last:
        here, slope = max([(at + slope * step, slope) for at, slope in lines])
        there = max([at + slope * last for at, slope in lines])
        number = last - step + 1
        if here + slope * (last - step) < there * (1 - 1e-12):
            ahead = [
                (here - at - other * step) / (other - slope) for at, other in lines if other > slope
            ]  # steps until another rank is the slowest
            number = min(number, math.floor(min(ahead)) + 1)
        pieces.append((number, here, slope))
        step += number
    return pieces
