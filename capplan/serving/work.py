"""What one micro-batch brings to one forward pass."""

from __future__ import annotations

from dataclasses import dataclass

from capplan.formulas._ops import Value


@dataclass(frozen=True, eq=False)
class Work:
    """What one micro-batch brings to one pass.

    Parameters
    ----------
    sequences : on the busiest rank [1]
    new_tokens : of each sequence in this pass: 1, drafts + 1, or the uncached part of a prompt [tokens]
    cached_tokens : of each sequence before it [tokens]
    all_tokens : new tokens of the whole instance, which share the experts [tokens]
    head_rows : rows lm_head is computed for on the busiest rank [1]
    skew : lasting imbalance of the experts [1]
    prefill : prompt attention and the exchange made for many tokens, instead of their decode forms
    """

    sequences: Value
    new_tokens: Value
    cached_tokens: Value
    all_tokens: Value
    head_rows: Value
    skew: Value
    prefill: bool

    @property
    def rows(self) -> Value:
        """New tokens on the busiest rank."""
        return self.sequences * self.new_tokens
