"""Memory of a rank against start-up logs, field cases, limits and refusals."""

import json
from pathlib import Path

import numpy as np
import pytest

from capplan.cards.hardware_card import load_hardware
from capplan.cards.kv import kv_bytes_per_token
from capplan.cards.model_card import load_model
from capplan.errors import InputError, UnitError, UnknownNameError
from capplan.quantities.chain import Chain
from capplan.serving.layout import Layout
from capplan.serving.memory import memory

GIB = 2.0**30
ROWS = json.loads((Path(__file__).parents[1] / "truth" / "kv_capacity.json").read_text(encoding="utf-8"))["rows"]


def budget_of(model, gpu, layout, engine="vllm", **options):
    return memory(load_model(model), load_hardware(gpu), layout, engine, **options)


def room_gib(budget):
    return (budget.kv_pool_bytes - budget.missing_bytes) / GIB


def budget_of_row(row):
    layout = Layout(tp=row["tp"], pp=row["pp"])
    options = {"weight_dtype": row["weight_dtype"], "gpu_memory_utilization": row["gpu_memory_utilization"]}
    return budget_of(row["model"], row["gpu"], layout, row["engine"], **options)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_start_up_logs_are_reproduced_from_the_config(row):
    """KV memory within 2.5 % (0.1 GiB where it is small or missing), weights within 2 %, peak within 6 %."""
    budget = budget_of_row(row)
    assert room_gib(budget) == pytest.approx(row["kv_gib"], rel=0.025, abs=0.1)
    assert budget.fits is (row["kv_gib"] > 0)
    if row["weights_gib"]:
        assert budget.weights_bytes / GIB == pytest.approx(row["weights_gib"], rel=0.02)
    if row["activation_gib"]:
        assert budget.activation_peak_bytes / GIB == pytest.approx(row["activation_gib"], rel=0.06)


@pytest.mark.parametrize(
    ("config", "engine", "utilization", "measured"),
    [
        ("Qwen__Qwen3-0.6B", "vllm@0.11", 0.90, 64.45),  # llm-d-planner table of vLLM 0.11.0 start-up logs
        ("Qwen__Qwen3-14B", "vllm@0.17", 0.95, 45.34),  # llm-d-planner pull request 205
        ("Qwen__Qwen3-14B", "vllm@0.18", 0.95, 45.23),
    ],
)
def test_a_config_json_is_enough(config, engine, utilization, measured):
    path = str(Path(__file__).parents[1] / "truth" / "model_configs" / f"{config}.json")
    budget = budget_of(path, "h100", Layout(), engine, gpu_memory_utilization=utilization)
    assert budget.kv_pool_bytes / GIB == pytest.approx(measured, rel=0.004)


