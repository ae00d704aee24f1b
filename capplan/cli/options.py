"""Options that several commands share, and the reading of their amounts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from capplan.errors import InputError
from capplan.quantities.units import parse_tokens

if TYPE_CHECKING:
    from capplan.quantities.chain import Chain
    from capplan.serving.layout import Layout

GpuOption = Annotated[str, typer.Option("--gpu", help="Hardware card or file.")]
TpOption = Annotated[int, typer.Option("--tp", help="Tensor parallelism.")]
PpOption = Annotated[int, typer.Option("--pp", help="Pipeline stages.")]
DpOption = Annotated[int, typer.Option("--dp", help="Data-parallel attention ranks.")]
EpOption = Annotated[int | None, typer.Option("--ep", help="GPUs the experts are spread over.")]
DcpOption = Annotated[int, typer.Option("--dcp", help="Decode context parallelism.")]
RedundantOption = Annotated[int, typer.Option("--redundant-experts", help="Copies of busy experts.")]
KvDtypeOption = Annotated[str | None, typer.Option("--kv-dtype", help="bf16, fp8, fp8_ds_mla, ...")]
WeightDtypeOption = Annotated[str | None, typer.Option("--weight-dtype", help="bf16, fp8, ...; else the checkpoint's.")]
EngineOption = Annotated[str, typer.Option("--engine", help="Engine card, or none for bare kernels.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="Override a named quantity: kv_pool_gib=24.")]
OverlapFlag = Annotated[bool, typer.Option("--overlap", help="Two micro-batches hide communication.")]
MtpOption = Annotated[int, typer.Option("--mtp", help="Draft tokens a step.")]
AcceptanceOption = Annotated[float | None, typer.Option("--acceptance", help="Share of draft tokens accepted.")]
SkewOption = Annotated[float, typer.Option("--skew", help="Busiest expert rank over the mean.")]


MOST_TOKENS = 10**9


def tokens(text: str, key: str, *, positive: bool = True) -> float:
    """A whole token count from a flag.

    Raises
    ------
    InputError : not a token count, or a fraction of a token
    """
    value = parse_tokens(text, key=key, positive=positive)
    if value > MOST_TOKENS:
        raise InputError(f"more than {MOST_TOKENS:,} tokens", key=key)
    if value != int(value):
        raise InputError(f"{text!r} must be a whole number of tokens", key=key)
    return int(value)


def layout_of(tp: int, pp: int, dp: int, ep: int | None, dcp: int, redundant_experts: int = 0) -> Layout:
    """The layout behind the flags."""
    from capplan.serving.layout import Layout

    return Layout(tp=tp, pp=pp, dp=dp, ep=ep, dcp=dcp, redundant_experts=redundant_experts)


def chain_of(settings: list[str] | None, *, record: bool) -> Chain:
    """A chain with the overrides of ``--set``."""
    from capplan.planning.scenario import parse_setting
    from capplan.quantities.chain import Chain
    from capplan.quantities.registry import override_value

    pairs = [parse_setting(setting) for setting in settings or []]
    overrides = {name.removeprefix("override."): value for name, value in pairs}
    if len(overrides) < len(pairs):
        raise InputError("a quantity is given twice", key="--set")
    return Chain({name: override_value(name, value) for name, value in overrides.items()}, record=record)


def refuse_unused(chain: Chain) -> None:
    """An override that took no part in the answer is an error, never ignored.

    Raises
    ------
    InputError : it names the first one
    """
    for name in sorted(chain.overrides.keys() - chain.used_overrides):
        raise InputError("has no part in this answer", key=f"--set {name}")


def register_all(*commands: tuple[str, Callable[..., object]]) -> Callable[[typer.Typer], None]:
    """A ``register(app)`` for a module that holds these commands."""

    def register(app: typer.Typer) -> None:
        for name, command in commands:
            app.command(name)(command)

    return register
