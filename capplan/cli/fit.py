"""``capplan fit``: does it fit, and how many sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from capplan.cli import options as o
from capplan.cli.output import ExplainFlag, Format, FormatOption, JsonFlag, emit, note

if TYPE_CHECKING:
    from capplan.serving.memory import MemoryBudget

EXIT_DOES_NOT_FIT = 3


def fit(
    model: Annotated[str, typer.Argument(help="Model card or config.json.")],
    gpu: o.GpuOption,
    tp: o.TpOption = 1,
    pp: o.PpOption = 1,
    dp: o.DpOption = 1,
    ep: o.EpOption = None,
    dcp: o.DcpOption = 1,
    redundant_experts: o.RedundantOption = 0,
    context: Annotated[str, typer.Option("--context", help="Tokens of one sequence.")] = "8k",
    engine: o.EngineOption = "vllm",
    weight_dtype: o.WeightDtypeOption = None,
    kv_dtype: o.KvDtypeOption = None,
    settings: o.SetOption = None,
    explain: ExplainFlag = False,
    json_: JsonFlag = False,
    shape: FormatOption = Format.table,
) -> int:
    """Memory budget of one rank and the sequences that fit, or the GiB missing (exit 3)."""
    from capplan.cards.hardware_card import load_hardware
    from capplan.cards.model_card import load_model
    from capplan.serving.memory import memory

    length = o.tokens(context, "--context")
    chain = o.chain_of(settings, record=explain)
    layout = o.layout_of(tp, pp, dp, ep, dcp, redundant_experts)
    dtypes: dict[str, Any] = {"weight_dtype": weight_dtype, "kv_dtype": kv_dtype}
    budget = memory(load_model(model), load_hardware(gpu), layout, engine, chain=chain, **dtypes)
    if explain:
        from capplan.tracing.explain import render

        typer.echo(render(chain) + "\n")
    data = _data(budget, length)
    emit(data, _rows(data, length), ["quantity", "value"], json_flag=json_, shape=shape)
    for assumption in budget.assumptions:
        note(f"assumed: {assumption}")
    return 0 if budget.fits else EXIT_DOES_NOT_FIT


def _data(budget: MemoryBudget, length: float) -> dict[str, Any]:
    return {
        "fits": budget.fits,
        "missing_bytes": budget.missing_bytes,
        "weights_bytes": budget.weights_bytes,
        "kv_pool_bytes": budget.kv_pool_bytes,
        "capacity_tokens": budget.capacity_tokens,
        "max_sequences_per_rank": budget.max_sequences(length),
        "max_sequences": budget.instance.max_sequences(length),
    }


def _rows(data: dict[str, Any], length: float) -> list[list[str]]:
    from capplan.quantities.units import format_bytes

    capacity = data["capacity_tokens"]
    return [
        ["fits", "yes" if data["fits"] else f"no, {format_bytes(data['missing_bytes'])} a GPU missing"],
        ["weights per GPU", format_bytes(data["weights_bytes"])],
        ["KV pool per GPU", format_bytes(data["kv_pool_bytes"])],
        ["KV capacity per rank", "depends on context" if capacity is None else f"{capacity:,.0f} tokens"],
        [f"sequences of {length:,} per rank", f"{data['max_sequences_per_rank']:,.0f}"],
        [f"sequences of {length:,} per instance", f"{data['max_sequences']:,.0f}"],
    ]


register = o.register_all(("fit", fit))
