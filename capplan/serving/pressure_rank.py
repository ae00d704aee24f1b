"""One rank as the laws of KV pressure see it: checked arguments, step time, and where the laws leave their range."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from capplan.cards.workload import Workload
from capplan.errors import InputError, UnknownNameError, shown
from capplan.formulas import preemption_policies as policies
from capplan.formulas.length_law import MAX_TOKENS
from capplan.formulas.overflow import narrowed_cumulants, safe_cap, skewed_tail_factors
from capplan.formulas.preemption import PoolPressure, RequestSizes, closed_loop_pressure
from capplan.serving.notice import Notice
from capplan.serving.pressure_sizes import PoolRequest, narrow_outputs, pool_request, with_reservation
from capplan.serving.step_time import check_switch, one_number

POLICIES = ("recompute", "swap", "reserve")

METASTABLE_LOAD = 0.97
"""Load against the saturated rank from which on an open-loop rank may sit in either of two states."""
_SMALL_POOL = 15
_LARGE_PROMPT_SHARE = 0.5
_SHORT_PROMPT_SHARE = 0.1
_BUDGET_SHARE = 0.5


@dataclass(frozen=True)
class PressureRank:
    """Checked arguments: everything in units of the mean KV growth per token, so mostly tokens."""

    request: PoolRequest
    reserved: RequestSizes | None
    capacity: float
    watermark: float
    budget: float
    policy: str
    prefix_caching: bool

    def law(self, in_flight: Any) -> PoolPressure:
        """Closed-loop state under the policy."""
        sizes = self.request.sizes
        if self.reserved is not None:
            return policies.reservation_pressure(in_flight, self.capacity, sizes, self.reserved, self.budget)
        capacity = self.capacity
        if self.watermark:
            capacity = policies.watermark_capacity_tokens(capacity, self.watermark, sizes)
        tail = skewed_tail_factors(in_flight, capacity, sizes.held, sizes.held_variance, sizes.held_third)
        if self.watermark:
            return policies.watermark_pressure(in_flight, self.capacity, sizes, self.budget, self.watermark, tail)
        return closed_loop_pressure(in_flight, capacity, sizes, self.budget, tail=tail)

    def balanced(self, share: float) -> PressureRank:
        """The rank behind a router that leaves only a share of the variance of what its running requests hold."""

        def narrowed(sizes: RequestSizes) -> RequestSizes:
            variance, third = narrowed_cumulants(sizes.held_variance, sizes.held_third, share)
            return sizes._replace(held_variance=variance, held_third=third)

        reserved = None if self.reserved is None else narrowed(self.reserved)
        return replace(self, request=replace(self.request, sizes=narrowed(self.request.sizes)), reserved=reserved)

    @property
    def occupied(self) -> RequestSizes:
        """What a running request takes from the pool: its reservation included."""
        return self.reserved or self.request.sizes

    def victim_tokens(self, victim_size: Any) -> Any:
        """Tokens behind a victim's size; the two differ where the KV cache is not proportional to tokens."""
        return victim_size - self.request.sizes.prompt + self.request.prompt_tokens

    @property
    def holds_one(self) -> bool:
        """Whether the pool holds one mean request."""
        return bool(self.capacity - self.watermark >= self.occupied.held)

    def safe_cap(self, overflow: float) -> int:
        """Largest number of running requests whose demand exceeds the pool at most that share of time."""
        sizes = self.occupied
        return safe_cap(self.capacity, sizes.held, sizes.held_variance, sizes.held_third, overflow)

    def recomputed(self, state: PoolPressure) -> Any:
        """Recomputed tokens per generated token under the policy."""
        if self.policy == "swap":
            return 0.0 * state.recompute_per_token
        lost = self._lost(state)
        if self.prefix_caching:
            lost = lost * policies.prefix_cache_share(state.victim_tokens, self.request.sizes.output)
        return lost

    def swapped(self, state: PoolPressure) -> Any:
        """Tokens moved per generated token."""
        return 2 * self._lost(state) if self.policy == "swap" else 0.0 * state.recompute_per_token

    def _lost(self, state: PoolPressure) -> Any:
        return state.recompute_per_token * self.victim_tokens(state.victim_tokens) / state.victim_tokens


