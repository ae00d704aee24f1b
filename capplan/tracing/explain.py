"""The chain of a number as plain text: every quantity, its formula, its inputs, its source."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from capplan.quantities.registry import quantity
from capplan.quantities.units import format_bytes, format_seconds, format_si

if TYPE_CHECKING:
    from capplan.quantities.chain import Chain, Link


def render(chain: Chain) -> str:
    """The whole chain, in the order it was computed."""
    return "\n".join(line for link in chain.links.values() for line in _lines(link))


def chain_records(chain: Chain) -> list[dict[str, Any]]:
    """The chain for JSON: name, value, unit, formula, inputs and source of every quantity, in order."""
    return [
        {
            "name": link.name,
            "value": link.value,
            "unit": quantity(link.name).unit,
            "formula": quantity(link.name).formula,
            "inputs": {name: _plain(value) for name, value in link.inputs.items()},
            "source": link.source,
            "overridden": link.overridden,
            "assumed": link.assumed,
        }
        for link in chain.links.values()
    ]


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, float)) else _short(value)


def _lines(link: Link) -> Iterable[str]:
    known = quantity(link.name)
    mark = "  [override]" if link.overridden else "  [assumed]" if link.assumed else ""
    yield f"{link.name} = {show_value(link.value, known.unit)}{mark}"
    yield f"    {known.meaning}"
    if link.inputs:
        yield f"    = {known.formula}"
        yield "    with " + ", ".join(f"{name} = {_short(value)}" for name, value in link.inputs.items())
    if link.source:
        yield f"    source: {link.source}"


def show_value(value: Any, unit: str) -> str:
    """A value with its unit, in the prefix a person expects."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return _short(value)
    if unit == "s":
        return format_seconds(value)
    if unit == "B":
        return f"{format_bytes(value)} ({value:,.0f} B)"
    if unit in ("B/s", "FLOP/s"):
        return format_si(value, unit)
    return f"{value:,.6g}" + ("" if unit == "1" else f" {unit}")


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
