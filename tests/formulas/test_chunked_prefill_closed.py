import json
from pathlib import Path

import numpy as np
import pytest

from capplan.formulas.chunked_prefill_closed import ClosedLoopRank, closed_loop

RUNS = json.loads((Path(__file__).parents[1] / "truth" / "closed_loop_runs.json").read_text())["runs"]


def errors(identical, saturated, fits):
    """Relative errors of (X, TTFT, TPOT) of the runs of one regime."""
    found = []
    for run in RUNS:
        cfg, sim = run["cfg"], run["sim"]
        if bool(cfg["uni"]) == identical:
            continue
        mean = 1.0 if identical else 0.9  # lengths uniform on 0.8 to 1
        rank = ClosedLoopRank(
            cfg["a"], cfg["e"], cfg["c"], cfg["d"], cfg["g"], cfg["C"], mean * cfg["isl"], mean * cfg["osl"]
        )
        result = closed_loop(rank, cfg["N"], identical=identical)
        if result.saturated == saturated and (saturated or (rank.prompt_tokens <= cfg["C"] - result.running) == fits):
            pairs = ((result.rate, sim["X"]), (result.ttft, sim["ttft"]), (result.tpot, sim["tpot"]))
            found.append([abs(mine / theirs - 1) for mine, theirs in pairs])
    return np.array(found)


@pytest.mark.parametrize("identical", [False, True])
def test_saturated_loops_are_exact(identical):
    found = errors(identical, saturated=True, fits=True)
    assert len(found) >= 9
    assert found.max() < 0.006


def test_different_lengths_with_prompts_that_fit():
    found = errors(identical=False, saturated=False, fits=True)
    assert len(found) >= 60
    assert np.all(np.median(found, axis=0) < 0.006)
    assert np.all(np.quantile(found, 0.95, axis=0) < 0.04)


def test_different_lengths_with_long_prompts():
    found = errors(identical=False, saturated=False, fits=False)
    assert np.all(found.max(axis=0) < (0.03, 0.25, 0.03))


def test_identical_lengths_lock_into_groups():
    found = errors(identical=True, saturated=False, fits=True)
    assert np.median(found[:, 1]) < 0.07
    assert np.median(found[:, 2]) < 0.02


def test_one_user_waits_for_nobody():
    rank = ClosedLoopRank(0.025, 2e-5, 3.1e-8, 4e-5, 0.0, 2048, 4096, 128)
    result = closed_loop(rank, 1, identical=True)
    assert result.ttft == pytest.approx(0.21384, rel=1e-4)  # simulated
    assert result.tpot == pytest.approx(0.025149, rel=1e-4)
    assert result.rate == pytest.approx(0.29345, rel=1e-4)


def test_more_users_never_serve_less():
    rank = ClosedLoopRank(0.025, 2e-5, 3.1e-8, 4e-5, 0.0, 2048, 1000, 500)
    results = [closed_loop(rank, n) for n in (1, 8, 64, 256, 600, 900)]
    rates = [result.rate for result in results]
    assert rates == sorted(rates)
    assert [result.saturated for result in results] == [False] * 4 + [False, True]
