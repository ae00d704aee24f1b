"""Pages of hybrid pools against what vLLM prints at start-up, to the last token."""

import math

import numpy as np
import pytest
import sympy

from capplan.formulas import kv_groups
from capplan.serving.kv_pages import LayerKind, separate_pages, shared_pages

GIB = 2.0**30
QWEN36_35B = [LayerKind(10, 1024.0), LayerKind(30, 0.0, state_bytes=32 * 128 * 128 * 4 + 3 * 8192 * 2)]
"""Qwen3.6-35B-A3B with an fp8 cache: 2 KV heads of 256; gated delta net with an fp32 state and 3 columns of conv."""
QWEN38_27B_TP2 = [LayerKind(16, 1024.0), LayerKind(48, 0.0, state_bytes=24 * 128 * 128 * 4 + 3 * 5120 * 2)]
GPT_OSS_120B = [LayerKind(18, 2048.0), LayerKind(18, 2048.0, window=128)]


def printed_tokens(pages, pool_gib, length, chunk=8192.0):
    blocks = math.floor(pool_gib * GIB / pages.block_bytes)
    return length * blocks / pages.reserved_blocks(length, chunk)


@pytest.mark.parametrize(
    ("kinds", "pool_gib", "length", "tokens"),
    [
        (QWEN36_35B, 6.01, 131_072, 569_878),  # one RTX 5090 (noonghunna/club-3090 issues 612, 652)
        (QWEN38_27B_TP2, 4.99, 131_072, 302_921),  # two RTX 3090 (mitchross issue 1995)
        (GPT_OSS_120B, 57.24, 2_068, 825_607),  # one H200 (GloriaXimingLu/inferencex-profiling)
        (GPT_OSS_120B, 57.24, 9_472, 886_768),
    ],
)
def test_tokens_that_vllm_prints(kinds, pool_gib, length, tokens):
    assert printed_tokens(shared_pages(kinds, 16), pool_gib, length) == pytest.approx(tokens, rel=3e-4)


def test_a_state_makes_pages_long():
    """Qwen3-Next-80B-A3B in bf16: vLLM sets 544 tokens a page."""
    kinds = [LayerKind(12, 2048.0), LayerKind(36, 0.0, state_bytes=32 * 128 * 128 * 2 + 3 * 8192 * 2)]
    pages = shared_pages(kinds, 16)
    attention, state = pages.tables
    assert (attention.tables, attention.block_tokens) == (1, 544)
    assert (state.tables, state.state_pages) == (3, 2)
    assert pages.block_bytes == 12 * 544 * 2048
    without = shared_pages(kinds, 16, prefix_caching=False)
    assert pages.held_bytes(1) - without.held_bytes(1) == 3 * pages.block_bytes


def test_kinds_of_equal_reach_are_one_group_whatever_their_widths():
    """DeepSeek-V3.2 in vLLM: 656 B of latent and 132 B of indexer a layer, 48,068 B a token."""
    pages = shared_pages([LayerKind(61, 656.0), LayerKind(61, 132.0)], 64)
    assert pages.block_bytes == 64 * 48_068
    assert pages.held_bytes(65) == 128 * 48_068
    assert pages.constant_bytes_per_token


def test_narrow_tokens_get_longer_pages():
    """Gemma-4: sliding layers 8 x 256, full ones 2 x 512, half as wide."""
    pages = shared_pages([LayerKind(25, 8192.0, window=1024), LayerKind(5, 4096.0)], 16)
    sliding, full = pages.tables
    assert (sliding.tables, sliding.block_tokens, full.tables, full.block_tokens) == (5, 16, 1, 32)
    assert pages.block_bytes == 5 * 16 * 8192


def test_five_windows_to_one_full_layer():
    """Gemma-3-27B: 52 sliding layers are six tables of ten, the last one padded."""
    pages = shared_pages([LayerKind(10, 8192.0), LayerKind(52, 8192.0, window=1024)], 16)
    assert [table.tables for table in pages.tables] == [1, 6]
    assert not pages.constant_bytes_per_token


def test_kinds_that_differ_little_are_padded_to_the_larger():
    pages = shared_pages([LayerKind(13, 2048.0), LayerKind(12, 2048.0, window=128)], 16)
    assert [table.tables for table in pages.tables] == [1, 1]
    assert pages.block_bytes == 13 * 16 * 2048


def test_a_model_of_states_alone_holds_the_same_at_any_context():
    for pages in (
        shared_pages([LayerKind(64, 0.0, state_bytes=1e6)], 16),
        separate_pages([LayerKind(64, 0.0, state_bytes=1e6)], 1),
    ):
        assert pages.held_bytes(10) == pages.held_bytes(1_000_000) > 0


def test_separate_pools_pad_nothing():
    pages = separate_pages(GPT_OSS_120B, 1)
    assert pages.held_bytes(8192) == 18 * 2048 * (8192 + 128)
    state = separate_pages([LayerKind(10, 1024.0), LayerKind(30, 0.0, state_bytes=1e6)], 1)
    assert state.held_bytes(100) == pytest.approx(10 * 1024 * 100 + 30e6)


def test_nothing_cached():
    assert shared_pages([], 16).held_bytes(100) == 0
    assert shared_pages([LayerKind(3, 0.0)], 16).tables == ()


def test_arrays_and_symbols():
    pages = shared_pages(GPT_OSS_120B, 16)
    contexts = np.array([1, 100, 8192, 131072])
    assert list(pages.held_bytes(contexts)) == [pages.held_bytes(int(c)) for c in contexts]
    context = sympy.Symbol("S", positive=True)
    assert kv_groups.windowed_held_blocks(context, 16, 128).subs(context, 8192) == pytest.approx(9)


@pytest.mark.parametrize("counts", [(1, 5), (10, 52), (18, 18), (12, 13), (3, 9, 12)])
def test_tables_cover_all_layers(counts):
    pages = shared_pages([LayerKind(n, 1000.0, window=w) for w, n in zip((None, 512, 1024), counts, strict=False)], 16)
    layers = kv_groups.layers_per_table(counts)
    assert all(table.tables * layers >= n for table, n in zip(pages.tables, counts, strict=True))
    assert pages.held_bytes(10_000) <= pages.block_bytes * pages.reserved_blocks(10_000, 2048)
