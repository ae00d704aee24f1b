"""First and second moments of batch and step time of one rank: closed, numerical, or for any T(n)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from capplan.cards.workload import Workload
from capplan.formulas import cap as capped
from capplan.formulas import lengths
from capplan.formulas import stationary as closed
from capplan.quantities.chain import Chain
from capplan.serving.stationary_bounds import StepCumulants
from capplan.serving.stationary_demand import Demand

if TYPE_CHECKING:
    from capplan.formulas.product_form import ProductForm
    from capplan.formulas.spectrum import Spectrum

HEAVY_PROMPT_CV = 1.5
"""Assumed: from this coefficient of variation of prompts on, the floor below applies."""
IDLE_LOAD = 1e-10
LEAST_LEFT = 1e-4
"""Of a variance that a closed loop takes away: laws need some."""
LARGEST_SLOPE_LOAD = 0.999
"""The slope of a step time that bends may exceed what a line of a stable rank could."""
LEAST_KV_FLOOR = 0.4
"""One heavy prompt cannot be split: below a batch of 50 least-KV routing leaves this share of the variance."""


@dataclass(frozen=True, eq=False)
class StepMoments:
    """Moments over steps (each step counts once), and what percentiles need beside them.

    ``met_shift``: step time met by an arriving request less the mean over steps [s]. ``feedback``: x/(1-x), how far a
    request's own step seconds multiply. ``slot_load`` and the waits: with a cap only. ``replaced``: step
    seconds of the average request whose place a request takes; 0 where it comes on top of the batch it meets [s].
    ``least``: the step time that no step falls below [s]. ``full``: the step time while the batch is at the cap, None
    without a cap. ``added``: share of its own step seconds that a request adds to its rank, 1/G where a balancer sends
    others elsewhere; ``trades_places``: an average request is sent elsewhere, not one of the same step seconds.
    ``held_variance``: variance of the batch as far as it moves what the batch holds of the KV pool, None
    where that is all of it; ``held_size_share``: what is left of the variance of sizes.
    """

    a: float
    e: float
    c: float
    b: float
    load: float
    step_mean: float
    batch_mean: float
    step_variance: float
    batch_variance: float
    covariance: float
    third: float
    relaxation: float
    met_shift: float
    feedback: float
    stable: bool = True
    spectrum: Spectrum | None = None
    table: ProductForm | None = None
    wait_probability: float = 0.0
    wait_mean_of_waiting: float = 0.0
    slot_load: float | None = None
    replaced: float = 0.0
    least: float = 0.0
    full: StepCumulants | None = None
    added: float = 1.0
    trades_places: bool = False
    held_variance: float | None = None
    held_size_share: float = 1.0


def linear_moments(
    workload: Workload, demand: Demand, step: tuple[float, float, float], method: str, chain: Chain
) -> StepMoments:
    """Moments for T = a + e batch + c context; ``stable`` is false at a load of 1 and more."""
    m = workload.decode_moments
    a, e, c = step
    steps = chain.given("mean_decode_steps", m.m01, workload.name)
    theta = chain.given("mean_context_tokens", workload.mean_context, workload.name)
    b = chain.derive("marginal_step_seconds", closed.marginal_step_seconds, e=e, c=c, mean_context=theta)
    load = chain.derive(
        "decode_load", closed.decode_load, request_rate=demand.request_rate, mean_decode_steps=steps, marginal_seconds=b
    )
    if load >= 1.0:
        return _unstable(a, e, c, b, load, lengths.aged_decode_work(e, c, m) / (b * steps))
    mean = chain.derive("step_mean_seconds", closed.step_mean_seconds, a=a, load=load)
    batch = chain.derive(
        "batch_step_mean",
        closed.batch_step_mean,
        request_rate=demand.request_rate,
        mean_decode_steps=steps,
        step_mean=mean,
    )
    refresh = max(1.0, m.m02 / (2 * steps))
    flat = StepMoments(a, e, c, b, load, mean, batch, 0.0, batch, 0.0, 0.0, refresh, 0.0, load / (1 - load), least=a)
    # an idle rank: no step holds two requests, and the excess over a drowns in rounding
    return flat if b == 0.0 or load < IDLE_LOAD else _second_moments(flat, workload, demand, method, chain)


def _unstable(a: float, e: float, c: float, b: float, load: float, refresh: float) -> StepMoments:
    inf = math.inf
    return StepMoments(a, e, c, b, load, inf, inf, inf, inf, inf, inf, max(1.0, refresh), 0.0, 0.0, stable=False)


def _second_moments(flat: StepMoments, workload: Workload, demand: Demand, method: str, chain: Chain) -> StepMoments:
    excess = demand.excess(chain)
    m, e, c, b, load = workload.decode_moments, flat.e, flat.c, flat.b, flat.load
    aged = lengths.aged_decode_work(e, c, m)
    nu = chain.given("context_std_tokens", workload.context_std, workload.name)
    spread = chain.derive("context_spread", closed.context_spread, c=c, context_std=nu, marginal_seconds=b)
    tau = chain.derive(
        "relaxation_steps",
        closed.relaxation_steps,
        aged_work=aged,
        marginal_seconds=b,
        mean_decode_steps=m.m01,
        load=load,
    )
    if method == "exact":
        from capplan.formulas.spectrum import decode_spectrum

        spectrum = decode_spectrum(
            workload.decode_nodes(), flat.a, e, c, demand.request_rate, demand.excess_spectrum(excess)
        )
        found = replace(
            flat,
            step_variance=chain.given("step_variance", spectrum.step_variance, "spectrum"),
            batch_variance=chain.given("batch_variance", spectrum.batch_variance, "spectrum"),
            covariance=chain.given("batch_step_covariance", spectrum.covariance, "spectrum"),
            spectrum=spectrum,
        )
    else:
        found = _closed_variances(flat, workload, spread, aged, excess, chain)
    bursty = excess if demand.arrival_spectrum is None else 1.0
    return _routed(replace(found, relaxation=tau), workload, demand, spread, bursty, chain)


def _closed_variances(
    flat: StepMoments, workload: Workload, spread: float, aged: float, excess: float, chain: Chain
) -> StepMoments:
    """V_T, C and V_N as negative binomial times H, plus the excess dispersion times eta."""
    m, b, load = workload.decode_moments, flat.b, flat.load
    square = lengths.decode_work_square(flat.e, flat.c, m)
    full = chain.derive(
        "heavy_load_factor", closed.heavy_load_factor, work_square=square, aged_work=aged, marginal_seconds=b
    )
    of_step = chain.derive(
        "step_variance_factor", closed.step_variance_factor, spread=spread, factor_full=full, load=load
    )
    of_both = chain.derive("cross_factor", closed.cross_factor, factor_full=full, load=load)
    of_batch = chain.derive("batch_variance_factor", closed.batch_variance_factor, factor_full=full, load=load)
    if excess:
        eta, eta_batch = _dampings(flat, workload, aged, chain)
        of_step, of_batch = of_step + excess * eta, of_batch + excess * eta_batch
        of_both = of_both + excess * math.sqrt(eta * eta_batch)
    of_step, of_batch = max(of_step, 0.02), max(of_batch, 0.02)
    common = {"batch_mean": flat.batch_mean, "load": load}
    return replace(
        flat,
        step_variance=chain.derive("step_variance", closed.step_variance, **common, marginal_seconds=b, factor=of_step),
        batch_variance=chain.derive("batch_variance", closed.batch_variance, **common, factor=of_batch),
        covariance=chain.derive(
            "batch_step_covariance", closed.batch_step_covariance, **common, marginal_seconds=b, factor=of_both
        ),
    )


def _dampings(flat: StepMoments, workload: Workload, aged: float, chain: Chain) -> tuple[float, float]:
    """eta_b of the step time and of the batch."""
    m, i00 = workload.decode_moments, workload.overlap[0]
    of_step = chain.derive(
        "burst_damping",
        closed.burst_damping,
        overlap=lengths.decode_work_overlap(flat.e, flat.c, workload.overlap),
        aged_work=aged,
        marginal_seconds=flat.b,
        mean_steps=m.m01,
        load=flat.load,
    )
    return of_step, closed.burst_damping(i00, m.m02 / 2, 1.0, m.m01, flat.load)


def _routed(
    found: StepMoments, workload: Workload, demand: Demand, spread: float, excess: float, chain: Chain
) -> StepMoments:
    """What a balancer leaves of the variances; then the third cumulant and the step time met at arrival."""
    slope = found.covariance / found.batch_variance
    bursty = (found.batch_variance / found.batch_mean - 1.0) * slope
    if demand.pooled:
        found = _balanced(found, workload, demand, spread)
        bursty /= demand.instances
    third = chain.derive(
        "step_third_cumulant",
        closed.step_third_cumulant,
        step_variance_value=found.step_variance,
        excess_step=found.step_mean - found.a,
        load=found.load,
        weight_cube=lengths.running_weight_cube(found.e, found.c, workload.decode_moments),
        marginal_seconds=found.b,
        spread=spread,
    )
    # no arrival meets a step shorter than that of an empty batch
    met = max(bursty, found.a - found.step_mean) if excess else found.step_variance / found.step_mean
    return replace(found, third=third, met_shift=met)


def _balanced(found: StepMoments, workload: Workload, demand: Demand, spread: float) -> StepMoments:
    share = 1.0 / demand.instances
    unit = closed.step_variance(found.batch_mean, found.b, found.load, 1.0)
    if demand.routing == "least-loaded":
        factor = closed.least_loaded_variance(found.step_variance / unit, demand.instances, spread * (1.0 - found.load))
        return replace(
            found,
            step_variance=unit * factor,
            batch_variance=found.batch_variance * share,
            covariance=found.covariance * share,
            added=share,
            trades_places=True,
        )
    m = workload.decode_moments
    batch = closed.least_kv_batch_variance(
        found.batch_variance, demand.instances, found.batch_mean, spread, m.m01, m.m02
    )
    pooled = found.batch_variance * share
    kept = closed.least_kv_size_share(demand.instances, found.c * workload.mean_context / found.b)
    if found.batch_mean < 50 and workload.input.cv > HEAVY_PROMPT_CV:
        share = max(share, LEAST_KV_FLOOR * min(1.0, spread))
    return replace(
        found,
        step_variance=found.step_variance * share,
        batch_variance=batch,
        covariance=found.covariance * share,
        added=1.0 / demand.instances,
        held_variance=pooled,
        held_size_share=kept,
    )


def nonlinear_moments(workload: Workload, demand: Demand, step_time: Any, chain: Chain) -> StepMoments:
    """Moments for any T(batch), by the product form; excess dispersion and routing as for the line that touches it."""
    from capplan.formulas.product_form import product_form, step_function

    m = workload.decode_moments
    steps = chain.given("mean_decode_steps", m.m01, workload.name)
    table = product_form(step_function(step_time), demand.request_rate * steps)
    if not table.stable:
        return _unstable(math.nan, math.nan, 0.0, math.nan, math.inf, m.m02 / (2 * steps))
    excess = demand.excess(chain)
    load = closed.decode_load(demand.request_rate, steps, table.b)
    found = StepMoments(
        table.a,
        table.b,
        0.0,
        table.b,
        chain.given("decode_load", load, "slope of T at the mean batch"),
        chain.given("step_mean_seconds", table.step_mean, "product form"),
        table.batch_mean,
        table.step_variance,
        table.batch_variance,
        table.covariance,
        table.third,
        max(1.0, m.m02 / (2 * steps) / max(0.02, 1.0 - load)),
        0.0,
        max(0.0, load) / max(0.02, 1.0 - load),
        table=table,
    )
    return _nonlinear_bursts(found, workload, demand, excess)


def _nonlinear_bursts(found: StepMoments, workload: Workload, demand: Demand, excess: float) -> StepMoments:
    m, load = workload.decode_moments, min(max(found.load, 0.0), 0.999)
    factor = 1.0
    if excess:
        eta = closed.burst_damping(workload.overlap[0], m.m02 / 2, 1.0, m.m01, load)
        factor = max(0.02, 1.0 + excess * eta)
    bursty = (factor * found.batch_variance / found.batch_mean - 1.0) * found.covariance / found.batch_variance
    if demand.pooled:
        factor, bursty = factor / demand.instances, bursty / demand.instances
    variance = found.step_variance * factor
    return replace(
        found,
        step_variance=variance,
        batch_variance=found.batch_variance * factor,
        covariance=found.covariance * factor,
        third=found.third * factor**2,
        met_shift=bursty if excess else variance / found.step_mean,
        table=found.table if factor == 1.0 else None,
    )


def disturbed(found: StepMoments, variance: float) -> StepMoments:
    """The moments with so much more variance of the batch, or less, from what the step time does not know."""
    if not found.stable or found.step_variance <= 0.0:
        return found
    more = max(found.b**2 * variance, -(1 - LEAST_LEFT) * found.step_variance)
    return replace(
        found,
        step_variance=found.step_variance + more,
        batch_variance=found.batch_variance + variance,
        covariance=found.covariance + found.b * variance,
        third=found.third * (1 + more / found.step_variance) ** 2,
        held_variance=None if found.held_variance is None else found.held_variance + variance,
    )


def confined(found: StepMoments, share: float) -> StepMoments:
    """The moments in a closed loop of whose requests this rank, or all behind its balancer, hold that share on average.

    Requests in flight are shared out like balls in boxes: of the variance of the batch 1 - share is left, and a request
    takes the place of another one with that chance.
    """
    share = min(max(share, 0.0), 1.0)
    less = disturbed(found, -share * (1 - LEAST_LEFT) * found.batch_variance)
    return replace(
        less,
        added=found.added * (1 - share),
        trades_places=found.trades_places or found.held_variance is None,
        met_shift=found.met_shift * less.step_variance / max(found.step_variance, 1e-300),
    )


def with_cap(
    found: StepMoments,
    workload: Workload,
    demand: Demand,
    cap: int,
    full: StepCumulants,
    slot_load: float,
    chain: Chain,
) -> StepMoments:
    """The moments with at most ``cap`` sequences in the batch, and the wait for a slot."""
    m = workload.decode_moments
    peaked = chain.derive(
        "peakedness",
        capped.peakedness,
        batch_variance=found.batch_variance,
        batch_mean=found.batch_mean,
        load=min(found.load, LARGEST_SLOPE_LOAD),
    )
    law = capped.capped_batch(cap, *_rising(found, demand, workload, cap), slot_load, max(peaked, 0.02))
    wait = chain.derive(
        "decode_wait_mean_of_waiting_seconds",
        capped.wait_mean_of_waiting,
        work=capped.work_mean(found.a, found.e, found.c, cap, m),
        work_square=lengths.decode_work_square(found.a / cap + found.e, found.c, m),
        arrival_variation=max(0.0, 1.0 + (0.0 if demand.pooled else demand.excess(chain))),
        slot_load=slot_load,
    )
    limited = _limited(found, law) if law.wait_probability > 1e-9 else found
    return replace(
        limited,
        wait_probability=law.wait_probability,
        wait_mean_of_waiting=wait,
        slot_load=slot_load,
        table=None,
        full=full,
    )


def _rising(found: StepMoments, demand: Demand, workload: Workload, cap: int) -> tuple[float, float]:
    """a/b and x of the batch law; a step time that does not rise with the batch is its limit of a small slope."""
    if found.b > 0.0:
        return found.a / found.b, min(found.load, LARGEST_SLOPE_LOAD)
    slope = 1e-6 * found.step_mean / cap
    return found.step_mean / slope, closed.decode_load(demand.request_rate, workload.decode_moments.m01, slope)


def _limited(found: StepMoments, law: capped.CappedBatch) -> StepMoments:
    """The batch part of the variances shrinks with the batch; the context part stays.

    The power 2.5 by which the third cumulant falls is assumed (1.5 would keep the skewness, which a cap lowers).
    """
    if found.covariance <= 0.0:  # the step time does not rise with the batch
        return replace(found, batch_variance=found.batch_variance * law.variance_ratio)
    time_mean = (found.batch_mean + found.covariance / found.step_mean) * law.mean_ratio
    covariance = min(max(0.0, (time_mean - found.batch_mean) * found.step_mean), found.covariance)
    slope = found.covariance / found.batch_variance
    of_context = max(0.0, found.step_variance - found.covariance * slope)
    variance = of_context + slope**2 * found.batch_variance * law.variance_ratio
    shrink = variance / found.step_variance
    return replace(
        found,
        step_variance=variance,
        batch_variance=found.batch_variance * law.variance_ratio,
        covariance=covariance,
        third=found.third * shrink**2.5,
        met_shift=found.met_shift * shrink,
    )


def saturated(found: StepMoments, cap: int, full: StepCumulants, slot_load: float) -> StepMoments:
    """A rank whose slots are always full: the batch is the cap, waits have no limit."""
    return replace(
        found,
        e=found.e if math.isfinite(found.e) else 0.0,
        replaced=found.b if math.isfinite(found.b) else 0.0,
        step_mean=full.mean,
        batch_mean=float(cap),
        step_variance=full.variance,
        batch_variance=0.0,
        covariance=0.0,
        third=full.third,
        met_shift=0.0,
        feedback=0.0,
        table=None,
        wait_probability=1.0,
        wait_mean_of_waiting=math.inf,
        slot_load=slot_load,
        full=full,
    )
