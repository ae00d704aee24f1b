"""Event simulation of a decoding rank, sharing no code with the package.

Time is counted in steps: a request that takes D decode steps joins at a step boundary and leaves D boundaries later, so
one calendar of departures drives everything. Requests arrive as a Poisson stream in real time, that is Poisson with
mean rate * T in a step of length T = a + e * batch + c * context. Many independent ranks run side by side as arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Table = tuple[np.ndarray, np.ndarray]
"""Prompt tokens and decode steps of equally likely requests, as integer arrays."""


@dataclass(frozen=True)
class Simulated:
    """Figures of a run, each as (value, standard error): seconds, batch in requests."""

    step_mean: tuple[float, float]
    step_mean_over_time: tuple[float, float]
    step_p99: tuple[float, float]
    tpot_p99: tuple[float, float]
    tpot_mean: tuple[float, float]
    batch_mean: tuple[float, float]
    batch_p99: tuple[float, float]


def simulate(
    table: Table,
    a: float,
    e: float,
    c: float,
    rate: float,
    *,
    warm_steps: int,
    steps: int,
    ranks: int = 600,
    seed: int = 1,
    start: float = 0.0,
) -> Simulated:
    """Run ``ranks`` copies for ``warm_steps + steps`` steps, from a Poisson population of mean ``start``."""
    random = np.random.default_rng(seed)
    prompts, lengths = table
    longest = int(lengths.max())
    leaving_count = np.zeros((longest + 1, ranks), dtype=np.int32)
    leaving_tokens = np.zeros((longest + 1, ranks), dtype=np.int64)
    batch, tokens = _population(table, random, start, ranks, leaving_count, leaving_tokens)
    total = warm_steps + steps
    clock = np.zeros((steps + 1, ranks), dtype=np.float64)
    batches = np.zeros((steps, ranks), dtype=np.int32)
    arrivals = np.zeros(ranks, dtype=np.int64)
    tagged: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for step in range(total):
        slot = step % (longest + 1)
        batch -= leaving_count[slot]
        tokens -= leaving_tokens[slot]
        leaving_count[slot] = 0
        leaving_tokens[slot] = 0
        if arrivals.any():
            where = np.repeat(np.arange(ranks), arrivals)
            drawn = random.integers(0, len(lengths), len(where))
            prompt, length = prompts[drawn], lengths[drawn]
            batch += arrivals.astype(batch.dtype)
            tokens += np.bincount(where, prompt, ranks).astype(np.int64)
            _book(leaving_count, leaving_tokens, (step + length) % (longest + 1), where, prompt + length)
            if step >= warm_steps:
                tagged.append((np.full(len(where), step - warm_steps), where, length))
        duration = a + e * batch + c * tokens
        tokens += batch
        arrivals = random.poisson(rate * duration)
        if step >= warm_steps:
            clock[step - warm_steps + 1] = clock[step - warm_steps] + duration
            batches[step - warm_steps] = batch
    return _figures(clock, batches, tagged, steps - longest)


def _book(count: np.ndarray, held: np.ndarray, slot: np.ndarray, where: np.ndarray, final_tokens: np.ndarray) -> None:
    np.add.at(count, (slot, where), 1)
    np.add.at(held, (slot, where), final_tokens)


def _population(
    table: Table,
    random: np.random.Generator,
    mean_batch: float,
    ranks: int,
    count: np.ndarray,
    held: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """A Poisson number of requests in every rank, each of length-biased length and uniform age."""
    number = random.poisson(mean_batch, ranks)
    prompts, lengths = table
    chosen = random.choice(len(lengths), int(number.sum()), p=lengths / lengths.sum())
    prompt, length = prompts[chosen], lengths[chosen]
    age = (random.random(len(length)) * length).astype(np.int64)
    where = np.repeat(np.arange(ranks), number)
    # A request of age u has D - u steps to go; none leaves at step 0.
    _book(count, held, length - age, where, prompt + length)
    return number.astype(np.int32), np.bincount(where, prompt + age, ranks).astype(np.int64)


def _figures(
    clock: np.ndarray, batches: np.ndarray, tagged: list[tuple[np.ndarray, np.ndarray, np.ndarray]], last_start: int
) -> Simulated:
    duration = np.diff(clock, axis=0)[::7]
    sampled = batches[::7]
    first, where, length = (np.concatenate(column) for column in zip(*tagged, strict=True))
    whole = first < last_start
    first, where, length = first[whole], where[whole], length[whole]
    tpot = (clock[first + length, where] - clock[first, where]) / length
    groups = np.array_split(np.arange(clock.shape[1]), 12)

    def spread(figure: Callable[[np.ndarray], float]) -> tuple[float, float]:
        parts = [figure(group) for group in groups]
        return figure(np.arange(clock.shape[1])), float(np.std(parts, ddof=1) / np.sqrt(len(parts)))

    def of_requests(function: Callable[[np.ndarray], float]) -> Callable[[np.ndarray], float]:
        return lambda group: function(tpot[(where >= group[0]) & (where <= group[-1])])

    def p99(values: np.ndarray, weights: np.ndarray) -> float:
        order = np.argsort(values)
        mass = np.cumsum(weights[order])
        return float(values[order][np.searchsorted(mass, 0.99 * mass[-1])])

    def over_time(group: np.ndarray) -> float:
        d = duration[:, group]
        return float((d * d).sum() / d.sum())

    return Simulated(
        step_mean=spread(lambda g: float(duration[:, g].mean())),
        step_mean_over_time=spread(over_time),
        step_p99=spread(lambda g: p99(duration[:, g].ravel(), duration[:, g].ravel())),
        tpot_p99=spread(of_requests(lambda t: float(np.quantile(t, 0.99)))),
        tpot_mean=spread(of_requests(lambda t: float(t.mean()))),
        batch_mean=spread(lambda g: float((sampled[:, g] * duration[:, g]).sum() / duration[:, g].sum())),
        batch_p99=spread(lambda g: p99(sampled[:, g].ravel().astype(float), duration[:, g].ravel())),
    )
