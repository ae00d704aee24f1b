"""Every published KV capacity: tokens from a stated GiB within 0.1 %, pool GiB from the config within 5 %.

Rows that state too little are listed with what is missing. ``tests/truth/kv_capacity_rows.json`` holds them all;
``tests/truth/kv_capacity.json`` has those whose memory budget is checked part by part in ``test_memory.py``.
"""

import json
from pathlib import Path

import pytest

from capplan.cards.hardware_card import load_hardware
from capplan.cards.kv import kv_bytes_per_token
from capplan.cards.model_card import load_model
from capplan.serving.layout import Layout
from capplan.serving.memory import memory

TRUTH = Path(__file__).parents[1] / "truth"
ROWS = {row["id"]: row for row in json.loads((TRUTH / "kv_capacity_rows.json").read_text())["rows"]}
BUDGETS = {row["id"] for row in json.loads((TRUTH / "kv_capacity.json").read_text())["rows"]}
GIB = 2.0**30
PRINTED = 0.005
"""Pools are printed with two decimals [GiB]."""

DEFINITIONS = {"dsp-001": "deepseek-v3", "dsp-002": "qwen2.5-72b", "dsp-003": "llama-3.1-405b"}

TOKENS = {
    **{f"kv-{n:03}": ("llama-3.1-8b", {}) for n in (3, 4, 5, 6, 7)},
    "kv-008": ("llama-3.1-8b", {"kv_dtype": "fp8"}),
    "kv-009": ("llama-3.1-8b", {"kv_dtype": "fp32"}),
    "kv-044": ("llama-3.1-8b", {}),
    "kv-067": ("qwen2.5-7b", {}),
}
"""Rows with a pool in GiB and its tokens: model, options."""

POOLS = {
    **dict.fromkeys(("kv-003", "kv-004", "kv-005", "kv-006", "kv-007"), ("llama-3.1-8b", "vllm@0.19", {})),
    "kv-008": ("llama-3.1-8b", "vllm@0.19", {"kv_dtype": "fp8"}),
    "kv-009": ("llama-3.1-8b", "vllm@0.19", {"kv_dtype": "fp32", "weights_bytes": "29.98GiB"}),
    "kv-016": ("qwen2.5-7b", "vllm@0.19", {"kv_dtype": "fp8"}),
    "kv-020": ("qwen3-14b", "vllm@0.17", {}),
    "kv-021": ("qwen3-14b", "vllm@0.18", {}),
    "kv-036": ("llama-2-7b", "vllm@0.6", {}),  # the oldest constants there are
}
"""Rows with everything a budget needs: model, engine, options."""

NOT_ENOUGH = {
    "vllmblog-002": "34 GB free after weights, by a share of the memory that is not stated",
    "kv-031": "no version of the engine; 178,880 tokens take 8.02 GiB, not the 8.11 printed by another rank",
    "kv-037": "two versions of the engine, neither named, print 25.5 and 38.6 GiB",
    "kv-039": "memory of the RTX A6000 and the longest context not stated",
    "kv-040": "memory of the RTX A6000 and the longest context not stated",
    "kv-041": "memory of the RTX A6000 and the longest context not stated",
    "kv-042": "memory of the RTX A6000 and the longest context not stated",
    "kv-045": "memory of the RTX 3090 not stated; 2.89 GiB for 1,478 blocks is rounded by more than 0.1 %",
    "kv-050": "1.71 GiB are 2 % of the GPU: what the formula leaves is 0.13 GiB more, version of the engine inferred",
    "kv-053": "memory and activations of the RTX 5090 not stated; tokens from its GiB: test_kv_pages.py",
    "kv-054": "memory and activations of the RTX 3090 not stated; tokens from its GiB: test_kv_pages.py",
    "kv-055": "size of the model not stated",
    "kv-057": "type of the cache and memory of the GPU not stated",
    "kv-058": "neither pool is stated; the ratio to kv-059: tests/cards/test_cases.py",
    "kv-059": "neither pool is stated; the ratio to kv-058: tests/cards/test_cases.py",
    "kv-060": "150,000 tokens is a round number",
    "kv-061": "3.53 million tokens is a round number",
    "kv-062": "types of weights and cache not stated",
    "kv-066": "number of GPUs and types not stated",
    "kv-069": "a desktop GPU with 0.4 GiB in use by something else: 5.48 GiB from its memory, 5.05 printed",
}


def model_of(name):
    if name == "qwen3-14b":
        return load_model(TRUTH / "model_configs" / "Qwen__Qwen3-14B.json")
    return load_model(name)


def printed_tokens(measured):
    return next(measured[key][0] for key in ("kv_tokens", "kv_tokens_derived") if key in measured)


def printed_gib(row):
    measured = row["measured"]
    if "available_kv_memory" in measured:
        return measured["available_kv_memory"][0]
    if "gpu_blocks" in measured:
        return 16 * measured["gpu_blocks"][0] * 524_288 / GIB
    return printed_tokens(measured) * 28_672 / GIB


def test_every_row_is_checked_or_says_what_is_missing():
    checked = DEFINITIONS.keys() | TOKENS.keys() | POOLS.keys() | BUDGETS
    assert ROWS.keys() <= checked | NOT_ENOUGH.keys()
    assert not checked & NOT_ENOUGH.keys()


@pytest.mark.parametrize("row", DEFINITIONS)
def test_bytes_of_a_token_that_a_paper_states(row):
    kilobytes = ROWS[row]["measured"]["kv_per_token"][0]
    assert kv_bytes_per_token(load_model(DEFINITIONS[row])) == pytest.approx(1000 * kilobytes, abs=1e-6)


@pytest.mark.parametrize("row", TOKENS)
def test_tokens_from_a_stated_pool(row):
    name, options = TOKENS[row]
    measured = ROWS[row]["measured"]
    gib = measured["available_kv_memory"][0]
    budget = memory(load_model(name), load_hardware("h100"), Layout(), kv_pool_gib=gib, **options)
    tokens = 16 * measured["gpu_blocks"][0] if "gpu_blocks" in measured else measured["kv_tokens"][0]
    assert budget.capacity_tokens == pytest.approx(tokens, rel=max(1e-3, PRINTED / gib))


@pytest.mark.parametrize("row", POOLS)
def test_pool_from_a_config(row):
    name, engine, options = POOLS[row]
    gpu = {"H100": "h100", "A100-80GB": "a100-80g"}[ROWS[row]["gpu"]]
    share = ROWS[row]["gpu_memory_utilization"]
    budget = memory(model_of(name), load_hardware(gpu), Layout(), engine, gpu_memory_utilization=share, **options)
    assert budget.kv_pool_bytes / GIB == pytest.approx(printed_gib(ROWS[row]), rel=0.05)
