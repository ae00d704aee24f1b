"""A constant called idle must not matter, and one that is not must."""

from dataclasses import fields, replace

import pytest

from capplan.cards.hardware import Kernels
from capplan.cards.hardware_card import load_hardware
from capplan.cards.model_card import load_model
from capplan.serving.idle_constants import idle_constants
from capplan.serving.layout import Layout
from capplan.serving.prefill import prefill
from capplan.serving.step import decode_step

H800 = load_hardware("h800")
CASES = [
    ("llama-3.1-8b", Layout(), "bf16"),
    ("llama-3.1-8b", Layout(tp=16), "fp8"),
    ("gpt-oss-120b", Layout(tp=2), "bf16"),
    ("deepseek-v3", Layout(dp=32), "bf16"),
]
ON_THE_SLOWER_SIDE = (
    "dispatch_bandwidth",
    "all_reduce_two_step_floor_seconds",
    "attention_token_seconds",
    "mla_token_seconds",
)
"""Count only where the other fabric, the other way to reduce or the rest of the batch is faster."""
NAMES = [constant.name for constant in fields(Kernels)]


@pytest.mark.parametrize(("name", "layout", "kv_dtype"), CASES)
def test_only_idle_constants_leave_every_time_as_it_is(name, layout, kv_dtype):
    model = load_model(name)
    idle = idle_constants(model, H800, layout, kv_dtype)

    def seconds(hardware):
        options = {"kv_dtype": kv_dtype, "overlap": True}
        step = decode_step(model, hardware, layout, 4000, 3000, **options)
        prompt = prefill(model, hardware, layout, 3000, prompts=64, **options)
        small = decode_step(model, hardware, layout, 1, 3000, **options)
        plain = decode_step(model, hardware, layout, 4000, 3000, kv_dtype=kv_dtype)
        return [one.seconds for one in (step, prompt, small, plain)]

    before = seconds(H800)
    for constant in NAMES:
        other = replace(H800, kernels=replace(H800.kernels, **{constant: 0.5 * getattr(H800.kernels, constant)}))
        if constant in idle:
            assert seconds(other) == before, constant
        elif constant not in ON_THE_SLOWER_SIDE and layout.tp <= 2:
            # Behind more tensor parallelism a fast term can vanish in the last digit beside a slow one.
            assert seconds(other) != before, constant
