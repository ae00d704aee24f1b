"""The cards a calibration gives: a copy of the base card with the fitted constants, and where they come from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from capplan.calibration.calibration import Calibration
from capplan.calibration.constants import KERNEL_TIME_FACTOR, OF_ENGINE
from capplan.calibration.fitting import Errors
from capplan.calibration.table import scaled_kernels
from capplan.cards.hardware_card import kernel_base_unit
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
        if fitted.held is None and name_of in OF_ENGINE:
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


def hardware_card(calibration: Calibration, name: str) -> dict[str, Any] | None:
    """The card of the GPU with kernels of another speed; None where their factor was held.

    Parameters
    ----------
    calibration, name : as in :func:`engine_card`

    Returns
    -------
    card : plain data, valid against the schema of hardware cards

    Raises
    ------
    InputError : the GPU was not read from a card
    """
    factor, base = calibration.kernel_time_factor, calibration.system.hardware
    if factor is None:
        return None
    if not base.file:
        raise InputError("this GPU was not read from a card; load one with load_hardware", key="gpu")
    card = read_json(Path(base.file))
    source = f"the value of card {base.name} over {factor:.4g}, {source_of(calibration, KERNEL_TIME_FACTOR)}"
    for key, value in scaled_kernels(base, factor).items():
        card["kernels"][key] = _number(value, kernel_base_unit(key), source[:_MOST_SOURCE])
    return {**card, "name": name, "title": f"{card['title'][:68]}, calibrated", "aliases": []}


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


def write_cards(calibration: Calibration, output: str | Path, *, force: bool = False) -> list[Path]:
    """Write the engine card and, where kernels have another speed, the hardware card beside it (``-hardware.json``).

    Parameters
    ----------
    calibration : what was fitted
    output : file of the engine card
    force : overwrite files

    Returns
    -------
    files : written ones, the engine card first

    Raises
    ------
    InputError : a file that exists, or cannot be written
    """
    path = Path(output)
    second = path.with_name(f"{path.name.removesuffix('.json')}-hardware.json")
    cards = {path: engine_card(calibration, card_name(path, calibration.system.engine.name))}
    if (hardware := hardware_card(calibration, card_name(second, calibration.system.hardware.name))) is not None:
        cards[second] = hardware
    for file in cards:
        if not force and file.exists():
            raise InputError("exists; --force overwrites it", file=str(file))
    for file, card in cards.items():
        _write(file, json.dumps(card, indent=2) + "\n")
    return list(cards)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no file name"
        raise InputError(f"cannot be written ({reason})", file=str(path)) from None
