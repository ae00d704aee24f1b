"""Where the laws of one decoding rank leave the range in which they were checked on event simulations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from capplan.serving.notice import Notice

if TYPE_CHECKING:
    from capplan.serving.stationary_law import Stationary

LOW_SHAPE = 2.0
NORMAL_SHAPE = 10.0
"""Shape index from which on P99 of step time and TPOT are within 2 % (Poisson) and 6 % (bursts)."""
HIGH_LOAD = 0.9
STEADY_CV = 0.1
WINDOW_SHARE = 1 / 6
"""Longest horizon, as a share of the record, over which a dispersion can be told from a trend."""
_STEP_P99 = ("step_p99", "tpot_p99", "itl_p99")
"""ITL is the step time as tokens see it."""


def range_warnings(state: Stationary) -> tuple[Notice, ...]:
    """Why the percentiles may be wrong, one sentence each; empty in the normal range."""
    return (*_load(state), *_shape(state), *_lengths(state), *_window(state))


def _load(state: Stationary) -> Iterator[Notice]:
    if not state.stable:
        yield Notice(f"load {state.load:.3g} is 1 or more: more is offered than the rank can decode")
    elif state.load > HIGH_LOAD:
        yield Notice(f"load {state.load:.3g} is above {HIGH_LOAD}: percentiles react strongly to every input")


def _shape(state: Stationary) -> Iterator[Notice]:
    index = state.shape_index
    if index < LOW_SHAPE:
        yield Notice(f"shape index {index:.2g} is below 2: a handful of huge requests rule the step time")
    elif index < NORMAL_SHAPE:
        wide, within = ("17 % (bursts)", 0.17) if state.bursty else ("3 %", 0.03)
        text = f"shape index {index:.2g} is between 2 and 10: P99 of step time and TPOT within {wide}, not 2 %"
        yield Notice(text, _STEP_P99, within)


def _lengths(state: Stationary) -> Iterator[Notice]:
    if (cv := state.workload.decode_moments.steps_cv) < STEADY_CV:
        yield Notice(f"output lengths are nearly fixed (cv {cv:.2g}): requests may march in step")


def _window(state: Stationary) -> Iterator[Notice]:
    window, horizon = state.dispersion_window, state.dispersion_horizon_seconds
    if window is not None and state.bursty and horizon > WINDOW_SHARE * window:
        yield Notice(
            f"the dispersion is wanted over {horizon:,.0f} s, more than a sixth of the record of {window:,.0f} s: "
            "trend counts as bursts, P99 errs high by 7-20 %",
            (*_STEP_P99, "batch_p99", "kv_use_p99"),
            within=0.20,
        )
