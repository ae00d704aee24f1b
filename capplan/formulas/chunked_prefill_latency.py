"""Percentiles of ITL, TPOT and TTFT of a rank that reads prompts in chunks between decode tokens.

Numerical routines in NumPy. Checked against 160 simulated configurations (a step of 6-25 ms, budgets of 512-8,192
tokens, prompts with a coefficient of variation up to 5, loads 0.2-0.92 of the largest rate).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from capplan.formulas.chunked_prefill_mixture import StepMixture
from capplan.formulas.chunked_prefill_numeric import ChunkedRank
from capplan.formulas.distinct import summed
from capplan.formulas.queueing_numeric import MgkQueue, mgk_queue
from capplan.formulas.special import gamma_cdf, gamma_quantile
from capplan.formulas.special_arrays import GammaLaws

FloatArray = NDArray[np.float64]

_STEP_NODES = 31
_HIGHEST_LOAD = 0.995
_TTFT_TAIL = 0.9
_TTFT_TAIL_FACTOR = 1.09
"""From P90 on the fluid queue is this much too short (chosen on the simulated configurations)."""


@dataclass(frozen=True, eq=False)
class AtomLaw:
    """A law of times as atoms: ``seconds`` in rising order, and their ``shares``, which sum to 1."""

    seconds: FloatArray
    shares: FloatArray

    @property
    def mean(self) -> float:
        """Mean [s]."""
        return float(self.seconds @ self.shares)

    @cached_property
    def _reached(self) -> FloatArray:
        return np.cumsum(self.shares)

    def quantile(self, probability: float) -> float:
        """The time that a share ``probability`` stays at or below [s]."""
        index = int(np.searchsorted(self._reached, probability))
        return float(self.seconds[min(index, len(self.seconds) - 1)])

    def share_within(self, seconds: float) -> float:
        """Share of at most ``seconds`` [-]."""
        index = int(np.searchsorted(self.seconds, seconds, side="right"))
        return float(self._reached[index - 1]) if index else 0.0


def gap_law(rank: ChunkedRank) -> AtomLaw:
    """Law of the gap between two tokens of a request (ITL), over gaps."""
    points, seconds = _step_atoms(rank)
    # a gap counts once per running request: steps with a larger batch weigh more
    batch = np.maximum(points - rank.empty_step, 0.0) / max(rank.decode_cost, 1e-300) + 1e-12
    return _weighed(seconds, np.outer(batch, rank.mixture.shares))


def step_law(rank: ChunkedRank) -> AtomLaw:
    """Law of the step that is running, over time: long steps weigh more."""
    _, seconds = _step_atoms(rank)
    return _weighed(seconds, seconds * rank.mixture.shares)


def _step_atoms(rank: ChunkedRank) -> tuple[FloatArray, FloatArray]:
    """Equally likely decode steps, and each of them with every number of prompt tokens [s]."""
    mean, variance = rank.decode_step, rank.spectrum.decode_variance
    points = _gamma_points(mean - rank.empty_step, variance) + rank.empty_step
    return points, np.add.outer(points, rank.mixture.seconds)


def _weighed(seconds: FloatArray, weights: FloatArray) -> AtomLaw:
    order = np.argsort(seconds, axis=None, kind="stable")
    return AtomLaw(seconds.ravel()[order], weights.ravel()[order] / weights.sum())


def _gamma_points(mean: float, variance: float) -> FloatArray:
    """Equally likely points of a gamma law."""
    if mean <= 0 or variance <= 1e-12 * mean * mean:
        return np.full(1, max(mean, 0.0))
    shape = mean * mean / variance
    shares = (np.arange(_STEP_NODES) + 0.5) / _STEP_NODES
    return np.array([gamma_quantile(shape, float(p)) * mean / shape for p in shares])


@dataclass(frozen=True, eq=False)
class TpotLaw:
    """TPOT over requests: for each length a shifted gamma law, mixed over the lengths; nowhere above a full step's.

    ``shift`` [s]; ``means``, ``variances`` of the law of each length above it; ``weights`` share of requests;
    ``full_mean``, ``full_variance`` of a step with the budget used up, above the shift as well [s, s^2].
    """

    shift: float
    means: FloatArray
    variances: FloatArray
    weights: FloatArray
    full_mean: float
    full_variance: float

    @cached_property
    def _laws(self) -> GammaLaws:
        return GammaLaws(self.means**2 / self.variances)

    def cdf(self, seconds: float) -> float:
        """Share of requests with a TPOT of at most ``seconds`` [-]."""
        above = max(0.0, seconds - self.shift)
        mixed = float(self.weights @ self._laws.cdf(above * self.means / self.variances))
        scale = self.full_mean / self.full_variance
        return max(mixed, float(gamma_cdf(self.full_mean * scale, above * scale)))

    def quantile(self, probability: float) -> float:
        """By bisection [s]."""
        spread = float(np.sqrt(self.variances.max()))
        low, high = self.shift, self.shift + float(self.means.max()) + 4 * spread
        while self.cdf(high) < probability:
            high = self.shift + 2 * (high - self.shift)
        while high - low > 1e-5 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self.cdf(middle) < probability else (low, middle)
        return high

    @property
    def mean(self) -> float:
        """Mean over requests [s]."""
        return self.shift + float(self.weights @ self.means)


def tpot_law(rank: ChunkedRank, groups: int = 24) -> TpotLaw:
    """TPOT of the requests with at least one decode step, their lengths in ``groups`` of equal share."""
    steps, weights, prompts = _length_groups(rank, groups)
    averages = [rank.spectrum.averaged(float(length)) for length in steps]
    variances = np.minimum([variance for variance, _ in averages], rank.step_variance)
    # overlapping prompts queue for the budget, so single steps vary less than the spectrum says
    bound = rank.step_variance * _held_back(rank, steps)
    seen = np.minimum([covariance for _, covariance in averages], bound) / rank.step_mean
    own = rank.sequence + rank.context * (prompts + steps / 2)
    means = np.minimum(rank.step_mean + seen + own, max(rank.full_step, rank.step_mean)) - rank.empty_step
    floor = 1e-10 * means**2
    full = max(rank.full_step, rank.step_mean) - rank.empty_step
    spread = max(_full_step_variance(rank), 1e-6 * full**2)
    return TpotLaw(rank.empty_step, means, np.maximum(variances, floor), weights, full, spread)


def _full_step_variance(rank: ChunkedRank) -> float:
    """Of a step with the budget used up: the batch varies, and what the tokens of its prompt attend to [s^2]."""
    cube = float(rank.weights @ rank.prompts**3)
    pairs = cube / (3 * rank.prompt_mean) - (rank.prompt_second / (2 * rank.prompt_mean)) ** 2
    return rank.spectrum.decode_variance + (rank.prefill_square * rank.room) ** 2 * pairs


def _held_back(rank: ChunkedRank, steps: FloatArray) -> FloatArray:
    """Mean correlation of a step with the ``steps`` after it when prompts queue for the budget.

    Their work is conserved, so the correlations keep their sum; single steps vary less, so they last longer.
    """
    relaxation = rank.spectrum.correlation_area / rank.step_variance
    y = steps / max(relaxation, 1e-9)
    return -np.expm1(-y) / y


def _length_groups(rank: ChunkedRank, groups: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    used = rank.steps > 0
    order = np.argsort(rank.steps[used], kind="stable")
    steps, weights, prompts = (array[used][order] for array in (rank.steps, rank.weights, rank.prompts))
    group = np.minimum(((np.cumsum(weights) - weights / 2) / weights.sum() * groups).astype(int), groups - 1)
    mass = np.bincount(group, weights, groups)
    kept = mass > 0
    means = [np.bincount(group, weights * values, groups)[kept] / mass[kept] for values in (steps, prompts)]
    return means[0], np.asarray(mass[kept] / mass.sum(), dtype=np.float64), means[1]


def ttft_law(rank: ChunkedRank) -> AtomLaw:
    """TTFT: rest of the running step, fluid wait for the prompts ahead, own prompt chunk by chunk.

    Averaged over three values of the batch; rest and own prompt are independent of the wait. Where ranks step together,
    a long prompt on another one makes both the running step and the next one long.
    """
    prompts, prompt_share = _prompt_groups(rank)
    met = [(share, *_residual_step(rank, mixture), others) for share, mixture, others in _met_steps(rank)]
    seconds: list[FloatArray] = []
    shares: list[FloatArray] = []
    for running, batch_share in _batch_points(rank):
        queue = _queue_at(rank, running, prompts, prompt_share)
        for share, rest, rest_share, others in met:
            own = queue.own if others is None else queue.own + rank.delayed_by(others, queue.last_chunk)
            for more_seconds, more_shares in _atoms(rank, queue, own, rest, rest_share):
                seconds.append(more_seconds)
                shares.append(batch_share * share * more_shares)
    values, weights = np.concatenate(seconds), np.concatenate(shares)
    order = np.argsort(values)
    seconds_in_order, ordered = values[order], weights[order] / weights.sum()
    stretch = np.where(np.cumsum(ordered) >= _TTFT_TAIL, _TTFT_TAIL_FACTOR, 1.0)
    return AtomLaw(seconds_in_order * stretch, ordered)


def _met_steps(rank: ChunkedRank) -> list[tuple[float, StepMixture, StepMixture | None]]:
    """Share of arrivals, steps that they find running, and what the other ranks read in the step after."""
    if rank.ranks == 1:
        return [(1.0, rank.mixture, None)]
    others, mixture = rank.own_mixture.longest_of(rank.ranks - 1), rank.mixture
    share = min(1.0, others.full_share * rank.full_step / rank.step_mean)
    left = max(0.0, mixture.full_share - others.full_share) / max(1 - others.full_share, 1e-9)
    full, again = mixture.with_full(1.0), rank.full_again
    calm = others.with_full(others.full_share * (1 - again))
    return [
        (share * again, full, others.with_full(1.0)),
        (share * (1 - again), full, others.ends(rank.full_chunk)),
        (1 - share, mixture.with_full(left), calm),
    ]


def _atoms(
    rank: ChunkedRank, queue: _Queue, own: FloatArray, rest: FloatArray, rest_share: FloatArray
) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Atoms of TTFT: nothing arrives behind the request in the running step, or something does."""
    joined = 1 - np.exp(-rank.request_rate * rest)
    # prompts that arrive later in the same step share the last chunk's step
    more = np.minimum(queue.spare[:, None], rank.request_rate * rest / joined * rank.prompt_mean)
    base = queue.wait_share[:, None, None] * queue.prompt_share[None, :, None] * rest_share[None, None, :]
    alone = queue.waits[:, None, None] + own[None, :, None] + rest[None, None, :]
    yield alone.ravel(), (base * (1 - joined)).ravel()
    yield (alone + rank.prefill * more[None]).ravel(), (base * joined).ravel()


