"""Hostile and careless input: one clear line, in bounded time and memory, or the right answer."""

import os
from pathlib import Path

import numpy as np
import pytest

from capplan import Workload, kv_pressure
from capplan.cards.store import MAX_CARD_BYTES, read_json, read_text
from capplan.errors import InputError
from capplan.formulas.length_laws import Fixed, Gamma, LogNormal, Mixture
from capplan.formulas.overflow import demand_quantile, overflow_probability
from capplan.serving.stationary import concurrency

# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="the host has no /dev/zero")
def test_an_endless_device_is_no_card(tmp_path):
    with pytest.raises(InputError, match="no regular file"):
        read_json(Path("/dev/zero"))
    (link := tmp_path / "card.json").symlink_to("/dev/zero")
    with pytest.raises(InputError, match="no regular file"):
        read_text(link)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the host has no named pipes")
def test_a_pipe_nobody_writes_to_does_not_block(tmp_path):
    os.mkfifo(pipe := tmp_path / "card.json")
    with pytest.raises(InputError, match="no regular file"):
        read_json(pipe)


def test_reading_is_bounded_and_says_why(tmp_path):
    (large := tmp_path / "large.json").write_text("[" * (MAX_CARD_BYTES + 1))
    with pytest.raises(InputError, match="larger than 4 MB"):
        read_json(large)
    with pytest.raises(InputError, match="larger than 100 bytes"):
        read_text(large, 100)
    with pytest.raises(InputError, match=r"cannot be read \(is a folder\)"):
        read_text(tmp_path)
    with pytest.raises(InputError, match="No such file"):
        read_text(tmp_path / "missing.json")
    with pytest.raises(InputError, match="null byte"):
        read_text(Path("a\0b"))
    (binary := tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        read_text(binary)


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    (marked := tmp_path / "card.json").write_bytes(b'\xef\xbb\xbf{"name": "card"}')
    assert read_json(marked) == {"name": "card"}
    assert read_text(marked, 20)[0] == "{"


# ---- laws at their limits --------------------------------------------------------------------------------------------

EQUAL = Workload(1, 2)


def test_overflow_without_variance_is_a_step():
    assert overflow_probability(100.0, 99.0, 0.0, 0.0) == 0.0
    assert overflow_probability(100.0, 101.0, 0.0, 0.0) == 1.0
    assert overflow_probability(np.array([98.0, 100.0]), 99.0, 0.0, 0.0).tolist() == [1.0, 0.0]
    assert overflow_probability(100.0, 99.0, 1e-300, 0.0) == 0.0
    assert demand_quantile(0.99, 99.0, 0.0, 0.0) == 99.0


def test_equal_requests_have_answers():
    for workload in (EQUAL, Workload(joint=[(1, 2)] * 5)):
        state = concurrency(workload, 10.0, (0.01, 1e-4, 0.0), cap=8)
        assert state.step_quantile(0.99) >= 0.01
        assert state.tpot_quantile(0.99) == pytest.approx(0.0101, rel=0.01)
        pressure = kv_pressure(workload, 1000, concurrency=8)
        assert pressure.recompute_per_token == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("rate", [5e-324, 1e-300, 1e-20])
@pytest.mark.parametrize("step_time", [(0.01, 1e-4, 1e-8), (0.01, 1e-4, 0.0), lambda n: 0.01 + 1e-4 * n])
def test_a_tiny_rate_is_an_idle_rank(rate, step_time):
    state = concurrency(Workload(100, 200), rate, step_time, cap=40, dispersion=4.0)
    assert state.quantile(0.99) == 0.0
    assert state.step_quantile(0.99) == pytest.approx(0.01, rel=0.02)
    assert state.wait_quantile(0.999) == 0.0
    assert state.wait_probability < 1e-90
    assert state.mean == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("law", [Gamma, LogNormal])
def test_lengths_that_hardly_vary_are_fixed(law):
    narrow = Workload(law(1000, 1e-9), law(100, 1e-9))
    assert (narrow.input, narrow.output) == (Fixed(1000), Fixed(100))
    assert Workload(10, law(100, 1e-7, max=50)).output == Fixed(50)
    assert law(1000, 1e-12).quantile(0.99) == pytest.approx(1000, rel=1e-5)
    assert law(1000, 1e-12).pdf(999.0) == 0.0
    assert Mixture([(1, law(100, 1e-8)), (1, 300)]).mean == pytest.approx(200)
    fixed = concurrency(Workload(1000, 100), 10.0, (0.01, 1e-4, 1e-9))
    assert concurrency(narrow, 10.0, (0.01, 1e-4, 1e-9)).tpot_quantile(0.99) == fixed.tpot_quantile(0.99)
