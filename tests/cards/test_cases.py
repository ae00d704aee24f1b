"""What people who do this job asked or got wrong, reduced to numbers: KV caches and capacity.

Every case names the public thread it is from. Arithmetic is exact; bands say how far a source rounds.
"""

from pathlib import Path

import pytest

from capplan.cards.hardware_card import load_hardware
from capplan.cards.huggingface import import_config
from capplan.cards.kv import kv_bytes, kv_bytes_per_rank, kv_bytes_per_token
from capplan.cards.model_card import load_model
from capplan.serving.layout import Layout
from capplan.serving.memory import memory

CONFIGS = Path(__file__).parent.parent / "truth" / "model_configs"
CARD_CONFIGS = CONFIGS.with_name("card_configs")
KIB, MIB, GIB = 2**10, 2**20, 2**30


def config(name):
    for folder in (CONFIGS, CARD_CONFIGS):
        if (path := folder / f"{name}.json").is_file():
            return load_model(path)
    raise FileNotFoundError(name)


def test_a_head_width_of_its_own():
    """LMCache issue 688: 147,456 B a token of Qwen3-4B, not the 92,160 of hidden_size / heads."""
    assert kv_bytes_per_token(config("Qwen__Qwen3-4B")) == 147_456
    assert kv_bytes_per_token(config("deepseek-ai__DeepSeek-V3")) == 70_272


