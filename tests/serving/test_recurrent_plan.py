"""Recurrent layers in a step and a prefill."""

from dataclasses import replace

import pytest

from capplan import Layout, decode_step, load_hardware, load_model, prefill
from capplan.errors import InputError
from capplan.serving.kernel_plan import build_plan
from capplan.serving.recurrent_plan import recurrent_bytes
from capplan.serving.work import Work

H200 = load_hardware("h200")
MODELS = ("qwen3-next-80b-a3b", "kimi-k3", "nemotron-3-nano", "minimax-m1", "jamba-1.5-mini")


@pytest.mark.parametrize("name", MODELS)
def test_a_recurrence_takes_the_same_time_whatever_the_context(name):
    model = load_model(name)
    short, long = (decode_step(model, H200, Layout(), 16, context).parts for context in (1024, 65536))
    assert short["recurrence_seconds"] == long["recurrence_seconds"] > 0
    assert short["attention_seconds"] < long["attention_seconds"]


@pytest.mark.parametrize("name", MODELS)
def test_state_is_read_and_written_once_a_sequence(name):
    """What the plan books of states and their activations: nearly two states a sequence, those of Mamba are small."""
    model = load_model(name)
    plan = build_plan(model, model.layers, H200, Layout(), None, None)
    moved = recurrent_bytes(Work(8.0, 1.0, 0.0, 8.0, 8.0, 1.0, prefill=False), plan.recurrences) / 8
    assert 2 * model.state_bytes_per_sequence < moved < 2.7 * model.state_bytes_per_sequence


def test_tensor_parallelism_splits_the_state():
    model = load_model("qwen3.5-9b")
    whole, split = (decode_step(model, H200, Layout(tp=tp), 256, 1024).parts["recurrence_seconds"] for tp in (1, 4))
    assert split < whole / 3


def test_shares_and_parts_agree():
    for name in MODELS:
        step = decode_step(load_model(name), H200, Layout(), 64, 4096)
        assert sum(step.shares.values()) == pytest.approx(step.seconds, rel=1e-9)


def test_a_prompt_of_a_lone_user_costs_as_much_as_two_prompts():
    """With few heads and one prompt most of the GPU idles while chunks of a delta rule follow each other."""
    model = load_model("qwen3.5-9b")
    one, two = (prefill(model, H200, Layout(tp=4), 8192, prompts=n).parts["recurrence_seconds"] for n in (1, 2))
    assert two < 1.3 * one


def test_a_card_without_the_constants_is_named():
    sources = {key: number for key, number in H200.sources.items() if key != "kernels.recurrence_stream_bandwidth"}
    bare = replace(H200, kernels=replace(H200.kernels, recurrence_stream_bandwidth=0.0), sources=sources)
    with pytest.raises(InputError, match=r"h200\.json: kernels\.recurrence_stream_bandwidth: the card of"):
        decode_step(load_model("qwen3.5-9b"), bare, Layout(), 1, 1)
    assert decode_step(load_model("llama-3.1-8b"), bare, Layout(), 1, 1).seconds > 0
