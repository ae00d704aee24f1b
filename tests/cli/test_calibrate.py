"""``capplan calibrate``: exit codes, what is printed where, the card it writes, the runs it asks for."""

import csv
import io
import json
from pathlib import Path

import pytest

from capplan.cli.main import main

RESULTS = Path(__file__).parents[2] / "examples" / "qwen3-32b-h100-tp4.csv"
SYSTEM = ("--model", "qwen3-32b", "--gpu", "h100", "--tp", "4")


@pytest.fixture
def run(capsys):
    def call(*arguments):
        code = main(["calibrate", *map(str, arguments)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def test_a_table_with_constants_and_errors(run):
    code, out, err = run(RESULTS, *SYSTEM)
    assert code == 0
    assert "layer_overhead_seconds" in out
    assert "held: these runs do not tell it from layer_overhead_seconds" in out
    assert "after, each prompt and concurrency left out" in out
    assert "conservation law, 10 groups of equal runs" in err
    assert "step_gap_seconds: only runs of a model with another number of layers tell it" in err


def test_json_carries_everything(run):
    code, out, _ = run(RESULTS, *SYSTEM, "--json")
    data = json.loads(out)
    assert code == 0
    assert len(data["runs"]) == 30
    assert data["errors"]["held_out"]["tpot"]["median"] < 0.02 < data["errors"]["before"]["tpot"]["median"]
    gap = data["constants"]["step_gap_seconds"]
    assert (gap["state"], gap["standard_error"], gap["bound"]) == ("held", None, None)
    assert 0.9 < data["band"]["low"] <= 1 <= data["band"]["high"] < 1.1
    assert data["runs"][0]["place"].endswith(".csv:3")
    assert data["runs"][0]["tpot_after_seconds"] == pytest.approx(data["runs"][0]["tpot_seconds"], rel=0.05)


def test_a_constant_at_its_bound_is_told(run, tmp_path):
    lines = RESULTS.read_text().splitlines()
    quick = [line.split(",") for line in lines[2:]]
    place = lines[1].split(",").index("tpot_ms")
    for row in quick:
        row[place] = str(0.88 * float(row[place]))
    (path := tmp_path / "r.csv").write_text("\n".join([lines[1], *map(",".join, quick)]))
    code, out, _ = run(path, *SYSTEM)
    assert code == 0
    (row,) = [line for line in out.splitlines() if line.startswith("kernel_time_factor")]
    assert row.split(maxsplit=3)[1:] == ["1.06", "0.9", "at its bound: these runs ask for less"]
    bound = json.loads(run(path, *SYSTEM, "--json")[1])["constants"]["kernel_time_factor"]
    assert (bound["state"], bound["after"], bound["held"]) == ("bound", 0.9, None)


def test_results_of_another_model_need_force(run, tmp_path):
    lines = RESULTS.read_text().splitlines()
    (path := tmp_path / "r.csv").write_text("\n".join(lines))
    record = {"model_id": "openai/gpt-oss-120b", "num_prompts": 80, "request_rate": "inf", "max_concurrency": 8,
              "duration": 14.0, "completed": 80, "total_input_tokens": 81920, "total_output_tokens": 10240,
              "mean_ttft_ms": 300.0, "mean_tpot_ms": 8.9}  # fmt: skip
    (other := tmp_path / "r.json").write_text(json.dumps(record))
    code, out, err = run(path, other, *SYSTEM)
    assert (code, out) == (2, "")
    assert "the results are of 'openai/gpt-oss-120b', not of qwen3-32b; --force takes them for it" in err
    code, _, err = run(path, other, *SYSTEM, "--force")
    assert code == 0
    assert "the results call the model 'openai/gpt-oss-120b'; taken for qwen3-32b" in err


def test_csv_and_markdown(run):
    _, out, _ = run(RESULTS, *SYSTEM, "--format", "csv")
    record = next(csv.DictReader(io.StringIO(out)))
    assert float(record["constants.layer_overhead_seconds.after"]) > 0
    _, out, _ = run(RESULTS, *SYSTEM, "--format", "md")
    assert out.startswith("| constant |")


def test_the_card_is_written_once_and_used(run, tmp_path, capsys):
    card = tmp_path / "mine.json"
    code, _, err = run(RESULTS, *SYSTEM, "--output", card)
    assert code == 0
    assert f"written: {card}" in err
    assert list(tmp_path.iterdir()) == [card]
    code, _, err = run(RESULTS, *SYSTEM, "--output", card)
    assert (code, "exists; --force overwrites it" in err) == (2, True)
    assert run(RESULTS, *SYSTEM, "--output", card, "--force")[0] == 0
    step = ["step", "qwen3-32b", "--tp", "4", "--batch", "64", "--context", "1k", "--json"]
    seconds = []
    for engine in ("vllm", str(card)):
        assert main([*step, "--gpu", "h100", "--engine", engine]) == 0
        seconds.append(json.loads(capsys.readouterr().out)["seconds"])
    assert seconds[1] > 1.05 * seconds[0]  # 19 % longer


def test_the_design_prints_commands(run):
    code, out, err = run("--design", "--model", "llama-3.1-8b", "--gpu", "h100")
    assert code == 0
    assert out.startswith("vllm serve meta-llama/Meta-Llama-3.1-8B --tensor-parallel-size 1\n")
    assert 4 <= out.count("vllm bench serve --backend vllm --model") <= 8
    assert "assumed: a run scatters by 3% of TPOT and 10% of TTFT around the model" in err
    _, out, _ = run("--design", "--model", "llama-3.1-8b", "--gpu", "h100", "--engine", "sglang", "--json")
    data = json.loads(out)
    assert "sglang.launch_server" in data["server"]
    assert all("sglang.bench_serving" in one["command"] for one in data["runs"])
    assert data["noise"] == {"tpot": 0.03, "ttft": 0.1}


def test_set_aside_and_unread_are_told(run, tmp_path):
    lines = RESULTS.read_text().splitlines()
    (path := tmp_path / "r.csv").write_text("\n".join([lines[1] + ",note", *(line + ",x" for line in lines[2:]),
                                                       "4096,128,8,1,1,y", lines[2] + ",z"]))  # fmt: skip
    code, _, err = run(path, *SYSTEM)
    assert code == 0
    assert "set aside: " in err
    assert "of the dense peak (prefix cache" in err
    assert "repeats " in err
    assert "not read of CSV: note" in err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((RESULTS, "--gpu", "h100"), "--model: is needed"),
        ((RESULTS, "--model", "qwen3-32b"), "--gpu: is needed"),
        (SYSTEM, "RESULTS: give result files, or --design"),
        (("no.json", *SYSTEM), "no.json: no such file"),
        ((RESULTS, *SYSTEM, "--design"), "RESULTS: has no use with --design"),
        (("--design", *SYSTEM, "--output", "x"), "--output: has no use with --design"),
        ((RESULTS, *SYSTEM, "--force"), "--force: has a meaning only with --output"),
        ((RESULTS, *SYSTEM, "--column", "speed=x"), "unknown quantity 'speed'"),
        ((RESULTS, *SYSTEM, "--column", "tpot=nope"), "unknown column 'nope'"),
        ((RESULTS, *SYSTEM, "--engine", "none"), "engine: needs an engine card"),
        ((RESULTS, "--model", "qwen3-32b", "--gpu", "h100", "--tp", "1"), "of 30 runs cannot be, for example: "),
    ],
)
def test_bad_input_is_one_line(run, arguments, problem):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert problem in err
    assert err.count("\n") == 1
