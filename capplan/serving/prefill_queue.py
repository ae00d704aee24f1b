"""A prefill pool: prompts wait first come, first served for one of several equal ranks. TTFT with percentiles."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from capplan.cards.workload import Workload
from capplan.errors import InputError, shown
from capplan.serving.notice import Notice
from capplan.serving.stationary_demand import BLIND_SPLITS, ROUTINGS
from capplan.serving.step_time import one_number, whole_number

if TYPE_CHECKING:
    from capplan.formulas.queueing_numeric import MgkQueue

HIGH_LOAD = 0.9
LOW_LOAD = 0.3
BUSY = 0.75
HEAVY_VARIATION = 15.0
PROMPT_NODES = 48


@dataclass(frozen=True, eq=False)
class PrefillQueue:
    """State of a prefill pool.

    Parameters
    ----------
    utilization : share of the time a rank reads prompts [-]
    stable : whether the pool keeps up; if not, waits are infinite
    warnings : where the laws leave the range they were checked in
    """

    utilization: float
    stable: bool
    warnings: tuple[str, ...]
    _queue: MgkQueue | None = field(repr=False)

    @property
    def wait_probability(self) -> float:
        """Share of prompts that wait [-]."""
        return 1.0 if self._queue is None else self._queue.wait_probability

    @property
    def wait_mean(self) -> float:
        """Mean wait of all prompts [s]."""
        return math.inf if self._queue is None else self._queue.wait_mean

    @property
    def ttft_mean(self) -> float:
        """Mean of wait and prefill [s]."""
        return math.inf if self._queue is None else self._queue.sojourn_mean

    def wait_quantile(self, probability: float) -> float:
        """Wait over prompts [s]."""
        return math.inf if self._queue is None else self._queue.wait_quantile(probability)

    def ttft_quantile(self, probability: float) -> float:
        """Wait and prefill over prompts; KV transfer and the first decode step come on top [s]."""
        return math.inf if self._queue is None else self._queue.sojourn_quantile(probability)


def prefill_queue(
    workload: Workload,
    request_rate: float,
    prompt_seconds: Callable[[Any], Any],
    ranks: int = 1,
    dispersion: float = 1.0,
    routing: str = "least-loaded",
) -> PrefillQueue:
    """Queue before a prefill pool, and the time to the first token.

    Parameters
    ----------
    workload : law of the prompts; prefix hits already taken off
    request_rate : arrivals at the pool [1/s]
    prompt_seconds : time one rank takes for prompts of an array of lengths [token -> s]
    ranks : equal ranks [-]
    dispersion : index of dispersion of the arrivals, 1 is Poisson [-]
    routing : ``least-loaded`` and ``least-kv``: one queue before all ranks; ``random``, ``round-robin``: a queue before
        each, what dealing in turn saves below Poisson not counted

    Returns
    -------
    queue : :class:`PrefillQueue`

    Validity: loads 0.3 to 0.9. One rank, Poisson: TTFT P90 and P99 within 8 % at P95; several ranks P99 2 % in the
    median, 30 % at P95; bursts 14 % in the median, too high.

    Raises
    ------
    InputError : a senseless argument

    Examples
    --------
    >>> from capplan import Workload
    >>> queue = prefill_queue(Workload(input=1000, output=100), 0.9, lambda tokens: 1e-3 * tokens)
    >>> round(queue.utilization, 2), round(queue.ttft_mean, 2)
    (0.9, 5.5)

    References
    ----------
    :func:`capplan.formulas.queueing_numeric.mgk_queue`.
    """
    import numpy as np

    from capplan.formulas.queueing_numeric import mgk_queue

    if not isinstance(workload, Workload):
        raise InputError("must be a Workload, for example Workload(input=1000, output=2000)", key="workload")
    rate = one_number(request_rate, "request_rate", above=True)
    whole_number(ranks, "ranks")
    if routing not in ROUTINGS:
        raise InputError(f"{shown(routing)} is none of {', '.join(ROUTINGS)}", key="routing")
    variation = one_number(dispersion, "dispersion", above=True)
    prompts, weights = _prompt_nodes(workload)
    seconds = np.broadcast_to(np.asarray(prompt_seconds(prompts), dtype=float), prompts.shape)
    load = rate * float(weights @ seconds) / ranks
    if load >= 1.0:
        text = f"offered {load:.3g} of what the pool can read: the queue grows without bound"
        return PrefillQueue(load, False, (text,), None)
    shared = share_of_queue(rate, ranks, variation, routing)
    queue = mgk_queue(shared.request_rate, seconds, weights, shared.ranks, shared.dispersion)
    return PrefillQueue(load, True, queue_warnings(queue), queue)


class QueueShare(NamedTuple):
    """One queue of a pool: its arrivals [1/s], the ranks behind it, the dispersion of its arrivals."""

    request_rate: float
    ranks: int
    dispersion: float


def share_of_queue(request_rate: float, ranks: int, dispersion: float, routing: str) -> QueueShare:
    """What one queue of a pool gets: a router that looks at the load makes one queue of all ranks."""
    if routing not in BLIND_SPLITS:
        return QueueShare(request_rate, ranks, max(1.0, dispersion))
    return QueueShare(request_rate / ranks, 1, max(1.0, float(BLIND_SPLITS[routing](dispersion, ranks))))


def _prompt_nodes(workload: Workload) -> tuple[Any, Any]:
    """Prompt lengths of at least one token with their shares."""
    import numpy as np

    prompts, weights = workload.input.nodes(PROMPT_NODES)
    return np.maximum(prompts, 1.0), weights / weights.sum()


def queue_warnings(queue: MgkQueue) -> tuple[Notice, ...]:
    """Where the laws of the queue leave the range in which they were checked."""
    listed = [
        (queue.utilization > HIGH_LOAD,
         Notice(f"prefill load {queue.utilization:.0%}: TTFT tails are uncertain above {HIGH_LOAD:.0%}",
                ("ttft_p90", "ttft_p99"))),
        (queue.servers > 1 and queue.utilization > BUSY and queue.service_variation > HEAVY_VARIATION,
         Notice(f"prompts of squared cv {queue.service_variation:.3g} before several ranks: waits up to 45 % too short",
                within=0.45)),
        (queue.arrival_variation > 1 and queue.utilization < LOW_LOAD,
         Notice(f"bursts at a prefill load of {queue.utilization:.0%}: waits are over-stated, checked from "
                f"{LOW_LOAD:.0%} on")),
    ]  # fmt: skip
    return tuple(notice for holds, notice in listed if holds)
