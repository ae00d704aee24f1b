"""What every pool has: equal instances of one layout."""

from __future__ import annotations

from dataclasses import dataclass

from capplan.serving.layout import Layout
from capplan.serving.memory import MemoryBudget


@dataclass(frozen=True, eq=False)
class Pool:
    """Equal instances of one layout, and the memory of a GPU of theirs."""

    layout: Layout
    instances: int
    budget: MemoryBudget

    @property
    def gpus(self) -> int:
        """GPUs of the pool."""
        return self.instances * self.layout.gpus

    @property
    def ranks(self) -> int:
        """Attention ranks of the pool."""
        return self.instances * self.layout.dp
