"""What a user assumes of a config that is not understood: settings as typed, and a note of each for the card."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from capplan.cards.huggingface import TEXT_PARTS
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


def assumption_notes(data: Mapping[str, Any], assumptions: Mapping[str, Any], file: str) -> dict[str, str]:
    """For each assumed field what was assumed and what the config says.

    Parameters
    ----------
    data : the parsed config
    assumptions : field to its value; a name without dots means the text part where there is one
    file : named in errors

    Returns
    -------
    notes : dotted path of the field to the note

    Raises
    ------
    InputError : a path that leads through something that is no part of the config
    """
    notes = {}
    for path, value in assumptions.items():
        *parts, name = path.split(".")
        if not parts:
            parts = [part for part in TEXT_PARTS if isinstance(data.get(part), dict)][:1]
        table = data
        for part in parts:
            if part not in TEXT_PARTS or not isinstance(table.get(part), dict):
                raise InputError(f"{part[:60]!r} is no table of the config", key=f"--assume {path[:60]}", file=file)
            table = table[part]
        given = _shown(table[name]) if name in table else "absent"
        notes[".".join([*parts, name])] = f"{_shown(value)} (config: {given})"
    return notes


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "..."
