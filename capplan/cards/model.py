"""A model as the formulas see it: layer groups, their matrices and what each layer caches.

Only the text part is described. Nothing here reads a file: :mod:`capplan.cards.model_card` reads cards and
:mod:`capplan.cards.huggingface` reads ``config.json``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class WeightFormat:
    """How a matrix is stored, and which arithmetic multiplies it.

    ``bytes_per_element`` includes the scales of quantised formats (fp8 in 128 x 128 blocks: 1 + 4/16384).
    ``compute`` names the key of a hardware card's arithmetic rates.
    """

    name: str
    bytes_per_element: float
    compute: Literal["bf16", "fp8", "fp4"]


@dataclass(frozen=True)
class Matmul:
    """One weight matrix of a layer: ``inputs`` x ``outputs`` elements.

    ``shard`` says what tensor parallelism does: ``column`` splits the outputs, ``row`` splits the inputs (an
    all-reduce follows), ``qkv`` splits query heads and, as far as there are any, KV heads, ``replicated`` does nothing.
    ``count`` is how many such matrices a layer holds (the experts of a mixture).
    """

    name: str
    inputs: int
    outputs: int
    shard: Literal["column", "row", "qkv", "replicated"]
    format: WeightFormat
    count: int = 1

    @property
    def parameters(self) -> int:
        """Elements of the matrix, times ``count``."""
        return self.inputs * self.outputs * self.count


@dataclass(frozen=True)
class Attention:
    """The attention of one layer, and what it caches a token.

    ``kind`` is ``gqa`` (also MHA and MQA; ``head_dim`` is the key width) or ``mla`` (one latent of
    ``kv_lora_rank + qk_rope_head_dim`` elements a token; ``head_dim`` is nope + rope).
    ``window`` is the number of tokens a sliding-window layer keeps, None for full attention.
    ``other_parameters`` are biases, norms and sinks: stored in bf16, too small to time.
    """

    kind: Literal["gqa", "mla"]
    n_heads: int
    n_kv_heads: int
    head_dim: int
    value_head_dim: int
    matmuls: tuple[Matmul, ...]
    window: int | None = None
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    other_parameters: int = 0


@dataclass(frozen=True)
class FeedForward:
    """The feed-forward part of one layer.

    Dense: ``matmuls`` only (gate and up fused as one ``column`` matrix, ``down`` as ``row``).
    Mixture: ``n_experts`` > 0; ``expert_matmuls`` describe ONE routed expert (their ``count`` is 1),
    ``matmuls`` holds what every token passes (router, shared experts).
    """

    matmuls: tuple[Matmul, ...]
    n_experts: int = 0
    top_k: int = 0
    expert_matmuls: tuple[Matmul, ...] = ()
    expert_width: int = 0
    gated: bool = True
    other_parameters: int = 0


@dataclass(frozen=True)
class LayerGroup:
    """``count`` equal layers (not necessarily neighbours)."""

    count: int
    attention: Attention | None
    feed_forward: FeedForward | None
    other_parameters: int = 0
