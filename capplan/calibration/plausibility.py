"""Labels that cannot be: what no GPU of the data sheet does, and what contradicts the conservation law."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from capplan.calibration.run import Run, SetAside
from capplan.calibration.table import Piece, System
from capplan.errors import InputError
from capplan.formulas.closed_loop import conserved_seconds
from capplan.serving.step import decode_step

REACHABLE_SHARE = 0.6
"""Of the dense peak: whole prompts reach 0.4 to 0.5, single products 0.8."""
MOST_IMPOSSIBLE_SHARE = 1 / 3
_NOISE = 0.03
"""Of one measured time, relative."""
_STANDARD_ERRORS = 3.0


@dataclass(frozen=True)
class Split:
    """What the conservation law makes of runs that differ in their output length only.

    Parameters
    ----------
    runs : their positions, the one with the shortest output first
    prompt_seconds : what a prompt on every data-parallel rank adds, P [s]
    prompt_error : its standard error at 3 % noise of each run [s]
    decode_seconds : decode step T with all slots busy, at the context of the shortest run [s]
    """

    runs: tuple[int, ...]
    prompt_seconds: float
    prompt_error: float
    decode_seconds: float

    @property
    def possible(self) -> bool:
        """Whether a prompt takes time, within three standard errors."""
        return self.prompt_seconds > -_STANDARD_ERRORS * self.prompt_error


def impossible_reason(run: Run, system: System) -> str | None:
    """Why no such GPU can have measured this.

    Parameters
    ----------
    run, system : the result, and what is said to have given it
    """
    peak = _peak(system) * system.layout.gpus
    flops = 2.0 * system.model.matmul_parameters_active * run.prompt_tokens
    share = run.concurrency * flops / run.request_seconds / peak
    if share > REACHABLE_SHARE:
        return f"its prompts alone need {share:.0%} of the dense peak (prefix cache, or another concurrency?)"
    if run.ttft_seconds < flops / peak:
        return f"TTFT below the {flops / peak * 1e3:.3g} ms of the prompt's arithmetic at peak (prefix cache?)"
    floor = _stream_seconds(run, system)
    if run.tpot_seconds < floor:
        problem = f"TPOT below the {floor * 1e3:.3g} ms that weights and KV cache take at the data-sheet bandwidth"
        return f"{problem} (draft tokens, other weights, or another layout?)"
    return None


def _peak(system: System) -> float:
    """Dense peak of the fastest arithmetic any matrix of the model has [FLOP/s]."""
    peaks = system.hardware.peak_flops
    kinds = {matmul.format.compute for _, matmul in system.served.matmuls()}
    return max(peaks.get(kind, peaks["bf16"]) for kind in kinds)


def _stream_seconds(run: Run, system: System) -> float:
    """Weights a single token needs and the KV cache of all sequences, over the data-sheet bandwidth [s]."""
    formats = {"weight_dtype": system.weight_dtype, "kv_dtype": system.kv_dtype}
    context = run.prompt_tokens + run.output_tokens / 2
    one = decode_step(system.model, system.hardware, system.layout, 1, 0, **formats)  # type: ignore[arg-type]
    slots = system.slots(run.prompt_tokens, run.output_tokens) or run.concurrency
    rank = min(run.concurrency, slots) / system.layout.dp
    kv = rank * float(system.budget.held_bytes(context)) if system.budget.fits else 0.0
    return (float(one.links["hbm"]) + kv) / system.hardware.hbm_bandwidth


def splits_of(runs: Sequence[Run], systems: Sequence[System], pieces: Sequence[Piece]) -> list[Split]:
    """P and T of every group of closed-loop runs with all slots busy that differ in the output length only.

    Parameters
    ----------
    runs, systems, pieces : side by side
    """
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, run in enumerate(runs):
        if run.closed and run.concurrency > 1 and pieces[index].bare.running >= run.concurrency:
            groups[systems[index].layout, run.concurrency, round(run.prompt_tokens)].append(index)
    return [_split(group, runs, pieces) for group in groups.values() if _outputs(group, runs) > 1]


def _outputs(group: Sequence[int], runs: Sequence[Run]) -> int:
    return len({round(runs[index].output_tokens) for index in group})


def _split(group: Sequence[int], runs: Sequence[Run], pieces: Sequence[Piece]) -> Split:
    """Weighted least squares of TTFT + o TPOT = b P + o T; what the context of longer answers adds is taken off first,
    by the model."""
    import numpy as np

    group = sorted(group, key=lambda index: runs[index].output_tokens)
    bare, of_rank = pieces[group[0]].bare, max(runs[group[0]].concurrency / pieces[group[0]].ranks, 1.0)
    steps = np.array([runs[index].decode_steps for index in group])
    grown = np.array([pieces[index].bare.decode_seconds - bare.decode_seconds for index in group])
    whole = np.array([runs[index].request_seconds for index in group]) - steps * grown
    weight = 1 / (_NOISE * whole)
    unit = [conserved_seconds(of_rank, 1.0, steps, 0.0), conserved_seconds(0.0, 0.0, steps, 1.0)]
    design = np.column_stack([np.broadcast_to(part, steps.shape) * weight for part in unit])
    covariance = np.linalg.inv(design.T @ design)
    prompt, decode = covariance @ (design.T @ (whole * weight))
    return Split(tuple(group), float(prompt), float(covariance[0, 0] ** 0.5), float(decode))


def impossible_runs(runs: Sequence[Run], systems: Sequence[System], splits: Sequence[Split]) -> dict[int, str]:
    """Position to reason, of every run that cannot be.

    Parameters
    ----------
    runs, systems : side by side
    splits : of these runs

    Raises
    ------
    InputError : more than a third of them
    """
    found = {}
    for index, (run, system) in enumerate(zip(runs, systems, strict=True)):
        if (reason := impossible_reason(run, system)) is not None:
            found[index] = reason
    for split in splits:
        if not split.possible:
            reason = (
                f"with the runs of other outputs a prompt takes {split.prompt_seconds * 1e3:.3g} ms, less than none"
            )
            found.update({index: found.get(index, reason) for index in split.runs})
    if len(found) > MOST_IMPOSSIBLE_SHARE * len(runs):
        first = min(found)
        problem = (
            f"{len(found)} of {len(runs)} runs cannot be, for example: {found[first]}; check model, GPU and layout"
        )
        raise InputError(problem, file=runs[first].place)
    return found


def set_aside(runs: Sequence[Run], reasons: dict[int, str]) -> list[SetAside]:
    """These runs with their reasons."""
    return [SetAside(runs[index].file, runs[index].line, reason) for index, reason in sorted(reasons.items())]
