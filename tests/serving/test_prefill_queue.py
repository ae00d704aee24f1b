"""The queue before a prefill pool: known laws, the simulated runs, overload, warnings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from benchmarks.pool_runs import queue_pairs
from capplan.cards.workload import Workload
from capplan.errors import InputError
from capplan.formulas.length_laws import LogNormal
from capplan.serving.prefill_queue import PrefillQueue, prefill_queue


def queue(rate: float = 0.6, ranks: int = 1, dispersion: float = 1.0, cv: float = 0.0) -> PrefillQueue:
    prompts: Any = LogNormal(1000, cv, max=131_072) if cv else 1000
    return prefill_queue(Workload(prompts, 100), rate, lambda tokens: 1e-3 * tokens, ranks, dispersion)


def test_fixed_prompts_before_one_rank() -> None:
    """M/D/1: mean wait rho/(2 (1 - rho)) services."""
    found = queue()
    assert found.utilization == pytest.approx(0.6)
    assert found.wait_probability == pytest.approx(0.6)
    assert found.wait_mean == pytest.approx(0.75)
    assert found.ttft_mean == pytest.approx(1.75)
    assert found.wait_quantile(0.3) == 0.0
    assert found.ttft_quantile(0.99) > found.wait_quantile(0.99) > found.wait_mean
    assert found.warnings == ()


@pytest.mark.simulation
def test_simulated_pools_of_several_ranks() -> None:
    errors = [
        abs(state.ttft_quantile(0.99) / run["sim"][11] - 1)
        for state, run in queue_pairs()
        if run["servers"] > 1 and run["ca2"] == 1 and not state.warnings
    ]
    assert len(errors) >= 10
    assert np.median(errors) < 0.03
    assert np.quantile(errors, 0.95) < 0.2


def test_overload_is_an_answer() -> None:
    found = queue(1.2)
    assert not found.stable
    assert math.isinf(found.ttft_mean)
    assert math.isinf(found.wait_mean)
    assert math.isinf(found.ttft_quantile(0.5))
    assert math.isinf(found.wait_quantile(0.5))
    assert found.wait_probability == 1.0
    assert "without bound" in found.warnings[0]


def test_a_router_that_does_not_look_makes_a_queue_of_each_rank() -> None:
    workload = Workload(LogNormal(1000, 1.0, max=131_072), 100)

    def pool(routing: str, dispersion: float) -> PrefillQueue:
        return prefill_queue(workload, 2.4, lambda tokens: 1e-3 * tokens, 4, dispersion, routing)

    alone = prefill_queue(workload, 0.6, lambda tokens: 1e-3 * tokens)
    assert pool("random", 1.0).ttft_quantile(0.99) == pytest.approx(alone.ttft_quantile(0.99))
    assert pool("random", 1.0).wait_mean > 2 * pool("least-loaded", 1.0).wait_mean
    assert pool("least-kv", 1.0).wait_mean == pool("least-loaded", 1.0).wait_mean
    waits = [pool(routing, 9.0).wait_mean for routing in ("round-robin", "random")]
    assert waits == sorted(waits)
    assert all(found.utilization == pytest.approx(0.6) for found in (alone, pool("random", 1.0)))


def test_ranges_are_warned_of() -> None:
    assert "above 90%" in queue(0.95).warnings[0]
    assert "too short" in queue(3.4, ranks=4, cv=6.0).warnings[0]
    assert "over-stated" in queue(0.2, dispersion=8.0).warnings[0]


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ((0, 1.0, abs), "workload"),
        ((Workload(10, 10), -1.0, abs), "request_rate"),
        ((Workload(10, 10), 1.0, abs, 0), "ranks"),
        ((Workload(10, 10), 1.0, abs, 1, 0.0), "dispersion"),
        ((Workload(10, 10), 1.0, abs, 1, 1.0, "nearest"), "routing"),
    ],
)
def test_bad_input_names_its_key(arguments: tuple[Any, ...], key: str) -> None:
    with pytest.raises(InputError) as caught:
        prefill_queue(*arguments)
    assert caught.value.key == key
