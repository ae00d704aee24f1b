"""A benchmark with fixed concurrency on a rank that mixes prefill and decode: mean TTFT, TPOT and throughput."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from capplan.cards.workload import Workload
from capplan.errors import InputError
from capplan.formulas.chunked_prefill_closed import ClosedLoopRank, closed_loop
from capplan.serving.aggregated import checked_rank
from capplan.serving.step_time import one_number

IDENTICAL_CV = 0.02
"""Spread of the output lengths below which requests stay in the groups they started in."""
CHECKED_CV = 0.1
"""Largest spread of lengths in the simulated runs."""


@dataclass(frozen=True, eq=False)
class AggregatedLoop:
    """A rank with so many requests always in flight.

    Parameters
    ----------
    rate : requests answered [1/s]
    ttft_mean, tpot_mean : over requests [s]
    running : mean requests that decode [-]
    saturated : every step is full, more users only wait longer
    warnings : where the laws leave the range they were checked in
    """

    rate: float
    ttft_mean: float
    tpot_mean: float
    running: float
    saturated: bool
    warnings: tuple[str, ...]
    _first_wave: float = field(repr=False)

    def benchmark_ttft_mean(self, requests_per_user: float = 10.0) -> float:
        """Mean TTFT of a run of so many requests per user: all users start together, so the first wave waits [s].

        Within 6-8 % in the median, 27-37 % at P95 (saturated 4 %).
        """
        rounds = one_number(requests_per_user, "requests_per_user", least=1.0)
        return (1.0 - 1.0 / rounds) * self.ttft_mean + self._first_wave / rounds


def aggregated_loop(
    workload: Workload,
    concurrency: float,
    step_time: Sequence[float],
    prefill_time: Sequence[float],
    token_budget: float = 8192,
) -> AggregatedLoop:
    """What a benchmark with fixed concurrency measures on a rank that reads prompts in chunks, ample KV.

    Parameters
    ----------
    workload : prompts and outputs; they enter by their means, and by whether all are equal
    concurrency : requests always in flight, N [-]
    step_time : (a, e, c): T = a + e N + c (cached tokens) [s, s, s/token]
    prefill_time : (d, g): d P + g P^2/2 of a prompt [s/token, s/token^2]
    token_budget : tokens of one step, ``max_num_batched_tokens`` [token]

    Returns
    -------
    loop : :class:`AggregatedLoop`

    Validity: lengths that are equal or spread by at most 10 %. Saturated 0.1 %; below, with unequal lengths and prompts
    that fit into a step: TTFT 0.4 % in the median, 3 % at P95, TPOT 0.1 % and 1.5 %; long prompts 1 % and 21 %; equal
    lengths 4 % and 56 %, since the groups they lock into depend on the start.

    Raises
    ------
    InputError : a missing or senseless argument, requests without a second output token

    Examples
    --------
    >>> from capplan import Uniform, Workload
    >>> loop = aggregated_loop(
    ...     Workload(Uniform(819, 1024), Uniform(205, 256)), 64, (0.025, 2e-5, 3.1e-8), (4e-5, 0.0), 2048)
    >>> round(loop.rate, 2), round(loop.ttft_mean, 3)
    (7.18, 0.075)

    References
    ----------
    :func:`capplan.formulas.chunked_prefill_closed.closed_loop`.
    """
    checked = checked_rank(workload, 1.0, step_time, prefill_time, token_budget)
    users = one_number(concurrency, "concurrency", least=1.0)
    if not checked.steps_mean > 0:
        raise InputError("every request has one output token, so nothing decodes", key="workload")
    rank = ClosedLoopRank(
        checked.empty_step, checked.sequence, checked.context, checked.prefill, checked.prefill_square,
        checked.token_budget, checked.prompt_mean, checked.steps_mean + 1,
    )  # fmt: skip
    spread = max(workload.input.cv, workload.output.cv)
    found = closed_loop(rank, users, identical=spread < IDENTICAL_CV)
    long = not found.saturated and rank.prompt_tokens > rank.token_budget - found.running
    wave = (users + 1) * _prompt_in_full_step(rank, found.running) / 2
    return AggregatedLoop(
        found.rate, found.ttft, found.tpot, found.running, found.saturated,
        _warnings(spread, saturated=found.saturated, long=long), wave,
    )  # fmt: skip


def _prompt_in_full_step(rank: ClosedLoopRank, running: float) -> float:
    """Seconds a prompt takes while every step is full [s]."""
    room = max(rank.token_budget - running, 1.0)
    decode = rank.empty_step + rank.decode_cost * running
    return rank.prompt_tokens * decode / room + rank.prompt_cost


def _warnings(spread: float, *, saturated: bool, long: bool) -> tuple[str, ...]:
    listed = [
        (not saturated and spread < IDENTICAL_CV,
         "equal lengths lock into groups that depend on the start: TTFT may be off by a half"),
        (not saturated and long, "a prompt fills more than one step: TTFT within 20 %"),
        (spread > CHECKED_CV, f"lengths spread by {spread:.2g}: checked up to {CHECKED_CV}; means only"),
    ]  # fmt: skip
    return tuple(text for holds, text in listed if holds)