def test_a_head_width_of_its_own_again():
    """Model-Optimizer issue 2482: Mistral-Small-24B 163,840 and not 204,800; gpt-oss-20b 49,152 and not 34,560."""
    mistral = {
        "model_type": "mistral", "architectures": ["MistralForCausalLM"], "hidden_size": 5120, "vocab_size": 131_072,
        "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 32_768, "max_position_embeddings": 32_768, "sliding_window": None,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }  # fmt: skip
    assert kv_bytes_per_token(import_config(mistral)) == 163_840
    assert kv_bytes_per_token(config("openai__gpt-oss-20b")) == 49_152


def test_grouped_heads():
    """vllm issue 14350: R1-Distill-Qwen-1.5B takes 28,672 B a token; 2 x layers x hidden x 2 is six times as much."""
    assert kv_bytes_per_token(config("deepseek-ai__DeepSeek-R1-Distill-Qwen-1.5B")) == 28_672


def test_latent_or_expanded():
    """gguf-parser-go issue 8: DeepSeek-V3 at 65,536 tokens: 4.29 GiB of latent; llama.cpp expanded it to 305."""
    model = config("deepseek-ai__DeepSeek-V3")
    assert kv_bytes(model, 65_536) / GIB == pytest.approx(4.289, abs=5e-4)
    assert kv_bytes(model, 65_536, expand_mla=True) / GIB == 305.0


def test_layout_of_engines_for_latents():
    """mlx-vlm issue 1284: 512 B in fp8, 16 B of scales, 128 B of rope: 656 B a token and layer."""
    v2, v3 = config("deepseek-ai__DeepSeek-V2"), config("deepseek-ai__DeepSeek-V3")
    assert kv_bytes_per_token(v2, "fp8_ds_mla") == 60 * 656 == pytest.approx(38.4 * KIB, rel=1e-3)
    assert kv_bytes_per_token(v2) == 67.5 * KIB
    assert kv_bytes_per_token(v3, "fp8_ds_mla") == 40_016


def test_worst_case_of_an_engine_with_windows():
    """hf-mem issue 60: gpt-oss-120b, 5.38 GiB hold about 78,384 tokens of one sequence as vLLM reserves them."""
    model = config("openai__gpt-oss-120b")
    assert kv_bytes_per_token(model) == 73_728
    budget = memory(model, load_hardware("h100"), Layout(), kv_pool_gib=5.38, max_num_batched_tokens=131_072)
    assert 78_384 * budget.worst_case_sequences(78_384) == pytest.approx(78_384, rel=2e-3)
    unified = memory(model, load_hardware("h100"), Layout(), kv_pool_gib=5.38, unified_pages=True)
    assert unified.capacity_tokens == pytest.approx(78_384, rel=1e-3)


def test_windows_and_unified_pages():
    """hf-mem issue 70: gpt-oss-20b, 32 sequences of 8,192: 6.09 GiB windowed, 12.00 in unified pages."""
    model = config("openai__gpt-oss-20b")
    assert 32 * kv_bytes(model, 8192) / GIB == pytest.approx(6.09, abs=5e-3)
    assert 32 * kv_bytes(model, 8192, unified_pages=True) / GIB == 12.0


def test_five_windows_to_one_full_layer():
    """mlxcel issue 172: Gemma-3-1B at 32,768 takes 139 MiB, not 832; Gemma-3-27B 10.4 GiB at 128k, not 62."""
    small, large = config("google__gemma-3-1b-it"), config("google__gemma-3-27b-it")
    assert kv_bytes(small, 32_768) / MIB == 139.0
    assert kv_bytes(small, 32_768, unified_pages=True) / MIB == 832.0
    for context, windowed, full in ((8, 1.03, 3.9), (32, 2.91, 15.5), (128, 10.4, 62.0)):
        assert kv_bytes(large, context * 1024) / GIB == pytest.approx(windowed, abs=0.05)
        assert kv_bytes(large, context * 1024, unified_pages=True) / GIB == pytest.approx(full, abs=0.05)


def test_full_layers_of_another_geometry():
    """ollama issue 16958: Gemma-4-26B-A4B takes 0.40, 0.48, 0.99, 3.00 GB at 4k, 8k, 32k, 128k: 20,480 B a token."""
    model = config("google__gemma-4-26B-A4B")
    assert kv_bytes(model, 10_001) - kv_bytes(model, 10_000) == 20_480
    for context, gigabytes in ((4, 0.40), (8, 0.48), (32, 0.99), (128, 3.00)):
        held = kv_bytes(model, context * 1024)
        # ollama holds a batch of 512 tokens beside each window.
        assert held < gigabytes * 1e9 < held + 25 * 8192 * 600


def test_attention_in_a_quarter_of_the_layers():
    """A deployment note: Qwen3.8-27B in fp8 takes 32 KiB a token, 302,921 tokens 9.24 GiB; the rest is state."""
    model = config("Qwen__Qwen3.8-27B")
    assert kv_bytes_per_token(model, "fp8") == 32 * KIB
    state = model.state_bytes_per_sequence
    assert (kv_bytes(model, 302_921, "fp8") - state) / GIB == pytest.approx(9.24, abs=5e-3)
    assert state == 48 * (48 * 128 * 128 * 4 + 3 * 10_240 * 2)
    two = memory(model, load_hardware("l40s"), Layout(tp=2), kv_dtype="fp8", kv_pool_gib=4.99)
    assert 131_072 * two.worst_case_sequences(131_072) == pytest.approx(302_921, rel=1e-4)


def test_longest_context_of_a_pool():
    """recipes issue 12: Qwen3-Coder-480B: 262,144 tokens need 62.00 GiB, 48.66 GiB hold 205,728, 55.65 hold 235,296."""
    model = load_model("qwen3-coder")
    assert kv_bytes(model, 262_144) / GIB == 62.0
    for gib, tokens in ((48.66, 205_728), (55.65, 235_296)):
        budget = memory(model, load_hardware("mi355x"), Layout(dp=8), kv_pool_gib=gib)
        assert budget.capacity_tokens == pytest.approx(tokens, rel=1e-4)
    assert memory(model, load_hardware("mi355x"), Layout(dp=8), kv_pool_gib=48.66).capacity_tokens == 205_728


@pytest.mark.parametrize(
    ("name", "layout", "dtype", "gib"),
    [
        ("llama-3.1-8b", Layout(), None, 51.38),
        ("llama-3.3-70b", Layout(tp=2), "fp8", 32.00),
        ("qwen3-32b", Layout(), None, 4.45),
        ("qwen3-32b", Layout(tp=2), None, 34.49),
        ("gpt-oss-20b", Layout(), None, 50.28),
        ("qwen3-0.6b", Layout(), None, 64.45),
    ],
)
def test_pools_on_one_h100(name, layout, dtype, gib):
    """llm-d's table: vLLM 0.11.0, 79.18 GiB, utilization 0.9."""
    options = {"weight_dtype": dtype, "gpu_memory_utilization": 0.9}
    budget = memory(load_model(name), load_hardware("h100"), layout, "vllm@0.11", **options)
    assert budget.kv_pool_bytes / GIB == pytest.approx(gib, rel=0.05)


def test_a_pool_of_a_row_that_contradicts_its_own_header():
    """llm-d's table: 64.38 + 7.38 + 0.13 GiB beside 3.33 for gpt-oss-120b are a utilization of 0.95, not 0.9."""
    options = {"weights_bytes": "64.38GiB", "gpu_memory_utilization": 0.95}
    budget = memory(load_model("gpt-oss-120b"), load_hardware("h100"), Layout(), "vllm@0.11", **options)
    assert budget.kv_pool_bytes / GIB == pytest.approx(3.33, rel=0.05)


def test_a_pool_that_is_not_there():
    """llm-d's table: Llama-3.3-70B in fp8 on one H100: 67.72 GiB of weights, 1.44 missing."""
    options = {"weight_dtype": "fp8", "gpu_memory_utilization": 0.9}
    budget = memory(load_model("llama-3.3-70b"), load_hardware("h100"), Layout(), "vllm@0.11", **options)
    assert not budget.fits
    assert budget.weights_bytes / GIB == pytest.approx(67.72, rel=0.01)
    assert budget.missing_bytes / GIB == pytest.approx(1.44, abs=0.2)


def test_latents_are_replicated_under_tensor_parallelism():
    """recipes issue 762, vllm issue 51454: DeepSeek-V4-Flash on 8 B200: 20.43 of a million tokens, DP8 156.9."""
    model = config("deepseek-ai__DeepSeek-V4-Flash")
    held = []
    for layout in (Layout(tp=8), Layout(dp=8)):
        budget = memory(model, load_hardware("b200"), layout, kv_dtype="fp8", gpu_memory_utilization=0.95)
        held.append(layout.dp * budget.worst_case_sequences(1_048_576))
    assert held[1] / held[0] == pytest.approx(7.7, rel=0.02)
    assert held == pytest.approx([20.43, 156.9], rel=0.1)


def test_more_ranks_than_heads():
    """vllm issue 50: Llama-3-70B with 8 KV heads on 32 devices holds one head a device."""
    model = load_model("llama-3.1-70b")
    assert kv_bytes_per_rank(model, 1, tp=32) == kv_bytes(model, 1) / 8


def test_a_worst_case_is_no_admission_limit():
    """vllm issues 8031, 27017: "4.61x at 8,192" is what sequences of that length would need."""
    model = load_model("llama-3.1-8b")
    budget = memory(model, load_hardware("h100"), Layout(), kv_pool_gib=4.61)
    assert budget.worst_case_sequences(8192) == pytest.approx(4.61, abs=0.01)
    assert budget.max_sequences(1024) >= 36


def test_a_pool_of_16_gib():
    """vllm pull request 44594: Qwen2.5-7B, 57,344 B a token, 16 GiB hold 299,584 tokens in blocks of 16."""
    model = load_model("qwen2.5-7b")
    assert kv_bytes_per_token(model) == 57_344
    assert memory(model, load_hardware("gb200"), Layout(), kv_pool_gib=16).capacity_tokens == 299_584