def _residual_step(rank: ChunkedRank, mixture: StepMixture, points: int = 10) -> tuple[FloatArray, FloatArray]:
    """Rest of the step that an arrival finds running: a uniform part of a length-biased step."""
    lengths = rank.decode_step + mixture.seconds
    uniform = (np.arange(8) + 0.5) / 8
    values = np.multiply.outer(lengths, uniform).ravel()
    weights = np.repeat(mixture.shares * lengths, 8)
    return _equal_groups(values, weights, points)


def _equal_groups(values: FloatArray, weights: FloatArray, groups: int) -> tuple[FloatArray, FloatArray]:
    """A law compressed to means of groups of about equal mass."""
    order = np.argsort(values)
    values, weights = values[order], weights[order] / weights.sum()
    group = np.minimum(((np.cumsum(weights) - weights / 2) * groups).astype(int), groups - 1)
    mass = np.bincount(group, weights, groups)
    kept = mass > 0
    means: FloatArray = np.bincount(group, weights * values, groups)[kept] / mass[kept]
    return means, np.asarray(mass[kept], dtype=np.float64)


def _batch_points(rank: ChunkedRank) -> list[tuple[float, float]]:
    """Three Gauss points of the batch around its mean."""
    deviation = math.sqrt(rank.spectrum.decode_variance) / max(rank.decode_cost, 1e-300)
    reach = min(math.sqrt(3) * deviation, rank.running)
    return [(rank.running - reach, 1 / 6), (rank.running, 2 / 3), (rank.running + reach, 1 / 6)]


