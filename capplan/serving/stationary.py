"""Batch, step time, ITL, TPOT and decode time of one rank in the stationary state, with percentiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capplan.cards.workload import Workload
from capplan.errors import InputError, shown
from capplan.formulas import cap as capped
from capplan.quantities.chain import Chain
from capplan.serving.stationary_bounds import full_batch
from capplan.serving.stationary_demand import ROUTINGS, Demand
from capplan.serving.stationary_law import Stationary
from capplan.serving.stationary_moments import (
    StepMoments,
    confined,
    disturbed,
    linear_moments,
    nonlinear_moments,
    saturated,
    with_cap,
)
from capplan.serving.step_time import one_number, whole_number

__all__ = ["METHODS", "ROUTINGS", "Stationary", "concurrency"]

METHODS = ("closed", "exact")
LEAST_RATE = 1e-100
"""A rank with less to do is as idle, and its squares are numbers still [1/s]."""


def concurrency(
    workload: Workload,
    request_rate: float,
    step_time: Any,
    cap: int | None = None,
    dispersion: float = 1.0,
    routing: str = "random",
    instances: int = 1,
    method: str = "closed",
    *,
    dispersion_window: float | None = None,
    arrival_spectrum: Callable[[Any], Any] | None = None,
    disturbance: float = 0.0,
    in_flight: int | None = None,
    chain: Chain | None = None,
) -> Stationary:
    r"""How many requests decode on one rank at once, and how long steps, tokens and requests take.

    Means are exact for any lengths, :math:`E_sT = a/(1-x)`, :math:`x = \lambda E[D](e + c\theta)`, D = L - 1 decode
    steps; variances come from :mod:`capplan.formulas.stationary` (``closed``) or from the spectrum (``exact``);
    percentiles are Pearson III, TPOT a mixture over lengths. The KV pool is taken as ample.

    Parameters
    ----------
    workload : lengths of the requests
    request_rate : requests offered to this one rank [1/s]
    step_time : (a, e, c) for T = a + e batch + c context tokens [s], [s], [s/token]; or T(batch) [s] as a function or
        as an array of values at batch 0, 1, 2, ...
    cap : largest batch of the rank (``max_num_seqs``); None for no cap [1]
    dispersion : index of dispersion of the counts of arrivals, of the whole stream before it is split over
        ``instances``, over windows of the relaxation horizon (``.dispersion_horizon_seconds``); 1 is Poisson [1]
    routing : how the stream is split: ``random``, ``round-robin``, ``least-loaded`` (by batch), ``least-kv``
    instances : ranks the stream is split over [1]
    method : ``closed`` or ``exact`` (numerical spectrum; for T = a + e batch + c context)
    dispersion_window : length of the record ``dispersion`` was measured on; a horizon above a sixth of it is warned
        of [s]
    arrival_spectrum : of the whole stream over its rate, as a function of an array of angular frequencies [rad/s];
        1 is Poisson, at 0 it is the asymptotic index of dispersion. Replaces ``dispersion`` in the ``exact`` method;
        a renewal stream has :math:`\Re[(1+\phi)/(1-\phi)]`, a rate that switches a Lorentzian
    disturbance : variance of the batch that comes on top, of steps that vary for reasons outside ``step_time`` (prompts
        read between them); behind a balancer a share 1/instances of it stays [1]
    in_flight : closed loop: requests in flight over all instances, waiting for prefill included; their rate is
        ``request_rate``, the batch never exceeds them [1]
    chain : where the named quantities are put; overrides in it replace them

    Returns
    -------
    stationary : means, percentiles and warnings. At a load of 1 and more it is not an error: ``stable`` is false, the
        batch is infinite (or at the cap) and waits are infinite.

    Validity: P99 of step time and TPOT within 2 % (bursts 6 %) at a shape index of 10 and more, 3 % (17 %) from 2 to
    10, indicative below; loads up to 0.9; dispersion horizons up to a sixth of the record. ``warnings`` says what lies
    outside.

    Raises
    ------
    InputError : a number out of range, an unknown routing or method

    Examples
    --------
    >>> from capplan.formulas.length_laws import Exponential
    >>> state = concurrency(Workload(1000, Exponential(1001)), 5.0, (0.012, 1.2e-4, 0.0))
    >>> round(state.step_mean, 4), round(state.load, 3)
    (0.03, 0.6)

    References
    ----------
    See :mod:`capplan.formulas.stationary`, :mod:`capplan.formulas.cap`.
    """
    _check(workload, request_rate, cap, dispersion, routing, instances, method)
    if dispersion_window is not None:
        one_number(dispersion_window, "dispersion_window", above=True)
    one_number(disturbance, "disturbance", least=0.0)
    if in_flight is not None:
        whole_number(in_flight, "in_flight")
    step = _linear(step_time)
    if arrival_spectrum is not None and (method != "exact" or step is None or not callable(arrival_spectrum)):
        raise InputError("is a function for method='exact' and a linear step time", key="arrival_spectrum")
    chain = chain or Chain()
    rate = max(LEAST_RATE, float(chain.given("request_rate_per_rank", float(request_rate), "given")))
    demand = Demand(rate, float(dispersion), routing, instances, arrival_spectrum)
    if workload.decode_moments.m01 <= 0.0:
        raise InputError(
            "every request has one output token, so nothing decodes", key="workload.output", file=workload.file or None
        )
    if step is None:
        found = nonlinear_moments(workload, demand, step_time, chain)
    else:
        names = ("empty_step_seconds", "sequence_step_seconds", "context_step_seconds")
        a, e, c = (float(chain.given(name, value, "step time")) for name, value in zip(names, step, strict=True))
        found = linear_moments(workload, demand, (a, e, c), method, chain)
    if disturbance:
        found = disturbed(found, disturbance / (instances if demand.pooled else 1))
    if in_flight is not None:
        found = confined(found, found.batch_mean * (instances if demand.pooled else 1) / in_flight)
    if cap is not None:
        found = _capped(found, workload, demand, cap, step_time if step is None else None, chain)
    bursty = dispersion > 1.0 or arrival_spectrum is not None
    return Stationary(found, workload, demand.request_rate, cap, method, bursty, dispersion_window, in_flight)


def _capped(
    found: StepMoments, workload: Workload, demand: Demand, cap: int, step_time: Any, chain: Chain
) -> StepMoments:
    steps = workload.decode_moments.m01
    if step_time is not None:
        seconds, most = _at_cap(step_time, cap)
        load = float(chain.given("slot_load", demand.request_rate * steps * seconds / cap, "T at the cap"))
    else:
        seconds = most = found.a + found.b * cap
        load = chain.derive(
            "slot_load",
            capped.capped_load,
            request_rate=demand.request_rate,
            mean_steps=steps,
            a=found.a,
            marginal_seconds=found.b,
            cap=cap,
        )
    if load >= 1.0 or not found.stable:
        return saturated(found, cap, full_batch(seconds, found.c, cap, workload), load)
    full = full_batch(most, found.c, cap, workload)
    return with_cap(found, workload, demand, cap, full, load, chain)


def _at_cap(step_time: Any, cap: int) -> tuple[float, float]:
    """T(n) at the cap, and its largest value up to there (on some 250 batches)."""
    import numpy as np

    from capplan.formulas.product_form import step_function

    batches = np.append(np.arange(1.0, cap, max(1, cap // 250)), float(cap))
    seconds = step_function(step_time)(batches)
    return float(seconds[-1]), float(seconds.max())


def _linear(step_time: Any) -> tuple[float, float, float] | None:
    """The three constants of a linear step time, or None for a function or an array."""
    if callable(step_time):
        return None
    array = hasattr(step_time, "tolist")
    values = step_time.tolist() if array else step_time
    constants = not array and isinstance(values, (tuple, list)) and len(values) == 3
    if not isinstance(values, list) and not constants:
        raise InputError(
            "must be (a, e, c), a function T(batch), or an array of T at batch 0, 1, 2, ...", key="step_time"
        )
    for value in values:
        one_number(value, "step_time")
    if constants:
        one_number(values[0], "step_time", above=True)
        return float(values[0]), float(values[1]), float(values[2])
    if len(values) < 2 or min(values[1:]) <= 0.0:
        raise InputError("an array of T needs batch 0, 1, ... and times above 0 from batch 1 on", key="step_time")
    return None


def _check(
    workload: object, rate: Any, cap: Any, dispersion: Any, routing: object, instances: Any, method: object
) -> None:
    if not isinstance(workload, Workload):
        raise InputError("must be a Workload; load_workload(name) reads a card or a trace", key="workload")
    one_number(rate, "request_rate", above=True)
    one_number(dispersion, "dispersion", above=True)
    whole_number(instances, "instances")
    if cap is not None:
        whole_number(cap, "cap")
    for key, value, known in (("routing", routing, ROUTINGS), ("method", method, METHODS)):
        if not isinstance(value, str) or value not in known:
            raise InputError(f"{shown(value)} is none of {', '.join(known)}", key=key)
