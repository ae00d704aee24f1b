"""Memory formulas against start-up logs, by limits and by their three readings."""

import numpy as np
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from capplan.formulas import activation_memory, memory

GIB = 2.0**30
MIB = 2.0**20
gib = st.floats(0.5, 500)


@pytest.mark.parametrize(
    ("physical", "utilization", "weights", "activation", "other", "measured"),
    [
        (79.19, 0.95, 14.99, 1.89, 0.25, 58.11),  # Llama-3.1-8B, vLLM 0.19, llm-d-planner pull request 205
        (79.19, 0.95, 27.52, 2.23, 0.13, 45.34),  # Qwen3-14B, vLLM 0.17, same
        (79.18, 0.90, 33.88, 4.84, 0.55, 32.00),  # Llama-3.3-70B-FP8 TP2, vLLM 0.11
        (79.18, 0.90, 13.47, 7.38, 0.13, 50.28),  # gpt-oss-20b, vLLM 0.11
    ],
)
def test_vllm_room_is_what_its_log_says(physical, utilization, weights, activation, other, measured):
    room = memory.utilization_room_bytes(physical, utilization, weights, activation, 0.0, other)
    assert room == pytest.approx(measured, abs=0.02)


@given(total=gib, share=st.floats(0.1, 1.0), weights=gib, other=st.floats(0, 5))
def test_sglang_room_is_a_share_of_the_free_memory_less_weights(total, share, weights, other):
    room = memory.static_fraction_room_bytes(total, share, weights, other)
    assert room == pytest.approx(share * (total - other) - weights, abs=1e-9 * (total + weights))


@given(total=gib, share=st.floats(0.1, 1.0), weights=gib, activation=st.floats(0, 5))
def test_trtllm_never_takes_more_than_its_share_and_tells_all_that_is_missing(total, share, weights, activation):
    free = total - weights - activation
    room = memory.free_fraction_room_bytes(total, share, weights, activation, 0.0)
    assert room == pytest.approx(share * free if free > 0 else free, abs=1e-9 * (total + weights))


def test_sglang_keeps_at_least_ten_gib_free_on_large_gpus():
    common = (0.0, 1.5 * MIB, 2 * MIB, 128 * MIB, 3 * MIB)
    assert memory.default_static_fraction(80 * GIB, 2048, 8, 1, 0, *common, 10 * GIB) == pytest.approx(0.875)
    assert memory.default_static_fraction(80 * GIB, 2048, 8, 1, 0, *common, 0.0) > 0.95


@pytest.mark.parametrize(
    ("per_logit", "vocabulary", "hidden", "measured"),
    [
        (38.4, 128256, 4096, 4.76),  # Llama-3.1-8B on vLLM 0.11
        (38.4, 128256, 8192, 4.84),  # 70B
        (38.4, 151936, 5120, 5.64),  # Qwen3-32B; also Qwen3-14B on 0.15
        (38.4, 201088, 2880, 7.38),  # gpt-oss-20b
        (15.0, 128256, 4096, 1.89),  # Llama-3.1-8B on 0.19
        (15.0, 152064, 3584, 2.21),  # Qwen2.5-7B
        (15.0, 151936, 5120, 2.23),  # Qwen3-14B on 0.17 and 0.18
    ],
)
def test_the_vocabulary_sets_the_activation_peak(per_logit, vocabulary, hidden, measured):
    """Seven peaks of two releases, one constant each: the sampler's copies of 1,024 rows of logits."""
    logits = activation_memory.logits_peak_bytes(1024, vocabulary, per_logit)
    peak = activation_memory.activation_peak_bytes(8192, hidden, 0.0, 0.0, logits)
    assert peak / GIB == pytest.approx(measured, rel=0.012)


def test_without_logits_the_layer_sets_it():
    """First of two stages, Llama-3.1-8B on vLLM 0.19: 1.1 GiB (llm-d-planner pull request 205)."""
    layer = activation_memory.layer_peak_bytes(8192, 4096, 14336, 0, 6, 3)
    assert activation_memory.activation_peak_bytes(8192, 4096, layer, 0.0, 0.0) / GIB == pytest.approx(1.1, rel=0.02)