def test_half_of_the_logs_are_within_two_tenths_of_a_percent():
    errors = sorted(abs(room_gib(budget_of_row(row)) / row["kv_gib"] - 1) for row in ROWS if row["kv_gib"] > 0)
    assert errors[len(errors) // 2] < 0.003


def test_latent_attention_needs_data_parallelism():
    """R1 on 8 H200: the latent is replicated under TP, so TP8 holds 18-21 chains of 32k where DP8/EP8 holds 96-112."""
    tensor = budget_of("deepseek-r1", "h200", Layout(tp=8))
    data = budget_of("deepseek-r1", "h200", Layout(dp=8, ep=8))
    assert 18 <= tensor.instance.max_sequences(32768) <= 21
    assert 96 <= data.instance.max_sequences(32768) <= 112
    assert data.instance.max_sequences(32768) == 8 * data.max_sequences(32768)
    assert tensor.kv_bytes_per_token == data.kv_bytes_per_token == 70_272


def test_dense_models_on_h100():
    assert 51 <= budget_of("llama-3.1-8b", "h100", Layout()).instance.max_sequences(8192) <= 55
    assert 53 <= budget_of("llama-3.1-70b", "h100", Layout(tp=4)).instance.max_sequences(8192) <= 59


@pytest.mark.parametrize("layout", [Layout(tp=8), Layout(dp=8)], ids=str)
def test_r1_does_not_fit_on_eight_gpus_of_80_gb(layout):
    budget = budget_of("deepseek-r1", "h100", layout)
    assert not budget.fits
    assert budget.missing_bytes > 5 * GIB
    assert budget.capacity_tokens == budget.max_sequences(1) == budget.instance.max_sequences(32768) == 0


def test_weights_are_divided_as_engines_divide_them():
    """R1 in fp8: 671e9 elements; under DP8/EP8 attention and embeddings are whole on every GPU."""
    model = load_model("deepseek-r1")
    tensor = budget_of("deepseek-r1", "h200", Layout(tp=8)).weights_bytes
    data = budget_of("deepseek-r1", "h200", Layout(dp=8)).weights_bytes
    replicated = 61 * 7168 * (1536 + 512 + 64) + 58 * 7168 * 256 * 2  # projections to the latents, routers in bf16
    assert tensor == pytest.approx((model.weight_bytes() + 7 * replicated) / 8, rel=1e-3)
    assert data - tensor == pytest.approx(14.6 * GIB, rel=0.02)


def test_redundant_experts_and_draft_layers_take_memory():
    plain = budget_of("deepseek-r1", "h200", Layout(dp=8)).weights_bytes
    redundant = budget_of("deepseek-r1", "h200", Layout(dp=8, redundant_experts=32)).weights_bytes
    assert (redundant - plain) / 58 == pytest.approx(4 * 3 * 7168 * 2048, rel=1e-3)  # four more a GPU and layer
    drafts = budget_of("deepseek-r1", "h200", Layout(dp=8), mtp=1).weights_bytes
    assert drafts > plain + 256 / 8 * 3 * 7168 * 2048


def test_expert_parallelism_and_tensor_parallelism_hold_one_copy_of_the_experts():
    by_tensor = budget_of("qwen3-30b-a3b", "h100", Layout(tp=4)).weights_bytes
    by_expert = budget_of("qwen3-30b-a3b", "h100", Layout(tp=4, ep=4)).weights_bytes
    assert by_tensor == pytest.approx(by_expert, rel=1e-12)


def test_kv_heads_are_replicated_beyond_their_number():
    """Llama-3-70B has 8 KV heads: on 16 GPUs each holds one, as on 8 (vllm issue 50)."""
    on_8, on_16 = (budget_of("llama-3.1-70b", "h100", Layout(tp=tp)).kv_bytes_per_token for tp in (8, 16))
    assert on_8 == on_16 == 327_680 / 8


def test_pipeline_stages_split_layers():
    budget = budget_of("llama-3.1-70b", "h100", Layout(tp=2, pp=4))
    assert budget.kv_bytes_per_token == 327_680 / 2 / 4
    whole = load_model("llama-3.1-70b").weight_bytes()
    assert whole / 8 < budget.weights_bytes < 1.05 * whole / 8  # lm_head is on the last stage alone


def test_decode_context_parallelism_divides_the_latent():
    plain = budget_of("deepseek-r1", "h200", Layout(tp=8))
    split = budget_of("deepseek-r1", "h200", Layout(tp=8, dcp=8))
    assert split.kv_bytes_per_token == plain.kv_bytes_per_token / 8
    assert split.max_sequences(32768) == pytest.approx(8 * plain.max_sequences(32768), rel=0.05)


@pytest.mark.parametrize(("length", "concurrency"), [(2068, 399.2), (9472, 93.62)])
def test_sliding_windows_worst_case_and_real_capacity(length, concurrency):
    """gpt-oss-120b, 57.24 GiB on one H200 (inferencex-profiling): the logged concurrency is a worst case; really
    the pool holds about 200 requests of 8.1k tokens."""
    budget = budget_of("gpt-oss-120b", "h200", Layout(), "vllm@0.22", kv_pool_gib=57.24)
    assert budget.worst_case_sequences(length) == pytest.approx(concurrency, rel=3e-4)
    assert budget.capacity_tokens is None
    assert 195 <= budget.max_sequences(8200) <= 210


def test_windows_or_unified_pages_are_a_choice():
    """gpt-oss-20b, 32 sequences of 8,192: 6.09 GiB windowed, 12.00 GiB unified (hf-mem issue 70).

    A window begins anywhere in a page, which takes one page more than hf-mem counts.
    """
    windowed = budget_of("gpt-oss-20b", "h100", Layout())
    unified = budget_of("gpt-oss-20b", "h100", Layout(), unified_pages=True)
    assert 32 * windowed.held_bytes(8192) / GIB == pytest.approx(6.09, abs=0.005)
    assert 32 * windowed.kv_bytes(8192) / GIB == pytest.approx(6.09 + 32 * 12 * 16 * 2048 / GIB, abs=0.005)
    assert 32 * unified.kv_bytes(8192) / GIB == pytest.approx(12.0)
    assert unified.capacity_tokens is not None


def test_a_pool_of_16_gib():
    """Qwen2.5-7B capped at 16 GiB: 299,584 tokens (vllm pull request 44594)."""
    budget = budget_of("qwen2.5-7b", "h100", Layout(), kv_pool_gib=16)
    assert budget.capacity_tokens == 299_584
    assert budget.max_sequences(6000) == 299_584 // 16 // 375


def test_the_number_of_blocks_wins():
    """Llama-2-7B, 7,351 blocks on an 80 GB A100: 117,616 tokens, 57.4 GiB (vllm pull request 2031)."""
    budget = budget_of("llama-2-7b", "a100", Layout(), num_gpu_blocks=7351, kv_pool_gib=1)
    assert budget.capacity_tokens == 117_616
    assert budget.kv_pool_bytes / GIB == pytest.approx(57.43, abs=0.01)


def test_blocks_of_a_windowed_model_span_one_kind_of_layers():
    budget = budget_of("gpt-oss-120b", "h200", Layout(), num_gpu_blocks=1000)
    assert budget.block_bytes == 16 * 36_864
    assert budget.kv_pool_bytes == 1000 * 16 * 36_864


def test_overrides_are_marked_in_the_chain_and_by_unit():
    chain = Chain({"weights_bytes": 20 * GIB}, record=True)
    budget = memory(load_model("llama-3.1-8b"), load_hardware("h100"), Layout(), "vllm", chain, graph_bytes="1GiB")
    assert budget.weights_bytes == 20 * GIB
    assert budget.graph_bytes == GIB
    assert chain.used_overrides == {"weights_bytes", "graph_bytes"}
    assert chain.links["graph_bytes"].overridden
    assert list(chain.links["kv_room_bytes"].inputs) == [
        "hbm_bytes",
        "memory_fraction",
        "weights_bytes",
        "activation_peak_bytes",
        "graph_bytes",
        "other_bytes",
    ]


def test_the_chain_ends_in_the_answer():
    chain = Chain(record=True)
    budget = memory(load_model("llama-3.1-8b"), load_hardware("h100"), Layout(), "vllm", chain)
    assert chain.links["kv_capacity_tokens"].value == budget.capacity_tokens
    assert chain.links["weights_bytes"].value == budget.weights_bytes
    assert not chain.overrides


def test_assumptions_name_the_version_and_what_nobody_measured():
    newest = budget_of("llama-3.1-8b", "h100", Layout()).assumptions
    assert newest[0] == "engine vllm, versions 0.21 and later"
    assert any(text.startswith("graph_bytes") for text in newest)
    assert budget_of("llama-3.1-8b", "h100", Layout(), "vllm@0.19").assumptions == (
        "engine vllm, versions 0.17 until before 0.21",
    )


def test_fewer_sequences_or_more_of_the_memory_leave_more_room():
    plain = budget_of("llama-3.1-8b", "h100", Layout())
    assert budget_of("llama-3.1-8b", "h100", Layout(), max_num_seqs=64).kv_pool_bytes > plain.kv_pool_bytes
    more = budget_of("llama-3.1-8b", "h100", Layout(), gpu_memory_utilization=0.95)
    assert more.kv_pool_bytes - plain.kv_pool_bytes == pytest.approx(0.03 * plain.hbm_bytes)


def test_element_types_of_the_cache():
    bf16 = budget_of("llama-3.1-8b", "h100", Layout())
    fp8 = budget_of("llama-3.1-8b", "h100", Layout(), kv_dtype="fp8")
    assert bf16.kv_bytes_per_token == 2 * fp8.kv_bytes_per_token == kv_bytes_per_token(load_model("llama-3.1-8b"))
    packed = budget_of("deepseek-v3", "h200", Layout(dp=8), kv_dtype="fp8_ds_mla")
    assert packed.kv_bytes_per_token == 40_016


def test_expanded_latent_attention_is_71_times_as_large():
    """llama.cpp and the like store DeepSeek-V3 expanded: 4.99 MB a token against 70 KB."""
    expanded = budget_of("deepseek-v3", "mi355x", Layout(dp=8), expand_mla=True)
    assert expanded.kv_bytes_per_token == 4_997_120


@pytest.mark.parametrize("engine", ["vllm", "vllm@0.11", "sglang", "tensorrt-llm", "none"])
def test_every_engine_leaves_less_than_the_gpu_has(engine):
    budget = budget_of("llama-3.1-70b", "h200", Layout(tp=2), engine)
    assert 0 < budget.kv_pool_bytes < budget.hbm_bytes - budget.weights_bytes + 1
    assert budget.max_sequences(8192) * 8192 <= budget.capacity_tokens


def test_sglang_takes_its_own_share_or_the_given_one():
    chain = Chain(record=True)
    memory(load_model("llama-3.1-8b"), load_hardware("h100"), Layout(), "sglang", chain)
    assert chain.links["mem_fraction_static"].value == pytest.approx(0.835, abs=0.002)  # printed for one H100
    given = budget_of("llama-3.1-8b", "h100", Layout(), "sglang", mem_fraction_static=0.9)
    assert given.kv_pool_bytes == pytest.approx(0.9 * (given.hbm_bytes - given.other_bytes) - given.weights_bytes)


def test_contexts_may_be_arrays():
    for model in ("llama-3.1-8b", "gpt-oss-20b"):
        budget = budget_of(model, "h100", Layout())
        contexts = np.array([1, 1000, 8192, 100_000])
        one_by_one = [budget.max_sequences(int(context)) for context in contexts]
        assert list(budget.max_sequences(contexts)) == one_by_one
        assert one_by_one == sorted(one_by_one, reverse=True)


@pytest.mark.parametrize("context", [0, -1, float("nan"), float("inf"), True, "8k", np.array([1.0, -1.0])])
def test_contexts_without_tokens_are_refused(context):
    with pytest.raises(InputError, match="above zero"):
        budget_of("llama-3.1-8b", "h100", Layout()).max_sequences(context)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"kv_pool_gb": 3}, UnknownNameError, "kv_pool_gib"),
        ({"kv_pool_gib": -1}, UnitError, "zero or more"),
        ({"kv_pool_gib": float("nan")}, UnitError, "kv_pool_gib"),
        ({"weights_bytes": "60"}, UnitError, "no unit"),
        ({"gpu_memory_utilization": 1.2}, InputError, "at most 1"),
        ({"mem_fraction_static": 0.8}, InputError, "no part in the memory of engine 'vllm'"),
        ({"kv_dtype": "fp7"}, UnknownNameError, "fp7"),
        ({"weight_dtype": "fp7"}, UnknownNameError, "fp7"),
    ],
)
def test_bad_options_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        budget_of("llama-3.1-8b", "h100", Layout(), **options)


