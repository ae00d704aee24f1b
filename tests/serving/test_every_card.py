"""Every shipped model gives a decode step and a prefill."""

from pathlib import Path

import numpy as np
import pytest

from capplan import Layout, decode_step, load_hardware, load_model, prefill

H200 = load_hardware("h200")
NAMES = sorted(path.stem for path in (Path(__file__).parents[2] / "models").glob("*.json"))
BATCHES = np.array([1.0, 4.0, 16.0, 64.0, 256.0])
CONTEXTS = np.array([0.0, 1.0, 100.0, 2048.0, 4096.0, 32768.0, 131072.0])


@pytest.mark.parametrize("name", NAMES)
def test_a_decode_step_grows_with_batch_and_context(name):
    steps = decode_step(load_model(name), H200, Layout(), BATCHES[:, None], CONTEXTS[None, :])
    assert np.isfinite(steps.seconds).all()
    assert (steps.seconds > 0).all()
    assert (np.diff(steps.seconds, axis=0) > 0).all()
    assert (np.diff(steps.seconds, axis=1) >= 0).all()
    assert all((seconds >= 0).all() for seconds in steps.parts.values())
    assert (np.diff(steps.links["hbm"], axis=1) >= 0).all()
    assert sum(steps.shares.values()) == pytest.approx(steps.seconds, rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_a_prefill_grows_with_its_tokens_and_its_prefix(name):
    tokens, cached = np.array([64.0, 512.0, 4096.0, 32768.0]), np.array([0.0, 2048.0, 32768.0])
    steps = prefill(load_model(name), H200, Layout(), tokens[:, None], cached=cached[None, :])
    assert np.isfinite(steps.seconds).all()
    assert (steps.seconds > 0).all()
    assert (np.diff(steps.seconds, axis=0) > 0).all()
    assert (np.diff(steps.seconds, axis=1) >= 0).all()
