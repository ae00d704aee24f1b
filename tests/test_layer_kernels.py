"""Kernels of recurrent and sparse layers, predicted over measured, on shapes no constant was fitted to."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from fidelity_layers import errors, tables

MOST = {
    "gated_delta generation, vllm": (0.05, 0.25),
    "gated_delta context, vllm": (0.08, 0.25),
    "kimi_delta generation, vllm": (0.08, 0.35),
    "kimi_delta verify, vllm": (0.06, 0.25),
    "kimi_delta context, vllm": (0.08, 0.25),
}
"""Median and 90th percentile of the error on an H200."""


@pytest.fixture(scope="module")
def ratios():
    return dict(tables())


@pytest.mark.parametrize("name", MOST)
def test_h200(ratios, name):
    median, high, _ = errors(ratios[f"h200 {name}"])
    assert median < MOST[name][0]
    assert high < MOST[name][1]
