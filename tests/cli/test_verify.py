"""``capplan verify``: exit codes, shapes, and one line for bad input."""

import json

import pytest

from capplan.cli.main import main
from capplan.verification.verdict import Tolerance

SCENARIO = (
    "--model", "llama-3.1-8b", "--gpu", "h100", "--rate", "20/s", "--input", "500", "--max-gpus", "8",
    "--output", "{law = 'lognormal', mean = 300, cv = 1.0, max = 8192}", "--mode", "disaggregated",
)  # fmt: skip


@pytest.fixture
def capplan(capsys):
    def call(*arguments):
        code = main(["verify", *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_agreement_is_exit_code_0(capplan):
    code, out, err = capplan(*SCENARIO, "--requests", "4000", "--tpot-p99", "30ms")
    assert code == 0
    assert "quantity" in out.splitlines()[0]
    assert "95 % interval" in out.splitlines()[0]
    assert "TPOT P99" in out
    assert out.splitlines()[-4].startswith("TPOT P99 ")
    assert out.splitlines()[-4].endswith("of 30 ms: met")
    assert out.splitlines()[-1].startswith("4,000 requests measured over")
    assert err == ""


def test_json_has_intervals_and_verdicts(capplan):
    code, out, _ = capplan(*SCENARIO, "--requests", "2000", "--json")
    data = json.loads(out)
    assert data["agrees"] is (code == 0)
    assert data["quantities"]["ttft_p99_seconds"]["verdict"] in ("agrees", "within noise", "flagged", "disagrees")
    assert data["requests"] == 2000


def test_disagreement_is_exit_code_1(capplan, monkeypatch):
    monkeypatch.setattr("capplan.verification.comparison.BATCH", Tolerance(0.0))
    monkeypatch.setattr("capplan.verification.verdict.NOISE_WIDTHS", 0.0)
    assert capplan(*SCENARIO, "--requests", "2000")[0] == 1


def test_an_infeasible_plan_is_exit_code_3(capplan):
    code, out, err = capplan(*SCENARIO, "--tpot-p99", "1us")
    assert code == 3
    assert out == ""
    assert "infeasible" in err


@pytest.mark.parametrize(
    "wrong",
    [
        ("--requests", "12"),
        ("--requests", "many"),
        ("--seed", "-4"),
        ("--trace", "nowhere.csv"),
        ("--tpot-p9", "3ms"),
        ("-x",),
    ],
)
def test_bad_input_is_one_line(capplan, wrong):
    code, out, err = capplan(*SCENARIO, *wrong)
    assert code == 2
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in err


def test_no_scenario_is_one_line(capplan):
    code, _, err = capplan()
    assert code == 2
    assert len(err.strip().splitlines()) == 1
