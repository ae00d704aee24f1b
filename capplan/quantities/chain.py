"""The chain of named quantities behind one answer.

Every value that matters is put into the chain under its registered name, either *given* (from a card, from the
user) or *derived* by a formula of :mod:`capplan.formulas`. Overriding a name replaces the value wherever it is used
afterwards, and the answer marks it. A chain that does not record costs one dictionary look-up a quantity, so the
search and the explained answer run the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from capplan.quantities.registry import quantity


@dataclass(frozen=True)
class Link:
    """One quantity of a chain: its value, and the formula and inputs (or the source) it came from."""

    name: str
    value: Any
    source: str
    inputs: Mapping[str, Any]
    overridden: bool = False
    assumed: bool = False


class Chain:
    """Named quantities of one answer, in the order they were computed.

    Parameters
    ----------
    overrides : values that replace computed ones, by registered name, in base units
    record : keep the links for ``explain``; off during a search

    Raises
    ------
    UnknownNameError : an override names no registered quantity
    """

    def __init__(self, overrides: Mapping[str, Any] | None = None, *, record: bool = False) -> None:
        self.overrides = dict(overrides or {})
        for name in self.overrides:
            quantity(name, key=f"override.{name}")
        self.record = record
        self.links: dict[str, Link] = {}
        self.used_overrides: set[str] = set()

    def given(self, name: str, value: Any, source: str = "", *, assumed: bool = False) -> Any:
        """Put a value that no formula computes; ``assumed`` marks a constant without a measurement behind it."""
        if name in self.overrides:
            return self._overridden(name)
        if self.record:
            self.links[name] = Link(name, value, source, {}, assumed=assumed)
        return value

    def derive(self, name: str, formula: Callable[..., Any], **inputs: Any) -> Any:
        """Compute a quantity with ``formula(**inputs)``, or take the override and skip the formula."""
        if name in self.overrides:
            return self._overridden(name)
        value = formula(**inputs)
        if self.record:
            self.links[name] = Link(name, value, f"{formula.__module__}.{formula.__qualname__}", inputs)
        return value

    def _overridden(self, name: str) -> Any:
        value = self.overrides[name]
        self.used_overrides.add(name)
        if self.record:
            self.links[name] = Link(name, value, "override", {}, overridden=True)
        return value

    def assumptions(self) -> list[str]:
        """The names of given values that are assumed, for the answer's list of assumptions."""
        return [link.name for link in self.links.values() if link.assumed]
