"""A plan as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from capplan.planning.pools import LATENCIES, Binding, Check
from capplan.planning.scenario import LATENCY_KEYS
from capplan.quantities.tables import columns, markdown
from capplan.quantities.units import format_bytes, format_seconds, format_seconds_range, format_si

if TYPE_CHECKING:
    from capplan.planning.plan import Plan
    from capplan.planning.summary import PoolSummary

LABELS = {"p50": "P50", "p90": "P90", "p99": "P99", "p999": "P99.9"}
TITLES = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "step": "step",
    "answer": "time to answer",
    "e2e": "E2E",
}


def plan_dict(plan: Plan) -> dict[str, Any]:
    """The answer for JSON; every key carries its unit, infinities become null when printed."""
    view, binding, margins, naive = plan.view, plan.binding, plan.margins, plan.naive
    counts, band = {pool.role: pool.instances for pool in plan.pools}, plan.band
    return {
        "model": plan.problem.model.name,
        "hardware": plan.problem.hardware.name,
        "workload": plan.problem.workload.name or "given laws",
        "mode": None if plan.outcome.pools is None else plan.outcome.pools.mode,
        "targets": {f"{name}_seconds": value for name, value in plan.problem.targets.items()},
        "feasible": plan.feasible,
        "nearest": plan.nearest,
        "binding": None
        if binding is None
        else {
            "name": binding.name,
            "value": binding.value,
            "target": binding.target,
            "next_smaller_gpus": binding.gpus,
        },
        "gpus_total": plan.gpus_total,
        "gpus_total_low": None if band is None else band.low.gpus_total,
        "gpus_total_high": None if band is None else band.high.gpus_total,
        "cost_per_hour": plan.cost_per_hour,
        "cost_per_million_output_tokens": plan.cost_per_million_output_tokens,
        "request_rate_per_second": plan.problem.rate,
        "sized_for_request_rate_per_second": plan.problem.sizing_rate,
        "prefill_instances": counts.get("prefill", 0),
        "decode_instances": counts.get("decode", counts.get("both", 0)),
        **({} if view is None else view.all_percentiles()),
        "attainment": None if view is None else view.attainment,
        "goodput_per_second": None if view is None else view.attainment * plan.problem.rate,
        "output_tokens_per_second": plan.problem.rate * plan.problem.workload.output.mean,
        "band": None if band is None else band.to_dict(),
        "links": {pool.role: pool.links for pool in plan.pools},
        "pools": [pool.to_dict() for pool in plan.pools],
        "margins": None if margins is None else _margins_dict(margins),
        "relaxation": None if plan.relaxation is None else asdict(plan.relaxation),
        "naive": None
        if naive is None
        else {"decode_gpus_by_means": naive.decode_gpus, "prefill_per_decode_by_flops": naive.prefill_per_decode},
        "warnings": list(plan.warnings),
        "assumptions": list(plan.assumptions),
    }


def _margins_dict(margins: Any) -> dict[str, Any]:
    return {
        "fails_at_request_rate_per_second": margins.rate.value,
        "fails_at_request_rate_factor": margins.rate.factor,
        "fails_first_at_rate": margins.rate.breaks,
        "fails_at_output_mean_tokens": margins.output.value,
        "fails_at_output_factor": margins.output.factor,
        "fails_first_at_output": margins.output.breaks,
    }


Rows = list[list[str]]
"""A table; its first row is the header."""


def plan_text(plan: Plan) -> str:
    """The answer for a person: verdict, pools, latencies, links, margins, assumptions."""
    return "\n".join(item if isinstance(item, str) else columns(item[1:], item[0]) for item in _items(plan))


def plan_markdown(plan: Plan) -> str:
    """The same with Markdown tables."""
    items = _items(plan)
    return "\n".join(item if isinstance(item, str) else f"\n{markdown(item[1:], item[0])}\n" for item in items)


def _items(plan: Plan) -> Iterator[str | Rows]:
    for part in (_verdict, _pools, _latencies, _links, _outlook, _notes):
        yield from part(plan)


def show(name: str, value: float) -> str:
    """A checked value in the unit of its name."""
    if name in LATENCY_KEYS:
        return format_seconds(value)
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name in ("kv_overflow", "attainment") or name.endswith("_utilization"):
        return f"{value:.3%}"
    return f"{value:,.4g}"


def title(name: str) -> str:
    """``tpot_p99`` is ``TPOT P99``."""
    kind, _, label = name.rpartition("_")
    return f"{TITLES[kind]} {LABELS[label]}" if name in LATENCY_KEYS else name.replace("_", " ")


def _verdict(plan: Plan) -> Iterator[str | Rows]:
    problem = plan.problem
    yield (
        f"{problem.model.name} on {problem.hardware.name}: {problem.rate:.4g} requests/s of "
        f"{problem.workload.input.mean:,.0f} prompt and {problem.workload.output.mean:,.0f} output tokens on average"
    )
    yield from _feasible(plan) if plan.feasible else _infeasible(plan)


def _feasible(plan: Plan) -> Iterator[str]:
    cost = ", no price known" if plan.cost_per_hour is None else f", ${plan.cost_per_hour:,.2f} an hour"
    per_token = plan.cost_per_million_output_tokens
    cost += "" if per_token is None else f" (${per_token:.2f} per million output tokens)"
    yield f"{counted(plan.gpus_total, 'GPU')}{_gpu_band(plan)}{cost}"
    if plan.binding is not None:
        cap = plan.problem.scenario.serving.max_num_seqs
        sized = f"at the {plan.problem.sizing_rate:.4g} requests/s it is sized for"
        yield f"binding: {_binding(plan.binding, cap)}, {sized}"
    if not plan.problem.targets:
        yield "no latency target given: sized for memory and stability alone"


OVER_BAND = "80 % error band of step times"


def _gpu_band(plan: Plan) -> str:
    """GPUs where all times are at either end of their band; an end that cannot be met says so."""
    if plan.band is None:
        return ""
    low, high = plan.band.low.gpus_total, plan.band.high.gpus_total
    if low is None or high is None:
        most = plan.problem.scenario.hardware.max_gpus
        ends = [f"infeasible with {most}" if gpus is None else str(gpus) for gpus in (low, high)]
        return f" ({ends[0]} at the fast end of the {OVER_BAND}, {ends[1]} at the slow end)"
    # A closed loop asks faster steps for more requests: its fast end may need more GPUs.
    least, most = min(low, high, plan.gpus_total), max(low, high, plan.gpus_total)
    return f" ({least if least == most else f'{least}-{most}'} over the {OVER_BAND})"


def counted(number: int, what: str) -> str:
    """``1 GPU``, ``2 GPUs``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _binding(check: Binding, cap: int | None) -> str:
    if check.name == "load" and check.gpus is not None:
        with_cap = "" if cap is None else f" with {cap} sequences a rank"
        return f"the smaller pool that comes nearest, {counted(check.gpus, 'GPU')}, cannot keep up{with_cap}"
    reached = f"{title(check.name)} {show(check.name, check.value)} of {show(check.name, check.target)}"
    if check.gpus is None:
        return f"{reached}; no smaller pool of the layouts searched holds the weights"
    return f"{reached} in the smaller pool that comes nearest, {counted(check.gpus, 'GPU')}"


