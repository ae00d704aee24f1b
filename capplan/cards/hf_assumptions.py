"""What a user assumes of a config that is not understood: values put in place of its own, and a note of each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from capplan.errors import InputError

_MOST_SHOWN = 120


def parsed_assumptions(settings: list[str], key: str = "--assume") -> dict[str, Any]:
    """Field to value from ``field=value``; the value is JSON, else text.

    Raises
    ------
    InputError : no ``=``, no field, a field given twice, a number that is none

    Examples
    --------
    >>> parsed_assumptions(["head_dim=128", "sliding_window=null", "model_type=llama"])
    {'head_dim': 128, 'sliding_window': None, 'model_type': 'llama'}
    """
    found: dict[str, Any] = {}
    for setting in settings:
        field, equals, text = setting.partition("=")
        if not equals or not field.strip():
            raise InputError(f"{setting[:60]!r} must be field=value", key=key)
        if field.strip() in found:
            raise InputError(f"{field.strip()[:60]!r} is given twice", key=key)
        found[field.strip()] = _value(text.strip(), key)
    return found


def _value(text: str, key: str) -> Any:
    def refuse(constant: str) -> Any:
        raise InputError(f"{constant} is no value of a config", key=key)

    try:
        return json.loads(text, parse_constant=refuse)
    except InputError:
        raise
    except (ValueError, RecursionError):
        return text


def assume(data: dict[str, Any], assumptions: Mapping[str, Any], file: str) -> tuple[dict[str, Any], dict[str, str]]:
    """A config with assumed fields, and for each what was assumed and what the config says.

    Parameters
    ----------
    data : the parsed config; not changed
    assumptions : dotted path of a field to its value; None makes a field count as absent. A name without dots means
        the text part where there is one and the file itself has no such field
    file : named in errors

    Returns
    -------
    data, notes : the config to import, and the notes for the card

    Raises
    ------
    InputError : a path that leads through something that is no table
    """
    changed, notes = deepcopy(data), {}
    for path, value in assumptions.items():
        table, name, place = _place(changed, path, file)
        given = "absent" if name not in table else _shown(table[name])
        table[name] = value
        notes[place] = f"{_shown(value)} (config: {given})"
    return changed, notes


def _place(data: dict[str, Any], path: str, file: str) -> tuple[dict[str, Any], str, str]:
    *tables, name = path.split(".")
    if not tables and name not in data:
        tables = next(([part] for part in ("text_config", "language_config") if isinstance(data.get(part), dict)), [])
    table: Any = data
    for part in tables:
        table = table.get(part)
        if not isinstance(table, dict):
            raise InputError(f"{part[:60]!r} is no table of the config", key=f"--assume {path[:60]}", file=file)
    return table, name, ".".join([*tables, name])


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "..."
