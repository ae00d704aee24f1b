"""A rank that mixes prefill and decode (chunked prefill): largest rate, ITL, TPOT and TTFT percentiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from capplan.cards.workload import Workload
from capplan.errors import InputError
from capplan.serving.notice import Notice
from capplan.serving.pressure_rank import positive_number
from capplan.serving.pressure_sizes import joint_nodes

if TYPE_CHECKING:
    from capplan.formulas.chunked_prefill_latency import AtomLaw, TpotLaw
    from capplan.formulas.chunked_prefill_numeric import ChunkedRank

HEAVY = 0.01
"""Heaviness from which on the percentiles are only indicative (P99 TPOT off by 10-30 %)."""
_CLIFF = 0.3
_HIGH_LOAD = 0.9


@dataclass(frozen=True, eq=False)
class Aggregated:
    """State of a rank in aggregated mode.

    Parameters
    ----------
    max_rate : largest stable request rate of the rank [1/s]
    load : offered over largest rate [-]
    stable : whether the rank keeps up; if not, percentiles are infinite
    step_mean : mean step [s], exact
    batch_mean : mean running requests [-]
    full_step_share : share of steps whose token budget is used up [-]
    prefill_step_share : share of steps that read prompt tokens [-]
    decode_step, full_step : step without prefill, and with the budget used up [s]
    heaviness : above 0.01 single long prompts rule the tail and percentiles are indicative [-]
    warnings : where the laws leave the range they were checked in
    """

    max_rate: float
    load: float
    stable: bool
    step_mean: float
    batch_mean: float
    full_step_share: float
    prefill_step_share: float
    decode_step: float
    full_step: float
    heaviness: float
    warnings: tuple[str, ...]
    _rank: ChunkedRank | None = field(repr=False)

    @cached_property
    def _tpot(self) -> TpotLaw:
        from capplan.formulas.chunked_prefill_latency import tpot_law

        return tpot_law(self._known)

    @cached_property
    def _gaps(self) -> AtomLaw:
        from capplan.formulas.chunked_prefill_latency import gap_law

        return gap_law(self._known)

    @cached_property
    def _ttft(self) -> AtomLaw:
        from capplan.formulas.chunked_prefill_latency import ttft_law

        return ttft_law(self._known)

    @property
    def _known(self) -> ChunkedRank:
        assert self._rank is not None
        return self._rank

    @property
    def _decodes(self) -> bool:
        return self._known.steps_mean > 0

    def _quantile(self, probability: float, law: Callable[[float], float]) -> float:
        if not 0 < probability < 1:
            raise InputError(f"must lie between 0 and 1, not {probability!r}", key="probability")
        return math.inf if self._rank is None else law(probability)

    def itl_quantile(self, probability: float) -> float:
        """Gap between two tokens, over gaps [s]."""
        return self._quantile(probability, lambda p: self._gaps.quantile(p))

    def tpot_quantile(self, probability: float) -> float:
        """TPOT over requests [s]; 0 where no request has a second token."""
        return self._quantile(probability, lambda p: self._tpot.quantile(p) if self._decodes else 0.0)

    def ttft_quantile(self, probability: float) -> float:
        """TTFT over requests [s]."""
        return self._quantile(probability, lambda p: self._ttft.quantile(p))

    @property
    def tpot_mean(self) -> float:
        """Mean TPOT over requests [s]; 0 where no request has a second token."""
        if self._rank is None:
            return math.inf
        return self._tpot.mean if self._decodes else 0.0

    @property
    def ttft_mean(self) -> float:
        """Mean TTFT [s]."""
        return math.inf if self._rank is None else self._ttft.mean


def aggregated(
    workload: Workload,
    request_rate: float,
    step_time: Sequence[float],
    prefill_time: Sequence[float],
    token_budget: float = 8192,
) -> Aggregated:
    """One rank that reads prompts in chunks inside its decode steps, Poisson arrivals, ample KV.

    Parameters
    ----------
    workload : joint law of prompt and output; prefix hits already taken off the prompts to read
    request_rate : arrivals at the rank [1/s]
    step_time : (a, e, c): T = a + e N + c (cached tokens) [s, s, s/token]
    prefill_time : (d, g): d P + g P^2/2 of a prompt [s/token, s/token^2]
    token_budget : tokens of one step, ``max_num_batched_tokens`` [token]

    Returns
    -------
    state : :class:`Aggregated`

    Validity: mean step exact; share of full steps within 0.02. For prompts with a coefficient of variation up to 1:
    TPOT P99 1 % in the median (14 % at P95), TTFT P90 5 % (19 %), P99 6 % (27 %), ITL P99 1 % (16 %). Heavier prompts:
    TPOT P99 10 % (55 %), TTFT P90 7 % (24 %); see ``heaviness`` and ``warnings``. KV pressure and caps are not part.

    Raises
    ------
    InputError : a missing or senseless argument

    Examples
    --------
    >>> from capplan import Workload
    >>> state = aggregated(Workload(input=1000, output=200), 6.116, (0.025, 2e-5, 3.1e-8), (4e-5, 0.0), 2048)
    >>> round(state.max_rate, 2), round(state.step_mean * 1e3, 2)
    (15.29, 36.26)

    References
    ----------
    Chunked prefill: Agrawal et al., Sarathi-Serve, arXiv:2403.02310; :mod:`capplan.formulas.chunked_prefill`.
    """
    rank = checked_rank(workload, request_rate, step_time, prefill_time, token_budget)
    load = rank.request_rate / rank.max_rate
    if load >= 1:
        warning = f"offered {rank.request_rate:.4g}/s, the rank serves at most {rank.max_rate:.4g}/s"
        lost = (math.inf,) * 2
        return Aggregated(
            rank.max_rate, load, False, *lost, 1.0, 1.0, rank.empty_step, math.inf, math.inf, (warning,), None
        )
    mixture = rank.mixture
    return Aggregated(
        max_rate=rank.max_rate, load=load, stable=True, step_mean=rank.step_mean, batch_mean=rank.running,
        full_step_share=mixture.full_share, prefill_step_share=mixture.prefill_share, decode_step=rank.decode_step,
        full_step=rank.full_step, heaviness=heaviness(rank), warnings=rank_warnings(rank), _rank=rank,
    )  # fmt: skip


def heaviness(rank: ChunkedRank) -> float:
    """Prefill share of the time times what one long prompt adds to a request's steps."""
    long_prompt = rank.prefill * rank.prompt_second / rank.prompt_mean
    share = rank.request_rate * rank.prompt_cost * rank.delays
    return share * long_prompt / max(rank.steps_mean * rank.step_mean, 1e-300)


