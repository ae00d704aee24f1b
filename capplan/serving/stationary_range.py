"""Where the laws of one decoding rank leave the range in which they were checked on event simulations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capplan.serving.stationary_law import Stationary

LOW_SHAPE = 2.0
NORMAL_SHAPE = 10.0
"""Shape index from which on P99 of step time and TPOT are within 2 % (Poisson) and 6 % (bursts)."""
HIGH_LOAD = 0.9
STEADY_CV = 0.1
WINDOW_SHARE = 1 / 6
"""Longest horizon, as a share of the record, over which a dispersion can be told from a trend."""


def range_warnings(state: Stationary) -> tuple[str, ...]:
    """Why the percentiles may be wrong, one sentence each; empty in the normal range."""
    return (*_load(state), *_shape(state), *_lengths(state), *_window(state))


def _load(state: Stationary) -> Iterator[str]:
    if not state.stable:
        yield f"load {state.load:.3g} is 1 or more: more is offered than the rank can decode"
    elif state.load > HIGH_LOAD:
        yield f"load {state.load:.3g} is above {HIGH_LOAD}: percentiles react strongly to every input"


def _shape(state: Stationary) -> Iterator[str]:
    index = state.shape_index
    if index < LOW_SHAPE:
        yield f"shape index {index:.2g} is below 2: a handful of huge requests rule the step time"
    elif index < NORMAL_SHAPE:
        wide = "17 % (bursts)" if state.bursty else "3 %"
        yield f"shape index {index:.2g} is between 2 and 10: P99 of step time and TPOT within {wide}, not 2 %"


def _lengths(state: Stationary) -> Iterator[str]:
    if (cv := state.workload.decode_moments.steps_cv) < STEADY_CV:
        yield f"output lengths are nearly fixed (cv {cv:.2g}): requests may march in step"


def _window(state: Stationary) -> Iterator[str]:
    window, horizon = state.dispersion_window, state.dispersion_horizon_seconds
    if window is not None and state.bursty and horizon > WINDOW_SHARE * window:
        yield (
            f"the dispersion is wanted over {horizon:,.0f} s, more than a sixth of the record of {window:,.0f} s: "
            "trend counts as bursts, P99 errs high by 7-20 %"
        )
