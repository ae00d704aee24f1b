"""Swapping a preempted request or computing it again."""

from __future__ import annotations

from typing import Any

import pytest

from capplan import Layout, load_hardware, load_model, prefill
from capplan.cards.kv import kv_bytes_per_rank
from capplan.errors import InputError
from capplan.formulas.preemption_policies import swap_break_even_bandwidth
from capplan.serving.eviction import EFFICIENCY, eviction

MODEL, HARDWARE = load_model("llama-3.1-8b"), load_hardware("h100")


def test_both_times_are_those_of_prefill_and_link() -> None:
    found = eviction(MODEL, HARDWARE, Layout(), 4000)
    assert found.recompute_seconds == pytest.approx(prefill(MODEL, HARDWARE, Layout(), 4000).seconds)
    sent = 2 * kv_bytes_per_rank(MODEL, 4000, None)
    assert found.swap_seconds == pytest.approx(sent / (EFFICIENCY * HARDWARE.pcie_bandwidth))
    assert found.swap_pays


def test_other_traffic_turns_the_choice_at_the_break_even() -> None:
    even = eviction(MODEL, HARDWARE, Layout(), 4000).break_even_utilization
    assert 0.5 < even < 0.95
    assert eviction(MODEL, HARDWARE, Layout(), 4000, link_utilization=even - 0.01).swap_pays
    assert not eviction(MODEL, HARDWARE, Layout(), 4000, link_utilization=even + 0.01).swap_pays
    per_token = eviction(MODEL, HARDWARE, Layout(), 4000).recompute_seconds / 4000
    bandwidth = swap_break_even_bandwidth(kv_bytes_per_rank(MODEL, 1, None), per_token, even)
    assert bandwidth == pytest.approx(EFFICIENCY * HARDWARE.pcie_bandwidth, rel=1e-6)


def test_a_prefix_cache_makes_recompute_cheaper_and_nvlink_swap_faster() -> None:
    plain = eviction(MODEL, HARDWARE, Layout(), 4000)
    assert eviction(MODEL, HARDWARE, Layout(), 4000, recomputed_share=0.3).recompute_seconds < plain.recompute_seconds
    assert eviction(MODEL, HARDWARE, Layout(), 4000, "nvlink").swap_seconds < plain.swap_seconds


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"link": "ethernet"}, "link"),
        ({"link_utilization": 1.0}, "link_utilization"),
        ({"recomputed_share": 1.5}, "link_utilization"),
        ({"tokens": 0}, "tokens"),
    ],
)
def test_bad_input_names_its_key(options: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError) as caught:
        eviction(MODEL, HARDWARE, Layout(), **{"tokens": 4000, **options})
    assert caught.value.key == key
