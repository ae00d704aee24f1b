"""The command line: answers on stdout, prose on stderr, one line and the right exit code for everything wrong."""

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from capplan.cards.hardware_card import load_hardware
from capplan.cli.main import main

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "reasoning-r1-h800.toml")


@pytest.fixture
def capplan(capsys):
    def call(*arguments):
        code = main(list(arguments))
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_kv_side_by_side(capplan):
    code, out, _ = capplan("kv", "deepseek-r1", "llama-3.1-70b", "llama-2-7b", "--context", "32k")
    assert code == 0
    lines = out.splitlines()
    assert "32,768" in lines[0]
    assert "70,272" in lines[1]
    assert "MLA" in lines[1]
    assert "327,680" in lines[2]
    assert "524,288" in lines[3]


def test_kv_json_keys(capplan):
    _, out, _ = capplan("kv", "r1", "--context", "8k", "--json")
    data = json.loads(out)
    assert data["kv_bytes_per_token"] == 70272
    assert data["kv_bytes"] == 70272 * 8192


def test_fit_json_and_exit_codes(capplan):
    code, out, _ = capplan("fit", "llama-3.1-8b", "--gpu", "h100", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["fits"] is True
    assert set(data) >= {
        "fits",
        "missing_bytes",
        "weights_bytes",
        "kv_pool_bytes",
        "capacity_tokens",
        "max_sequences_per_rank",
        "max_sequences",
    }
    code, out, _ = capplan("fit", "deepseek-r1", "--gpu", "h800", "--tp", "8", "--json")
    assert code == 3
    assert json.loads(out)["missing_bytes"] > 2**30


def test_fit_overrides(capplan):
    _, out, _ = capplan("fit", "llama-3.1-8b", "--gpu", "h100", "--set", "kv_pool_gib=24", "--json")
    assert json.loads(out)["kv_pool_bytes"] == 24 * 2**30
    _, out, _ = capplan("fit", "llama-3.1-8b", "--gpu", "h100", "--set", "num_gpu_blocks=1000", "--json")
    assert json.loads(out)["capacity_tokens"] == 16000


def test_step_json(capplan):
    code, out, _ = capplan("step", "llama-3.1-8b", "--gpu", "h200", "--batch", "64", "--context", "8k", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["limit"] == "hbm"
    assert data["seconds"] == pytest.approx(0.0209, rel=0.1)
    assert sum(data["parts"].values()) == pytest.approx(data["seconds"])
    assert data["links"]["hbm"] > 64 * 8192 * 131072
    assert data["tokens_per_second_per_gpu"] == pytest.approx(64 / data["seconds"])
    band = load_hardware("h200").bands["decode_kernels"]
    assert data["seconds_low"] == pytest.approx(band.low * data["seconds"])
    assert data["seconds_high"] == pytest.approx(band.high * data["seconds"])


def test_step_and_prefill_show_their_band(capplan):
    _, out, err = capplan("step", "llama-3.1-8b", "--gpu", "h100", "--batch", "64")
    assert re.search(r"time +\S+ ms \(80 % band \S+-\S+ ms\)", out)
    assert "assumed: the error band" in err
    _, out, _ = capplan("prefill", "llama-3.1-8b", "--gpu", "h100", "--json", "--set", "prefill_time_factor=1.1")
    data = json.loads(out)
    assert data["seconds_low"] < data["seconds"] < data["seconds_high"]
    code, _, err = capplan("step", "llama-3.1-8b", "--gpu", "h100", "--set", "prefill_time_factor=1.1")
    assert code == 2
    assert "has no part in this answer" in err
    _, out, _ = capplan("step", "llama-3.1-8b", "--gpu", "h100", "--set", "step_seconds=9ms")
    assert "band" not in out  # what was measured has no error of ours


def test_prefill_json(capplan):
    code, out, _ = capplan("prefill", "llama-3.1-8b", "--gpu", "h200", "--tokens", "8k", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["seconds"] == pytest.approx(0.201, rel=0.1)


def test_plan_json_has_the_stable_keys(capplan):
    code, out, _ = capplan("plan", EXAMPLE, "--json")
    data = json.loads(out)
    assert code == 0
    assert data["feasible"] is True
    for key in ("binding", "gpus_total", "cost_per_hour", "prefill_instances", "decode_instances", "attainment"):
        assert data[key] is not None
    assert data["gpus_total_low"] <= data["gpus_total"] <= data["gpus_total_high"]
    assert set(data["band"]) == {"factors", "low", "high"}
    for name in ("ttft", "tpot", "itl", "step", "answer", "e2e"):
        for label in ("p50", "p90", "p99", "p999"):
            assert data[f"{name}_{label}_seconds"] > 0
    keys = {"role", "instances", "gpus", "layout", "max_num_seqs_per_rank", "utilization", "kv_use_mean", "kv_use_p99"}
    keys |= {"kv_overflow_probability", "preemptions_per_request", "recompute_share"}
    for pool in data["pools"]:
        assert keys <= set(pool)


def test_plan_by_flags_alone(capplan):
    code, out, _ = capplan(
        *("plan", "--model", "llama-3.1-8b", "--gpu", "h100", "--rate", "5/s", "--input", "1k", "--output=1k"),
        *("--tpot-p99", "30ms", "--ttft-p99", "1s", "--mode", "aggregated"),
    )
    assert code == 0
    assert "\n1 GPU (1-2 over the 80 % error band of step times), $" in out


def test_infeasible_exits_3_and_names_the_nearest(capplan):
    code, out, _ = capplan("plan", EXAMPLE, "--set", "slo.tpot_p99=5ms")
    assert code == 3
    assert "nearest feasible" in out


def test_explain_prints_formula_inputs_and_source(capplan):
    for arguments in (
        ("kv", "r1"),
        ("fit", "r1", "--gpu", "h200", "--tp", "8"),
        ("step", "r1", "--gpu", "h200", "--tp", "8"),
        ("prefill", "llama-3.1-8b", "--gpu", "h100"),
        ("plan", EXAMPLE),
    ):
        code, out, err = capplan("explain", *arguments)
        assert code == 0
        text = out + err
        assert "source: capplan.formulas" in text
        assert "\n    = " in text
        assert "\n    with " in text


def test_formats(capplan):
    _, out, _ = capplan("kv", "r1", "llama-3.1-8b", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [float(row["kv_bytes_per_token"]) for row in rows] == [70272, 131072]
    _, out, _ = capplan("kv", "r1", "--format", "md")
    assert out.startswith("| model")
    _, out, _ = capplan("plan", EXAMPLE, "--format", "csv")
    assert len(list(csv.DictReader(io.StringIO(out)))) == 1


@pytest.mark.parametrize("kind", ["models", "hardware", "workloads", "engines"])
def test_cards_list_and_show_every_source(capplan, kind):
    _, out, _ = capplan(kind, "--json")
    names = [row["name"] for row in json.loads(out)]
    assert names
    for name in names:
        code, out, _ = capplan(kind, "show", name, "--json")
        assert code == 0
        numbers = json.loads(out)["numbers"]
        assert numbers or name == "none"
        for number in numbers.values():
            assert number["source"]
            assert number["unit"]
            assert number["kind"] in ("spec", "measured", "fitted", "assumed")


def test_import_writes_a_card_that_loads(capplan, tmp_path):
    config = Path(__file__).parents[1] / "truth" / "model_configs" / "deepseek-ai__DeepSeek-R1.json"
    card = tmp_path / "mine.json"
    assert capplan("models", "import", str(config), "--name", "mine", "--output", str(card))[0] == 0
    _, out, _ = capplan("kv", str(card), "--json")
    assert json.loads(out)["kv_bytes_per_token"] == 70272


BAD = [
    (("kv", "lama-3.1-8b"), "llama-3.1-8b"),
    (("kv", "r1", "--context", "8 parsecs"), "parsecs"),
    (("kv", "r1", "--context", "-1"), "--context"),
    (("kv", "r1", "--context", "nan"), "nan"),
    (("kv", "r1", "--context", "1.5"), "whole number"),
    (("kv", "r1", "--kv-dtype", "fp9"), "fp9"),
    (("kv", "r1", "--kv-dtyp", "fp8"), "--kv-dtyp"),
    (("kv",), "models"),
    (("kvv", "r1"), "kvv"),
    (("fit", "r1"), "--gpu"),
    (("fit", "r1", "--gpu", "h2000"), "h200"),
    (("fit", "r1", "--gpu", "h200", "--tp", "0"), "tp"),
    (("fit", "r1", "--gpu", "h200", "--tp", "x"), "tp"),
    (("fit", "r1", "--gpu", "h200", "--set", "kv_pool_gb=1"), "kv_pool_gib"),
    (("fit", "r1", "--gpu", "h200", "--set", "kv_pool_gib"), "--set"),
    (("fit", "r1", "--gpu", "h200", "--engine", "vlm"), "vllm"),
    (("step", "r1", "--gpu", "h200", "--batch", "0"), "--batch"),
    (("step", "r1", "--gpu", "h200", "--ep", "3"), "ep"),
    (("plan",), "model"),
    (("plan", "no-such-file.toml"), "no-such-file.toml"),
    (("plan", EXAMPLE, "--tpot-p9", "1ms"), "tpot_p9"),
    (("plan", EXAMPLE, "--tpot-p99"), "--tpot-p99"),
    (("plan", EXAMPLE, "--set", "slo.tpot_p99=50"), "unit"),
    (("plan", EXAMPLE, "second.toml"), "second"),
    (("explain", "everything"), "everything"),
    (("models", "show", "gpt-9"), "gpt-9"),
    (("models", "import", "no-such-folder"), "no-such-folder"),
    (("hardware", "show", "/"), "/"),
]


@pytest.mark.parametrize(("arguments", "named"), BAD)
def test_bad_input_is_one_line_on_stderr_and_exit_2(capplan, arguments, named):
    code, out, err = capplan(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("capplan: ")
    assert err.count("\n") == 1
    assert named in err


def test_hostile_files_are_refused_in_one_line(capplan, tmp_path):
    hostile = {
        "deep.json": "[" * 100_000,
        "twice.json": '{"a": 1, "a": 2}',
        "bytes.json": b"\xff\xfe\x00",
        "big.json": '{"a": "' + "x" * 5_000_000 + '"}',
        "empty.json": "",
        "list.json": "[]",
        "infinity.json": '{"model": Infinity}',
    }
    for name, content in hostile.items():
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        for arguments in (("kv", str(path)), ("hardware", "show", str(path)), ("plan", str(path))):
            code, _, err = capplan(*arguments)
            assert code == 2, (name, arguments)
            assert err.count("\n") == 1
            assert len(err) < 1000


@pytest.mark.parametrize("arguments", [("models",), ("models", "--format", "csv"), ("plan", EXAMPLE), ("--help",)])
def test_a_closed_pipe_ends_quietly(arguments):
    code = "import sys; from capplan.cli.main import run; run(sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait() == 0
    process.stderr.close()
