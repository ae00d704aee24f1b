"""Reasoning tokens of the requests of a workload: where the time to answer ends."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from capplan.formulas.decode_nodes import DecodeNodes, prompt_cumulants

if TYPE_CHECKING:
    from capplan.cards.workload import Workload
    from capplan.formulas.length_law import LengthLaw


def reasoning_nodes(workload: Workload, n: int) -> DecodeNodes:
    """About ``n`` weighted numbers of decode steps between the first token and the first one after the reasoning.

    With R reasoning tokens that is token R + 1, R steps after the first; an output that is all reasoning ends one step
    earlier. Where only a share is known, it is that share of the decode steps of every request.

    Parameters
    ----------
    workload : with a law of reasoning tokens, or a share
    n : nodes wanted
    """
    if workload.reasoning is None:
        nodes = workload.decode_nodes(n)
        return replace(nodes, steps=nodes.steps * (workload.reasoning_share or 0.0))
    if workload.joint is not None:
        return _with_prompts_of(workload.decode_nodes(n), *_steps(workload.reasoning, workload.output, n))
    parts = []
    for kind in workload.classes:
        assert kind.reasoning is not None
        steps, weights = _steps(kind.reasoning, kind.output, max(16, round(n * kind.share)))
        parts.append((kind.share, DecodeNodes.product(steps, weights, prompt_cumulants(kind.input))))
    return DecodeNodes.joined(parts)


def _steps(law: LengthLaw, output: LengthLaw, n: int) -> tuple[Any, Any]:
    """Steps, increasing, and their weights."""
    values, weights = law.nodes(n)
    order = np.argsort(values, kind="stable")
    return np.minimum(values[order], float(output.quantile(1.0)) - 1.0), weights[order]


def _with_prompts_of(nodes: DecodeNodes, steps: Any, weights: Any) -> DecodeNodes:
    """Each number of steps with the prompts of the requests whose output has the same rank."""
    order = np.argsort(nodes.steps, kind="stable")
    known, wanted = (np.cumsum(w) - w / 2 for w in (nodes.weights[order], weights / weights.sum()))
    prompts = (nodes.prompt_mean, nodes.prompt_variance, nodes.prompt_third)
    return DecodeNodes(steps, weights / weights.sum(), *(np.interp(wanted, known, one[order]) for one in prompts))


def drawn_reasoning(workload: Workload, outputs: Any, random: Any) -> Any:
    """Reasoning tokens for each of ``outputs`` [token]; see :meth:`capplan.cards.workload.Workload.draw_reasoning`."""
    outputs = np.asarray(outputs, float)
    if workload.reasoning is None:
        return (outputs - 1.0) * (workload.reasoning_share or 0.0)
    thoughts = np.empty(len(outputs))
    thoughts[np.argsort(outputs, kind="stable")] = np.sort(workload.reasoning.sample(len(outputs), random))
    return np.minimum(thoughts, outputs)
