"""Time of prefilling prompts on an instance."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from capplan.cards.engine import Engine
from capplan.cards.hardware import Hardware
from capplan.cards.model import Model
from capplan.formulas import _ops
from capplan.formulas._ops import Value
from capplan.quantities.chain import Chain
from capplan.serving.evaluation import account, add_engine_gap, layered_parts, total_seconds
from capplan.serving.layout import Layout
from capplan.serving.passes import Derive, Parts, evaluate
from capplan.serving.prepared import Prepared, prepare
from capplan.serving.step_plan import StepPlan
from capplan.serving.step_time import (
    StepTime,
    band_of,
    check_drafts,
    check_number,
    check_switch,
    common_shape,
    in_shape,
    reaches_parts,
    refuse_unknown,
    scaled,
    time_factor,
)
from capplan.serving.work import Work


def prefill(
    model: Model,
    hardware: Hardware,
    layout: Layout,
    tokens: Value,
    cached: Value = 0,
    prompts: Value = 1,
    *,
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
    engine: Engine | str | None = None,
    overlap: bool = False,
    mtp: int = 0,
    acceptance: Any = None,
    skew: float = 1.0,
    chain: Chain | None = None,
    **unknown: Any,
) -> StepTime:
    r"""Time of one forward pass over whole prompts: products of all their tokens, and causal attention.

    .. math:: T = \sum_\mathrm{kernels} [t_0 + (t_b^p + t_f^p)^{1/p}], \qquad
              \mathrm{pairs} = n c + n (n + 1)/2

    A prefix hit saves the products of its tokens, not the attention of the new tokens to them; latent attention
    expands the latents of the prefix again. A prompt passes pipeline stages one after the other.

    Parameters
    ----------
    model, hardware, layout : what runs where
    tokens : new tokens n of each prompt; a number or an array [tokens]
    cached : prefix hit c of each prompt; a number or an array [tokens]
    prompts : in flight in the whole instance, spread over its data-parallel ranks [1]
    weight_dtype, kv_dtype, engine, overlap, skew, chain : as in :func:`capplan.decode_step`
    mtp, acceptance : with draft tokens the multi-token-prediction layers see the prompt too

    Returns
    -------
    step_time : as for a decode step; ``tokens`` are the prompt tokens computed

    Raises
    ------
    InputError : tokens or prompts that are not above zero, a negative prefix, an unknown option, format or engine

    Examples
    --------
    >>> from capplan.cards.hardware_card import load_hardware
    >>> from capplan.cards.model_card import load_model
    >>> one = prefill(load_model("llama-3.1-8b"), load_hardware("h200"), Layout(), tokens=8192)
    >>> round(one.seconds * 1e3), one.limit  # 201 ms measured
    (205, 'compute')

    References
    ----------
    Llama-3.1-8B prompts of 128 to 32,768 tokens measured on one H200: tests/truth/h200_kernels.json.
    """
    refuse_unknown(unknown)
    prepared = prepare(model, hardware, layout, weight_dtype, kv_dtype, engine, chain)
    drafts, _ = check_drafts(mtp, acceptance)
    new, in_flight = check_number(tokens, "tokens", above=True), check_number(prompts, "prompts", above=True)
    rank = in_flight if layout.dp == 1 else _ops.ceil(in_flight / layout.dp)
    hit, share = check_number(cached, "cached"), check_number(skew, "skew", least=1.0)
    common_shape(tokens=new, cached=hit, prompts=in_flight, skew=share)
    work = Work(rank, new, hit, in_flight * new, rank, share, prefill=True)
    return _answer(prepared, work, check_switch(overlap, "overlap"), drafts > 0, chain)


def _answer(prepared: Prepared, work: Work, overlap: bool, drafts: bool, chain: Chain | None) -> StepTime:
    derive: Derive = _named(chain) if chain is not None and reaches_parts(chain) else evaluate
    parts = layered_parts(prepared.plan, work, overlap, derive)
    passes = [(prepared.plan, work, 1)]
    if drafts and prepared.draft is not None:
        parts["draft_seconds"] = derive("draft_seconds", _one_pass, plan=prepared.draft, work=work, overlap=overlap)
        passes.append((prepared.draft, work, 1))
    add_engine_gap(prepared.plan, work.sequences, derive, parts)
    factor = time_factor(chain, "prefill_time_factor", "prefill_seconds")
    seconds = derive("prefill_seconds", prefill_seconds, prefill_time_factor=factor, **parts)
    accounted = partial(account, passes, overlap, parts, factor)
    parts = parts if factor == 1.0 else scaled(parts, factor)
    if derive is not evaluate and chain is not None and chain.overrides:
        seconds, parts = in_shape(
            common_shape(tokens=work.all_tokens, cached=work.cached_tokens, skew=work.skew), seconds, parts
        )
    return StepTime(
        seconds=seconds,
        parts=parts,
        tokens=work.all_tokens,
        tokens_per_step=None,
        gpus=prepared.plan.layout.gpus,
        _account=accounted,
        band_factors=band_of(prepared, "prefill", chain, "prefill_seconds"),
    )


def prefill_seconds(prefill_time_factor: Value, **parts: Value) -> Value:
    """The sum of all parts, times what they are off by together [s]."""
    return prefill_time_factor * total_seconds(**parts)


def _named(chain: Chain) -> Derive:
    """Quantities of a prefill are apart from those of a decode step in the same chain."""

    def derive(name: str, formula: Callable[..., Any], **inputs: Any) -> Any:
        return chain.derive(name if name.startswith("prefill_") else f"prefill_{name}", formula, **inputs)

    return derive


def _one_pass(plan: StepPlan, work: Work, overlap: bool) -> Value:
    """The multi-token-prediction layers over the prompts [s]."""
    parts: Parts = layered_parts(plan, work, overlap, evaluate)
    return total_seconds(**parts) + plan.engine_gap_seconds
