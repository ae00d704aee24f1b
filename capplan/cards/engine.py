"""A serving engine as the formulas see it: how it divides memory, schedules, and what it adds to a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from capplan.cards.hardware import Band, Hardware
from capplan.cards.model import Model

MemoryFormula = Literal["utilization", "static-fraction", "free-fraction"]
"""``utilization``: a share of all memory less everything else (vLLM). ``static-fraction``: a share of the memory
free at start holds weights and KV (SGLang). ``free-fraction``: a share of what is left in the end (TensorRT-LLM)."""

SchedulerPolicy = Literal["recompute", "swap", "reserve"]
ENGINE_BAND_KINDS = ("decode_dense", "decode_mixture")
TtftEvent = Literal["queue", "prefill", "transfer", "decode-admission", "first-step"]


@dataclass(frozen=True)
class BatchDefaults:
    """Batch limits an engine takes by itself on GPUs of some memory size."""

    hbm_bytes_at_least: float
    max_batched_tokens: int
    max_sequences: int
    graph_sequences: int
    """Largest batch captured as a CUDA graph below tensor parallelism 4."""
    graph_sequences_wide: int
    """The same at tensor parallelism 4 and more."""
    not_for: tuple[str, ...] = ()
    """Names of GPU cards this tier leaves out, whatever their memory."""


@dataclass(frozen=True)
class StaticReserve:
    """What an engine with ``static-fraction`` keeps free when no fraction is given; bytes, sourced on the card."""

    base_bytes: float
    bytes_per_batched_token: float
    bytes_per_graph_sequence: float
    bytes_per_gpu: float
    bytes_per_graph_sequence_and_dp_rank: float
    least_bytes: float
    least_bytes_from_hbm_bytes: float
    """``least_bytes`` counts on GPUs of more memory than this."""


@dataclass(frozen=True)
class CalibratedFor:
    """The pair whose measured runs gave an engine card its constants: names of the GPU and of the model."""

    gpu: str
    model: str


@dataclass(frozen=True)
class Engine:
    """One engine in one range of versions; base units. ``none`` is an engine that costs nothing.

    The memory constants: ``activation_bytes_per_logit`` is charged for every vocabulary entry of every sequence of
    the largest batch; ``activation_hidden_widths`` and ``activation_inner_widths`` count 16-bit vectors of hidden
    and feed-forward width alive at once for one token; ``mla_workspace_tokens`` is the context a latent is expanded
    for at once; ``mxfp4_hidden_multiple`` and ``mxfp4_inner_multiple`` are what the sides of an expert in MXFP4 are
    padded to; ``other_bytes`` is the CUDA context and libraries of a lone GPU, ``other_bytes_parallel`` with
    tensor parallelism, ``other_bytes_pipeline`` with pipeline stages only; ``graph_bytes`` are CUDA graphs.
    The step constants: ``layer_overhead_seconds`` is added a layer, ``step_gap_seconds`` a step,
    ``sequence_overhead_seconds`` a sequence and step.
    ``kernel_time_factor`` is the time of a product or an attention kernel in the engine over that of the kernel
    alone, ``context_attention_factor`` beyond it that of prefill attention over the hardware card's,
    ``fp8_kv_share`` the rate at which decode attention reads an 8-bit cache over that of the card.
    The closed-loop constants of TTFT: ``ttft_base_seconds + prefill (1 + ttft_sqrt_factor sqrt(b - 1) +
    ttft_linear_factor (b - 1))`` with b running prompts.
    """

    name: str
    title: str
    version: str
    """The range of versions the numbers are for, as text."""
    memory_formula: MemoryFormula
    memory_fraction: float | None
    """The engine's default share; None where it computes one (see ``static_reserve``)."""
    block_tokens: int
    activation_bytes_per_logit: float
    activation_hidden_widths: float
    activation_inner_widths: float
    mla_workspace_tokens: float
    mxfp4_hidden_multiple: int
    mxfp4_inner_multiple: int
    graph_bytes: float
    other_bytes: float
    other_bytes_parallel: float
    other_bytes_pipeline: float
    scheduler_policy: SchedulerPolicy
    watermark_share: float
    layer_overhead_seconds: float
    step_gap_seconds: float
    sequence_overhead_seconds: float
    kernel_time_factor: float
    context_attention_factor: float
    fp8_kv_share: float
    ttft_base_seconds: float
    ttft_sqrt_factor: float
    ttft_linear_factor: float
    ttft_order: tuple[TtftEvent, ...]
    """What happens before a client sees the first token, in this order, prefill and decode apart."""
    ttft_order_aggregated: tuple[TtftEvent, ...]
    """The same where one pool does both."""
    batch_defaults: tuple[BatchDefaults, ...]
    """From the largest GPUs down."""
    static_reserve: StaticReserve | None = None
    flags: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Command-line templates by setting: ``{"tp": "--tensor-parallel-size {value}"}``."""
    kv_dtypes: Mapping[str, str] = field(default_factory=dict, hash=False)
    """How the engine spells each KV element type of capplan."""
    sparse_latent_kv: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Layout the engine puts in the place of a KV element type where an indexer chooses latents; others stay."""
    calibrated_for: CalibratedFor | None = None
    bands: Mapping[str, Band] = field(default_factory=dict, hash=False)
    """Error band of each of :data:`ENGINE_BAND_KINDS` that was measured on the pair it is calibrated for."""
    aliases: tuple[str, ...] = ()
    sources: Mapping[str, Any] = field(default_factory=dict, compare=False, hash=False, repr=False)
    """Dotted key of the card -> :class:`capplan.cards.number.Number`, every number of the range."""
    file: str = field(default="", compare=False)

    def batch_defaults_on(self, hardware: Hardware) -> BatchDefaults:
        """The batch limits the engine takes on that GPU."""
        for tier in self.batch_defaults:
            if hardware.hbm_bytes >= tier.hbm_bytes_at_least and hardware.name not in tier.not_for:
                return tier
        return self.batch_defaults[-1]

    def command_line(self, settings: Mapping[str, Any]) -> list[str]:
        """The engine's flags for settings such as ``{"tp": 8, "max_num_seqs": 64}``; unknown ones are left out.

        A setting that is None or False is left out; True stands for a flag without a value.
        """
        chosen = ((self.flags[name], value) for name, value in settings.items() if name in self.flags)
        return [flag.format(value=value) for flag, value in chosen if value is not None and value is not False]


def bands_of(hardware: Hardware, model: Model, engine: Engine | None) -> Mapping[str, Band]:
    """Error bands by kind of time: those of the GPU, and before them those of an engine calibrated for the pair.

    Parameters
    ----------
    hardware, model : the pair
    engine : its card; None for bare kernels
    """
    if engine is None or not engine.bands or engine.calibrated_for != CalibratedFor(hardware.name, model.name):
        return hardware.bands
    return {**hardware.bands, **engine.bands}