def test_layouts_no_engine_starts_are_refused():
    model, hardware = load_model("llama-3.1-70b"), load_hardware("h100")
    for layout, named in ((Layout(tp=3), r"layout\.tp"), (Layout(pp=81), r"layout\.pp")):
        for answer in (memory, decode_step_of):
            with pytest.raises(InputError, match=named):
                answer(model, hardware, layout)


def decode_step_of(model, hardware, layout):
    from capplan import decode_step

    return decode_step(model, hardware, layout, 8, 1024)


def test_a_given_pool_needs_room_beside_the_weights():
    budget = memory(load_model("llama-3.1-70b"), load_hardware("h100"), Layout(), kv_pool_gib=30)
    assert not budget.fits
    assert budget.missing_bytes > 80 * 2**30


@pytest.mark.parametrize(
    ("kv_dtype", "layout", "bytes_per_token"),
    [
        ("fp8", "fp8_ds_mla", 61 * (656 + 132)),
        ("fp8_e4m3", "fp8_ds_mla", 61 * (656 + 132)),
        ("fp8_ds_mla", "fp8_ds_mla", 61 * (656 + 132)),
        ("bf16", "bf16_fp8_index", 61 * (1152 + 132)),
        (None, "bf16_fp8_index", 61 * (1152 + 132)),
    ],
)
def test_vllm_stores_sparse_latents_in_its_own_layouts(kv_dtype, layout, bytes_per_token):
    """``DeepseekV32ForCausalLM.verify_and_update_config``: fp8 is fp8_ds_mla; index keys are 132 bytes in any case."""
    budget = budget_of("deepseek-v3.2", "h200", Layout(tp=8), kv_dtype=kv_dtype)
    assert budget.kv_bytes_per_token == bytes_per_token
    assert f"KV cache stored as {layout} (layout of vllm)" in budget.assumptions
    if kv_dtype == "fp8":
        assert budget.capacity_tokens == 977_184


def test_other_latents_and_other_engines_keep_the_type_asked_for():
    dense = budget_of("deepseek-r1", "h200", Layout(tp=8), kv_dtype="fp8")
    assert dense.kv_bytes_per_token == 61 * 576
    assert not any("stored as" in assumption for assumption in dense.assumptions)
    assert budget_of("deepseek-v3.2", "h200", Layout(tp=8), "none").kv_bytes_per_token == 61 * 2 * (576 + 128)
    assert kv_bytes_per_token(load_model("deepseek-v3.2"), "bf16") == 85_888
