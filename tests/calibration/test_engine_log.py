"""Start-up logs: what is read, on which line, and what the memory budget makes of it.

The files in ``logs/`` and ``examples/vllm-llama-3.1-8b.log`` are excerpts in the engines' formats around published
numbers: pools, tokens, blocks, concurrency, and of vLLM and TensorRT-LLM weights and activation peaks, are those of the
sources named here; the rest of each line (times, processes, memory that was free) is filled in.

- vllm-llama-3.1-8b: llm-d-incubation/llm-d-planner pull request 205 (58.11 GiB, 476,016 tokens).
- vllm-0.11-llama-3.3-70b-fp8-tp2: llm-d-planner docs/empirical-vllm-memory-results.md (weights 33.88 GiB, peak 4.84,
  other 0.55, pool 32.00, graphs -0.42); the second rank is filled in.
- vllm-0.22-gpt-oss-120b: GloriaXimingLu/inferencex-profiling (57.24 GiB, 825,607 tokens, 399.2x of 2,068).
- vllm-0.6-llama-3.1-8b-rtx3090: vllm-project/vllm issue 10517 (14.99 GiB, 3.81 GiB, 1,952 blocks, 1.56x of 20,000).
- sglang-qwen3-235b-fp8: vllm-project/vllm issue 21348 (367,404 tokens, 8.23 + 8.23 GB, mem-fraction-static 0.93, TP4).
- tensorrt-llm-1.1-gpt-oss-120b: a public start-up log of trtllm-serve 1.1.0rc3 on a DGX Spark.
"""

import contextlib
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan import Layout, load_hardware, load_model, memory
from capplan.calibration.engine_log import EngineLog, read_engine_log, tokens_are_capacity
from capplan.calibration.log_comparison import compared, conflicts, engine_for, kv_dtype_of
from capplan.calibration.log_file import MAX_LINE_CHARACTERS, MAX_LINES, MAX_LOG_BYTES
from capplan.calibration.log_patterns import MESSAGES
from capplan.cards.engine_card import load_engine
from capplan.errors import InputError

LOGS = Path(__file__).parent / "logs"
LLAMA = Path(__file__).parents[2] / "examples" / "vllm-llama-3.1-8b.log"
GIB = 2.0**30


@pytest.fixture
def written(tmp_path):
    def write(*lines):
        (path := tmp_path / "engine.log").write_text("\n".join(lines))
        return read_engine_log(path)

    return write


def gib(size):
    return None if size is None else round(size / GIB, 4)


# ---- vLLM ------------------------------------------------------------------------------------------------------------


def test_vllm_v1_with_its_lines():
    log = read_engine_log(LLAMA)
    assert (log.engine, log.version, log.model) == ("vllm", "0.19.0", "meta-llama/Llama-3.1-8B-Instruct")
    assert [gib(size) for size in (log.weights_bytes, log.activation_peak_bytes, log.other_bytes)] == [
        14.99,
        1.89,
        0.25,
    ]
    assert (gib(log.kv_pool_bytes), log.kv_tokens, gib(log.graph_bytes)) == (58.11, 476_016, 0.64)
    assert (log.max_concurrency, log.concurrency_tokens, log.max_model_len) == (58.11, 8192, 8192)
    assert (log.memory_fraction, log.max_num_seqs, log.max_num_batched_tokens) == (0.95, 1024, 8192)
    assert (log.tp, log.pp, log.dp, log.dcp, log.kv_dtype) == (1, 1, 1, 1, "auto")
    assert log.graph_bytes_deducted is None  # captured after the cache was sized, before 0.21
    assert log.lines["kv_pool_bytes"] == 8
    assert log.lines["weights_bytes"] == 6
    assert (log.complete, log.run, log.runs, log.notes, log.contradictions) == (True, 1, 1, (), ())


