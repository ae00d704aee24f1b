"""Result files of every known tool, as the tools write them, and files that are none.

Keys, units and nesting: vllm/benchmarks/serve.py, python/sglang/bench_serving.py, genai-perf's json_exporter.py and
docs.nvidia.com/aiperf/reference/json-export-schema; the CSV summary is that of NVIDIA cloudai's page on Dynamo.
"""

import contextlib
import json
import math
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.calibration.results import read_results
from capplan.calibration.results_csv import COLUMNS, parsed_columns
from capplan.calibration.results_files import MAX_RESULT_BYTES
from capplan.calibration.run import Run
from capplan.errors import InputError

VLLM = {
    "date": "20260301-101010",
    "endpoint_type": "vllm",
    "backend": "vllm",
    "label": None,
    "model_id": "Qwen/Qwen3-32B",
    "tokenizer_id": "Qwen/Qwen3-32B",
    "num_prompts": 80,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 8,
    "duration": 12.0,
    "completed": 80,
    "failed": 0,
    "total_input_tokens": 81920,
    "total_output_tokens": 10240,
    "request_throughput": 6.67,
    "request_goodput": None,
    "output_throughput": 853.3,
    "total_token_throughput": 7680.0,
    "mean_ttft_ms": 126.1,
    "median_ttft_ms": 120.0,
    "std_ttft_ms": 30.0,
    "p99_ttft_ms": 200.0,
    "mean_tpot_ms": 8.2,
    "median_tpot_ms": 8.2,
    "std_tpot_ms": 0.1,
    "p99_tpot_ms": 8.9,
    "mean_itl_ms": 8.2,
    "median_itl_ms": 7.9,
    "std_itl_ms": 4.0,
    "p99_itl_ms": 40.0,
}
SGLANG = {
    "tag": None,
    "backend": "sglang",
    "dataset_name": "random",
    "request_rate": math.inf,
    "max_concurrency": 16,
    "sharegpt_output_len": None,
    "random_input_len": 1024,
    "random_output_len": 256,
    "random_range_ratio": 1.0,
    "server_info": {"tp_size": 2},
    "duration": 30.0,
    "completed": 160,
    "total_input_tokens": 163840,
    "total_output_tokens": 40960,
    "total_output_tokens_retokenized": 40900,
    "mean_e2e_latency_ms": 2740.0,
    "mean_ttft_ms": 190.0,
    "mean_tpot_ms": 10.0,
    "mean_itl_ms": 10.0,
    "concurrency": 14.6,
    "accept_length": None,
}
AIPERF = {
    "schema_version": "1.5",
    "aiperf_version": "0.8.0",
    "request_throughput": {"unit": "requests/sec", "avg": 1.2},
    "request_latency": {"unit": "ms", "avg": 6550.0},
    "time_to_first_token": {"unit": "ms", "avg": 500.0, "p50": 450.0},
    "inter_token_latency": {"unit": "ms", "avg": 12.0},
    "input_sequence_length": {"unit": "tokens", "avg": 2048.0},
    "output_sequence_length": {"unit": "tokens", "avg": 500.0},
    "was_cancelled": False,
    "error_summary": [],
    "input_config": {
        "endpoint": {"model_names": ["openai/gpt-oss-20b"], "type": "chat", "streaming": True},
        "loadgen": {"concurrency": 8, "request_rate_mode": "concurrency_burst", "request_count": 100},
    },
}
GENAI_PERF = {
    **{key: AIPERF[key] for key in AIPERF if key not in ("schema_version", "aiperf_version", "error_summary")},
    "input_config": {"model_names": ["m"], "perf_analyzer": {"path": "perf_analyzer", "stimulus": {"concurrency": 4}}},
}
SUMMARY_CSV = """Metric,avg,min,max,p99,p95,p90,p75,p50,p25
Time To First Token (ms),"1,146.31",249.48,"3,485.23","3,457.97","3,349.56","3,215.06","1,330.93",640.07,286.52
Time To Second Token (ms),26.05,0.00,133.51,96.12,36.56,34.88,34.35,33.55,1.78
Request Latency (ms),"6,406.20","5,371.47","9,608.72","9,436.13","9,046.58","9,028.16","6,549.60","5,690.23","5,493.63"
Inter Token Latency (ms),30.35,27.59,35.60,35.23,33.88,32.53,31.05,30.13,29.04
Output Sequence Length (tokens),174.45,164.00,187.00,186.22,183.10,180.10,177.00,174.00,171.75
Input Sequence Length (tokens),"3,000.05","2,999.00","3,001.00","3,001.00","3,001.00","3,000.00","3,000.00","3,000.00"

Metric,Value
Output Token Throughput (per sec),261.25
Request Throughput (per sec),1.50
Request Count (count),40.00
"""


