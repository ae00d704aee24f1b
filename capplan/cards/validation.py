"""From a pydantic validation error to the one line a person can act on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from capplan.errors import InputError, UnknownNameError


def one_line(error: ValidationError, file: str | None = None, schema: type[BaseModel] | None = None) -> InputError:
    """The first problem of a validation as one line: file, key, what is wrong, what is allowed.

    Parameters
    ----------
    error : what pydantic raised
    file : the file that was read, if there is one
    schema : the pydantic class that was validated; with it, an unknown key gets the nearest known one as a hint

    Returns
    -------
    error : to be raised ``from None``; an unknown key gives an :class:`~capplan.errors.UnknownNameError`
    """
    found = error.errors(include_url=False, include_context=False)
    # A misspelt key is also a missing one: the spelling is what the user can act on.
    first = next((problem for problem in found if problem["type"] == "extra_forbidden"), found[0])
    place, known = _place(first["loc"], schema)
    key = ".".join(part[:80] for part in place) or None
    if first["type"] != "extra_forbidden":
        return InputError(_problem(dict(first)), key=key, file=file)
    if known:
        return UnknownNameError.among(place[-1], known, "key", key=key, file=file)
    return InputError("unknown key; correct its spelling or remove it", key=key, file=file)


def _problem(first: dict[str, Any]) -> str:
    """What is wrong, in small letters, with the offending value where it is short."""
    if first["type"] == "missing":
        return "is missing"
    message = str(first["msg"]).splitlines()[0].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = message.replace("Input should", "should").rstrip(".")[:200]
    given = first["input"]
    if isinstance(given, (str, int, float, bool)) or given is None:
        shown = repr(given)
        return f"{shown if len(shown) <= 60 else shown[:57] + '...'}: {message}"
    return message


def _place(loc: tuple[int | str, ...], schema: type[BaseModel] | None) -> tuple[list[str], list[str]]:
    """The path of an error without the tags pydantic puts in for unions, and the keys allowed at its last step."""
    models = [schema] if schema is not None else []
    place: list[str] = []
    known: list[str] = []
    tagged = False
    for part in loc:
        if tagged and isinstance(part, str):
            tagged = False
            continue
        place.append(str(part))
        if isinstance(part, int):
            continue
        known = sorted({field.alias or name for model in models for name, field in model.model_fields.items()})
        fields = [field for model in models if (field := _field(model, part)) is not None]
        if fields:  # else the key of a dict, whose values are of the same models
            models = [inner for field in fields for inner in _models_in(field.annotation)]
        tagged = any(field.discriminator for field in fields)
    return place, known


def _field(model: type[BaseModel], key: str) -> Any:
    return next((field for name, field in model.model_fields.items() if key in (name, field.alias)), None)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Every pydantic model named in an annotation such as ``list[Group] | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)