@dataclass(frozen=True, eq=False)
class _Queue:
    """At one batch: waits for the prompts ahead and their shares; own time of each prompt [s], the tokens of its last
    chunk, and those that its last step has left."""

    waits: FloatArray
    wait_share: FloatArray
    prompt_share: FloatArray
    own: FloatArray
    last_chunk: FloatArray
    spare: FloatArray


def _queue_at(rank: ChunkedRank, running: float, prompts: FloatArray, weights: FloatArray) -> _Queue:
    room = max(rank.token_budget - running, 0.02 * rank.token_budget)
    decode = rank.empty_step + rank.decode_cost * running
    service = rank.fluid_service(prompts, decode, room)
    rate = min(rank.request_rate, _HIGHEST_LOAD / float(weights @ service))
    waits, wait_share = _wait_points(mgk_queue(rate, service, weights, 1, rank.arrival_variation))
    chunks = np.ceil(prompts / room - 1e-9)
    own = rank.prefill * prompts + rank.prefill_square * prompts**2 / 2 + decode * chunks
    spare = chunks * room - prompts
    full_step = decode + rank.prefill * room
    return _Queue(np.maximum(waits - full_step / 2, 0.0), wait_share, weights, own, room - spare, spare)


def _prompt_groups(rank: ChunkedRank, groups: int = 28) -> tuple[FloatArray, FloatArray]:
    """The law of the prompt alone, in at most ``groups`` points; the longest prompts keep points of their own."""
    values, weights = summed(np.maximum(rank.prompts, 1.0), rank.weights)
    if len(values) <= groups:
        return values, np.asarray(weights, dtype=np.float64)
    importance = weights + weights * values**2 / float(weights @ values**2)
    group = np.minimum(((np.cumsum(importance) - importance / 2) / importance.sum() * groups).astype(int), groups - 1)
    mass = np.bincount(group, weights, groups)
    kept = mass > 0
    means: FloatArray = np.bincount(group, weights * values, groups)[kept] / mass[kept]
    return means, np.asarray(mass[kept], dtype=np.float64)


def _wait_points(queue: MgkQueue, points: int = 36) -> tuple[FloatArray, FloatArray]:
    """Wait of the fluid queue in few atoms: nothing, even groups of the body, ever smaller ones of the tail."""
    seconds, weights = queue.wait_atoms()
    edges = np.concatenate([np.linspace(0, 0.9, points // 2), 1 - np.geomspace(0.1, 1e-4, points // 2 + 1)[1:]])
    tail = np.cumsum(weights[1:]) / max(weights[1:].sum(), 1e-300)
    group = np.searchsorted(edges, tail - weights[1:] / 2 / max(weights[1:].sum(), 1e-300), side="right")
    mass = np.bincount(group, weights[1:])
    kept = mass > 0
    means = np.bincount(group, weights[1:] * seconds[1:])[kept] / mass[kept]
    return np.concatenate([[0.0], means]), np.concatenate([weights[:1], mass[kept]])