@pytest.mark.parametrize("context", [2048, 8192, 32_768])
def test_published_capacity_of_llama_reproduces(context):
    """kv-003 to kv-007: 58.11 GiB hold 476,016 tokens, whatever the longest context."""
    log = read_engine_log(LLAMA)
    model, hardware = load_model("llama-3.1-8b"), load_hardware("h100")
    budget = memory(model, hardware, Layout(), "vllm@0.19", **log.overrides(model, hardware))
    assert budget.capacity_tokens == 476_016
    assert budget.max_sequences(context) == 476_016 // 16 // (context // 16)
    # and the cards alone come to the same within what two decimals of a GiB hide
    cards = memory(model, hardware, Layout(), "vllm@0.19", **log.settings())
    assert cards.capacity_tokens == pytest.approx(476_016, rel=2e-3)
    without_tokens = replace(log, kv_tokens=None)
    pool = memory(model, hardware, Layout(), "vllm@0.19", **without_tokens.overrides(model, hardware))
    assert pool.capacity_tokens == pytest.approx(476_016, rel=1e-3)


def test_of_two_ranks_the_smaller_pool_and_the_larger_peak_count():
    log = read_engine_log(LOGS / "vllm-0.11-llama-3.3-70b-fp8-tp2.txt")
    assert (gib(log.kv_pool_bytes), log.lines["kv_pool_bytes"]) == (32.0, 8)
    assert (log.kv_tokens, log.lines["kv_tokens"], log.max_concurrency) == (209_664, 13, 13.10)
    assert (gib(log.activation_peak_bytes), gib(log.other_bytes)) == (4.84, 0.55)
    assert (log.tp, log.block_tokens, log.contradictions) == (2, 128, ())
    assert any("ranks differ in kv_pool_bytes: the smallest, 32.00 GiB (line 8)" in note for note in log.notes)
    model, hardware = load_model("llama-3.3-70b"), load_hardware("h100")
    overrides = log.overrides(model, hardware)
    assert "graph_bytes" not in overrides  # -0.42 GiB is the profiler's noise, and not deducted in 0.11
    budget = memory(model, hardware, Layout(tp=2), "vllm@0.11", weight_dtype="fp8", **overrides)
    assert (budget.capacity_tokens, budget.block_tokens) == (209_664, 128)


def test_tokens_of_another_rank_than_the_pool_printed(written):
    """kv-031: 8.11 GiB would hold 180,928 tokens of Qwen3-235B at TP4; the engine has 178,880."""
    log = written(
        "(VllmWorker rank=0 pid=1) INFO [gpu_worker.py:227] Available KV cache memory: 8.11 GiB",
        "INFO [kv_cache_utils.py:716] GPU KV cache size: 178,880 tokens",
    )
    model = load_model("qwen3-235b-a22b-fp8")
    budget = memory(model, load_hardware("h100"), Layout(tp=4), "vllm@0.10", **log.overrides(model))
    assert budget.capacity_tokens == 178_880
    assert budget.kv_pool_bytes == pytest.approx(8.11 * GIB)
    assert budget.kv_pool_bytes / budget.kv_bytes_per_token == pytest.approx(180_940, abs=5)


def test_hybrid_tokens_are_no_capacity():
    """kv-001: 825,607 tokens are 399.2 sequences of 2,068; 57.24 GiB really hold twice as much."""
    log = read_engine_log(LOGS / "vllm-0.22-gpt-oss-120b.txt")
    model, hardware = load_model("gpt-oss-120b"), load_hardware("h200")
    assert (gib(log.kv_pool_bytes), log.kv_tokens, log.kv_dtype) == (57.24, 825_607, "auto")
    overrides = log.overrides(model, hardware)
    assert "kv_capacity_tokens" not in overrides
    budget = memory(model, hardware, Layout(), "vllm@0.22", **overrides)
    assert budget.capacity_tokens is None
    assert budget.worst_case_sequences(2068) == pytest.approx(399.2, rel=2e-4)
    assert budget.max_sequences(2068) > 700
    assert tokens_are_capacity(model, unified_pages=True)
    assert log.overrides(model, unified_pages=True)["kv_capacity_tokens"] == 825_607


