"""Where an answer leaves the range its laws were checked in, or its requests leave the model's."""

from __future__ import annotations

from collections.abc import Iterator

from capplan.planning.pools import Pools
from capplan.planning.pressure import pressure_warnings
from capplan.planning.problem import Problem

LONG_SHARE = 1e-4


def warnings(problem: Problem, pools: Pools) -> tuple[str, ...]:
    """One line each."""
    return (*law_warnings(problem, pools), *_lengths(problem), *_answer(problem))


def law_warnings(problem: Problem, pools: Pools) -> tuple[str, ...]:
    """Where a law was used outside the range it was checked in."""
    pressure = pressure_warnings(problem, pools.decode)
    return (*pools.decode.stationary.warnings, *_mixed(pools), *_prefill(pools), *pressure)


def _mixed(pools: Pools) -> Iterator[str]:
    if pools.both is not None:
        from capplan.serving.aggregated import rank_warnings

        yield from rank_warnings(pools.both.rank)


def _prefill(pools: Pools) -> Iterator[str]:
    if pools.prefill is not None:
        yield from pools.prefill.warnings


def _lengths(problem: Problem) -> Iterator[str]:
    """Requests longer than the model can take; judged by the longest prompts, and the longest outputs."""
    limit, workload = problem.model.max_context, problem.workload
    if not limit:
        return
    longest = max(float(law.quantile(1 - LONG_SHARE)) for law in (workload.input, workload.output))
    if longest > limit:
        yield f"the longest requests have {longest:,.0f} tokens, the model takes {limit:,}: cut or route them"


def _answer(problem: Problem) -> Iterator[str]:
    """Targets on a time to answer that nobody can tell from TTFT."""
    targets = [key for key in problem.targets if key.startswith("answer")]
    if targets and problem.workload.reasoning_share is None:
        yield (
            f"the workload says nothing of reasoning tokens, so the time to answer is the TTFT and {targets[0]} "
            "tests no more than that; give workload.reasoning_share"
        )
