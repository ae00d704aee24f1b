"""``capplan models | hardware | workloads | engines [show NAME]``: cards with the source of every number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from capplan.cli.output import Format, FormatOption, JsonFlag, emit, note

KINDS = {
    "models": "Model cards.",
    "hardware": "Hardware cards.",
    "workloads": "Workload cards.",
    "engines": "Engine cards.",
}


def register(app: typer.Typer) -> None:
    """Add one command group a kind of card."""
    for kind, text in KINDS.items():
        group = typer.Typer(help=text, rich_markup_mode=None, invoke_without_command=True)
        group.callback()(_lister(kind))
        group.command("show")(_shower(kind))
        if kind == "models":
            group.command("import")(import_model)
        if kind == "workloads":
            from capplan.cli.workload_fit import fit_trace

            group.command("fit")(fit_trace)
        app.add_typer(group, name=kind)


def _lister(kind: str) -> Callable[..., None]:
    def list_cards(context: typer.Context, json_: JsonFlag = False, shape: FormatOption = Format.table) -> None:
        if context.invoked_subcommand is None:
            from capplan.cards.store import card_names

            names = card_names(kind)
            emit([{"name": name} for name in names], [[name] for name in names], [kind], json_flag=json_, shape=shape)

    list_cards.__doc__ = f"List the {kind} shipped with capplan."
    return list_cards


def _shower(kind: str) -> Callable[..., None]:
    def show(
        name: Annotated[str, typer.Argument(help="Name of a card, or a file.")],
        json_: JsonFlag = False,
        shape: FormatOption = Format.table,
    ) -> None:
        record, numbers = _load(kind, name)
        rows = _rows(kind, record)
        rows += [[key, f"{n.value:,.10g}", n.unit, n.kind, n.source] for key, n in numbers.items()]
        data = record | {"numbers": {key: number.model_dump() for key, number in numbers.items()}}
        emit(data, rows, ["key", "value", "unit", "kind", "source"], json_flag=json_, shape=shape)

    show.__doc__ = f"Print one of the {kind}: every number with its unit, kind and source."
    return show


def _load(kind: str, name: str) -> tuple[dict[str, Any], Mapping[str, Any]]:
    if kind == "models":
        return _model(name)
    if kind == "hardware":
        from capplan.cards.hardware_card import load_hardware

        hardware = load_hardware(name)
        return {"name": hardware.name, "vendor": hardware.vendor, "file": hardware.file}, hardware.sources
    if kind == "engines":
        from capplan.cards.engine_card import load_engine

        engine = load_engine(name)
        return {"name": engine.name, "version": engine.version, "file": engine.file}, engine.sources
    from capplan.cards.workload_card import load_workload

    workload = load_workload(name)
    return workload.summary(), workload.sources


def _rows(kind: str, record: dict[str, Any]) -> list[list[str]]:
    if kind == "models":
        from capplan.cli.model_report import model_rows

        return model_rows(record)
    return [[key, str(value), "", "", ""] for key, value in record.items()]


def _model(name: str) -> tuple[dict[str, Any], Mapping[str, Any]]:
    from capplan.cards.model_card import load_model
    from capplan.cli.model_report import model_record

    model = load_model(name)
    return model_record(model), model.sources


def import_model(
    config: Annotated[str, typer.Argument(help="A Hugging Face config.json, or the folder that holds one.")],
    name: Annotated[str | None, typer.Option("--name", help="Name of the card; else that of folder or file.")] = None,
    output: Annotated[str | None, typer.Option("--output", help="File to write; stdout if not given.")] = None,
    assumed: Annotated[
        list[str] | None,
        typer.Option(
            "--assume",
            metavar="FIELD=VALUE",
            help="Take this value of a field instead of the config's (null: as if absent). May be given several times.",
        ),
    ] = None,
    aliases: Annotated[list[str] | None, typer.Option("--alias", help="Another name; may be repeated.")] = None,
    repository: Annotated[str | None, typer.Option("--repository", help="Where the model lives: ORG/NAME.")] = None,
    retrieved_from: Annotated[str | None, typer.Option("--retrieved-from", help="Where the config was found.")] = None,
    commit: Annotated[str | None, typer.Option("--commit", help="Commit of the repository.")] = None,
    notes: Annotated[list[str] | None, typer.Option("--note", help="A remark for the card; may be repeated.")] = None,
) -> None:
    """Turn a config.json into a model card.

    Reads hf_quant_config.json beside it, where there is one. Every field is read, known to be harmless, or stops the
    import with one line that names field, value and what it would change: then --assume FIELD=VALUE is the way out,
    and the card records it. Nested fields go by dotted path: --assume text_config.head_dim=128.
    """
    from capplan.cards.hf_assumptions import parsed_assumptions
    from capplan.cards.model_card import card_json, import_card

    origin = {"aliases": aliases, "repository": repository, "retrieved_from": retrieved_from, "commit": commit}
    card = import_card(config, name, parsed_assumptions(assumed or []), **origin, notes=notes)
    text = card_json(card)
    taken = {**card["provenance"]["fields_assumed"], **card["provenance"]["assumed"]}
    for field, value in taken.items():
        note(f"assumed: {field} = {value}")
    if output is None:
        typer.echo(text)
        return
    from pathlib import Path

    from capplan.errors import InputError

    try:
        Path(output).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror})", file=output) from None
