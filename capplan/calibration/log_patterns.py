r"""What engines print at start-up: one pattern a message, with the unit each number is printed in.

A pattern has an ``anchor``, the fixed words that start the message, and what must follow. A line that has the words
but not the numbers is an error of the log, never passed over. Group names say what a number is and its unit:
``weights_gib``, ``tokens``, ``share``; groups with a number behind them are added up. SGLang and TensorRT-LLM print
GiB and call it GB (both divide by ``1 << 30``); so did vLLM before 0.8.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

EngineName = Literal["vllm", "sglang", "tensorrt-llm"]

_N = r"-?(?:\d{1,3}(?:,\d{3}){1,9}(?:\.\d{1,30})?|\d{0,30}\.?\d{1,30})"
"""A number, with thousands separators or without."""
_GIB, _MIB = 2.0**30, 2.0**20

GROUPS: dict[str, tuple[str, float]] = {
    "weights_gib": ("weights_bytes", _GIB),
    "weights_mib": ("weights_bytes", _MIB),
    "activation_gib": ("activation_peak_bytes", _GIB),
    "other_gib": ("other_bytes", _GIB),
    "consumed_gib": ("consumed_bytes", _GIB),
    "graphs_gib": ("graph_bytes", _GIB),
    "graphs_estimated_gib": ("graph_bytes_deducted", _GIB),
    "pool_gib": ("kv_pool_bytes", _GIB),
    "temporary_pool_gib": ("temporary_pool_bytes", _GIB),
    "window_pool_gib": ("window_pool_bytes", _GIB),
    "whole_pool_gib": ("whole_pool_bytes", _GIB),
    "state_gib": ("state_pool_bytes", _GIB),
    "before_weights_gib": ("free_before_weights_bytes", _GIB),
    "total_gib": ("hbm_bytes", _GIB),
    "tokens": ("kv_tokens", 1.0),
    "blocks": ("num_gpu_blocks", 1.0),
    "blocks_override": ("num_gpu_blocks_override", 1.0),
    "block_tokens": ("block_tokens", 1.0),
    "concurrency": ("max_concurrency", 1.0),
    "concurrency_tokens": ("concurrency_tokens", 1.0),
    "max_model_len": ("max_model_len", 1.0),
    "max_num_batched_tokens": ("max_num_batched_tokens", 1.0),
    "max_num_seqs": ("max_num_seqs", 1.0),
    "share": ("memory_fraction", 1.0),
    "gpus": ("gpus", 1.0),
}
"""Group of a pattern -> what it is, and the factor to its base unit."""

SIGNED = frozenset({"kv_pool_bytes", "graph_bytes", "graph_bytes_deducted", "other_bytes", "weights_bytes"})
"""Differences of what was free before and after: noise, a draft model that shares weights, a pool that is missing."""

COUNTS = frozenset(
    {"block_tokens", "concurrency_tokens", "max_model_len", "max_num_batched_tokens", "max_num_seqs", "gpus", "tp",
     "pp", "dp", "dcp"}
)  # fmt: skip
"""Whole numbers of 1 and more."""

WORDS = {"version": "version", "profiled": "graph_profiling"}
"""Groups that are text."""


@dataclass(frozen=True)
class Message:
    """One message of an engine: ``anchor`` finds it, ``pattern`` reads it from the anchor on.

    ``starts`` marks the first message of a start-up; ``settings`` a line of ``name=value`` pairs. Where two messages
    say the same the lower ``priority`` counts. ``not_after`` are words before the anchor that make it another message.
    """

    engine: EngineName
    anchor: str
    pattern: re.Pattern[str]
    starts: bool = False
    settings: bool = False
    priority: int = 0
    not_after: tuple[str, ...] = ()


def _message(engine: EngineName, anchor: str, rest: str = "", **more: object) -> Message:
    return Message(engine, anchor, re.compile(re.escape(anchor) + rest.replace("<N>", _N)), **more)  # type: ignore[arg-type]


_VLLM = (
    _message("vllm", "LLM engine (v", r"(?P<version>[^)\s]+)\)", starts=True, settings=True),
    _message("vllm", "vLLM API server version ", r"v?(?P<version>\d\S*)", starts=True, priority=1),
    _message("vllm", "█  version ", r"v?(?P<version>\d\S*)", starts=True, priority=1),
    _message("vllm", "non-default args: {", settings=True, priority=1),
    _message("vllm", "args: Namespace(", settings=True, priority=1),
    _message("vllm", "Model loading took ", r"(?:(?P<weights_gib><N>) (?:GiB|GB)|<N> s)"),
    _message("vllm", "Loading model weights took ", r"(?P<weights_gib><N>) (?:GiB|GB)"),
    _message("vllm", "model weights take ", r"(?P<weights_gib><N>)\s*GiB", priority=1),
    _message("vllm", "non_torch_memory takes ", r"(?P<other_gib><N>)\s*GiB"),
    _message("vllm", "PyTorch activation peak memory takes ", r"(?P<activation_gib><N>)\s*GiB"),
    _message("vllm", "the memory reserved for KV Cache is ", r"(?P<pool_gib><N>)\s*GiB"),
    _message("vllm", "can use total_gpu_memory (", r"(?P<total_gib><N>)\s*GiB\)"),
    _message("vllm", "x gpu_memory_utilization (", r"(?P<share><N>)\)"),
    # 0.6.3 and 0.6.4 print all parts in one line
    _message("vllm", " total_gpu_memory=", r"(?P<total_gib><N>)GiB"),
    _message("vllm", "iB non_torch_memory=", r"(?P<other_gib><N>)GiB"),
    _message("vllm", "GiB kv_cache_size=", r"(?P<pool_gib><N>)GiB"),
    _message("vllm", "GiB gpu_memory_utilization=", r"(?P<share><N>)"),
    *(
        _message("vllm", f"# {device} blocks: ", r"(?P<blocks>\d+)")
        for device in ("GPU", "CUDA", "cuda", "ROCM", "rocm", "HPU", "hpu")
    ),
    _message("vllm", "Available KV cache memory: ", r"(?P<pool_gib><N>) GiB"),
    _message("vllm", "Initial free memory ", r"<N> GiB, reserved (?P<pool_gib><N>) GiB memory for KV Cache"),
    _message("vllm", "GPU KV cache size: ", r"(?P<tokens>[\d,]+) tokens"),
    _message(
        "vllm", "Maximum concurrency for ", r"(?P<concurrency_tokens>[\d,]+) tokens.{0,20}: (?P<concurrency><N>)x"
    ),
    # the profiling of CUDA graphs sets no blocks for a moment and overrides them
    _message(
        "vllm",
        "Overriding num_gpu_blocks=",
        r"(?:0 with|\d+ with num_gpu_blocks_override=(?P<blocks_override>\d+))",
    ),
    _message("vllm", "Graph capturing finished in ", r"<N> secs?(?:, took (?P<graphs_gib><N>) GiB)?"),
    _message("vllm", "Estimated CUDA graph memory: ", r"(?P<graphs_estimated_gib><N>) GiB"),
    _message("vllm", "CUDA graph memory profiling is ", r"(?P<profiled>enabled|disabled)"),
    _message("vllm", "; Requested memory: ", r"(?P<share><N>) \(util\)", priority=1),
    _message("vllm", "Desired GPU memory utilization is (", r"(?P<share><N>),", priority=1),
    _message("vllm", "Free memory on device", r"(?: \S+)? \(<N>/(?P<total_gib><N>) GiB\)"),
    _message(
        "vllm",
        "Total non KV cache memory: ",
        r"<N>\s*GiB; torch peak memory increase: (?P<activation_gib><N>)\s*GiB; "
        r"non-torch forward increase memory: (?P<other_gib><N>)\s*GiB(?:; weights memory: (?P<weights_gib><N>)\s*GiB)?",
        priority=1,
    ),
    _message(
        "vllm",
        ". Actual usage is ",
        r"(?:(?P<weights_gib><N>) GiB for weights?|(?P<consumed_gib><N>) GiB for consumed memory[^,]{0,60}), "
        r"(?P<activation_gib><N>) GiB for peak activation(?:, (?P<other_gib><N>) GiB for non-torch memory)?",
        priority=2,
    ),
    _message("vllm", "is enabled with max_num_batched_tokens=", r"(?P<max_num_batched_tokens>\d+)"),
    _message("vllm", "Forcing kv cache block size to ", r"(?P<block_tokens>\d+)"),
    _message("vllm", "Using max model len ", r"(?P<max_model_len>\d+)", priority=1),
)

_SGLANG = (
    _message("sglang", "server_args=ServerArgs(", starts=True, settings=True),
    _message("sglang", "server_args={", starts=True, settings=True),
    _message("sglang", "Load weight begin. avail mem=", r"(?P<before_weights_gib><N>) GB"),
    _message("sglang", "Load weight end. ", r".{0,400}?avail mem=<N> GB(?:, mem usage=(?P<weights_gib><N>) GB)?"),
    _message(
        "sglang",
        "KV Cache is allocated.",
        r"(?: dtype: [\w.]+,)?(?: #tokens: (?P<tokens>\d+),)?"
        r" (?:KV size: (?P<pool_gib_1><N>)|K size: (?P<pool_gib_2><N>) GB, V size: (?P<pool_gib_3><N>)) GB",
        priority=1,
        not_after=("SWA ",),
    ),
    _message(
        "sglang",
        "SWA KV Cache is allocated.",
        r".{0,80}? (?:KV size: (?P<window_pool_gib_1><N>)"
        r"|K size: (?P<window_pool_gib_2><N>) GB, V size: (?P<window_pool_gib_3><N>)) GB",
    ),
    _message("sglang", "SWAKVPool mem usage: ", r"(?P<whole_pool_gib><N>) GB"),
    _message(
        "sglang",
        "Mamba Cache is allocated. ",
        r"max_mamba_cache_size: \d+, conv_state size: (?P<state_gib_1><N>) ?GB"
        r", ssm_state size: (?P<state_gib_2><N>) ?GB"
        r"(?:,? intermediate_ssm_state_cache size: (?P<state_gib_3><N>) ?GB)?"
        r"(?:,? intermediate_conv_window_cache size: (?P<state_gib_4><N>) ?GB)?",
    ),
    *(
        _message("sglang", f"{words} graph end. ", r"(?:.{0,120}?mem usage=(?P<graphs_gib><N>) GB)?")
        for words in ("cuda", "CUDA")
    ),
    _message(
        "sglang",
        "max_total_num_tokens=",
        r"(?:None|(?P<tokens>\d+))(?:, chunked_prefill_size=-?\d+)?(?:, max_prefill_tokens=\d+)?"
        r"(?:, max_running_requests=(?P<max_num_seqs>\d+))?(?:, context_len=(?P<max_model_len>\d+))?",
        not_after=("_", "> ", "EFFECTIVE "),
    ),
)

_TENSORRT = (
    _message("tensorrt-llm", "TensorRT-LLM version: ", r"(?P<version>\d\S*)", starts=True),
    _message("tensorrt-llm", "[INFO] Engine version ", r"(?P<version>\d\S*)", priority=1),
    _message("tensorrt-llm", "[INFO] MPI size: ", r"(?P<gpus>\d+)"),
    _message("tensorrt-llm", "PyTorchConfig(", settings=True, priority=1),
    _message("tensorrt-llm", "[INFO] Loaded engine size: ", r"(?P<weights_mib><N>) MiB"),
    _message("tensorrt-llm", "[I] Use ", r"(?:(?P<weights_gib><N>) GB for model weights)?", priority=1),
    _message(
        "tensorrt-llm",
        "Memory used after loading model weights (inside torch) in memory usage profiling: ",
        r"(?P<weights_gib><N>) GiB",
    ),
    _message(
        "tensorrt-llm",
        "Memory dynamically allocated during inference (inside torch) in memory usage profiling: ",
        r"(?P<activation_gib><N>) GiB",
    ),
    _message(
        "tensorrt-llm",
        "Memory used outside torch (e.g., NCCL and CUDA graphs) in memory usage profiling: ",
        r"(?P<consumed_gib><N>) GiB",
    ),
    _message(
        "tensorrt-llm",
        "Peak memory during memory usage profiling (torch + non-torch): ",
        r"<N> GiB, available KV cache memory when calculating max tokens: <N> GiB, fraction is set (?P<share><N>)"
        r"(?:, kv size is \w+\.? device total memory (?P<total_gib><N>) GiB(?:[, ]+tmp kv_mem "
        r"(?P<temporary_pool_gib><N>) GiB)?)?",
    ),
    _message("tensorrt-llm", "Estimated max memory in KV cache : ", r"(?P<pool_gib><N>) GiB", priority=1),
    _message(
        "tensorrt-llm", "calculating max tokens in paged kv cache: total: ", r"(?P<total_gib><N>) GiB", priority=1
    ),
    _message("tensorrt-llm", "[INFO] Number of tokens per block: ", r"(?P<block_tokens>\d+)"),
    _message("tensorrt-llm", "Number of blocks in KV cache primary pool: ", r"(?P<blocks>\d+)"),
    _message(
        "tensorrt-llm",
        "[MemUsageChange] Allocated ",
        r"(?:(?P<pool_gib><N>) GiB for max tokens in paged KV cache \((?P<tokens>\d+)\)"
        r"|<N> [KMG]i?B (?!for max tokens))",
    ),
)

MESSAGES: tuple[Message, ...] = (*_VLLM, *_SGLANG, *_TENSORRT)

LOOKED_FOR = (
    "start-up messages of vLLM ('Available KV cache memory: ...'), SGLang ('KV Cache is allocated. ...') "
    "and TensorRT-LLM ('[MemUsageChange] Allocated ... paged KV cache')"
)

SETTINGS: dict[str, str] = {
    "model": "model",
    "model_path": "model",
    "tensor_parallel_size": "tp",
    "tp_size": "tp",
    "pipeline_parallel_size": "pp",
    "pp_size": "pp",
    "data_parallel_size": "dp",
    "dp_size": "dp",
    "decode_context_parallel_size": "dcp",
    "enable_dp_attention": "dp_attention",
    "kv_cache_dtype": "kv_dtype",
    "max_seq_len": "max_model_len",
    "max_model_len": "max_model_len",
    "gpu_memory_utilization": "memory_fraction",
    "mem_fraction_static": "memory_fraction",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "block_size": "block_tokens",
    "page_size": "block_tokens",
}
"""Arguments of an engine as its log spells them -> what they are here."""

SETTING = re.compile(rf"(?<![\w.'])(['\"]?)({'|'.join(SETTINGS)})\1\s*[:=]\s*('[^']*'|\"[^\"]*\"|[\w.+-]+)")
