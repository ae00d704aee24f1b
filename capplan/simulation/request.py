"""One simulated request."""

from __future__ import annotations


class Request:
    """A request on its way: what it needs, how far it is, and when its tokens came.

    ``made`` output tokens are sampled when it (re)enters a rank; while it decodes, ``offset`` is the step count at
    which its context would have been empty, so that at step s it holds ``s - offset`` tokens. ``loaded``: its KV cache
    arrives with it (from a prefill pool, or back from the host), nothing has to be computed first.
    """

    __slots__ = (
        "admitted",
        "arrival",
        "done",
        "entry",
        "finish",
        "finish_step",
        "first",
        "largest_gap",
        "left",
        "loaded",
        "made",
        "measured",
        "offset",
        "output",
        "preemptions",
        "prompt",
        "rank",
        "reasoning",
        "stalled",
        "submitted",
    )

    def __init__(self, prompt: int, output: int, arrival: float, made: int = 0, *, loaded: bool = False) -> None:
        self.prompt = prompt
        self.output = output
        self.reasoning: int | None = None
        """Reasoning tokens among the output, where a trace tells them; no rule depends on them."""
        self.arrival = arrival
        self.submitted = arrival
        """When it reaches the pool that decodes it [s]."""
        self.made = made
        self.loaded = loaded
        self.left = self.done = 0
        """Tokens still to be computed before it can decode, and those computed, while it is in that phase."""
        self.offset = 0
        self.finish_step = -1
        self.measured = False
        self.rank = -1
        self.entry = 0
        """Counts admissions to its rank: the order among the running."""
        self.preemptions = 0
        self.admitted = self.first = self.finish = -1.0
        self.stalled = -1.0
        """When the last token before a preemption came; below zero where it is not preempted."""
        self.largest_gap = 0.0
        """Largest gap a preemption made between two tokens [s]."""

    @property
    def tokens(self) -> int:
        """Prompt and generated tokens."""
        return self.prompt + self.made
