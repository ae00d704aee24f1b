"""``capplan verify``: the pools of a plan simulated event by event, beside the closed forms."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from capplan.cli.output import Format, FormatOption, JsonFlag, emit, note
from capplan.cli.plan import EXIT_INFEASIBLE, scenario_keys

EXIT_DISAGREES = 1


def verify(
    context: typer.Context,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Any key: slo.tpot_p99=30ms.")] = None,
    trace: Annotated[str | None, typer.Option("--trace", help="Trace whose requests are replayed.")] = None,
    requests: Annotated[int, typer.Option("--requests", help="Requests measured.")] = 50_000,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same run.")] = 0,
    json_: JsonFlag = False,
    shape: FormatOption = Format.table,
) -> int:
    """Simulate the pools of a plan beside its closed forms: capplan verify SCENARIO.toml [--KEY VALUE ...].

    Exit code 1 where they disagree beyond tolerance and noise, 3 where no plan meets the targets.
    """
    from capplan.verification.verify import HEADER
    from capplan.verification.verify import verify as run

    file, overrides = scenario_keys(context.args, settings)
    with _progress() as told:
        found = run({} if file is None else file, trace=trace, requests=requests, seed=seed, progress=told, **overrides)
    if not found.plan.feasible:
        note("infeasible: there are no pools to simulate; see capplan plan")
    if found.rows or json_ or shape in (Format.json, Format.csv):
        emit(found.to_dict(), found.to_rows(), HEADER, json_flag=json_, shape=shape)
    if found.rows and not json_ and shape in (Format.table, Format.md):
        for line in ("", *found.targets, "", found.summary):
            typer.echo(str(line))
    for line in found.notes:
        note(line)
    for reason in found.flags:
        note(f"flagged: outside validity: {reason}")
    for reason in found.widened:
        note(f"tolerance widened: {reason}")
    if found.refused:
        note(f"{found.refused} requests are longer than the KV pool of a rank; the engine refuses them")
    if not found.plan.feasible:
        return EXIT_INFEASIBLE
    return 0 if found.agrees else EXIT_DISAGREES


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on stderr, only where that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulated requests", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def register(app: typer.Typer) -> None:
    """Add the command; flags it does not know are scenario keys."""
    app.command("verify", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(verify)
