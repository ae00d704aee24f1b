"""Where an answer leaves the range its laws were checked in, or its requests leave the model's."""

from __future__ import annotations

from collections.abc import Iterator

from capplan.planning.pools import Pools
from capplan.planning.problem import Problem

HIGH_LOAD = 0.9
LONG_SHARE = 1e-4


def warnings(problem: Problem, pools: Pools) -> tuple[str, ...]:
    """One line each."""
    return (*law_warnings(pools), *_lengths(problem))


def law_warnings(pools: Pools) -> tuple[str, ...]:
    """Where a law was used outside the range it was checked in."""
    return (*pools.decode.stationary.warnings, *_mixed(pools), *_loads(pools))


def _mixed(pools: Pools) -> Iterator[str]:
    if pools.both is not None:
        from capplan.serving.aggregated import HEAVY, heaviness

        heavy = heaviness(pools.both.rank)
        if heavy > HEAVY:
            yield f"heaviness {heavy:.2g} above {HEAVY}: long prompts rule the tail; percentiles are indicative"


def _loads(pools: Pools) -> Iterator[str]:
    if pools.prefill is not None and pools.prefill.utilization > HIGH_LOAD:
        yield f"prefill load {pools.prefill.utilization:.0%}: TTFT tails are uncertain above {HIGH_LOAD:.0%}"


def _lengths(problem: Problem) -> Iterator[str]:
    """Requests longer than the model can take; judged by the longest prompts, and the longest outputs."""
    limit, workload = problem.model.max_context, problem.workload
    if not limit:
        return
    longest = max(float(law.quantile(1 - LONG_SHARE)) for law in (workload.input, workload.output))
    if longest > limit:
        yield f"the longest requests have {longest:,.0f} tokens, the model takes {limit:,}: cut or route them"
