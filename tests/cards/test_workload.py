"""Workloads: joint moments, cards, traces, policies."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from capplan.cards.number import Number
from capplan.cards.store import card_names, card_root
from capplan.cards.workload import RequestClass, Workload
from capplan.cards.workload_card import length_law, load_workload, workload_card_schema
from capplan.errors import InputError, UnknownNameError
from capplan.formulas.length_laws import Empirical, Exponential, Fixed, LogNormal, Mixture


def exact_context(prompts: np.ndarray, outputs: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of the context over every decode step of every request, counted one by one."""
    contexts = np.concatenate([p + np.arange(n - 1) for p, n in zip(prompts, outputs, strict=True)])
    return float(contexts.mean()), float(contexts.std())


def test_context_moments_count_every_step() -> None:
    random = np.random.default_rng(2)
    prompts, outputs = random.integers(0, 500, 300), random.integers(1, 400, 300)
    workload = Workload(joint=(prompts, outputs))
    mean, std = exact_context(prompts, outputs)
    assert workload.mean_context == pytest.approx(mean, rel=1e-12)
    assert workload.context_std == pytest.approx(std, rel=1e-9)
    assert workload.decode_moments.m22 == pytest.approx(np.mean((prompts - 0.5) ** 2 * (outputs - 1.0) ** 2))


def test_fixed_lengths() -> None:
    workload = Workload(1000, "1k")
    assert workload.output == Fixed(1024)
    mean, std = exact_context(np.array([1000]), np.array([1024]))
    assert workload.mean_context == pytest.approx(mean)
    assert workload.context_std == pytest.approx(std)


def test_classes_are_the_mixture_of_their_parts() -> None:
    kinds = [RequestClass(3, Fixed(100), Exponential(500)), (1, LogNormal(8000, 1), 200)]
    workload = Workload(classes=kinds)
    assert workload.moment(1, 1) == pytest.approx(0.75 * 100 * workload.classes[0].output.mean + 0.25 * 8000 * 200)
    assert isinstance(workload.input, Mixture)
    assert workload.input.mean == pytest.approx(0.75 * 100 + 0.25 * workload.classes[1].input.mean)
    sample = Workload(joint=workload.sample(300_000, seed=4))
    assert sample.mean_context == pytest.approx(workload.mean_context, rel=0.02)
    assert sample.context_std == pytest.approx(workload.context_std, rel=0.03)


@pytest.mark.parametrize("n", [24, 48])
def test_nodes_keep_the_joint_moments(n: int) -> None:
    workload = load_workload("reasoning-r1-production")
    for source in (workload, Workload(joint=workload.sample(50_000, seed=1))):
        nodes, m = source.decode_nodes(n), source.decode_moments
        assert nodes.weights.sum() == pytest.approx(1.0)
        assert nodes.weights @ nodes.steps == pytest.approx(m.m01, rel=1e-6)
        assert nodes.weights @ (nodes.steps * nodes.prompt_mean) == pytest.approx(m.m11, rel=0.01)
        assert nodes.weights @ nodes.steps**2 == pytest.approx(m.m02, rel=0.005)
        assert nodes.weights @ nodes.steps**4 == pytest.approx(m.m04, rel=0.02)
        square = nodes.prompt_variance + nodes.prompt_mean**2
        assert nodes.weights @ (nodes.steps * square) == pytest.approx(m.m21, rel=0.02)


# ServeGen (Apache-2.0), reasoning/deepseek-r1, one production day, 1.38 M requests.
def test_production_reasoning_card() -> None:
    workload = load_workload("reasoning-r1-production")
    assert workload.input.mean == pytest.approx(1269, rel=0.005)
    assert workload.input.quantile(0.5) == pytest.approx(208, rel=0.005)
    assert workload.input.quantile(0.99) == pytest.approx(23_460, rel=0.01)
    assert workload.output.mean == pytest.approx(1532, rel=0.005)
    assert workload.output.quantile(0.5) == pytest.approx(791, rel=0.005)
    assert workload.output.quantile(0.99) == pytest.approx(12_778, rel=0.01)
    assert workload.output.quantile(1.0) == 32_768
    assert workload.mean_context == pytest.approx(3438, rel=0.002)
    assert workload.context_std == pytest.approx(4667, rel=0.002)
    assert workload.reasoning_share == pytest.approx(0.743, abs=0.005)
    # Reasoning tokens of the sample of the day: output times ratio, linked through client and window.
    assert workload.reasoning is not None
    for p, known in {0.1: 182.8, 0.25: 292.9, 0.5: 477.9, 0.75: 972.4, 0.9: 2705.5, 0.99: 11177.7}.items():
        assert workload.reasoning.quantile(p) == pytest.approx(known, rel=0.015)
    # Moments of the published day histogram.
    for k, moment in enumerate((1527.4, 7.7021e6, 8.1459e10, 1.19192e15), start=1):
        assert workload.output.moment(k) == pytest.approx(moment, rel=0.01)
    assert workload.input.moment(2) == pytest.approx(1.73011e7, rel=0.005)
    # Independent prompts and outputs would give a context of 3,789 tokens.
    assert Workload(workload.input, workload.output).mean_context == pytest.approx(3789, rel=0.02)
    for p, (prompt, output) in {0.1: (18, 287), 0.25: (41, 426), 0.75: (483, 1499), 0.95: (6709, 5712)}.items():
        assert workload.input.quantile(p) == pytest.approx(prompt, rel=0.03)
        assert workload.output.quantile(p) == pytest.approx(output, rel=0.04)


