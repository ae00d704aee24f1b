"""Mixtures of experts: occupancy and busiest ranks against enumeration and simulation, grouped products."""

import itertools

import numpy as np
import pytest
import sympy
from scipy import stats

from capplan.formulas.experts import (
    busiest_rank_distinct,
    busiest_rank_rows,
    distinct_experts,
    expert_term,
    experts_seconds,
    normal_maximum,
)


def test_distinct_experts_equal_full_enumeration():
    """Two tokens, each two of four experts: all 36 choices."""
    pairs = list(itertools.combinations(range(4), 2))
    mean = np.mean([len(set(a) | set(b)) for a in pairs for b in pairs])
    assert distinct_experts(2, 4, 2) == pytest.approx(mean)


def test_distinct_experts_measured_and_in_the_limits():
    """A workload touched 170 of 256 experts: 34 tokens with 8 each; round-robin tables say all 256 from 32 on."""
    assert distinct_experts(34.1, 256, 8) == pytest.approx(170, abs=2)
    assert distinct_experts(1, 256, 8) == pytest.approx(8)
    assert distinct_experts(1e5, 256, 8) == pytest.approx(256)
    tokens = sympy.Symbol("tokens", positive=True)
    assert sympy.limit(distinct_experts(tokens, 256, sympy.Integer(8)), tokens, sympy.oo) == 256


@pytest.mark.parametrize(("count", "within"), [(4, 0.13), (8, 0.08), (32, 0.04), (128, 0.03)])
def test_normal_maximum_against_order_statistics(count, within):
    x = np.linspace(-8, 8, 20001)
    exact = np.trapezoid(x * count * stats.norm.pdf(x) * stats.norm.cdf(x) ** (count - 1), x)
    assert normal_maximum(count) == pytest.approx(exact, rel=within)
    assert normal_maximum(1) == 0.0


@pytest.mark.parametrize(("tokens", "ranks"), [(64, 8), (2048, 32)])
def test_busiest_rank_against_simulated_routing(tokens, ranks):
    rng = np.random.default_rng(7)
    busiest, most = [], []
    for _ in range(60):
        chosen = rng.random((tokens, 256)).argpartition(8, axis=1)[:, :8]
        counts = np.bincount(chosen.ravel(), minlength=256).reshape(ranks, -1)
        busiest.append(counts.sum(axis=1).max())
        most.append((counts > 0).sum(axis=1).max())
    assert busiest_rank_rows(tokens * 8, 256, ranks) == pytest.approx(np.mean(busiest), rel=0.03)
    distinct = busiest_rank_distinct(distinct_experts(tokens, 256, 8), 256, ranks)
    assert distinct == pytest.approx(np.mean(most), rel=0.06)


def test_skew_stretches_the_busiest_rank_only_where_there_are_ranks():
    assert busiest_rank_rows(4096.0, 256, 8, 2.0) > 1.8 * busiest_rank_rows(4096.0, 256, 8)
    assert busiest_rank_rows(4096.0, 256, 1, 2.0) == 4096.0
    assert busiest_rank_rows(2.0, 256, 8, 100.0) == 2.0


def test_a_rank_with_one_expert_more_has_its_tokens_too():
    """256 experts over 144 GPUs: most hold two; 32 copies make it even."""
    uneven, even = busiest_rank_rows(144e3, 256, 144), busiest_rank_rows(144e3, 288, 144)
    assert uneven / even == pytest.approx(288 / 256, rel=0.02)


def up_gate(**changed):
    constants = {
        "floor_seconds": 7.4e-6,
        "stream_bandwidth": 3.3e12,
        "narrow_outputs": 50,
        "flops_per_second": 1135e12,
        "padding_rows": 150,
    }
    return expert_term(7168, 4096, 1, **{**constants, **changed})


def test_grouped_products_measured_on_one_h800():
    """32 experts of 16 rows: 325 us; 8 of 256: 183 us; 2 of 1,024: 130 us (InferSim's DeepGEMM table)."""
    for distinct, rows, microseconds in ((32, 16, 325.2), (8, 256, 182.9), (2, 1024, 129.5)):
        seconds = experts_seconds(distinct * rows, distinct, [up_gate()])
        assert seconds * 1e6 == pytest.approx(microseconds, rel=0.12)


def test_grouped_time_grows_with_experts_and_rows_and_falls_with_better_hardware():
    base = experts_seconds(512.0, 32.0, [up_gate()])
    assert experts_seconds(512.0, 33.0, [up_gate()]) > base
    assert experts_seconds(700.0, 32.0, [up_gate()]) > base
    assert experts_seconds(512.0, 32.0, [up_gate(stream_bandwidth=4e12)]) < base
    assert experts_seconds(512.0, 32.0, [up_gate(flops_per_second=2e15)]) < base
    rows = np.array([8.0, 512.0, 9000.0])
    together = experts_seconds(rows, np.array([4.0, 32.0, 32.0]), [up_gate()])
    assert together[1] == pytest.approx(base, rel=1e-14)
