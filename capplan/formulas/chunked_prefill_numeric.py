"""Steps of a rank that reads prompts in chunks between decode tokens: how many are full, how much they vary.

Numerical routines in NumPy: a spectrum for the variances, a compound Poisson recursion for the steps. No randomness.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capplan.formulas import chunked_prefill as closed

FloatArray = NDArray[np.float64]

_FREQUENCIES = 120
_CELLS = 48
_FIXED_POINT_TURNS = 4


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
        return float(closed.aggregated_load(self.request_rate, self.prompt_cost, self.decode_cost, self.steps_mean))

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
    def token_cost(self) -> float:
        """Seconds a prompt token adds, the attention of its prompt included [s/token]."""
        return self.prefill + self.prefill_square * self.prompt_second / (2 * self.prompt_mean)

    @cached_property
    def decode_step(self) -> float:
        """Step without prefill T_d at the mean batch [s]."""
        return self.empty_step + self.decode_cost * self.running

    @cached_property
    def full_step(self) -> float:
        """Step with the budget used up [s]."""
        return self.decode_step + self.token_cost * self.room

    @cached_property
    def mixture(self) -> StepMixture:
        """How many steps read how many prompt tokens."""
        return _step_mixture(self)

    @cached_property
    def step_variance(self) -> float:
        """Variance of the step time over steps: decode part and prompt tokens read [s^2]."""
        shares, tokens = self.mixture.shares, self.mixture.tokens
        read = float(shares @ tokens**2 - (shares @ tokens) ** 2)
        return self.spectrum.decode_variance + self.token_cost**2 * read

    @cached_property
    def spectrum(self) -> StepSpectrum:
        """Second moments of the step time."""
        return StepSpectrum(self)


@dataclass(frozen=True, eq=False)
class StepMixture:
    """Shares of steps by the prompt tokens they read.

    ``full_share`` of steps use the whole budget, ``prefill_share`` read anything; ``tokens`` and ``shares`` list all
    of them, ``partial_step`` is the mean of a step that is not full [s].
    """

    full_share: float
    prefill_share: float
    partial_step: float
    tokens: FloatArray
    shares: FloatArray


def _step_mixture(rank: ChunkedRank) -> StepMixture:
    """Fixed point between the length of a partial step and the prompts that arrive in it."""
    prompt_share = rank.request_rate * rank.step_mean * rank.prompt_mean / rank.room
    cells = _prompt_cells(rank)
    partial, full = rank.step_mean, 0.0
    for _ in range(_FIXED_POINT_TURNS):
        arrived = _compound_poisson(rank.request_rate * partial, cells)
        overrun = max(0.0, 1.0 - float(arrived.sum()))
        read = overrun / 2 + float(arrived @ np.arange(_CELLS)) / _CELLS
        full = min(max(float(closed.full_step_share(prompt_share, read)), 0.0), 0.999)
        partial = max((rank.step_mean - full * rank.full_step) / (1 - full), rank.empty_step)
    arrived = _compound_poisson(rank.request_rate * partial, cells)
    overrun = max(0.0, 1.0 - float(arrived.sum()))
    inside = np.full(_CELLS, overrun / _CELLS)
    grid = np.arange(_CELLS) * rank.room / _CELLS
    tokens = np.concatenate([grid, grid + rank.room / (2 * _CELLS), [rank.room]])
    shares = np.concatenate([(1 - full) * arrived, (1 - full) * inside, [full]])
    any_share = 1 - (1 - full) * math.exp(-rank.request_rate * partial)
    return StepMixture(full, any_share, partial, tokens, shares / shares.sum())


def _prompt_cells(rank: ChunkedRank) -> FloatArray:
    """Law of a prompt on cells of the room, the mean kept; what exceeds the room is left out."""
    position = rank.prompts / rank.room * _CELLS
    lower = np.floor(position).astype(int)
    share = position - lower
    inside = lower < _CELLS
    cells = np.bincount(lower[inside], (rank.weights * (1 - share))[inside], _CELLS + 1)
    cells += np.bincount(lower[inside] + 1, (rank.weights * share)[inside], _CELLS + 1)
    result: FloatArray = cells[:_CELLS].astype(float)
    return result


def _compound_poisson(arrivals: float, cells: FloatArray) -> FloatArray:
    """Prompt tokens of a Poisson number of prompts, below the room: Panjer's recursion."""
    total = np.zeros(_CELLS)
    total[0] = math.exp(-arrivals * (1 - cells[0]))
    weighted = np.arange(_CELLS) * cells
    for j in range(1, _CELLS):
        total[j] = arrivals / j * float(weighted[1 : j + 1] @ total[j - 1 :: -1][:j])
    return total


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
        gain = 1 / (1 - lam * mean_whole)
        own = _averaged(rank.weights, _square(whole))
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
