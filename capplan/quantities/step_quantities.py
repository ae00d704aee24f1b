"""Named quantities of the step topic: parts of a decode step, and the kernel constants behind them."""

from __future__ import annotations

from capplan.quantities.quantity import Quantity, with_ranges

_KERNELS = "hardware card, kernels"
_PASSES = "capplan.serving.passes"

_PARTS: tuple[Quantity, ...] = (
    Quantity(
        "step_seconds",
        "s",
        "Time of one decode step of an instance.",
        "decode_time_factor * sum of the parts",
        "capplan.serving.evaluation",
    ),
    Quantity(
        "attention_seconds",
        "s",
        "Attention cores of all layers.",
        "layers * (floor + (stream^4 + compute^4)^(1/4)), summed over kinds of layers",
        "capplan.formulas.attention_time",
    ),
    Quantity(
        "linear_seconds",
        "s",
        "Dense matrix products of all layers, routed experts not among them.",
        "sum of floor + (stream^4 + compute^4)^(1/4)",
        "capplan.formulas.gemm",
    ),
    Quantity(
        "elementwise_seconds",
        "s",
        "Norms, rotary embedding, cache write, activation, quantisation, token permutation.",
        "kernels * elementwise_floor_seconds + bytes / gemm_stream_bandwidth",
        _PASSES,
    ),
    Quantity("lm_head_seconds", "s", "Product with the output vocabulary.", "as one GEMM", "capplan.formulas.gemm"),
    Quantity(
        "sampling_seconds",
        "s",
        "Softmax over the logits and draw.",
        "4 * elementwise_floor_seconds + 8 * rows * vocab_size / gemm_stream_bandwidth",
        _PASSES,
    ),
    Quantity(
        "expert_rows",
        "1",
        "Token-expert pairs on the busiest expert-parallel rank, one layer.",
        "min(R, skew * q R + z(ranks) * sqrt(q R (1 - q))), R = tokens * top_k, q = ceil(E / ranks) / E",
        "capplan.formulas.experts",
    ),
    Quantity(
        "distinct_experts",
        "1",
        "Experts of one layer that at least one token of the instance chooses.",
        "E * (1 - (1 - top_k / E)^tokens)",
        "capplan.formulas.experts",
    ),
    Quantity(
        "distinct_experts_per_rank",
        "1",
        "Experts the busiest expert-parallel rank reads, one layer.",
        "min(q E, q D + z(ranks) * sqrt(q D (1 - D / E))), q = ceil(E / ranks) / E",
        "capplan.formulas.experts",
    ),
    Quantity(
        "expert_layer_seconds",
        "s",
        "Grouped products of the routed experts of one layer.",
        "sum of floor + (stream^2 + compute^2)^(1/2)",
        "capplan.formulas.experts",
    ),
    Quantity("experts_seconds", "s", "Routed experts of all layers.", "layers * expert_layer_seconds", _PASSES),
    Quantity(
        "dispatch_layer_seconds",
        "s",
        "Sending tokens to their experts, one layer.",
        "floor + max(intranode_bytes / dispatch_bandwidth, internode_bytes / internode_bandwidth)",
        "capplan.formulas.collectives",
    ),
    Quantity("dispatch_seconds", "s", "Sending tokens to their experts.", "layers * dispatch_layer_seconds", _PASSES),
    Quantity(
        "combine_layer_seconds",
        "s",
        "Bringing the experts' results back, one layer.",
        "floor + max(intranode_bytes / dispatch_bandwidth, internode_bytes / internode_bandwidth)",
        "capplan.formulas.collectives",
    ),
    Quantity("combine_seconds", "s", "Bringing the experts' results back.", "layers * combine_layer_seconds", _PASSES),
    Quantity(
        "all_reduce_layer_seconds",
        "s",
        "One all-reduce inside a scale-up domain.",
        "a + a1 n + min((n - 1) M / b, a2 + 2 (n - 1) / n M / b)",
        "capplan.formulas.collectives",
    ),
    Quantity(
        "internode_all_reduce_layer_seconds",
        "s",
        "What one all-reduce takes longer because its group spans nodes.",
        "4 internode_floor_seconds + 2 (N - 1) / N M / g / internode_bandwidth",
        "capplan.formulas.collectives",
    ),
    Quantity("all_reduce_seconds", "s", "All-reduces of tensor parallelism.", "all-reduces * one of them", _PASSES),
    Quantity(
        "logits_gather_seconds",
        "s",
        "Collecting the logits of a tensor-parallel lm_head.",
        "floor + bytes / bandwidth",
        "capplan.formulas.collectives",
    ),
    Quantity(
        "context_parallel_seconds",
        "s",
        "Queries gathered and outputs scattered under decode context parallelism.",
        "layers * 2 * floor + bytes / all_reduce_bandwidth",
        "capplan.formulas.collectives",
    ),
    Quantity(
        "pipeline_seconds",
        "s",
        "Hidden states handed from stage to stage.",
        "(pp - 1) * (floor + bytes / bandwidth)",
        "capplan.formulas.collectives",
    ),
    Quantity(
        "exposed_communication_seconds",
        "s",
        "Communication of one micro-batch that the computation of the other does not hide.",
        "max(communication - computation, exchange_compute_share * communication)",
        "capplan.serving.evaluation",
    ),
    Quantity(
        "draft_seconds",
        "s",
        "Passes through the multi-token-prediction layers that draw the draft tokens.",
        "drafts * one pass",
        "capplan.serving.evaluation",
    ),
    Quantity(
        "engine_gap_seconds",
        "s",
        "Host gap and overhead of the engine.",
        "step_gap_seconds + layers * layer_overhead_seconds + sequences * sequence_overhead_seconds",
        "engine card",
    ),
    Quantity(
        "tokens_per_step",
        "token",
        "Tokens one sequence gets out of a step.",
        "1 + sum_j prod_(i <= j) acceptance_i",
        "capplan.formulas.speculation",
    ),
)

