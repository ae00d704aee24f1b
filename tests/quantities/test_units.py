"""Human spellings: right values, and one clear line for everything that is not a quantity."""

import itertools

import pytest

from capplan.errors import UnitError
from capplan.quantities import units

CASES = [
    (units.parse_bytes, "80GiB", 80 * 2**30),
    (units.parse_bytes, "80GB", 80e9),
    (units.parse_bytes, "1,024 KiB", 2**20),
    (units.parse_bandwidth, "3.35TB/s", 3.35e12),
    (units.parse_bandwidth, "400Gb/s", 50e9),
    (units.parse_bandwidth, "400 Gbps", 50e9),
    (units.parse_seconds, "50ms", 0.05),
    (units.parse_seconds, "1.5h", 5400.0),
    (units.parse_seconds, "10min", 600.0),
    (units.parse_rate, "20/s", 20.0),
    (units.parse_rate, "90/min", 1.5),
    (units.parse_rate, "1k/s", 1000.0),
    (units.parse_tokens, "8k", 8192),
    (units.parse_tokens, 1000, 1000),
    (units.parse_tokens, "1M", 2**20),
    (units.parse_flops, "989TFLOP/s", 989e12),
    (units.parse_share, "90%", 0.9),
    (units.parse_money, "$2.5", 2.5),
    (units.parse_money, "2.5$/h", 2.5),
]


@pytest.mark.parametrize(("parse", "text", "value"), CASES)
def test_amounts_as_people_write_them(parse, text, value):
    assert parse(text) == pytest.approx(value, rel=1e-15)


BAD = [
    (units.parse_seconds, "50"),
    (units.parse_seconds, 50),
    (units.parse_seconds, "50 parsecs"),
    (units.parse_seconds, "-1s"),
    (units.parse_seconds, "NaN s"),
    (units.parse_seconds, float("nan")),
    (units.parse_seconds, float("inf")),
    (units.parse_seconds, "1e999s"),
    (units.parse_seconds, ""),
    (units.parse_seconds, None),
    (units.parse_seconds, True),
    (units.parse_seconds, [1]),
    (units.parse_seconds, "9" * 100_000),
    (units.parse_bytes, "80"),
    (units.parse_bytes, "80 Gib"),
    (units.parse_bandwidth, "3.35TB"),
    (units.parse_rate, 20),
    (units.parse_rate, "20ms"),
    (units.parse_tokens, "8kB"),
    (units.parse_tokens, "１２"),
]


@pytest.mark.parametrize(("parse", "amount"), BAD)
def test_what_is_no_quantity_is_refused_in_one_line(parse, amount):
    with pytest.raises(UnitError) as caught:
        parse(amount, key="slo.tpot_p99")
    message = str(caught.value)
    assert message.startswith("slo.tpot_p99: ")
    assert "\n" not in message
    assert len(message) < 400


def test_prefixes_are_decimal_and_binary_as_written():
    # A known machine-file reader has a wrong SI table; every step here must be exactly 1000 or 1024.
    decimal = [units.BYTES[p + "B"] for p in ("", "k", "M", "G", "T", "P")]
    binary = [units.BYTES["B"]] + [units.BYTES[p + "B"] for p in ("Ki", "Mi", "Gi", "Ti")]
    assert [b / a for a, b in itertools.pairwise(decimal)] == [1000.0] * 5
    assert [b / a for a, b in itertools.pairwise(binary)] == [1024.0] * 4
    assert units.BANDWIDTH["Gb/s"] * 8 == units.BANDWIDTH["GB/s"]


def test_zero_is_refused_where_it_makes_no_sense():
    assert units.parse_seconds("0s") == 0
    with pytest.raises(UnitError, match="above zero"):
        units.parse_seconds("0s", positive=True)