class PressureStep:
    """Step time of the rank in a state, and the time it takes to prefill again what a victim lost."""

    def __init__(self, step_time: Any, rank: PressureRank, *, prompts_here: bool = True) -> None:
        self._prompts = rank.request.prompt_tokens / rank.request.sizes.output if prompts_here else 0.0
        self._rank, self.prefill, self._function = rank, 0.0, None
        if isinstance(step_time, (tuple, list)) and len(step_time) in (3, 4):
            parts = [positive_number(part, "step_time", least=0.0) for part in step_time]
            self._empty, self._sequence, self._context = parts[:3]
            self.prefill = parts[3] if len(parts) == 4 else 0.0
            positive_number(self._empty + self._sequence, "step_time")
        else:
            from capplan.formulas.product_form import step_function

            self._function = step_function(step_time)

    def seconds(self, state: PoolPressure) -> Any:
        """Step time [s], prefill of new prompts and of recompute included where ``d`` is known."""
        if self._function is not None:
            import numpy as np

            found = self._function(np.atleast_1d(np.asarray(state.batch, dtype=float)))
            if not np.all(np.isfinite(found) & (found > 0)):
                raise InputError("must give a positive finite time for every batch", key="step_time")
            return found if np.ndim(state.batch) else float(found[0])
        request = self._rank.request
        decode = self._empty + state.batch * (self._sequence + self._context * request.context_tokens)
        return decode + self.prefill * state.batch * (self._prompts + self._rank.recomputed(state))

    def refill_seconds(self, state: PoolPressure) -> float:
        """Prefill of a victim [s]; none is lost under ``swap``."""
        if self._rank.policy == "swap":
            return 0.0
        return self.prefill * float(self._rank.victim_tokens(state.victim_tokens))


def range_warnings(
    rank: PressureRank, workload: Workload, batch: float, recompute: float, load: float | None
) -> list[str]:
    """What lies outside the range in which the laws were checked, one line each."""
    sizes, pool = rank.request.sizes, rank.capacity / rank.occupied.held
    busy = batch * (1 + rank.request.prompt_tokens / sizes.output + recompute)
    listed = [
        (narrow_outputs(workload), "outputs are nearly equal: requests move in convoys; waits and gaps not predicted"),
        (pool < _SMALL_POOL, f"the pool holds {pool:.3g} mean requests; checked from {_SMALL_POOL} on"),
        (_largest_prompt(rank, workload) > _LARGE_PROMPT_SHARE, "one request in a thousand needs half the pool"),
        (rank.request.prompt_tokens < _SHORT_PROMPT_SHARE * sizes.output,
         Notice("prompts are short against outputs: preemptions per request and waits are within 25 % only",
                ("preemptions_per_request", "largest_gap"), 0.25)),
        (busy > _BUDGET_SHARE * rank.budget, "prefill needs more than half the token budget of a step"),
        (load is not None and METASTABLE_LOAD <= load < 1,
         f"load {load or 0:.3f} of the full rank: metastable, calm or saturated; size for 0.9 or less"),
        (load is not None and load >= 1, f"load {load or 0:.3f} of the full rank: once full it stays full"),
    ]  # fmt: skip
    return [text for holds, text in listed if holds]


def _largest_prompt(rank: PressureRank, workload: Workload) -> float:
    """Prompt and output at P99.9 over the pool."""
    scale = rank.request.sizes.held / rank.request.context_tokens
    return float(workload.long_request_tokens * scale / rank.capacity)


def checked_rank(
    workload: Workload,
    kv_capacity: float,
    watermark: float,
    policy: str,
    reserve_tokens: float,
    prefix_caching: bool,
    block_size: float,
    token_budget: float,
    kv: Callable[[Any], Any] | None,
) -> PressureRank:
    """The arguments of :func:`capplan.serving.pressure.kv_pressure`, checked and put into one unit."""
    if not isinstance(workload, Workload):
        raise InputError("must be a Workload, for example Workload(input=1000, output=2000)", key="workload")
    if not isinstance(policy, str) or policy not in POLICIES:
        raise UnknownNameError.among(shown(policy).strip("'"), POLICIES, "policy", key="policy")
    positive_number(kv_capacity, "kv_capacity", most=1e18)
    if kv is not None and not callable(kv):
        raise InputError(f"must be a function, bytes held by context, not {shown(kv)}", key="kv")
    reserve = positive_number(reserve_tokens, "reserve_tokens", least=0, most=MAX_TOKENS)
    if (policy == "reserve") != (reserve > 0):
        raise InputError('reserve_tokens and policy="reserve" belong together', key="reserve_tokens")
    if not 0 <= positive_number(watermark, "watermark", least=0) < 1:
        raise InputError(f"must be a share of the pool below 1, not {shown(watermark)}", key="watermark")
    if watermark and reserve:
        raise InputError("a watermark together with a reservation is not modelled", key="watermark")
    request = pool_request(workload, positive_number(block_size, "block_size", least=1, most=1e6), kv)
    reserved = with_reservation(workload, request, reserve) if reserve else None
    capacity = kv_capacity / request.unit
    # the budget counts tokens; sizes may count equivalents of constant state on top
    filled = (request.sizes.prompt + request.sizes.output) / (request.prompt_tokens + request.sizes.output)
    budget = positive_number(token_budget, "token_budget", least=1) * filled
    return PressureRank(
        request,
        reserved,
        capacity,
        watermark * capacity,
        budget,
        policy,
        check_switch(prefix_caching, "prefix_caching"),
    )


def positive_number(value: Any, key: str, least: float | None = None, most: float = 1e12) -> float:
    """``value`` as a finite float, above 0 or at least ``least``; else an :class:`InputError` that names the key."""
    if least is None:
        return one_number(value, key, above=True, most=most)
    return one_number(value, key, least=least, most=most)
