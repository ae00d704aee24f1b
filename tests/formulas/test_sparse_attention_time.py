"""Indexers and cores over chosen entries: sums by hand, limits, the same on arrays and symbols."""

import numpy as np
import pytest
import sympy

from capplan.formulas.sparse_attention_time import indexer_seconds, selected_pairs, sparse_attention_seconds

INDEXER = 132, 16384, 20e-6, 4.55e12, 9.8e11, 1.32e15, 4.7e-10


@pytest.mark.parametrize(
    ("new", "cached", "ratio", "most"), [(5, 0, 1, 3), (7, 4, 1, 6), (12, 8, 4, 3), (6, 9, 2, None)]
)
def test_selected_pairs_are_the_sum_over_queries(new, cached, ratio, most):
    queries = ((cached + i) / ratio for i in range(1, new + 1))
    assert selected_pairs(new, cached, ratio, most) == pytest.approx(sum(min(e, most or e) for e in queries))


def test_an_indexer_reads_every_key_once_and_scores_every_pair():
    """aiconfigurator-core 0.12.0, H200, DeepSeek-V3.2 in vLLM: 34.6 ps a token of 256 sequences."""
    more, less = (indexer_seconds(256, tokens, tokens, *INDEXER) for tokens in (32768, 16384))
    assert (more - less) / 256 / 16384 == pytest.approx(34.6e-12, rel=0.12)


def test_a_lone_row_of_scores_is_selected_from_by_one_multiprocessor():
    lone = indexer_seconds(1, 131072, 131072, *INDEXER)
    assert lone == pytest.approx(20e-6 + 131072 * 4.7e-10, rel=0.05)


def test_a_prompt_scores_each_pair():
    """The same table: 17 to 20 ps a pair of a prompt of DeepSeek-V3.2, whose indexer has 64 heads."""
    more, less = (indexer_seconds(1, 8192 * tokens, tokens, *INDEXER) for tokens in (131072, 65536))
    assert (more - less) / 8192 / 65536 == pytest.approx(18.5e-12, rel=0.15)


def test_arrays_and_symbols_give_what_numbers_give():
    pairs = np.array([64.0, 2048.0])
    constants = 1152, 278528, 17e-6, 2.8e12, 6.9e14
    assert list(sparse_attention_seconds(8, pairs, *constants)) == [
        sparse_attention_seconds(8, float(pair), *constants) for pair in pairs
    ]
    symbol = sympy.Symbol("P", positive=True)
    exact = sparse_attention_seconds(8, symbol, *constants).subs(symbol, 2048)
    assert float(exact) == pytest.approx(sparse_attention_seconds(8, 2048.0, *constants))
