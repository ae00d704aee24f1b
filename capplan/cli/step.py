"""``capplan step``: one decode step, its parts, the bytes on each link and what limits it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from capplan.cli import options as o
from capplan.cli.output import ExplainFlag, Format, FormatOption, JsonFlag, emit, note
from capplan.errors import InputError

if TYPE_CHECKING:
    from capplan.cards.model import Model
    from capplan.quantities.chain import Chain
    from capplan.serving.memory import MemoryBudget
    from capplan.serving.step_time import StepTime


def step(
    model: Annotated[str, typer.Argument(help="Model card or config.json.")],
    gpu: o.GpuOption,
    batch: Annotated[int, typer.Option("--batch", help="Sequences of the whole instance.")] = 1,
    context: Annotated[str, typer.Option("--context", help="Cached tokens a sequence.")] = "8k",
    tp: o.TpOption = 1,
    pp: o.PpOption = 1,
    dp: o.DpOption = 1,
    ep: o.EpOption = None,
    dcp: o.DcpOption = 1,
    redundant_experts: o.RedundantOption = 0,
    engine: o.EngineOption = "none",
    weight_dtype: o.WeightDtypeOption = None,
    kv_dtype: o.KvDtypeOption = None,
    overlap: o.OverlapFlag = False,
    mtp: o.MtpOption = 0,
    acceptance: o.AcceptanceOption = None,
    skew: o.SkewOption = 1.0,
    settings: o.SetOption = None,
    explain: ExplainFlag = False,
    json_: JsonFlag = False,
    shape: FormatOption = Format.table,
) -> None:
    """Time of one decode step of the whole instance (bare kernels unless an engine is named)."""
    from capplan.cards.hardware_card import load_hardware
    from capplan.cards.model_card import load_model
    from capplan.serving.memory import memory
    from capplan.serving.step import decode_step

    if batch < 1:
        raise InputError(f"{batch} must be 1 or more", key="--batch")
    length = o.tokens(context, "--context", positive=False)
    chain = o.chain_of(settings, record=True)
    layout = o.layout_of(tp, pp, dp, ep, dcp, redundant_experts)
    kwargs: dict[str, Any] = {"weight_dtype": weight_dtype, "kv_dtype": kv_dtype, "engine": engine, "overlap": overlap}
    kwargs |= {"mtp": mtp, "acceptance": acceptance, "skew": skew, "chain": chain}
    served, hardware = load_model(model), load_hardware(gpu)
    result = decode_step(served, hardware, layout, batch, length, **kwargs)
    rate = result.tokens_per_second_per_gpu
    show(result, rate, "tokens/s/GPU", chain, explain=explain, json_flag=json_, shape=shape)
    dtypes: dict[str, Any] = {"weight_dtype": weight_dtype, "kv_dtype": kv_dtype}
    budget = memory(served, hardware, layout, engine, **dtypes)
    tell_limits(served, budget, batch, length)
    tell_unmeasured(served, engine)


def tell_limits(model: Model, budget: MemoryBudget, sequences: int, tokens: float) -> None:
    """Say where memory or the model does not take what the time was asked for."""
    holds = budget.instance.max_sequences(max(tokens, 1.0))
    if holds < sequences:
        note(f"memory holds {holds:,.0f} such sequences, not {sequences:,}: the time is that of the kernels alone")
    if model.max_context and tokens > model.max_context:
        note(f"the model takes {model.max_context:,} tokens")


def tell_unmeasured(model: Model, engine: str) -> None:
    """Say which kernels' times come from another engine or from none."""
    from capplan.serving.unmeasured import unmeasured_kernels

    for line in unmeasured_kernels(model, engine):
        note(f"assumed: {line}")


def show(
    result: StepTime, rate: float | None, rate_name: str, chain: Chain, *, explain: bool, json_flag: bool, shape: Format
) -> None:
    """Print a step or a prefill."""
    from capplan.quantities.units import format_bytes, format_seconds

    low, high = result.band or (None, None)
    o.refuse_unused(chain)
    data = {
        "seconds": result.seconds,
        "seconds_low": low,
        "seconds_high": high,
        "parts": result.parts,
        "limit": result.limit,
        "links": result.links,
        "tokens_per_second_per_gpu": rate,
    }
    rows = [["time", _time(result), ""], ["limited by", result.limit, ""]]
    rows += [[rate_name, "unknown without --acceptance" if rate is None else f"{rate:,.4g}", ""]]
    total = sum(result.parts.values())
    rows += [[name, format_seconds(value), f"{value / total:.1%}"] for name, value in result.parts.items() if value > 0]
    rows += [[f"{link} bytes", format_bytes(size), ""] for link, size in result.links.items() if size > 0]
    chains = {rate_name.split("/")[0]: chain} if explain else None
    emit(data, rows, ["quantity", "value", "share"], json_flag=json_flag, shape=shape, chains=chains)
    for assumption in chain.assumptions():
        note(f"assumed: {assumption}")
    if result.band_factors is not None and result.band_factors.assumed:
        note("assumed: the error band")


def _time(result: StepTime) -> str:
    """The time with its error band, where it has one."""
    from capplan.quantities.units import format_seconds, format_seconds_range

    time = format_seconds(result.seconds)
    if result.band is None or result.band[0] == result.band[1]:
        return time
    return f"{time} (80 % band {format_seconds_range(*result.band)})"


register = o.register_all(("step", step))
