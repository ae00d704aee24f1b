"""Requests whose outputs lie in a range, as weighted lengths."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from capplan.cards.workload import RequestClass, Workload
from capplan.errors import InputError
from capplan.formulas.decode_nodes import DecodeNodes, prompt_cumulants

_NODES = 240
_RANGES_KEPT = 16


def nodes_within(workload: Workload, outputs: tuple[float, float]) -> DecodeNodes:
    """The requests with at least and at most that many output tokens, and two at least.

    Parameters
    ----------
    workload : joint law of prompt and output tokens
    outputs : (fewest, most), both included [token]

    Returns
    -------
    nodes : weights sum to 1

    Raises
    ------
    InputError : no request has such an output
    """
    fewest, most = outputs
    return _nodes(workload, float(fewest), float(most))


@lru_cache(maxsize=_RANGES_KEPT)
def _nodes(workload: Workload, least: float, most: float) -> DecodeNodes:
    fewest = max(least, 2.0)
    if workload.joint is not None:
        found = _of_sample(workload, fewest, most)
    else:
        parts = [_of_class(kind, fewest, most) for kind in workload.classes]
        found = [(share, nodes) for share, nodes in parts if share > 0.0]
    total = sum(share for share, _ in found)
    if total <= 0.0:
        raise InputError(f"no request has {least:g} to {most:g} output tokens, two at least", key="outputs")
    return DecodeNodes.joined([(share / total, nodes) for share, nodes in found])


def _of_sample(workload: Workload, fewest: float, most: float) -> list[tuple[float, DecodeNodes]]:
    joint = workload.joint
    assert joint is not None
    use = (joint.output >= fewest - 0.5) & (joint.output <= most + 0.5)
    share = float(joint.weight[use].sum())
    if share <= 0.0:
        return []
    return [(share, DecodeNodes.grouped(joint.input[use], joint.output[use] - 1.0, joint.weight[use], 2 * _NODES))]


def _of_class(kind: RequestClass, fewest: float, most: float) -> tuple[float, DecodeNodes]:
    """Lengths are whole: a law that is continuous holds each between half a token below and above."""
    low, high = float(kind.output.cdf(fewest - 0.5)), float(kind.output.cdf(most + 0.5))
    edges = 1 - (1 - np.linspace(0.0, 1.0, _NODES + 1)) ** 3  # finest where percentiles are asked
    middle, weights = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    lengths = np.clip(kind.output.quantile(low + (high - low) * middle), fewest, most)
    return kind.share * (high - low), DecodeNodes.product(lengths - 1.0, weights, prompt_cumulants(kind.input))
