"""KV bytes of whole models: cases from public issue trackers, sharding, bad input."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from capplan.cards.kv import kv_bytes, kv_bytes_per_rank, kv_bytes_per_token, kv_chain
from capplan.cards.kv_summary import attention_summary
from capplan.cards.model_card import load_model, model_from_card
from capplan.cards.store import card_root
from capplan.errors import InputError, UnknownNameError

GIB = 2**30
CONFIGS = Path(__file__).parent.parent / "truth" / "model_configs"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama-3.1-8b", 131_072),
        ("llama-3.1-70b", 327_680),
        ("llama-3.1-405b", 516_096),
        ("qwen2.5-72b", 327_680),
        ("qwen2.5-7b", 57_344),  # vLLM issue 44594: 16 GiB hold 299,584 tokens
        ("qwen3-4b", 147_456),  # LMCache issue 688
        ("qwen3-8b", 147_456),
        ("qwen3-32b", 262_144),
        ("qwen3-30b-a3b", 98_304),
        ("qwq-32b", 262_144),
        ("llama-2-7b", 524_288),
        ("deepseek-v3", 70_272),
        ("deepseek-r1", 70_272),
        ("gpt-oss-20b", 49_152),  # Model-Optimizer issue 2482
        ("gpt-oss-120b", 73_728),  # hf-mem issue 60
    ],
)
def test_bytes_per_token_of_shipped_cards(name, expected):
    assert kv_bytes_per_token(load_model(name)) == expected


def test_r1_holds_575_point_7_megabytes_at_8k():
    assert kv_bytes(load_model("r1"), 8192) == pytest.approx(575.7e6, rel=1e-4)


def test_latent_and_expanded_cache_of_deepseek_v3_at_64k():
    # gguf-parser-go issue 8: the latent in f16 is 4.29 GiB; an engine that expands it needs hundreds.
    model = load_model("deepseek-v3")
    assert kv_bytes(model, 65_536, "fp16") / GIB == pytest.approx(4.29, abs=0.005)
    assert kv_bytes_per_token(model, expand_mla=True) == 4_997_120
    assert kv_bytes(model, 65_536, expand_mla=True) / kv_bytes(model, 65_536) == pytest.approx(71.1, abs=0.05)


def test_engine_layout_of_the_latent():
    # mlx-vlm issue 1284.
    assert kv_bytes_per_token(load_model("deepseek-v3"), "fp8_ds_mla") == 40_016
    assert kv_bytes(load_model("deepseek-v3"), 1000, "fp8_ds_mla") == 40_016_000


def test_windowed_and_unified_pages_of_gpt_oss_20b():
    # hf-mem issue 70: 32 sequences of 8,192 tokens.
    model = load_model("gpt-oss-20b")
    assert 32 * kv_bytes(model, 8192) / GIB == pytest.approx(6.09, abs=0.005)
    assert 32 * kv_bytes(model, 8192, unified_pages=True) / GIB == 12.00


def test_worst_case_tokens_of_gpt_oss_120b_in_a_pool():
    # hf-mem issue 60: 5.38 GiB hold about 78,384 tokens where every layer gets pages.
    assert 5.38 * GIB / kv_bytes_per_token(load_model("gpt-oss-120b")) == pytest.approx(78_384, rel=1e-3)


def test_a_window_leaves_only_the_full_layers_growing():
    model = load_model("gpt-oss-120b")
    assert kv_bytes(model, 10_001) - kv_bytes(model, 10_000) == 36_864
    assert kv_bytes(model, 128) == 128 * 73_728


@pytest.mark.parametrize(("kv_dtype", "factor"), [("fp16", 1), ("fp8", 0.5), ("int8", 0.5), ("fp32", 2)])
@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-r1", "gpt-oss-120b"])
def test_element_types_scale_everything(name, kv_dtype, factor):
    model = load_model(name)
    assert kv_bytes(model, 5000, kv_dtype) == factor * kv_bytes(model, 5000)


def test_none_is_the_type_the_checkpoint_declares():
    declared = load_model(CONFIGS / "nvidia__Llama-3.1-70B-Instruct-FP8.json")
    assert declared.kv_dtype == "fp8"
    assert kv_bytes_per_token(declared, None) == 163_840
    assert kv_bytes_per_token(load_model("llama-3.1-70b"), None) == 327_680


def test_the_multi_token_prediction_layer_caches_as_one_more():
    model = load_model("deepseek-v3")
    assert kv_bytes_per_token(model, mtp=True) == 62 * 1152
    assert kv_bytes_per_token(load_model("qwen3-32b"), mtp=True) == kv_bytes_per_token(load_model("qwen3-32b"))


def test_arrays_and_symbols_give_what_numbers_give():
    model = load_model("gpt-oss-20b")
    contexts = np.array([0, 1, 127, 128, 129, 8192, 131_072])
    assert kv_bytes(model, contexts).tolist() == [kv_bytes(model, int(context)) for context in contexts]
    context = sympy.Symbol("context", positive=True)
    assert float(kv_bytes(model, context).subs(context, 8192)) == kv_bytes(model, 8192)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_longer_sequence_never_holds_less(context, more):
    model = load_model("gpt-oss-20b")
    assert kv_bytes(model, context + more) >= kv_bytes(model, context)
    assert kv_bytes(model, context) <= kv_bytes(model, context, unified_pages=True)


def test_heads_are_copied_once_ranks_outnumber_them():
    # vLLM issue 50: Llama-3-70B on 32 GPUs, factor 8 and not 32.
    model = load_model("llama-3.1-70b")
    whole = kv_bytes(model, 4096)
    assert [whole / kv_bytes_per_rank(model, 4096, tp=tp) for tp in (1, 2, 4, 8, 16, 32)] == [1, 2, 4, 8, 8, 8]


def test_every_rank_holds_the_whole_latent_unless_context_is_split():
    # vLLM issue 51454.
    model = load_model("deepseek-r1")
    whole = kv_bytes(model, 4096)
    assert kv_bytes_per_rank(model, 4096, tp=8) == whole
    assert kv_bytes_per_rank(model, 4096, tp=8, dcp=4) == whole / 4
    assert kv_bytes_per_rank(model, 4096, tp=8, pp=4) == pytest.approx(whole * 16 / 61)


def test_context_is_split_only_over_copies():
    model = load_model("qwen3-235b-a22b")  # 4 KV heads
    assert kv_bytes_per_rank(model, 4096, tp=8, dcp=2) == kv_bytes(model, 4096) / 8
    with pytest.raises(InputError, match=r"layout\.dcp: 4 exceeds the copies"):
        kv_bytes_per_rank(model, 4096, tp=8, dcp=4)


@given(st.integers(1, 64), st.integers(1, 8))
def test_ranks_together_hold_at_least_the_whole(tp, pp):
    for name in ("llama-3.1-8b", "deepseek-r1", "gpt-oss-20b"):
        model = load_model(name)
        assert tp * pp * kv_bytes_per_rank(model, 3000, tp=tp, pp=pp) >= kv_bytes(model, 3000) * (1 - 1e-12)


@pytest.mark.parametrize(
    "context", [-1, float("nan"), float("inf"), "8k", None, True, np.array([1.0, np.nan]), np.array(["8k"])]
)
def test_a_context_that_is_no_token_count_is_refused(context):
    with pytest.raises(InputError, match=r"context: .*must be a finite number of tokens"):
        kv_bytes(load_model("llama-3.1-8b"), context)
    with pytest.raises(InputError, match="context"):
        load_model("llama-3.1-8b").flops_per_token(context)


@pytest.mark.parametrize("sizes", [{"tp": 0}, {"pp": -1}, {"dcp": 1.5}, {"tp": True}])
def test_a_layout_that_is_none_is_refused(sizes):
    with pytest.raises(InputError, match=rf"layout\.{next(iter(sizes))}: .* must be a whole number"):
        kv_bytes_per_rank(load_model("llama-3.1-8b"), 1000, **sizes)


def test_an_unknown_type_gets_the_nearest_name():
    with pytest.raises(UnknownNameError, match="kv_dtype: unknown KV cache type or layout 'fp8_e4m2'; did you mean"):
        kv_bytes_per_token(load_model("llama-3.1-8b"), "fp8_e4m2")


def test_a_layout_of_the_latent_needs_one():
    with pytest.raises(InputError, match="kv_dtype: 'fp8_ds_mla' is a layout of latent attention"):
        kv_bytes_per_token(load_model("llama-3.1-8b"), "fp8_ds_mla")


@pytest.mark.parametrize("kv_dtype", ["bf16", "fp8", None])
@pytest.mark.parametrize("name", ["llama-2-7b", "deepseek-r1", "gpt-oss-20b"])
def test_the_chain_ends_in_the_number(name, kv_dtype):
    model = load_model(name)
    links = kv_chain(model, 8192, kv_dtype).links
    assert links["kv_bytes_per_sequence"].value == kv_bytes(model, 8192, kv_dtype)
    assert links["kv_bytes_per_token"].value == kv_bytes_per_token(model, kv_dtype)
    assert list(links)[-1] == "kv_bytes_per_sequence"


def test_the_chain_names_formula_and_inputs():
    link = kv_chain(load_model("deepseek-v3"), 8192, "fp8_ds_mla").links["kv_bytes_per_token_full_layers"]
    assert link.source == "capplan.formulas.kv_cache.mla_fp8_layout_bytes_per_token"
    assert dict(link.inputs) == {"n_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}


def test_an_override_replaces_the_growth_of_the_cache():
    chain = kv_chain(load_model("deepseek-r1"), 1000, overrides={"kv_bytes_per_token": 100.0})
    assert chain.links["kv_bytes_per_sequence"].value == 100_000
    assert chain.links["kv_bytes_per_token"].overridden
    with pytest.raises(UnknownNameError, match=r"override\.kv_bytes_per_tokn: unknown quantity"):
        kv_chain(load_model("deepseek-r1"), 1000, overrides={"kv_bytes_per_tokn": 1.0})


def test_layers_of_several_windows_have_a_chain_too():
    data = json.loads((card_root() / "models" / "gpt-oss-20b.json").read_text())
    data["layers"].append(copy.deepcopy(data["layers"][0]))
    data["layers"][-1]["attention"]["window"]["value"] = 512
    model = model_from_card(data)
    assert kv_chain(model, 8192).links["kv_bytes_per_sequence"].value == kv_bytes(model, 8192)
    assert attention_summary(model) == "GQA 8 x 64, 12 of 36 layers slide over 128, 12 of 36 layers slide over 512"


@pytest.mark.parametrize(
    ("name", "summary"),
    [
        ("deepseek-r1", "MLA 512+64"),
        ("llama-2-7b", "MHA 32 x 128"),
        ("llama-3.1-8b", "GQA 8 x 128"),
        ("gpt-oss-120b", "GQA 8 x 64, 18 of 36 layers slide over 128"),
    ],
)
def test_attention_in_a_few_words(name, summary):
    assert attention_summary(load_model(name)) == summary


def test_sixteen_bit_latents_beside_eight_bit_index_keys():
    """61 layers of 576 elements in 2 bytes and an index key of 128 bytes with one fp32 scale."""
    model = load_model("deepseek-v3.2")
    assert kv_bytes_per_token(model, "bf16_fp8_index") == 61 * (2 * 576 + 128 + 4) == 78_324
    assert kv_chain(model, 8192, "bf16_fp8_index").links["kv_bytes_per_sequence"].value == 8192 * 78_324
    with pytest.raises(InputError, match="layout of latent attention"):
        kv_bytes_per_token(load_model("llama-3.1-8b"), "bf16_fp8_index")