def test_vllm_v0_blocks():
    """kv-044: 1,952 blocks of 16 tokens in 3.81 GiB."""
    log = read_engine_log(LOGS / "vllm-0.6-llama-3.1-8b-rtx3090.txt")
    assert (log.version, log.num_gpu_blocks, log.block_tokens, gib(log.hbm_bytes)) == ("0.6.6", 1952, None, 23.68)
    assert (gib(log.weights_bytes), gib(log.kv_pool_bytes), log.memory_fraction) == (14.9888, 3.81, 0.9)
    model, hardware = load_model("llama-3.1-8b"), load_hardware("l40s")
    budget = memory(model, hardware, Layout(), "vllm@0.6", **log.overrides(model, hardware))
    assert (budget.capacity_tokens, gib(budget.hbm_bytes)) == (31_232, 23.68)
    assert budget.worst_case_sequences(20_000) == pytest.approx(1.56, abs=0.005)
    assert "the GPU of the log has 23.68 GiB" in conflicts(log, model, hardware, Layout(), None, {})[0]


def test_blocks_alone_are_the_pool(written):
    """Llama-2-7B on an A100: 7,351 blocks (vllm-project/vllm pull request 2031)."""
    log = written("INFO 12-11 llm_engine.py:219] # GPU blocks: 7351, # CPU blocks: 512")
    model = load_model("llama-2-7b")
    assert log.overrides(model) == {"num_gpu_blocks": 7351, "kv_capacity_tokens": 117_616}
    budget = memory(model, load_hardware("a100-80g"), Layout(), "vllm@0.6", **log.overrides(model))
    assert budget.kv_pool_bytes == 7351 * 16 * 524_288


def test_blocks_the_user_chose_are_the_pool(written):
    log = written(
        "INFO [gpu_worker.py:436] Available KV cache memory: 8.29 GiB",
        "INFO [kv_cache_utils.py:829] Overriding num_gpu_blocks=0 with num_gpu_blocks_override=512",
        "INFO [kv_cache_utils.py:829] Overriding num_gpu_blocks=4244 with num_gpu_blocks_override=1000",
        "INFO [kv_cache_utils.py:1319] GPU KV cache size: 16,000 tokens",
    )
    model = load_model("llama-3.1-8b")
    assert log.overrides(model) == {"num_gpu_blocks": 1000, "kv_capacity_tokens": 16_000}


def test_vllm_since_0_21_deducts_graphs(written):
    log = written(
        "(EngineCore pid=219) INFO [core.py:107] Initializing a V1 LLM engine (v0.21.0) with config: model='m'",
        "(EngineCore pid=219) INFO [gpu_model_runner.py:6042] Estimated CUDA graph memory: 0.26 GiB total",
        "(EngineCore pid=219) INFO [gpu_worker.py:440] Available KV cache memory: 4.58 GiB",
        "(EngineCore pid=219) INFO [gpu_worker.py:455] CUDA graph memory profiling is enabled (default since v0.21.0).",
        "(EngineCore pid=219) INFO [gpu_model_runner.py:6133] Graph capturing finished in 2 secs, took 0.40 GiB",
    )
    assert (gib(log.graph_bytes), gib(log.graph_bytes_deducted)) == (0.4, 0.26)
    assert gib(log.overrides(load_model("llama-3.1-8b"))["graph_bytes"]) == 0.26
    assert kv_dtype_of(log, load_engine("vllm")) is None


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("INFO Model loading took 14.9888 GB and 28.719376 seconds", {"weights_bytes": 14.9888}),
        ("INFO Loading model weights took 19.3952 GB", {"weights_bytes": 19.3952}),
        (
            "INFO worker.py:232] Memory profiling results: total_gpu_memory=7.92GiB initial_memory_usage=3.09GiB "
            "peak_torch_memory=3.12GiB memory_usage_post_profile=3.12GiB non_torch_memory=0.47GiB "
            "kv_cache_size=3.54GiB gpu_memory_utilization=0.90",
            {"hbm_bytes": 7.92, "other_bytes": 0.47, "kv_pool_bytes": 3.54},
        ),
        (
            "INFO [gpu_worker.py:492] Initial free memory 31.16 GiB, reserved 4.25 GiB memory for KV Cache as "
            "specified by kv_cache_memory_bytes config and skipped memory profiling.",
            {"kv_pool_bytes": 4.25},
        ),
        (
            "(Worker_TP0 pid=123) Free memory on device (264.19/267.69 GiB) on startup. Desired GPU memory utilization "
            "is (0.95, 254.31 GiB). Actual usage is 205.08 GiB for weight, 3.75 GiB for peak activation, 1.63 GiB for "
            "non-torch memory, and 0.14 GiB for CUDAGraph memory. Current kv cache memory in use is 43.85 GiB.",
            {"hbm_bytes": 267.69, "weights_bytes": 205.08, "activation_peak_bytes": 3.75, "other_bytes": 1.63},
        ),
        (
            "Model loading took 19.07 GiB memory and 58.2 seconds. Actual usage is 24.58 GiB for consumed memory "
            "(weights + non-torch), 1.46 GiB for peak activation, and 0.49 GiB for CUDAGraph memory.",
            {"weights_bytes": 19.07, "activation_peak_bytes": 1.46, "other_bytes": 5.51},
        ),
    ],
)
def test_wordings_of_vllm(written, line, found):
    log = written(line)
    assert log.engine == "vllm"
    assert {name: gib(getattr(log, name)) for name in found} == found


