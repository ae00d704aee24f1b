"""From a plan and a batch to a :class:`StepTime`: micro-batches, overlap, drafts, large arrays in slices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from capplan.formulas import _ops
from capplan.formulas._ops import Value
from capplan.formulas.collectives import exposed_communication_seconds
from capplan.formulas.speculation import tokens_per_verify_step
from capplan.quantities.chain import Chain
from capplan.serving.links import link_bytes, time_shares
from capplan.serving.passes import Derive, Parts, evaluate, pass_parts
from capplan.serving.prepared import Prepared
from capplan.serving.step_plan import StepPlan
from capplan.serving.step_time import StepTime, band_of, common_shape, in_shape, reaches_parts, scaled, time_factor
from capplan.serving.work import Work

SLICE = 8192
"""Steps evaluated at once: their arrays stay in the cache of a core."""

_UNHIDDEN = ("lm_head_seconds", "sampling_seconds")


@dataclass(frozen=True, eq=False)
class Batch:
    """What a decode step is asked for, checked.

    Parameters
    ----------
    rank_sequences : on the busiest data-parallel rank [1]
    sequences : of the whole instance [1]
    context : cached tokens of each [tokens]
    drafts : draft tokens a step [1]
    acceptance : of each draft position, None where unknown [1]
    skew : lasting imbalance of the experts [1]
    overlap : two micro-batches that hide communication
    """

    rank_sequences: Value
    sequences: Value
    context: Value
    drafts: int
    acceptance: tuple[float, ...] | None
    skew: Value
    overlap: bool


def evaluate_step(prepared: Prepared, batch: Batch, chain: Chain | None) -> StepTime:
    """The answer of a decode step."""
    derive: Derive = chain.derive if chain is not None and reaches_parts(chain) else evaluate
    yielded = _tokens_per_step(batch, derive)
    size = max(getattr(batch.sequences, "size", 1), getattr(batch.context, "size", 1), getattr(batch.skew, "size", 1))
    parts = step_parts(prepared, batch, derive) if size <= SLICE or derive is not evaluate else _sliced(prepared, batch)
    factor = time_factor(chain, "decode_time_factor", "step_seconds")
    seconds = derive("step_seconds", step_seconds, decode_time_factor=factor, **parts)
    accounted = partial(_account, prepared, batch, parts, factor)
    parts = parts if factor == 1.0 else scaled(parts, factor)
    if derive is not evaluate and chain is not None and chain.overrides:
        seconds, parts = in_shape(
            common_shape(batch=batch.sequences, context=batch.context, skew=batch.skew), seconds, parts
        )
    return StepTime(
        seconds=seconds,
        parts=parts,
        tokens=None if yielded is None else batch.sequences * yielded,
        tokens_per_step=yielded,
        gpus=prepared.plan.layout.gpus,
        _account=accounted,
        band_factors=band_of(prepared, prepared.decode_kind, chain, "step_seconds"),
    )


def step_seconds(decode_time_factor: Value, **parts: Value) -> Value:
    """The sum of all parts, times what they are off by together [s]."""
    return decode_time_factor * total_seconds(**parts)


def total_seconds(**parts: Value) -> Value:
    """The sum of all parts [s]."""
    return sum(parts.values())


def _tokens_per_step(batch: Batch, derive: Derive) -> Value | None:
    if batch.drafts == 0:
        return 1.0
    if batch.acceptance is None:
        return None
    return derive("tokens_per_step", tokens_per_verify_step, acceptance=batch.acceptance)


def step_parts(prepared: Prepared, batch: Batch, derive: Derive) -> Parts:
    """Seconds of a decode step by part."""
    parts = layered_parts(prepared.plan, decode_work(prepared.plan, batch), batch.overlap, derive)
    if batch.drafts and prepared.draft is not None:
        parts["draft_seconds"] = derive("draft_seconds", _draft_seconds, plan=prepared.draft, batch=batch)
    add_engine_gap(prepared.plan, batch.rank_sequences, derive, parts)
    return parts


def add_engine_gap(plan: StepPlan, sequences: Value, derive: Derive, parts: Parts) -> None:
    """What the engine adds to a pass, if one was named."""
    if plan.engine_gap_seconds or plan.engine_gap_per_sequence_seconds:
        parts["engine_gap_seconds"] = derive(
            "engine_gap_seconds",
            engine_gap_seconds,
            sequences=sequences,
            gap_seconds=plan.engine_gap_seconds,
            sequence_seconds=plan.engine_gap_per_sequence_seconds,
        )


def engine_gap_seconds(sequences: Value, gap_seconds: Value, sequence_seconds: Value) -> Value:
    """Host and scheduling time of a pass: a constant, and a part for each sequence of the rank [s]."""
    return gap_seconds + sequence_seconds * sequences


def decode_work(plan: StepPlan, batch: Batch) -> Work:
    """One of as many micro-batches as there are pipeline stages."""
    stages, queries = plan.layout.pp, batch.drafts + 1
    sequences, every = batch.rank_sequences, batch.sequences
    if stages > 1:
        sequences, every = _share(sequences, stages), _share(every, stages)
    return Work(sequences, queries, batch.context, every * queries, sequences * queries, batch.skew, prefill=False)


def _share(sequences: Value, ways: int) -> Value:
    """An even share, but not a part of a sequence."""
    return _ops.maximum(sequences / ways, _ops.minimum(sequences, 1.0))


def layered_parts(plan: StepPlan, work: Work, overlap: bool, derive: Derive) -> Parts:
    """All parts of a pass, as a sum or with communication hidden behind the other micro-batch's computation."""
    if not overlap or (plan.layout.tp == 1 and plan.layout.dp == 1):
        compute, exchange = pass_parts(plan, work, derive)
        return {**compute, **exchange}
    ways, micro_batch = split(work)
    compute, exchange = pass_parts(plan, micro_batch, derive)
    parts = {name: ways * seconds for name, seconds in compute.items()}
    hidden_by = (ways - 1) * sum(seconds for name, seconds in parts.items() if name not in _UNHIDDEN)
    parts["exposed_communication_seconds"] = derive(
        "exposed_communication_seconds",
        exposed_communication_seconds,
        communication_seconds=ways * sum(exchange.values()),
        compute_seconds=hidden_by,
        compute_share=plan.kernels.exchange_compute_share if work.prefill and plan.layout.dp > 1 else 0.0,
    )
    return parts


