"""KV pressure of one rank: preemption, recompute, waits and overflow for a workload, a pool and a policy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from capplan.cards.workload import Workload
from capplan.errors import InputError, shown
from capplan.formulas.preemption import PoolPressure, pool_utilization
from capplan.formulas.preemption_waits import bounded_waits, first_admission_wait_steps, preempted_share
from capplan.quantities.chain import Chain
from capplan.serving.pressure_rank import (
    METASTABLE_LOAD,
    PressureRank,
    PressureStep,
    checked_rank,
    positive_number,
    range_warnings,
)
from capplan.serving.pressure_waits import Quantile, closed_first_wait, closed_gap, open_first_wait

Policy = Literal["recompute", "swap", "reserve"]


@dataclass(frozen=True, eq=False)
class KvPressure:
    """What a rank does when its KV pool runs short.

    Parameters
    ----------
    batch : mean running requests [-]
    utilization : mean share of the pool in use [-]
    waiting : mean requests that wait, for KV or for a slot; infinite when arrivals outrun the rank [-]
    recompute_per_token : recomputed over generated tokens, rho [-]; 0 under ``swap``
    swapped_per_token : tokens moved over the host link, both ways, per generated token [-]; 0 but under ``swap``
    preemptions_per_request : [-]
    hit_share : share of requests preempted at least once [-]
    overflow_probability : share of time in which the requests want more KV than there is [-]
    victim_tokens : mean tokens a preemption frees [token]
    readmission_wait_steps : mean wait of a preempted request [step]
    first_wait_steps : mean wait of a request before its first admission [step]
    step_seconds : mean step time; None where no step time was given [s]
    tokens_per_second : generated tokens; None where no step time was given [token/s]
    recompute_time_share : share of the time in which lost tokens are computed again, which is the throughput that
        preemption costs; None where no step time was given [-]
    load_peak, load_saturated : open loop: arrivals over the best service rate, and over that of a full pool [-]
    metastable : open loop: the load lies where recompute keeps a full rank full (or above); nothing can be promised
    stable : the pool holds a mean request and, open loop, the rank keeps up even when its pool is full
    warnings : where the laws leave the range they were checked in
    """

    batch: float
    utilization: float
    waiting: float
    recompute_per_token: float
    swapped_per_token: float
    preemptions_per_request: float
    hit_share: float
    overflow_probability: float
    victim_tokens: float
    readmission_wait_steps: float
    first_wait_steps: float
    step_seconds: float | None
    tokens_per_second: float | None
    recompute_time_share: float | None
    load_peak: float | None
    load_saturated: float | None
    metastable: bool
    stable: bool
    warnings: tuple[str, ...]
    _gap: Quantile = field(repr=False)
    _first_wait: Quantile = field(repr=False)
    _safe_cap: Callable[[float], int] = field(repr=False)

    def gap_quantile(self, probability: float) -> float:
        """Largest gap between two tokens of a request, at that quantile over requests.

        Seconds where a step time was given (the prefill of what was lost included), steps otherwise. A request that
        is never preempted has a gap of one step.
        """
        return self._gap(_checked(probability))

    def first_wait_quantile(self, probability: float) -> float:
        """Wait of a request before it runs for the first time, at that quantile over requests: its part of the TTFT.

        Seconds where a step time was given, steps otherwise. Open loop: order of magnitude only.
        """
        return self._first_wait(_checked(probability)) * (1.0 if self.step_seconds is None else self.step_seconds)

    def safe_cap(self, overflow: float) -> int:
        """Largest ``max_num_seqs`` at which the KV demand exceeds the pool at most that share of time."""
        if not 0 < positive_number(overflow, "overflow") < 0.5:
            raise InputError(f"must lie between 0 and 0.5, not {shown(overflow)}", key="overflow")
        return self._safe_cap(overflow)


def _checked(probability: float) -> float:
    if not 0 < positive_number(probability, "probability") < 1:
        raise InputError(f"must lie between 0 and 1, not {shown(probability)}", key="probability")
    return probability


def kv_pressure(
    workload: Workload,
    kv_capacity: float,
    concurrency: float | None = None,
    request_rate: float | None = None,
    step_time: Any = None,
    max_num_seqs: float | None = None,
    watermark: float = 0.0,
    policy: Policy = "recompute",
    reserve_tokens: float = 0,
    prefix_caching: bool = False,
    block_size: float = 16,
    token_budget: float = 8192,
    kv: Callable[[Any], Any] | None = None,
    *,
    peakedness: float = 1.0,
    held_size_share: float = 1.0,
    prompts_elsewhere: bool = False,
    chain: Chain | None = None,
) -> KvPressure:
    """Preemption, recompute, waits and overflow of one rank when its KV pool runs short.

    Give ``concurrency`` (closed loop: a fixed number of requests in flight) or ``request_rate`` (open loop; Poisson
    unless ``peakedness`` says otherwise).

    Parameters
    ----------
    workload : joint law of prompt and output tokens
    kv_capacity : KV pool of the rank [token], or [B] with ``kv``
    concurrency : requests in flight [-]
    request_rate : arrivals at the rank [1/s]; needs ``step_time``
    step_time : (a, e, c) or (a, e, c, d) for T = a + e B + c (cached tokens) + d (prefill tokens of the step) [s], a
        function of the running requests, or its values at 0, 1, 2, ... running requests
    max_num_seqs : the engine's cap per rank [-]
    watermark : share of the pool an admission must leave free [-]
    policy : what happens to a preempted request: ``recompute`` (vLLM), ``swap``; ``reserve``: output is reserved
    reserve_tokens : output tokens reserved at admission, with ``policy="reserve"`` [token]
    prefix_caching : blocks of a preempted request stay until they are needed
    block_size : page of the KV cache [token]
    token_budget : tokens of one step, ``max_num_batched_tokens`` [token]
    kv : bytes one sequence holds on the rank, as a function of its context [B]
    peakedness : open loop: variance of the batch on an ample pool over that of Poisson arrivals split at random, above
        1 for bursts, below for balanced ranks: the square of ``held_std`` of :func:`capplan.concurrency` over that of
        its Poisson twin [-]
    held_size_share : open loop: what routing leaves of the variance of what running requests hold, as ``concurrency``
        gives it; 1 but behind least-kv [-]
    prompts_elsewhere : prompts are read on other ranks, or their time is in ``step_time`` already: only what is lost
        is prefilled here
    chain : records the named quantities, applies overrides

    Returns
    -------
    pressure : :class:`KvPressure`

    Validity: see :func:`capplan.formulas.preemption.closed_loop_pressure` and
    :func:`capplan.formulas.preemption_numeric.open_loop_pressure`; what lies outside is named in ``warnings``.

    Raises
    ------
    InputError : a missing, contradictory or senseless argument

    Examples
    --------
    >>> from capplan import Workload, LogNormal
    >>> workload = Workload(input=500, output=LogNormal(1000, 1.0, max=9049))
    >>> pressure = kv_pressure(workload, 90_000, concurrency=60)
    >>> round(pressure.recompute_per_token, 1), round(pressure.batch)
    (0.3, 58)

    References
    ----------
    vLLM v1 scheduler (docs.vllm.ai); :mod:`capplan.formulas.preemption`.
    """
    rank = checked_rank(
        workload, kv_capacity, watermark, policy, reserve_tokens, prefix_caching, block_size, token_budget, kv
    )
    cap = math.inf if max_num_seqs is None else positive_number(max_num_seqs, "max_num_seqs", least=1)
    if (concurrency is None) == (request_rate is None):
        raise InputError("give either concurrency (closed loop) or request_rate (open loop)", key="concurrency")
    chain = Chain() if chain is None else chain
    chain.given("kv_pool_capacity", kv_capacity, "argument")
    chain.given("held_mean_tokens", rank.request.sizes.held, "workload")
    step = None if step_time is None else PressureStep(step_time, rank, prompts_here=not prompts_elsewhere)
    if concurrency is not None:
        if peakedness != 1.0 or held_size_share != 1.0:
            raise InputError("a closed loop takes no peakedness and no held_size_share", key="concurrency")
        in_flight = positive_number(concurrency, "concurrency", least=1)
        if not rank.holds_one:
            return _too_small(rank, in_flight)
        return _closed(rank, workload, in_flight, cap, step, chain)
    if step is None:
        raise InputError("an open loop needs the step time, for example (0.006, 2e-5, 4e-8)", key="step_time")
    rate = positive_number(request_rate, "request_rate")
    balanced = rank.balanced(positive_number(held_size_share, "held_size_share", most=1.0))
    limits = cap, positive_number(peakedness, "peakedness")
    return _open(rank, balanced, workload, rate, limits, step, chain) if rank.holds_one else _too_small(rank, math.inf)


def _closed(
    rank: PressureRank, workload: Workload, in_flight: float, cap: float, step: PressureStep | None, chain: Chain
) -> KvPressure:
    state = rank.law(min(in_flight, cap))
    sizes, waiting = rank.request.sizes, in_flight - state.batch
    # requests that a cap holds back never ran, so only without it does the queue bound the preempted ones
    preempted, wait = bounded_waits(state, sizes, waiting if in_flight <= cap else math.inf)
    first = first_admission_wait_steps(waiting, min(preempted, waiting), state.batch, sizes.output)
    hit = preempted_share(state.recompute_per_token, state.net_flux, state.preemptions_when_saturated)
    seconds = None if step is None else step.seconds(state)
    gap = closed_gap(state, wait, seconds, 0.0 if step is None else step.refill_seconds(state))
    mean = max(0.0, float(first))
    first_wait = closed_first_wait(rank, workload, state, min(in_flight, cap), mean, capped=in_flight > cap)
    tokens = None if seconds is None else float(state.batch / seconds)
    averages = _Averages(state, waiting, float(hit), float(wait), mean, seconds, gap, first_wait, tokens)
    return _result(rank, workload, averages, step, chain)


def _open(
    rank: PressureRank,
    balanced: PressureRank,
    workload: Workload,
    rate: float,
    limits: tuple[float, float],
    step: PressureStep,
    chain: Chain,
) -> KvPressure:
    """``balanced``: the rank as its router leaves it; ``limits``: cap and peakedness."""
    from capplan.formulas.preemption_numeric import (
        open_loop_gap_quantile_seconds,
        open_loop_hit_share,
        open_loop_pressure,
    )

    variation = rank.request.variation
    found = open_loop_pressure(rate, balanced.law, step.seconds, balanced.occupied, rank.capacity, variation, *limits)
    state, sizes = found.pressure, balanced.request.sizes
    _, wait = bounded_waits(state, sizes, state.waiting)
    gap = partial(open_loop_gap_quantile_seconds, found=found, sizes=sizes, refill_seconds=step.refill_seconds(state))
    first = max(0.0, state.waiting / (rate * found.step_seconds) - state.preemptions_per_request * wait)
    served = rate / max(1.0, found.load_saturated)
    averages = _Averages(
        state, state.waiting, open_loop_hit_share(found), float(wait), first, found.step_seconds, gap,
        open_first_wait(found, first, found.step_seconds), served * sizes.output,
        (found.load_peak, found.load_saturated),
    )  # fmt: skip
    return _result(rank, workload, averages, step, chain)


def _too_small(rank: PressureRank, waiting: float) -> KvPressure:
    """The pool cannot hold one mean request: nothing can be served in a steady way."""
    pool = rank.capacity / rank.occupied.held
    return KvPressure(
        batch=0.0, utilization=0.0, waiting=waiting, recompute_per_token=0.0, swapped_per_token=0.0,
        preemptions_per_request=0.0, hit_share=0.0, overflow_probability=1.0, victim_tokens=0.0,
        readmission_wait_steps=math.inf, first_wait_steps=math.inf, step_seconds=None, tokens_per_second=None,
        recompute_time_share=None, load_peak=None, load_saturated=None, metastable=False, stable=False,
        warnings=(f"the pool holds {pool:.2g} mean requests: it does not fit one",),
        _gap=lambda _: math.inf, _first_wait=lambda _: math.inf, _safe_cap=rank.safe_cap,
    )  # fmt: skip


@dataclass(frozen=True)
class _Averages:
    """What either loop hands to the answer."""

    state: PoolPressure
    waiting: float
    hit_share: float
    readmission_steps: float
    first_steps: float
    step_seconds: float | None
    gap: Quantile
    first_wait: Quantile
    tokens_per_second: float | None
    loads: tuple[float, float] | None = None


def _result(
    rank: PressureRank, workload: Workload, averages: _Averages, step: PressureStep | None, chain: Chain
) -> KvPressure:
    state, law = averages.state, "capplan.formulas.preemption.closed_loop_pressure"
    if averages.loads is not None:
        law = "capplan.formulas.preemption_numeric.open_loop_pressure"
    batch = float(chain.given("kv_batch", state.batch, law))
    recompute = float(chain.given("recompute_per_token", float(rank.recomputed(state)), law))
    overflow = float(chain.given("kv_overflow_probability", float(state.queue_probability), law))
    # every request that is hit is so once at least; the count's own law loses itself in rounding where few are
    count = max(float(state.preemptions_per_request), averages.hit_share)
    preemptions = float(chain.given("preemptions_per_request", count, law))
    hit = float(chain.given("preempted_share", averages.hit_share, "capplan.formulas.preemption_waits.preempted_share"))
    peak, saturated = averages.loads or (None, None)
    sizes = rank.request.sizes
    utilization = chain.derive("kv_utilization", pool_utilization, batch=batch, held=sizes.held, capacity=rank.capacity)
    return KvPressure(
        batch=batch, utilization=float(utilization), waiting=averages.waiting, recompute_per_token=recompute,
        swapped_per_token=float(rank.swapped(state)), preemptions_per_request=preemptions, hit_share=hit,
        overflow_probability=overflow, victim_tokens=float(rank.victim_tokens(state.victim_tokens)),
        readmission_wait_steps=averages.readmission_steps, first_wait_steps=averages.first_steps,
        step_seconds=averages.step_seconds, tokens_per_second=averages.tokens_per_second,
        recompute_time_share=None if step is None else step.prefill * recompute * (averages.tokens_per_second or 0.0),
        load_peak=peak, load_saturated=saturated,
        metastable=saturated is not None and saturated >= METASTABLE_LOAD,
        stable=saturated is None or saturated < 1,
        warnings=tuple(range_warnings(rank, workload, batch, recompute, saturated)),
        _gap=averages.gap,
        _first_wait=averages.first_wait,
        _safe_cap=rank.safe_cap,
    )  # fmt: skip
