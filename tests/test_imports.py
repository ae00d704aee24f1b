"""Import guards: what a start-up may load. Each case runs in a fresh interpreter and looks at ``sys.modules``."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {"numpy", "sympy", "rich", "pydantic", "typer", "scipy", "mpmath", "hypothesis"}
SCHEMAS = {f"capplan.cards.{kind}_schema" for kind in ("hardware", "engine", "workload", "model", "number")}


def loaded_after(code):
    """Modules a fresh interpreter has loaded once it has run ``code``."""
    report = "import json, sys; sys.stderr.write('\\n' + json.dumps(sorted(sys.modules)))"
    command = [sys.executable, "-c", f"{code}\n{report}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


def command_line(*arguments):
    return f"from capplan.cli.main import main; assert main({list(arguments)!r}) == 0"


def test_importing_capplan_imports_nothing_heavy():
    loaded = loaded_after("import capplan")
    assert not loaded & HEAVY
    assert [name for name in loaded if name.startswith("capplan")] == ["capplan"]


def test_the_kv_command_needs_no_numerics():
    loaded = loaded_after(command_line("kv", "deepseek-r1", "--context", "32k"))
    assert not loaded & {"numpy", "sympy", "rich", "scipy"}
    assert not loaded & SCHEMAS


@pytest.mark.parametrize("shape", [(), ("--json",)])
def test_the_plan_command_imports_what_it_uses(shape):
    loaded = loaded_after(command_line("plan", "examples/reasoning-r1-h800.toml", *shape))
    assert not loaded & (HEAVY - {"numpy", "pydantic", "typer"})
    assert not loaded & SCHEMAS  # shipped cards are read without them
    # numpy parts that cost 5 to 20 ms: np.unique and np.polynomial bring them
    assert not loaded & {"numpy.ma", "numpy.polynomial", "numpy.random"}
    assert not loaded & {"capplan.planning.aggregated_pool", "capplan.formulas.spectrum", "capplan.tracing.explain"}


def test_every_shipped_card_is_read_without_its_schema():
    kinds = {
        "hardware": "load_hardware",
        "workloads": "load_workload",
        "models": "load_model",
        "engines": "load_engine",
    }
    code = f"""
import capplan
from capplan.cards.store import card_names
for kind, load in {kinds!r}.items():
    for name in card_names(kind):
        getattr(capplan, load)(name)
"""
    loaded = loaded_after(code)
    assert not loaded & SCHEMAS
    assert "pydantic" not in loaded
