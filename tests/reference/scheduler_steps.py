"""The scheduler rules of vLLM v1, step by step and block by block; shares no code with the package."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False)
class Job:
    """A request: what it needs, the tokens generated and computed, its blocks, and what happened to it."""

    prompt: int
    output: int
    arrival: float
    made: int = 0
    computed: int = 0
    blocks: int = 0
    loaded: bool = False
    decodes: bool = False
    first: float | None = None
    finish: float | None = None
    preemptions: int = 0


@dataclass(eq=False)
class Engine:
    """One rank."""

    blocks: int
    block_size: int
    cap: int
    budget: int
    a: float
    e: float
    c: float
    d: float
    watermark: int = 0
    swap: bool = False
    running: list[Job] = field(default_factory=list)
    waiting: list[Job] = field(default_factory=list)
    lost: int = 0
    planned: dict[Job, int] = field(default_factory=dict)

    @property
    def free(self) -> int:
        return self.blocks - sum(job.blocks for job in self.running)

    def need(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def plan(self) -> float:
        """Decide a step; returns its seconds."""
        planned: dict[Job, int] = {}
        preemptions = self.lost_count
        for job in [job for job in self.running if job.decodes]:
            if job in self.running and self._grow(job, 1):
                planned[job] = 1
        left = self.budget - len([job for job in planned if job in self.running])
        for job in [job for job in self.running if not job.decodes]:
            chunk = min(left, job.prompt + job.made - job.computed)
            if job in self.running and self._grow(job, chunk):
                planned[job] = chunk
                left -= chunk
        if self.lost_count == preemptions:
            self._admit(planned, left)
        self.planned = {job: tokens for job, tokens in planned.items() if job in self.running}
        return self.a + sum(self._seconds(job, tokens) for job, tokens in self.planned.items())

    def _admit(self, planned: dict[Job, int], left: int) -> None:
        while self.waiting and len(self.running) < self.cap and left > 0:
            job = self.waiting[0]
            tokens = job.prompt + job.made
            if self.need(tokens) + (self.watermark if self.running else 0) > self.free:
                break
            self.running.append(self.waiting.pop(0))
            job.computed, job.decodes = (tokens - 1, True) if job.loaded else (0, False)
            planned[job] = min(left, tokens - job.computed)
            job.blocks = self.need(job.computed + planned[job])
            left -= planned[job]

    def _grow(self, job: Job, tokens: int) -> bool:
        """Blocks for so many more tokens, from the last admitted if there are none; False if that is the job."""
        more = self.need(job.computed + tokens) - job.blocks
        while more > self.free:
            victim = self.running.pop()
            self.lost += victim.computed
            victim.blocks, victim.computed, victim.loaded = 0, 0, self.swap
            victim.preemptions += 1
            self.lost_count += 1
            self.waiting.insert(0, victim)
            if victim is job:
                return False
        job.blocks += more
        return True

    lost_count: int = 0

    def _seconds(self, job: Job, tokens: int) -> float:
        return self.e + self.c * job.computed if job.decodes else self.d * tokens

    def apply(self, time: float) -> int:
        """The step ends at ``time``; returns the number of completions."""
        done = 0
        for job, tokens in self.planned.items():
            job.computed += tokens
            job.loaded = False
            if job.computed == job.prompt + job.made:
                job.made += 1
                job.decodes = True
                job.first = time if job.first is None else job.first
                if job.made == job.output:
                    job.finish = time
                    self.running.remove(job)
                    done += 1
        return done


def run_together(engines: list[Engine], jobs: list[Job], following: list[Job]) -> int:
    """Ranks that step together, jobs going to them in turn; returns the number of steps.

    In a closed loop the next of ``following`` comes after each completion.
    """
    coming, later = list(jobs), list(following)
    time, steps, turn = 0.0, 0, 0
    while coming or any(engine.running or engine.waiting for engine in engines):
        if not any(engine.running or engine.waiting for engine in engines):
            time = max(time, coming[0].arrival)
        while coming and coming[0].arrival <= time:
            engines[turn % len(engines)].waiting.append(coming.pop(0))
            turn += 1
        time += max(engine.plan() for engine in engines)
        steps += 1
        for _ in range(sum(engine.apply(time) for engine in engines)):
            if later:
                later[0].arrival = time
                engines[turn % len(engines)].waiting.append(later.pop(0))
                turn += 1
    return steps
