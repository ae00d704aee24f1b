"""Command lines of the engine and of the load generator for runs to make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from capplan.calibration.table import System
from capplan.cards.engine import Engine, MemoryFormula
from capplan.cards.model import Model

_WAVES = 10
"""Prompts for each slot: the start and end of a run then count little."""
_SERVERS: Mapping[MemoryFormula, str] = {
    "utilization": "vllm serve",
    "static-fraction": "python3 -m sglang.launch_server --model-path",
    "free-fraction": "trtllm-serve",
}
_CLIENTS: Mapping[MemoryFormula, str] = {
    "utilization": "vllm bench serve --backend vllm",
    "static-fraction": "python3 -m sglang.bench_serving --backend sglang",
    "free-fraction": "python3 -m tensorrt_llm.serve.scripts.benchmark_serving --backend openai",
}
"""By how an engine divides memory, which tells it under any name of a card."""
_FIXED: Mapping[MemoryFormula, str] = {
    "utilization": "--ignore-eos",
    "static-fraction": "--random-range-ratio 1.0",
    "free-fraction": "--random-ids --ignore-eos",
}
"""What makes every request as long as asked."""


@dataclass(frozen=True)
class Planned:
    """A run to make: prompt and output tokens of every request, requests in flight."""

    prompt_tokens: int
    output_tokens: int
    concurrency: int

    def __str__(self) -> str:
        return f"{self.prompt_tokens:,} in, {self.output_tokens:,} out at {self.concurrency}"

    @property
    def prompts(self) -> int:
        """Requests to send."""
        return _WAVES * self.concurrency


def server_command(system: System) -> str:
    """The command that starts the engine with the layout and cache type of a system.

    References
    ----------
    docs.vllm.ai, ``vllm serve``; docs.sglang.ai, Server Arguments; nvidia.github.io/TensorRT-LLM, trtllm-serve, which
    takes data-parallel attention from a file.
    """
    engine, layout = system.engine, system.layout
    experts = layout.expert_parallel(mixture=system.model.is_mixture)
    settings = {
        "tp": layout.tp,
        "stage_gpus": layout.tp * layout.dp,
        "pp": layout.pp if layout.pp > 1 else None,
        "dp": layout.dp if layout.dp > 1 else None,
        "ep": experts if experts > 1 else None,
        "dcp": layout.dcp if layout.dcp > 1 else None,
        "kv_dtype": system.kv_dtype and engine.kv_dtypes.get(system.kv_dtype),
    }
    command = [_SERVERS[engine.memory_formula], model_name(system.model), *engine.command_line(settings)]
    if layout.dp > 1 and "dp" not in engine.flags:
        command.append("--extra_llm_api_options attention-dp.yml  # which says enable_attention_dp: true")
    return " ".join(command)


def command_line(run: Planned, model: Model, engine: Engine) -> str:
    """The benchmark command of a run, whose result :func:`~capplan.calibration.results.read_results` reads.

    References
    ----------
    docs.vllm.ai, ``vllm bench serve``; docs.sglang.ai, Bench Serving Guide (``--random-range-ratio 1.0``
    fixes the lengths); nvidia.github.io/TensorRT-LLM, Run benchmarking with trtllm-serve.
    """
    kind = engine.memory_formula
    lengths = f"--random-input-len {run.prompt_tokens} --random-output-len {run.output_tokens} {_FIXED[kind]}"
    load = f"--max-concurrency {run.concurrency} --num-prompts {run.prompts}"
    saved = "--output-file results.jsonl" if kind == "static-fraction" else "--save-result --result-dir results"
    return f"{_CLIENTS[kind]} --model {model_name(model)} --dataset-name random {lengths} {load} {saved}"


def model_name(model: Model) -> str:
    """The repository of a model where its card says one."""
    names = [str(model.provenance.get("repository") or ""), *model.aliases]
    return next((name for name in names if "/" in name), model.name)
