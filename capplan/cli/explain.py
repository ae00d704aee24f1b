"""``capplan explain COMMAND ...``: the same command with its chain of formulas."""

from __future__ import annotations

from typing import Annotated

import typer

from capplan.errors import UnknownNameError

EXPLAINED = ("kv", "fit", "step", "prefill", "plan")


def explain(
    context: typer.Context,
    command: Annotated[str, typer.Argument(help="kv, fit, step, prefill or plan, with its arguments.")],
) -> int:
    """The chain of formulas behind a number."""
    from capplan.cli.main import build

    if command not in EXPLAINED:
        raise UnknownNameError.among(command, EXPLAINED, "command to explain")
    arguments = [command, *context.args, "--explain"]
    result = build(arguments)(args=arguments, prog_name="capplan", standalone_mode=False)
    return result if isinstance(result, int) else 0


def register(app: typer.Typer) -> None:
    """Add the command; everything after its name goes to the explained command."""
    app.command("explain", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(explain)
