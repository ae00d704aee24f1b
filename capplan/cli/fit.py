"""``capplan fit``: does it fit, and how many sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from capplan.cli import options as o
from capplan.cli.output import ExplainFlag, Format, FormatOption, JsonFlag, emit, note
from capplan.errors import InputError

if TYPE_CHECKING:
    from capplan.cli.from_log import FromLog
    from capplan.serving.memory import MemoryBudget

EXIT_DOES_NOT_FIT = 3


def fit(
    command: typer.Context,
    model: Annotated[str, typer.Argument(help="Model card or config.json.")],
    gpu: o.GpuOption,
    tp: o.TpOption = 1,
    pp: o.PpOption = 1,
    dp: o.DpOption = 1,
    ep: o.EpOption = None,
    dcp: o.DcpOption = 1,
    redundant_experts: o.RedundantOption = 0,
    context: Annotated[str, typer.Option("--context", help="Tokens of the longest sequence.")] = "8k",
    expected_context: Annotated[
        str | None,
        typer.Option("--expected-context", help="Mean tokens of a running sequence; else half of the longest."),
    ] = None,
    workload: Annotated[
        str | None, typer.Option("--workload", help="Workload card that says the mean tokens of a running sequence.")
    ] = None,
    engine: o.EngineOption = "vllm",
    from_log: Annotated[
        str | None,
        typer.Option("--from-log", help="Start-up log of vLLM, SGLang or TensorRT-LLM: its numbers replace ours."),
    ] = None,
    weight_dtype: o.WeightDtypeOption = None,
    kv_dtype: o.KvDtypeOption = None,
    unified_pages: Annotated[
        bool,
        typer.Option("--unified-pages", help="Sliding-window layers keep all tokens (no hybrid KV cache manager)."),
    ] = False,
    expand_mla: Annotated[bool, typer.Option("--expand-mla", help="The engine caches latents expanded.")] = False,
    prefix_caching: Annotated[
        bool, typer.Option("--prefix-caching/--no-prefix-caching", help="Second copy of recurrent states.")
    ] = True,
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
    loaded, hardware = load_model(model), load_hardware(gpu)
    options: dict[str, Any] = {"weight_dtype": weight_dtype, "kv_dtype": kv_dtype, "unified_pages": unified_pages}
    options |= {"expand_mla": expand_mla, "prefix_caching": prefix_caching}
    sizes = {"tp": tp, "pp": pp, "dp": dp, "dcp": dcp}
    log = None if from_log is None else _log(command, from_log, engine, sizes, options)
    if log is not None:
        engine, sizes, options = log.engine, log.sizes, log.options
    layout = o.layout_of(**sizes, ep=ep, redundant_experts=redundant_experts)
    chain = chain if log is None else log.chain(chain, loaded, hardware, layout)
    budget = memory(loaded, hardware, layout, engine, chain=chain, **options)
    o.refuse_unused(chain)
    data = _data(budget, length, _expected(length, expected_context, workload))
    title = {"model": model, "hardware": gpu, "layout": str(layout), "engine": budget.engine}
    rows = [[f"{model} on {gpu}", f"{layout}, {budget.engine}"], *_rows(data, length)]
    data = {**title, **data, **({} if log is None else {"log": log.data(budget)})}
    chains = {"memory of one rank": chain} if explain else None
    emit(data, rows, ["quantity", "value"], json_flag=json_, shape=shape, chains=chains)
    if log is not None:
        log.tell(budget, shape=Format.json if json_ else shape)
    for assumption in budget.assumptions:
        note(f"assumed: {assumption}")
    return 0 if budget.fits else EXIT_DOES_NOT_FIT


def _log(command: typer.Context, from_log: str, engine: str, sizes: dict[str, int], options: dict[str, Any]) -> FromLog:
    """The start-up log, with what it says in the place of options that were not given."""
    from capplan.cli.from_log import read

    given = {name for name in ("engine", *sizes) if str(command.get_parameter_source(name)).endswith("COMMANDLINE")}
    return read(from_log, engine if "engine" in given else None, sizes, given, options)


def _expected(length: float, expected_context: str | None, workload: str | None) -> float:
    """Mean tokens of a running sequence: as given, of a workload, or half of the longest."""
    if expected_context is not None and workload is not None:
        raise InputError("give either this or --workload", key="--expected-context")
    if expected_context is not None:
        return o.tokens(expected_context, "--expected-context")
    if workload is None:
        note(f"assumed: a running sequence holds half of {length:,} tokens (--expected-context, --workload)")
        return length / 2
    from capplan.cards.workload_card import load_workload

    return float(load_workload(workload).mean_context)


def _data(budget: MemoryBudget, length: float, expected: float) -> dict[str, Any]:
    return {
        "fits": budget.fits,
        "missing_bytes": budget.missing_bytes,
        "weights_bytes": budget.weights_bytes,
        "kv_pool_bytes": budget.kv_pool_bytes,
        "capacity_tokens": budget.capacity_tokens,
        "max_sequences_per_rank": budget.max_sequences(length),
        "max_sequences": budget.instance.max_sequences(length),
        "worst_case_sequences_per_rank": budget.worst_case_sequences(length),
        "expected_context_tokens": expected,
        "expected_sequences_per_rank": budget.max_sequences(expected),
        "expected_sequences": budget.instance.max_sequences(expected),
    }


def _rows(data: dict[str, Any], length: float) -> list[list[str]]:
    from capplan.quantities.units import format_bytes

    capacity, expected = data["capacity_tokens"], data["expected_sequences_per_rank"]
    return [
        ["fits", "yes" if data["fits"] else f"no, {format_bytes(data['missing_bytes'])} a GPU missing"],
        ["weights per GPU", format_bytes(data["weights_bytes"])],
        ["KV pool per GPU", format_bytes(data["kv_pool_bytes"])],
        ["KV capacity per rank", "depends on context" if capacity is None else f"{capacity:,.0f} tokens"],
        [f"sequences of {length:,} per rank", f"{data['max_sequences_per_rank']:,.0f}"],
        [f"sequences of {length:,} per instance", f"{data['max_sequences']:,.0f}"],
        [f"worst case at {length:,} per rank (engine's log)", f"{data['worst_case_sequences_per_rank']:,.2f}"],
        [f"sequences at a mean of {data['expected_context_tokens']:,.0f} per rank", f"{expected:,.0f}"],
    ]


register = o.register_all(("fit", fit))
