"""From a workload to what its requests hold in the KV pool: moments in tokens, or in bytes through kv(context)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from capplan.cards.workload import Workload
from capplan.errors import InputError
from capplan.formulas.length_laws import Mixture
from capplan.formulas.preemption import RequestSizes, work_variation
from capplan.formulas.preemption_policies import reserved_sizes

_NARROW = 0.35
"""Coefficient of variation of the outputs below which requests move in convoys and the law over-states preemption."""


@dataclass(frozen=True)
class PoolRequest:
    """A request as one pool sees it.

    Parameters
    ----------
    sizes : moments in pool units [unit]
    unit : pool units (tokens or bytes) one generated token takes on average: 1 for a pool in tokens [unit/token]
    prompt_tokens : mean prompt, half a page included where the pool counts tokens [token]
    context_tokens : mean tokens of a running request [token]
    variation : squared coefficient of variation of the token-time work c_g^2 [-]
    """

    sizes: RequestSizes
    unit: float
    prompt_tokens: float
    context_tokens: float
    variation: float


def pool_request(workload: Workload, block_size: float, kv: Callable[[Any], Any] | None = None) -> PoolRequest:
    """What one request of the workload holds in a pool of tokens, or of bytes with ``kv(context)``.

    Sizes come back in tokens; with ``kv`` in bytes over the mean growth per generated token, so that a cache of
    constant bytes per token gives exactly its tokens.

    Parameters
    ----------
    workload : joint law of prompt and output
    block_size : page of the KV cache [token]; with ``kv`` rounding is part of that function
    kv : bytes one sequence of that context holds on the rank [B]

    Returns
    -------
    request : :class:`PoolRequest`

    Raises
    ------
    InputError : a moment up to the fourth is infinite, or ``kv`` gives no finite number of bytes
    """
    sizes = _token_sizes(workload, (block_size - 1) / 2 if kv is None else 0.0)
    mean = workload.moment(1, 1) + workload.moment(0, 2) / 2
    second = workload.moment(2, 2) + workload.moment(1, 3) + workload.moment(0, 4) / 4
    variation = float(work_variation(mean, second))
    held, unit = (sizes, 1.0) if kv is None else _byte_sizes(workload, kv, sizes.output)
    return PoolRequest(held, unit, sizes.prompt, sizes.held, variation)


def _token_sizes(workload: Workload, padding: float) -> RequestSizes:
    """Joint moments, the running request weighted by its output."""
    m = workload.moment
    output = m(0, 1)
    held = (m(1, 1) + m(0, 2) / 2) / output
    second = (m(2, 1) + m(1, 2) + m(0, 3) / 3) / output
    third = (m(3, 1) + 1.5 * m(2, 2) + m(1, 3) + m(0, 4) / 4) / output
    if not math.isfinite(third):
        raise InputError("the fourth moment is infinite; give the heavy-tailed law a max", key="workload")
    central = third - 3 * held * second + 2 * held**3
    prompt_variance = max(0.0, m(2, 0) - m(1, 0) ** 2)
    variance = max(second - held * held, 1.0)
    return RequestSizes(
        output, m(0, 2) / (2 * output), m(1, 0) + padding, prompt_variance, held + padding, variance, central
    )


def _byte_sizes(workload: Workload, kv: Callable[[Any], Any], output: float) -> tuple[RequestSizes, float]:
    """Moments of kv over the life of a request, in units of the mean growth per token."""
    import numpy as np

    prompt, length, weight = joint_nodes(workload)
    held = _kv_table(kv, float((prompt + length).max()))
    start = held(prompt)
    points, shares = np.polynomial.legendre.leggauss(12)
    points, shares = (points + 1) / 2, shares / 2
    alive = held(prompt[:, None] + length[:, None] * points)
    run = (weight * length)[:, None] * shares / float(weight @ length)
    mean = float((run * alive).sum())
    growth = float(weight @ (held(prompt + length) - start)) / float(weight @ length)
    # a cache that does not grow (recurrent state alone) still needs a unit; a millionth of it moves no result
    unit = max(growth, 1e-6 * mean / output)
    deviation = (alive - mean) / unit
    age = float((run * (alive - start[:, None])).sum()) / unit
    start_mean = float(weight @ start)
    sizes = RequestSizes(
        output, age, start_mean / unit, float(weight @ (start - start_mean) ** 2) / unit**2, mean / unit,
        max(float((run * deviation**2).sum()), 1.0), float((run * deviation**3).sum()),
    )  # fmt: skip
    return sizes, unit


def joint_nodes(workload: Workload, inputs: int = 24, outputs: int = 48) -> tuple[Any, Any, Any]:
    """(prompt, output, weight) points of the joint law, about ``inputs`` times ``outputs`` for each class."""
    import numpy as np

    if workload.joint is not None:
        sample = workload.joint
        return _grouped(sample.input, sample.output, sample.weight, inputs, outputs)
    parts = []
    for kind in workload.classes:
        (prompts, prompt_weights), (lengths, length_weights) = kind.input.nodes(inputs), kind.output.nodes(outputs)
        shares = kind.share * np.outer(prompt_weights, length_weights).ravel()
        parts.append((np.repeat(prompts, len(lengths)), np.tile(lengths, len(prompts)), shares))
    prompt, output, weight = (np.concatenate(column) for column in zip(*parts, strict=True))
    return prompt, output, weight / weight.sum()


def _grouped(prompt: Any, output: Any, weight: Any, inputs: int, outputs: int) -> tuple[Any, Any, Any]:
    """A joint sample compressed to means of at most ``inputs`` x ``outputs`` groups, finest in the tails."""
    import numpy as np

    if len(prompt) <= inputs * outputs:
        return prompt, output, weight
    group = np.zeros(len(prompt), dtype=int)
    for values, count in ((prompt, inputs), (output, outputs)):
        order = np.argsort(values, kind="stable")
        # long requests rule the higher moments, so they weigh more when the groups are cut
        importance = weight * (1 + (values / (weight @ values)) ** 3)
        share = np.cumsum(importance[order]) / importance.sum()
        rank = np.empty(len(prompt), dtype=int)
        rank[order] = np.minimum((share * count).astype(int), count - 1)
        group = group * count + rank
    mass = np.bincount(group, weight)
    kept = mass > 0
    means = [np.bincount(group, weight * values)[kept] / mass[kept] for values in (prompt, output)]
    return means[0], means[1], mass[kept] / mass.sum()


def _kv_table(kv: Callable[[Any], Any], longest: float) -> Callable[[Any], Any]:
    """kv(context) tabulated once: contexts 0 to 256 one by one, then 512 in geometric steps, linear between."""
    import numpy as np

    contexts = np.unique(np.concatenate([np.arange(257.0), np.geomspace(1.0, max(longest, 257.0), 512)]))
    values = _on_array(kv, contexts)
    if values is None:
        try:
            values = np.array([float(kv(float(context))) for context in contexts])
        except (TypeError, ValueError) as error:
            raise InputError("must give one number of bytes for a context", key="kv") from error
    if not np.all((values >= 0) & (values <= 1e18)) or values[-1] <= 0:
        raise InputError("must give a finite number of bytes for every context", key="kv")
    return lambda context: np.interp(context, contexts, values)


def _on_array(kv: Callable[[Any], Any], contexts: Any) -> Any:
    """``kv`` of an array at once, where it takes one; None where it does not."""
    import numpy as np

    try:
        values = np.asarray(kv(np.maximum(contexts, 1.0)), dtype=float)
        first = float(kv(0.0))
    except (InputError, TypeError, ValueError):
        return None
    return np.append(first, values[1:]) if values.shape == contexts.shape else None


def with_reservation(workload: Workload, request: PoolRequest, reserve_tokens: float) -> RequestSizes:
    """Sizes when ``reserve_tokens`` of output are reserved at admission [unit]."""
    law, output = workload.output, request.sizes.output
    short = [law.truncated_moment(k, reserve_tokens) for k in (1, 2, 3)]
    whole = [law.moment(k) for k in (1, 2, 3)]
    largest = (reserve_tokens * short[0] + (whole[1] - short[1]) / 2) / output
    second = (reserve_tokens**2 * short[0] + (whole[2] - short[2]) / 3) / output
    sizes = request.sizes
    age_variance = whole[2] / (3 * output) - (whole[1] / (2 * output)) ** 2
    correlation = sizes.held_variance - age_variance - sizes.prompt_variance
    unused = max(0.0, largest - whole[1] / (2 * output))
    return reserved_sizes(
        sizes, reserve_tokens, unused, second, correlation if workload.joint or len(workload.classes) > 1 else 0.0
    )


def narrow_outputs(workload: Workload) -> bool:
    """Whether the outputs that hold most of the KV are nearly equal, so that requests move in convoys."""
    laws = [(kind.share, kind.output) for kind in workload.classes] or [(1.0, workload.output)]
    modes: list[tuple[float, Any]] = []
    for share, law in laws:
        modes += [(share * part, inner) for part, inner in law.parts] if isinstance(law, Mixture) else [(share, law)]
    _, heaviest = max(modes, key=lambda mode: mode[0] * mode[1].moment(2))
    return bool(heaviest.cv < _NARROW)