# ---- SGLang ----------------------------------------------------------------------------------------------------------


def test_sglang():
    log = read_engine_log(LOGS / "sglang-qwen3-235b-fp8.txt")
    assert (log.engine, log.version, log.tp, log.memory_fraction) == ("sglang", None, 4, 0.93)
    assert (gib(log.kv_pool_bytes), log.kv_tokens) == (16.46, 367_404)  # GB in the log are GiB
    assert (gib(log.free_before_weights_bytes), gib(log.weights_bytes), gib(log.graph_bytes)) == (78.0, 56.0, 0.93)
    model, hardware = load_model("qwen3-235b-a22b-fp8"), load_hardware("h100")
    overrides = log.overrides(model, hardware)
    assert overrides["other_bytes"] == hardware.hbm_bytes - 78 * GIB
    budget = memory(model, hardware, Layout(tp=4), "sglang", **overrides)
    assert budget.capacity_tokens == 367_404
    assert budget.kv_pool_bytes / budget.kv_bytes_per_token == pytest.approx(367_404, rel=1e-3)
    assert "other_bytes" not in log.overrides(model)  # the log does not say how much memory the GPU has


def test_sglang_sliding_windows_have_a_pool_of_their_own(written):
    """MiMo-V2-Flash at TP4: sgl-project/sglang pull request 15464."""
    rank = "[2025-12-19 07:42:57 TP{}] "
    log = written(
        *(
            rank.format(number) + line
            for number in (2, 0, 1)
            for line in (
                "KV Cache is allocated. #tokens: 1496958, K size: 41.76 GB, V size: 27.84 GB",
                "KV Cache is allocated. #tokens: 1496958, K size: 4.82 GB, V size: 3.21 GB",
                "SWAKVPool mem usage: 77.63 GB, swa size: 1496958, full size: 1496958",
                "Memory pool end. avail mem=22.56 GB",
            )
        )
    )
    assert (gib(log.kv_pool_bytes), log.kv_tokens, log.contradictions) == (77.63, 1_496_958, ())
    named = written(
        "[2026-08-13 DP0 TP1] Full KV Cache is allocated. dtype: fp8, #tokens: 100, K size: 20.00 GB, V size: 10.00 GB",
        "[2026-08-13 DP0 TP1] SWA KV Cache is allocated. dtype: fp8, #tokens: 10, KV size: 2.50 GB",
    )
    assert (gib(named.kv_pool_bytes), named.kv_tokens) == (32.5, 100)


def test_sglang_states_are_part_of_the_pool(written):
    log = written(
        "[2026-04-14 16:08:49 TP0] Mamba Cache is allocated. max_mamba_cache_size: 186, conv_state size: 0.10GB, "
        "ssm_state size: 4.38GB ",
        "[2026-04-14 16:08:49 TP0] KV Cache is allocated. #tokens: 327310, K size: 2.50 GB, V size: 2.50 GB",
    )
    assert (gib(log.kv_pool_bytes), log.kv_tokens) == (9.48, 327_310)


