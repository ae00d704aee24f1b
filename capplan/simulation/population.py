"""The requests of a run: drawn lengths, and those under way when it begins."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from capplan.cards.workload import Workload
from capplan.simulation.request import Request

_AT_ONCE = 8192


def lengths(workload: Workload, random: np.random.Generator) -> Iterator[tuple[int, int]]:
    """Prompt and output tokens of one request after another, without end; at least one token each."""
    while True:
        prompts, outputs = workload.sample(_AT_ONCE, int(random.integers(1 << 62)))
        whole = [np.maximum(np.rint(column), 1.0).astype(np.int64).tolist() for column in (prompts, outputs)]
        yield from zip(*whole, strict=True)


def under_way(workload: Workload, number: int, random: np.random.Generator) -> list[Request]:
    """``number`` requests as they are found running: long ones more often, each at a uniform place, oldest first.

    Their KV cache is there already. A sample of 64 requests for each of them stands for the law.
    """
    prompts, outputs = workload.sample(max(4096, 64 * number), int(random.integers(1 << 62)))
    steps = np.maximum(np.rint(outputs), 1.0) - 1.0
    if number == 0 or steps.sum() <= 0:
        return []
    chosen = random.choice(len(steps), number, p=steps / steps.sum())
    made = 1 + np.floor(random.random(number) * steps[chosen]).astype(int)
    order = np.argsort(-made)
    requests = []
    for place, age in zip(chosen[order], made[order], strict=True):
        prompt = max(1, round(float(prompts[place])))
        requests.append(Request(prompt, int(steps[place]) + 1, 0.0, int(age), loaded=True))
        requests[-1].first = 0.0
    return requests
