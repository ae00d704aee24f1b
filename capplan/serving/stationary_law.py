"""The answer of :func:`capplan.serving.stationary.concurrency`: means and percentiles of one rank."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from capplan.cards.workload import Workload
from capplan.errors import InputError
from capplan.formulas import cap as capped
from capplan.formulas import special
from capplan.formulas import stationary as closed
from capplan.formulas.pearson_mixture import PearsonMixture
from capplan.serving.output_range import nodes_within
from capplan.serving.stationary_bounds import (
    BoundedLaw,
    Law,
    StepCumulants,
    StepLaw,
    infinite,
    probabilities,
    probability,
    shifted,
)
from capplan.serving.stationary_moments import StepMoments
from capplan.serving.stationary_range import range_warnings

if TYPE_CHECKING:
    from capplan.formulas.decode_nodes import DecodeNodes

DISPERSION_HORIZON = 1.5
"""Relaxation times over which the dispersion of arrivals is to be taken (1 for a stream that drifts)."""
_LEAST_PEAKEDNESS = 0.02
_WAIT_CELLS = 12
_BOUNDING_WAIT = 1e-5
"""A full batch bounds a mixture of laws only where more requests than this find the batch full."""
_FINE_NODES = 240
"""The decode time follows the length, so its law needs the lengths in detail."""


@dataclass(frozen=True, eq=False)
class Stationary:
    """One decoding rank in the stationary state.

    Batch: ``mean``, ``std``, ``quantile`` over time. Step time: ``step_mean`` over steps, ``step_quantile`` over
    time. ITL: over tokens. TPOT and decode time (``e2e``: wait for a slot and decode steps, prefill apart): over
    requests. All times in seconds. Quantiles take a probability between 0 and 1, or an array of them.
    """

    moments: StepMoments
    workload: Workload = field(repr=False)
    request_rate: float
    cap: int | None
    method: str
    bursty: bool = False
    """Whether arrivals are more dispersed than Poisson."""
    dispersion_window: float | None = None
    """Length of the record the dispersion was measured on [s]."""
    in_flight: int | None = None
    """Requests in flight of a closed loop [1]."""

    # -- means -----------------------------------------------------------------------------------------------------

    @property
    def stable(self) -> bool:
        """False where more is offered than the rank can do: waits or the batch then grow without bound."""
        return self.moments.stable and not math.isinf(self.moments.wait_mean_of_waiting)

    @property
    def bounded(self) -> bool:
        """Whether the batch has a law: stable, or held at the cap."""
        return math.isfinite(self.moments.step_mean)

    @property
    def load(self) -> float:
        """x, or the load of the slots where a cap is given [1]."""
        return self.moments.load if self.moments.slot_load is None else self.moments.slot_load

    @property
    def step_mean(self) -> float:
        """Mean step time over steps, each counting once, a/(1 - x) [s]."""
        return self.moments.step_mean

    @property
    def step_std(self) -> float:
        """Standard deviation of the step time over steps [s]."""
        return math.sqrt(self.moments.step_variance)

    @property
    def step_mean_over_time(self) -> float:
        """Mean step time at a random instant [s]."""
        return self._law_of_time.total_mean if self.bounded else math.inf

    @property
    def mean(self) -> float:
        """Mean batch over time [1]."""
        m = self.moments
        mean = m.batch_mean + m.covariance / m.step_mean if self.bounded else math.inf
        return mean if self.cap is None else min(mean, float(self.cap))

    @property
    def std(self) -> float:
        """Standard deviation of the batch over time [1]."""
        return math.sqrt(self.mean * self._batch_ratio) if self.bounded else math.inf

    @property
    def held_std(self) -> float:
        """Standard deviation of the batch over time as far as it moves what the batch holds of the KV pool [1].

        Below ``std`` behind least-kv routing: its batches are unequal because their contexts are.
        """
        m = self.moments
        return self.std if m.held_variance is None else self.std * math.sqrt(m.held_variance / m.batch_variance)

    def peakedness(self, calm: Stationary) -> float:
        """What bursts and routing make of the variance of the batch that the KV pool sees; ``calm`` has neither [1]."""
        return max(_LEAST_PEAKEDNESS, (self.held_std / calm.std) ** 2) if calm.std > 0 else 1.0

    @property
    def held_size_share(self) -> float:
        """Variance that routing leaves of what the running requests of a rank hold, over that of a random split [1]."""
        return self.moments.held_size_share

    @property
    def itl_mean(self) -> float:
        """Mean gap between two tokens, over tokens [s]."""
        return self._law_of_tokens.total_mean if self.bounded else math.inf

    @property
    def tpot_mean(self) -> float:
        """Mean TPOT over requests [s]."""
        return self._tpot.total_mean if self.bounded else math.inf

    @property
    def shape_index(self) -> float:
        """(E_s T - a)^2 / V_T: 10 and more is the normal range, below 2 a handful of huge requests rule [1]."""
        m = self.moments
        if not self.bounded or m.step_variance <= 0.0:
            return math.inf
        return closed.shape_index(m.step_mean - m.a, m.step_variance) if m.stable else math.inf

    @property
    def relaxation_seconds(self) -> float:
        """Relaxation time of the batch, tau E_s T [s]."""
        return self.moments.relaxation * self.moments.step_mean

    @property
    def dispersion_horizon_seconds(self) -> float:
        """Window over which the index of dispersion of arrivals is to be taken [s]."""
        return DISPERSION_HORIZON * self.relaxation_seconds

    # -- percentiles -----------------------------------------------------------------------------------------------

    def quantile(self, p: Any) -> Any:
        """Batch, over time: smallest whole number not exceeded with probability ``p`` [1]."""
        if np.ndim(p):
            return np.array([self.quantile(float(one)) for one in np.ravel(p)]).reshape(np.shape(p))
        p = probability(p)
        if not self.bounded:
            return math.inf
        value = self._open_quantile(p)
        return value if self.in_flight is None else min(value, max(float(self.in_flight), math.ceil(self.mean)))

    def _open_quantile(self, p: float) -> float:
        if self.moments.table is not None:
            return float(np.searchsorted(np.cumsum(self.moments.table.probabilities), p))
        if self.cap is None or self.moments.wait_probability <= 0.0:
            return float(special.negative_binomial_quantile(self.mean, self._batch_ratio, p))
        return self._capped_quantile(p)

    def _capped_quantile(self, p: float) -> float:
        """The batch below the cap keeps its shape; the share that finds no slot sits at the cap."""
        assert self.cap is not None
        free = 1.0 - self.moments.wait_probability
        if p >= free:
            return float(self.cap)
        below = special.negative_binomial_cdf(self.mean, self._batch_ratio, self.cap - 1)
        inner = special.negative_binomial_quantile(self.mean, self._batch_ratio, p / free * below)
        return float(min(inner, self.cap))

    def step_quantile(self, p: Any) -> Any:
        """Step time at a random instant [s]."""
        return self._law_of_time.quantile(p) if self.bounded else infinite(p)

    def itl_quantile(self, p: Any) -> Any:
        """Gap between two tokens, over tokens [s]."""
        return self._law_of_tokens.quantile(p) if self.bounded else infinite(p)

    def tpot_quantile(self, p: Any, outputs: tuple[float, float] | None = None) -> Any:
        """TPOT, over requests with at least two output tokens [s].

        ``outputs``: (fewest, most) output tokens of the requests that count, both included; None for all.
        """
        if not self.bounded:
            return infinite(p)
        law = self._tpot if outputs is None else self._tpot_law(nodes_within(self.workload, outputs))
        return law.quantile(probabilities(p))

    def itl_share_within(self, seconds: float) -> float:
        """Share of gaps between two tokens of at most ``seconds`` [1]."""
        return self._law_of_tokens.cdf(seconds) if self.bounded else 0.0

    def tpot_share_within(self, seconds: float) -> float:
        """Share of requests, of those with two output tokens and more, with a TPOT of at most ``seconds`` [1]."""
        return float(self._tpot.cdf(seconds)) if self.bounded else 0.0

    def e2e_quantile(self, p: Any, outputs: tuple[float, float] | None = None) -> Any:
        """Wait for a slot plus all decode steps, over requests; prefill and transfer come on top [s].

        ``outputs`` as in :meth:`tpot_quantile`.
        """
        if not self.stable:
            return infinite(p)
        law = self._decode_time if outputs is None else self._decode_law(nodes_within(self.workload, outputs))
        value = law.quantile(probabilities(p))
        return np.maximum(value, 0.0) if np.ndim(p) else max(0.0, value)

    def thinking_quantile(self, p: Any) -> Any:
        """Wait for a slot plus the decode steps up to the first token after the reasoning, over requests [s]."""
        return np.maximum(self._thinking_time.quantile(probabilities(p)), 0.0) if self.stable else infinite(p)

    @property
    def wait_probability(self) -> float:
        """Share of requests that find every slot taken; 0 without a cap [1]."""
        return self.moments.wait_probability

    @property
    def wait_mean(self) -> float:
        """Mean wait for a slot over all requests [s]."""
        m = self.moments
        return m.wait_probability * m.wait_mean_of_waiting if m.wait_probability else 0.0

    def wait_quantile(self, p: Any) -> Any:
        """Wait for a slot, over requests [s]."""
        if np.ndim(p):
            return np.array([self.wait_quantile(float(one)) for one in np.ravel(p)]).reshape(np.shape(p))
        m = self.moments
        return capped.wait_quantile(probability(p), m.wait_probability, m.wait_mean_of_waiting)

    def slowdown(self, outputs: float) -> float:
        r"""How much longer requests of ``outputs`` tokens take than without a cap, :math:`1 + E[W]/(D\,\mathrm{TPOT})`.

        First come, first served makes short requests wait as long as any: head-of-line blocking [1].
        """
        if not outputs > 1.0:
            raise InputError("needs at least two output tokens", key="outputs")
        return 1.0 + self.wait_mean / ((outputs - 1.0) * self.tpot_mean) if self.stable else math.inf

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Why the percentiles may be wrong, one sentence each; empty in the normal range."""
        return range_warnings(self)

    # -- laws ------------------------------------------------------------------------------------------------------

    @property
    def _batch_ratio(self) -> float:
        """Variance over mean of the batch."""
        return max(self.moments.batch_variance / self.moments.batch_mean, 1e-9)

    def _reweighted(self, shift: float) -> StepLaw:
        m = self.moments
        return shifted(StepCumulants(m.step_mean, m.step_variance, m.third), shift, m.least)

    def _within_cap(self, law: StepLaw, shift_of_full: float) -> Law:
        full = self.moments.full
        return law if full is None else BoundedLaw(law, shifted(full, shift_of_full, self.moments.least))

    @cached_property
    def _law_of_time(self) -> Law:
        m = self.moments
        of_full = m.full.variance / m.full.mean if m.full else 0.0
        return self._within_cap(self._reweighted(m.step_variance / m.step_mean), of_full)

    @cached_property
    def _law_of_tokens(self) -> Law:
        """Steps at the cap give equally many tokens each, so there the law over tokens is that over steps."""
        return self._within_cap(self._reweighted(self.moments.covariance / self.moments.batch_mean), 0.0)

    @cached_property
    def _tpot(self) -> Law:
        """TPOT over requests, on few nodes: TPOT depends smoothly on the length."""
        return self._tpot_law(self.workload.few_nodes)

    def _tpot_law(self, nodes: DecodeNodes) -> Law:
        """TPOT over requests of these lengths."""
        full, law = self.moments.full, self._tpot_on(nodes)
        if full is None:
            return law
        if full.variance <= 0.0:
            return BoundedLaw(law, StepLaw(full.mean, 0.0, 0.0, 0.0))
        if self.moments.wait_probability < _BOUNDING_WAIT:
            return law
        return BoundedLaw(law, self._tpot_at_cap(nodes, full))

    def _tpot_at_cap(self, nodes: DecodeNodes, full: StepCumulants) -> PearsonMixture:
        """TPOT over requests whose every step finds the batch full."""
        use = nodes.steps > 0.0
        own = nodes.prompt_mean[use] + nodes.steps[use] / 2 - self.workload.mean_context
        return self._mixture(nodes, full.mean + self.moments.c * own, full.variance, full.third)

    def _tpot_on(self, nodes: DecodeNodes) -> PearsonMixture:
        """TPOT over requests: one Pearson III law for each length."""
        m = self.moments
        use = nodes.steps > 0.0
        steps = nodes.steps[use]
        memory = closed.memory_of_arrival(self._relaxations(steps), 1.0)
        met = self._reweighted(m.met_shift)
        own = m.e + m.c * (nodes.prompt_mean[use] + steps / 2) - m.replaced
        mean = closed.tpot_mean_of_length(m.step_mean, m.met_shift, m.added * own, m.feedback, memory)
        if m.trades_places:
            mean = mean + (1 - m.added) * (own - m.b)
        return self._mixture(nodes, mean, met.variance, met.third)

    def _mixture(self, nodes: DecodeNodes, mean: Any, step_variance: float, step_third: float) -> PearsonMixture:
        """Step times of that variance averaged over the steps of each length, and the spread of prompts beside it."""
        m, use = self.moments, nodes.steps > 0.0
        weights, shrink = nodes.weights[use] / nodes.weights[use].sum(), self._shrink(nodes.steps[use])
        variance = step_variance * shrink + m.c**2 * nodes.prompt_variance[use]
        third = step_third * shrink**2 + m.c**3 * nodes.prompt_third[use]
        std = np.sqrt(np.maximum(variance, 0.0))
        skew = np.divide(third, std**3, out=np.zeros_like(std), where=std > 0.0)
        return PearsonMixture(weights, mean, std, np.minimum(skew, 30.0))

    def _shrink(self, steps: Any) -> Any:
        """Variance of the step time averaged over so many steps, over that of one step."""
        m = self.moments
        if m.spectrum is not None:
            return m.spectrum.averaged_variance(steps) / m.spectrum.step_variance
        y = self._relaxations(steps)
        return np.where(y > 1e-3, closed.autocorrelation_shrink(y, 1.0), 1 - y / 3)

    def _relaxations(self, steps: Any) -> Any:
        """Decode steps in relaxation times of the batch."""
        return np.maximum(steps / self.moments.relaxation, 1e-6)

    @cached_property
    def _decode_time(self) -> Law:
        return self._decode_law(self.workload.decode_nodes(_FINE_NODES))

    @cached_property
    def _thinking_time(self) -> Law:
        return self._decode_law(self.workload.reasoning_nodes(_FINE_NODES))

    def _decode_law(self, nodes: DecodeNodes) -> Law:
        """Wait for a slot and decode steps, over requests of these lengths."""
        m = self.moments
        law = self._with_waits(self._tpot_on(nodes), nodes)
        if m.full is None or m.wait_probability < _BOUNDING_WAIT:
            return law
        return BoundedLaw(law, self._with_waits(self._tpot_at_cap(nodes, m.full), nodes))

    def _with_waits(self, tpot: PearsonMixture, nodes: DecodeNodes) -> PearsonMixture:
        """Decode steps times TPOT, the wait for a slot added as equal cells of its law."""
        steps = nodes.steps[nodes.steps > 0.0]
        waits, shares = self._wait_cells()
        some = float(nodes.weights[nodes.steps > 0.0].sum())
        mean = (tpot.mean * steps)[None, :] + waits[:, None]
        size = mean.shape
        weight = shares[:, None] * tpot.weights[None, :] * some
        parts = [weight, mean, np.broadcast_to(tpot.std * steps, size), np.broadcast_to(tpot.skew, size)]
        weight, mean, std, skew = (part.ravel() for part in parts)
        if some < 1.0 - 1e-12:  # requests of one token take no decode step
            weight, mean = np.append(weight, shares * (1 - some)), np.append(mean, waits)
            std, skew = np.append(std, 0.0 * waits), np.append(skew, 0.0 * waits)
        return PearsonMixture(weight, mean, std, skew)

    def _wait_cells(self) -> tuple[Any, Any]:
        m = self.moments
        if m.wait_probability <= 1e-9:
            return np.zeros(1), np.ones(1)
        edges = np.concatenate(
            [np.linspace(0, 0.8, _WAIT_CELLS // 2 + 1), 1 - 0.2 * 0.3 ** np.arange(1, _WAIT_CELLS // 2), [1.0]]
        )
        middle = 0.5 * (edges[1:] + edges[:-1])
        middle[-1] = 1 - (1 - edges[-2]) * math.exp(-1.0)  # mean of an exponential tail
        waits = -m.wait_mean_of_waiting * np.log1p(-middle)
        shares = np.diff(edges) * m.wait_probability
        return np.append(0.0, waits), np.append(1 - m.wait_probability, shares)
