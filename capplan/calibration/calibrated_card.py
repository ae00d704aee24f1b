"""The engine card a calibration gives: a copy of the base card with the fitted constants and their source."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capplan.calibration.constants import with_constants
from capplan.cards.engine import CalibratedFor, Engine
from capplan.cards.hardware import Band
from capplan.cards.number import Number
from capplan.cards.store import read_json
from capplan.errors import InputError
from capplan.serving.prepared import decode_kind

if TYPE_CHECKING:
    from capplan.calibration.calibration import Calibration
    from capplan.calibration.fitting import Errors

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,39}")
_SHOWN_FILES = 3
_MOST_SOURCE = 400
_SUFFIX = "-calibrated"
_TITLE_SUFFIX = ", calibrated"


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
    for constant, number in _numbers(calibration).items():
        part["numbers"].pop(constant, None)
        card["numbers"][constant] = number.model_dump()
    system, bands = calibration.system, _bands(calibration)
    plain = {kind: {end: number.model_dump() for end, number in ends.items()} for kind, ends in bands.items()}
    card |= {"calibrated_for": {"gpu": system.hardware.name, "model": system.model.name}, "bands": plain or None}
    card |= {"name": name, "title": calibrated_title(card["title"]), "aliases": [], "versions": [part]}
    return {key: value for key, value in card.items() if value is not None}


def calibrated_engine(calibration: Calibration) -> Engine:
    """The base engine with the fitted constants, their sources and the measured band, of no file."""
    system, bands = calibration.system, _bands(calibration)
    ends = {f"bands.{kind}.{end}": number for kind, band in bands.items() for end, number in band.items()}
    kept = {key: number for key, number in system.engine.sources.items() if not key.startswith("bands.")}
    return replace(
        with_constants(system.engine, calibration.constants),
        name=calibrated_name(system.engine.name),
        title=calibrated_title(system.engine.title),
        aliases=(),
        calibrated_for=CalibratedFor(system.hardware.name, system.model.name),
        bands={kind: Band(band["low"].value, band["high"].value) for kind, band in bands.items()},
        sources={**kept, **_numbers(calibration), **ends},
        file="",
    )


def calibrated_name(base: str) -> str:
    """The name of a calibrated card, however often it was calibrated."""
    return f"{base.removesuffix(_SUFFIX)[:28]}{_SUFFIX}"


def calibrated_title(base: str) -> str:
    """The title of one."""
    return f"{base.removesuffix(_TITLE_SUFFIX)[:68]}{_TITLE_SUFFIX}"


def _numbers(calibration: Calibration) -> dict[str, Number]:
    """Every constant that is not held, with its source."""
    return {
        name: _number(one.after, "s" if name.endswith("_seconds") else "1", source_of(calibration, name))
        for one in calibration.fitted
        if one.held is None and (name := one.constant.name)
    }


def _bands(calibration: Calibration) -> dict[str, dict[str, Number]]:
    """The ends of the measured band, for the kind of decode step the model has."""
    band, system = calibration.judgement.band, calibration.system
    if band is None:
        return {}
    left_out = calibration.judgement.left_out
    source = f"measured over predicted TPOT of {len(calibration.runs)} runs of {system.model.name} on "
    source += f"{system.hardware.name}, each {left_out} left out of the fit"
    numbers = {end: Number(float(f"{getattr(band, end):.4g}"), "1", source, "measured") for end in ("low", "high")}
    return {decode_kind(system.model, system.engine): numbers}


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
    if fitted.bound is not None:
        text += f"; {fitted.bound}"
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


def _number(value: float, unit: str, source: str) -> Number:
    return Number(float(f"{value:.6g}"), unit, source, "fitted")


def card_name(path: Path, fallback: str) -> str:
    """The name of a card in a file: that of the file where it can be one."""
    stem = path.name.removesuffix(".json").lower()
    return stem if _NAME.fullmatch(stem) else calibrated_name(fallback)


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
