"""capplan: analytical capacity planning for LLM inference.

Importing this package imports nothing heavy: every public name is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "capplan.calibration.calibration": ("calibrate",),
    "capplan.cards.hardware_card": ("load_hardware",),
    "capplan.cards.kv": ("kv_bytes", "kv_bytes_per_token"),
    "capplan.cards.model_card": ("load_model",),
    "capplan.cards.engine_card": ("load_engine",),
    "capplan.cards.workload_card": ("load_workload",),
    "capplan.cards.workload": ("Workload",),
    "capplan.formulas.length_laws": (
        "Empirical",
        "Exponential",
        "Fixed",
        "Gamma",
        "LogNormal",
        "Mixture",
        "Pareto",
        "Uniform",
    ),
    "capplan.planning.plan": ("plan",),
    "capplan.planning.scenario": ("Scenario", "load_scenario"),
    "capplan.serving.closed_loop": ("closed_loop",),
    "capplan.serving.layout": ("Layout",),
    "capplan.serving.memory": ("memory",),
    "capplan.serving.prefill": ("prefill",),
    "capplan.serving.pressure": ("kv_pressure",),
    "capplan.serving.stationary": ("concurrency",),
    "capplan.serving.step": ("decode_step",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME_OF)]

if TYPE_CHECKING:
    from capplan.calibration.calibration import calibrate as calibrate
    from capplan.cards.engine_card import load_engine as load_engine
    from capplan.cards.hardware_card import load_hardware as load_hardware
    from capplan.cards.kv import kv_bytes as kv_bytes
    from capplan.cards.kv import kv_bytes_per_token as kv_bytes_per_token
    from capplan.cards.model_card import load_model as load_model
    from capplan.cards.workload import Workload as Workload
    from capplan.cards.workload_card import load_workload as load_workload
    from capplan.planning.plan import plan as plan
    from capplan.planning.scenario import Scenario as Scenario
    from capplan.planning.scenario import load_scenario as load_scenario
    from capplan.serving.closed_loop import closed_loop as closed_loop
    from capplan.serving.layout import Layout as Layout
    from capplan.serving.memory import memory as memory
    from capplan.serving.prefill import prefill as prefill
    from capplan.serving.pressure import kv_pressure as kv_pressure
    from capplan.serving.stationary import concurrency as concurrency
    from capplan.serving.step import decode_step as decode_step


def __getattr__(name: str) -> Any:
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'capplan' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