@pytest.mark.parametrize("name", card_names("workloads"))
def test_every_card_meets_its_schema_and_its_targets(name: str) -> None:
    path = card_root() / "workloads" / f"{name}.json"
    text = path.read_text(encoding="utf-8")
    assert len(text) < 100_000
    card = json.loads(text)
    jsonschema.validate(card, workload_card_schema())
    workload = load_workload(name)
    measured = {
        "input_mean": workload.input.mean,
        "input_p50": workload.input.quantile(0.5),
        "input_p99": workload.input.quantile(0.99),
        "output_mean": workload.output.mean,
        "output_p50": workload.output.quantile(0.5),
        "output_p99": workload.output.quantile(0.99),
        "output_max": workload.output.quantile(1.0),
        "mean_context": workload.mean_context,
        "context_std": workload.context_std,
    }
    for key, target in card.get("targets", {}).items():
        assert measured[key] == pytest.approx(target["value"], rel=0.015), key
    assert workload.name == name
    assert workload.sources["classes.0.share"].unit == "1"
    assert all(isinstance(number, Number) and number.source and number.kind for number in workload.sources.values())


def test_every_number_of_a_card_arrives_with_its_source() -> None:
    card = json.loads((card_root() / "workloads/reasoning-r1-production.json").read_text(encoding="utf-8"))

    def count(entry: Any) -> int:
        if isinstance(entry, dict):
            if "value" in entry:
                return 1
            return len(entry["values"]) if "unit" in entry else sum(count(part) for part in entry.values())
        return sum(count(part) for part in entry) if isinstance(entry, list) else 0

    assert len(load_workload("reasoning-r1-production").sources) == count(card)


def test_budget_and_longer_chains() -> None:
    workload = load_workload("reasoning-r1-production")
    cut = workload.with_budget("4k")
    assert cut.output.quantile(1.0) == 4096
    assert cut.output.mean == pytest.approx(workload.output.truncated_moment(1, 4096), rel=1e-9)
    assert cut.share_cut(4096) == 0.0
    assert workload.share_cut(4096) == pytest.approx(0.08, abs=0.01)
    assert cut.mean_context < workload.mean_context
    longer = workload.scaled_output(10)
    assert longer.output.mean == pytest.approx(10 * workload.output.mean, rel=1e-6)
    assert longer.output.quantile(1.0) == 327_680
    assert longer.input.mean == pytest.approx(workload.input.mean)
    sample = Workload(joint=([10, 20], [100, 9000]))
    assert sample.with_budget(1000).output.quantile(1.0) == 1000
    assert sample.scaled_output(2).output.mean == 9100


def test_reasoning_follows_its_own_law() -> None:
    half = Workload(input=100, output=Empirical([100, 1000]), reasoning=Empirical([10, 900]))
    assert half.reasoning_share == pytest.approx(455 / 550)
    nodes = half.reasoning_nodes()
    assert nodes.steps.tolist() == [10, 900]
    assert nodes.weights.tolist() == [0.5, 0.5]
    cut = half.with_budget(500)
    assert cut.reasoning is not None
    assert cut.reasoning.quantile(1.0) == 500
    assert cut.reasoning_nodes().steps.tolist() == [10, 499]  # the last token ends it all
    assert cut.reasoning_share == pytest.approx(255 / 300)
    longer = half.scaled_output(2)
    assert longer.reasoning is not None
    assert longer.reasoning.mean == 910
    outputs = np.array([1000, 100, 100, 1000])
    drawn = half.draw_reasoning(np.repeat(outputs, 1000), np.random.default_rng(1)).reshape(4, -1).mean(axis=1)
    assert drawn == pytest.approx([900, 10, 10, 900], rel=0.06)


