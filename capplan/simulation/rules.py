"""What a simulated rank is: its step time, its KV pool, its limits, and what happens when the pool runs short."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from capplan.simulation.growth import HeldByContext
from capplan.simulation.request import Request

Policy = Literal["recompute", "swap", "reserve"]


class StepTime:
    """Time of a step with n decoding requests that hold S cached tokens: ``constant[n] + per_token[n] * S`` [s].

    Parameters
    ----------
    of_batch : n to (seconds of the step without context, seconds a cached token adds) [s, s/token]
    prompt_token : seconds a prompt token adds to a step, d [s/token]
    prompt_pair : seconds a pair of prompt tokens adds, g; a prompt of P tokens has P^2/2 pairs [s]

    Examples
    --------
    >>> times = StepTime.linear(0.006, 2e-5, 4e-8, prompt_token=2.7e-5)
    >>> times.until(10)
    >>> round(times.constant[10] + times.per_token[10] * 30_000, 6)
    0.0074
    """

    def __init__(
        self, of_batch: Callable[[int], tuple[float, float]], prompt_token: float = 0.0, prompt_pair: float = 0.0
    ) -> None:
        self._of_batch = of_batch
        self.prompt_token = prompt_token
        self.prompt_pair = prompt_pair
        self.constant: list[float] = []
        self.per_token: list[float] = []

    @classmethod
    def linear(cls, a: float, e: float, c: float, prompt_token: float = 0.0, prompt_pair: float = 0.0) -> StepTime:
        """T = a + e n + c S, prompts apart."""
        return cls(lambda n: (a + e * n, c), prompt_token, prompt_pair)

    def until(self, batch: int) -> None:
        """Tabulate the times of batches up to ``batch``, and some beyond."""
        for n in range(len(self.constant), max(batch + 1, 2 * len(self.constant), 64)):
            constant, per_token = self._of_batch(n)
            self.constant.append(constant)
            self.per_token.append(per_token)

    def prompt_seconds(self, tokens: int, cached: int) -> float:
        """What a chunk of ``tokens`` adds to its step when ``cached`` tokens of the prompt were read before [s]."""
        return tokens * (self.prompt_token + self.prompt_pair * (cached + tokens / 2))


@dataclass(frozen=True)
class RankRules:
    """One rank: pool, limits and policy.

    Parameters
    ----------
    blocks : KV pool [block]
    block_size : tokens of a block [token]
    max_num_seqs : requests that run at once [1]
    token_budget : tokens of one step, ``max_num_batched_tokens`` [token]
    watermark_blocks : blocks an admission leaves free while something runs [block]
    policy : what a preempted request loses: ``recompute`` everything; ``swap``: nothing, its blocks go to the host;
        ``reserve``: recompute, and an admission counts so many tokens of output of every running request as taken
    reserve_tokens : output tokens reserved; 0 with ``reserve``: as many as each request will make [token]
    prefix_caching : blocks of a preempted request stay until others need them
    held : what a request takes of the pool by its cached tokens, where that is no block every ``block_size`` tokens;
        the unit of ``blocks`` and ``watermark_blocks`` is then its unit. Not together with ``prefix_caching``
    """

    blocks: int
    block_size: int = 16
    max_num_seqs: int = 1 << 30
    token_budget: int = 8192
    watermark_blocks: int = 0
    policy: Policy = "recompute"
    reserve_tokens: int = 0
    prefix_caching: bool = False
    held: HeldByContext | None = None

    def blocks_of(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        if self.held is not None:
            return self.held(tokens)
        return -(-tokens // self.block_size)

    def reserved_blocks(self, request: Request) -> int:
        """Blocks that an admission counts as taken by a request, however far it is."""
        return self.blocks_of(request.prompt + (self.reserve_tokens or request.output))
