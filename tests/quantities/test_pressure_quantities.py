import importlib

from capplan.quantities.pressure_quantities import QUANTITIES
from capplan.quantities.registry import all_quantities


def test_every_quantity_is_registered_once():
    names = [quantity.name for quantity in QUANTITIES]
    assert len(names) == len(set(names))
    assert all(all_quantities()[quantity.name] is quantity for quantity in QUANTITIES)


def test_formulas_named_as_sources_exist():
    for quantity in QUANTITIES:
        if not quantity.source.startswith("capplan."):
            continue
        module, _, name = quantity.source.rpartition(".")
        if module == "capplan.formulas":
            importlib.import_module(quantity.source)
        else:
            assert callable(getattr(importlib.import_module(module), name)), quantity.name