def test_sglang_draft_model_is_left_out(written):
    log = written(
        "[2026-08-28 21:19:30] Load weight begin. avail mem=111.97 GB",
        "[2026-08-28 21:32:38] Load weight end. elapsed=787.55 s, type=Qwen4ExpForCausalLM, quant=modelopt_fp4, "
        "avail mem=29.01 GB, mem usage=82.97 GB.",
        "[2026-08-28 21:32:39] Load weight begin. avail mem=28.81 GB",
        "[2026-08-28 21:34:13] Load weight end. elapsed=94.49 s, type=Qwen4ExpForCausalLMMTP, avail mem=30.67 GB, "
        "mem usage=-1.86 GB.",
        "[2026-08-28 21:34:15] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 159552, K size: 1.83 GB, "
        "V size: 1.83 GB",
        "[2026-08-28 21:34:15] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 159552, K size: 0.15 GB, "
        "V size: 0.15 GB",
        "[2026-08-28 21:34:50] Capture target verify CUDA graph end. elapsed=8.8 s, mem usage=0.40 GB, avail mem=26 GB",
        "[2026-08-28 21:34:58] Capture draft decode CUDA graph end. elapsed=4.0 s, mem usage=0.10 GB, avail mem=25 GB",
    )
    assert [gib(size) for size in (log.weights_bytes, log.kv_pool_bytes, log.graph_bytes)] == [82.97, 3.66, 0.5]
    assert gib(log.free_before_weights_bytes) == 111.97
    assert log.notes == (
        "line 4: -1.86 GiB of a draft model left out",
        "line 6: 307.20 MiB of a draft model left out",
    )
    assert log.contradictions == ()


def test_sglang_attention_ranks_are_counted_in_tp(written):
    log = written(
        "server_args=ServerArgs(model_path='deepseek-ai/DeepSeek-V3', tp_size=8, dp_size=4, enable_dp_attention=True)",
        "[2025-10-16 09:06:09 DP1 TP3] KV Cache is allocated. #tokens: 1000, KV size: 0.07 GB",
    )
    assert (log.tp, log.dp) == (2, 4)


# ---- TensorRT-LLM ----------------------------------------------------------------------------------------------------


def test_tensorrt_llm_takes_the_second_pool():
    log = read_engine_log(LOGS / "tensorrt-llm-1.1-gpt-oss-120b.txt")
    assert (log.engine, log.version, log.runs) == ("tensorrt-llm", "1.1.0rc3", 1)
    assert (gib(log.kv_pool_bytes), log.kv_tokens, log.lines["kv_pool_bytes"]) == (5.95, 86_720, 15)
    assert (gib(log.weights_bytes), gib(log.activation_peak_bytes), gib(log.hbm_bytes)) == (63.52, 0.85, 119.7)
    assert log.block_tokens == 32
    # the pool it measured with is no library: 0.9 (119.70 - 63.52 - 0.85 - (49.28 - 0.56)) is the 5.95 it printed
    model, hardware = load_model("gpt-oss-120b"), load_hardware("h200")
    parts = {**log.overrides(model, hardware)}
    parts.pop("kv_pool_bytes")
    budget = memory(model, hardware, Layout(), "tensorrt-llm@1.1", **parts)
    assert budget.kv_pool_bytes / GIB == pytest.approx(5.95, abs=0.005)


def test_tensorrt_llm_compiled_engine(written):
    """Llama-2-7B in FP8: the start-up in the benchmark suite's README of TensorRT-LLM 0.12."""
    log = written(
        "[TensorRT-LLM][INFO] Engine version 0.12.0.dev2024073000 found in the config file, assuming new builder API.",
        "[TensorRT-LLM][INFO] MPI size: 1, MPI local size: 1, rank: 0",
        "[TensorRT-LLM][INFO] Loaded engine size: 6214 MiB",
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 928.77 MiB for execution context memory.",
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 1.14 GB GPU memory for runtime buffers.",
        "[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total: 79.10 GiB, "
        "available: 63.62 GiB",
        "[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 4607",
        "[TensorRT-LLM][INFO] Max KV cache pages per sequence: 65",
        "[TensorRT-LLM][INFO] Number of tokens per block: 64.",
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 62.99 GiB for max tokens in paged KV cache (294848).",
    )
    assert (log.version, log.gpus, log.num_gpu_blocks, log.kv_tokens) == ("0.12.0.dev2024073000", 1, 4607, 294_848)
    assert (gib(log.weights_bytes), gib(log.hbm_bytes), gib(log.kv_pool_bytes)) == (6.0684, 79.1, 62.99)
    assert log.num_gpu_blocks * log.block_tokens == log.kv_tokens


