"""The answer of a step or a prefill, and the options both take."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from capplan.cards.engine import bands_of
from capplan.cards.hardware import Band
from capplan.errors import InputError, UnknownNameError, shown
from capplan.formulas._ops import Value

if TYPE_CHECKING:
    from capplan.quantities.chain import Chain
    from capplan.serving.prepared import Prepared

OPTIONS = ("weight_dtype", "kv_dtype", "engine", "overlap", "mtp", "acceptance", "skew", "chain")
LIMITS = ("hbm", "compute", "network", "latency")
TIME_FACTORS = frozenset({"decode_time_factor", "prefill_time_factor"})


@dataclass(frozen=True)
class StepTime:
    """Time of one forward pass.

    Parameters
    ----------
    seconds : of the whole pass, the sum of ``parts`` [s]
    parts : seconds by named quantity; with overlapped micro-batches only the part of the communication that no
        computation hides, ``exposed_communication_seconds``
    tokens : that the whole instance gets out of the pass: new tokens of a step (None where the acceptance of its
        drafts is unknown), prompt tokens of a prefill
    tokens_per_step : tokens one sequence gets out of a decode step, 1 without drafts, None where unknown
    gpus : of the instance
    band_factors : measured over predicted time at both ends of the error band; None where the card has none
    """

    seconds: Value
    parts: Mapping[str, Value]
    tokens: Value | None
    tokens_per_step: Value | None
    gpus: int
    _account: Callable[[], tuple[dict[str, Value], dict[str, Value]]] = field(repr=False, compare=False)
    band_factors: Band | None = field(default=None, repr=False, compare=False)

    @cached_property
    def _shares_and_links(self) -> tuple[dict[str, Value], dict[str, Value]]:
        return self._account()

    @property
    def band(self) -> tuple[Value, Value] | None:
        """``(low, high)``: the 80 % error band of ``seconds``, in its shape [s].

        Errors of predictions have common causes: all steps of a model are off by one factor together. None where the
        hardware card has no band for this kind of time; the time itself at both ends where an override gave it.
        """
        factors = self.band_factors
        return None if factors is None else (self.seconds * factors.low, self.seconds * factors.high)

    @property
    def shares(self) -> Mapping[str, Value]:
        """Seconds by what they are spent on: ``hbm``, ``compute``, ``network``, ``latency``; their sum is the sum of
        kernel times before any overlap [s]."""
        return self._shares_and_links[0]

    @property
    def links(self) -> Mapping[str, Value]:
        """Bytes on the busiest GPU, one direction: ``hbm``, ``nvlink``, ``pcie``, ``nic`` [B]."""
        return self._shares_and_links[1]

    @cached_property
    def limit(self) -> Any:
        """What most of the time goes to; an array of names where the batch was an array."""
        shares = [self.shares[name] for name in LIMITS]
        if all(isinstance(share, (int, float)) for share in shares):
            return LIMITS[shares.index(max(shares))]
        import numpy

        return numpy.array(LIMITS)[numpy.argmax(numpy.broadcast_arrays(*shares), axis=0)]

    @property
    def tokens_per_second_per_gpu(self) -> Value | None:
        """Throughput of back-to-back passes [token/s]."""
        return None if self.tokens is None else self.tokens / (self.seconds * self.gpus)


def check_number(value: Value, key: str, *, least: float = 0.0, above: bool = False, most: float = 1e12) -> Value:
    """The value as a float or an array of floats.

    Raises
    ------
    InputError : no number, NaN, infinite or out of range
    """
    if type(value) is int or type(value) is float:
        if (least < value or (value == least and not above)) and value <= most:
            return float(value)
    elif hasattr(value, "dtype") and value.dtype.kind in "iuf":
        low = value > least if above else value >= least
        if (low & (value <= most)).all():
            return value.astype(float) if value.shape else float(value)
    bound = f"above {least:g}" if above else f"{least:g} or more"
    raise InputError(f"{shown(value)} must be a finite number, {bound} and at most {most:g}", key=key)


def common_shape(**inputs: Value) -> tuple[int, ...]:
    """The shape of the answer: that of the inputs together, by name.

    Raises
    ------
    InputError : arrays that do not broadcast
    """
    shapes = {name: value.shape for name, value in inputs.items() if getattr(value, "shape", ())}
    if len(shapes) < 2:
        return next(iter(shapes.values()), ())
    import numpy

    try:
        return numpy.broadcast_shapes(*shapes.values())
    except ValueError:
        told = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise InputError(f"arrays whose shapes do not fit together: {told}", key=next(iter(shapes))) from None


GIVEN = Band(1.0, 1.0)
"""The band of a time that was not predicted but given."""


def time_factor(chain: Chain | None, name: str, total: str) -> float:
    """What predictions of a kind of time are off by together; nothing where an override gives the time itself."""
    if chain is None or total in chain.overrides:
        return 1.0
    return float(chain.given(name, 1.0, "1: the time as predicted"))


def reaches_parts(chain: Chain) -> bool:
    """Whether a chain has anything to do with the parts of a time: it records them, or replaces more than a factor."""
    return chain.record or not chain.overrides.keys() <= TIME_FACTORS


def scaled(parts: Mapping[str, Value], factor: float) -> dict[str, Value]:
    """Parts of a time that is off by a factor."""
    return {name: factor * seconds for name, seconds in parts.items()}


def band_of(prepared: Prepared, kind: str, chain: Chain | None, total: str) -> Band | None:
    """The error band of a kind of time; none around a total that an override gave."""
    if chain is not None and total in chain.overrides:
        return GIVEN
    return bands_of(prepared.hardware, prepared.model, prepared.engine).get(kind)


def in_shape(shape: tuple[int, ...], seconds: Value, parts: Mapping[str, Value]) -> tuple[Value, dict[str, Value]]:
    """Seconds and parts in the shape of the inputs, which an override, a single number, does not have."""
    if not shape:
        return seconds, dict(parts)
    import numpy

    full = {name: numpy.broadcast_to(value, shape).copy() for name, value in parts.items()}
    return numpy.broadcast_to(seconds, shape).copy(), full


def check_switch(value: object, key: str) -> bool:
    """True or False, nothing that merely counts as one of them.

    Raises
    ------
    InputError : anything else
    """
    if isinstance(value, bool):
        return value
    raise InputError(f"{shown(value)} must be True or False", key=key)


def refuse_unknown(options: Mapping[str, object]) -> None:
    """Raise UnknownNameError for an option no step function has."""
    for name in options:
        raise UnknownNameError.among(name, OPTIONS, "option")


def one_number(value: Value, key: str, *, least: float = 0.0, above: bool = False, most: float = 1e12) -> float:
    """The value as a float.

    Raises
    ------
    InputError : an array, no number, NaN, infinite or out of range
    """
    if getattr(value, "shape", ()):
        raise InputError(f"an array of shape {value.shape}: one number each", key=key)
    return float(check_number(value, key, least=least, above=above, most=most))


def whole_number(value: Any, key: str, *, least: int = 1, most: int = 10_000_000) -> int:
    """The value as a whole number.

    Raises
    ------
    InputError : an array, no whole number, or out of range
    """
    number = one_number(value, key, least=least, most=most)
    if isinstance(value, float) or number != int(number):
        raise InputError(f"{shown(value)} must be a whole number, {least} or more", key=key)
    return int(number)


def check_drafts(mtp: object, acceptance: object) -> tuple[int, tuple[float, ...] | None]:
    """Draft tokens a step, and the acceptance of each position if it is known.

    Raises
    ------
    InputError : no whole number of drafts, an acceptance outside 0 to 1, or one without drafts
    """
    if isinstance(mtp, bool) or not isinstance(mtp, int) or not 0 <= mtp <= 64:
        raise InputError(f"{shown(mtp)} must be a whole number of draft tokens, 0 to 64", key="mtp")
    if acceptance is None:
        return mtp, None
    if mtp == 0:
        raise InputError("is used only with draft tokens; set mtp, or leave acceptance out", key="acceptance")
    rates = (acceptance,) * mtp if isinstance(acceptance, (int, float)) else acceptance
    if not isinstance(rates, (list, tuple)) or len(rates) != mtp:
        raise InputError(f"must be one share, or one for each of the {mtp} draft tokens", key="acceptance")
    for rate in rates:
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate <= 1 or math.isnan(rate):
            raise InputError(f"{shown(rate)} must be a share between 0 and 1", key="acceptance")
    return mtp, tuple(float(rate) for rate in rates)
