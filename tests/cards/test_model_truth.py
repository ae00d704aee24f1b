"""Imported configs against parameters, bytes and operations counted elsewhere, to the last one.

``tests/truth/model_truth.json``: the transformers classes on the meta device and their cache tensors; the configs and
where they come from: ``tests/truth/model_configs/SOURCES.tsv``.
"""

import json
from pathlib import Path

import pytest

from capplan.cards.kv import kv_bytes, kv_bytes_per_token
from capplan.cards.model_card import load_model

TRUTH = Path(__file__).parent.parent / "truth"
DOCUMENT = json.loads((TRUTH / "model_truth.json").read_text())
MODELS = DOCUMENT["models"]
PART_NAMES = {"dense_mlp": "dense_feed_forward"}


def imported(name):
    return load_model(TRUTH / "model_configs" / MODELS[name]["config"])


@pytest.mark.parametrize("name", MODELS)
def test_parameters(name):
    model, truth = imported(name), MODELS[name]
    assert model.parameters_total == truth["parameters_total"]
    assert model.parameters_active == truth["parameters_active"]
    assert model.matmul_parameters_active == truth["matmul_parameters_active"]
    assert model.parameters_by_part == {PART_NAMES.get(part, part): n for part, n in truth["split"].items()}
    assert model.tied_embeddings == truth["tied"]


@pytest.mark.parametrize("name", MODELS)
def test_sixteen_bit_weights(name):
    assert imported(name).weight_bytes("bf16") == MODELS[name]["weight_bytes_bf16"]


@pytest.mark.parametrize("name", MODELS)
def test_kv_bytes(name):
    model, kv = imported(name), MODELS[name]["kv_bytes_per_token_bf16"]
    assert kv_bytes_per_token(model) == kv["all_layers_short_context"]
    windows = kv.get("window", [])
    beyond = 2 * max(windows, default=1)
    growth = kv_bytes(model, beyond + 1) - kv_bytes(model, beyond)
    assert growth == kv["unbounded_layers"]


@pytest.mark.parametrize("name", MODELS)
def test_operations_of_one_token(name):
    model, truth = imported(name), MODELS[name]
    assert model.flops_per_token(0) == truth["linear_flops_per_token"]
    for expanded in (False, True):
        suffix = ("_expanded" if expanded else "_absorbed") if model.layers[0].attention.kind == "mla" else ""
        per_context = sum(g["layers"] * g[f"flops_per_ctx_token_per_layer{suffix}"] for g in truth["attention_flops"])
        assert model.flops_per_token(1, expanded=expanded) - model.flops_per_token(0) == per_context


def test_fp8_blocks_of_deepseek_v3():
    model, truth = imported("deepseek-ai__DeepSeek-V3"), MODELS["deepseek-ai__DeepSeek-V3"]
    assert model.weight_bytes() == truth["weight_bytes_fp8_block"] == model.weight_bytes("fp8_block")
    assert model.mtp_parameters == truth["mtp_parameters"]
    # The files on the hub hold 688.59 GB, copies of embedding and lm_head for the MTP layer included.
    assert model.weight_bytes(mtp=True) == pytest.approx(688.59e9, rel=5e-5)


@pytest.mark.parametrize("name", DOCUMENT["gpt_oss_mxfp4_weight_bytes"])
def test_mxfp4_checkpoints_of_gpt_oss(name):
    model = load_model(TRUTH / "model_configs" / f"{name}.json")
    assert model.weight_bytes() == DOCUMENT["gpt_oss_mxfp4_weight_bytes"][name]


def test_fp8_checkpoint_of_qwen3_32b():
    model = imported("Qwen__Qwen3-32B-FP8")
    # Projections in fp8 with one fp32 scale per 128 x 128, embedding, lm_head and norms in bf16.
    eight_bit = 6_039_797_760 + 25_165_824_000
    assert model.weight_bytes() == eight_bit * (1 + 4 / 128**2) + 2 * (2 * 777_912_320 + 676_864)
