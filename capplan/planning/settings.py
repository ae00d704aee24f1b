"""Keys given on top of a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merged(data: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The data of a scenario with dotted keys replaced; None removes a key."""
    result = {name: dict(value) if isinstance(value, dict) else value for name, value in data.items()}
    for key, value in settings.items():
        place, parts = result, key.split(".")
        for part in parts[:-1]:
            inner = place.get(part)
            place[part] = dict(inner) if isinstance(inner, dict) else {}
            place = place[part]
        if value is None:
            place.pop(parts[-1], None)
        else:
            place[parts[-1]] = value
        _drop_rivals(place, key, settings)
    return result


_RIVALS = {
    "rate": ("concurrency",),
    "concurrency": ("rate", "dispersion", "dispersion_window"),
    "card": ("trace", "columns", "input", "output", "reasoning_share"),
    "trace": ("card", "input", "output", "reasoning_share"),
}


def _drop_rivals(section: dict[str, Any], key: str, settings: Mapping[str, Any]) -> None:
    """A key given on top of a file replaces what excludes it: ``--concurrency 64`` drops the file's rate.

    What is given on top of the file too stays, for the scenario to accept or refuse.
    """
    head, dot, leaf = key.rpartition(".")
    for rival in _RIVALS.get(leaf, ()):
        if f"{head}{dot}{rival}" not in settings:
            section.pop(rival, None)
