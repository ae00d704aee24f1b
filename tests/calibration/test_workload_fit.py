"""Workload cards made of traces: they reproduce the trace, meet the schema, and go wherever a card goes."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from capplan.calibration.workload_fit import PlannerMoments, WorkloadFit, correlation, fit_workload
from capplan.calibration.workload_fit_card import card_name, workload_card, write_card
from capplan.cards.trace_requests import load_requests
from capplan.cards.workload_card import load_workload, workload_card_schema
from capplan.cli.main import main
from capplan.errors import InputError
from capplan.formulas.decode_nodes import sample_moments
from capplan.planning.plan import plan

TRUTH = Path(__file__).parents[1] / "truth" / "traces"
NAMES = ("azure2023_conv.csv.gz", "mooncake_synthetic_trace.jsonl.gz", "servegen_deepseek-r1_synth_1h.csv.gz")


@pytest.fixture(scope="module")
def fits() -> dict[str, WorkloadFit]:
    return {name: fit_workload(TRUTH / name) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_the_card_reproduces_the_trace(name: str, fits: dict[str, WorkloadFit], tmp_path: Path) -> None:
    fit = fits[name]
    path = write_card(fit, tmp_path / "card.json")
    card = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.validate(card, workload_card_schema())
    assert path.stat().st_size < 200_000
    trace, made = fit.trace.workload(), load_workload(path)
    for k in (1, 2, 3):
        assert made.input.moment(k) == pytest.approx(trace.input.moment(k), rel=1e-5)
        assert made.output.moment(k) == pytest.approx(trace.output.moment(k), rel=1e-5)
    assert made.output.moment(4) == pytest.approx(trace.output.moment(4), rel=1e-4)
    for p in (0.9, 0.99, 0.999):
        assert made.input.quantile(p) == pytest.approx(trace.input.quantile(p), rel=0.025)
        assert made.output.quantile(p) == pytest.approx(trace.output.quantile(p), rel=0.025)
    errors = PlannerMoments.of(made.decode_moments).errors(fit.data)
    assert max(map(abs, errors.values())) < 0.005
    assert errors == pytest.approx(fit.errors, abs=1e-5)
    assert made.moment(1, 1) == pytest.approx(trace.moment(1, 1), rel=0.005)
    assert made.reasoning_share == (None if trace.reasoning_share is None else pytest.approx(trace.reasoning_share))
    assert made.arrivals is not None
    assert trace.arrivals is not None
    assert made.arrivals.dispersion_at(45.0) == pytest.approx(trace.arrivals.dispersion_at(45.0), rel=1e-5)
    assert made.arrivals.drifts == trace.arrivals.drifts


def test_reasoning_tokens_of_the_card_are_those_of_the_trace(fits: dict[str, WorkloadFit], tmp_path: Path) -> None:
    fit = fits[NAMES[2]]
    told = load_requests(TRUTH / NAMES[2]).reasoning
    made = load_workload(write_card(fit, tmp_path / "r1.json"))
    card = workload_card(fit, "x")
    card["reasoning_share"]["value"] = 0.2
    (tmp_path / "x.json").write_text(json.dumps(card))
    with pytest.raises(InputError, match=r"reasoning_share\.value: 0\.2 is not the share of the laws, 0\.859"):
        load_workload(tmp_path / "x.json")
    assert told is not None
    assert made.reasoning is not None
    assert made.reasoning.mean == pytest.approx(told.mean(), rel=1e-5)
    nodes = made.reasoning_nodes()
    order = np.argsort(nodes.steps)
    for p in (0.1, 0.5, 0.9, 0.99):
        assert made.reasoning.quantile(p) == pytest.approx(np.quantile(told, p), rel=0.01)
        node = nodes.steps[order][np.searchsorted(np.cumsum(nodes.weights[order]), p)]
        assert node == pytest.approx(np.quantile(told, p), rel=0.02)
    # One share of every output would be 25 % high in the median and 7 % low in the tail.
    assert np.quantile(told, 0.5) < 0.81 * made.output.quantile(0.5) * made.reasoning_share
    assert np.quantile(told, 0.99) > 1.06 * made.output.quantile(0.99) * made.reasoning_share
    by_hump = [one.reasoning.mean for one in fit.classes if one.reasoning is not None]
    assert by_hump[1] > 10 * by_hump[0]
    assert "reasoning" not in workload_card(fits[NAMES[0]], "a")["classes"][0]


@pytest.mark.parametrize("name", NAMES)
def test_every_number_names_its_trace(name: str, fits: dict[str, WorkloadFit]) -> None:
    card = workload_card(fits[name], "x")
    assert card["trace"]["file"] == name
    assert len(card["trace"]["sha256"]) == 64
    sources = {number.source for number in load_sources(card)}
    assert sources == {card["trace"]["requests"]["source"]}
    assert f"{fits[name].trace.requests:,} requests" in sources.pop()
    assert {number.kind for number in load_sources(card)} <= {"measured", "fitted"}


def load_sources(card: dict) -> list:
    from capplan.cards.number import Sources

    return list(Sources(card).values())


def test_prefix_hits_and_what_independence_would_cost(fits: dict[str, WorkloadFit]) -> None:
    mooncake = fits[NAMES[1]]
    card = workload_card(mooncake, "m")
    assert card["prefix_hits"]["token_share"]["values"][-1] == pytest.approx(0.65124, rel=1e-4)
    assert not mooncake.uses_laws
    assert mooncake.law_errors["theta"] == pytest.approx(1.143, rel=0.01)
    assert "joint" in card["classes"][0]
    assert fits[NAMES[2]].split_by.startswith("the two humps")


def test_planner_moments_against_the_published_vectors() -> None:
    # Exponential lengths of mean 1,000 at prompts of 1,000: theta 2,000, nu 1,000, H1 1.126, m1 1,426 (85 % in KV).
    random = np.random.default_rng(1)
    steps = random.exponential(1000, 2_000_000)
    found = PlannerMoments.of(sample_moments(np.full(len(steps), 1000.5), steps, np.ones(len(steps))))
    assert found.theta == pytest.approx(2000, rel=0.01)
    assert found.nu == pytest.approx(1000, rel=0.02)
    assert found.h1 == pytest.approx(1.126, rel=0.01)
    assert found.m1 == pytest.approx(1426, rel=0.01)
    assert math.isnan(PlannerMoments.of(sample_moments([5.0], [0.0], [1.0])).theta)


def csv_of(folder: Path, n: int = 30_000) -> Path:
    """Two independent lognormal classes named by a column."""
    random = np.random.default_rng(6)
    kind = random.random(n) < 0.3
    prompts = np.where(kind, random.lognormal(8, 0.6, n), random.lognormal(5, 0.7, n)).astype(int) + 1
    outputs = np.where(kind, random.lognormal(5, 0.5, n), random.lognormal(7, 0.6, n)).astype(int) + 1
    times = np.cumsum(random.exponential(0.5, n))
    rows = zip(times, prompts, outputs, np.where(kind, "search", "chat"), strict=True)
    path = folder / "My Trace.csv"
    path.write_text("arrival_s,isl,osl,app\n" + "".join(f"{t:.4f},{p},{o},{a}\n" for t, p, o, a in rows))
    return path


def test_classes_with_laws(tmp_path: Path) -> None:
    fit = fit_workload(csv_of(tmp_path), {"class": "app"}, windows=[45.0])
    assert fit.uses_laws
    assert [one.name for one in fit.classes] == ["chat", "search"]
    assert fit.classes[1].share == pytest.approx(0.3, abs=0.01)
    assert max(abs(error) for error in fit.errors.values()) < 0.02
    card = workload_card(fit, "mine")
    assert card["classes"][0]["output"]["law"] == "lognormal"
    assert len(card["hours"]["rate"]["values"]) == 4
    assert 45.0 in card["arrivals"]["windows"]["values"]
    path = write_card(fit, tmp_path / "mine.json")
    made = load_workload(path)
    assert [kind.name for kind in made.classes] == ["chat", "search"]
    assert made.mean_context == pytest.approx(fit.data.theta, rel=0.02)
    assert made.arrivals is not None
    assert made.arrivals.busiest_rate == pytest.approx(2.0, rel=0.05)
    assert made.name == "mine"


def test_names_and_files(tmp_path: Path) -> None:
    fit = fit_workload(csv_of(tmp_path, 500))
    assert card_name(fit, None) == "my-trace"
    assert card_name(fit, "My Card") == "my-card"
    path = write_card(fit, tmp_path / "card.json", "given")
    assert load_workload(path).name == "given"
    with pytest.raises(InputError, match="--force overwrites"):
        write_card(fit, path)
    write_card(fit, path, force=True)
    with pytest.raises(InputError, match="cannot be written"):
        write_card(fit, tmp_path / "no" / "card.json")


def test_histograms_make_a_card_too(tmp_path: Path) -> None:
    path = tmp_path / "pmf.csv"
    rows = [("input_tokens", 10 * i, 1 / i) for i in range(1, 60)] + [("output_tokens", 7 * i, i) for i in range(1, 50)]
    path.write_text("field,value,expected_requests\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows))
    fit = fit_workload(path)
    assert fit.uses_laws
    assert correlation(*fit.rows) == pytest.approx(0.0, abs=1e-9)
    made = load_workload(write_card(fit, tmp_path / "pmf.json"))
    assert made.output.mean == pytest.approx(load_workload(path).output.mean, rel=1e-6)
    assert made.arrivals is None
    rated = fit_workload(path, rates=TRUTH / "servegen_deepseek-r1_rate.csv")
    assert len(rated.trace.hours) == 24
    made = load_workload(write_card(rated, tmp_path / "rated.json"))
    assert made.arrivals is not None
    assert made.arrivals.busiest_rate == pytest.approx(35.13, abs=0.01)
    told = " ".join(plan({**SCENARIO, "workload": {"card": str(tmp_path / "rated.json")}}).assumptions)
    assert "the busiest hour of rated (mean 16.01/s)" in told
    assert "workload.dispersion = 1, Poisson arrivals (default)" in told
    with pytest.raises(InputError, match="--rates: has no use"):
        fit_workload(csv_of(tmp_path, 500), rates=TRUTH / "servegen_deepseek-r1_rate.csv")


def test_pairs_on_a_card_are_checked(fits: dict[str, WorkloadFit], tmp_path: Path) -> None:
    path = tmp_path / "card.json"
    for change, told in (
        (lambda c: c["classes"][0]["joint"]["weights"]["values"].pop(), r"classes\.0\.joint: needs as many"),
        (lambda c: c["classes"][0].pop("joint"), "a class has input and output, or joint"),
        (lambda c: c["arrivals"]["windows"]["values"].reverse(), r"arrivals\.windows\.values: must increase"),
        (
            lambda c: c["arrivals"]["dispersion"]["values"].pop(),
            "with a dispersion each",
        ),
        (lambda c: c["arrivals"]["span"].update(value=0.0), r"arrivals\.span\.value: 0 must lie between"),
        (lambda c: c["arrivals"]["span"].update(value=-1.0), r"arrivals\.span\.value: -1 must lie between"),
        (lambda c: c["arrivals"]["rate"].update(value=1e-300), r"arrivals\.rate\.value: 1e-300 must lie between"),
        (
            lambda c: c["arrivals"]["dispersion"]["values"].__setitem__(1, 1e308),
            r"arrivals\.dispersion\.values\.1: 1e\+308 must lie between",
        ),
        (lambda c: c["trace"]["requests"].update(value=-5.0), r"trace\.requests\.value: -5 must lie between"),
        (lambda c: c["targets"]["output_mean"].update(unit="furlong"), r"targets\.output_mean\.unit: unit 'furlong'"),
        (
            lambda c: c["targets"]["output_mean"].update(value=400.0),
            "output_mean.value: 400 is not the mean",
        ),
        (lambda c: c["arrivals"]["windows"].update(unit="min"), r"arrivals\.windows\.unit"),
    ):
        card = json.loads(json.dumps(workload_card(fits[NAMES[0]], "x")))
        change(card)
        path.write_text(json.dumps(card))
        with pytest.raises(InputError, match=told) as caught:
            load_workload(path)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)


SCENARIO = {"model": "llama-3.1-8b", "hardware": {"gpu": "h200"}, "slo": {"tpot_p99": "40ms", "ttft_p99": "2s"}}


def test_a_plan_takes_rate_and_dispersion_from_its_trace(fits: dict[str, WorkloadFit], tmp_path: Path) -> None:
    trace = {"trace": str(TRUTH / NAMES[2])}
    answer = plan({**SCENARIO, "workload": trace})
    assert answer.problem.rate == pytest.approx(7.176506, rel=1e-6)
    told = " ".join(answer.assumptions)
    assert "workload.rate = 7.177/s, the mean of servegen" in told
    assert "the rate of the trace drifts" in told
    pools = answer.outcome.pools
    assert pools is not None
    arrivals = answer.problem.workload.arrivals
    assert arrivals is not None
    horizon = pools.decode.stationary.dispersion_horizon_seconds
    used = answer.problem.scenario.workload.dispersion
    assert used >= 0.97 * arrivals.dispersion_at(horizon) > 10  # or errs high
    given = plan({**SCENARIO, "workload": {**trace, "rate": "3/s", "dispersion": 2.5}})
    assert (given.problem.rate, given.problem.scenario.workload.dispersion) == (3.0, 2.5)
    assert "counted in" not in " ".join(given.assumptions)
    card = str(write_card(fits[NAMES[2]], tmp_path / "card.json"))
    assert plan({**SCENARIO, "workload": {"card": card}}).gpus_total == answer.gpus_total


def test_a_plan_without_any_rate_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("mine,osl\n5,6\n7,8\n")
    with pytest.raises(InputError, match=r"give exactly one of rate .* a has no arrival times"):
        plan({**SCENARIO, "workload": {"trace": str(path), "columns": {"input": "mine"}}})
    with pytest.raises(InputError, match="columns belong to a trace"):
        plan({**SCENARIO, "workload": {"card": "fixed-1k-1k", "columns": {"input": "mine"}, "rate": "1/s"}})


def run(*arguments: str) -> int:
    return main(["workloads", "fit", *arguments])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, card = str(csv_of(tmp_path)), str(tmp_path / "card.json")
    assert run(path, "--class-column", "app", "--horizon", "45s", "--output", card, "--json") == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert answer["requests"] == 30_000
    assert answer["card_holds"] == "laws"
    assert answer["arrivals"]["dispersion_at_horizon"] == pytest.approx(1.0, abs=0.3)
    assert not answer["arrivals"]["drifts"]
    assert answer["written"] == card
    assert f"written: {card}" in err
    assert run(path) == 0
    text = capsys.readouterr().out
    assert "index of dispersion" in text
    assert "peak of 4 hours" in text


def test_what_is_read_is_never_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = csv_of(tmp_path, 50)
    (tmp_path / "link.json").symlink_to(path)
    rates = tmp_path / "rates.csv"
    rates.write_text("t_s,rate\n0,1\n600,2\n")
    text = path.read_text()
    for output in (tmp_path / "link.json", tmp_path / "x" / ".." / path.name, rates):
        assert run(str(path), "--rates", str(rates), "--output", str(output), "--force") == 2
        assert "is the file that is read" in capsys.readouterr().err
    assert (path.read_text(), rates.read_text()) == (text, "t_s,rate\n0,1\n600,2\n")
    with pytest.raises(InputError, match="is the file that is read"):
        write_card(fit_workload(path), path, force=True)


def test_names_of_cards_are_made_fit(tmp_path: Path) -> None:
    fit = fit_workload(csv_of(tmp_path, 50))
    assert card_name(fit, "azure2023_conv") == "azure2023-conv"
    assert card_name(fit, None) == "my-trace"
    assert load_workload(write_card(fit, tmp_path / "My_Card.json")).name == "my-card"


def test_outputs_of_one_token_have_dashes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.csv"
    path.write_text("arrival_s,isl,osl\n0,5,1\n1,6,1\n2,7,1\n")
    assert run(str(path)) == 0
    out = capsys.readouterr().out
    assert "nan" not in out
    assert re.search(r"^H1 +- +- +- +-$", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["no-such.csv"], "is no file"),
        ([__file__], "must end in .csv, .jsonl or .ndjson"),
        (["TRACE", "--force"], "--force: has a meaning only with --output"),
        (["TRACE", "--horizon", "45"], "--horizon"),
        (["TRACE", "--horizon", "0s"], "--horizon"),
        (["TRACE", "--name", "??"], "--name: '??' must hold letters or digits"),
        (["TRACE", "--name", "a" * 61], "60 characters at most"),
        (["TRACE", "--output", "TRACE", "--force"], "--output: is the file that is read"),
        (["TRACE", "--block-tokens", "64"], "--block-tokens: has no use"),
        (["TRACE", "--column", "input"], "--column"),
        (["TRACE", "--column", "class=app", "--class-column", "app"], "--class-column: is given twice"),
        (["TRACE", "--class-column", "apps"], "did you mean 'app'"),
    ],
)
def test_bad_calls_are_one_line(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(csv_of(tmp_path, 50))
    assert run(*(path if one == "TRACE" else one for one in arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert len(err.strip().splitlines()) == 1
