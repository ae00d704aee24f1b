"""Imported configs against parameters, bytes and operations counted elsewhere, to the last one.

``tests/truth/model_truth.json``: the transformers classes on the meta device and their cache tensors; the configs and
where they come from: ``tests/truth/model_configs/SOURCES.tsv``. Every config handed over is here: it imports, and every
fact of it is exact or listed in ``APART`` with the reason why the count there is not what a checkpoint holds.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from capplan.cards.kv import kv_bytes, kv_bytes_per_token
from capplan.cards.model_card import load_model

TRUTH = Path(__file__).parent.parent / "truth"
CONFIGS = TRUTH / "model_configs"
DOCUMENT = json.loads((TRUTH / "model_truth.json").read_text())
MODELS = DOCUMENT["models"]
COUNTED = [name for name, truth in MODELS.items() if "kv_groups" in truth]
FILES = sorted(str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("*.json") if "hf_quant" not in path.name)

REFUSED: dict[str, str] = {}
"""Config file to the words of its refusal. None is refused."""

M3 = "its class was built without the indexers of 57 layers; 60 x 128-wide index keys are cached, so they exist"
ZAMBA = "every call of a shared block was counted with the adapters of all its calls; one call uses its own"
COHERE = "norms of queries and keys have two dimensions in the class and were counted as matrices"
GROK = "built as Mixtral with two norms a layer; Grok-1 has four"
LONGCAT = "not counted: experts that do nothing"
APART = {
    ("MiniMaxAI__MiniMax-M3", "parameters_total"): (425_950_417_920 + 57 * (6144 * 640 + 256), M3),
    ("MiniMaxAI__MiniMax-M3", "parameters_active"): (24_509_125_632 + 57 * (6144 * 640 + 256), M3),
    ("MiniMaxAI__MiniMax-M3", "matmul_parameters_active"): (24_508_366_848 + 57 * 6144 * 640, M3),
    ("Zyphra__Zamba2-7B", "matmul_parameters_active"): (11_323_777_024 - 72 * 128 * (3584 + 28672), ZAMBA),
    ("reconstructed/CohereForAI__c4ai-command-r-plus", "matmul_parameters_active"): (
        103_809_875_968 - 64 * (96 + 8) * 128,
        COHERE,
    ),
    ("xai-org__grok-1", "parameters_total"): (316_489_340_928 + 64 * 2 * 6144, GROK),
    ("xai-org__grok-1", "parameters_active"): (83_755_800_576 + 64 * 2 * 6144, GROK),
}
"""Model and fact to what a checkpoint has, and why the count differs."""

PART_NAMES = {
    "dense_mlp": "dense_feed_forward",
    "linear_attention_or_ssm": "recurrence",
    "pos_embedding": "look_ups",
    "per_layer_embedding": "look_ups",
    "cross_attention": "attention",
    "moe_latent_proj": "latent_projections",
}
SPLITS_APART = {
    "MiniMaxAI__MiniMax-M3": M3,
    "Zyphra__Zamba2-7B": "adapters and the norm in front of the mixer belong to no part there",
    "deepseek-ai__DeepSeek-V4-Flash": "hyper-connections were sorted by the name of their neighbour",
    "databricks__dbrx-instruct": "norms of another name",
    "openai-community__gpt2": "its c_attn was taken for a state-space layer",
    "reconstructed/google__gemma-3n-E4B-text": "altup was sorted into router and norms",
    "meta-llama__Llama-3.2-11B-Vision": "norms of cross-attention counted with it",
    "meta-llama__Llama-3.2-90B-Vision": "norms of cross-attention counted with it",
    "xai-org__grok-1": GROK,
}
"""Models whose count by part follows other lines; their totals are exact all the same."""


def imported(name):
    return load_model(CONFIGS / MODELS[name]["config"])


def expected(name, fact):
    """A counted fact, or what a checkpoint has where the count is wrong; None where nothing was counted."""
    return APART[name, fact][0] if (name, fact) in APART else MODELS[name].get(fact)


def test_every_config_is_in_the_truth():
    assert set(FILES) == {truth["config"] for truth in MODELS.values()} | OTHERS


OTHERS = {"Qwen__QwQ-32B.json", "Qwen__Qwen3-8B.json", "openai__gpt-oss-20b.json"}
"""Configs of other tests."""


@pytest.mark.parametrize("file", FILES)
def test_every_config_imports_or_says_why_not(file):
    if file in REFUSED:
        with pytest.raises(ValueError, match=REFUSED[file]):
            load_model(CONFIGS / file)
        return
    model = load_model(CONFIGS / file)
    assert 0 < model.parameters_active <= model.parameters_total
    assert sum(model.parameters_by_part.values()) == model.parameters_total


@pytest.mark.parametrize("fact", ["parameters_total", "parameters_active", "matmul_parameters_active"])
@pytest.mark.parametrize("name", MODELS)
def test_parameters(name, fact):
    if (count := expected(name, fact)) is not None:
        assert getattr(imported(name), fact) == count


@pytest.mark.parametrize("name", MODELS)
def test_tied_embeddings_and_parts(name):
    model, truth = imported(name), MODELS[name]
    assert model.tied_embeddings == truth.get("tied", model.tied_embeddings)
    if "split" not in truth or name in SPLITS_APART:
        return
    parts = {}
    for part, count in truth["split"].items():
        parts[PART_NAMES.get(part, part)] = parts.get(PART_NAMES.get(part, part), 0) + count
    assert model.parameters_by_part == parts


@pytest.mark.parametrize("name", MODELS)
def test_sixteen_bit_weights(name):
    if (count := expected(name, "parameters_total")) is not None:
        assert imported(name).weight_bytes("bf16") == 2 * count


@pytest.mark.parametrize("name", [name for name, truth in MODELS.items() if truth.get("mtp_parameters")])
def test_multi_token_prediction(name):
    model = imported(name)
    assert model.mtp_parameters == MODELS[name]["mtp_parameters"]
    assert model.weight_bytes(mtp=True) > model.weight_bytes()


def held_elements(group, context):
    """Cached elements of one group of layers, by its counted widths."""
    if "ratio" in group:
        entry = group["elems_per_token_avg"] * group["ratio"]
        return group["layers"] * entry * (context // group["ratio"])
    widths = group["elems_per_token_per_layer"]
    per_token = sum(widths) if isinstance(widths, list) else group["layers"] * widths
    return per_token * min(context, group.get("window", math.inf))


@pytest.mark.parametrize("name", COUNTED)
def test_cache_at_any_context(name):
    model, groups = imported(name), MODELS[name]["kv_groups"]
    contexts = [0, 1, 3, 127, 128, 129, 4095, 4096, 8191, 100_000, 1_000_001]
    counted = [2 * sum(held_elements(group, context) for group in groups) for context in contexts]
    held = kv_bytes(model, np.array(contexts)) - model.state_bytes_per_sequence
    assert np.broadcast_to(held, len(contexts)).tolist() == counted


@pytest.mark.parametrize("name", COUNTED)
def test_growth_of_the_cache_at_short_context(name):
    growth = MODELS[name].get("kv_bytes_per_token_bf16", {})
    if (short := growth.get("all_layers_short_context")) is not None:
        assert kv_bytes_per_token(imported(name)) == short


def counted_state(truth):
    """Bytes of the state with fp32 recurrences and 16-bit convolutions."""
    each = [
        g["state_elems_per_seq"] for g in truth.get("kv_groups", []) if isinstance(g.get("state_elems_per_seq"), dict)
    ]
    if each:
        return sum(69 * (4 * state["recurrent"] + 2 * state["conv"]) for state in each)
    return truth.get("state_bytes_per_sequence", 0)


@pytest.mark.parametrize("name", COUNTED)
def test_state_of_a_sequence(name):
    model = imported(name)
    assert model.state_bytes_per_sequence == counted_state(MODELS[name])
    assert kv_bytes(model, 0) == model.state_bytes_per_sequence


@pytest.mark.parametrize("name", [name for name, truth in MODELS.items() if "attention_flops" in truth])
def test_operations_of_one_token(name):
    model, groups = imported(name), MODELS[name]["attention_flops"]
    if (matrices := expected(name, "matmul_parameters_active")) is not None:
        assert model.flops_per_token(0) == 2 * matrices
    extra = 57 * 2 * 4 * 128 if name == "MiniMaxAI__MiniMax-M3" else 0  # indexers; see M3
    for context in (1, 5000, 1_000_000):
        for expanded in (False, True):
            attention = model.flops_per_token(context, expanded=expanded) - model.flops_per_token(0)
            if name == "MiniMaxAI__MiniMax-M3" and context > 1:
                continue
            assert attention == sum(operations(group, context, expanded) for group in groups) + extra


def operations(group, context, expanded):
    """Counted operations of one group of layers."""
    if "per_layer" in group:
        return context * sum(group["per_layer"])
    plain = "flops_per_ctx_token_per_layer"
    suffix = "" if plain in group else "_expanded" if expanded else "_absorbed"
    tokens = min(context, group.get("window", math.inf), group.get("context_cap_topk", math.inf))
    return group["layers"] * group[plain + suffix] * tokens


def test_sparse_attention_of_minimax_m3_reads_whole_blocks():
    """16 blocks of 128 keys and the one before the query: 2,176 tokens in the 57 sparse layers."""
    model = imported("MiniMaxAI__MiniMax-M3")
    one_layer = 2 * 64 * (128 + 128)
    expected_flops = one_layer * (3 * 10_000 + 57 * 2176) + 57 * 2 * 4 * 128 * 10_000
    assert model.flops_per_token(10_000) - model.flops_per_token(0) == expected_flops


def test_compressed_attention_of_deepseek_v4():
    """Window and entries of 512, 21 layers with an entry per 4 tokens of which 512 are read, 20 with one per 128."""
    model, context = imported("deepseek-ai__DeepSeek-V4-Flash"), 100_000
    one = 2 * 64 * (512 + 512)
    read = one * (43 * 128 + 21 * 512 + 20 * (context // 128)) + 21 * 2 * 64 * 128 * (context // 4)
    assert model.flops_per_token(context) - model.flops_per_token(0) == read
    assert kv_bytes_per_token(model) == 44_032 + 6_880


def test_engine_layout_of_sparse_attention():
    """DeepSeek-V3.2: 656 B of latent and 132 B of index key; GLM-5.2: index keys in 21 of 78 layers only."""
    assert kv_bytes_per_token(imported("deepseek-ai__DeepSeek-V3.2"), "fp8_ds_mla") == 61 * (656 + 132) == 48_068
    assert kv_bytes_per_token(imported("deepseek-ai__DeepSeek-V3.2")) == 85_888
    assert kv_bytes_per_token(imported("zai-org__GLM-5.2"), "fp8_ds_mla") == 78 * 656 + 21 * 132


@pytest.mark.parametrize("name", [name for name, truth in MODELS.items() if "weight_bytes_fp8_block" in truth])
def test_fp8_blocks(name):
    truth, model = MODELS[name]["weight_bytes_fp8_block"], imported(name)
    for stored in (model.weight_bytes(), model.weight_bytes("fp8_block")):
        # Which small matrices stay in bf16 differs by a hair: 0.1 % of the file.
        assert stored == pytest.approx(truth, rel=1e-3)


def test_fp8_blocks_of_deepseek_v3():
    model, truth = imported("deepseek-ai__DeepSeek-V3"), MODELS["deepseek-ai__DeepSeek-V3"]
    assert model.weight_bytes() == truth["weight_bytes_fp8_block"] == model.weight_bytes("fp8_block")
    # The files on the hub hold 688.59 GB, copies of embedding and lm_head for the MTP layer included.
    assert model.weight_bytes(mtp=True) == pytest.approx(688.59e9, rel=5e-5)


@pytest.mark.parametrize("name", DOCUMENT["gpt_oss_mxfp4_weight_bytes"])
def test_mxfp4_checkpoints_of_gpt_oss(name):
    model = load_model(CONFIGS / f"{name}.json")
    assert model.weight_bytes() == DOCUMENT["gpt_oss_mxfp4_weight_bytes"][name]


def test_fp8_checkpoint_of_qwen3_32b():
    model = imported("Qwen__Qwen3-32B-FP8")
    # Projections in fp8 with one fp32 scale per 128 x 128, embedding, lm_head and norms in bf16.
    eight_bit = 6_039_797_760 + 25_165_824_000
    assert model.weight_bytes() == eight_bit * (1 + 4 / 128**2) + 2 * (2 * 777_912_320 + 676_864)


def test_mxfp4_checkpoint_of_kimi_k3():
    """The index of the published files counts 1,560,860,324,864 B, the vision tower (about 0.9 GB) included."""
    model = imported("moonshotai__Kimi-K3")
    assert 0 < 1_560_860_324_864 - model.weight_bytes() < 1.1e9
    assert model.parameters_by_part["routed_experts"] == 2_722_740_830_208