@pytest.fixture
def read(tmp_path):
    def written(content, name="result.json", **options):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return read_results(path, **options)

    return written


def figures(run):
    return (run.prompt_tokens, run.output_tokens, run.concurrency, run.ttft_seconds, run.tpot_seconds, run.closed)


# ---- what the tools write --------------------------------------------------------------------------------------------


def test_vllm(read):
    reading = read(VLLM)
    (run,) = reading.runs
    assert figures(run) == (1024, 128, 8, pytest.approx(0.1261), pytest.approx(0.0082), True)
    assert (run.tool, run.model, run.line) == ("vllm bench serve", "Qwen/Qwen3-32B", None)
    assert reading.unread == {"vllm bench serve": set()}
    assert read(VLLM | {"lora_modules": ["a"], "goodput_note": None}).unread == {"vllm bench serve": {"lora_modules"}}
    assert "mean_tpot_ms" not in reading.unread["vllm bench serve"]


def test_vllm_with_details_and_appended_results(read):
    details = {"input_lens": [1024] * 80, "output_lens": [128] * 80, "ttfts": [0.1] * 80, "itls": [[0.01]] * 80}
    details |= {"errors": [""] * 80, "generated_texts": ["a\u2028b"] * 80}
    lines = [json.dumps(VLLM | details, ensure_ascii=False), json.dumps(VLLM | {"max_concurrency": 7})]
    reading = read("\n".join(lines))
    assert [(run.line, run.concurrency) for run in reading.runs] == [(1, 8), (2, 7)]


def test_sglang_lines(read):
    second = SGLANG | {"max_concurrency": 15}
    reading = read(json.dumps(SGLANG) + "\n" + json.dumps(second) + "\n", "results.jsonl")
    assert figures(reading.runs[0]) == (1024, 256, 16, pytest.approx(0.19), pytest.approx(0.010), True)
    assert [run.place.rpartition(":")[2] for run in reading.runs] == ["1", "2"]


@pytest.mark.parametrize(
    ("config", "concurrency", "closed"),
    [
        ({"loadgen": {"concurrency": 8}}, 8, True),
        ({"phases": {"profiling": {"concurrency": 12}}}, 12, True),
        ({"concurrency": 3}, 3, True),
        ({"loadgen": {"request_rate": 2.0}}, pytest.approx(1.2 * (0.5 + 499 * 0.012)), False),
        ({"cli_command": "aiperf profile -m x --concurrency 100 --osl 100"}, 100, True),
        ({"cli_command": "aiperf profile --request-rate 2 --concurrency 50"}, pytest.approx(7.7856), False),
    ],
)
def test_aiperf_and_where_it_says_the_load(read, config, concurrency, closed):
    (run,) = read(AIPERF | {"input_config": config}).runs
    assert figures(run) == (2048, 500, concurrency, 0.5, 0.012, closed)


def test_genai_perf(read):
    (run,) = read(GENAI_PERF).runs
    assert figures(run) == (2048, 500, 4, 0.5, 0.012, True)
    assert (run.tool, run.model) == ("genai-perf", "m")
    (other,) = read(GENAI_PERF | {"time_to_first_token": {"unit": "us", "avg": 500_000}}).runs
    assert other.ttft_seconds == 0.5


def test_the_csv_summary_takes_its_concurrency_from_the_folder(read):
    (run,) = read(SUMMARY_CSV, "m-openai-chat-concurrency8/profile_export_genai_perf.csv").runs
    assert figures(run) == (3000.05, 174.45, 8, pytest.approx(1.14631), pytest.approx(0.03035), True)
    with pytest.raises(InputError, match="concurrency: a CSV summary says no concurrency"):
        read(SUMMARY_CSV, "elsewhere/profile_export_genai_perf.csv")


def test_plain_csv(read):
    reading = read(
        "# source\nISL,osl,Concurrency,ttft (s),tpot_us,tp,gpu,note\n1024,128,8,0.126,8200,4,h100,=1+1\n", "r.csv"
    )
    (run,) = reading.runs
    assert figures(run) == (1024, 128, 8, 0.126, pytest.approx(0.0082), True)
    assert (run.tp, run.line) == (4, 3)
    assert reading.unread == {"CSV": {"gpu", "note"}}
    assert reading.notes == []