# ---- several start-ups, contradictions -------------------------------------------------------------------------------

START = "(EngineCore_DP0 pid={}) INFO [core.py:77] Initializing a V1 LLM engine (v{}) with config: model='m', tp=1"
POOL = "(EngineCore_DP0 pid=9) INFO [gpu_worker.py:298] Available KV cache memory: {} GiB"


def test_the_last_complete_start_up_counts(written):
    log = written(
        START.format(1, "0.10.2"),
        POOL.format("10.00"),
        START.format(2, "0.11.0"),
        POOL.format("20.00"),
        START.format(3, "0.11.1"),
        "(EngineCore_DP0 pid=3) INFO Model loading took 14.99 GiB and 3 seconds",
        "(EngineCore_DP0 pid=3) ERROR CUDA out of memory",
    )
    assert (gib(log.kv_pool_bytes), log.version, log.weights_bytes, log.run, log.runs) == (20.0, "0.11.0", None, 2, 3)
    assert log.notes == ("3 start-ups in the file: the last complete one, from line 3, counts",)
    assert log.contradictions == ()


def test_a_start_up_that_failed_is_told(written):
    log = written(START.format(3, "0.11.1"), "(EngineCore_DP0 pid=3) INFO Model loading took 14.99 GiB and 3 seconds")
    assert not log.complete
    assert log.notes == ("the start-up did not come as far as its KV cache",)


def test_ranks_of_data_parallel_engines_are_one_start_up(written):
    log = written(
        START.format(1, "0.11.0"),
        START.format(2, "0.11.0").replace("DP0", "DP1"),
        POOL.format("10.00"),
        POOL.format("8.00").replace("DP0", "DP1"),
    )
    assert (log.runs, gib(log.kv_pool_bytes), log.lines["kv_pool_bytes"]) == (1, 8.0, 4)
    assert log.contradictions == ()


def test_a_contradiction_is_told_and_never_averaged(written):
    log = written(POOL.format("10.00"), "INFO Model loading took 14.99 GiB and 3 s", POOL.format("12.00"))
    assert gib(log.kv_pool_bytes) == 10.0
    assert log.contradictions == (
        "the log contradicts itself in kv_pool_bytes: 10.00 GiB (line 1) and 12.00 GiB (line 3); the smallest counts",
    )
    twice = written("INFO Using max model len 2048", "INFO Using max model len 4096", POOL.format("10.00"))
    assert twice.max_model_len == 2048
    assert "2,048 (line 1) and 4,096 (line 2); the first counts" in twice.contradictions[0]


def test_two_engines_in_one_start_up_are_refused(written):
    with pytest.raises(InputError, match=r"vllm \(line 1\) and sglang \(line 2\)"):
        written(POOL.format("10.00"), "[TP0] KV Cache is allocated. #tokens: 100, KV size: 1.00 GB")


# ---- the command line and the cards ----------------------------------------------------------------------------------


def test_a_log_of_something_else_is_told():
    log = read_engine_log(LOGS / "vllm-0.11-llama-3.3-70b-fp8-tp2.txt")
    hardware, layout = load_hardware("h100"), Layout(tp=4)
    told = conflicts(log, load_model("llama-3.1-8b"), hardware, layout, "fp8", {"gpu_memory_utilization": 0.5})
    assert [line.partition(":")[0] for line in told] == ["line 3", "line 3", "line 3", "gpu_memory_utilization"]
    assert "not" not in told[0]
    assert "tp 2, the command line 4" in told[1]
    assert "KV cache in auto (bf16), the command line fp8" in told[2]
    assert conflicts(log, load_model("llama-3.3-70b"), hardware, Layout(tp=2), None, {}) == []


