"""One line from a pydantic error: file, key, problem, remedy."""

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from capplan.cards.validation import one_line
from capplan.errors import InputError, UnknownNameError


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    width: int
    depth: int = Field(default=3, gt=0)


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    groups: list[Inner]
    one: Inner | None = None
    table: dict[str, Inner] = Field(default_factory=dict)


@pytest.mark.parametrize(
    ("data", "kind", "line"),
    [
        ({"groups": [{"width": 3, "dept": 4}]}, UnknownNameError,
         "f.json: groups.0.dept: unknown key 'dept'; did you mean 'depth'?"),
        ({"groups": [], "one": {"with": 3, "width": 3}}, UnknownNameError,
         "f.json: one.with: unknown key 'with'; did you mean 'width'?"),
        ({"groups": [], "table": {"a": {"width": 1, "zz": 1}}}, UnknownNameError,
         "f.json: table.a.zz: unknown key 'zz'; known: depth, width"),
        ({}, InputError, "f.json: groups: is missing"),
        ({"groups": 3}, InputError, "f.json: groups: 3: should be a valid list"),
        ({"groups": [{"width": 3, "depth": -1}]}, InputError, "f.json: groups.0.depth: -1: should be greater than 0"),
    ],
)  # fmt: skip
def test_lines(data, kind, line):
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(data)
    error = one_line(caught.value, "f.json", Outer)
    assert type(error) is kind
    assert str(error) == line


def test_long_input_is_cut_and_stays_on_one_line():
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({"groups": [{"width": "x\n" * 10_000}]})
    line = str(one_line(caught.value, "f.json"))
    assert len(line) < 200
    assert "\n" not in line


def test_without_a_schema_an_unknown_key_is_named_without_a_hint():
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({"groups": [], "grups": 1})
    assert str(one_line(caught.value)) == "grups: unknown key; correct its spelling or remove it"
