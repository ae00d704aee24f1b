"""``capplan fit --from-log``: the answer, what it says about the log, and its errors."""

import csv
import io
import json
from pathlib import Path

import pytest

from capplan.cli.main import main

LOGS = Path(__file__).parents[1] / "calibration" / "logs"
ROOT = Path(__file__).parents[2]
LLAMA = str(ROOT / "examples" / "vllm-llama-3.1-8b.log")
TWO_RANKS = str(LOGS / "vllm-0.11-llama-3.3-70b-fp8-tp2.txt")
GIB = 2**30


@pytest.fixture
def fit(capsys):
    def call(*arguments):
        code = main(["fit", *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_logged_numbers_replace_ours_and_stand_beside_them(fit):
    code, out, err = fit("llama-3.1-8b", "--gpu", "h100", "--from-log", LLAMA)
    assert code == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "llama-3.1-8b on h100 TP1, vllm 0.17 until before 0.21" in lines
    assert "KV capacity per rank 476,016 tokens" in lines
    assert "logged beside computed logged computed difference" in lines
    assert any(line.startswith("KV pool 58.11 GiB 58.1") for line in lines)
    assert "from the log: weights_bytes = 14.99 GiB (line 6)" in err
    assert "from the log: kv_capacity_tokens = 476,016 (line 9)" in err
    assert "warning" not in err


def test_json_has_a_log(fit):
    code, out, _ = fit("llama-3.1-8b", "--gpu", "h100", "--from-log", LLAMA, "--json")
    data = json.loads(out)
    assert code == 0
    assert (data["weights_bytes"], data["capacity_tokens"]) == (14.99 * GIB, 476_016)
    log = data["log"]
    assert (log["engine"], log["version"], log["start_up"], log["start_ups"]) == ("vllm", "0.19.0", 1, 1)
    assert log["overrides"]["kv_pool_bytes"] == data["kv_pool_bytes"] == 58.11 * GIB
    assert log["lines"]["kv_pool_bytes"] == 8
    pool = log["comparison"]["kv_pool_bytes"]
    assert pool["difference"] == pytest.approx(pool["computed"] / pool["logged"] - 1)
    assert (log["warnings"], log["notes"]) == ([], [])


def test_every_shape_has_one_answer(fit):
    _, out, _ = fit("llama-3.1-8b", "--gpu", "h100", "--from-log", LLAMA, "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(out))
    assert row["log.comparison.kv_capacity_tokens.logged"] == "476016"
    _, out, _ = fit("llama-3.1-8b", "--gpu", "h100", "--from-log", LLAMA, "--format", "md")
    assert "\n\n| logged beside computed | logged | computed | difference |\n" in out
    _, out, _ = fit("llama-3.1-8b", "--gpu", "h100", "--from-log", LLAMA, "--explain", "--json")
    chain = {link["name"]: link for link in json.loads(out)["chain"]["memory of one rank"]}
    assert chain["weights_bytes"]["overridden"]


def test_options_that_were_not_given_are_the_logs(fit):
    code, out, err = fit("llama-3.3-70b", "--gpu", "h100", "--weight-dtype", "fp8", "--from-log", TWO_RANKS, "--json")
    data = json.loads(out)
    assert (code, data["layout"], data["engine"]) == (0, "TP2", "vllm 0.8 until before 0.17")
    assert data["capacity_tokens"] == 209_664
    assert data["log"]["comparison"]["worst_case_sequences"]["difference"] == pytest.approx(0, abs=1e-3)
    assert "log: tp 2 (line 3)" in err


def test_options_that_were_given_win_and_the_contradiction_is_told(fit):
    arguments = ("--tp", "1", "--kv-dtype", "fp8", "--set", "kv_pool_gib=24", "--set", "gpu_memory_utilization=0.5")
    code, out, err = fit("llama-3.1-8b", "--gpu", "h100", *arguments, "--from-log", TWO_RANKS, "--json")
    data = json.loads(out)
    assert (code, data["layout"], data["kv_pool_bytes"]) == (0, "TP1", 24 * GIB)
    assert not {"kv_pool_bytes", "kv_capacity_tokens", "gpu_memory_utilization"} & data["log"]["overrides"].keys()
    for words in ("the log is of model", "tp 2, the command line 1", "auto (bf16)", "0.9, the command line 0.5"):
        assert any(words in warning for warning in data["log"]["warnings"])
        assert words in err


def test_a_hybrid_takes_the_pool_and_no_tokens(fit):
    file = str(LOGS / "vllm-0.22-gpt-oss-120b.txt")
    _, out, err = fit("gpt-oss-120b", "--gpu", "h200", "--context", "2068", "--from-log", file, "--json")
    data = json.loads(out)
    assert data["capacity_tokens"] is None
    assert data["worst_case_sequences_per_rank"] == pytest.approx(399.2, rel=2e-4)
    assert "line 7: 825,607 tokens are a worst case, no capacity of this model: not taken" in err


def test_an_engine_without_a_version_is_told(fit):
    file = str(LOGS / "sglang-qwen3-235b-fp8.txt")
    code, out, err = fit("qwen3-235b-a22b-fp8", "--gpu", "h100", "--from-log", file, "--json")
    data = json.loads(out)
    assert (code, data["capacity_tokens"], data["layout"]) == (0, 367_404, "TP4")
    assert "no version of sglang in it: numbers of the newest" in err


def test_an_engine_that_did_not_start_does_not_fit(fit, tmp_path):
    (path := tmp_path / "vllm.log").write_text("INFO [gpu_worker.py:276] Available KV cache memory: -2.14 GiB\n")
    code, out, _ = fit("gpt-oss-120b", "--gpu", "h100", "--engine", "vllm@0.10", "--from-log", str(path), "--json")
    assert code == 3
    assert json.loads(out)["missing_bytes"] == pytest.approx(2.14 * GIB)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--engine", "sglang", "--from-log", LLAMA), "--engine: 'sglang' but"),
        (("--engine", "vllm@0.11", "--from-log", LLAMA), "says 0.19.0"),
        (("--from-log", str(ROOT / "pyproject.toml")), "nothing in it is known; looked for"),
        (("--from-log", "missing.log"), "missing.log: cannot be read"),
    ],
)
def test_errors_are_one_line(fit, arguments, words):
    code, out, err = fit("llama-3.1-8b", "--gpu", "h100", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err
