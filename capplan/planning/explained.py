"""The chain of formulas behind a plan: one chain a pool, recorded by evaluating the chosen pools once more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capplan.planning import decode_pool, prefill_pool
from capplan.quantities.chain import Chain
from capplan.serving.prefill import prefill
from capplan.serving.step import decode_step

if TYPE_CHECKING:
    from capplan.planning.decode_pool import DecodePool
    from capplan.planning.plan import Plan
    from capplan.planning.prefill_pool import PrefillPool
    from capplan.planning.problem import Problem


def plan_chains(plan: Plan) -> dict[str, Chain]:
    """Role of a pool to its recorded chain, at the offered rate."""
    pools = plan.pools_at_rate
    if pools is None:
        return {}
    chains = {}
    if pools.prefill is not None:
        chains["prefill"] = _prefill_chain(plan.problem, pools.prefill)
    chains["both" if pools.mode == "aggregated" else "decode"] = _decode_chain(plan.problem, pools.decode)
    return chains


def _decode_chain(problem: Problem, pool: DecodePool) -> Chain:
    chain, serving = problem.chain(record=True), problem.scenario.serving
    decode_pool.pool_memory(problem, pool.layout, chain)
    batch = max(1, round(pool.stationary.mean)) * pool.layout.dp
    decode_step(
        problem.model, problem.hardware, pool.layout, batch, problem.workload.mean_context, mtp=serving.mtp,
        acceptance=serving.acceptance, **problem.timing(chain),
    )  # fmt: skip
    decode_pool.evaluate(problem, pool.layout, pool.instances, pool.rank_rate * pool.ranks, chain)
    return chain


def _prefill_chain(problem: Problem, pool: PrefillPool) -> Chain:
    chain = problem.chain(record=True)
    decode_pool.pool_memory(problem, pool.layout, chain)
    options = {"prompts": pool.layout.dp, **problem.timing(chain)}
    prefill(problem.model, problem.hardware, pool.layout, prefill_pool.token_budget(problem), **options)
    return chain
