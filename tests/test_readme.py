"""The README's Python snippet and console blocks are what the tool answers today."""

import doctest
import re
import shlex
from pathlib import Path

import pytest

from capplan.cli.main import main

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n\$ capplan (.*)\n((?:.*\n)*?)```", TEXT)


def test_python_snippet(monkeypatch):
    monkeypatch.chdir(ROOT)
    snippet = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)[1]
    test = doctest.DocTestParser().get_doctest(snippet, {}, "README", "README.md", 0)
    results = doctest.DocTestRunner().run(test)
    assert results.attempted >= 5
    assert results.failed == 0


@pytest.mark.parametrize(("command", "shown"), BLOCKS, ids=[command for command, _ in BLOCKS])
def test_console_blocks(command, shown, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert main(shlex.split(command)) == 0
    answer = capsys.readouterr().out
    assert _words(answer) == _words(shown)
    assert _numbers(answer) == pytest.approx(_numbers(shown), rel=0.05)


def test_there_are_console_blocks():
    assert len(BLOCKS) >= 4


NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?")


def _words(text):
    return NUMBER.sub("#", text).split()


def _numbers(text):
    # A probability of 1e-10 may differ in its first digit: compare it by its exponent alone.
    found = [float(number.replace(",", "")) for number in NUMBER.findall(text)]
    return [number if number >= 1e-3 or number == 0 else 1e-3 for number in found]
