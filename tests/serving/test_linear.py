"""The line through a step time."""

import copy

import pytest

from capplan.cards.hardware_card import load_hardware
from capplan.cards.model_card import load_model
from capplan.errors import InputError
from capplan.serving.layout import Layout
from capplan.serving.linear import linear_step
from capplan.serving.step import decode_step

H200, H800 = load_hardware("h200"), load_hardware("h800")
CASES = [
    (load_model("llama-3.1-8b"), H200, Layout(), 64, 4096, 0.03),
    (load_model("llama-3.1-70b"), H200, Layout(tp=4), 128, 3000, 0.06),
    (load_model("deepseek-v3"), H800, Layout(dp=128), 128, 4096, 0.03),
    (load_model("gpt-oss-120b"), H200, Layout(), 64, 8192, 0.15),
]


@pytest.mark.parametrize(("model", "hardware", "layout", "batch", "context", "error"), CASES)
def test_line_meets_the_step_at_the_operating_point_and_stays_close(model, hardware, layout, batch, context, error):
    line = linear_step(model, hardware, layout, batch, context)
    a, e, c = line
    assert min(line) >= 0
    at = decode_step(model, hardware, layout, batch * layout.dp, context).seconds
    assert a + e * batch + c * batch * context == pytest.approx(at, rel=1e-12)
    assert line.error <= error
    for factor in (0.5, 2.0):
        there = decode_step(model, hardware, layout, batch * layout.dp * factor, context).seconds
        assert a + factor * (e * batch + c * batch * context) == pytest.approx(there, rel=line.error + 1e-9)


def test_slope_over_tokens_is_bytes_over_bandwidth():
    _, _, c = linear_step(load_model("llama-3.1-8b"), H200, Layout(), 64, 8192)
    assert c == pytest.approx(131072 / H200.kernels.attention_stream_bandwidth, rel=0.01)


def test_options_reach_the_step_and_unknown_ones_are_refused():
    model = load_model("llama-3.1-8b")
    plain, served = (linear_step(model, H200, Layout(), 64, 8192, engine=engine) for engine in (None, "vllm"))
    assert served[0] > plain[0]
    assert copy.copy(plain).error == plain.error
    with pytest.raises(InputError, match="option"):
        linear_step(model, H200, Layout(), 64, 8192, speed=2)
    with pytest.raises(InputError, match="batch_per_rank"):
        linear_step(model, H200, Layout(), 0, 8192)
