"""A prefill pool: ranks that read prompts first come, first served, and hand the KV cache on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from capplan.formulas.distinct import distinct
from capplan.formulas.length_law import LengthLaw
from capplan.formulas.length_laws import Mixture
from capplan.formulas.pools import kv_transfer_seconds
from capplan.formulas.queueing_numeric import mgk_queue
from capplan.planning.decode_pool import pool_memory
from capplan.planning.latency import Array, Law, probability_grid
from capplan.planning.measured_arrivals import dispersion_of_queue
from capplan.planning.pool import Pool
from capplan.planning.problem import Problem
from capplan.serving.layout import Layout
from capplan.serving.prefill import prefill
from capplan.serving.prefill_queue import QueueShare, queue_warnings, share_of_queue

LEAST_PROMPT_TOKENS = 1.0
NIC_EFFICIENCY = 0.85
"""Share of the line rate a KV transfer reaches (DeepSeek-V3 disclosure: 40 of 50 GB/s and more on 400 Gb/s)."""


@dataclass(frozen=True, eq=False)
class PromptCost:
    """What prompts cost one rank of a layout, every rank of the instance being busy.

    ``alone_seconds`` is the time until a prompt is read; ``share_seconds`` what it adds to a queue in which short
    prompts share passes of ``token_budget`` tokens.
    """

    prompts: Array
    weights: Array
    alone_seconds: Array
    share_seconds: Array
    transfer_seconds: Array
    token_budget: float

    @property
    def mean_share_seconds(self) -> float:
        """Mean time a prompt takes from a rank [s]."""
        return float(self.weights @ self.share_seconds)


@dataclass(frozen=True, eq=False)
class PrefillPool(Pool):
    """One prefill pool under load. ``ttft`` is queue, prefill and KV transfer; decode adds its own part."""

    cost: PromptCost
    utilization: float
    wait_probability: float
    ttft: Law
    warnings: tuple[str, ...] = ()


def prompt_grid(problem: Problem) -> tuple[Array, Array]:
    """Prompt tokens at the middle of every cell of the probability grid, and the cells' probabilities."""
    _, width = probability_grid()
    quantiles = problem.kept("prompt quantiles", Layout(), lambda: _quantiles(problem.workload.input))
    return np.maximum(quantiles, LEAST_PROMPT_TOKENS), width


def _quantiles(law: LengthLaw) -> Array:
    """Quantiles of a prompt law; of a mixture by inverting its probabilities at its parts' own quantiles."""
    middle, _ = probability_grid()
    if not isinstance(law, Mixture):
        return np.asarray(law.quantile(middle), float)
    coarse = middle[::3]
    values = distinct(np.concatenate([np.asarray(part.quantile(coarse), float) for _, part in law.parts]))
    return np.asarray(np.interp(middle, law.cdf(values), values), float)


def token_budget(problem: Problem) -> float:
    """Tokens of one prefill pass: the scenario's, else the engine's default on that GPU."""
    given = problem.scenario.serving.max_num_batched_tokens
    return float(given or problem.engine.batch_defaults_on(problem.hardware).max_batched_tokens)


def prompt_cost(problem: Problem, layout: Layout) -> PromptCost:
    """Time of every prompt of the grid on one rank of a layout; kept with the problem."""
    return problem.kept("prompt cost", layout, lambda: _prompt_cost(problem, layout))


def _prompt_cost(problem: Problem, layout: Layout) -> PromptCost:
    prompts, weights = prompt_grid(problem)
    hit = problem.scenario.serving.prefix_hit
    new, budget = np.maximum(prompts * (1 - hit), LEAST_PROMPT_TOKENS), token_budget(problem)
    alone, full = _pass_seconds(problem, layout, new, prompts * hit, budget)
    share = np.where(new < budget, np.minimum(alone, full * new / budget), alone)
    return PromptCost(prompts, weights, alone, share, _transfer_seconds(problem, layout, prompts), budget)


def _pass_seconds(problem: Problem, layout: Layout, new: Array, cached: Array, budget: float) -> tuple[Array, float]:
    """Seconds to read each prompt alone, in chunks of the token budget, and seconds of one full chunk.

    Every chunk attends to all before it: a full chunk costs t0 + s c with c tokens cached before it, so m of them
    cost m t0 + s (m c + budget m (m - 1)/2). The last chunk is what is left.
    """
    chunks = np.maximum(np.ceil(new / budget - 1e-9) - 1, 0.0)
    far = max(budget, float((cached + chunks * budget).max()))
    tokens = np.concatenate([new - chunks * budget, [budget, budget]])
    before = np.concatenate([cached + chunks * budget, [0.0, far]])
    options = {"prompts": layout.dp, **problem.timing()}
    passed = prefill(problem.model, problem.hardware, layout, tokens, before, **options).seconds
    seconds = np.broadcast_to(np.asarray(passed, float), tokens.shape)
    full, slope = float(seconds[-2]), max(0.0, float(seconds[-1] - seconds[-2]) / far)
    earlier = chunks * full + slope * (chunks * cached + budget * chunks * (chunks - 1) / 2)
    return np.asarray(seconds[:-2] + earlier, float), full


def _transfer_seconds(problem: Problem, layout: Layout, prompts: Array) -> Array:
    from capplan.cards.kv import kv_bytes_per_rank

    sent = kv_bytes_per_rank(problem.model, prompts, problem.scenario.serving.kv_dtype, layout.tp, layout.pp)
    seconds = problem.chain().derive(
        "kv_transfer_seconds",
        kv_transfer_seconds,
        kv_bytes=sent,
        link_bytes_per_second=problem.hardware.nic.bandwidth,
        efficiency=NIC_EFFICIENCY,
    )
    return np.asarray(np.broadcast_to(seconds, prompts.shape), float)


def _share_of_queue(problem: Problem, cost: PromptCost, ranks: int, rate: float) -> QueueShare:
    """One queue of the pool; bursts count at its own time scale where a trace tells the dispersion at all of them."""
    asked = problem.scenario
    shared = share_of_queue(rate, ranks, asked.workload.dispersion, asked.serving.routing)
    arrivals = problem.arrivals
    if arrivals is None:
        return shared

    def split(index: float) -> float:
        return share_of_queue(rate, ranks, index, asked.serving.routing).dispersion

    index = dispersion_of_queue(arrivals, split, cost.share_seconds, cost.weights, shared.ranks, shared.request_rate)
    return shared._replace(dispersion=index)


def evaluate(problem: Problem, layout: Layout, instances: int, rate: float) -> PrefillPool | None:
    """The state of a prefill pool at a total request rate [1/s]; None where it cannot keep up.

    Kept with the problem.
    """
    place = (layout, instances, rate)
    return problem.kept("prefill pool", place, lambda: _evaluate(problem, layout, instances, rate))


def _evaluate(problem: Problem, layout: Layout, instances: int, rate: float) -> PrefillPool | None:
    ranks, cost = instances * layout.dp, prompt_cost(problem, layout)
    load = rate * cost.mean_share_seconds / ranks
    if load >= 0.995:
        return None
    shared = _share_of_queue(problem, cost, ranks, rate)
    queue = mgk_queue(shared.request_rate, cost.share_seconds, cost.weights, shared.ranks, shared.dispersion)
    seconds, shares = queue.wait_atoms()
    wait = Law(seconds, shares / shares.sum()).reduced()
    own = Law.of(cost.alone_seconds + cost.transfer_seconds, cost.weights)
    budget = pool_memory(problem, layout)
    return PrefillPool(
        layout, instances, budget, cost, load, queue.wait_probability, wait.plus(own), queue_warnings(queue)
    )