def test_the_engine_of_the_log_and_the_one_asked_for():
    log = read_engine_log(LOGS / "vllm-0.11-llama-3.3-70b-fp8-tp2.txt")
    assert engine_for(log, None) == "vllm@0.11.0"
    assert engine_for(log, "vllm") == "vllm@0.11.0"
    assert engine_for(log, "vllm@0.12") == "vllm@0.12"  # the same range of versions
    with pytest.raises(InputError, match=r"--engine: 'vllm@0.19' .* line 3 .* says 0\.11\.0"):
        engine_for(log, "vllm@0.19")
    with pytest.raises(InputError, match=r"--engine: 'sglang' but .* is a log of vllm"):
        engine_for(log, "sglang")
    unknown = replace(log, version="0.1.dev8168")
    with pytest.raises(InputError, match=r"line 3: no range of vllm holds version .* --engine vllm@"):
        engine_for(unknown, None)
    assert engine_for(unknown, "vllm@0.11") == "vllm@0.11"


def test_kv_types_in_the_words_of_engines():
    log = read_engine_log(LOGS / "sglang-qwen3-235b-fp8.txt")
    sglang = load_engine("sglang")
    for theirs, ours in (("fp8_e4m3", "fp8"), ("auto", None), ("bfloat16", "bf16"), ("fp8_e5m2", "fp8_e5m2")):
        assert kv_dtype_of(replace(log, kv_dtype=theirs), sglang) == ours
    with pytest.raises(InputError, match="line 1: KV cache of unknown type 'fp4_e2m1'; give --kv-dtype"):
        kv_dtype_of(replace(log, kv_dtype="fp4_e2m1"), sglang)


def test_logged_beside_computed():
    log = read_engine_log(LLAMA)
    model, hardware = load_model("llama-3.1-8b"), load_hardware("h100")
    cards = memory(model, hardware, Layout(), "vllm@0.19", **log.settings())
    final = memory(model, hardware, Layout(), "vllm@0.19", **log.overrides(model, hardware))
    rows = {row.name: row for row in compared(log, model, cards, final)}
    assert rows["weights_bytes"].difference == pytest.approx(cards.weights_bytes / (14.99 * GIB) - 1)
    assert abs(rows["kv_pool_bytes"].difference) < 0.01
    assert abs(rows["logged_pool_capacity_tokens"].difference) < 1e-3
    assert rows["graph_bytes"].computed is None
    assert rows["kv_pool_bytes"].row()[:2] == ["KV pool", "58.11 GiB"]
    assert "hbm_bytes" not in rows


def test_an_engine_that_did_not_start_does_not_fit(written):
    """kv-051: gpt-oss-120b on one H100, 2.14 GiB missing (vllm-project/vllm issue 23278)."""
    log = written("INFO Model loading took 65.97 GiB and 9 seconds", POOL.format("-2.14"))
    model = load_model("gpt-oss-120b")
    budget = memory(model, load_hardware("h100"), Layout(), "vllm@0.10", **log.overrides(model))
    assert not budget.fits
    assert budget.missing_bytes == pytest.approx(2.14 * GIB)


# ---- prefixes, hostile files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "\x1b[1;36m(EngineCore_0 pid=123)\x1b[0;0m INFO [gpu_worker.py:276] Available KV cache memory: 1,058.11 GiB",
        "2026-05-14 12:43:20 | (EngineCore pid=219) INFO [gpu_worker.py:440] Available KV cache memory: 1058.11 GiB",
        '{"log":"INFO [gpu_worker.py:440] Available KV cache memory: 1058.11 GiB\\n","stream":"stderr"}',
        "Capturing: 100%|██| 3/3 [00:00<00:00]\rINFO [gpu_worker.py:440] Available KV cache memory: 1058.11 GiB\r",
        "(RayWorkerWrapper pid=7, ip=192.168.1.3) INFO Available KV cache memory: 1058.11 GiB [repeated 7x]",
    ],
)
def test_prefixes_do_not_hurt(written, line):
    assert gib(written(line).kv_pool_bytes) == 1058.11


