"""Time of one decode step of an instance."""

from __future__ import annotations

from typing import Any

from capplan.cards.engine import Engine
from capplan.cards.hardware import Hardware
from capplan.cards.model import Model
from capplan.formulas import _ops
from capplan.formulas._ops import Value
from capplan.quantities.chain import Chain
from capplan.serving.evaluation import Batch, evaluate_step
from capplan.serving.layout import Layout
from capplan.serving.prepared import prepare
from capplan.serving.step_time import (
    StepTime,
    check_drafts,
    check_number,
    check_switch,
    common_shape,
    refuse_unknown,
)


def decode_step(
    model: Model,
    hardware: Hardware,
    layout: Layout,
    batch: Value,
    context: Value,
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
    r"""Time of one forward pass in which every sequence of an instance gets its next token.

    .. math:: T = \sum_\mathrm{layers} \sum_\mathrm{kernels} [t_0 + (t_b^p + t_f^p)^{1/p}] + \mathrm{exchanges}
              + \mathrm{gaps}

    The busiest GPU counts: the rank with ``ceil(batch / dp)`` sequences, the expert rank most tokens chose. With
    pipeline stages the batch is split into as many micro-batches as stages, so that all stages work. Whether the
    batch fits into memory is another question: see :func:`capplan.memory`.

    Parameters
    ----------
    model, hardware, layout : what runs where
    batch : sequences of the whole instance; a number or an array [1]
    context : tokens each of them has cached before the step; a number or an array [tokens]
    weight_dtype, kv_dtype : formats of weights and cache; None is what the checkpoint declares
    engine : engine card or name, whose gaps between kernels are added; None or ``"none"`` for bare kernels
    overlap : two micro-batches, one computing while the other communicates
    mtp : draft tokens a step, each from one pass of the model's multi-token-prediction layers; without such layers
        the drafts are taken as free (look-up in the prompt)
    acceptance : probability that a draft is accepted, one for all positions or one for each [1]
    skew : tokens of the busiest expert rank over the mean in a long run [1]
    chain : collects the named quantities, and overrides them

    Returns
    -------
    step_time : ``.seconds``, ``.parts``, ``.limit``, ``.links``, ``.tokens_per_step``, with the shape of the inputs

    Raises
    ------
    InputError : a batch that is not above zero, a negative context, an unknown option, format or engine

    Examples
    --------
    >>> from capplan.cards.hardware_card import load_hardware
    >>> from capplan.cards.model_card import load_model
    >>> step = decode_step(load_model("llama-3.1-8b"), load_hardware("h200"), Layout(), batch=64, context=8192)
    >>> round(step.seconds * 1e3), step.limit  # 20.9 ms measured
    (20, 'hbm')

    References
    ----------
    Kernel forms and constants: :mod:`capplan.formulas.roofline`; measured steps: benchmarks/fidelity.py.
    """
    refuse_unknown(unknown)
    prepared = prepare(model, hardware, layout, weight_dtype, kv_dtype, engine, chain)
    drafts, rates = check_drafts(mtp, acceptance)
    sequences = check_number(batch, "batch", above=True)
    cached = check_number(context, "context")
    rank = sequences if layout.dp == 1 else _ops.ceil(sequences / layout.dp)
    uneven = check_number(skew, "skew", least=1.0)
    common_shape(batch=sequences, context=cached, skew=uneven)
    load = Batch(rank, sequences, cached, drafts, rates, uneven, check_switch(overlap, "overlap"))
    return evaluate_step(prepared, load, chain)
