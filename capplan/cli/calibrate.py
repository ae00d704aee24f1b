"""``capplan calibrate``: an engine card whose constants fit the user's results, or the runs to make for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capplan.cli import options as o
from capplan.cli.output import Format, FormatOption, JsonFlag, emit, emit_rows, note
from capplan.errors import InputError

if TYPE_CHECKING:
    from capplan.calibration.calibration import Calibration
    from capplan.calibration.design import Design
    from capplan.calibration.fitting import Errors

_LISTED = 10


def calibrate(
    results: Annotated[
        list[str] | None,
        typer.Argument(
            help="Files, folders or patterns: vllm bench serve, sglang.bench_serving, genai-perf, aiperf, CSV."
        ),
    ] = None,
    model: Annotated[str, typer.Option("--model", help="Model card or config.json.")] = "",
    gpu: Annotated[str, typer.Option("--gpu", help="Hardware card or file.")] = "",
    tp: o.TpOption = 1,
    pp: o.PpOption = 1,
    dp: o.DpOption = 1,
    ep: o.EpOption = None,
    dcp: o.DcpOption = 1,
    engine: Annotated[str, typer.Option("--engine", help="Engine card to start from.")] = "vllm",
    weight_dtype: o.WeightDtypeOption = None,
    kv_dtype: o.KvDtypeOption = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="QUANTITY=COLUMN", help="Column of a CSV: tpot=my_col_ms. May be repeated."),
    ] = None,
    output: Annotated[str | None, typer.Option("--output", help="Engine card to write.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite it; take results that name another model.")] = False,
    design: Annotated[bool, typer.Option("--design", help="Print the runs that would tell the constants.")] = False,
    json_: JsonFlag = False,
    shape: FormatOption = Format.table,
) -> None:
    """Fit the constants of an engine card to measured TTFT and TPOT, with the errors before and after."""
    from capplan.cards.hardware_card import load_hardware
    from capplan.cards.model_card import load_model

    for key, given in (("--model", model), ("--gpu", gpu)):
        if not given:
            raise InputError("is needed", key=key)
    options: dict[str, Any] = {"weight_dtype": weight_dtype, "kv_dtype": kv_dtype}
    system = (load_model(model), load_hardware(gpu), o.layout_of(tp, pp, dp, ep, dcp), engine)
    if design:
        _refuse_with_design(results, output, columns, force=force)
        from capplan.calibration.design import design_runs

        _show_design(design_runs(*system, **options), json_flag=json_, shape=shape)
        return
    if not results:
        raise InputError("give result files, or --design for the runs to make", key="RESULTS")
    from capplan.calibration.calibration import calibrate as fit
    from capplan.calibration.results_csv import parsed_columns

    found = fit(results, *system, **options, columns=parsed_columns(columns or []), force=force)
    written = _written(found, output, force=force)
    _show(found, written, json_flag=json_, shape=shape)


def _refuse_with_design(
    results: list[str] | None, output: str | None, columns: list[str] | None, *, force: bool
) -> None:
    for key, given in (("RESULTS", results), ("--output", output), ("--column", columns), ("--force", force)):
        if given:
            raise InputError("has no use with --design", key=key)


def _written(found: Calibration, output: str | None, *, force: bool) -> str | None:
    if output is None:
        if force and not _named_otherwise(found):
            raise InputError("has a meaning only with --output, or for results of another name", key="--force")
        return None
    from capplan.calibration.calibrated_card import write_card

    return str(write_card(found, output, force=force))


def _named_otherwise(found: Calibration) -> bool:
    from capplan.calibration.model_names import another_model

    return any(run.model and another_model(run.model, found.system.model) for run in found.runs)


def _show(found: Calibration, written: str | None, *, json_flag: bool, shape: Format) -> None:
    rows = [
        [one.constant.name, one.constant.shown(one.before), one.constant.shown(one.after), _how(one)]
        for one in found.fitted
    ]
    header = ["constant", "before", "after", "standard error"]
    emit(_data(found, written), rows, header, json_flag=json_flag, shape=shape)
    if not json_flag and shape in (Format.table, Format.md):
        typer.echo("")
        emit_rows(_error_rows(found), ["errors (median / p90, bias)", "TPOT", "TTFT"], shape)
    _tell(found)
    if written is not None:
        note(f"written: {written}")


def _how(one: Any) -> Any:
    if one.held is not None:
        return f"held: {one.held}"
    return one.bound if one.standard_error is None else one.constant.shown(one.standard_error)


def _error_rows(found: Calibration) -> list[list[str]]:
    judgement = found.judgement
    titles = {"before": judgement.before, "after, same runs": judgement.after}
    titles[f"after, each {judgement.left_out} left out"] = judgement.held_out
    return [[title, _error(errors["tpot"]), _error(errors["ttft"])] for title, errors in titles.items()]


def _error(errors: Errors | None) -> str:
    if errors is None:
        return "-"
    return f"{errors.median:.1%} / {errors.p90:.1%}, {errors.bias:+.1%} of {errors.runs}"


def _tell(found: Calibration) -> None:
    """What was left out, what the conservation law says, and which runs would tell more."""
    for text in found.notes:
        note(text)
    for one in found.set_aside[:_LISTED]:
        note(f"set aside: {one.place}: {one.reason}")
    if len(found.set_aside) > _LISTED:
        note(f"set aside: {len(found.set_aside) - _LISTED} more (--json lists all)")
    if opened := sum(not run.closed for run in found.runs):
        note(f"{opened} runs with open arrivals: in flight by Little's law, their TTFT is not fitted to")
    if (band := found.judgement.band) is not None:
        note(f"80 % band of the left-out runs: TPOT {band.low:.2f} to {band.high:.2f} times as predicted")
    if found.splits:
        decode = _median([over for _, over, _ in found.splits])
        prompt = _median([over for _, _, over in found.splits])
        note(f"conservation law, {len(found.splits)} groups of equal runs: decode step {decode:.2f} of the model's, "
             f"prompt {prompt:.2f}")  # fmt: skip
    for more in found.more:
        runs = "; ".join(str(run) for run in more.runs)
        wanted = f"would be told by {runs}" if runs else "only runs of a model with another number of layers tell it"
        note(f"{more.constant}: {wanted}")
    for tool, keys in found.unread.items():
        note(f"not read of {tool}: {', '.join(keys[:_LISTED])}{', ...' if len(keys) > _LISTED else ''}")


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[~middle]) / 2


def _data(found: Calibration, written: str | None) -> dict[str, Any]:
    judgement = found.judgement
    errors = {"before": judgement.before, "after": judgement.after, "held_out": judgement.held_out}
    return {
        "constants": _constants_data(found),
        "errors": {
            title: {metric: _error_data(error) for metric, error in one.items()} for title, one in errors.items()
        },
        "left_out_together": judgement.left_out,
        "band": None if judgement.band is None else {"low": judgement.band.low, "high": judgement.band.high},
        "runs": _run_data(found),
        "set_aside": [{"place": one.place, "reason": one.reason} for one in found.set_aside],
        "conservation": _conservation_data(found),
        "more": [{"constant": one.constant, "runs": [vars(run) for run in one.runs]} for one in found.more],
        "unread": found.unread,
        "notes": found.notes,
        "written": written,
    }


def _constants_data(found: Calibration) -> dict[str, dict[str, Any]]:
    names = ("before", "after", "state", "standard_error", "held", "bound")
    return {one.constant.name: {name: getattr(one, name) for name in names} for one in found.fitted}


def _conservation_data(found: Calibration) -> list[dict[str, float]]:
    return [
        {
            "runs": len(split.runs),
            "prompt_seconds": split.prompt_seconds,
            "decode_seconds": split.decode_seconds,
            "decode_over_model": decode,
            "prompt_over_model": prompt,
        }
        for split, decode, prompt in found.splits
    ]


def _error_data(errors: Errors | None) -> Mapping[str, Any] | None:
    return None if errors is None else vars(errors)


def _run_data(found: Calibration) -> list[dict[str, Any]]:
    columns = {f"{name}_seconds": values.tolist() for name, values in found.predictions.items()}
    return [
        {
            "place": run.place,
            "prompt_tokens": run.prompt_tokens,
            "output_tokens": run.output_tokens,
            "concurrency": run.concurrency,
            "tpot_seconds": run.tpot_seconds,
            "ttft_seconds": run.ttft_seconds,
            **{name: values[index] for name, values in columns.items()},
        }
        for index, run in enumerate(found.runs)
    ]


def _show_design(found: Design, *, json_flag: bool, shape: Format) -> None:
    from capplan.calibration.constants import BY_NAME

    data = {
        "server": found.server,
        "runs": [{**vars(run), "command": command} for run, command in zip(found.runs, found.commands, strict=True)],
        "standard_errors": dict(found.errors),
        "held": dict(found.held),
        "noise": dict(found.noise),
    }
    rows = [
        [f"{run.prompt_tokens:,}", f"{run.output_tokens:,}", str(run.concurrency), command]
        for run, command in zip(found.runs, found.commands, strict=True)
    ]
    if not json_flag and shape in (Format.table, Format.md):
        typer.echo(f"{'    ' if shape is Format.md else ''}{found.server}\n")
    emit(data, rows, ["prompt", "output", "in flight", "command"], json_flag=json_flag, shape=shape)
    if not json_flag and shape in (Format.table, Format.md):
        typer.echo("")
        told = [[name, BY_NAME[name].shown(error)] for name, error in found.errors.items()]
        emit_rows([*told, *([name, f"held: {why}"] for name, why in found.held.items())],
                  ["constant", "standard error to expect"], shape)  # fmt: skip
    scatter = " and ".join(f"{share:.0%} of {metric.upper()}" for metric, share in found.noise.items())
    note(f"assumed: a run scatters by {scatter} around the model")


register = o.register_all(("calibrate", calibrate))
