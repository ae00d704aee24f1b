"""Traces: formats, figures computed elsewhere, equal answers of the fast and the careful reader, hostile files."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capplan.cards import trace_counts, trace_rows
from capplan.cards.arrivals import ArrivalCounts
from capplan.cards.prefix_reuse import PrefixReuse
from capplan.cards.trace import Trace, load_trace, read_trace
from capplan.cards.trace_columns import parsed_columns
from capplan.cards.trace_counts import JointCounts, LengthCounts, cell_of, middle_of
from capplan.cards.trace_rates import read_rates
from capplan.cards.workload import Workload
from capplan.cards.workload_card import load_workload
from capplan.errors import InputError, UnknownNameError

TRUTH = Path(__file__).parents[1] / "truth" / "traces"
FIGURES = json.loads((TRUTH / "figures.json").read_text(encoding="utf-8"))
AZURE, MOONCAKE, R1 = (
    "azure2023_conv.csv.gz",
    "mooncake_synthetic_trace.jsonl.gz",
    "servegen_deepseek-r1_synth_1h.csv.gz",
)


@pytest.fixture(scope="module")
def traces() -> dict[str, Trace]:
    sizes = tuple(int(size) for size in FIGURES[MOONCAKE]["prefix_cache"]["lru_by_capacity_blocks"])
    return {name: read_trace(TRUTH / name, caches=PrefixReuse(sizes)) for name in (AZURE, MOONCAKE, R1)}


@pytest.mark.parametrize("name", [AZURE, MOONCAKE])
def test_lengths_are_those_counted_elsewhere(name: str, traces: dict[str, Trace]) -> None:
    workload = traces[name].workload()
    for what, law in (("input", workload.input), ("output", workload.output)):
        known = FIGURES[name][what]
        assert traces[name].requests == known["n"]
        assert law.mean == pytest.approx(known["mean"], rel=1e-12)
        assert law.cv == pytest.approx(known["cv"], rel=1e-4)  # there with n - 1
        assert (law.quantile(0.0), law.quantile(1.0)) == (known["min"], known["max"])
        for key, p in (("p10", 0.1), ("p25", 0.25), ("median", 0.5), ("p75", 0.75), ("p90", 0.9), ("p99", 0.99)):
            assert law.quantile(p) == pytest.approx(known[key], rel=2e-3, abs=1)  # there interpolated
        assert law.length_biased_mean == pytest.approx(known["length_biased_mean"], rel=1e-12)
        for one in known["mean_residual_life"].values():
            if one["age"] == int(one["age"]):
                assert law.mean_residual(one["age"]) == pytest.approx(one["mean_residual"], rel=1e-9)


@pytest.mark.parametrize("name", [AZURE, MOONCAKE])
def test_context_of_a_running_request(name: str, traces: dict[str, Trace]) -> None:
    # There a request takes L decode steps, not L - 1: theta = E[L P + L (L - 1)/2] / E[L].
    workload = traces[name].workload()
    theta = (workload.moment(1, 1) + (workload.moment(0, 2) - workload.moment(0, 1)) / 2) / workload.moment(0, 1)
    assert theta == pytest.approx(FIGURES[name]["theta_tokens"], rel=1e-12)
    assert workload.mean_context == pytest.approx(FIGURES[name]["theta_tokens"], rel=0.01)


@pytest.mark.parametrize("name", [AZURE, MOONCAKE, R1])
def test_dispersion_is_that_counted_elsewhere(name: str, traces: dict[str, Trace]) -> None:
    arrivals, known = traces[name].arrivals, FIGURES[name]["arrivals"]
    assert arrivals is not None
    assert arrivals.rate == pytest.approx(known["rate_rps"], rel=5e-4)
    tolerance = 0.01 if name == R1 else 1e-9  # the R1 file has its times rounded to milliseconds
    shown = [window for window in known["index_of_dispersion"] if float(window) in arrivals.windows]
    assert {"1", "3", "10", "30", "60"} <= set(shown)
    for window in shown:
        found = arrivals.dispersion_at(float(window))
        assert found == pytest.approx(known["index_of_dispersion"][window], rel=tolerance)
    assert arrivals.drifts == (name != MOONCAKE)
    assert arrivals.step_seconds == 0.0


def test_prefix_hits_are_those_counted_elsewhere(traces: dict[str, Trace]) -> None:
    known = FIGURES[MOONCAKE]["prefix_cache"]
    hits = {one.capacity_blocks: one for one in traces[MOONCAKE].hits}
    for size, figures in known["lru_by_capacity_blocks"].items():
        assert hits[int(size)].block_share == pytest.approx(figures["block_hit_ratio"], rel=1e-12)
    largest = hits[max(hits)]
    assert not largest.filled
    assert largest.token_share == pytest.approx(known["infinite_cache_token_hit_ratio"], rel=1e-12)
    assert traces[AZURE].hits == ()


def test_reasoning_hour(traces: dict[str, Trace]) -> None:
    known, workload = FIGURES[R1], traces[R1].workload()
    assert traces[R1].requests == known["n"]
    assert workload.input.mean == pytest.approx(known["input_mean"], rel=1e-12)
    assert workload.output.mean == pytest.approx(known["output_mean"], rel=1e-12)
    assert workload.reasoning_share == pytest.approx(known["reason_mean"] / known["output_mean"], rel=1e-5)
    assert workload.reasoning is not None
    assert workload.reasoning.mean == pytest.approx(known["reason_mean"], rel=1e-5)


def written(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


AZURE_2023 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.6805900,396,109\n"
)
AZURE_2024 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:04.009930+00:00,2399,6\n"
)
BURST = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,230,1317,Conversation log\n"
    "118,GPT-4,417,0,417,API log\n205.5,GPT-4,1360,351,1711,API log\n"
)
MOONCAKE_LINES = (
    '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48]}\n'
    '{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46, 47, 2353]}\n'
)
FORMATS = [
    ("a.csv", AZURE_2023, {}, 385, 76.5, 4.0),
    ("a.csv.gz", AZURE_2024, {}, 2280.5, 5.5, 4.0),
    ("b.csv", BURST, {}, (472 + 1087 + 1360) / 3, (18 + 230 + 351) / 3, 200.5),
    ("m.jsonl", MOONCAKE_LINES, {}, 6713.5, 39, 3.053),
    ("m.ndjson.gz", MOONCAKE_LINES, {}, 6713.5, 39, 3.053),
    ("p.csv", "sent;x,my prompt,answer\n0,10,4\n1500,30,8\n",
     {"timestamp": "sent;x:ms", "input": "my prompt", "output": "answer"}, 20, 6, 1.5),
    ("q.jsonl", '{"t": 1700000000000, "isl": 1, "osl": 2}\n{"t": 1700000004000, "isl": 3, "osl": 4}\n',
     {"timestamp": "t"}, 2, 3, 4.0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "columns", "prompt", "output", "span"), FORMATS)
def test_formats(
    tmp_path: Path, name: str, text: str, columns: dict[str, str], prompt: float, output: float, span: float
) -> None:
    path = written(tmp_path, name, text)
    workload = load_workload(path, columns)
    assert (workload.input.mean, workload.output.mean) == pytest.approx((prompt, output))
    assert workload.arrivals is not None
    assert workload.arrivals.span_seconds == pytest.approx(span)
    if name == "b.csv":
        assert workload.remarks[0] == "1 of 4 requests have no output (failed): left out"
        by_model = read_trace(path, {"class": "Log Type"})
        assert {key: one.requests for key, one in by_model.classes.items()} == {"Conversation log": 2, "API log": 1}


def test_times_can_be_left_out_and_their_unit_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "arrived_at,isl,osl\n0,5,6\n9,5,6\n4,5,6\n")
    with pytest.raises(InputError, match="line 4, arrived_at: is earlier than the line before"):
        load_trace(path)
    assert load_trace(path, {"timestamp": ""}).arrivals is None
    path = written(tmp_path, "b.csv", "arrived_at,isl,osl\n0,5,6\n9,5,6\n")
    assert "taken as seconds" in load_trace(path).remarks[0]
    path = written(tmp_path, "c.csv", "arrival_ms,isl,osl\n0,5,6\n9,5,6\n")
    arrivals = load_trace(path).arrivals
    assert arrivals is not None
    assert arrivals.span_seconds == pytest.approx(0.009)


def test_rounded_times_are_recognised(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    times = 3000 * np.sort(random.integers(0, 1200, 12_000))
    lines = "".join(f'{{"timestamp": {t}, "input_length": 5, "output_length": 6, "hash_ids": []}}\n' for t in times)
    trace = read_trace(written(tmp_path, "a.jsonl", lines))
    assert trace.arrivals is not None
    assert trace.arrivals.step_seconds == 3.0
    assert trace.arrivals.windows[0] >= 6.0
    assert trace.arrivals.dispersion_at(1.0) == trace.arrivals.dispersion_at(6.0)
    assert trace.arrivals.dispersion_at(30.0) == pytest.approx(1.0, abs=0.4)
    assert "rounded to 3 s" in trace.notes[0]


def rows_of(seed: int, n: int = 3000) -> list[tuple[float, int, int, int, str]]:
    random = np.random.default_rng(seed)
    times = np.round(np.cumsum(random.exponential(2.0, n)), 3)
    prompts, outputs = random.integers(0, 200_000, n), random.integers(1, 30_000, n)
    thoughts = (outputs * random.random(n) * (random.random(n) < 0.7)).astype(int)
    kinds = random.choice(["chat", "code"], n)
    return list(zip(times.tolist(), prompts.tolist(), outputs.tolist(), thoughts.tolist(), kinds.tolist(), strict=True))


NAMES = ("arrival_s", "input_tokens", "output_tokens", "reasoning_tokens", "kind")


@pytest.mark.parametrize("by_class", [False, True])
def test_every_reader_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_class: bool) -> None:
    rows, columns = rows_of(4), {"class": "kind"} if by_class else {}
    plain = [",".join(map(str, row)) for row in rows]
    quoted = [",".join(f'"{cell}"' for cell in row) for row in rows]
    header = ",".join(NAMES)
    objects = [dict(zip(NAMES, row, strict=True)) for row in rows]
    odd = [line.replace(",", ", ") if number % 700 == 0 else line for number, line in enumerate(plain)]
    texts = {
        "plain.csv": "\n".join([header, *plain]),
        "windows.csv": "\r\n".join([header, *plain]) + "\r\n",
        "quoted.csv": "\n".join([header, *quoted]) + "\n",
        "odd.csv": "\n".join([header, *odd]),
        "plain.jsonl": "\n".join(json.dumps(one) for one in objects),
        "spaced.jsonl": "\n".join(json.dumps(one, separators=(" ,", " : ")) for one in objects),
    }
    monkeypatch.setattr(trace_rows, "BLOCK", 9000)
    found = [read_trace(written(tmp_path, name, text), columns) for name, text in texts.items()]
    for other in found[1:]:
        assert other.arrivals == found[0].arrivals
        assert other.reasoning_share == found[0].reasoning_share
        assert other.classes.keys() == found[0].classes.keys()
        for name, counts in other.classes.items():
            assert [one.tolist() for one in counts.rows()] == [one.tolist() for one in found[0].classes[name].rows()]
    assert set(found[0].classes) == ({"chat", "code"} if by_class else {"reasoning", "no reasoning"})


@pytest.mark.parametrize("stamp", ["2024-02-29 23:59:59.5", "2024-02-29T23:59:59.500", "2024-02-29 23:59:59.5+00:00",
                                   "2024-02-29T23:59:59.5Z", "2024-03-01 01:59:59.5+02:00"])  # fmt: skip
def test_dates(tmp_path: Path, stamp: str) -> None:
    after = stamp.replace("02-29", "03-01").replace("2024-03-01 01", "2024-03-02 01")
    for form in ("{},5,6\n", '"{}",5,6\n'):
        text = "timestamp,isl,osl\n" + form.format(stamp) + form.format(after)
        arrivals = load_trace(written(tmp_path, "a.csv", text)).arrivals
        assert arrivals is not None
        assert arrivals.span_seconds == 86_400


def test_cells_hold_what_falls_into_them() -> None:
    lengths = np.unique(np.concatenate([np.arange(70_000), np.random.default_rng(0).integers(0, 10**9, 20_000)]))
    for bits in (trace_counts.PROMPT_BITS, trace_counts.OUTPUT_BITS, trace_counts.MARGINAL_BITS):
        cells = cell_of(lengths, bits)
        assert (np.diff(cells) >= 0).all()
        middle = middle_of(cells, bits)
        small = lengths < 2 ** (bits + 1)
        assert (middle[small] == lengths[small]).all()
        assert np.abs(middle[~small] / lengths[~small] - 1).max() <= 2.0 ** -(bits + 1)


def test_counts_in_cells_keep_moments_and_marginals(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(5)
    prompts = np.rint(random.lognormal(6, 1.5, 60_000)).astype(np.int64)
    outputs = np.rint(random.lognormal(6.5, 1, 60_000) * (1 + 200 / (1 + prompts)) ** 0.2).astype(np.int64) + 1
    monkeypatch.setattr(trace_counts, "MANY_PAIRS", 5000)
    counts = JointCounts()
    for part in range(0, 60_000, 7000):
        counts.add(prompts[part : part + 7000], outputs[part : part + 7000])
    exact, kept = Workload(joint=(prompts, outputs)), Workload(joint=counts.sample())
    assert len(kept.joint.weight) < 13_000 if kept.joint else False
    assert counts.rows()[2].sum() == 60_000
    for i, j in ((1, 0), (0, 1), (1, 1), (2, 1), (0, 2), (0, 3), (0, 4)):
        assert kept.moment(i, j) == pytest.approx(exact.moment(i, j), rel=3e-3)
    lengths, often = counts.outputs.values()
    distinct, known = np.unique(outputs[outputs < 32_768], return_counts=True)
    below = lengths < 32_768
    assert (lengths[below].tolist(), often[below].tolist()) == (distinct.tolist(), known.tolist())


def test_long_lengths_are_counted_to_their_own_scale() -> None:
    counts = LengthCounts()
    counts.add(np.array([5, 5, 10**9, 0]))
    values, often = counts.values()
    assert values[:2].tolist() == [0, 5]
    assert often.tolist() == [1, 2, 1]
    assert values[2] == pytest.approx(1e9, rel=1e-4)


def test_bins_double_where_a_trace_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    times = np.cumsum(np.random.default_rng(1).exponential(1.0, 40_000))
    times -= times[0]
    one = np.ones(len(times), dtype=np.int64)
    whole, coarse = ArrivalCounts(), ArrivalCounts()
    whole.add(times, one, one)
    monkeypatch.setattr("capplan.cards.arrivals._MOST_BINS", 50_000)
    for part in range(0, 40_000, 4000):
        coarse.add(times[part : part + 4000], one[:4000], one[:4000])
    a, b = whole.arrivals(), coarse.arrivals()
    assert a is not None
    assert b is not None
    assert b.dispersion_at(60.0) == pytest.approx(a.dispersion_at(60.0), rel=1e-9)
    assert a.dispersion_at(60.0) == pytest.approx(1.0, abs=0.2)
    assert not a.drifts


def test_hours_have_peaks_of_their_own() -> None:
    counts = ArrivalCounts()
    hours = ((0, 100, 1000, 10), (1, 300, 10, 10), (2, 50, 10, 5000), (3, 1, 1, 1))
    for hour, n, prompt, output in hours:
        tokens = np.full(n, prompt), np.full(n, output)
        counts.add(hour * 3600 + np.linspace(0, 3599, n), *tokens)
    found = counts.hours()
    assert len(found) == 3
    assert max(found, key=lambda one: one.rate).start_hour == 1
    assert max(found, key=lambda one: one.prompt_tokens_per_second).start_hour == 0
    assert max(found, key=lambda one: one.kv_load).start_hour == 2
    steps = 4999
    assert found[2].kv_load == pytest.approx(50 / 3600 * (steps * 10 + steps * (steps - 1) / 2))
    arrivals = counts.arrivals()
    assert arrivals is not None
    assert arrivals.busiest_rate == pytest.approx(300 / 3600)


def test_a_small_cache_forgets_what_was_used_longest_ago() -> None:
    caches = PrefixReuse((2, 10), block_tokens=4)
    caches.add([["a", "b"], ["a", "c"], ["b"], ["a"]], [8, 7, 4, 4])
    small, large = caches.hits()
    assert (small.block_share, small.filled) == (1 / 6, True)  # only the a of the second prompt
    assert (large.block_share, large.filled) == (3 / 6, False)
    assert large.token_share == (4 + 4 + 4) / 23


HEAD = "timestamp,isl,osl\n"
HOSTILE: list[tuple[str, str | bytes, str]] = [
    ("a.csv", b"\x00\xff\xfe\x01" * 50, "line 1: is not text in UTF-8"),
    ("a.jsonl", b"\x89PNG\r\n\x1a\n\xff", "line 1: is not text in UTF-8"),
    ("a.csv", HEAD.encode() + b"0,5,6\n1,\xff\xff,6\n", "line 3: is not text in UTF-8"),
    ("a.csv", HEAD.encode() + b'0,"5",6\n1,\xff\xff,6\n', "line 3: is not text in UTF-8"),
    ("a.csv", HEAD + "nan,5,6\n", "line 2, timestamp: 'nan' is no time stamp"),
    ("a.csv", HEAD + "inf,5,6\n", "line 2, timestamp"),
    ("a.csv", HEAD + "-4,5,6\n", "line 2, timestamp"),
    ("a.csv", HEAD + "1e30,5,6\n", "line 2, timestamp"),
    ("a.csv", HEAD + "0,-5,6\n", "line 2, isl: '-5' must be a whole token count"),
    ("a.csv", HEAD + "0,1e30,6\n", "line 2, isl"),
    ("a.csv", HEAD + "0,5,99999999999\n", "line 2, osl"),
    ("a.csv", HEAD + "0,5.5,6\n", "line 2, isl"),
    ("a.csv", HEAD + "0,5,NaN\n", "line 2, osl"),
    ("a.csv", HEAD + "0,5,6\n0,5,0x10\n", "line 3, osl"),
    ("a.csv", HEAD + "0,5,6\n" * 3 + "0,5,6,7\n", "line 5: 4 cells under 3 columns"),
    ("a.csv", HEAD + "0,5,6\n0,5\n", "line 3, osl: is missing"),
    ("a.csv", "isl,isl,osl\n", "line 1: column 'isl' occurs twice"),
    ("a.csv", "isl,input_tokens,osl\n5,5,6\n", "columns 'isl' and 'input_tokens' both give input tokens"),
    ("a.csv", HEAD + "1700000000,5,6\n1700000001000,5,6\n", "line 3, timestamp: is more than ten years"),
    ("a.csv", HEAD + "5,5,6\n4,5,6\n", "line 3, timestamp: is earlier than the line before; sort the file by time"),
    ("a.csv", HEAD + "2024-02-30 00:00:00,5,6\n", "line 2, timestamp: '2024-02-30 00:00:00' is no date"),
    ("a.csv", HEAD + "2024-02-01 00:00:00,5,6\n7,5,6\n", "dates and plain numbers are mixed"),
    ("a.csv", HEAD + "0,5,0\n", "osl: holds no request with 1 or more output tokens"),
    ("a.csv", HEAD, "holds no request"),
    ("a.csv", "\n\n", "holds no request"),
    ("a.jsonl", "\n \n", "holds no request"),
    ("a.jsonl", '{"isl": 5, "osl": 6}\n{"isl": 5, "osl": 6, "osl": 7}\n', "line 2: key 'osl' occurs twice"),
    ("a.jsonl", '{"isl": 5, "osl": 6}\n{"isl" :5, "osl": 6, "isl": 7}\n', "line 2: key 'isl' occurs twice"),
    ("a.jsonl", '{"isl": 5, "osl": 6}\n{"isl": 5}\n', "line 2, osl: is missing"),
    ("a.jsonl", '{"isl": 5, "osl": 6}\n{"isl": true, "osl": 6}\n', "line 2, isl: 'True'"),
    ("a.jsonl", '{"isl": 5, "osl": 6}\n{"isl": NaN, "osl": 6}\n', "line 2, isl: 'nan'"),
    ("a.jsonl", '{"isl": 5, "osl": 6}\n{"isl": , "osl": 6}\n', "line 2: is not valid JSON"),
    ("a.jsonl", '{"isl": 5, "osl": 6}\n{"isl": , "osl": 67}3\n', "line 2: is not valid JSON"),
    ("a.jsonl", '{"isl": 5, "osl": 6}\n{"isl": 5, "osl": 6.5}\n', "line 2, osl: '6.5'"),
    ("a.jsonl", '{"isl": 5, "osl": 6}\n{"isl": 5, "osl": 6.5.1}\n', "line 2: is not valid JSON"),
    ("a.jsonl", '{"isl": 5, "osl": 6, "isl": 6}\n' * 2, "line 1: key 'isl' occurs twice"),
    ("a.jsonl", '{"isl": 5, "osl": 6} {"isl": 5, "osl": 6}\n', "line 1: is not valid JSON"),
    ("a.jsonl", '{"isl": 5, "osl": 6}\n{"isl": ' + "9" * 5000 + ', "osl": 6}\n', "line 2"),
    ("a.csv", ",".join(f"c{i}" for i in range(3000)) + "\n", "line 1: 3,000 columns"),
]


@pytest.mark.parametrize(("name", "text", "told"), HOSTILE)
def test_hostile_files_are_one_line(tmp_path: Path, name: str, text: str | bytes, told: str) -> None:
    path = written(tmp_path, name, text)
    with pytest.raises(InputError) as caught:
        load_trace(path)
    assert told in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500 + len(str(path))


def test_a_file_that_expands_beyond_measure_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_rows, "BLOCK", 1 << 14)
    path = written(tmp_path, "a.csv.gz", "isl,osl\n" + "5,6\n" * 3_000_000)
    with pytest.raises(InputError, match="give a sample of it"):
        load_trace(path)
    path = written(tmp_path, "b.csv.gz", b"isl,osl\n" + b"0" * 20_000_000)
    with pytest.raises(InputError, match="line 2 is too long"):
        load_trace(path)


def test_too_many_classes(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "isl,osl,user\n" + "".join(f"5,6,u{i}\n" for i in range(60)))
    with pytest.raises(InputError, match="line 52, user: more than 50 classes"):
        load_trace(path, {"class": "user"})


def test_bad_mappings(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "isl,osl,sent\n5,6,0\n")
    with pytest.raises(UnknownNameError, match="did you mean 'sent'"):
        load_trace(path, {"timestamp": "snet"})
    with pytest.raises(InputError, match="unit 'days' of a time stamp"):
        load_trace(path, {"timestamp": "sent:days"})
    with pytest.raises(UnknownNameError, match="did you mean 'input'"):
        load_workload(path, {"inputs": "isl"})
    with pytest.raises(InputError, match="belong to a trace"):
        load_workload("fixed-1k-1k", {"input": "isl"})
    assert parsed_columns(["input=a=b", "timestamp="]) == {"input": "a=b", "timestamp": ""}
    for bad, told in ((["input"], "must look like"), (["input=a", "input=b"], "twice"), (["x=a"], "unknown quantity")):
        with pytest.raises(InputError, match=told):
            parsed_columns(bad)


def test_draws_are_whole_and_of_that_law() -> None:
    random = np.random.default_rng(7)
    for workload in (
        Workload(joint=([10.25, 400.5], [3.75, 9000.0], [0.8, 0.2])),
        Workload(classes=[(0.7, 100, 50), (0.3, 2000, 800)]),
        load_workload("reasoning-r1-production"),
    ):
        prompts, outputs = workload.draw(200_000, random)
        assert prompts.dtype == outputs.dtype == np.int64
        assert outputs.min() >= 1
        assert prompts.mean() == pytest.approx(workload.input.mean, rel=0.02)
        assert outputs.mean() == pytest.approx(workload.output.mean, rel=0.02)
        mixed = float((prompts * outputs).mean())
        assert mixed == pytest.approx(workload.moment(1, 1), rel=0.05)


def test_the_careful_csv_reader_is_the_one_of_python(tmp_path: Path) -> None:
    rows: list[list[Any]] = [["note", "isl", "osl"], ['a "quoted"\nnote, over lines', 5, 6], ["", 7, 8]]
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows(rows)
    assert load_trace(path).moment(1, 1) == (30 + 56) / 2


def test_servegen_clients(tmp_path: Path) -> None:
    windows: dict[str, dict[str, Any]] = {
        "0": {"input_tokens": "{100: 0.5, 200: 0.5}", "output_tokens": "{50: 0.7, 100: 0.3}"},
        "21600": {"input_tokens": "{1000: 1.0}", "output_tokens": {"10": 2}, "reason_ratio": "{0.5: 1}"},
    }
    path = written(tmp_path, "chunk-7-dataset.json", json.dumps(windows))
    alike = load_workload(path)
    assert (alike.input.mean, alike.output.mean) == pytest.approx(((150 + 1000) / 2, (65 + 10) / 2))
    assert "count alike" in alike.remarks[1]
    written(tmp_path, "chunk-7-trace.csv", "0,1.0,2.5,Gamma,0.16,6.25\n600,2.0,1,Gamma,1,1\n21600,1.0,1,Weibull,1,1\n")
    path.touch()
    weighted = load_trace(path)
    assert weighted.input.mean == pytest.approx((3 * 150 + 1000) / 4)
    assert read_trace(path).requests == 4
    assert weighted.reasoning is None  # the first window does not tell it
    assert "reason_ratio is left out: 1 of 2 windows lack it" in weighted.remarks
    windows["0"]["reason_ratio"] = "{0.25: 0.5, 0.75: 0.5}"
    told = load_trace(written(tmp_path, "chunk-7-dataset.json", json.dumps(windows)))
    assert told.reasoning is not None
    assert told.reasoning.mean == pytest.approx((3 * 65 * 0.5 + 10 * 0.5) / 4)
    windows["0"]["reason_ratio"] = "{1.25: 1}"
    with pytest.raises(InputError, match=r"0\.reason_ratio: 1\.25 must be a share"):
        load_trace(written(tmp_path, "chunk-7-dataset.json", json.dumps(windows)))
    for text, told in (
        ("[]", "JSON object"),
        ("{}", "JSON object"),
        ('{"a": {}}', "JSON object"),
        ('{"0": {"input_tokens": "__import__"}}', r"0\.input_tokens: must be a histogram"),
        ('{"0": {"input_tokens": "{5: 1}"}}', "no output_tokens"),
    ):
        with pytest.raises(InputError, match=told):
            load_trace(written(tmp_path, "bad-dataset.json", text))


def test_reasoning_share_of_published_histograms(tmp_path: Path) -> None:
    # Outputs of 100 and 900 tokens; half of the requests think half of their output, the others all of it.
    lengths = ["input_tokens,4,10", "output_tokens,100,7.5", "output_tokens,900,2.5"]
    rows = [*lengths, "reason_ratio,0.5,5", "reason_ratio,1,5"]
    header = "field,value,expected_requests"
    workload = load_trace(written(tmp_path, "a.csv", "\n".join([header, *rows])))
    assert workload.reasoning is not None
    assert workload.reasoning.mean == pytest.approx(0.75 * 300)
    assert [workload.reasoning.cdf(x) for x in (49, 50, 100, 450, 900)] == pytest.approx([0, 0.375, 0.75, 0.875, 1])
    assert workload.reasoning_share == pytest.approx(0.75)
    assert "reason_ratio is taken as independent of the output it is a share of" in workload.remarks
    assert load_trace(written(tmp_path, "b.csv", "\n".join([header, *lengths]))).reasoning is None
    with pytest.raises(InputError, match=r"reason_ratio 1\.5 must be a share"):
        load_trace(written(tmp_path, "c.csv", "\n".join([header, *rows, "reason_ratio,1.5,1"])))


def test_block_hashes_must_fit_the_prompts(tmp_path: Path) -> None:
    def line(prompt: int, hashes: list[int]) -> str:
        return json.dumps({"timestamp": 0, "input_length": prompt, "output_length": 5, "hash_ids": hashes}) + "\n"

    good = line(1000, [1, 2]) + line(1025, [1, 2]) + line(1024, [1, 2, 3]) + line(9999, [])  # one more or less; none
    assert read_trace(written(tmp_path, "a.jsonl", good), caches=PrefixReuse()).hits
    bad = written(tmp_path, "b.jsonl", good + line(64, [1, 2, 3]))
    with pytest.raises(InputError, match=r"line 5, hash_ids: 3 block hashes .* a prompt of 64 .*--block-tokens"):
        read_trace(bad, caches=PrefixReuse())
    assert read_trace(bad).requests == 5  # not read, so not judged
    sixteen = written(tmp_path, "c.jsonl", line(64, [1, 2, 3, 4]) + line(0, [1]))
    assert read_trace(sixteen, caches=PrefixReuse(block_tokens=16)).hits


def test_columns_are_those_of_all_rows(tmp_path: Path) -> None:
    rows = [{"timestamp": 0, "input_length": 700, "output_length": 5}]
    rows += [{**rows[0], "timestamp": 1000 * n, "hash_ids": [1, n]} for n in range(1, 30)]
    path = written(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    trace = read_trace(path, caches=PrefixReuse())
    assert trace.arrivals is not None
    assert trace.arrivals.span_seconds == pytest.approx(29)  # hash_ids tell milliseconds, whichever row has them
    assert trace.hits
    assert not any("taken as seconds" in note for note in trace.notes)


@pytest.mark.parametrize("rows", [2, 20_000])
def test_a_cut_last_line_is_named(tmp_path: Path, rows: int) -> None:
    text = "".join(f'{{"timestamp": {n}, "input_length": 5, "output_length": 6}}\n' for n in range(rows))
    path = written(tmp_path, "a.jsonl", text + '{"timestamp": 99999, "input_le')
    with pytest.raises(InputError, match=f"line {rows + 1}: is not valid JSON"):
        load_trace(path)


def test_rates_are_those_counted_elsewhere() -> None:
    arrivals, hourly = read_rates(TRUTH / "servegen_deepseek-r1_rate.csv")
    known = FIGURES["servegen_deepseek-r1_rate.csv"]
    assert arrivals.rate == pytest.approx(known["mean_rate_rps"], rel=1e-4)
    assert hourly.tolist() == pytest.approx(list(known["hourly_rps"].values()), rel=0.03)  # there over drawn requests
    assert arrivals.busiest_rate == max(hourly)
    assert arrivals.dispersion_at(60.0) == 1.0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("t_s,rate\n0,1\n", "two rows"),
        ("t_s,rate\n0,1\n600,x\n", "line 3, rate: 'x' must be a rate"),
        ("t_s,rate\n0,1\n600,nan\n", "line 3, rate"),
        ("t_s,rate\n0,1\n600,1\n900,1\n", "line 4: times must be equally far apart"),
        ("t_s,rate\n0,1\n0,1\n", "equally far apart"),
        ("t_s,rate\n0,0\n600,0\n", "every rate is 0"),
        ("t_s,load\n0,0\n", "one of rates"),
        ("", "one of rates"),
    ],
)
def test_bad_rates(tmp_path: Path, text: str, told: str) -> None:
    path = written(tmp_path, "rates.csv", text)
    with pytest.raises(InputError, match=told) as caught:
        read_rates(path)
    assert str(caught.value).startswith(str(path))
