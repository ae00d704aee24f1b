"""The error band of step and prefill times, and the one factor that moves them all together."""

from dataclasses import replace

import numpy as np
import pytest

from capplan import Layout, decode_step, load_hardware, load_model, prefill
from capplan.cards.hardware import Band
from capplan.quantities.chain import Chain
from capplan.serving.linear import linear_step
from capplan.serving.step_time import LIMITS

LLAMA, R1, H200 = load_model("llama-3.1-8b"), load_model("deepseek-r1"), load_hardware("h200")
WIDE = Layout(tp=2, dp=8)


@pytest.mark.parametrize(
    ("model", "layout", "engine", "kind"),
    [
        (LLAMA, Layout(), None, "decode_kernels"),
        (LLAMA, Layout(), "none", "decode_kernels"),
        (LLAMA, Layout(), "vllm", "decode_dense"),
        (R1, WIDE, None, "decode_kernels"),
        (R1, WIDE, "sglang", "decode_mixture"),
    ],
)
def test_a_step_has_the_band_of_its_kind(model, layout, engine, kind):
    step = decode_step(model, H200, layout, 64, 4096, engine=engine)
    assert step.band_factors is H200.bands[kind]
    assert step.band == (step.seconds * H200.bands[kind].low, step.seconds * H200.bands[kind].high)
    assert step.band[0] < step.seconds < step.band[1]


def test_a_prefill_has_its_own_band():
    for engine in (None, "vllm"):
        answer = prefill(LLAMA, H200, Layout(), 4096, engine=engine)
        assert answer.band_factors is H200.bands["prefill"]


@pytest.mark.parametrize("size", [3, 20_000])
def test_arrays_keep_their_shape(size):
    batch = np.arange(1.0, 2 * size + 1).reshape(2, size)
    low, high = decode_step(LLAMA, H200, Layout(), batch, 4096).band
    one = decode_step(LLAMA, H200, Layout(), batch[1, 2], 4096)
    assert low.shape == high.shape == batch.shape
    assert (low[1, 2], high[1, 2]) == pytest.approx(one.band, rel=1e-12)
    low, high = prefill(LLAMA, H200, Layout(), batch, cached=np.array([[0], [64]])).band
    assert low.shape == high.shape == batch.shape


def test_a_card_without_a_band_has_none_to_show():
    bare = replace(H200, bands={"decode_dense": Band(0.9, 1.1)})
    assert decode_step(LLAMA, bare, Layout(), 8, 1024).band is None
    assert prefill(LLAMA, bare, Layout(), 1024).band is None
    assert decode_step(LLAMA, bare, Layout(), 8, 1024, engine="vllm").band_factors == Band(0.9, 1.1)


def test_a_time_that_was_given_has_no_error():
    assert decode_step(LLAMA, H200, Layout(), 8, 1024, chain=Chain({"step_seconds": 0.02})).band == (0.02, 0.02)
    assert prefill(LLAMA, H200, Layout(), 1024, chain=Chain({"prefill_seconds": 0.2})).band == (0.2, 0.2)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("factor", [0.7, 1.3])
def test_the_factor_moves_every_part_of_every_time_together(factor, overlap):
    options = {"engine": "vllm", "overlap": overlap}
    pairs = [
        ("decode_time_factor", lambda chain: decode_step(R1, H200, WIDE, 512, 4096, chain=chain, **options)),
        ("decode_time_factor", lambda chain: decode_step(R1, H200, WIDE, 512, 4096, mtp=1, chain=chain, **options)),
        ("prefill_time_factor", lambda chain: prefill(R1, H200, WIDE, 4096, prompts=8, chain=chain, **options)),
    ]
    for name, timed in pairs:
        chain = Chain({name: factor})
        plain, moved = timed(None), timed(chain)
        assert moved.seconds == pytest.approx(factor * plain.seconds, rel=1e-14)
        assert sum(moved.parts.values()) == pytest.approx(moved.seconds, rel=1e-14)
        assert moved.parts == pytest.approx({part: factor * value for part, value in plain.parts.items()})
        assert [moved.shares[of] for of in LIMITS] == pytest.approx([factor * plain.shares[of] for of in LIMITS])
        assert (moved.links, moved.limit) == (plain.links, plain.limit)
        assert chain.used_overrides == {name}


def test_a_factor_of_one_changes_no_bit():
    batch = np.arange(1.0, 100.0)
    for chain in (Chain(), Chain({"decode_time_factor": 1.0, "prefill_time_factor": 1.0})):
        for plain, same in (
            (decode_step(R1, H200, WIDE, batch, 4096), decode_step(R1, H200, WIDE, batch, 4096, chain=chain)),
            (prefill(R1, H200, WIDE, 100 * batch), prefill(R1, H200, WIDE, 100 * batch, chain=chain)),
        ):
            assert np.array_equal(plain.seconds, same.seconds)
            assert all(np.all(plain.parts[part] == same.parts[part]) for part in plain.parts)


def test_the_line_of_a_step_moves_with_it():
    plain = linear_step(R1, H200, WIDE, 40, 4096, engine="vllm")
    moved = linear_step(R1, H200, WIDE, 40, 4096, engine="vllm", chain=Chain({"decode_time_factor": 1.25}))
    assert moved == pytest.approx([1.25 * part for part in plain], rel=1e-9)
    assert moved.error == pytest.approx(plain.error)


def test_a_factor_beside_the_time_itself_takes_no_part():
    chain = Chain({"step_seconds": 0.02, "decode_time_factor": 1.2})
    assert decode_step(LLAMA, H200, Layout(), 8, 1024, chain=chain).seconds == 0.02
    assert chain.used_overrides == {"step_seconds"}


def test_a_recorded_chain_shows_the_factor():
    chain = Chain(record=True)
    decode_step(LLAMA, H200, Layout(), 8, 1024, chain=chain)
    prefill(LLAMA, H200, Layout(), 1024, chain=chain)
    assert chain.links["step_seconds"].inputs["decode_time_factor"] == 1.0
    assert chain.links["prefill_seconds"].inputs["prefill_time_factor"] == 1.0
