"""The engine card a calibration gives: a copy of the base card with the fitted constants and their source."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from capplan.calibration.calibration import Calibration
from capplan.calibration.fitting import Errors
from capplan.cards.store import read_json
from capplan.errors import InputError

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,39}")
_SHOWN_FILES = 3
_MOST_SOURCE = 400


def engine_card(calibration: Calibration, name: str) -> dict[str, Any]:
    """The card of the engine: that of the base in its range of versions, with the fitted constants.

    Parameters
    ----------
    calibration : of one engine
    name : of the card

    Returns
    -------
    card : plain data, valid against the schema of engine cards

    Raises
    ------
    InputError : the base card has no file, or none with its range of versions
    """
    base = calibration.system.engine
    card, part = _base_card(base.file, base.version)
    for fitted in calibration.fitted:
        name_of = fitted.constant.name
        if fitted.held is None:
            part["numbers"].pop(name_of, None)
            unit = "s" if name_of.endswith("_seconds") else "1"
            card["numbers"][name_of] = _number(fitted.after, unit, source_of(calibration, name_of))
    return {**card, "name": name, "title": f"{card['title'][:68]}, calibrated", "aliases": [], "versions": [part]}


def _base_card(file: str, version: str) -> tuple[dict[str, Any], dict[str, Any]]:
    if not file:
        raise InputError("this engine was not read from a card; load one with load_engine", key="engine")
    from capplan.cards.engine_card import range_text

    card = read_json(Path(file))
    for part in card["versions"]:
        if range_text(part) == version:
            return card, part
    raise InputError(f"no longer has the range of versions {version}", file=file)


def source_of(calibration: Calibration, constant: str) -> str:
    """Where a constant comes from, in one line: runs, files, standard error and held error."""
    system, runs = calibration.system, calibration.runs
    fitted = next(one for one in calibration.fitted if one.constant.name == constant)
    files = list(dict.fromkeys(Path(run.file).name for run in runs))
    more = f" and {len(files) - _SHOWN_FILES} more" if len(files) > _SHOWN_FILES else ""
    listed = ", ".join(_plain(name) for name in files[:_SHOWN_FILES]) + more
    text = (
        f"calibrated to {len(runs)} runs of {system.model.name} on {system.hardware.name} {system.layout} in {listed}"
    )
    if fitted.standard_error is not None:
        text += f"; standard error {fitted.constant.shown(fitted.standard_error)}"
    held = {metric: error for metric, error in calibration.judgement.held_out.items() if error is not None}
    text += "".join(f"; held error {metric.upper()} {told(error)}" for metric, error in held.items())
    return text[:_MOST_SOURCE]


def told(errors: Errors) -> str:
    """Median and p90 of errors."""
    return f"{errors.median:.1%} median, {errors.p90:.1%} p90"


def _plain(name: str) -> str:
    return re.sub(r"[^\x20-\x7e]", "?", name)[:60]


def _number(value: float, unit: str, source: str) -> dict[str, Any]:
    return {"value": float(f"{value:.6g}"), "unit": unit, "kind": "fitted", "source": source}


def card_name(path: Path, fallback: str) -> str:
    """The name of a card in a file: that of the file where it can be one."""
    stem = path.name.removesuffix(".json").lower()
    return stem if _NAME.fullmatch(stem) else f"{fallback[:28]}-calibrated"


def write_card(calibration: Calibration, output: str | Path, *, force: bool = False) -> Path:
    """Write the engine card.

    Parameters
    ----------
    calibration : what was fitted
    output : file
    force : overwrite it

    Returns
    -------
    file : written

    Raises
    ------
    InputError : a file that exists, or cannot be written
    """
    path = Path(output)
    card = engine_card(calibration, card_name(path, calibration.system.engine.name))
    if not force and path.exists():
        raise InputError("exists; --force overwrites it", file=str(path))
    _write(path, json.dumps(card, indent=2) + "\n")
    return path


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no file name"
        raise InputError(f"cannot be written ({reason})", file=str(path)) from None