def test_reasoning_of_classes_and_of_pairs() -> None:
    kinds = [
        RequestClass(3, Fixed(100), Fixed(50), "chat", Fixed(0)),
        RequestClass(1, Fixed(5000), Fixed(800), "", Fixed(600)),
    ]
    workload = Workload(classes=kinds)
    assert workload.reasoning_share == pytest.approx(150 / (0.75 * 50 + 0.25 * 800))
    nodes = workload.reasoning_nodes()
    assert nodes.weights @ nodes.steps == pytest.approx(150)
    assert nodes.prompt_mean[nodes.steps > 0] == pytest.approx(4999.5)
    pairs = Workload(joint=([100, 5000], [50, 800], [3, 1]), reasoning=Empirical([0, 600], [3, 1]))
    nodes = pairs.reasoning_nodes()
    assert nodes.steps.tolist() == [0, 600]
    assert nodes.prompt_mean == pytest.approx([99.5, 4999.5])
    share = Workload(input=100, output=101, reasoning_share=0.25)
    assert share.reasoning_nodes().steps.tolist() == [25]
    assert share.draw_reasoning([101, 1], np.random.default_rng(0)).tolist() == [25, 0]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"input": 1, "output": 100, "reasoning": 200}, "reasoning: has a mean of 200 tokens, above the 100"),
        ({"input": 1, "output": 100, "reasoning": 20, "reasoning_share": 0.5}, "give one of reasoning"),
        ({"classes": [RequestClass(1, Fixed(1), Fixed(9), "", Fixed(1)), (1, 1, 9)]}, "of every class, or of none"),
        ({"input": 1, "output": 100, "reasoning": "many"}, "reasoning"),
    ],
)
def test_reasoning_that_cannot_be_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        Workload(**given)


def test_weights_of_a_mixture_are_shares() -> None:
    part = {"weight": 0.8, "law": 100}
    with pytest.raises(InputError, match=r"output\.parts: the weights sum to 1\.6; they are shares and must sum to 1"):
        length_law({"law": "mixture", "parts": [part, part]}, "output")
    assert length_law({"law": "mixture", "parts": [part, {"weight": 0.2, "law": 200}]}).mean == pytest.approx(120)


def test_a_card_file_given_without_its_ending_is_hinted_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "azure2023-conv.json").write_text("{}")
    with pytest.raises(UnknownNameError, match=r"unknown workload card 'azure2023-conv'; for the file give azure2"):
        load_workload("azure2023-conv")


CSV = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n2023-11-16 18:15:50.99,396,109\n"
SYNTHETIC = "arrival_s,client,input_tokens,output_tokens,reason_tokens\n0.0,50,398,893,672\n0.1,50,418,2846,2028\n"
LINES = """\
{"timestamp": 0, "input_length": 40160, "output_length": 6, "hash_ids": [0, 1]}

{"timestamp": 3000, "input_length": 36640, "output_length": 4}
"""
MARGINALS = (
    "field,value,expected_requests\ninput_tokens,4,1\ninput_tokens,8,3\noutput_tokens,10,2\nreason_ratio,0.5,1\n"
)


def test_traces(tmp_path: Path) -> None:
    (tmp_path / "azure.csv").write_text(CSV)
    azure = load_workload(tmp_path / "azure.csv")
    assert (azure.input.mean, azure.output.mean) == (385, 76.5)
    with gzip.open(tmp_path / "r1.csv.gz", "wt") as stream:
        stream.write(SYNTHETIC)
    reasoning = load_workload(str(tmp_path / "r1.csv.gz"))
    assert reasoning.reasoning_share == pytest.approx(2700 / 3739)
    assert reasoning.joint is not None
    (tmp_path / "mooncake.jsonl").write_text(LINES)
    assert load_workload(tmp_path / "mooncake.jsonl").moment(1, 1) == (40160 * 6 + 36640 * 4) / 2
    (tmp_path / "marginals.csv").write_text(MARGINALS)
    independent = load_workload(tmp_path / "marginals.csv")
    assert (independent.input.mean, independent.output.mean) == (7, 10)


