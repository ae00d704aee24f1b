"""From a pydantic validation error to the one line a person can act on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    first = error.errors(include_url=False, include_context=False)[0]
    key = ".".join(str(part)[:80] for part in first["loc"]) or None
    if first["type"] == "extra_forbidden" and schema is None:
        return InputError("unknown key; correct its spelling or remove it", key=key, file=file)
    if first["type"] == "extra_forbidden" and schema is not None:
        name = str(first["loc"][-1])
        known = _known_keys(schema, first["loc"][:-1])
        return UnknownNameError.among(name, known, "key", key=key, file=file)
    return InputError(_problem(dict(first)), key=key, file=file)


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


def _known_keys(schema: type[BaseModel], place: Iterable[int | str]) -> list[str]:
    """Keys allowed at a place below ``schema``, walking through nested models, lists and dicts."""
    models = [schema]
    for part in place:
        if isinstance(part, int):
            continue
        fields = [_field(model, part) for model in models]
        found = [inner for field in fields if field is not None for inner in _models_in(field.annotation)]
        models = found or models
    return sorted({field.alias or name for model in models for name, field in model.model_fields.items()})


def _field(model: type[BaseModel], key: str) -> Any:
    return next((field for name, field in model.model_fields.items() if key in (name, field.alias)), None)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Every pydantic model named in an annotation such as ``list[Group] | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)
