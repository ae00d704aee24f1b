"""The price of the target that binds: what a looser one would save."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from capplan.planning.problem import Problem

if TYPE_CHECKING:
    from capplan.planning.deploy import Outcome
    from capplan.planning.pools import Check

LOOSER = 1.2


@dataclass(frozen=True)
class Relaxation:
    """One target loosened by a fifth, all else kept: the GPUs it saves."""

    name: str
    target: float
    relaxed: float
    gpus_saved: int


def relaxation(
    problem: Problem, binding: Check | None, gpus: int, search: Callable[[Problem], Outcome]
) -> Relaxation | None:
    """Search again with the binding latency target loosened; None where something else binds."""
    if binding is None or binding.name not in problem.targets:
        return None
    target = problem.targets[binding.name]
    looser = replace(problem, targets={**problem.targets, binding.name: LOOSER * target})
    pools = search(looser).pools
    saved = 0 if pools is None else max(0, gpus - pools.gpus)
    return Relaxation(binding.name, target, LOOSER * target, saved)
