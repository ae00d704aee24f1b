"""A step in which prompts are read while other sequences get their next token: chunked prefill."""

from __future__ import annotations

from capplan.formulas._ops import Value
from capplan.formulas.gemm import gemms_seconds
from capplan.serving import passes
from capplan.serving.evaluation import Batch, add_engine_gap, decode_work, total_seconds
from capplan.serving.passes import Derive, Parts, evaluate
from capplan.serving.step_plan import StepPlan
from capplan.serving.work import Work


def mixed_parts(plan: StepPlan, batch: Batch, prompts: Work, derive: Derive = evaluate) -> Parts:
    """Seconds by part of one pass over decode and prompt tokens together.

    Attention runs over both in kernels of its own; everything else sees one batch of rows, so the weights are read
    once. Prompts go to their experts in the form for many tokens, beside what the decode step sends there. The engine
    adds what it adds to the decode step, which goes on over all micro-batches.
    """
    decode = decode_work(plan, batch)
    both = Work(
        decode.rows + prompts.rows,
        1.0,
        0.0,
        decode.all_tokens + prompts.all_tokens,
        decode.head_rows + prompts.head_rows,
        decode.skew,
        prefill=True,
    )
    beside = passes.attention_parts(plan, prompts, derive)
    compute: Parts = {
        **{name: seconds + beside[name] for name, seconds in passes.attention_parts(plan, decode, derive).items()},
        "linear_seconds": _linear(plan, decode, prompts, both),
        "elementwise_seconds": gemms_seconds(both.rows, (plan.elementwise,)),
        "lm_head_seconds": gemms_seconds(both.head_rows, plan.head),
        "sampling_seconds": gemms_seconds(both.head_rows, (plan.sampling,)),
    }
    exchange: Parts = {}
    passes.add_exchanges(plan, both, derive, compute, exchange, (decode, prompts))
    if plan.layout.dcp > 1:
        exchange["context_parallel_seconds"] = passes.context_parallel_part(plan, decode, derive)
    parts = {**compute, **exchange}
    add_engine_gap(plan, batch.rank_sequences, derive, parts)
    return parts


def mixed_seconds(plan: StepPlan, batch: Batch, prompts: Work) -> Value:
    """The whole of such a step [s]."""
    return total_seconds(**mixed_parts(plan, batch, prompts))


def _linear(plan: StepPlan, decode: Work, prompts: Work, both: Work) -> Value:
    seconds = gemms_seconds(both.rows, plan.gemms)
    if plan.latent_gemms:
        expanded = prompts.rows + prompts.sequences * prompts.cached_tokens
        seconds = seconds + gemms_seconds(decode.rows, plan.latent_split_gemms)
        seconds = seconds + gemms_seconds(expanded, plan.latent_gemms)
    return seconds
