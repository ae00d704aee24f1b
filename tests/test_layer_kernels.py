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
    "dsa generation, sglang": (0.12, 0.40),
    "dsa context, vllm": (0.12, 0.70),
    "csa generation, vllm": (0.12, 0.30),
    "csa context, vllm": (0.18, 0.50),
    "hca generation, vllm": (0.12, 0.30),
    "hca context, vllm": (0.30, 0.50),
    "msa generation, vllm": (0.33, 0.80),
    "msa context, vllm": (0.38, 0.73),
}
"""Median and 90th percentile of the error on an H200. Modules hold their projections, by the constants of plain
products; no constant of compressed attention (csa, hca) is fitted to its own tables."""


@pytest.fixture(scope="module")
def ratios():
    return dict(tables())


@pytest.mark.parametrize("name", MOST)
def test_h200(ratios, name):
    median, high, _ = errors(ratios[f"h200 {name}"])
    assert median < MOST[name][0]
    assert high < MOST[name][1]
