"""The scenario page names every key, and every law and trace column the code knows; the pages on logs and
calibration show answers."""

import re
import shlex
from pathlib import Path

import pytest

from capplan.calibration.constants import CONSTANTS
from capplan.calibration.engine_log import FRACTIONS
from capplan.calibration.law_fit import CODED_GROUPS, MOMENT_TOLERANCES, QUANTILE_TOLERANCES
from capplan.calibration.results_csv import COLUMNS
from capplan.calibration.workload_fit import KV_SHARE, PLANNER_TOLERANCE
from capplan.cards.trace_columns import INPUT_COLUMNS, KNOWN, OUTPUT_COLUMNS, REASONING_COLUMNS, TIME_COLUMNS
from capplan.cli.main import main
from capplan.planning.scenario import LATENCY_KEYS, SECTIONS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "scenario.md").read_text(encoding="utf-8")


def test_every_key_is_explained():
    for section, schema in SECTIONS.items():
        for key in schema.model_fields:
            if key not in LATENCY_KEYS:
                assert f"`{section}.{key}`" in PAGE, key
    for name in {key.rpartition("_")[0] for key in LATENCY_KEYS}:
        assert f"`{name}`" in PAGE


def test_trace_columns_are_listed():
    for column in (*INPUT_COLUMNS, *OUTPUT_COLUMNS, *REASONING_COLUMNS, *TIME_COLUMNS):
        assert f"`{column}`" in PAGE


def test_readme_points_to_the_page():
    assert "docs/scenario.md" in (ROOT / "README.md").read_text(encoding="utf-8")


LOG_PAGE = (ROOT / "docs" / "from-log.md").read_text(encoding="utf-8")


CALIBRATION_PAGE = (ROOT / "docs" / "calibrate.md").read_text(encoding="utf-8")


TRACE_PAGE = (ROOT / "docs" / "traces.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [LOG_PAGE, CALIBRATION_PAGE, TRACE_PAGE], ids=["log", "calibration", "traces"])
def test_the_page_shows_what_the_command_answers(page, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    command, shown = re.search(r"```console\n\$ capplan (.*)\n((?:.*\n)*?)```", page).groups()
    assert main(shlex.split(command)) == 0
    answer = capsys.readouterr().out
    words, numbers = re.compile(r"-?[\d.,]+"), re.compile(r"-?\d[\d,]*\.?\d*")
    assert words.sub("#", answer).split() == words.sub("#", shown).split()
    printed = [[float(one.replace(",", "")) for one in numbers.findall(text)] for text in (answer, shown)]
    assert printed[0] == pytest.approx(printed[1], rel=0.05, abs=0.5)


def test_the_log_page_names_what_is_replaced():
    for name in (*FRACTIONS.values(), "weights_bytes", "activation_peak_bytes", "kv_pool_bytes", "kv_capacity_tokens"):
        assert f"`{name}`" in LOG_PAGE


def test_the_python_of_the_log_page_runs(monkeypatch):
    monkeypatch.chdir(ROOT)
    names = {}
    exec(re.search(r"```python\n(.*?)```", LOG_PAGE, re.DOTALL)[1], names)
    assert names["budget"].capacity_tokens == 476_016


def test_the_calibration_page_names_every_constant_and_column():
    for constant in CONSTANTS:
        assert f"| `{constant.name}` | " in CALIBRATION_PAGE
        assert f"| {constant.shown(constant.spread)} |" in CALIBRATION_PAGE
    for name in COLUMNS:
        assert f"`{name}`" in CALIBRATION_PAGE


def test_the_python_of_the_calibration_page_runs(monkeypatch):
    monkeypatch.chdir(ROOT)
    names = {}
    exec(re.search(r"```python\n(.*?)```", CALIBRATION_PAGE, re.DOTALL)[1], names)
    assert names["held"] < 0.02
    assert names["engine"].layer_overhead_seconds == names["found"].constants["layer_overhead_seconds"]


def test_the_trace_page_names_quantities_and_tolerances():
    for quantity in KNOWN:
        assert f"`{quantity}`" in TRACE_PAGE
    assert MOMENT_TOLERANCES == (0.01, 0.01, 0.05, 0.1)
    assert QUANTILE_TOLERANCES == {"p50": 0.05, "p90": 0.05, "p99": 0.05, "p999": 0.1}
    assert f"{KV_SHARE:.0%}".replace("%", " %") in TRACE_PAGE
    assert f"Within {PLANNER_TOLERANCE * 100:.0f} % the card holds laws" in TRACE_PAGE
    assert f"up to {2 * CODED_GROUPS} values" in TRACE_PAGE


def test_the_python_of_the_trace_page_runs(monkeypatch):
    monkeypatch.chdir(ROOT)
    names = {}
    exec(re.search(r"```python\n(.*?)```", TRACE_PAGE, re.DOTALL)[1], names)
    shown = float(re.search(r"^45 s +([\d.]+)$", TRACE_PAGE, re.MULTILINE)[1])
    assert names["bursts"] == pytest.approx(shown, abs=0.05)
    assert names["near"] == pytest.approx(shown, rel=0.03)
    assert names["worst"] < 0.005


VERIFY_PAGE = (ROOT / "docs" / "verify.md").read_text(encoding="utf-8")


@pytest.mark.simulation
def test_the_verification_page_shows_what_the_command_answers(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    command, shown = re.search(r"```console\n\$ capplan (.*)\n((?:.*\n)*?)```", VERIFY_PAGE).groups()
    assert main(shlex.split(command)) == 0
    parts = [text.split("\n\n") for text in (capsys.readouterr().out, shown)]
    tables = [[re.split(r"\s{2,}", line) for line in part[0].splitlines()] for part in parts]
    assert [row[:2] for row in tables[0]] == [row[:2] for row in tables[1]]
    assert {row[-1] for row in tables[0][1:]} <= {"agrees", "within noise"}
    targets = [[line.split(" of ")[1] for line in part[1].splitlines()] for part in parts]
    assert targets[0] == targets[1] == ["6 s: met", "50 ms: met", "0.100%: met"]


@pytest.mark.simulation
def test_the_python_of_the_verification_page_runs(monkeypatch):
    monkeypatch.chdir(ROOT)
    names = {}
    exec(re.search(r"```python\n(.*?)```", VERIFY_PAGE, re.DOTALL)[1], names)
    assert names["tpot"].closed == pytest.approx(names["tpot"].simulated.value, rel=0.1)
