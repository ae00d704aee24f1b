"""The scheduler rules of vLLM v1 on one rank, step by step and block by block; shares no code with the package."""

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


@dataclass
class Engine:
    """One rank; ``jobs`` arrive at their times, and in a closed loop the next of ``reserve`` follows a completion."""

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
    time: float = 0.0
    steps: int = 0
    generated: int = 0
    lost: int = 0

    def run(self, jobs: list[Job], following: list[Job]) -> None:
        """Until all of ``jobs`` and, one after each completion, of ``following`` are done."""
        coming, following = list(jobs), list(following)
        while coming or self.running or self.waiting:
            if not self.running and not self.waiting:
                self.time = max(self.time, coming[0].arrival)
            while coming and coming[0].arrival <= self.time:
                self.waiting.append(coming.pop(0))
            for _ in range(self.step()):
                if following:
                    job = following.pop(0)
                    job.arrival = self.time
                    self.waiting.append(job)

    @property
    def free(self) -> int:
        return self.blocks - sum(job.blocks for job in self.running)

    def need(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def step(self) -> int:
        """One step; returns the number of completions."""
        left, planned, preempted = self.budget, {}, False
        decoding = [job for job in self.running if job.decodes]
        prompts = [job for job in self.running if not job.decodes]
        for job in decoding:
            if job in self.running and self._grow(job, 1):
                planned[job] = 1
                left -= 1
            preempted = preempted or job not in self.running
        left = self.budget - len([job for job in planned if job in self.running])
        for job in prompts:
            chunk = min(left, job.prompt + job.made - job.computed)
            if job in self.running and self._grow(job, chunk):
                planned[job] = chunk
                left -= chunk
            preempted = preempted or job not in self.running
        while self.waiting and not preempted and len(self.running) < self.cap and left > 0:
            job = self.waiting[0]
            tokens = job.prompt + job.made
            if self.need(tokens) + (self.watermark if self.running else 0) > self.free:
                break
            self.running.append(self.waiting.pop(0))
            job.computed, job.decodes = (tokens - 1, True) if job.loaded else (0, False)
            planned[job] = min(left, tokens - job.computed)
            job.blocks = self.need(job.computed + planned[job])
            left -= planned[job]
        return self._execute({job: n for job, n in planned.items() if job in self.running})

    def _grow(self, job: Job, tokens: int) -> bool:
        more = self.need(job.computed + tokens) - job.blocks
        while more > self.free:
            victim = self.running.pop()
            self.lost += victim.computed
            victim.blocks, victim.loaded = 0, self.swap
            victim.computed = 0
            victim.preemptions += 1
            self.waiting.insert(0, victim)
            if victim is job:
                return False
        job.blocks += more
        return True

    def _execute(self, planned: dict[Job, int]) -> int:
        seconds = self.a
        for job, tokens in planned.items():
            if job.decodes:
                seconds += self.e + self.c * job.computed
            else:
                seconds += self.d * tokens
        self.time += seconds
        self.steps += 1
        done = 0
        for job, tokens in planned.items():
            job.computed += tokens
            job.loaded = False
            if job.computed == job.prompt + job.made:
                job.made += 1
                job.decodes = True
                self.generated += 1
                job.first = self.time if job.first is None else job.first
                if job.made == job.output:
                    job.finish = self.time
                    self.running.remove(job)
                    done += 1
        return done