_CONSTANTS: tuple[tuple[str, str, str], ...] = (
    ("gemm_floor_seconds", "s", "Launch, ramp and drain of a matrix product."),
    ("gemm_stream_bandwidth", "B/s", "Rate at which a wide matrix product reads its matrix."),
    ("gemm_narrow_outputs", "1", "Columns by which a narrow matrix streams as if it were wider."),
    ("gemm_flops_bf16", "FLOP/s", "Arithmetic rate of matrix products in bf16."),
    ("gemm_flops_fp8", "FLOP/s", "Arithmetic rate of matrix products in fp8."),
    ("gemm_flops_fp4", "FLOP/s", "Arithmetic rate of matrix products in fp4."),
    ("attention_floor_seconds", "s", "Floor of a grouped-query decode attention kernel."),
    ("attention_stream_bandwidth", "B/s", "Rate at which decode attention reads a 16-bit cache."),
    ("attention_stream_bandwidth_fp8", "B/s", "Rate at which decode attention reads an 8-bit cache."),
    ("attention_ramp_tokens", "token", "Tokens by which every sequence streams as if it were longer."),
    ("attention_token_seconds", "s/token", "Time of one cached token of a lone sequence in decode attention."),
    ("mla_token_seconds", "s/token", "Time of one cached token of a lone sequence in absorbed MLA decode."),
    ("mla_floor_seconds", "s", "Floor of an absorbed MLA decode kernel."),
    ("mla_decode_flops", "FLOP/s", "Arithmetic rate of absorbed MLA decode."),
    ("context_attention_floor_seconds", "s", "Floor of a prefill attention kernel."),
    ("context_attention_flops", "FLOP/s", "Arithmetic rate of prefill attention."),
    ("context_attention_ramp_tokens", "token", "Keys a query sees beyond its own, in part-filled tiles."),
    ("moe_floor_seconds", "s", "Floor of the routed experts of one layer."),
    ("moe_stream_bandwidth", "B/s", "Rate at which grouped products read experts."),
    ("moe_flops_bf16", "FLOP/s", "Arithmetic rate of grouped products in bf16."),
    ("moe_flops_fp8", "FLOP/s", "Arithmetic rate of grouped products in fp8."),
    ("moe_flops_fp4", "FLOP/s", "Arithmetic rate of grouped products in fp4."),
    ("moe_narrow_outputs", "1", "Columns by which a narrow expert streams as if it were wider."),
    ("moe_padding_rows", "1", "Rows of an expert's last tile that hold no token."),
    ("moe_padding_rows_bf16", "1", "The same for experts multiplied in bf16."),
    ("elementwise_floor_seconds", "s", "Floor of one small kernel in a CUDA graph."),
    ("all_reduce_floor_seconds", "s", "Start-up of an all-reduce."),
    ("all_reduce_floor_per_gpu_seconds", "s", "Start-up of an all-reduce a GPU of the group."),
    ("all_reduce_two_step_floor_seconds", "s", "Second synchronisation of an all-reduce that scatters and gathers."),
    ("all_reduce_bandwidth", "B/s", "Rate at which a GPU sends in an all-reduce."),
    ("dispatch_floor_seconds", "s", "Start-up of an expert exchange inside a scale-up domain."),
    ("dispatch_bandwidth", "B/s", "Rate at which a GPU sends tokens to experts inside its scale-up domain."),
    ("exchange_compute_share", "1", "Share of the GPU that the exchange for many tokens takes from computation."),
    ("internode_floor_seconds", "s", "Start-up of an exchange between nodes."),
    ("internode_bandwidth", "B/s", "Rate at which a GPU sends to other nodes."),
    ("sustained_share", "1", "Arithmetic rate of a long run under the power limit over that of a short one."),
)

_FACTOR = Quantity(
    "decode_time_factor",
    "1",
    "Measured over predicted time of every decode step: 1, an end of the error band, or what a benchmark shows.",
    "given",
    "hardware card, bands",
)

_QUANTITIES: tuple[Quantity, ...] = (
    _FACTOR,
    *_PARTS,
    *(Quantity(name, unit, meaning, "measured or fitted", _KERNELS) for name, unit, meaning in _CONSTANTS),
)
QUANTITIES = with_ranges(
    _QUANTITIES,
    positive=(
        "step_seconds", "expert_rows", "distinct_experts", "distinct_experts_per_rank", "tokens_per_step",
        "sustained_share", "decode_time_factor",
    ),
    shares=("sustained_share", "exchange_compute_share"),
    most={"decode_time_factor": 1000.0},
)  # fmt: skip
PARTS = _PARTS
"""Quantities of one pass; a prefill has its own of each."""