def _infeasible(plan: Plan) -> Iterator[str]:
    yield f"infeasible with {counted(plan.problem.scenario.hardware.max_gpus, 'GPU')}"
    yield from (f"  {_missed(check)}" for check in plan.outcome.missed)
    nearest = dict(plan.nearest)
    gpus, rate = nearest.pop("max_gpus", None), nearest.pop("rate", None)
    if gpus is not None:
        yield f"  feasible with {counted(int(gpus), 'GPU')}"
    if nearest:
        relaxed = ", ".join(f"{title(name)} {show(name, value)}" for name, value in nearest.items())
        yield f"  nearest feasible: {relaxed}"
    if rate is not None:
        yield f"  feasible at {rate:.3g} requests/s"
    if plan.band is not None:
        fast = plan.band.low.gpus_total
        end = f"at the fast end of the {OVER_BAND}"
        yield f"  infeasible {end} too" if fast is None else f"  feasible {end}, with {counted(fast, 'GPU')}"
    if plan.pools:
        yield "the pools below come nearest; they miss the targets"


def _missed(check: Check) -> str:
    if check.name == "memory_missing_bytes":
        return f"no layout fits: {format_bytes(check.value)} a GPU missing at best"
    if check.name == "gpus_left_for_prefill":
        return f"decode leaves {check.value:g} GPUs, too few to keep up with the prompts"
    if check.name == "load":
        return "the GPUs cannot keep up with the requests, whatever the latency"
    if check.name == "gpus_of_one_instance":
        return f"one instance of the layout needs {check.value:g} GPUs"
    if check.name == "attainment":
        return f"attainment {1 - check.value:.2%}, target {1 - check.target:.2%}"
    return f"{title(check.name)} {show(check.name, check.value)}, target {show(check.name, check.target)}"


def _pools(plan: Plan) -> Iterator[str | Rows]:
    yield ""
    rows = [["pool", "instances", "layout", "GPUs", "cap/rank", "batch", "load", "KV mean", "KV P99", "overflow"]]
    rows += [_pool_row(pool) for pool in plan.pools]
    yield rows
    for pool in plan.pools:
        yield f"{pool.role} flags: {pool.engine_flags}"
        if pool.preemptions_per_request is not None:
            yield (
                f"{pool.role} preemption: {pool.preemptions_per_request:.2g} a request, "
                f"{pool.recompute_share:.2%} of generated tokens recomputed" + _preempted(pool)
            )