def test_columns_may_be_named(read):
    text = "a,b,c,first,my_col_ms\n1024,128,8,126.1,8.2\n"
    columns = parsed_columns(["prompt=a", "output=b", "concurrency=c", "ttft=first", "tpot=my_col_ms"])
    reading = read(text, "r.csv", columns=columns)
    assert figures(reading.runs[0]) == (1024, 128, 8, pytest.approx(0.1261), pytest.approx(0.0082), True)
    assert reading.notes == [f"{reading.runs[0].file}: column 'first' names no unit: milliseconds taken"]


def test_a_folder_is_searched_and_a_pattern_matched(tmp_path):
    (inner := tmp_path / "a" / "m-concurrency4").mkdir(parents=True)
    (tmp_path / "vllm.json").write_text(json.dumps(VLLM))
    (tmp_path / "vllm.pytorch.json").write_text("[{}]")
    (tmp_path / "inputs.json").write_text('{"data": []}')
    (tmp_path / "other.csv").write_text("x,y\n1,2\n")
    (tmp_path / "readme.txt").write_text("no result")
    (inner / "profile_export_genai_perf.json").write_text(json.dumps(GENAI_PERF))
    (inner / "profile_export_genai_perf.csv").write_text(SUMMARY_CSV)
    reading = read_results(tmp_path)
    assert [run.tool for run in reading.runs] == ["genai-perf", "vllm bench serve"]
    assert [one.reason.partition(":")[0] for one in reading.set_aside] == ["not read"] * 3
    assert len(read_results([str(tmp_path / "*" / "*" / "*.json"), tmp_path / "vllm.json"]).runs) == 2


# ---- what is set aside -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"completed": 79}, "requests failed: 79 of 80 completed"),
        ({"failed": 1}, "requests failed"),
        ({"errors": ["", "timeout"]}, "requests failed"),
        ({"max_concurrency": None}, "neither a rate nor a limit"),
        ({"max_concurrency": 64}, "start and end of the run only"),
        ({"duration": 30.0}, "slots busy on average"),
        ({"spec_decode_num_drafts": 10}, "draft tokens"),
        ({"ramp_up_strategy": "linear"}, "ramped up"),
        ({"mean_ttft_ms": 0.0}, "did not stream"),
    ],
)
def test_unusable_vllm_runs(read, changes, reason):
    reading = read(VLLM | changes)
    assert not reading.runs
    assert reason in reading.set_aside[0].reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"accept_length": 2.4}, "draft tokens"),
        ({"dataset_name": "generated-shared-prefix"}, "share prefixes"),
        ({"input_lens": [1024] * 161}, "160 of 161 completed"),
    ],
)
def test_unusable_sglang_runs(read, changes, reason):
    assert reason in read(SGLANG | changes, "r.jsonl").set_aside[0].reason


@pytest.mark.parametrize(
    "changes", [{"error_summary": [{"count": 3}]}, {"error_request_count": {"avg": 3}}, {"was_cancelled": True}]
)
def test_unusable_aiperf_runs(read, changes):
    assert len(read(AIPERF | changes).set_aside) == 1


def test_open_arrivals_count_by_littles_law(read):
    (run,) = read(VLLM | {"request_rate": 6.0, "max_concurrency": None}).runs
    assert run.concurrency == pytest.approx(80 / 12 * (0.1261 + 127 * 0.0082))
    assert not run.closed
    (capped,) = read(VLLM | {"request_rate": 6.0, "max_concurrency": 40}).runs
    assert (capped.closed, capped.concurrency) == (False, run.concurrency)


def test_a_repeated_result_counts_once(read):
    reading = read(json.dumps(SGLANG) + "\n" + json.dumps(SGLANG), "r.jsonl")
    assert len(reading.runs) == 1
    assert "repeats" in reading.set_aside[0].reason


