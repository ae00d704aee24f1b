"""One rank under the scheduler rules of vLLM v1: admission in order, the last admitted is preempted, recompute.

Steps in which nothing happens but that every running request gains a token are not simulated one by one: the rank
says how many of them lie ahead, and catches up when it is looked at again.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from itertools import count

from capplan.simulation.free_list import FreeList
from capplan.simulation.growth import EvenGrowth, Growth, TabulatedGrowth
from capplan.simulation.request import Request
from capplan.simulation.rules import RankRules, StepTime

NEVER = 1 << 60


def _entry_of_taker(taker: tuple[Request, int]) -> int:
    return taker[0].entry


class Rank:
    """Running and waiting requests of a rank, and the blocks of its KV pool.

    ``running`` keeps the order of admission, so its last item is the next victim. ``growth`` knows what the decoding
    requests take of the pool. ``free`` and ``context`` are those at the start of step ``seen``.
    """

    def __init__(self, rules: RankRules, times: StepTime) -> None:
        self.rules = rules
        self.times = times
        self.free = rules.blocks
        self.running: dict[Request, None] = {}
        self.waiting: deque[Request] = deque()
        self.prefilling: dict[Request, None] = {}
        self.growth: Growth = EvenGrowth(rules.block_size) if rules.held is None else TabulatedGrowth(rules.held)
        self.finishing: list[tuple[int, int, Request]] = []
        self.decoding = 0
        self.context = 0
        self.seen = 0
        self.due = NEVER
        """Step at whose start the rank must be looked at."""
        self.blocked = False
        """Whether the head of the queue does not fit into the free blocks."""
        self.short = False
        """Whether somebody who has a slot waits for blocks."""
        self.joined: list[Request] = []
        """Requests that decode from the step on that begins."""
        self.lost = 0
        """Tokens whose KV cache was dropped, or swapped out."""
        self.reused = 0
        """Of these, tokens found again in the free list."""
        self.preemptions = 0
        self._free_list = FreeList(rules.blocks) if rules.prefix_caching else None
        self._read: list[Request] = []
        self._room = 0
        self._number = count()

    @property
    def held_back(self) -> bool:
        """Whether an arrival has to wait for a completion: for a slot, or behind others for blocks."""
        return self.blocked or len(self.running) >= self.rules.max_num_seqs

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.running and not self.waiting

    # -- the start of a step ---------------------------------------------------------------------------------------

    def begin(self, step: int, time: float) -> float:
        """Decide step ``step``, which starts at ``time``; returns the seconds its prompt chunks add."""
        self.pass_steps(step)
        growing = self.growth.at(step)
        preempted, seconds = False, 0.0
        if growing > self.free or self.prefilling:
            before = self.preemptions
            self._find_blocks(step, time)
            self._room = self.rules.token_budget - self.decoding
            seconds = self._continue_prompts(step, time)
            preempted = self.preemptions > before
        else:
            self._room = self.rules.token_budget - self.decoding
        if self.waiting and not preempted and not self.blocked:
            seconds += self._admit(step, time)
        self.short = self._waits_for_blocks(preempted, step)
        self.due = step + (1 if self.prefilling or preempted else self._quiet_steps(step))
        return seconds

    def _waits_for_blocks(self, preempted: bool, step: int) -> bool:
        """Whether the head of the queue waits for blocks, not for a slot or the token budget of the step."""
        if not self.waiting or len(self.running) >= self.rules.max_num_seqs:
            return False
        return preempted or self.blocked or not self._fits(self.waiting[0], step)

    def pass_steps(self, step: int) -> None:
        """Catch up with the steps before ``step`` in which every decoding request gained a token."""
        passed = step - self.seen
        if passed and self.decoding:
            self._take(self.growth.taken(self.seen, step))
            self.context += self.decoding * passed
        self.seen = step

    def _quiet_steps(self, step: int) -> int:
        """Steps from ``step`` on in which nothing is decided: until the next completion, or until blocks run out."""
        finishing = self.finishing
        while finishing and finishing[0][2].finish_step != finishing[0][0]:
            heappop(finishing)
        if not finishing:
            return NEVER
        return self.growth.covered(step, finishing[0][0] - step, self.free)

    # -- blocks for the running ------------------------------------------------------------------------------------

    def _find_blocks(self, step: int, time: float) -> None:
        """Running requests in order of admission take the block they need; the last admitted gives way."""
        if self.growth.at(step) <= self.free:
            return
        served = 0
        for request, need in sorted(self.growth.takers(step), key=_entry_of_taker):
            while served + need > self.free and request.finish_step >= 0:
                self._preempt_last(step, time)
            if request.finish_step >= 0:
                served += need

    def _continue_prompts(self, step: int, time: float) -> float:
        """The next chunk of every prompt that is being read, in order; blocks as for the decoding."""
        seconds = 0.0
        for request in list(self.prefilling):
            if request not in self.prefilling:
                break
            chunk = min(request.left, self._room)
            need = self.rules.blocks_of(request.done + chunk) - self.rules.blocks_of(request.done)
            while request in self.prefilling and need > self.free - self.growth.at(step):
                self._preempt_last(step, time)
            if request in self.prefilling:
                seconds += self._read_chunk(request, chunk, need)
        return seconds

    def _read_chunk(self, request: Request, chunk: int, blocks: int) -> float:
        seconds = self.times.prompt_seconds(chunk, request.done)
        request.done += chunk
        request.left -= chunk
        self._room -= chunk
        self._take(blocks)
        if not request.left:
            self._read.append(request)
        return seconds

    def _preempt_last(self, step: int, time: float) -> None:
        """The last admitted request loses its blocks and goes to the front of the queue."""
        request, _ = self.running.popitem()
        if request in self.prefilling:
            del self.prefilling[request]
            held = request.done
        else:
            held = step - request.offset
            self._leave(request, held)
            request.made = held + 1 - request.prompt
        self._release(request, held)
        self.waiting.appendleft(request)
        if request.stalled < 0 and request.made:
            request.stalled = time

    def _take(self, blocks: int) -> None:
        self.free -= blocks
        if self._free_list is not None:
            self._free_list.take(blocks)

    def _give(self, blocks: int, request: Request | None = None) -> None:
        self.free += blocks
        if self._free_list is not None:
            self._free_list.put(blocks, request)

    def _release(self, request: Request, held: int) -> None:
        """Give the blocks of a victim back; with prefix caching they go to the end of the free list, tail first."""
        self._give(self.rules.blocks_of(held), request)
        request.loaded = self.rules.policy == "swap"
        request.preemptions += 1
        self.preemptions += 1
        self.lost += held
        self.blocked = False

    # -- admission -------------------------------------------------------------------------------------------------

    def _admit(self, step: int, time: float) -> float:
        """Requests from the head of the queue while they fit; returns the seconds of their first chunks."""
        rules, seconds = self.rules, 0.0
        while self.waiting and len(self.running) < rules.max_num_seqs and self._room > 0:
            request = self.waiting[0]
            if not self._fits(request, step):
                self.blocked = True
                break
            self.waiting.popleft()
            self.running[request] = None
            request.entry = next(self._number)
            if request.admitted < 0:
                request.admitted = time
            seconds += self._start(request, step)
        return seconds

    def _fits(self, request: Request, step: int) -> bool:
        """Whether all its tokens fit beside what the running take in this step, and beside the reservations."""
        rules = self.rules
        need = rules.blocks_of(request.prompt + request.made)
        spare = rules.watermark_blocks if self.running else 0
        if need + spare > self.free - self.growth.at(step):
            return False
        if rules.policy != "reserve" or not self.running:
            return True
        reserved = sum(self._reservation(other, step) for other in self.running)
        return reserved + max(need, rules.reserved_blocks(request)) <= rules.blocks

    def _reservation(self, request: Request, step: int) -> int:
        """Blocks a running request holds or has reserved."""
        held = request.done if request in self.prefilling else step - request.offset + 1
        return max(self.rules.blocks_of(held), self.rules.reserved_blocks(request))

    def _start(self, request: Request, step: int) -> float:
        """Admit a request: it decodes at once where its KV cache came with it, else its first chunk is read."""
        tokens = request.prompt + request.made
        if request.loaded:
            blocks = self.rules.blocks_of(tokens - 1)
            self._take(blocks)
            self._room -= 1
            self.joined.append(request)
            self._decode(request, step, tokens - 1)
            return 0.0
        request.done = self._cached(request)
        request.left = tokens - request.done
        self.free -= request.done // self.rules.block_size
        self.prefilling[request] = None
        chunk = min(request.left, self._room)
        blocks = self.rules.blocks_of(request.done + chunk) - request.done // self.rules.block_size
        return self._read_chunk(request, chunk, blocks)

    def _cached(self, request: Request) -> int:
        """Tokens of a preempted request whose blocks nobody has taken since; one token at least is computed."""
        if self._free_list is None:
            return 0
        found, size = self._free_list.found(request), self.rules.block_size
        blocks = min(found, (request.prompt + request.made - 1) // size)
        if found > blocks:
            self._free_list.put(found - blocks)
        self.reused += blocks * size
        return blocks * size

    def _decode(self, request: Request, step: int, cached: int) -> None:
        """Decode from ``step`` on, with so many tokens in the cache."""
        request.offset = offset = step - cached
        request.finish_step = finish = offset + request.prompt + request.output - 1
        self.growth.add(request)
        self.decoding += 1
        self.context += cached
        heappush(self.finishing, (finish, next(self._number), request))

    def _leave(self, request: Request, cached: int) -> None:
        """Stop decoding."""
        request.finish_step = -1
        self.growth.remove(request)
        self.decoding -= 1
        self.context -= cached

    # -- the end of a step -----------------------------------------------------------------------------------------

    def end(self, step: int, time: float) -> list[Request]:
        """What the steps before ``step`` brought to an end at ``time``; returns the requests that are complete."""
        self.pass_steps(step)
        done: list[Request] = []
        finishing = self.finishing
        while finishing and finishing[0][0] <= step:
            at, _, request = heappop(finishing)
            if request.finish_step == at:
                self._leave(request, held := request.prompt + request.output - 1)
                self._complete(request, held, time, done)
        if self._read:
            self._end_prompts(step, time, done)
        return done

    def _end_prompts(self, step: int, time: float, done: list[Request]) -> None:
        """Prompts read to their end have sampled a token."""
        for request in self._read:
            del self.prefilling[request]
            request.made += 1
            self.token(request, time)
            if request.made >= request.output:
                self._complete(request, request.done, time, done)
            else:
                self._decode(request, step, request.done)
        self._read.clear()

    def _complete(self, request: Request, held: int, time: float, done: list[Request]) -> None:
        del self.running[request]
        self._give(self.rules.blocks_of(held))
        self.blocked = False
        request.finish = time
        done.append(request)

    def token(self, request: Request, time: float) -> None:
        """Note a first token, or the first after a preemption."""
        if request.first < 0:
            request.first = time
        if request.stalled >= 0:
            request.largest_gap = max(request.largest_gap, time - request.stalled)
            request.stalled = -1.0