@pytest.mark.parametrize(
    "line",
    [
        "INFO Available KV cache memory: many GiB",
        "INFO Available KV cache memory: 58,1 1 GiB",
        "INFO GPU KV cache size: -12 tokens",
        "[TP0] KV Cache is allocated. #tokens: 12, K size: nan GB, V size: 1 GB",
        "[TensorRT-LLM][INFO] Number of tokens per block: 0.",
        "INFO the current vLLM instance can use total_gpu_memory (0.00GiB) x",
        "INFO can use x gpu_memory_utilization (1.50) = 3GiB",
        f"INFO Available KV cache memory: {'9' * 29} GiB",
        "INFO # GPU blocks: ???, # CPU blocks: 12",
        "INFO non-default args: {'tensor_parallel_size': 0}",
        "INFO non-default args: {'max_num_seqs': lots}",
        "[TP0] Load weight end. type=LlamaForCausalLM, avail mem=9 GB, mem usage=-1.86 GB.",
    ],
)
def test_a_line_that_is_half_understood_is_named(written, line):
    with pytest.raises(InputError, match=r"engine\.log: line 2: "):
        written("INFO hello", line)


def test_source_code_in_a_traceback_is_no_message(written):
    log = written(
        '    logger.info("Available KV cache memory: %s GiB", format_gib(size))',
        '    logger.info(f"Available KV cache memory: {size} GiB")',
        POOL.format("3.00"),
    )
    assert gib(log.kv_pool_bytes) == 3.0


def test_nothing_known_says_what_was_looked_for(written):
    with pytest.raises(InputError, match=r"engine\.log: nothing in it is known; looked for .*vLLM.*SGLang.*TensorRT"):
        written("hello", "INFO vLLM API server version 0.11.0")
    with pytest.raises(InputError, match="nothing in it is known"):
        written("")


def test_files_that_are_no_log(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_engine_log(tmp_path / "missing.log")
    with pytest.raises(InputError, match="is a folder"):
        read_engine_log(tmp_path)
    (path := tmp_path / "engine.log").write_bytes(b"\x7fELF\0\0\0")
    with pytest.raises(InputError, match="null bytes"):
        read_engine_log(path)
    path.write_text(POOL.format("1.00"), encoding="utf-16")
    with pytest.raises(InputError, match="null bytes"):
        read_engine_log(path)
    with path.open("wb") as stream:
        stream.truncate(MAX_LOG_BYTES + 1)
    with pytest.raises(InputError, match="larger than 32 MB, cut the start-up"):
        read_engine_log(path)
    path.write_text("\n" * MAX_LINES)
    with pytest.raises(InputError, match="more than 400,000 lines"):
        read_engine_log(path)
    path.write_text("x" * (MAX_LINE_CHARACTERS + 1))
    with pytest.raises(InputError, match="a line of 500,001 characters"):
        read_engine_log(path)
    path.write_text((POOL.format("1.00") + "\n") * 30_000)
    with pytest.raises(InputError, match="more than 20,000 messages"):
        read_engine_log(path)


def test_hostile_lines_are_read_in_bounded_time(tmp_path):
    path, started = tmp_path / "engine.log", time.process_time()
    lines = [
        "Available KV cache memory: " + "1" * 400_000,
        "Load weight end. " + "avail mem=" * 40_000,
        "server_args=ServerArgs(" + "model_path='" * 40_000,
        "(" * 400_000 + "GPU KV cache size: 1 tokens",
        "[" * 400_000 + "TP0] Mamba Cache is allocated. " + "0" * 1000,
    ]
    for line in lines:
        path.write_text(line)
        with contextlib.suppress(InputError):
            read_engine_log(path)
    assert time.process_time() - started < 3.0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([one.anchor for one in MESSAGES]), st.text("0123456789.,-# GiBxX('):=", max_size=40)),
        max_size=6,
    )
)
def test_whatever_follows_the_words_is_read_or_refused(tmp_path_factory, pieces):
    path = tmp_path_factory.mktemp("logs") / "engine.log"
    path.write_text("\n".join(anchor + rest for anchor, rest in pieces))
    with contextlib.suppress(InputError):
        log = read_engine_log(path)
        assert isinstance(log, EngineLog)
        assert log.found().keys() <= log.lines.keys()