def test_other_digits_of_a_result_are_the_same_result(read):
    table = "isl,osl,concurrency,ttft_ms,tpot_ms\n1024,128,8,126.1,8.2\n1024,128,8,126,8.21\n1024,128,8,127,8.2\n"
    reading = read(table, "r.csv")
    assert [run.line for run in reading.runs] == [2, 4]
    assert [(one.line, one.reason.endswith("r.csv:2")) for one in reading.set_aside] == [(3, True)]


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({k: v for k, v in VLLM.items() if k != "mean_tpot_ms"}, "mean_tpot_ms: is missing"),
        (VLLM | {"duration": math.nan}, "duration: nan must be a finite number"),
        (VLLM | {"total_input_tokens": "81920"}, "total_input_tokens: '81920' must be"),
        (VLLM | {"total_output_tokens": True}, "total_output_tokens: True must be"),
        (VLLM | {"mean_tpot_ms": -1}, "mean_tpot_ms: -1 must be"),
        (VLLM | {"total_input_tokens": 10**400}, "total_input_tokens: a number of 401 digits must be"),
        (VLLM | {"total_output_tokens": 80, "duration": 1.2}, "output_tokens: 1.0 must be a number from 2"),
        (SGLANG | {"request_rate": "trace"}, "request_rate: 'trace' is no rate"),
        (AIPERF | {"inter_token_latency": {"unit": "tokens", "avg": 3}}, "inter_token_latency.unit: unit 'tokens'"),
        (AIPERF | {"input_config": {}}, "input_config: says neither"),
        (AIPERF | {"input_config": {"loadgen": {"concurrency": [1, 2]}}}, "no fixed load"),
        (GENAI_PERF | {"output_sequence_length": None}, "output_sequence_length: is missing"),
        ({"results": [VLLM]}, "no result of a known format"),
        ("[" * 100_000, "is not valid JSON"),
        ('{"a": 1, "a": 2}', "occurs twice"),
        ('{"a": ' + "9" * 5000 + "}", "valid JSON"),
        ("[1, 2]", "must hold one JSON object"),
        ("", "is not valid JSON"),
        ("\0", "null bytes"),
        (json.dumps(VLLM) + "\n{", ":2: is not valid JSON"),
    ],
)
def test_half_understood_files_are_refused(read, content, problem):
    with pytest.raises(InputError) as caught:
        read(content)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "result.json" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "isl,osl,concurrency,ttft_ms\n1,2,3,4\n",
            "tpot: no column for it among 'isl', 'osl', 'concurrency', 'ttft_ms'",
        ),
        ("isl;osl;concurrency\n1;2;3\n", "among 'isl;osl;concurrency'; columns must be comma-separated, not by ';'"),
        ("isl,osl,concurrency,ttft_ms,mean_ttft_ms,tpot_ms\n1,2,3,4,5,6\n", "both fit"),
        ("isl,osl,concurrency,ttft_ms,tpot_ms\n1024,128,8,x,9\n", "r.csv:2: ttft_ms: 'x' must be a number"),
        ("isl,osl,concurrency,ttft_ms,tpot_ms\n1024,128,8,nan,9\n", "must be a number"),
        ("isl,osl,concurrency,ttft_ms,tpot_ms\n1024,128,8\n", "must be a number"),
        ("isl,osl,concurrency,ttft_ms,tpot_ms,tp\n1024,128,8,9,9,1.5\n", "tp: 1.5 must be a whole number"),
        ("model,isl,osl,concurrency,ttft_ms,tpot_ms\na,1,2,3,4,5\nb,1,2,3,4,5\n", "model: holds 2 values"),
        ("isl,osl\n", "no header with rows"),
        ('isl,"' + "x" * 200_000 + "\n1\n", "is not valid CSV"),
    ],
)
def test_half_understood_tables_are_refused(read, text, problem):
    with pytest.raises(InputError, match=r"r\.csv") as caught:
        read(text, "r.csv")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [(["tpot"], "QUANTITY=COLUMN"), (["speed=x"], "unknown quantity 'speed'"), (["tp=a", "tp=b"], "given twice")],
)
def test_column_options(settings, problem):
    with pytest.raises(InputError, match=problem):
        parsed_columns(settings)


def test_missing_and_endless_files(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_results(tmp_path / "none.json")
    with pytest.raises(InputError, match=r"holds no \.json"):
        read_results(tmp_path)
    with pytest.raises(InputError, match="no result files"):
        read_results([])
    with pytest.raises(InputError, match=r"cannot be read|no such file"):
        read_results("a\0b")
    (large := tmp_path / "large.json").touch()
    os.truncate(large, MAX_RESULT_BYTES + 1)
    with pytest.raises(InputError, match="larger than 64 MB"):
        read_results(large)


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="the host has no /dev/zero")
def test_a_device_is_no_result():
    with pytest.raises(InputError, match="no regular file"):
        read_results("/dev/zero")


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(base=st.sampled_from([VLLM, SGLANG, AIPERF, GENAI_PERF]), key=st.integers(0, 40), value=JSON)
def test_any_value_is_read_or_refused(tmp_path_factory, base, key, value):
    path = tmp_path_factory.mktemp("any") / "r.json"
    path.write_text(json.dumps(base | {list(base)[key % len(base)]: value}))
    with contextlib.suppress(InputError):
        for run in read_results(path).runs:
            assert all(math.isfinite(one) for one in figures(run))
            assert run.tpot_seconds > 0


def test_every_quantity_has_names():
    assert set(COLUMNS) == {"prompt", "output", "concurrency", "ttft", "tpot", "tp", "dp", "ep"}
    assert Run("f", 3, "CSV", 10, 11, 2, 0.5, 0.1).request_seconds == pytest.approx(1.5)
