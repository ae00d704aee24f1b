"""Parameters, bytes and operations of weights against numbers counted elsewhere."""

import math

import numpy as np
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from capplan.formulas import weights

# Counted on the transformers 5.24.0 classes (tests/truth/model_truth.json), matrices without norms and biases.
ATTENTION = {
    "Llama-3.1-8B": (32, (4096, 32, 8, 128, 128), 1_342_177_280),
    "Llama-3.1-405B": (126, (16384, 128, 8, 128, 128), 71_873_593_344),
    "Qwen3-32B": (64, (5120, 64, 8, 128, 128), 6_039_797_760),
    "Llama-2-7b": (32, (4096, 32, 32, 128, 128), 2_147_483_648),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_parameters(name):
    layers, dims, expected = ATTENTION[name]
    assert layers * weights.gqa_attention_parameters(*dims) == expected


def test_latent_attention_parameters_of_deepseek_v3():
    assert 61 * weights.mla_attention_parameters(7168, 128, 1536, 512, 128, 64, 128) == 11_413_422_080


def test_feed_forward_parameters():
    assert 32 * weights.gated_feed_forward_parameters(4096, 14336) == 5_637_144_576
    assert 58 * 256 * weights.gated_feed_forward_parameters(7168, 2048) == 653_908_770_816


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 300), st.integers(1, 300))
def test_scales_are_counted_by_the_block_rounded_up(inputs, outputs, block_inputs, block_outputs):
    size = weights.scaled_weight_bytes(inputs, outputs, 1, 4, block_inputs, block_outputs)
    scales = math.ceil(inputs / block_inputs) * math.ceil(outputs / block_outputs)
    assert size == inputs * outputs + 4 * scales


def test_mxfp4_is_four_and_a_quarter_bits():
    assert weights.scaled_weight_bytes(2880, 5760, 0.5, 1, 32, 1) == 2880 * 5760 * 4.25 / 8


@given(st.integers(0, 10**10), st.integers(0, 10**8), st.integers(0, 64))
def test_active_parameters_grow_by_one_expert_at_a_time(shared, expert, top_k):
    less = weights.mixture_active_parameters(shared, expert, top_k)
    assert weights.mixture_active_parameters(shared, expert, top_k + 1) - less == expert
    assert weights.mixture_active_parameters(shared, expert, 0) == shared


def test_operations_of_deepseek_v3():
    assert weights.linear_flops_per_token(36_624_596_992) == 73_249_193_984
    assert weights.mla_absorbed_attention_flops_per_token(128, 512, 64, 1) == 278_528
    assert weights.mla_expanded_attention_flops_per_token(128, 128, 64, 128, 1) == 81_920


def test_absorption_costs_3_point_4_times_the_expanded_scores():
    heads, latent, rope, nope, value, context = sympy.symbols("H d_c d_r d_n d_v S", positive=True)
    absorbed = weights.mla_absorbed_attention_flops_per_token(heads, latent, rope, context)
    expanded = weights.mla_expanded_attention_flops_per_token(heads, nope, rope, value, context)
    assert sympy.simplify(absorbed / expanded - (2 * latent + rope) / (nope + rope + value)) == 0
    assert (absorbed / expanded).subs({latent: 512, rope: 64, nope: 128, value: 128}) == sympy.Rational(17, 5)


def test_attention_operations_of_an_array_equal_those_of_its_elements():
    contexts = np.array([0.0, 1.0, 8192.0, 131_072.0])
    together = weights.attention_flops_per_token(64, 128, 128, contexts)
    assert together.tolist() == [weights.attention_flops_per_token(64, 128, 128, float(c)) for c in contexts]
