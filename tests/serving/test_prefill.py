"""Prefill: properties, prefix hits, and its own names in a chain."""

import numpy as np
import pytest

from capplan.cards.hardware_card import load_hardware
from capplan.cards.model_card import load_model
from capplan.errors import InputError
from capplan.quantities.chain import Chain
from capplan.quantities.registry import all_quantities
from capplan.serving.layout import Layout
from capplan.serving.prefill import prefill
from capplan.serving.step import decode_step

H200, H800 = load_hardware("h200"), load_hardware("h800")
LLAMA, DEEPSEEK = load_model("llama-3.1-8b"), load_model("deepseek-v3")
CASES = [
    (LLAMA, H200, Layout()),
    (LLAMA, H200, Layout(tp=4)),
    (LLAMA, H200, Layout(pp=2)),
    (DEEPSEEK, H200, Layout(tp=8)),
    (DEEPSEEK, H800, Layout(dp=32)),
]
IDS = [f"{model.name} {layout}" for model, _, layout in CASES]


@pytest.mark.parametrize(("model", "hardware", "layout"), CASES, ids=IDS)
def test_sum_of_parts_vector_and_order(model, hardware, layout):
    tokens = np.geomspace(16, 100_000, 40)
    for overlap in (False, True):
        together = prefill(model, hardware, layout, tokens, prompts=64, overlap=overlap)
        assert together.seconds == pytest.approx(sum(together.parts.values()), rel=1e-12)
        assert (np.diff(together.seconds) > 0).all()
        alone = prefill(model, hardware, layout, float(tokens[20]), prompts=64, overlap=overlap)
        assert together.seconds[20] == pytest.approx(alone.seconds, rel=1e-12)
        assert together.limit[20] == alone.limit
    more = prefill(model, hardware, layout, 2048, prompts=np.arange(1, 200)).seconds
    assert (np.diff(more) >= 0).all()


@pytest.mark.parametrize(("model", "hardware", "layout"), CASES, ids=IDS)
def test_prefix_hit_lies_between_its_absence_and_the_whole_prompt(model, hardware, layout):
    short, hit, whole = (
        prefill(model, hardware, layout, new, cached).seconds for new, cached in ((1024, 0), (1024, 7168), (8192, 0))
    )
    assert short < hit < whole


def test_hit_of_latent_attention_expands_the_latents_again():
    bare, hit = (prefill(DEEPSEEK, H200, Layout(tp=8), 256, cached) for cached in (0, 65536))
    assert hit.parts["linear_seconds"] > bare.parts["linear_seconds"]
    same = prefill(LLAMA, H200, Layout(), 256, 65536)
    assert same.parts["linear_seconds"] == prefill(LLAMA, H200, Layout(), 256).parts["linear_seconds"]


def test_long_prompts_are_bound_by_arithmetic_and_single_tokens_by_reading():
    assert prefill(LLAMA, H200, Layout(), 8192).limit == "compute"
    assert prefill(LLAMA, H200, Layout(), 8).limit == "hbm"
    one = prefill(LLAMA, H200, Layout(), 1, 1024).seconds
    assert one == pytest.approx(decode_step(LLAMA, H200, Layout(), 1, 1024).seconds, rel=0.08)


def test_throughput_counts_the_computed_prompt_tokens():
    one = prefill(DEEPSEEK, H800, Layout(dp=32), 4096, prompts=128, overlap=True)
    assert one.tokens == 128 * 4096
    assert one.tokens_per_second_per_gpu == pytest.approx(128 * 4096 / one.seconds / 32)
    assert one.tokens_per_step is None


def test_exchange_for_many_tokens_sends_a_token_once_to_a_node():
    """4 nodes, 8 experts: 3.6 nodes, three quarters of them remote; 1 B there and 2 B back, 58 layers."""
    one = prefill(DEEPSEEK, H800, Layout(dp=32), 4096, prompts=128)
    even = 58 * 16384 * 7168 * 3 * 4 * (1 - 0.75**8) * 0.75
    assert one.links["nic"] == pytest.approx(even, rel=0.02)


def test_names_in_a_chain_are_apart_from_those_of_a_step():
    chain = Chain({"prefill_attention_seconds": 1.0}, record=True)
    assert prefill(LLAMA, H200, Layout(), 4096, chain=chain).seconds > 1.0
    assert decode_step(LLAMA, H200, Layout(), 1, 4096, chain=chain).seconds < 0.1
    assert chain.used_overrides == {"prefill_attention_seconds"}
    assert {"prefill_seconds", "step_seconds"} <= chain.links.keys() <= all_quantities().keys()


@pytest.mark.parametrize(
    ("changed", "key"),
    [({"tokens": 0}, "tokens"), ({"cached": -1}, "cached"), ({"prompts": 0}, "prompts"), ({"cache": 1}, "option")],
)
def test_bad_input_names_the_key(changed, key):
    with pytest.raises(InputError, match=key):
        prefill(**{"model": LLAMA, "hardware": H200, "layout": Layout(), "tokens": 4096, **changed})
