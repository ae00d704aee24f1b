"""``capplan prefill``: the time to read prompts."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from capplan.cli import options as o
from capplan.cli.output import ExplainFlag, Format, FormatOption, JsonFlag
from capplan.cli.step import show, tell_limits, tell_unmeasured
from capplan.errors import InputError


def prefill(
    model: Annotated[str, typer.Argument(help="Model card or config.json.")],
    gpu: o.GpuOption,
    tokens: Annotated[str, typer.Option("--tokens", help="New tokens of each prompt.")] = "8k",
    cached: Annotated[str, typer.Option("--cached", help="Tokens before them that are cached.")] = "0",
    prompts: Annotated[int, typer.Option("--prompts", help="Prompts in flight in the whole instance.")] = 1,
    tp: o.TpOption = 1,
    pp: o.PpOption = 1,
    dp: o.DpOption = 1,
    ep: o.EpOption = None,
    redundant_experts: o.RedundantOption = 0,
    engine: o.EngineOption = "none",
    weight_dtype: o.WeightDtypeOption = None,
    kv_dtype: o.KvDtypeOption = None,
    overlap: o.OverlapFlag = False,
    skew: o.SkewOption = 1.0,
    settings: o.SetOption = None,
    explain: ExplainFlag = False,
    json_: JsonFlag = False,
    shape: FormatOption = Format.table,
) -> None:
    """Time to prefill prompts (bare kernels unless an engine is named)."""
    from capplan.cards.hardware_card import load_hardware
    from capplan.cards.model_card import load_model
    from capplan.serving.memory import memory
    from capplan.serving.prefill import prefill as prefill_time

    if prompts < 1:
        raise InputError(f"{prompts} must be 1 or more", key="--prompts")
    new = o.tokens(tokens, "--tokens")
    chain = o.chain_of(settings, record=True)
    layout = o.layout_of(tp, pp, dp, ep, 1, redundant_experts)
    kwargs: dict[str, Any] = {"cached": o.tokens(cached, "--cached", positive=False), "prompts": prompts}
    kwargs |= {"weight_dtype": weight_dtype, "kv_dtype": kv_dtype, "engine": engine, "overlap": overlap, "skew": skew}
    served, hardware = load_model(model), load_hardware(gpu)
    result = prefill_time(served, hardware, layout, new, chain=chain, **kwargs)
    rate = result.tokens_per_second_per_gpu
    show(result, rate, "prompt tokens/s/GPU", chain, explain=explain, json_flag=json_, shape=shape)
    budget = memory(served, hardware, layout, engine, weight_dtype=weight_dtype, kv_dtype=kv_dtype)
    tell_limits(served, budget, prompts, new + kwargs["cached"])
    tell_unmeasured(served, engine)


register = o.register_all(("prefill", prefill))
