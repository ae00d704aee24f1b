"""Kernels an engine has no measured constants of are named."""

import json

import pytest

from capplan.cards.engine_card import load_engine
from capplan.cards.hardware_card import load_hardware
from capplan.cards.model_card import load_model
from capplan.cli.main import main
from capplan.quantities.chain import Chain
from capplan.serving.layout import Layout
from capplan.serving.step import decode_step
from capplan.serving.unmeasured import unmeasured_kernels


@pytest.mark.parametrize(
    ("model", "engine", "said"),
    [
        ("llama-3.1-8b", "sglang", []),
        ("qwen3-next-80b-a3b", "vllm@0.19", []),
        ("qwen3-next-80b-a3b", "sglang", ["recurrent layers take the time of vLLM's kernels"]),
        ("deepseek-v3.2", "sglang", []),
        ("deepseek-v3.2", "tensorrt-llm", ["sparse attention takes the time"]),
        ("nemotron-3-nano", None, ["scans of mamba2 layers"]),
    ],
)
def test_what_is_said(model, engine, said):
    lines = list(unmeasured_kernels(load_model(model), engine))
    assert [line.startswith(words) for line, words in zip(lines, said, strict=True)] == [True] * len(said)
    if engine is not None:
        assert list(unmeasured_kernels(load_model(model), load_engine(engine))) == lines


def test_the_commands_say_it(capsys):
    for command in ("step", "prefill"):
        assert main([command, "deepseek-v3.2", "--gpu", "h200", "--tp", "8", "--engine", "tensorrt-llm"]) == 0
        assert "sparse attention takes the time of vLLM's" in capsys.readouterr().err


def test_a_prefill_that_cannot_be_is_told(capsys):
    assert main(["prefill", "deepseek-r1", "--gpu", "a100", "--tp", "8", "--tokens", "300k"]) == 0
    told = capsys.readouterr().err
    assert "memory holds 0 such sequences" in told
    assert "the model takes" in told


def test_constants_of_an_engine_are_in_the_chain_and_can_be_overridden(capsys):
    place = load_model("llama-3.1-8b"), load_hardware("h200"), Layout(), 8, 1024
    plain = decode_step(*place, engine="vllm")
    chain = Chain({"layer_overhead_seconds": 1e-4}, record=True)
    slow = decode_step(*place, engine="vllm", chain=chain)
    own = load_engine("vllm").layer_overhead_seconds
    assert slow.seconds - plain.seconds == pytest.approx(32 * (1e-4 - own))
    assert chain.links["kernel_time_factor"].value == load_engine("vllm").kernel_time_factor
    assert decode_step(*place, engine="vllm").seconds == plain.seconds
    assert main(["step", "llama-3.1-8b", "--gpu", "h200", "--engine", "vllm", "--set", "kernel_time_factor=0"]) == 2
    assert "must be above zero" in capsys.readouterr().err
    assert main(["step", "llama-3.1-8b", "--gpu", "h200", "--set", "kernel_time_factor=2"]) == 2
    assert "has no part in this answer" in capsys.readouterr().err
    assert main(["step", "llama-3.1-8b", "--gpu", "h200", "--engine", "vllm", "--explain", "--json"]) == 0
    assert "small kernels it replaces" in json.dumps(json.loads(capsys.readouterr().out))
