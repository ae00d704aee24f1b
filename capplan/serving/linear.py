"""Step time of one rank as a line in its sequences and cached tokens, for the queueing laws and the planner."""

from __future__ import annotations

from typing import Any

from capplan.cards.hardware import Hardware
from capplan.cards.model import Model
from capplan.serving.evaluation import Batch, evaluate_step
from capplan.serving.layout import Layout
from capplan.serving.prepared import Prepared, prepare
from capplan.serving.step_time import check_drafts, check_number, check_switch, refuse_unknown


class LinearStep(tuple[float, float, float]):
    """``(a, e, c)`` of ``T = a + e * sequences + c * cached tokens`` on one rank.

    ``error`` is the largest relative difference to the step time it stands for, over the eight points at which
    sequences and cached tokens are half, equal or double [1].
    """

    error: float

    def __new__(cls, a: float, e: float, c: float, error: float) -> LinearStep:
        """A line and its error."""
        line = super().__new__(cls, (a, e, c))
        line.error = error
        return line

    def __getnewargs__(self) -> tuple[float, float, float, float]:
        """What copying and pickling need."""
        return (*self, self.error)


def linear_step(
    model: Model,
    hardware: Hardware,
    layout: Layout,
    batch_per_rank: float,
    context: float,
    **options: Any,
) -> LinearStep:
    r"""The line through a step time at an operating point, all ranks loaded alike.

    .. math:: T(N, S) \approx a + e N + c S, \qquad
              e = \frac{T(2N, S) - T(N/2, S)}{3N/2}, \qquad c = \frac{T(N, 2S) - T(N, S/2)}{3S/2}

    Secants over half to double the load rather than tangents: the batch moves over that range in operation. Neither
    slope nor the constant is below zero.

    Parameters
    ----------
    model, hardware, layout : what runs where
    batch_per_rank : sequences N of one data-parallel rank at the operating point [1]
    context : mean cached tokens of each, S / N [tokens]
    options : those of :func:`capplan.decode_step`

    Returns
    -------
    linear_step : ``(a, e, c)`` in s, s a sequence, s a cached token; ``.error`` is the curvature that remains

    Raises
    ------
    InputError : as for a decode step; a batch or context that is no number above zero

    Examples
    --------
    >>> from capplan.cards.hardware_card import load_hardware
    >>> from capplan.cards.model_card import load_model
    >>> line = linear_step(load_model("llama-3.1-8b"), load_hardware("h200"), Layout(), 64, 8192)
    >>> a, e, c = line
    >>> round(c * 1e9, 1), line.error < 0.02  # 131,072 B a token at 4.52 TB/s
    (29.0, True)
    """
    step = _StepOfRank(model, hardware, layout, options)
    n, s = _operating_point(batch_per_rank, context)
    factors = [(i, j) for i in (0.5, 1.0, 2.0) for j in (0.5, 1.0, 2.0) if (i, j) != (1.0, 1.0)]
    seconds = {(i, j): step(i * n, j * s) for i, j in factors}
    a, e, c = _secants(step, n, s)
    error = max(abs((a + e * i * n + c * j * s) / seconds[i, j] - 1) for i, j in factors)
    return LinearStep(a, e, c, error)


def linear_coefficients(
    model: Model,
    hardware: Hardware,
    layout: Layout,
    batch_per_rank: float,
    context: float,
    **options: Any,
) -> tuple[float, float, float]:
    """``(a, e, c)`` of :func:`linear_step` [s, s, s/token], without its error; arguments and errors are the same."""
    return _secants(_StepOfRank(model, hardware, layout, options), *_operating_point(batch_per_rank, context))


def _operating_point(batch_per_rank: float, context: float) -> tuple[float, float]:
    """Sequences and cached tokens of a rank."""
    n = float(check_number(batch_per_rank, "batch_per_rank", above=True))
    return n, n * float(check_number(context, "context", above=True))


def _secants(step: _StepOfRank, n: float, s: float) -> tuple[float, float, float]:
    """Constant and slopes through the operating point, none of them below zero."""
    along_context, along_batch = step(n, 2 * s) - step(n, s / 2), step(2 * n, s) - step(n / 2, s)
    at = step(n, s)  # comes last, so that a chain keeps its quantities
    c = min(max(along_context, 0.0) / (1.5 * s), at / s)
    e = min(max(along_batch, 0.0) / (1.5 * n), (at - c * s) / n)
    return max(at - e * n - c * s, 0.0), e, c


class _StepOfRank:
    """Seconds of a step as a function of sequences and cached tokens of every rank, whole numbers or not."""

    def __init__(self, model: Model, hardware: Hardware, layout: Layout, options: dict[str, Any]) -> None:
        known = dict(options)
        formats = [known.pop(name, None) for name in ("weight_dtype", "kv_dtype", "engine", "chain")]
        self.prepared: Prepared = prepare(model, hardware, layout, *formats)
        self.chain, self.ranks = formats[-1], layout.dp
        self.drafts, self.acceptance = check_drafts(known.pop("mtp", 0), known.pop("acceptance", None))
        self.skew = check_number(known.pop("skew", 1.0), "skew", least=1.0)
        self.overlap = check_switch(known.pop("overlap", False), "overlap")
        refuse_unknown(known)

    def __call__(self, sequences: float, tokens: float) -> float:
        batch = Batch(
            sequences,
            sequences * self.ranks,
            tokens / sequences,
            self.drafts,
            self.acceptance,
            self.skew,
            self.overlap,
        )
        return float(evaluate_step(self.prepared, batch, self.chain).seconds)
