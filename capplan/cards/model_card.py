"""Model cards: reading and writing a card file, and finding a model by any of its names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from capplan.cards.model import Model
from capplan.cards.model_reader import SCHEMA, model_from_data
from capplan.cards.store import card_names, card_root, find_card, read_json
from capplan.errors import InputError


def load_model(name_or_path: str | Path) -> Model:
    """Read a model: a shipped card, a card file, or a Hugging Face ``config.json``.

    Parameters
    ----------
    name_or_path : card name or alias (``deepseek-r1``, ``r1``, ``Qwen/Qwen3-32B``; case does not matter), a card file,
        a ``config.json``, or a folder that holds one (with ``hf_quant_config.json`` beside it where there is one)

    Returns
    -------
    model : its text part

    Raises
    ------
    UnknownNameError : no such card, alias or file
    UnsupportedModelError : a config with a field or layer kind that is not modelled
    InputError : not readable, not valid

    Examples
    --------
    >>> load_model("llama-3.1-8b").parameters_total
    8030261248
    """
    text = str(name_or_path)
    path = find_card("models", text) if text.lower() in card_names("models") else find_card("models", text, _aliases())
    file = path / "config.json" if path.is_dir() else path
    side_cars = (file.parent / "hf_quant_config.json", file.with_suffix(".hf_quant_config.json"))
    return _read(file, tuple(_stamp(place) for place in (file, *side_cars)))


def _stamp(path: Path) -> tuple[int, int] | None:
    """What changes when a file does, so that an edited file is read again."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=256)
def _read(file: Path, _stamps: tuple[Any, ...]) -> Model:
    data = read_json(file)
    if "schema" in data:
        return model_from_card(data, str(file))
    from capplan.cards.huggingface import card_from_file

    return model_from_card(card_from_file(file, data), str(file))


@cache
def _aliases() -> dict[str, str]:
    """Alias in small letters to card name, over all shipped cards."""
    found: dict[str, str] = {}
    for name in card_names("models"):
        for alias in read_json(card_root() / "models" / f"{name}.json").get("aliases", []):
            found[str(alias).lower()] = name
    return found


def model_from_card(data: dict[str, Any], file: str = "") -> Model:
    """The model a parsed card describes.

    Raises
    ------
    InputError : unknown or missing key, a number without source, a value out of range; one line
    """
    try:
        return model_from_data(data, file)
    except (AttributeError, KeyError, TypeError, ValueError):
        # Importing the schema costs more than reading the card: only a doubtful one pays for it.
        from capplan.cards.model_schema import plain_data, validated

        valid = plain_data(validated(data, file))
    try:
        return model_from_data(valid, file)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InputError("its numbers do not fit together", file=file) from None


def import_card(
    config: str | Path,
    name: str | None = None,
    assumptions: Mapping[str, Any] | None = None,
    **origin: Any,
) -> dict[str, Any]:
    """The plain data of the card a Hugging Face ``config.json`` gives; :func:`card_json` makes its text.

    Parameters
    ----------
    config : the file, or the folder that holds one
    name : name of the card; None for the name of the folder
    assumptions : dotted path of a field to the value to take instead of the config's; the card records them
    origin : ``repository``, ``url``, ``commit``, ``retrieved_from``, ``notes``, ``aliases``; the card records them

    Raises
    ------
    UnsupportedModelError : a field or layer kind that is not modelled
    InputError : not readable, a field missing or out of range
    """
    from capplan.cards.hf_assumptions import assumption_notes
    from capplan.cards.huggingface import card_from_file

    path = Path(config)
    file = path / "config.json" if path.is_dir() else path
    data = read_json(file)
    notes = assumption_notes(data, assumptions or {}, str(file))
    if (repository := origin.get("repository")) and not origin.get("url"):
        revision = origin.get("commit") or "main"
        origin["url"] = f"https://huggingface.co/{repository}/blob/{revision}/config.json"
    known = {key: value for key, value in {"name": name, **origin}.items() if value}
    card = card_from_file(file, data, assume=assumptions, **known)
    card["provenance"]["assumed"] = notes
    return card


def card_json(data: dict[str, Any], file: str = "") -> str:
    """The text of a card file, without a final line break.

    Raises
    ------
    InputError : the data are no valid card
    """
    from capplan.cards.model_schema import plain_data, validated

    return json.dumps(plain_data(validated(data, file)), indent=1, ensure_ascii=False)


def model_card_schema() -> dict[str, Any]:
    """The JSON Schema of a model card."""
    from capplan.cards.model_schema import model_card_schema as schema

    return schema()


__all__ = ["SCHEMA", "card_json", "import_card", "load_model", "model_card_schema", "model_from_card"]
