"""``capplan workloads fit TRACE``: what is in a trace, and a workload card that reproduces it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capplan.cli.output import Format, FormatOption, JsonFlag, emit, emit_rows, note
from capplan.errors import InputError

if TYPE_CHECKING:
    from capplan.calibration.law_fit import LawFit
    from capplan.calibration.workload_fit import ClassFit, WorkloadFit
    from capplan.cards.arrivals import Arrivals, Hour

Table = tuple[list[str], list[list[str]]]
"""Header and rows."""

_STEP_SECONDS, _LOAD = 0.03, 0.5
"""The step and load at which the relevant window is told as an example."""
_LISTED_CLASSES = 3


def fit_trace(
    trace: Annotated[str, typer.Argument(help="CSV or JSON lines, one request a line, plain or gzip.")],
    name: Annotated[str | None, typer.Option("--name", help="Name of the card.")] = None,
    output: Annotated[str | None, typer.Option("--output", help="Workload card to write.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite it.")] = False,
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="QUANTITY=COLUMN", help="input=my_col, timestamp=sent:ms. May be repeated."),
    ] = None,
    class_column: Annotated[str | None, typer.Option("--class-column", help="Column that names the class.")] = None,
    horizon: Annotated[str | None, typer.Option("--horizon", help="Window of the dispersion: 60s.")] = None,
    rates: Annotated[
        str | None, typer.Option("--rates", help="CSV of rates by time, if the trace has no times.")
    ] = None,
    block_tokens: Annotated[
        int | None, typer.Option("--block-tokens", min=1, help="Tokens of a hashed block; 512 if not given.")
    ] = None,
    json_: JsonFlag = False,
    shape: FormatOption = Format.table,
) -> None:
    """Say what is in a trace and fit a workload card to it."""
    from capplan.calibration.workload_fit import fit_workload
    from capplan.calibration.workload_fit_card import card_name, refuse_input, write_card
    from capplan.cards.prefix_reuse import BLOCK_TOKENS, PrefixReuse
    from capplan.quantities.units import parse_seconds

    if output is None and force:
        raise InputError("has a meaning only with --output", key="--force")
    if output is not None:
        refuse_input(output, _inputs(trace, rates))
    window = None if horizon is None else parse_seconds(horizon, key="--horizon", positive=True)
    fit = fit_workload(_file(trace), _mapped(columns, class_column), windows=[] if window is None else [window],
                       caches=PrefixReuse(block_tokens=block_tokens or BLOCK_TOKENS), rates=rates)  # fmt: skip
    if block_tokens is not None and fit.trace.columns.hashes is None:
        raise InputError("has no use: the trace has no block hashes", key="--block-tokens", file=trace)
    card_name(fit, name)
    written = None if output is None else str(write_card(fit, output, name, force=force))
    _show(fit, window, written, json_flag=json_, shape=shape)


def _inputs(trace: str, rates: str | None) -> list[str]:
    """Every file that is read; a ServeGen dataset has its rates beside it."""
    beside = [trace.removesuffix("-dataset.json") + "-trace.csv"] if trace.endswith("-dataset.json") else []
    return [trace, *beside, *([] if rates is None else [rates])]


def _file(trace: str) -> str:
    from pathlib import Path

    from capplan.cards.workload_card import is_trace

    path = Path(trace)
    try:
        found = path.is_file()
    except (OSError, ValueError):
        found = False
    if not found:
        raise InputError("is no file", file=trace[:200])
    if not is_trace(path):
        raise InputError("must end in .csv, .jsonl or .ndjson, with or without .gz, or in -dataset.json", file=trace)
    return trace


def _mapped(columns: list[str] | None, class_column: str | None) -> dict[str, str]:
    from capplan.cards.trace_columns import parsed_columns

    mapped = parsed_columns(columns or [])
    if class_column is not None:
        if "class" in mapped:
            raise InputError("is given twice, by --column class= too", key="--class-column")
        mapped["class"] = class_column
    return mapped


def _show(fit: WorkloadFit, window: float | None, written: str | None, *, json_flag: bool, shape: Format) -> None:
    (header, rows), *others = _tables(fit, window)
    emit(_data(fit, window, written), rows, header, json_flag=json_flag, shape=shape)
    if not json_flag and shape in (Format.table, Format.md):
        for header, rows in others:
            typer.echo("")
            emit_rows(rows, header, shape)
    for text in (*fit.trace.notes, *_remarks(fit, window)):
        note(text)
    if written is not None:
        note(f"written: {written}")


def _tables(fit: WorkloadFit, window: float | None) -> Iterator[Table]:
    yield _overview(fit)
    yield _lengths(fit)
    yield _classes(fit)
    for one in fit.classes[:_LISTED_CLASSES]:
        yield _families(one)
    if fit.trace.arrivals is not None and fit.trace.arrivals.windows:
        yield _dispersions(fit.trace.arrivals, window)
    if fit.trace.hours:
        yield _peaks(fit.trace.hours)
    if fit.trace.hits:
        yield _hits(fit)


def _overview(fit: WorkloadFit) -> Table:
    from capplan.calibration.workload_fit import correlation

    trace = fit.trace
    rows = [["requests", f"{trace.requests:,}"], ["without output", f"{trace.failed:,}"]]
    if (arrivals := trace.arrivals) is not None:
        rows += [["time", f"{arrivals.span_seconds:,.0f} s"], ["rate", f"{arrivals.rate:.4g}/s"]]
    if trace.reasoning_share is not None:
        rows.append(["reasoning share of output", f"{trace.reasoning_share:.1%}"])
    rows.append(["correlation of prompt and output", f"{correlation(*fit.rows):.3f}"])
    rows.append(["classes by", fit.split_by])
    kept = "laws by class, independent inside" if fit.uses_laws else "pairs of prompt and output in cells"
    return ["in the trace", trace.path.name], [*rows, ["the card holds", kept]]


def _lengths(fit: WorkloadFit) -> Table:
    """Data and card side by side, and what independent laws would make of it."""
    rows = []
    laws = {"input": fit.workload.input, "output": fit.workload.output, "reasoning": fit.workload.reasoning}
    for what, law in laws.items():
        if law is None:
            continue
        for label, data, card in _figures(law, *fit.marginal(what), 4 if what == "output" else 3):
            rows.append(
                [f"{what} {label}", f"{data:,.5g}", f"{card:,.5g}", _percent(card / data - 1, 2) if data else "", ""]
            )
    for key, title in (
        ("theta", "context mean (theta)"),
        ("nu", "context std (nu)"),
        ("h1", "H1"),
        ("m1", "m1 (steps)"),
    ):
        data = getattr(fit.data, key)
        rows.append([title, _figure(data), _figure(data * (1 + fit.errors[key])), _percent(fit.errors[key], 2),
                     _percent(fit.law_errors[key], 2)])  # fmt: skip
    return ["", "trace", "card", "error", "of laws by class"], rows


def _figures(law: Any, values: Any, shares: Any, order: int) -> Iterator[tuple[str, float, float]]:
    from capplan.calibration.law_fit import QUANTILES
    from capplan.formulas.length_fit import sample_moments, sample_quantile

    yield "mean", sample_moments(values, shares, 1)[1], law.mean
    for k, moment in enumerate(sample_moments(values, shares, order)[2:], start=2):
        yield f"E[x^{k}]^(1/{k})", moment ** (1 / k), law.moment(k) ** (1 / k)
    for name, p in QUANTILES.items():
        yield name.upper().replace("P999", "P99.9"), sample_quantile(values, shares, p), float(law.quantile(p))


def _classes(fit: WorkloadFit) -> Table:
    from capplan.calibration.law_fit import chosen

    header = ["class", "share", "input mean", "output mean", "correlation", "law of inputs", "law of outputs"]
    return header, [
        [one.name, f"{one.share:.1%}", f"{one.input_mean:,.0f}", f"{one.output_mean:,.0f}", f"{one.correlation:.3f}",
         chosen(one.inputs).family, chosen(one.outputs).family]
        for one in fit.classes
    ]  # fmt: skip


def _families(one: ClassFit) -> Table:
    """Errors of every family tried for a class."""
    rows = [_family_row(f"input: {fit.family}", fit) for fit in one.inputs]
    rows += [_family_row(f"output: {fit.family}", fit) for fit in one.outputs]
    return [f"errors, {one.name}", "E[x]", "E[x^2]", "E[x^3]", "E[x^4]", "P50", "P90", "P99", "P99.9", "kept"], rows


def _family_row(name: str, fit: LawFit) -> list[str]:
    moments = [_percent(error, 1) for error in fit.moment_errors] + [""] * (4 - len(fit.moment_errors))
    quantiles = [_percent(error, 1) for error in fit.quantile_errors.values()]
    return [name, *moments, *quantiles, "yes" if fit.accepted else "no"]


def _figure(value: float) -> str:
    """A figure; a dash where there is none, because nothing decodes."""
    return f"{value:,.5g}" if math.isfinite(value) else "-"


def _percent(error: float, digits: int) -> str:
    """``+1.2%``; what rounds to nothing has no minus sign, what is no number is a dash."""
    if not math.isfinite(error):
        return "-"
    text = f"{error:+.{digits}%}"
    return text.replace("-", "+") if not text.strip("+-0.%") else text


def _dispersions(arrivals: Arrivals, window: float | None) -> Table:
    from capplan.cards.arrivals import SHOWN_WINDOWS

    shown = sorted({*SHOWN_WINDOWS, *([] if window is None else [window])})
    least = max(arrivals.windows[0], 2 * arrivals.step_seconds)
    rows = [[f"{one:g} s", f"{arrivals.dispersion_at(one):.3g}" if least <= one <= arrivals.longest_window else "-"]
            for one in shown]  # fmt: skip
    return ["window", "index of dispersion"], rows


_PEAKS = {
    "requests": ("rate", "/s"),
    "prompt tokens": ("prompt_tokens_per_second", "/s"),
    "output tokens": ("output_tokens_per_second", "/s"),
    "KV held": ("kv_load", " tokens per second of step"),
}


def _peaks(hours: tuple[Hour, ...]) -> Table:
    """The hour in which each load is largest; they may differ."""
    rows = []
    for what, (field, unit) in _PEAKS.items():
        values = [getattr(hour, field) for hour in hours]
        top, mean = hours[values.index(max(values))], sum(values) / len(values)
        rows.append([what, f"hour {top.start_hour}", f"{max(values):,.4g}{unit}", f"{max(values) / mean:.2f}",
                     f"{top.rate:.4g}/s", f"{top.input_mean:,.0f}", f"{top.output_mean:,.0f}"])  # fmt: skip
    return [f"peak of {len(hours)} hours", "when", "load", "over mean", "rate", "input mean", "output mean"], rows


def _hits(fit: WorkloadFit) -> Table:
    rows = []
    for one in fit.trace.hits:
        size = f"{one.capacity_blocks:,} blocks" + ("" if one.filled else " (never full)")
        rows.append([size, f"{one.capacity_blocks * fit.trace.block_tokens:,}", f"{one.token_share:.1%}",
                     f"{one.block_share:.1%}"])  # fmt: skip
    return ["prefix cache", "tokens", "prompt tokens hit", "blocks hit"], rows


def _remarks(fit: WorkloadFit, window: float | None) -> Iterator[str]:
    arrivals = fit.trace.arrivals
    if arrivals is None:
        yield "no arrival times: rate and dispersion are left to the scenario"
        return
    relevant = 1.5 * fit.data.m1 / (1 - _LOAD) * _STEP_SECONDS
    if math.isfinite(relevant):
        yield (f"the window that matters is 1.5 relaxation times, 1.5 m1/(1 - load) steps: {relevant:,.0f} s at "
               f"{_STEP_SECONDS * 1e3:g} ms a step and a load of {_LOAD:.0%}; a plan takes its own")  # fmt: skip
    if window is not None and window > arrivals.longest_window:
        yield f"--horizon {window:g} s is too long for this trace: it has six windows of {arrivals.longest_window:g} s"
    if arrivals.drifts:
        yield (f"drift: dispersion still grows at {arrivals.longest_window:,.0f} s, so the rate itself changes; plan "
               "for the busiest stretch and take the dispersion about its rate")  # fmt: skip


def _data(fit: WorkloadFit, window: float | None, written: str | None) -> dict[str, Any]:
    trace = fit.trace
    return {
        "file": str(trace.path),
        "sha256": fit.sha256,
        "requests": trace.requests,
        "failed": trace.failed,
        "reasoning_share": trace.reasoning_share,
        "columns": {"class" if key == "group" else key: value for key, value in trace.columns._asdict().items()},
        "split_by": fit.split_by,
        "card_holds": "laws" if fit.uses_laws else "pairs",
        "planner": {"trace": vars(fit.data), "error": fit.errors, "error_of_laws_by_class": fit.law_errors},
        "classes": [_class_data(one) for one in fit.classes],
        "arrivals": None if trace.arrivals is None else _arrivals_data(trace.arrivals, window),
        "hours": [vars(hour) for hour in trace.hours],
        "prefix_hits": [vars(one) for one in trace.hits],
        "notes": [*trace.notes, *_remarks(fit, window)],
        "written": written,
    }


def _class_data(one: ClassFit) -> dict[str, Any]:
    from capplan.calibration.law_fit import chosen

    fits = {"input": one.inputs, "output": one.outputs}
    return {
        "name": one.name,
        "share": one.share,
        "requests": one.requests,
        "input_mean_tokens": one.input_mean,
        "output_mean_tokens": one.output_mean,
        "correlation": one.correlation,
        **{f"{key}_law": chosen(found).family for key, found in fits.items()},
        **{
            f"{key}_fits": [
                {"family": fit.family, "kept": fit.accepted, "moment_errors": list(fit.moment_errors),
                 "quantile_errors": dict(fit.quantile_errors)}
                for fit in found
            ]
            for key, found in fits.items()
        },
    }  # fmt: skip


def _arrivals_data(arrivals: Arrivals, window: float | None) -> dict[str, Any]:
    at_horizon = None if window is None else arrivals.dispersion_at(window)
    return {
        "rate_per_second": arrivals.rate,
        "span_seconds": arrivals.span_seconds,
        "busiest_hour_rate_per_second": arrivals.busiest_rate,
        "window_seconds": list(arrivals.windows),
        "dispersion": list(arrivals.dispersion),
        "horizon_seconds": window,
        "dispersion_at_horizon": at_horizon,
        "drifts": arrivals.drifts,
        "time_step_seconds": arrivals.step_seconds,
    }
