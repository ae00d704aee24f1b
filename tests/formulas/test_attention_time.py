"""Attention cores: pairs by summation, limits of decode and prefill."""

import numpy as np
import pytest
import sympy

from capplan.formulas.attention_time import (
    attention_flops_per_pair,
    causal_pairs,
    context_attention_seconds,
    decode_attention_seconds,
)


@pytest.mark.parametrize("window", [None, 1, 7, 128])
@pytest.mark.parametrize(("new", "cached"), [(1, 0), (5, 0), (12, 3), (3, 200), (300, 50)])
def test_pairs_equal_the_sum_over_queries(new, cached, window):
    by_query = [cached + i if window is None else min(cached + i, window) for i in range(1, new + 1)]
    assert causal_pairs(new, cached, window) == sum(by_query)


def test_pairs_of_arrays_and_symbols():
    new = np.array([1.0, 5.0, 300.0])
    assert list(causal_pairs(new, 3.0, 7.0)) == [causal_pairs(float(n), 3.0, 7.0) for n in new]
    n, c = sympy.symbols("n c", positive=True)
    i = sympy.Symbol("i", integer=True)
    k = sympy.Symbol("k", integer=True, positive=True)
    assert sympy.simplify(causal_pairs(k, c) - sympy.summation(c + i, (i, 1, k))) == 0
    assert sympy.diff(causal_pairs(n, c), c) == n


def test_chunks_of_a_prompt_hold_the_pairs_of_the_whole():
    whole = causal_pairs(4096)
    assert sum(causal_pairs(1024, 1024 * i) for i in range(4)) == whole


def decode(sequences=64, context=8192, queries=1, flops=16384, bandwidth=4.55e12, rate=8e14, ramp=77):
    return decode_attention_seconds(sequences, context, queries, 4096, flops, 12.7e-6, bandwidth, rate, ramp)


def test_decode_reads_the_cache_once_whatever_the_queries():
    """Two query tokens a sequence cost next to nothing more while reading binds."""
    assert decode(queries=2) == pytest.approx(decode(), rel=0.01)
    assert decode() * 1e6 == pytest.approx(485.1, rel=0.02)  # H200, FlashAttention-3, 64 x 8,192


def test_mla_with_128_heads_is_bound_by_arithmetic_and_with_16_by_reading():
    """128 sequences of 4,096 on one H200: 243.3 us measured with 128 heads."""
    constants = (1152, 18.8e-6, 4.55e12, 682e12, 77)

    def mla(heads):
        pair = attention_flops_per_pair(heads, 576, 512)
        return decode_attention_seconds(128, 4096, 1, constants[0], pair, *constants[1:])

    assert mla(128) * 1e6 == pytest.approx(243.3, rel=0.05)
    assert mla(16) == pytest.approx(18.8e-6 + 128 * 4173 * 1152 / 4.55e12, rel=0.02)


def test_a_lone_long_sequence_cannot_use_the_whole_gpu():
    """One sequence of 32,768 with 128 heads takes 47.2 us on one H200; its share of a full batch would be 14 us."""
    pair = attention_flops_per_pair(128, 576, 512)
    alone = decode_attention_seconds(1, 32768, 1, 1152, pair, 17.4e-6, 4.55e12, 677e12, 80, 9e-10)
    assert alone * 1e6 == pytest.approx(47.2, rel=0.02)
    full = decode_attention_seconds(64, 32768, 1, 1152, pair, 17.4e-6, 4.55e12, 677e12, 80, 9e-10)
    assert full == decode_attention_seconds(64, 32768, 1, 1152, pair, 17.4e-6, 4.55e12, 677e12, 80)


def test_decode_time_grows_with_load_and_falls_with_better_hardware():
    batches = np.arange(1.0, 300.0, 7.0)
    assert (np.diff(decode(sequences=batches)) > 0).all()
    assert (np.diff(decode(context=np.arange(0.0, 65536.0, 999.0))) > 0).all()
    assert decode(bandwidth=5e12) < decode() < decode(bandwidth=4e12)
    assert decode(rate=9e14) < decode() < decode(rate=7e14)
    assert decode(sequences=batches)[3] == pytest.approx(decode(sequences=float(batches[3])), rel=1e-14)


def test_prefix_hit_saves_its_own_attention_but_not_that_of_new_tokens():
    def prefill(new, cached, window=None):
        return context_attention_seconds(1, new, cached, window, 4096, 16384, 16384, 10.4e-6, 4.52e12, 796e12, 9.7e-9)

    assert prefill(2048, 0) < prefill(2048, 6144) < prefill(8192, 0)
    assert prefill(8192, 0, 1024) < prefill(8192, 0)
    assert prefill(4096, 0) * 1e6 == pytest.approx(196.2, rel=0.03)  # H200, FlashAttention-3
