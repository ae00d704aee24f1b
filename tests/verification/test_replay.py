"""Which requests of a trace are replayed, and what is said where they are not those of the plan."""

import numpy as np
import pytest

from capplan.cards.trace_requests import TraceRequests
from capplan.errors import InputError
from capplan.planning.plan import plan
from capplan.verification.replay import replayed
from capplan.verification.verify import verify

SYSTEM = {"model": "llama-3.1-8b", "hardware": {"gpu": "h100", "max_gpus": 16}, "serving": {"mode": "disaggregated"}}
OUTPUT = {"law": "lognormal", "mean": 300, "cv": 1.0, "max": "8k"}
COLUMNS = {"input": "p_len", "output": "o_len", "timestamp": "sent:s"}


def _planned(rate="20/s", prompt=500, dispersion=1.0, **sections):
    workload = {"input": prompt, "output": OUTPUT, "rate": rate, "dispersion": dispersion}
    return plan({**SYSTEM, "workload": workload, **sections})


def _like(answer, times, seed=0):
    prompts, outputs = answer.problem.workload.draw(len(times), np.random.default_rng(seed))
    return TraceRequests(np.asarray(times), prompts, outputs)


def _poisson(rate, number, seed=1):
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, number))


def _written(path, trace, header="arrival_s,input_tokens,output_tokens"):
    lines = [f"{t:.4f},{p},{o}" for t, p, o in zip(trace.times, trace.prompts, trace.outputs, strict=True)]
    path.write_text("\n".join([header, *lines]), encoding="utf-8")
    return path


def test_a_trace_like_the_plan_is_replayed_as_it_is():
    answer = _planned()
    trace = _like(answer, _poisson(20.0, 20_000))
    found = replayed(answer, trace, 20_000)
    assert found.differences == ()
    assert found.notes == ()
    assert found.requests is trace


def test_copies_and_repeats_are_told():
    answer = _planned()
    more, fewer = (replayed(answer, _like(answer, _poisson(rate, 20_000)), 20_000).notes for rate in (6.66, 40.0))
    assert "3 copies of the trace are laid over each other to reach 20 requests/s" in more[0]
    assert "its first" in more[1]
    assert "50% of the requests of the trace are left out" in fewer[0]
    assert "it begins anew" in fewer[1]


def test_other_lengths_and_other_bursts_are_told():
    answer = _planned()
    trace = _like(answer, _poisson(20.0, 20_000))
    longer = replayed(answer, trace._replace(outputs=trace.outputs * 2), 20_000).differences
    assert len(longer) == 1
    assert "mean output" in longer[0]
    assert "+10" in longer[0]
    spread = trace._replace(prompts=np.where(np.arange(20_000) % 2, 100, 900))
    assert "standard deviation of the prompts" in replayed(answer, spread, 20_000).differences[0]
    bursts = np.repeat(_poisson(2.0, 2000), 10) + np.tile(np.arange(10) * 1e-3, 2000)
    assert "dispersion" in replayed(answer, _like(answer, np.sort(bursts)), 20_000).differences[0]


def test_outputs_are_cut_at_the_budget_of_the_plan():
    answer = _planned(policy={"thinking_budget": 400})
    trace = _like(_planned(), _poisson(20.0, 20_000))
    found = replayed(answer, trace, 20_000)
    assert trace.outputs.max() > 1000
    assert found.requests.outputs.max() == 400
    assert found.differences == ()


def test_a_budget_reaches_the_simulation(tmp_path):
    answer = _planned()
    file = _written(tmp_path / "trace.csv", _like(answer, _poisson(20.0, 6000)))
    scenario = {**SYSTEM, "workload": {"trace": str(file)}, "policy": {"thinking_budget": 200}}
    found = verify(scenario, requests=3000)
    batch = next(row for row in found.rows if row.name == "batch_mean")
    assert batch.closed == pytest.approx(batch.simulated.value, rel=0.1)