def rank_warnings(rank: ChunkedRank) -> tuple[Notice, ...]:
    """Where a stable rank leaves the range in which the laws were checked, one line each."""
    load, heavy, full_share = rank.request_rate / rank.max_rate, heaviness(rank), rank.mixture.full_share
    listed = [
        (load > _HIGH_LOAD,
         Notice(f"load {load:.2f} of the largest rate: TTFT is 10-15 % low above {_HIGH_LOAD}", ("ttft",), 0.15)),
        (heavy > HEAVY,
         Notice(f"heaviness {heavy:.3g}, above {HEAVY}: long prompts rule the tail; percentiles are indicative")),
        (abs(full_share / 0.01 - 1) < _CLIFF,
         Notice(f"{full_share:.2%} of the steps are full: the P99 of the gaps sits on a cliff there", ("itl_p99",))),
    ]  # fmt: skip
    return tuple(notice for holds, notice in listed if holds)


def checked_rank(
    workload: Workload,
    request_rate: float,
    step_time: Sequence[float],
    prefill_time: Sequence[float],
    token_budget: float,
) -> ChunkedRank:
    """The arguments of :func:`aggregated`, checked, as a rank with its requests in nodes."""
    from capplan.formulas.chunked_prefill_numeric import ChunkedRank

    if not isinstance(workload, Workload):
        raise InputError("must be a Workload, for example Workload(input=1000, output=2000)", key="workload")
    empty, sequence, context = _coefficients(step_time, 3, "step_time")
    prefill, square = _coefficients(prefill_time, 2, "prefill_time")
    positive_number(empty, "step_time")
    prompts, outputs, weights = joint_nodes(workload, 16, 24)
    if not float(weights @ prompts) > 0:
        raise InputError("a workload without prompts needs no prefill; use concurrency()", key="workload")
    rate, budget = positive_number(request_rate, "request_rate"), positive_number(token_budget, "token_budget", least=1)
    return ChunkedRank(rate, empty, sequence, context, prefill, square, budget, prompts, outputs - 1, weights)


def _coefficients(values: Sequence[float], count: int, key: str) -> list[float]:
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != count:
        raise InputError(f"needs {count} numbers of seconds, not {values!r}", key=key)
    return [positive_number(value, key, least=0.0) for value in values]