def test_the_expanded_latent_is_divided_by_tensor_parallelism():
    alone = activation_memory.latent_expansion_bytes(65536, 128, 128, 128, 1)
    assert alone == 8 * activation_memory.latent_expansion_bytes(65536, 128, 128, 128, 8) == 4 * GIB


@pytest.mark.parametrize(
    ("pool", "per_token", "tokens"),
    [
        (16.0, 57344, 299_584),  # Qwen2.5-7B, vllm pull request 44594: exact
        (48.66, 253_952, 205_728),  # Qwen3-Coder-480B, 62 layers of 8 KV heads: vllm-project/recipes issue 12
        (7351 * 16 * 524288 / GIB, 524288, 117_616),  # Llama-2-7B on an A100, vllm pull request 2031: 7,351 blocks
    ],
)
def test_tokens_of_a_pool_in_whole_blocks(pool, per_token, tokens):
    assert memory.capacity_tokens(pool * GIB, 16, per_token) == tokens


def test_logged_gib_give_the_logged_tokens():
    """58.11 GiB hold 476,016 tokens of Llama-3.1-8B (fp8: 952,032) to the rounding of the log."""
    assert memory.capacity_tokens(58.11 * GIB, 16, 131072) == pytest.approx(476_016, rel=1e-4)
    assert memory.capacity_tokens(58.11 * GIB, 16, 65536) == pytest.approx(952_032, rel=1e-4)


@given(pool=st.floats(1e6, 1e12), block=st.sampled_from([1, 16, 64, 128]), per_token=st.floats(1e3, 1e6))
def test_blocks_fill_the_pool_but_for_less_than_one(pool, block, per_token):
    blocks = memory.pool_blocks(pool, block, per_token)
    assert blocks == int(blocks)
    exact = pool / (block * per_token)
    assert blocks <= exact * (1 + 2e-9)
    assert exact - blocks < 1


@pytest.mark.parametrize(("length", "concurrency"), [(2068, 399.2), (9472, 93.62)])
def test_gpt_oss_worst_case_reproduces_the_log(length, concurrency):
    """57.24 GiB on one H200, vLLM 0.22: 18 full and 18 sliding layers, block 16 x 36,864 B."""
    block = 16 * 36864
    full = memory.whole_blocks(length, 16)
    sliding = memory.windowed_worst_case_blocks(length, 16, 128, 8192)
    assert 57.24 * GIB / ((full + sliding) * block) == pytest.approx(concurrency, rel=3e-4)


def test_arrays_give_what_floats_give():
    weights = np.array([10.0, 20.0, 90.0])
    for formula, rest in (
        (memory.utilization_room_bytes, (1.0, 0.5, 0.2)),
        (memory.static_fraction_room_bytes, (0.5,)),
        (memory.free_fraction_room_bytes, (1.0, 0.5)),
    ):
        together = formula(80.0, 0.9, weights, *rest)
        assert together == pytest.approx([formula(80.0, 0.9, float(w), *rest) for w in weights])
    contexts = np.array([1, 16, 17, 9472])
    together = memory.windowed_worst_case_blocks(contexts, 16, 128, 8192)
    assert list(together) == [memory.windowed_worst_case_blocks(int(c), 16, 128, 8192) for c in contexts]


def test_symbols_give_the_derivation():
    hbm, share, weights, other = sympy.symbols("M f W O", positive=True)
    room = memory.static_fraction_room_bytes(hbm, share, weights, other)
    assert sympy.simplify(room - (share * (hbm - other) - weights)) == 0
    assert sympy.solve(memory.utilization_room_bytes(hbm, share, weights, 0, 0, other), weights) == [
        hbm * share - other
    ]
    # with u = 1 and nothing kept back all three engines leave the same
    same = memory.free_fraction_room_bytes(hbm, 1, weights, 0, other).subs({hbm: 80, weights: 20, other: 1})
    assert same == memory.static_fraction_room_bytes(80, 1, 20, 1) == memory.utilization_room_bytes(80, 1, 20, 0, 0, 1)
