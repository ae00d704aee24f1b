"""The scenario page names every key, and every law and trace column the code knows."""

from pathlib import Path

from capplan.cards.trace import INPUT_COLUMNS, OUTPUT_COLUMNS, REASONING_COLUMNS
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
    for column in (*INPUT_COLUMNS, *OUTPUT_COLUMNS, *REASONING_COLUMNS):
        assert f"`{column}`" in PAGE


def test_readme_points_to_the_page():
    assert "docs/scenario.md" in (ROOT / "README.md").read_text(encoding="utf-8")
