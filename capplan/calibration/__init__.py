"""Measured numbers in the place of ours: what a running engine reports, and what a benchmark of it measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capplan.calibration.calibration import Calibration as Calibration
    from capplan.calibration.calibration import calibrate as calibrate
    from capplan.calibration.design import Design as Design
    from capplan.calibration.design import design_runs as design_runs
    from capplan.calibration.results import read_results as read_results

_HOMES = {
    "Calibration": ("calibration", "Calibration"),
    "calibrate": ("calibration", "calibrate"),
    "Design": ("design", "Design"),
    "design_runs": ("design", "design_runs"),
    "read_results": ("results", "read_results"),
}

__all__ = ["Calibration", "Design", "calibrate", "design_runs", "read_results"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module, attribute = _HOMES[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
