"""The ``capplan`` command: one module a command, loaded when it is used."""

from __future__ import annotations

import gc
import importlib
import os
import sys

import typer

from capplan import __version__
from capplan.errors import InputError

EXIT_BAD_INPUT = 2
UsageProblem: type[Exception] = typer.BadParameter.__mro__[2]
"""Base of what typer raises for a wrong command line (its own copy of click's ``ClickException``)."""

_CARDS = ("models", "hardware", "workloads", "engines")
_MODULES = {
    **{name: name for name in ("kv", "fit", "step", "prefill", "plan", "verify", "explain", "calibrate")},
    **dict.fromkeys(_CARDS, "cards"),
}
"""Command to the module that registers it."""


def build(arguments: list[str]) -> typer.Typer:
    """The application with the command that is called; with all of them for ``--help`` or an unknown name.

    Typer reads the annotations of every command it knows, so a command that is not called costs start-up time.
    """
    app = typer.Typer(
        name="capplan",
        help="Capacity planning for LLM inference: closed forms with P99s.",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    called = _MODULES.get(arguments[0]) if arguments else None
    for module in dict.fromkeys([called] if called else _MODULES.values()):
        importlib.import_module(f"capplan.cli.{module}").register(app)
    return app


def _root() -> None:
    """Capacity planning for LLM inference: closed forms with P99s."""


def run(arguments: list[str] | None = None) -> None:
    """Entry point of the console script: errors become one line on stderr and the right exit code."""
    _travel_light()
    code = main(sys.argv[1:] if arguments is None else arguments)
    _flush()
    gc.freeze()  # the interpreter would look through every object once more before it leaves
    sys.exit(code)


def _flush() -> None:
    """Write what is left; where nobody reads any more, leave without the interpreter's complaint."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _travel_light() -> None:
    """A command is over in half a second: what pays only in a longer life is left out, unless the user asked for it."""
    gc.set_threshold(100_000)  # objects until the garbage collector looks for cycles
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for plug-ins reads every package's metadata
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the matrices are too small for threads


def main(arguments: list[str]) -> int:
    """Run one command line and return its exit code.

    0 fine, 1 numbers disagree, 2 bad input, 3 infeasible or does not fit.
    """
    if not arguments:
        arguments = ["--help"]
    if arguments == ["--version"]:
        typer.echo(f"capplan {__version__}")
        return 0
    try:
        result = build(arguments)(args=arguments, prog_name="capplan", standalone_mode=False)
    except InputError as error:
        return _complain(str(error))
    except UsageProblem as error:
        return _complain(error.format_message())  # type: ignore[attr-defined]
    except (typer.Abort, KeyboardInterrupt):
        return _complain("stopped")
    except BrokenPipeError:
        return 0
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # typer makes exit code 1 of it
            return 0
        raise
    return result if isinstance(result, int) else 0


def _complain(problem: str) -> int:
    typer.echo("capplan: " + " ".join(problem.split()), err=True)
    return EXIT_BAD_INPUT
