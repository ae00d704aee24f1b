"""Steps of a rank that reads prompts in chunks between decode tokens: how many are full, how much they vary.

Numerical routines in NumPy: a spectrum for the variances; the steps are in :mod:`chunked_prefill_mixture`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capplan.formulas import chunked_prefill as closed
from capplan.formulas.chunked_prefill_mixture import StepMixture, full_chunks, step_mixture

FloatArray = NDArray[np.float64]

_FREQUENCIES = 120
_DELAY_TURNS = 10
_HIGHEST_LOAD = 0.98


@dataclass(frozen=True, eq=False)
class ChunkedRank:
    """A rank that mixes prefill and decode, with its requests as weighted nodes.

    Parameters
    ----------
    request_rate : Poisson arrivals lambda [1/s]
    empty_step, sequence, context : a, e, c of a decode step [s, s, s/token]
    prefill, prefill_square : d, g of a prompt [s/token, s/token^2]
    token_budget : tokens of a step M [tokens]
    prompts, steps, weights : nodes of prompt P, decode steps D, and their shares [tokens, tokens, -]
    arrival_variation : squared coefficient of variation of the arrivals at the rank; 1 is Poisson. Above 1 only the
        wait for the prompts ahead knows it [-]
    ranks : data-parallel ranks that step together, each with such arrivals: a step lasts as long as the longest of
        their chunks [-]
    delays : mean of that longest chunk over the mean of one rank's, found by :func:`stepping_together` [-]
    """

    request_rate: float
    empty_step: float
    sequence: float
    context: float
    prefill: float
    prefill_square: float
    token_budget: float
    prompts: FloatArray
    steps: FloatArray
    weights: FloatArray
    arrival_variation: float = 1.0
    ranks: int = 1
    delays: float = 1.0

    @cached_property
    def prompt_mean(self) -> float:
        """E[P] [tokens]."""
        return float(self.weights @ self.prompts)

    @cached_property
    def prompt_second(self) -> float:
        """E[P^2] [tokens^2]."""
        return float(self.weights @ self.prompts**2)

    @cached_property
    def steps_mean(self) -> float:
        """E[D] [tokens]."""
        return float(self.weights @ self.steps)

    @cached_property
    def decode_cost(self) -> float:
        """b = e + c theta: what a running request adds to a step [s]."""
        work = self.weights @ (self.steps * (self.prompts + 1 + (self.steps - 1) / 2))
        return self.sequence + self.context * float(work) / max(self.steps_mean, 1e-300)

    @cached_property
    def prompt_cost(self) -> float:
        """E[w_p] [s]."""
        return float(closed.prompt_seconds(self.prompt_mean, self.prompt_second, self.prefill, self.prefill_square))

    @cached_property
    def max_rate(self) -> float:
        """Largest stable request rate [1/s]."""
        return float(
            closed.aggregated_max_rate(
                self.empty_step,
                self.token_budget,
                self.prompt_mean,
                self.steps_mean,
                self.prompt_cost,
                self.decode_cost,
            )
        )

    @cached_property
    def load(self) -> float:
        """x [-]."""
        prompts = self.prompt_cost * self.delays
        return float(closed.aggregated_load(self.request_rate, prompts, self.decode_cost, self.steps_mean))

    @cached_property
    def step_mean(self) -> float:
        """Mean step [s]."""
        return float(closed.mean_step_seconds(self.empty_step, self.load))

    @cached_property
    def running(self) -> float:
        """Mean running requests n, steps weighted equally [-]."""
        return self.request_rate * self.steps_mean * self.step_mean

    @cached_property
    def room(self) -> float:
        """Prompt tokens that fit into a step beside the running requests [tokens]."""
        return max(self.token_budget - self.running, 1.0)

    @cached_property
    def full_chunk(self) -> float:
        """What a chunk of the whole room adds to a step, on average [s]."""
        attended, shares = full_chunks(self, 0.0)
        return self.room * (self.prefill + self.prefill_square * float(shares @ attended))

    @cached_property
    def decode_step(self) -> float:
        """Step without prefill T_d at the mean batch [s]."""
        return self.empty_step + self.decode_cost * self.running

    @cached_property
    def full_step(self) -> float:
        """Step with the budget used up [s]."""
        return self.decode_step + self.full_chunk

    def fluid_service(self, prompts: FloatArray, decode_step: float, room: float) -> FloatArray:
        """Time that prompts take while every step is full: their share of its decode part, and their own cost [s]."""
        return prompts * (decode_step / room + self.prefill) + self.prefill_square * prompts**2 / 2

    @cached_property
    def own_mixture(self) -> StepMixture:
        """How many steps read how many prompt tokens of this rank."""
        return step_mixture(self)

    @cached_property
    def mixture(self) -> StepMixture:
        """The same for the rank that reads most in each step."""
        return self.own_mixture.longest_of(self.ranks)

    def delayed_by(self, others: StepMixture, tokens: FloatArray) -> FloatArray:
        """What longer chunks of other ranks add to steps in which this one reads that many tokens [s]."""
        own = self.prefill * tokens + others.attention * tokens**2 / 2
        result: FloatArray = others.shares @ np.maximum(np.subtract.outer(others.seconds, own), 0.0)
        return result

    @cached_property
    def full_again(self) -> float:
        """Chance that the step after a full one is full too: its prompt has more than the room left [-]."""
        chunks = self.prompts / self.room
        long = float(self.weights @ np.where(chunks >= 1, chunks, 0.0))
        return float(self.weights @ np.maximum(chunks - 1, 0.0)) / long if long else 0.0

    @cached_property
    def step_variance(self) -> float:
        """Variance of the step time over steps, prompt tokens at their mean cost, as averages see it [s^2]."""
        shares, tokens = self.mixture.shares, self.mixture.tokens
        read = float(shares @ tokens**2 - (shares @ tokens) ** 2)
        token = self.prefill + self.prefill_square * self.prompt_second / (2 * self.prompt_mean)
        return self.spectrum.decode_variance + token**2 * read

    @cached_property
    def spectrum(self) -> StepSpectrum:
        """Second moments of the step time."""
        return StepSpectrum(self)


def stepping_together(rank: ChunkedRank, ranks: int) -> ChunkedRank:
    """The rank as one of several that step together, with the delay by chunks of the others.

    A chunk delays all ranks unless another rank reads at the same time: from all of them at a low load (``delays`` is
    then the number of ranks) to none when every step is full (1).
    """
    found = replace(rank, ranks=ranks)
    if ranks == 1:
        return found
    prompts, decode = rank.request_rate * rank.prompt_cost, rank.request_rate * rank.decode_cost * rank.steps_mean
    most = max(1.0, (_HIGHEST_LOAD - decode) / prompts)
    for _ in range(_DELAY_TURNS):
        if found.load >= 1:
            break
        own = found.own_mixture
        delays = own.longest_of(ranks).mean / own.mean
        found = replace(found, delays=min((found.delays + delays) / 2, most))
    return found


class StepSpectrum:
    r"""Variance of the step time, of its decode part, and of its average over the steps of one request.

    Arrivals come at rate lambda T per step, so the step time is a self-exciting (Hawkes) process; a request adds a
    pulse w_p over max(1, P/K) steps and then its decode weight. Its power spectrum is
    :math:`S(\omega) = \Lambda E|\hat w|^2 |R|^2`, :math:`R = 1/(1 - \lambda E[\hat w])`.
    """

    def __init__(self, rank: ChunkedRank) -> None:
        self._rank = rank
        longest = float(rank.steps.max()) + float(rank.prompts.max()) / rank.room
        self._w = np.geomspace(1e-3 / max(longest, 1.0), 60.0, _FREQUENCIES)
        pulse, decode = _transforms(rank, self._w)
        whole, lam = pulse + decode, rank.request_rate
        flow = lam * rank.step_mean
        mean_whole, mean_decode = _averaged(rank.weights, whole), _averaged(rank.weights, decode)
        # prompts of the other ranks delay the steps; what these decode is part of the line of the step
        others, mean_pulse = rank.delays - 1, _averaged(rank.weights, pulse)
        gain = 1 / (1 - lam * (mean_whole + others * mean_pulse))
        own = _averaged(rank.weights, _square(whole)) + others * _averaged(rank.weights, _square(pulse))
        cross = _averaged(rank.weights, whole * decode.conj())
        response = lam * mean_decode * gain
        self._step = flow * own * _square(gain)
        decode_own = _averaged(rank.weights, _square(decode))
        self._decode = flow * (decode_own + 2 * (response * cross).real + _square(response) * own)

    def _integral(self, values: FloatArray) -> float:
        """(1/pi) integral over frequency, the flat part below the lowest one added."""
        return float(np.trapezoid(values * self._w, np.log(self._w)) + values[0] * self._w[0]) / math.pi

    @cached_property
    def step_variance(self) -> float:
        """Variance of the step time over steps [s^2]."""
        return self._integral(self._step)

    @cached_property
    def decode_variance(self) -> float:
        """Variance of its decode part [s^2]."""
        return self._integral(self._decode)

    @property
    def correlation_area(self) -> float:
        """Sum of the covariances of a step with all later ones [s^2 steps]."""
        return float(self._step[0]) / 2

    def averaged(self, steps: float) -> tuple[float, float]:
        """Variance of the mean of ``steps`` consecutive steps [s^2], and its covariance with the step before [s^2]."""
        x = self._w * max(steps, 1.0) / 2
        window = np.where(x < 1e-4, 1.0, np.sin(x) / np.maximum(x, 1e-300))
        variance = self._integral(self._step * window**2)
        # the low-pass of a one-sided window; past its first zero it averages out
        after = np.where(x < math.pi / 2, np.sin(2 * x) / np.maximum(2 * x, 1e-300), 0.0)
        return variance, self._integral(self._step * np.where(x < 1e-4, 1.0, after))


def _averaged(weights: FloatArray, values: Any) -> Any:
    """Mean over the nodes at every frequency; a matrix product would start threads for so small a table."""
    return np.einsum("i,ij->j", weights, values)


def _square(values: Any) -> FloatArray:
    return np.asarray(values.real**2 + values.imag**2)


def _transforms(rank: ChunkedRank, w: FloatArray) -> tuple[Any, Any]:
    """Fourier transforms of the prefill pulse and of the decode weight of every node (nodes x frequencies)."""
    length = np.maximum(rank.prompts / rank.room, 1.0)[:, None]
    work = (rank.prefill * rank.prompts + rank.prefill_square * rank.prompts**2 / 2)[:, None]
    shift = np.exp(-1j * w * length)
    pulse = work * (1 - shift) / (1j * w * length)
    steps = rank.steps[:, None]
    turn = np.exp(-1j * w * steps)
    angle = w * steps
    small = angle < 1e-3
    safe = np.where(small, 1.0, angle)
    flat = steps * np.where(small, 1 - 0.5j * angle, (1 - turn) / (1j * safe))
    ramp = steps**2 * np.where(small, 0.5 - 1j * angle / 3, (turn * (1 + 1j * safe) - 1) / safe**2)
    start = (rank.sequence + rank.context * (rank.prompts + 0.5))[:, None]
    return pulse, shift * (start * flat + rank.context * ramp)
