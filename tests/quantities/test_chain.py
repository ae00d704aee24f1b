"""The chain: recording, overriding, and the registry behind it."""

import re

import pytest

from capplan.errors import UnitError, UnknownNameError
from capplan.quantities.chain import Chain
from capplan.quantities.registry import all_quantities, override_value, quantity

UNITS = re.compile(r"1|[A-Za-z$/*^0-9 ]+")


def _pool(weights_bytes, hbm_bytes):
    return hbm_bytes - weights_bytes


def test_recorded_chain_keeps_value_formula_and_inputs():
    chain = Chain(record=True)
    chain.given("weights_bytes", 3.0, "a card", assumed=True)
    assert chain.derive("kv_pool_bytes", _pool, weights_bytes=3.0, hbm_bytes=10.0) == 7.0
    link = chain.links["kv_pool_bytes"]
    assert link.inputs == {"weights_bytes": 3.0, "hbm_bytes": 10.0}
    assert link.source.endswith("_pool")
    assert chain.assumptions() == ["weights_bytes"]


def test_an_override_replaces_the_formula_and_is_marked():
    chain = Chain({"kv_pool_bytes": 5.0}, record=True)
    assert chain.derive("kv_pool_bytes", _pool, weights_bytes=3.0, hbm_bytes=10.0) == 5.0
    assert chain.links["kv_pool_bytes"].overridden
    assert chain.used_overrides == {"kv_pool_bytes"}


def test_override_of_an_unknown_name_names_the_nearest():
    with pytest.raises(UnknownNameError, match="kv_pool_bytes"):
        Chain({"kv_pool_byte": 1.0})


def test_every_quantity_is_complete_and_named_after_itself():
    for name, known in all_quantities().items():
        assert name == known.name
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
        assert UNITS.fullmatch(known.unit), (name, known.unit)
        assert len(known.meaning) > 10, name
        assert known.formula, name
        assert known.source, name


def test_override_values_take_units_or_base_units():
    assert override_value("kv_pool_bytes", "24GiB") == 24 * 2**30
    assert override_value("kv_pool_bytes", 24) == 24
    for bad in ("24 s", "-1GiB", float("nan"), True, None):
        with pytest.raises(UnitError):
            override_value("kv_pool_bytes", bad)


def test_only_what_may_be_missing_is_below_zero():
    assert override_value("kv_room_bytes", -2.0) == -2.0
    assert [name for name, known in all_quantities().items() if known.signed] == ["kv_room_bytes"]
    for name, value in (("kv_room_bytes", float("-inf")), ("kv_room_bytes", float("nan")), ("weights_bytes", -1.0)):
        with pytest.raises(UnitError):
            override_value(name, value)


def test_names_end_in_the_unit_they_have():
    endings = {"_seconds": "s", "_bytes": "B"}
    for ending, unit in endings.items():
        for name in all_quantities():
            if name.endswith(ending):
                assert quantity(name).unit.split("/")[0] == unit, name
