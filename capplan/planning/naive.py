"""The answers a spreadsheet gives: mean lengths, and pools in the ratio of their FLOPs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from capplan.cards.workload import Workload
from capplan.planning.bounds import best_rank_rate
from capplan.planning.pools import Pools
from capplan.planning.problem import Problem


@dataclass(frozen=True)
class NaiveAnswer:
    """What means alone would have said, for the layouts of the plan.

    ``decode_gpus``: mean batch, context E[P] + E[L]/2, no tails, no headroom. ``prefill_per_decode``: prefill over
    decode GPUs by FLOPs.
    """

    decode_gpus: int | None
    prefill_per_decode: float


def naive_answer(problem: Problem, pools: Pools) -> NaiveAnswer:
    """The naive answers beside a plan."""
    workload, layout = problem.workload, pools.decode.layout
    context = workload.input.mean + workload.output.mean / 2
    means = Workload(input=workload.input.mean, output=max(workload.output.mean, 2.0))
    rate = best_rank_rate(problem.with_workload(means), layout) * layout.dp
    gpus = math.ceil(problem.rate / rate) * layout.gpus if rate > 0 else None
    prompt_flops = workload.input.mean * problem.model.flops_per_token(workload.input.mean / 2)
    output_flops = workload.output.mean * problem.model.flops_per_token(context)
    return NaiveAnswer(gpus, prompt_flops / output_flops)