def _day(answer, busy=3, hours=5):
    """A trace of some hours at 1/s, one of them at 6/s."""
    counts = [6 * 3600 if hour == busy else 3600 for hour in range(hours)]
    random = np.random.default_rng(2)
    times = np.concatenate([np.sort(3600 * (hour + random.random(n))) for hour, n in enumerate(counts)])
    return _like(answer, times - times[0])


def test_the_busiest_hour_is_replayed_where_the_plan_is_sized_for_it(tmp_path):
    trace = _day(_planned())
    file = _written(tmp_path / "day.csv", trace)
    answer = plan({**SYSTEM, "workload": {"trace": str(file)}})
    found = replayed(answer, trace, 5000)
    assert answer.problem.rate == pytest.approx(6.0, rel=0.02)
    assert found.notes[0].startswith("the busiest hour of the trace is replayed, hour 4")
    assert not any("copies" in note for note in found.notes)
    assert found.requests.times[0] >= 3 * 3600 - 1
    assert found.requests.times[-1] <= 4 * 3600
    stated = plan({**SYSTEM, "workload": {"trace": str(file), "rate": "6/s"}})
    assert len(replayed(stated, trace, 5000).requests.times) == len(trace.times)
    rows = {row.name: row for row in verify({**SYSTEM, "workload": {"trace": str(file)}}, requests=5000).rows}
    batch = rows["batch_mean"]
    assert batch.closed == pytest.approx(batch.simulated.value, rel=0.06)


def test_a_trace_alone_is_the_workload_too(tmp_path):
    file = _written(tmp_path / "odd.csv", _like(_planned(), _poisson(20.0, 3000)), "sent,p_len,o_len")
    found = verify(SYSTEM, trace=file, requests=1000, **{"workload.columns": COLUMNS})
    assert found.plan.problem.scenario.workload.trace == str(file)
    assert found.replay.differences == ()


@pytest.mark.parametrize("source", [{"input": 500, "output": OUTPUT}, {"card": "fixed-1k-1k"}])
def test_columns_of_the_scenario_are_those_of_the_trace(tmp_path, source):
    file = _written(tmp_path / "odd.csv", _like(_planned(), _poisson(20.0, 3000)), "sent,p_len,o_len")
    found = verify({**SYSTEM, "workload": {**source, "rate": "20/s", "columns": COLUMNS}}, trace=file, requests=1000)
    assert len(found.replay.requests.times) == 3000
    assert found.plan.problem.scenario.workload.trace is None


def test_another_workload_is_no_verdict_on_the_closed_forms(tmp_path):
    trace = _like(_planned(), _poisson(20.0, 6000))
    file = _written(tmp_path / "longer.csv", trace._replace(outputs=trace.outputs * 2))
    found = verify({**SYSTEM, "workload": {"input": 500, "output": OUTPUT, "rate": "20/s"}}, trace=file, requests=2000)
    verdicts = {row.verdict for row in found.rows}
    assert "other workload" in verdicts
    assert "disagrees" not in verdicts
    assert found.agrees is False
    assert any(note.startswith("other workload: the mean output") for note in found.notes)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (None, r"--set 'workload.columns=\{input = \"NAME\"\}'"),
        ({"inp": "p_len"}, "workload.columns: unknown quantity 'inp'; did you mean 'input'"),
        (5, "workload.columns: 5 must look like"),
        ({"input": "q_len", "output": "o_len"}, "unknown column 'q_len'; did you mean 'p_len'"),
    ],
)
def test_bad_columns_name_a_remedy_that_exists(tmp_path, columns, said):
    file = _written(tmp_path / "odd.csv", _like(_planned(), _poisson(20.0, 100)), "sent,p_len,o_len")
    scenario = {**SYSTEM, "workload": {"input": 500, "output": OUTPUT, "rate": "20/s"}}
    if columns is not None:
        scenario["workload"]["columns"] = columns
    with pytest.raises(InputError, match=said):
        verify(scenario, trace=file)
