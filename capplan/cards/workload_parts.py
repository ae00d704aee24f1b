"""What a :class:`~capplan.cards.workload.Workload` is made of: classes of requests or a sample of pairs, checked."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from capplan.errors import InputError, shown
from capplan.formulas.length_law import LengthLaw, check_positive
from capplan.formulas.length_laws import Mixture, as_length_law
from capplan.quantities.units import parse_tokens

_ROUNDING = 0.01
"""How far the mean of a fitted law may be above that of another it is a part of."""


@dataclass(frozen=True)
class RequestClass:
    """One kind of request. Inside a class prompt and output are independent.

    Parameters
    ----------
    share : share of requests [1]
    input : law of prompt tokens
    output : law of output tokens, reasoning included
    name : what kind it is
    reasoning : law of the reasoning tokens among them; None where unknown
    """

    share: float
    input: LengthLaw
    output: LengthLaw
    name: str = ""
    reasoning: LengthLaw | None = None


@dataclass(frozen=True, eq=False)
class JointSample:
    """Requests one by one: prompt tokens, output tokens, weight (sum 1), as NumPy arrays."""

    input: Any
    output: Any
    weight: Any


def _law(value: Any, key: str) -> LengthLaw:
    if value is None:
        raise InputError("input and output belong together: give both length laws", key=key)
    return as_length_law(parse_tokens(value, key=key) if isinstance(value, str) else value, key)


def checked_classes(classes: Iterable[Any] | None, one: RequestClass) -> tuple[RequestClass, ...]:
    """The classes with their laws checked and their shares scaled to sum 1; ``one`` where there are none."""
    listed = [one] if classes is None else [_class(item) for item in _listed(classes)]
    if not 0 < len(listed) <= 1000:
        raise InputError("needs between 1 and 1,000 classes (share, input, output)", key="classes")
    total = math.fsum(check_positive(f"classes.{i}.share", kind.share, most=1e12) for i, kind in enumerate(listed))
    if len({kind.reasoning is None for kind in listed}) > 1:
        raise InputError("give the reasoning of every class, or of none", key="classes")
    return tuple(_checked(kind, kind.share / total) for kind in listed)


def _checked(kind: RequestClass, share: float) -> RequestClass:
    output = _output_law(kind.output)
    return RequestClass(share, _law(kind.input, "input"), output, kind.name, checked_reasoning(kind.reasoning, output))


def checked_reasoning(value: Any, output: LengthLaw) -> LengthLaw | None:
    """The law of the reasoning tokens, which are part of the output; None stays None.

    Raises
    ------
    InputError : no law, or more reasoning than output in the mean
    """
    if value is None:
        return None
    law = _law(value, "reasoning")
    if law.mean > output.mean * (1 + _ROUNDING):
        raise InputError(f"has a mean of {law.mean:,.6g} tokens, above the {output.mean:,.6g} of the output, of which "
                         "it is a part", key="reasoning")  # fmt: skip
    return law


def _listed(classes: Any) -> list[Any]:
    if isinstance(classes, (list, tuple)) or (hasattr(classes, "__next__") and not hasattr(classes, "shape")):
        return list(islice(classes, 1001))
    raise InputError(f"{shown(classes)} must be a list of classes (share, input, output)", key="classes")


def _class(item: Any) -> RequestClass:
    if isinstance(item, RequestClass):
        return item
    if isinstance(item, (tuple, list)) and len(item) == 3:
        return RequestClass(*item)
    raise InputError("a class is (share, input law, output law)", key="classes")


def _output_law(value: Any) -> LengthLaw:
    law = _law(value, "output")
    if law.quantile(0.0) < 1.0:
        raise InputError("a request has at least one output token", key="output")
    return law


def marginal(kinds: tuple[RequestClass, ...], what: str) -> Any:
    """The law of ``input``, ``output`` or ``reasoning`` over all classes; None where it is unknown."""
    laws = [(kind.share, getattr(kind, what)) for kind in kinds]
    if len(laws) == 1 or laws[0][1] is None:
        return laws[0][1]
    return Mixture(laws)


def joint_sample(joint: Any) -> JointSample:
    """Rows (prompt, output) or (prompt, output, weight) as arrays, the weights scaled to sum 1."""
    import numpy as np

    try:
        columns = joint if isinstance(joint, tuple) else _numbers(joint).T
        prompt, output = (_numbers(column) for column in columns[:2])
        weight = _numbers(columns[2]) if len(columns) > 2 else np.ones(len(prompt))
    except (TypeError, ValueError, IndexError, OverflowError):
        raise InputError("must be rows (prompt, output) or (prompt, output, weight)", key="joint") from None
    if not prompt.ndim == output.ndim == weight.ndim == 1 or not 0 < len(prompt) == len(output) == len(weight):
        raise InputError("needs as many prompts as outputs and weights, at least one", key="joint")
    in_range = (prompt >= 0) & (prompt <= 1e9) & (output >= 1) & (output <= 1e9) & (weight >= 0) & (weight < 1e300)
    if not in_range.all() or weight.sum() <= 0:
        raise InputError("prompts must be 0 or more tokens, outputs 1 or more, weights 0 or more", key="joint")
    return JointSample(prompt, output, weight / weight.sum())


def _numbers(values: Any) -> Any:
    """An array of floats; text is not read as numbers."""
    import numpy as np

    array = np.array(values)
    if array.dtype.kind not in "iuf":
        raise TypeError(array.dtype)
    return array.astype(float)


def checked_share(value: Any) -> float | None:
    """A share of the output that is reasoning; None stays None."""
    if value is None:
        return None
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0.0 <= value <= 1.0:
        raise InputError(f"{shown(value)} must be a share between 0 and 1", key="reasoning_share")
    return float(value)
