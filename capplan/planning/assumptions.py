"""What an answer rests on that nobody measured, or that the user did not say."""

from __future__ import annotations

from capplan.cards.engine import CalibratedFor, bands_of
from capplan.planning.pools import Pools
from capplan.planning.problem import Problem
from capplan.serving.idle_constants import idle_constants
from capplan.serving.layout import Layout
from capplan.serving.prepared import decode_kind
from capplan.serving.unmeasured import unmeasured_kernels

_TOLD_ELSEWHERE = ("price_per_gpu_hour", "bands.")


def assumptions(problem: Problem, pools: Pools | None) -> tuple[str, ...]:
    """One line each, the most consequential first."""
    lines = [*_defaults(problem), *_simplifications(problem, pools), *unmeasured_kernels(problem.model, problem.engine)]
    lines += [*_hardware(problem, pools), *_bands(problem)]
    if pools is not None:
        lines += [line for line in pools.decode.budget.assumptions if not line.startswith("engine ")]
    return tuple(dict.fromkeys(lines))


def _defaults(problem: Problem) -> list[str]:
    scenario = problem.scenario
    lines = [f"engine {problem.engine.title} {problem.engine.version}", *_calibrated(problem)]
    given = scenario.serving.model_fields_set
    for key in ("mode", "routing", "headroom"):
        if key not in given:
            lines.append(f"serving.{key} = {getattr(scenario.serving, key)} (default)")
    if "kv_overflow" not in scenario.slo.model_fields_set:
        lines.append(f"slo.kv_overflow = {scenario.slo.kv_overflow} of time (default)")
    if "dispersion" not in scenario.workload.model_fields_set:
        lines.append("workload.dispersion = 1, Poisson arrivals (default)")
    if problem.scenario.hardware.price_per_gpu_hour is None and problem.hardware.price_per_gpu_hour is not None:
        lines.append(f"list price {problem.hardware.price_per_gpu_hour:g} $/GPU/h")
    lines += [*problem.told, *problem.workload.remarks]
    if "price_per_gpu_hour" not in scenario.hardware.model_fields_set and problem.hardware.price_per_gpu_hour is None:
        lines.append(f"no price known for {problem.hardware.name}: give hardware.price_per_gpu_hour")
    lines += [f"override.{name} = {value:g}" for name, value in scenario.override.items()]
    return lines


def _calibrated(problem: Problem) -> list[str]:
    """A card whose constants were fitted to another pair of GPU and model."""
    whose, name = problem.engine.calibrated_for, problem.engine.name
    if whose is None or whose == CalibratedFor(problem.hardware.name, problem.model.name):
        return []
    return [f"engine card {name}: calibrated for {whose.model} on {whose.gpu}"]


def _simplifications(problem: Problem, pools: Pools | None) -> list[str]:
    lines = ["TTFT and decode time of a request are independent"]
    if pools is not None and pools.mode == "aggregated" and pools.decode.layout.dp > 1:
        lines.append(
            "prompts of the ranks of an instance are read independently of each other (TPOT errs high at a high load)"
        )
    if pools is not None and pools.mode == "aggregated" and problem.scenario.serving.routing != "random":
        lines.append(
            "routing steadies the batch; TTFT, TPOT and ITL of mixed steps are those of a random split (errs high)"
        )
    if problem.scenario.workload.dispersion > 1:
        if problem.arrivals is None:
            lines.append("bursts act on the prefill queue as on the decode batch (errs high for TTFT)")
        if pools is not None:
            horizon = pools.decode.stationary.dispersion_horizon_seconds
            lines.append(
                f"dispersion of the arrivals taken over windows of about {horizon:,.0f} s, 1.5 relaxation times"
            )
    if problem.scenario.slo.attainment is not None:
        lines.append("attainment takes targets on different latencies as independent (errs low)")
    if problem.scenario.serving.routing == "least-kv" and pools is not None and pools.decode.layout.dp > 1:
        lines.append("what least-kv routing saves of the wait between data-parallel ranks is not counted (errs high)")
    if problem.scenario.workload.concurrency is not None:
        lines.append("prompts of a closed loop arrive as Poisson at the rate it causes (errs high for TTFT)")
    return lines


def _hardware(problem: Problem, pools: Pools | None) -> list[str]:
    unused = _unused(problem, pools)
    assumed = [
        name
        for name, number in problem.hardware.sources.items()
        if number.kind == "assumed" and not name.startswith(_TOLD_ELSEWHERE) and name not in unused
    ]
    if not assumed:
        return []
    shown = ", ".join(assumed[:4]) + (f" and {len(assumed) - 4} more" if len(assumed) > 4 else "")
    name = problem.hardware.name
    return [f"hardware card {name}: {shown} assumed (capplan hardware show {name})"]


def _unused(problem: Problem, pools: Pools | None) -> set[str]:
    """Kernel constants that no pool uses."""
    kv_dtype = problem.scenario.serving.kv_dtype or problem.model.kv_dtype
    layouts = (
        [Layout()] if pools is None else [pool.layout for pool in (pools.decode, pools.prefill) if pool is not None]
    )
    idle = [
        idle_constants(problem.model, problem.hardware, layout, kv_dtype, bare=problem.engine.name == "none")
        for layout in layouts
    ]
    return {f"kernels.{name}" for name in set.intersection(*idle)}


def _bands(problem: Problem) -> list[str]:
    """Error bands of the times of a plan that no measured rows gave."""
    bands = bands_of(problem.hardware, problem.model, problem.engine)
    name = problem.hardware.name
    kinds = (decode_kind(problem.model, problem.engine), "prefill", "ttft")
    missing = [kind for kind in kinds if kind not in bands]
    assumed = [kind for kind in kinds if kind in bands and bands[kind].assumed]
    lines = [f"hardware card {name}: no error band of {', '.join(missing)}, so the plan has none"] if missing else []
    return lines + ([f"hardware card {name}: error bands of {', '.join(assumed)} assumed"] if assumed else [])
