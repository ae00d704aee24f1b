"""``capplan plan``: from a scenario to pools, percentiles and cost."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from capplan.cli.output import ExplainFlag, Format, FormatOption, JsonFlag, emit
from capplan.errors import InputError

EXIT_INFEASIBLE = 3


def plan(
    context: typer.Context,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Any key: slo.tpot_p99=30ms.")] = None,
    explain: ExplainFlag = False,
    json_: JsonFlag = False,
    shape: FormatOption = Format.table,
) -> int:
    """Size the pools of a scenario: capplan plan SCENARIO.toml [--KEY VALUE ...].

    Every scenario key is a flag, with or without a file: --model r1 --gpu h800 --workload reasoning-r1-production
    --rate 20/s --tpot-p99 50ms --ttft-p99 6s. Exit code 3 where no plan meets the targets.
    """
    from capplan.planning.plan import plan as make_plan

    file, overrides = scenario_keys(context.args, settings)
    answer = make_plan({} if file is None else file, **overrides)
    chains = {f"{role} pool": chain for role, chain in answer.chains().items()} if explain else None
    if json_ or shape in (Format.json, Format.csv):
        emit(answer.to_dict(), [], [], json_flag=json_, shape=shape, chains=chains)
    else:
        if chains:
            from capplan.tracing.explain import render

            typer.echo("".join(f"== {title}\n{render(chain)}\n\n" for title, chain in chains.items()), nl=False)
        typer.echo(answer.to_markdown() if shape is Format.md else answer.to_text())
    return 0 if answer.feasible else EXIT_INFEASIBLE


def scenario_keys(arguments: list[str], settings: list[str] | None) -> tuple[str | None, dict[str, Any]]:
    """The scenario file, and the scenario keys given as flags or with ``--set``.

    Raises
    ------
    InputError : a flag that is none, a key given twice
    """
    from capplan.planning.scenario import full_key, parse_setting

    file, overrides = _arguments(arguments)
    for setting in settings or []:
        key, value = parse_setting(setting)
        if full_key(key) in overrides:
            raise InputError("is given twice", key=key)
        overrides[full_key(key)] = value
    return file, overrides


def _arguments(arguments: list[str]) -> tuple[str | None, dict[str, Any]]:
    """The scenario file, and ``--tpot-p99 30ms`` or ``--tpot-p99=30ms`` as scenario keys."""
    from capplan.planning.scenario import full_key, parse_value

    file: str | None = None
    flags: dict[str, Any] = {}
    remaining = list(arguments)
    while remaining:
        word = remaining.pop(0)
        if word.startswith("-") and not word.startswith("--"):
            raise InputError("unknown flag; every scenario key is a flag such as --tpot-p99", key=word[:80])
        if not word.startswith("--"):
            if file is not None:
                raise InputError(f"one scenario file is enough; {word[:80]!r} is a second one")
            file = word
            continue
        name, equals, value = word[2:].partition("=")
        if not equals and not remaining:
            raise InputError("needs a value", key=word[:80])
        key = full_key(name.replace("-", "_"))
        if key in flags:
            raise InputError("is given twice", key=word[:80])
        flags[key] = parse_value(value if equals else remaining.pop(0))
    return file, flags


def register(app: typer.Typer) -> None:
    """Add the command; flags it does not know are scenario keys."""
    app.command("plan", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(plan)
