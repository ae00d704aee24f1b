"""KV-cache formulas against published bytes, and their properties."""

import numpy as np
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from capplan.formulas import kv_cache

counts = st.integers(1, 300)


@pytest.mark.parametrize(
    ("n_layers", "n_kv_heads", "head_dim", "expected"),
    [
        (32, 8, 128, 131_072),  # Llama-3.1-8B
        (80, 8, 128, 327_680),  # Llama-3.1-70B, Qwen2.5-72B
        (126, 8, 128, 516_096),  # Llama-3.1-405B
        (64, 8, 128, 262_144),  # Qwen3-32B
        (48, 4, 128, 98_304),  # Qwen3-30B-A3B
        (36, 8, 128, 147_456),  # Qwen3-4B: LMCache issue 688
        (40, 8, 128, 163_840),  # Mistral-Small-24B: Model-Optimizer issue 2482
        (28, 2, 128, 28_672),  # DeepSeek-R1-Distill-Qwen-1.5B: vLLM issue 14350
        (24, 8, 64, 49_152),  # gpt-oss-20b, all windows open: Model-Optimizer issue 2482
    ],
)
def test_grouped_query_bytes_of_published_models(n_layers, n_kv_heads, head_dim, expected):
    assert kv_cache.gqa_kv_bytes_per_token(n_layers, n_kv_heads, head_dim, head_dim, 2) == expected


def test_latent_bytes_of_deepseek():
    # DeepSeek-V3: 70.272 kB a token, arXiv:2505.09343, table 1; DeepSeek-V2: 60 layers.
    assert kv_cache.mla_kv_bytes_per_token(61, 512, 64, 2) == 70_272
    assert kv_cache.mla_kv_bytes_per_token(60, 512, 64, 2) == 67.5 * 1024


def test_fp8_layout_of_the_latent():
    # mlx-vlm issue 1284: 656 B a token and layer, DeepSeek-V2 38.4 KiB, V3 40,016 B.
    assert kv_cache.mla_fp8_layout_bytes_per_token(1, 512, 64) == 656
    assert kv_cache.mla_fp8_layout_bytes_per_token(60, 512, 64) == pytest.approx(38.4 * 1024, rel=1e-3)
    assert kv_cache.mla_fp8_layout_bytes_per_token(61, 512, 64) == 40_016


@given(counts, counts, counts, st.integers(0, 10**6), st.sampled_from([1, 2, 4]))
def test_the_multi_head_formula_is_the_grouped_one_with_all_heads(layers, heads, width, tokens, size):
    grouped = tokens * kv_cache.gqa_kv_bytes_per_token(layers, heads, width, width, size)
    assert kv_cache.mha_kv_bytes(layers, heads * width, tokens, size) == grouped


def test_the_multi_head_formula_is_the_grouped_one_symbolically():
    layers, heads, width, tokens, size = sympy.symbols("layers heads width tokens size", positive=True)
    grouped = tokens * kv_cache.gqa_kv_bytes_per_token(layers, heads, width, width, size)
    assert sympy.expand(kv_cache.mha_kv_bytes(layers, heads * width, tokens, size) - grouped) == 0


def test_the_multi_head_formula_misleads_by_sixfold_where_queries_are_grouped():
    # vLLM issue 14350: 2 * layers * hidden * 2 = 172,032 B for a model that holds 28,672.
    assert kv_cache.mha_kv_bytes(28, 1536, 1, 2) == 6 * kv_cache.gqa_kv_bytes_per_token(28, 2, 128, 128, 2)


@given(st.integers(0, 10**7), st.integers(1, 10**6))
def test_a_window_holds_no_more_than_itself_and_than_the_context(context, window):
    held = kv_cache.held_tokens(context, window)
    assert held == min(context, window)
    assert kv_cache.held_tokens(context + 1, window) >= held
    assert kv_cache.held_tokens(context, None) == context


def test_held_tokens_of_an_array_and_of_a_symbol():
    contexts = np.array([0, 100, 128, 9000])
    assert kv_cache.held_tokens(contexts, 128).tolist() == [kv_cache.held_tokens(int(c), 128) for c in contexts]
    context = sympy.Symbol("context", positive=True)
    assert kv_cache.held_tokens(context, 128).subs(context, 9000) == 128


@given(counts, counts)
def test_ranks_hold_all_heads_together_and_at_least_one_each(heads, ranks):
    per_rank = kv_cache.kv_heads_per_rank(heads, ranks)
    assert per_rank >= 1
    assert per_rank * ranks >= heads
    assert kv_cache.kv_heads_per_rank(heads, ranks + 1) <= per_rank


def test_heads_are_copied_once_ranks_outnumber_them():
    # vLLM issue 50: 8 heads on 32 ranks are one on each, an eighth of the cache and not a 32nd.
    assert kv_cache.kv_heads_per_rank(8, 32) == 1
    assert kv_cache.kv_heads_per_rank(8, 8) == 1
    assert kv_cache.kv_heads_per_rank(8, 4) == 2


def test_the_fullest_stage_has_the_layer_that_is_left_over():
    assert kv_cache.busiest_stage_share(61, 4) == 16 / 61
    assert kv_cache.busiest_stage_share(80, 4) == 0.25


@given(
    st.integers(0, 10**6), st.integers(0, 10**5), st.integers(0, 10**5), st.integers(1, 10**5), st.integers(0, 10**8)
)
def test_a_sequence_is_the_sum_of_its_layers(context, full, slides, window, state):
    size = kv_cache.sequence_kv_bytes(context, full + slides, slides, window, state)
    assert size == context * full + min(context, window) * slides + state
    assert kv_cache.sequence_kv_bytes(context, full, 0, None, state) == context * full + state
