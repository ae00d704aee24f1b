"""``capplan plan``: from a scenario to pools, percentiles and cost."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from capplan.cli.output import ExplainFlag, Format, FormatOption, JsonFlag, emit
from capplan.errors import InputError

EXIT_INFEASIBLE = 3


def plan(
    context: typer.Context,
    scenario: Annotated[str | None, typer.Argument(help="Scenario file, TOML or JSON.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Any key: slo.tpot_p99=30ms.")] = None,
    explain: ExplainFlag = False,
    json_: JsonFlag = False,
    shape: FormatOption = Format.table,
) -> int:
    """Size the pools of a scenario. Every scenario key is a flag too: --model r1 --gpu h800 --rate 20/s ..."""
    from capplan.planning.plan import plan as make_plan
    from capplan.planning.scenario import parse_setting

    overrides = dict(parse_setting(setting) for setting in settings or [])
    overrides |= _flags(context.args)
    answer = make_plan({} if scenario is None else scenario, **overrides)
    if explain:
        typer.echo(answer.explain() + "\n")
    if json_ or shape in (Format.json, Format.csv):
        emit(answer.to_dict(), [], [], json_flag=json_, shape=shape)
    elif shape is Format.md:
        typer.echo("```\n" + answer.to_text() + "\n```")
    else:
        typer.echo(answer.to_text())
    return 0 if answer.feasible else EXIT_INFEASIBLE


def _flags(arguments: list[str]) -> dict[str, Any]:
    """``--tpot-p99 30ms`` and ``--tpot-p99=30ms`` as scenario keys."""
    from capplan.planning.scenario import full_key, parse_value

    flags: dict[str, Any] = {}
    remaining = list(arguments)
    while remaining:
        flag = remaining.pop(0)
        if not flag.startswith("--"):
            raise InputError(f"{flag[:80]!r} is no flag; one scenario file is enough")
        name, equals, value = flag[2:].partition("=")
        if not equals:
            if not remaining:
                raise InputError("needs a value", key=flag[:80])
            value = remaining.pop(0)
        flags[full_key(name.replace("-", "_"))] = parse_value(value)
    return flags


def register(app: typer.Typer) -> None:
    """Add the command; flags it does not know are scenario keys."""
    app.command("plan", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(plan)


