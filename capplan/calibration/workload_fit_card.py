"""The workload card of a trace: every number with the file it was counted in."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from capplan.calibration.law_fit import CODED, LawFit, chosen
from capplan.calibration.workload_fit import PLANNER_TOLERANCE, ClassFit, WorkloadFit
from capplan.cards.workload_schema import validated
from capplan.errors import InputError, shown
from capplan.formulas.empirical import Empirical
from capplan.formulas.length_law import LengthLaw
from capplan.formulas.length_laws import Fixed, Gamma, LogNormal, Mixture, Pareto

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,59}")
_MOST_HOURS = 20_000


def card_name(fit: WorkloadFit, name: str | None) -> str:
    """The name of the card: the one given, else that of the trace, in small letters, digits, dots and dashes.

    Raises
    ------
    InputError : a name that none of these are left of, or a longer one than a card may have
    """
    if name is None:
        return _fitting(fit.trace.stem)[:60] or "trace"
    fitting = _fitting(name)
    if not _NAME.fullmatch(fitting):
        raise InputError(f"{shown(name)} must hold letters or digits, and 60 characters at most", key="--name")
    return fitting


def _fitting(name: str) -> str:
    return re.sub(r"[^a-z0-9.-]+", "-", name.lower()).strip("-.")


def refuse_input(output: str | Path, inputs: Iterable[str | Path]) -> None:
    """Refuse to write over a file that was read.

    Raises
    ------
    InputError : ``output`` is one of ``inputs``, by whatever path or link
    """
    for one in inputs:
        try:
            same = Path(output).resolve() == Path(one).resolve() or Path(output).samefile(one)
        except (OSError, ValueError):  # a file that is not there yet, or no file name
            same = False
        if same:
            raise InputError("is the file that is read; give the card another name", key="--output", file=str(output))


def workload_card(fit: WorkloadFit, name: str) -> dict[str, Any]:
    """The plain data of a card that reproduces the trace."""
    writer = _Writer(fit)
    trace = fit.trace
    card = {
        "schema": "capplan.workload/1",
        "name": name,
        "title": trace.stem or name,
        "description": f"{trace.requests:,} requests of {_plain(trace.path.name)}; classes by {_plain(fit.split_by)}.",
        "licence": "that of the trace",
        "fit": _method(fit),
        "reasoning_share": writer.measured(trace.reasoning_share, "1"),
        "classes": [writer.request_class(one) for one in fit.classes],
        "targets": writer.targets(),
        "trace": {
            "file": _plain(trace.path.name)[:255],
            "sha256": fit.sha256,
            "requests": writer.measured(trace.requests, "1"),
            "failed": writer.measured(trace.failed, "1"),
        },
        "arrivals": writer.arrivals(),
        "hours": writer.hours(),
        "prefix_hits": writer.prefix_hits(),
    }
    kept = {key: value for key, value in card.items() if value is not None}
    return validated(kept, name)


def write_card(fit: WorkloadFit, output: str | Path, name: str | None = None, *, force: bool = False) -> Path:
    """Write the workload card.

    Parameters
    ----------
    fit : what was fitted
    output : file
    name : of the card; that of the file, else of the trace, if not given
    force : overwrite a file that exists

    Raises
    ------
    InputError : a file that exists, is the trace itself, or cannot be written
    """
    path = Path(output)
    refuse_input(path, [fit.trace.path])
    stem = path.name.removesuffix(".json")
    card = workload_card(fit, card_name(fit, name or (stem if _NAME.fullmatch(_fitting(stem)) else None)))
    if not force and path.exists():
        raise InputError("exists; --force overwrites it", file=str(path))
    try:
        path.write_text(card_text(card), encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no file name"
        raise InputError(f"cannot be written ({reason})", file=str(path)) from None
    return path


def card_text(card: dict[str, Any]) -> str:
    """The card as it is written: lists of numbers on one line."""
    text = json.dumps(card, indent=1)
    return re.sub(r"\[\s+([-\d.e+,\s]+?)\s+\]", lambda m: "[" + re.sub(r"\s+", " ", m[1]) + "]", text) + "\n"


def _method(fit: WorkloadFit) -> str:
    off = ", ".join(f"{key} {error:+.2%}" for key, error in fit.errors.items())
    if fit.uses_laws:
        laws = sorted({chosen(part).family for one in fit.classes for part in (one.inputs, one.outputs)})
        return f"Laws by class ({', '.join(laws)}), independent inside a class. Errors against the trace: {off}."
    worst = max(fit.law_errors.items(), key=lambda item: abs(item[1]))
    return (
        f"Pairs of prompt and output in cells that keep E[P..P^3] and E[L..L^3] exactly; laws that are independent "
        f"inside a class would miss {worst[0]} by {worst[1]:+.1%} (allowed {PLANNER_TOLERANCE:.0%}). "
        f"Errors against the trace: {off}."
    )


def _plain(text: str) -> str:
    return re.sub(r"[^\x20-\x7e]", "?", text)[:200]


class _Writer:
    """Numbers of one card, each with its source."""

    def __init__(self, fit: WorkloadFit) -> None:
        trace = fit.trace
        span = "" if trace.arrivals is None else f" over {trace.arrivals.span_seconds:,.0f} s"
        self._fit = fit
        self._source = f"{_plain(trace.path.name)}, sha256 {fit.sha256[:16]}, {trace.requests:,} requests{span}"

    def measured(self, value: float | None, unit: str) -> dict[str, Any] | None:
        """A number counted in the trace."""
        return None if value is None else self._number(value, unit, "measured")

    def _number(self, value: float, unit: str, kind: str) -> dict[str, Any]:
        return {"value": _rounded(value), "unit": unit, "source": self._source, "kind": kind}

    def _numbers(self, values: Any, unit: str, kind: str = "measured") -> dict[str, Any]:
        return {"values": [_rounded(one) for one in values], "unit": unit, "source": self._source, "kind": kind}

    def request_class(self, one: ClassFit) -> dict[str, Any]:
        """A class of the card."""
        head = {"name": _plain(one.name)[:80] or "all", "share": self._number(one.share, "1", "measured")}
        if one.reasoning is not None:
            head["reasoning"] = self._coded(one.reasoning)
        if self._fit.uses_laws:
            return {**head, "input": self._law(chosen(one.inputs)), "output": self._law(chosen(one.outputs))}
        prompts, outputs, weights = one.cells
        pairs = {"input": (prompts, "token"), "output": (outputs, "token"), "weights": (weights, "1")}
        return {
            **head,
            "joint": {name: self._numbers(values, unit, "fitted") for name, (values, unit) in pairs.items()},
        }

    def _law(self, fit: LawFit) -> dict[str, Any]:
        return self._law_of(fit.law) if fit.family != CODED else self._coded(fit.law)

    def _coded(self, law: LengthLaw) -> dict[str, Any]:
        assert isinstance(law, Empirical)
        values, weights = self._numbers(law.values, "token", "fitted"), self._numbers(law.weights, "1", "fitted")
        return {"law": "empirical", "values": values, "weights": weights}

    def _law_of(self, law: LengthLaw) -> dict[str, Any]:
        if isinstance(law, Mixture):
            parts = [{"weight": self._number(w, "1", "fitted"), "law": self._law_of(part)} for w, part in law.parts]
            return {"law": "mixture", "parts": parts}
        name, fields = _fields(law)
        return {"law": name} | {key: self._number(value, unit, "fitted") for key, (value, unit) in fields.items()}

    def targets(self) -> dict[str, Any]:
        """What the trace has, for the readers and tests of the card."""
        data = self._fit.data
        (prompts, p_shares), (outputs, d_shares) = self._fit.marginal("input"), self._fit.marginal("output")
        values = {
            "input_mean": (float(prompts @ p_shares), "token"),
            "output_mean": (float(outputs @ d_shares), "token"),
            "mean_context": (data.theta, "token"),
            "context_std": (data.nu, "token"),
        }
        return {name: self._number(value, unit, "measured") for name, (value, unit) in values.items() if value == value}

    def arrivals(self) -> dict[str, Any] | None:
        """Rate and dispersion."""
        found = self._fit.trace.arrivals
        if found is None:
            return None
        card = {
            "rate": self.measured(found.rate, "1/s"),
            "span": self.measured(found.span_seconds, "s"),
            "windows": self._numbers(found.windows, "s") if found.windows else None,
            "dispersion": self._numbers(found.dispersion, "1") if found.windows else None,
            "drifts": found.drifts,
            "busiest_rate": self.measured(found.busiest_rate, "1/s"),
            "time_step": self.measured(found.step_seconds or None, "s"),
        }
        return {key: value for key, value in card.items() if value is not None}

    def hours(self) -> dict[str, Any] | None:
        """The hourly profile."""
        hours = self._fit.trace.hours
        if not 0 < len(hours) <= _MOST_HOURS:
            return None
        units = {"rate": "1/s", "input_mean": "token", "output_mean": "token", "kv_load": "token/s"}
        return {name: self._numbers([getattr(hour, name) for hour in hours], unit) for name, unit in units.items()}

    def prefix_hits(self) -> dict[str, Any] | None:
        """Hits by size of the cache."""
        hits = self._fit.trace.hits
        if not hits:
            return None
        return {
            "block_tokens": self.measured(self._fit.trace.block_tokens, "token"),
            "capacity": self._numbers([one.capacity_blocks for one in hits], "block"),
            "token_share": self._numbers([one.token_share for one in hits], "1"),
        }


def _fields(law: LengthLaw) -> tuple[str, dict[str, tuple[float, str]]]:
    """Name of a law on a card, and its numbers with their units."""
    if isinstance(law, Fixed):
        return "fixed", {"tokens": (law.tokens, "token")}
    cut = {} if math.isinf(law.limit) else {"max": (law.limit, "token")}
    if isinstance(law, Pareto):
        return "pareto", {"minimum": (law.minimum, "token"), "alpha": (law.alpha, "1"), **cut}
    assert isinstance(law, (LogNormal, Gamma))
    name = "lognormal" if isinstance(law, LogNormal) else "gamma"
    return name, {"mean": (law.mean_tokens, "token"), "cv": (law.cv_before_max, "1"), **cut}


def _rounded(value: float) -> float:
    return float(f"{value:.7g}")
