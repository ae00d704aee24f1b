"""Exchanges between GPUs: bytes by hand, published latencies, limits."""

import numpy as np
import pytest

from capplan.formulas.collectives import (
    all_reduce_bytes,
    all_reduce_seconds,
    distinct_destinations,
    exchange_seconds,
    exposed_communication_seconds,
    internode_all_reduce_seconds,
)

H200 = (2.6e-6, 0.74e-6, 16e-6, 299e9)


def test_all_reduce_moves_twice_the_share_of_the_others():
    assert all_reduce_bytes(8e6, 8) == pytest.approx(14e6)
    assert all_reduce_bytes(8e6, 1) == 0


def test_all_reduce_takes_one_step_for_small_and_two_for_large_messages():
    small, large = all_reduce_seconds(57344, 8, *H200), all_reduce_seconds(64 * 2**20, 8, *H200)
    assert small == pytest.approx(2.6e-6 + 8 * 0.74e-6 + 7 * 57344 / 299e9)
    assert large == pytest.approx(2.6e-6 + 8 * 0.74e-6 + 16e-6 + 1.75 * 64 * 2**20 / 299e9)
    sizes = np.geomspace(1e3, 1e9, 50)
    seconds = all_reduce_seconds(sizes, 8, *H200)
    assert (np.diff(seconds) > 0).all()
    assert seconds[7] == pytest.approx(all_reduce_seconds(float(sizes[7]), 8, *H200))
    assert all_reduce_seconds(1e6, 1, *H200) == 0.0


def test_all_reduce_of_64_mib_over_8_h100_with_nccl():
    """0.322 ms by the profiles of Vidur (github.com/microsoft/vidur)."""
    assert all_reduce_seconds(64 * 2**20, 8, 2.6e-6, 0.74e-6, 17e-6, 285e9) * 1e3 == pytest.approx(0.322, rel=0.4)


def test_nodes_beyond_the_first_cost_more():
    one = internode_all_reduce_seconds(1e6, 1, 8, 26e-6, 46e9)
    two, four = (internode_all_reduce_seconds(1e6, nodes, 8, 26e-6, 46e9) for nodes in (2, 4))
    assert one == 0.0 < two < four


def test_distinct_destinations_equal_the_published_count():
    """Eight experts over eight GPUs reach 5.25 of them on average."""
    assert distinct_destinations(8, 8) == pytest.approx(5.251, abs=1e-3)
    assert distinct_destinations(1, 8) == 1
    assert distinct_destinations(10**6, 8) == pytest.approx(8, rel=1e-4)


def test_exchange_is_bound_by_the_slower_fabric():
    assert exchange_seconds(1e6, 0.0, 1e11, 1e10, 5e-6) == pytest.approx(15e-6)
    assert exchange_seconds(1e6, 1e6, 1e11, 1e10, 5e-6) == pytest.approx(105e-6)


def test_overlap_hides_the_shorter_of_communication_and_computation():
    assert exposed_communication_seconds(2.0, 3.0, 0.0) == 0.0
    assert exposed_communication_seconds(3.0, 2.0, 0.0) == 1.0
    assert exposed_communication_seconds(2.0, 3.0, 0.15) == pytest.approx(0.3)