def split(work: Work) -> tuple[Value, Work]:
    """How many micro-batches, and one of them: two halves, but a decode step with one sequence a rank stays whole."""
    ways = 2.0 if work.prefill else _ops.where(work.sequences < 2, 1.0, 2.0)
    return ways, replace(
        work,
        sequences=work.sequences / ways,
        all_tokens=work.all_tokens / ways,
        head_rows=work.head_rows / ways,
    )


def _draft_seconds(plan: StepPlan, batch: Batch) -> Value:
    """Passes that draw the drafts, one token a sequence each [s]."""
    work = decode_work(plan, replace(batch, drafts=0))
    layers = total_seconds(**layered_parts(plan, work, batch.overlap, evaluate))
    return batch.drafts * (layers + plan.engine_gap_seconds)


def _sliced(prepared: Prepared, batch: Batch) -> Parts:
    import numpy

    rank, every, context, skew = numpy.broadcast_arrays(
        batch.rank_sequences, batch.sequences, batch.context, batch.skew
    )
    shape, flat = rank.shape, [numpy.ravel(values) for values in (rank, every, context)]
    skews = batch.skew if isinstance(batch.skew, float) else numpy.ravel(skew)
    result: dict[str, Any] = {}
    for start in range(0, rank.size, SLICE):
        piece = slice(start, start + SLICE)
        part = replace(
            batch,
            rank_sequences=flat[0][piece],
            sequences=flat[1][piece],
            context=flat[2][piece],
            skew=skews if isinstance(skews, float) else skews[piece],
        )
        for name, seconds in step_parts(prepared, part, evaluate).items():
            result.setdefault(name, numpy.empty(rank.size))[piece] = seconds
    return {name: seconds.reshape(shape) for name, seconds in result.items()}


def _account(
    prepared: Prepared, batch: Batch, parts: Parts, factor: float
) -> tuple[dict[str, Value], dict[str, Value]]:
    work = decode_work(prepared.plan, batch)
    passes = [(prepared.plan, work, 1)]
    if batch.drafts and prepared.draft is not None:
        passes.append((prepared.draft, decode_work(prepared.draft, replace(batch, drafts=0)), batch.drafts))
    return account(passes, batch.overlap, parts, factor)


def account(
    passes: list[tuple[StepPlan, Work, int]], overlap: bool, parts: Parts, factor: float
) -> tuple[dict[str, Value], dict[str, Value]]:
    """Time by what it is spent on, times the factor on all times, and bytes by link, of all passes."""
    shares: dict[str, Value] = {}
    links: dict[str, Value] = {}
    for plan, work, times in passes:
        if overlap and (plan.layout.tp > 1 or plan.layout.dp > 1):
            ways, work = split(work)
            times = ways * times
        exchange = sum(pass_parts(plan, work, evaluate)[1].values())
        for totals, found in (
            (shares, {**time_shares(plan, work), "network": exchange}),
            (links, link_bytes(plan, work)),
        ):
            for name, value in found.items():
                totals[name] = totals.get(name, 0.0) + times * value
    if "exposed_communication_seconds" in parts:
        shares["network"] = parts["exposed_communication_seconds"]
    shares["latency"] = shares["latency"] + parts.get("engine_gap_seconds", 0.0)
    return shares if factor == 1.0 else scaled(shares, factor), links
