"""Files that a scenario file names: looked for beside it first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capplan.cards.card_numbers import card_aliases
from capplan.cards.store import card_names

_PLACES = {
    "model": "models",
    "hardware.gpu": "hardware",
    "workload.card": "workloads",
    "workload.trace": None,
    "serving.engine": "engines",
}
"""Keys that may name a file, and the kind of card that their value names else."""


def located_beside(data: dict[str, Any], file: Path) -> dict[str, Any]:
    """The data of a scenario file with relative paths that exist beside it made paths from here.

    The name of a shipped card stays one. What is not beside the file is left to the working directory.
    """
    result = {name: dict(value) if isinstance(value, dict) else value for name, value in data.items()}
    for key, kind in _PLACES.items():
        section, dot, leaf = key.rpartition(".")
        place = result.get(section) if dot else result
        if isinstance(place, dict) and isinstance(place.get(leaf), str):
            place[leaf] = _beside(place[leaf], file, kind)
    return result


def _beside(value: str, file: Path, kind: str | None) -> str:
    path = file.parent / value
    try:
        found = value.strip() != "" and not Path(value).is_absolute() and path.exists()
    except (OSError, ValueError):  # a name that no file can have
        return value
    named = kind is not None and (value.lower() in card_names(kind) or value.lower() in card_aliases(kind))
    return str(path) if found and not named else value
