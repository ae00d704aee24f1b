"""``capplan kv``: KV cache of one sequence, models side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from capplan.cli import options as o
from capplan.cli.output import ExplainFlag, Format, FormatOption, JsonFlag, emit
from capplan.errors import InputError

if TYPE_CHECKING:
    from capplan.quantities.chain import Chain


WIDEST = 60


def kv(
    models: Annotated[list[str], typer.Argument(help="Model cards or config.json files.")],
    context: Annotated[str, typer.Option("--context", help="Cached tokens of the sequence.")] = "8k",
    kv_dtype: o.KvDtypeOption = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="Also say how many sequences fit.")] = None,
    tp: o.TpOption = 1,
    dp: o.DpOption = 1,
    engine: o.EngineOption = "vllm",
    unified_pages: Annotated[
        bool,
        typer.Option("--unified-pages", help="Sliding-window layers keep all tokens (no hybrid KV cache manager)."),
    ] = False,
    expand_mla: Annotated[bool, typer.Option("--expand-mla", help="The engine caches latents expanded.")] = False,
    explain: ExplainFlag = False,
    json_: JsonFlag = False,
    shape: FormatOption = Format.table,
) -> None:
    """KV-cache bytes of one sequence, whole model, unsharded."""
    length = o.tokens(context, "--context", positive=False)
    if gpu is None and (tp, dp, engine) != (1, 1, "vllm"):
        raise InputError("--tp, --dp and --engine have a meaning only with --gpu", key="--gpu")
    policy = {"unified_pages": unified_pages, "expand_mla": expand_mla}
    records = [_record(name, length, kv_dtype, policy) for name in models]
    chains = {name: _chain(name, length, kv_dtype) for name in models} if explain else None
    if gpu is not None:
        for record in records:
            options = {"kv_dtype": kv_dtype, **policy}
            record["max_sequences"] = _max_sequences(record["model"], gpu, tp, dp, engine, length, options)
    rows = [_row(record) for record in records]
    header = ["model", "attention", "KV dtype", "KV bytes/token", f"KV at {length:,} tokens"]
    header += [f"sequences on {gpu} TP{tp} DP{dp}"] if gpu else []
    data = records[0] if len(records) == 1 else records
    emit(data, rows, header, json_flag=json_, shape=shape, chains=chains)


def _chain(name: str, length: float, kv_dtype: str | None) -> Chain:
    from capplan.cards.kv import kv_chain
    from capplan.cards.model_card import load_model

    model = load_model(name)
    return kv_chain(model, length, kv_dtype or model.kv_dtype)


def _record(name: str, length: float, kv_dtype: str | None, policy: dict[str, bool]) -> dict[str, Any]:
    from capplan.cards.kv import kv_bytes, kv_bytes_per_token
    from capplan.cards.kv_summary import attention_summary
    from capplan.cards.model_card import load_model

    model = load_model(name)
    dtype = kv_dtype or model.kv_dtype
    return {
        "model": name,
        "attention": attention_summary(model),
        "kv_dtype": dtype,
        "context_tokens": length,
        "kv_bytes_per_token": kv_bytes_per_token(model, dtype, expand_mla=policy["expand_mla"]),
        "kv_bytes": kv_bytes(model, length, dtype, **policy),
        "state_bytes_per_sequence": model.state_bytes_per_sequence,
    }


def _row(record: dict[str, Any]) -> list[str]:
    from capplan.quantities.units import format_bytes

    attention = record["attention"]
    shown = attention if len(attention) <= WIDEST else attention[: WIDEST - 3] + "..."
    cells = [record["model"], shown, record["kv_dtype"]]
    cells += [f"{record['kv_bytes_per_token']:,.0f}", format_bytes(record["kv_bytes"])]
    return cells + ([f"{record['max_sequences']:,.0f}"] if "max_sequences" in record else [])


def _max_sequences(name: str, gpu: str, tp: int, dp: int, engine: str, length: float, options: dict[str, Any]) -> float:
    from capplan.cards.hardware_card import load_hardware
    from capplan.cards.model_card import load_model
    from capplan.serving.memory import memory

    budget = memory(load_model(name), load_hardware(gpu), o.layout_of(tp, 1, dp, None, 1), engine, **options)
    return float(budget.instance.max_sequences(length))


register = o.register_all(("kv", kv))
