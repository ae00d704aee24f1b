"""Layouts worth trying for a pool."""

from __future__ import annotations

from collections.abc import Iterator

from capplan.cards.hardware import Hardware
from capplan.cards.model import Model
from capplan.planning.scenario import LayoutSection
from capplan.serving.layout import Layout, heads_divide

TENSOR_SIZES = (1, 2, 4, 8, 16)
DATA_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 18, 24, 32, 36, 48, 64, 72, 96, 128)


def layouts(model: Model, hardware: Hardware, max_gpus: int, fixed: LayoutSection | None) -> Iterator[Layout]:
    """The fixed layout, or every sensible one of at most ``max_gpus`` GPUs.

    Data-parallel attention is tried only for mixtures of experts: for a dense model it is the same as more
    instances. Tensor parallelism divides the query heads; it may cross nodes. Instances larger than a node fill
    whole nodes, and several instances share a node evenly.
    """
    if fixed is not None:
        yield Layout(**fixed.model_dump())
        return
    for tp in TENSOR_SIZES:
        for dp in DATA_SIZES if model.is_mixture else (1,):
            layout = Layout(tp=tp, dp=dp)
            if layout.gpus <= max_gpus and _suits(model, layout) and _fills_nodes(layout.gpus, hardware.gpus_per_node):
                yield layout


def _suits(model: Model, layout: Layout) -> bool:
    """Whether heads divide over the tensor-parallel GPUs, and no expert-parallel GPU is without an expert."""
    spread = layout.gpus if layout.dp > 1 else 1
    forwards = [group.feed_forward for group in model.layers if group.feed_forward is not None]
    enough = all(forward.n_experts >= spread for forward in forwards if forward.n_experts)
    return enough and heads_divide(model, layout.tp)


def _fills_nodes(gpus: int, per_node: int) -> bool:
    return gpus % per_node == 0 or per_node % gpus == 0