def test_a_long_trace_is_reduced_and_keeps_its_moments(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    prompts = np.rint(random.lognormal(6, 1.5, 130_000)) + 1
    outputs = np.rint(random.lognormal(6.5, 1, 130_000) * (1 + 200 / prompts) ** 0.2) + 1
    path = tmp_path / "long.csv"
    rows = "\n".join(f"{p:.0f},{o:.0f}" for p, o in zip(prompts, outputs, strict=True))
    path.write_text("input_tokens,output_tokens\n" + rows + "\n")
    reduced, whole = load_workload(path), Workload(joint=(prompts, outputs))
    assert reduced.joint is not None
    assert len(reduced.joint.weight) < 30_000
    assert reduced.mean_context == pytest.approx(whole.mean_context, rel=1e-3)
    assert reduced.context_std == pytest.approx(whole.context_std, rel=5e-3)
    assert reduced.output.quantile(0.99) == pytest.approx(whole.output.quantile(0.99), rel=0.02)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.csv", "", "holds no request"),
        ("a.csv", "t_s,rate\n0,3\n", "no column of input tokens"),
        ("a.csv", "input_tokens,output_tokens\n5,x\n", "line 2, output_tokens"),
        ("a.csv", "input_tokens,output_tokens\n5,0\n", "1 or more"),
        ("a.csv", "input_tokens,output_tokens\n5\n", "line 2"),
        ("a.csv", "input_tokens,output_tokens\nnan,5\n", "line 2, input_tokens"),
        ("a.csv", "field,value,expected_requests\ninput_tokens,1,1\n", "output_tokens"),
        ("a.jsonl", "{broken\n", "line 1: is not valid JSON"),
        ("a.jsonl", "[1]\n", "JSON object"),
        ("a.jsonl", '{"a": ' * 100_000 + "\n", "line 1"),
        ("a.csv.gz", "not gzip", "cannot be read"),
        ("a.json", "{}", "is missing"),
        ("a.json", '{"schema": "capplan.workload/2"}', "schema"),
        ("a.txt", "hello", "not valid JSON"),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, name: str, text: str, told: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_workload(path)
    assert told in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_numbers_on_a_card_are_named(tmp_path: Path) -> None:
    card = json.loads((card_root() / "workloads/fixed-1k-1k.json").read_text(encoding="utf-8"))
    card["classes"][0]["output"]["tokens"]["unit"] = "kB"
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(card))
    with pytest.raises(InputError, match=r"classes\.0\.output\.tokens\.unit"):
        load_workload(path)
    card["classes"][0]["output"]["tokens"] |= {"unit": "token", "value": -5}
    path.write_text(json.dumps(card))
    with pytest.raises(InputError, match=r"classes\.0\.output\.tokens"):
        load_workload(path)


def test_unknown_names_get_a_hint(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="reasoning-r1-production"):
        load_workload("reasoning-r1-prod")
    with pytest.raises(InputError, match="folder"):
        load_workload(tmp_path)


def test_laws_as_a_scenario_writes_them() -> None:
    assert length_law({"law": "lognormal", "mean": "1k", "cv": 1, "max": "32k"}) == LogNormal(1024, 1, 32768)
    assert length_law("8k") == Fixed(8192)
    mixed = length_law({"law": "mixture", "parts": [{"weight": 1, "law": {"law": "fixed", "tokens": 10}}]})
    assert mixed.mean == 10
    for bad, told in (
        ({"law": "lognorm"}, "lognormal"),
        ({"law": "lognormal", "mean": 1, "cv": 1, "mx": 3}, "max"),
        ({"law": "lognormal", "mean": 1}, "cv: is missing"),
        ({"law": "mixture"}, "parts"),
        ({"law": "mixture", "parts": [{"weight": 1}]}, "weight and law"),
        ({"law": "fixed", "tokens": True}, "token"),
        ({}, "length law"),
    ):
        with pytest.raises(InputError, match=told):
            length_law(bad, "workload.output")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Workload(),
        lambda: Workload(100),
        lambda: Workload(100, 100, joint=[(1, 2)]),
        lambda: Workload(100, 0),
        lambda: Workload(100, "fast"),
        lambda: Workload(100, 100, reasoning_share=1.5),
        lambda: Workload(joint=[(1, 0)]),
        lambda: Workload(joint=[]),
        lambda: Workload(joint=[(1, math.nan)]),
        lambda: Workload(joint="x"),
        lambda: Workload(classes=[]),
        lambda: Workload(classes=[(1, 2)]),
        lambda: Workload(classes=[(-1, 2, 3)]),
        lambda: Workload(100, 100).scaled_output(-1),
        lambda: Workload(100, 100).with_budget(0),
    ],
)
def test_bad_workloads(make: Any) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert "\n" not in str(caught.value)