def _preempted(pool: PoolSummary) -> str:
    """What preemption does to requests, where it hits one in ten thousand and more."""
    gap, share = pool.preemption_gap_p99_seconds, pool.preempted_share
    if gap is None or share is None or share < 1e-4:
        return ""
    text = f", {share:.2%} of requests preempted, largest gap P99 {format_seconds(gap)}"
    again, swap = pool.preempted_recompute_seconds, pool.preempted_swap_seconds
    if again is None or swap is None:
        return text
    return text + f", one costs {format_seconds(again)} (swapped over PCIe {format_seconds(swap)})"


def _pool_row(pool: PoolSummary) -> list[str]:
    def share(value: float | None) -> str:
        return "" if value is None else f"{value:.1%}"

    overflow = pool.kv_overflow_probability
    return [
        pool.role,
        str(pool.instances),
        pool.layout["text"],
        str(pool.gpus),
        "" if pool.max_num_seqs_per_rank is None else str(pool.max_num_seqs_per_rank),
        "" if pool.batch_mean is None else f"{pool.batch_mean:.1f}",
        share(pool.utilization),
        share(pool.kv_use_mean),
        share(pool.kv_use_p99),
        "" if overflow is None else f"{overflow:.1g}",
    ]


def _latencies(plan: Plan) -> Iterator[str | Rows]:
    view = plan.view
    if view is None:
        return
    values = view.all_percentiles()
    yield ""
    rows = [["", *LABELS.values(), "target"]]
    for name in LATENCIES:
        targets = [
            f"{LABELS[label]} {format_seconds(plan.problem.targets[f'{name}_{label}'])}"
            for label in LABELS
            if f"{name}_{label}" in plan.problem.targets
        ]
        cells = [format_seconds(values[f"{name}_{label}_seconds"]) for label in LABELS]
        rows.append([TITLES[name], *cells, ", ".join(targets)])
    yield rows
    yield f"SLO attainment {view.attainment:.3%}, goodput {view.attainment * plan.problem.rate:.4g} requests/s"
    if plan.band is not None:
        shown = (f"{TITLES[name]} P99 {_over_band(*plan.band.latency(name, 0.99))}" for name in ("ttft", "tpot"))
        yield f"over the 80 % error band, with these pools: {', '.join(shown)}"


def _over_band(low: float | None, high: float | None) -> str:
    """A latency at both ends; without a stationary state at an end there is none."""
    if low is None:
        return "without bound: they cannot keep up"
    return f"{format_seconds(low)} to without bound" if high is None else format_seconds_range(low, high)


def _links(plan: Plan) -> Iterator[str | Rows]:
    rows = [["link", "pool", "in use", "of", "share", "by cause"]]
    rows += [_link_row(pool.role, link, load) for pool in plan.pools for link, load in pool.links.items()]
    if len(rows) > 1:
        yield ""
        yield rows


def _link_row(role: str, link: str, load: dict[str, Any]) -> list[str]:
    used, limit = load["bytes_per_second"], load["capacity_bytes_per_second"]
    causes = [f"{cause.replace('_', ' ')} {format_si(rate, 'B/s')}" for cause, rate in load["causes"].items()]
    return [link, role, format_si(used, "B/s"), format_si(limit, "B/s"), f"{used / limit:.1%}", ", ".join(causes)]


def _outlook(plan: Plan) -> Iterator[str | Rows]:
    if plan.margins is not None:
        rate, output = plan.margins.rate, plan.margins.output
        yield ""
        yield f"breaks at {rate.value:.3g} requests/s ({rate.factor - 1:+.0%}): {title(rate.breaks)}"
        longer = f"{output.value:,.0f} tokens ({output.factor - 1:+.0%})"
        yield f"breaks at a mean output of {longer}: {title(output.breaks)}"
    if (looser := plan.relaxation) is not None:
        change = f"{title(looser.name)} {show(looser.name, looser.target)} -> {show(looser.name, looser.relaxed)}"
        yield f"{change} saves {counted(looser.gpus_saved, 'GPU')}"
    if plan.naive is not None and plan.feasible:
        naive = plan.naive
        means = "none" if naive.decode_gpus is None else f"{naive.decode_gpus} decode GPUs"
        yield f"by mean lengths alone: {means}; by FLOPs alone: prefill : decode = {naive.prefill_per_decode:.2f} : 1"


def _notes(plan: Plan) -> Iterator[str | Rows]:
    if plan.warnings:
        yield ""
        yield from (f"warning: {line}" for line in plan.warnings)
    yield ""
    yield f"sized for {plan.problem.sizing_rate:.4g} requests/s; rests on:"
    yield from (f"  {line}" for line in plan.assumptions)
