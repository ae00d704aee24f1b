"""Which runs tell the constants: as few as possible, from a grid, by what the model itself expects of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capplan.calibration.constants import BY_NAME, NAMES, OF_STEP, constants_of
from capplan.calibration.design_commands import Planned, command_line, server_command
from capplan.calibration.fitting import ASSUMED_NOISE, Fit, errors_of, identified, sensitivities
from capplan.calibration.run import Run
from capplan.calibration.table import System, Table, piece_of, table_of
from capplan.cards.engine import Engine
from capplan.cards.engine_card import load_engine
from capplan.cards.hardware import Hardware
from capplan.cards.model import Model
from capplan.errors import InputError
from capplan.serving.layout import Layout, check_heads, check_types

PROMPTS = (256, 1024, 4096, 16384)
OUTPUTS = (128, 512, 1024)
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LEAST_RUNS = 4
MOST_RUNS = 8
_WANTED = 0.5
"""Standard error over spread at which enough is known."""


@dataclass(frozen=True)
class More:
    """Runs that would tell a constant besides those there are; none of this model would, where it is empty."""

    constant: str
    runs: tuple[Planned, ...]


@dataclass(frozen=True)
class Design:
    """Runs that tell the constants.

    Parameters
    ----------
    runs : in the order they were chosen, the most telling first
    errors : standard error to expect of each constant they tell
    held : constant they do not tell, and why
    noise : relative scatter of a run, by metric, that the errors are for
    server : command line of the engine
    commands : command line of each run
    """

    runs: tuple[Planned, ...]
    errors: Mapping[str, float]
    held: Mapping[str, str]
    noise: Mapping[str, float]
    server: str
    commands: tuple[str, ...]


def design_runs(
    model: Model,
    hardware: Hardware,
    layout: Layout | None = None,
    engine: Engine | str = "vllm",
    *,
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
) -> Design:
    """The smallest set of runs that tells the constants :func:`~capplan.calibration.calibration.calibrate` fits.

    Runs are taken one by one from a grid of prompt, output and concurrency, each time the one that makes the
    determinant of the information matrix largest (D-optimal, greedy), with the spread of each constant as what is known
    before.

    Parameters
    ----------
    model, hardware, layout, engine, weight_dtype, kv_dtype : as in ``calibrate``

    Returns
    -------
    design : :class:`Design`, four to eight runs

    Raises
    ------
    InputError : a model that does not fit, no engine

    Examples
    --------
    >>> from capplan import load_hardware, load_model
    >>> design = design_runs(load_model("llama-3.1-8b"), load_hardware("h100"))
    >>> 4 <= len(design.runs) <= 8, "layer_overhead_seconds" in design.errors
    (True, True)

    References
    ----------
    Fedorov, Theory of Optimal Experiments (1972).
    """
    placed = Layout() if layout is None else layout
    check_types(model, hardware, placed)
    check_heads(model, placed)
    card = load_engine(engine) if isinstance(engine, str) else engine
    if not isinstance(card, Engine) or card.name == "none":
        raise InputError("needs an engine card: bare kernels have no constants", key="engine")
    system = System(model, hardware, placed, card, weight_dtype, kv_dtype)
    grid, table = grid_of(system)
    start = constants_of(card)
    free, held = identified(table, start, ASSUMED_NOISE, NAMES)
    rows = _rows(sensitivities(table, start, ASSUMED_NOISE), free)
    chosen = _chosen(rows, rows[:0].reshape(-1, len(free)), LEAST_RUNS, MOST_RUNS)
    errors = errors_of(rows[chosen].reshape(-1, len(free)))
    runs = tuple(grid[index] for index in chosen)
    return Design(
        runs,
        {name: float(error) * BY_NAME[name].spread for name, error in zip(free, errors, strict=True)},
        held,
        dict(ASSUMED_NOISE),
        server_command(system),
        tuple(command_line(run, model, card) for run in runs),
    )


def grid_of(system: System) -> tuple[list[Planned], Table]:
    """Runs that could be made, and what the model says of them.

    Raises
    ------
    InputError : not even the weights fit
    """
    if not system.budget.fits:
        raise InputError(
            f"{system.model.name} does not fit on {system.hardware.name} with {system.layout}", key="model"
        )
    most = system.model.max_context or max(PROMPTS) + max(OUTPUTS)
    grid = [
        Planned(prompt, output, concurrency)
        for prompt in PROMPTS
        for output in OUTPUTS
        for concurrency in CONCURRENCIES
        if prompt + output <= most and concurrency <= (system.slots(prompt, output) or 0)
    ]
    runs = [Run("", None, "", run.prompt_tokens, run.output_tokens, run.concurrency, 1.0, 1.0) for run in grid]
    pieces = [piece_of(system, run.prompt_tokens, run.output_tokens, run.concurrency) for run in grid]
    if not grid:
        raise InputError("memory holds no request of the grid", key="model")
    return grid, table_of(pieces, runs)


def _rows(sensitivity: Any, names: Sequence[str]) -> Any:
    """Sensitivities by run: TPOT and TTFT in the middle axis."""
    import numpy as np

    chosen = sensitivity[:, [NAMES.index(name) for name in names]]
    tpot, ttft = np.split(chosen, 2)
    return np.stack([tpot, ttft], axis=1)


def _chosen(rows: Any, known: Any, least: int, most: int) -> list[int]:
    """Positions of the runs to make, until every constant is known well enough."""
    import numpy as np

    width = rows.shape[2]
    information = np.eye(width) + known.T @ known
    chosen: list[int] = []
    while len(chosen) < most:
        gains = [float(np.linalg.slogdet(information + row.T @ row)[1]) for row in rows]
        for index in chosen:
            gains[index] = -np.inf
        if len(chosen) >= len(rows):
            break
        best = int(np.argmax(gains))
        chosen.append(best)
        information += rows[best].T @ rows[best]
        errors = errors_of(np.concatenate([known, rows[chosen].reshape(-1, width)]))
        if len(chosen) >= least and (errors < _WANTED).all():
            break
    return chosen


def more_runs(system: System, table: Table, fit: Fit) -> list[More]:
    """For every held constant the fewest further runs of the grid that would tell it.

    Parameters
    ----------
    system : of the runs there are
    table, fit : those, and what they tell
    """
    if not fit.held:
        return []
    try:
        grid, possible = grid_of(system)
    except InputError:
        return []
    order = (*fit.free, *(name for name in NAMES if name in fit.held))
    able, _ = identified(table.joined_to(possible), fit.values, fit.noise, order)
    found = [_more(name, able, grid, possible, table, fit) if name in able else More(name, ()) for name in fit.held]
    return [one for one in found if one.runs or one.constant in OF_STEP]


def _more(name: str, able: tuple[str, ...], grid: Sequence[Planned], possible: Table, table: Table, fit: Fit) -> More:
    """Runs that tell a constant and those that are tried before it."""
    import numpy as np

    wanted = able[: able.index(name) + 1]
    rows = _rows(sensitivities(possible, fit.values, fit.noise), wanted)
    known = _rows(sensitivities(table, fit.values, fit.noise), wanted).reshape(-1, len(wanted))
    chosen = _chosen(rows, known, 1, MOST_RUNS)
    for count in range(1, len(chosen) + 1):
        errors = errors_of(np.concatenate([known, rows[chosen[:count]].reshape(-1, len(wanted))]))
        if (errors < 1).all():
            return More(name, tuple(grid[index] for index in chosen[:count]))
    return More(name, ())
