"""What arrives: the joint law of prompt and output tokens of the requests."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

from capplan.errors import InputError, shown
from capplan.formulas.empirical import Empirical
from capplan.formulas.length_law import LengthLaw, check_positive, check_tokens
from capplan.formulas.length_laws import Mixture, as_length_law
from capplan.quantities.units import parse_tokens

if TYPE_CHECKING:
    from capplan.cards.arrivals import Arrivals
    from capplan.formulas.decode_nodes import DecodeMoments, DecodeNodes


@dataclass(frozen=True)
class RequestClass:
    """One kind of request. Inside a class prompt and output are independent.

    Parameters
    ----------
    share : share of requests [1]
    input : law of prompt tokens
    output : law of output tokens, reasoning included
    name : what kind it is
    """

    share: float
    input: LengthLaw
    output: LengthLaw
    name: str = ""


@dataclass(frozen=True, eq=False)
class JointSample:
    """Requests one by one: prompt tokens, output tokens, weight (sum 1), as NumPy arrays."""

    input: Any
    output: Any
    weight: Any


@dataclass(frozen=True, eq=False, init=False)
class Workload:
    """Requests as the formulas see them: prompt tokens P and output tokens L (reasoning included) of a request.

    Give either two independent laws, or ``classes``, or a ``joint`` sample.

    Parameters
    ----------
    input : law of prompt tokens; a number or ``"8k"`` means fixed
    output : law of output tokens; a number or ``"8k"`` means fixed
    joint : rows (prompt, output) or (prompt, output, weight): an array, a list, or a pair of arrays
    classes : :class:`RequestClass` items or tuples (share, input, output); shares are scaled to sum 1
    name : what to call it
    reasoning_share : share of output tokens that are reasoning; None where unknown [1]

    Raises
    ------
    InputError : lengths missing, given twice, or out of range

    Examples
    --------
    >>> workload = Workload(input=1000, output=1001)
    >>> workload.mean_context  # 1,000 prompt tokens and on average half of 999 earlier outputs
    1499.5
    """

    input: LengthLaw
    output: LengthLaw
    classes: tuple[RequestClass, ...]
    joint: JointSample | None
    name: str
    reasoning_share: float | None
    sources: Mapping[str, Any] = field(repr=False)
    """Dotted key of the card -> :class:`capplan.cards.number.Number`, every number of the card."""
    file: str
    description: str = field(repr=False)
    arrivals: Arrivals | None = field(repr=False)
    """Rate and dispersion of the trace the lengths come from; None where nobody counted them."""
    remarks: tuple[str, ...] = field(repr=False)
    """What a reader of the file should know."""

    def __init__(
        self,
        input: Any = None,
        output: Any = None,
        *,
        joint: Any = None,
        classes: Iterable[Any] | None = None,
        name: str = "",
        reasoning_share: float | None = None,
        sources: Mapping[str, Any] | None = None,
        file: str = "",
        description: str = "",
        arrivals: Arrivals | None = None,
        remarks: tuple[str, ...] = (),
    ) -> None:
        laws = input is not None or output is not None
        if laws + (joint is not None) + (classes is not None) != 1:
            raise InputError("give either input and output, or classes, or a joint sample", key="workload")
        sample = None if joint is None else _joint_sample(joint)
        kinds = () if sample is not None else _classes(classes, input, output)
        first, second = _sample_laws(sample) if sample is not None else _marginals(kinds)
        known = {} if sources is None else sources
        told = (known, file, description, arrivals, remarks)
        values = (first, second, kinds, sample, name, _share(reasoning_share), *told)
        for key, value in zip(self.__dataclass_fields__, values, strict=True):
            object.__setattr__(self, key, value)

    # -- moments ---------------------------------------------------------------------------------------------------

    def moment(self, i: int, j: int) -> float:
        """E[P^i L^j], jointly [token^(i+j)]; kept."""
        if (i, j) not in self._moments:
            self._moments[i, j] = self._moment(i, j)
        return self._moments[i, j]

    def _moment(self, i: int, j: int) -> float:
        if self.joint is not None:
            return float((self.joint.weight * self.joint.input**i * self.joint.output**j).sum())
        return math.fsum(kind.share * kind.input.moment(i) * kind.output.moment(j) for kind in self.classes)

    @cached_property
    def _moments(self) -> dict[tuple[int, int], float]:
        return {}

    @cached_property
    def long_request_tokens(self) -> float:
        """Prompt and output at P99.9 of each [token]."""
        return float(self.input.quantile(0.999)) + float(self.output.quantile(0.999))

    @cached_property
    def decode_moments(self) -> DecodeMoments:
        """Joint moments of prompt and decode steps (D = L - 1) that the stationary laws need.

        Raises :class:`~capplan.errors.InputError` where a moment is infinite (a Pareto tail without ``max``).
        """
        from capplan.formulas.decode_nodes import ORDERS, DecodeMoments, sample_moments

        if self.joint is not None:
            return sample_moments(self.joint.input, self.joint.output - 1.0, self.joint.weight)
        parts = [(kind.share, _shifted(kind.input, 0.5, 3), _shifted(kind.output, 1.0, 4)) for kind in self.classes]
        return DecodeMoments(*(math.fsum(share * p[i] * d[j] for share, p, d in parts) for i, j in ORDERS))

    @cached_property
    def overlap(self) -> tuple[float, float, float]:
        """Overlap integrals of :meth:`capplan.formulas.decode_nodes.DecodeNodes.overlap`, on a fine grid."""
        return self.decode_nodes(240).overlap()

    @cached_property
    def _node_store(self) -> dict[int, DecodeNodes]:
        return {}

    def decode_nodes(self, n: int = 48) -> DecodeNodes:
        """About ``n`` weighted lengths (decode steps), each with the prompt law of such requests; kept once built."""
        if n not in self._node_store:
            self._node_store[n] = self._build_nodes(n)
        return self._node_store[n]

    def _build_nodes(self, n: int) -> DecodeNodes:
        from capplan.formulas.decode_nodes import DecodeNodes, prompt_cumulants

        if self.joint is not None:
            return DecodeNodes.grouped(self.joint.input, self.joint.output - 1.0, self.joint.weight, 2 * n)
        parts = []
        for kind in self.classes:
            values, weights = kind.output.nodes(max(16, round(n * kind.share)))
            prompt = prompt_cumulants(kind.input)
            parts.append((kind.share, DecodeNodes.product(values - 1.0, weights, prompt)))
        return DecodeNodes.joined(parts)

    @cached_property
    def few_nodes(self) -> DecodeNodes:
        """At most some 80 nodes, for laws that depend smoothly on the length: TPOT over requests."""
        nodes = self.decode_nodes()
        return nodes if len(nodes.steps) <= 80 else nodes.merged(144)

    @cached_property
    def mean_decode_steps(self) -> float:
        """Decode steps of a request, E[L] - 1 [token]."""
        return self.output.mean - 1.0

    @cached_property
    def mean_context(self) -> float:
        r"""Mean context of a running request, :math:`\theta = E[D(P + (D-1)/2)]/E[D]`, D = L - 1 [token]."""
        from capplan.formulas.lengths import running_context

        m = self.decode_moments
        return float(running_context(m.m11, m.m02, m.m01)) if m.m01 > 0.0 else self.input.mean

    @cached_property
    def context_std(self) -> float:
        r"""Standard deviation :math:`\nu` of the context of a running request [token].

        :math:`\nu^2 = E[D P^2 + P D(D-1) + D(D-1)(2D-1)/6]/E[D] - \theta^2`.
        """
        from capplan.formulas.lengths import running_context_variance

        m = self.decode_moments
        if m.m01 <= 0.0:
            return self.input.std
        variance = running_context_variance(m.m21, m.m12, m.m03, m.m01, self.mean_context)
        return math.sqrt(max(0.0, variance - 1.0 / 12.0))

    # -- policies --------------------------------------------------------------------------------------------------

    def scaled_output(self, factor: float) -> Workload:
        """The same requests with outputs ``factor`` times as long (their ``max`` included)."""
        check_positive("factor", factor)
        return self._mapped(lambda law: law.scaled(factor), lambda tokens: _at_least_one(tokens * factor))

    def with_budget(self, budget: float | str) -> Workload:
        """The same requests with every output cut at ``budget`` tokens: ``min(L, budget)``, the mass at the budget."""
        cut = parse_tokens(budget, key="budget", positive=True)
        check_tokens("budget", cut, least=1.0)
        return self._mapped(lambda law: law.truncated(cut), lambda tokens: _at_most(tokens, cut))

    def share_cut(self, budget: float) -> float:
        """Share of requests whose output exceeds ``budget`` tokens [1]."""
        return 1.0 - float(self.output.cdf(budget))

    def _mapped(self, on_law: Any, on_tokens: Any) -> Workload:
        sample = kinds = None
        if self.joint is not None:
            sample = (self.joint.input, on_tokens(self.joint.output), self.joint.weight)
        else:
            kinds = [replace(kind, output=on_law(kind.output)) for kind in self.classes]
        return Workload(
            joint=sample,
            classes=kinds,
            name=self.name,
            reasoning_share=self.reasoning_share,
            sources=self.sources,
            file=self.file,
            description=self.description,
            arrivals=self.arrivals,
            remarks=self.remarks,
        )

    # -- telling ---------------------------------------------------------------------------------------------------

    def sample(self, size: int, seed: int = 0) -> tuple[Any, Any]:
        """``size`` requests drawn at random: prompt tokens and output tokens, as arrays of whole numbers."""
        import numpy as np

        return self.draw(size, np.random.default_rng(seed))

    def draw(self, n: int, random: Any) -> tuple[Any, Any]:
        """``n`` requests drawn with a ``numpy.random.Generator``, prompt and output together.

        Returns
        -------
        prompts, outputs : whole tokens, outputs 1 or more; fractions of a compressed sample are rounded up or down at
            random, so that means stay
        """
        import numpy as np

        if self.joint is not None:
            chosen = random.choice(len(self.joint.weight), n, p=self.joint.weight)
            rounding = random.random(n)
            return tuple(
                np.floor(one[chosen] + rounding).astype(np.int64) for one in (self.joint.input, self.joint.output)
            )
        counts = random.multinomial(n, [kind.share for kind in self.classes])
        pairs = [
            (k.input.sample(int(m), random), k.output.sample(int(m), random))
            for k, m in zip(self.classes, counts, strict=True)
        ]
        order = random.permutation(n)
        prompts, outputs = (np.concatenate(column)[order].astype(np.int64) for column in zip(*pairs, strict=True))
        return prompts, outputs

    def summary(self) -> dict[str, Any]:
        """The figures people ask for, by name."""
        quantiles = {
            f"{what}_{name}_tokens": float(law.quantile(p))
            for what, law in (("input", self.input), ("output", self.output))
            for name, p in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
        }
        return {
            "name": self.name,
            "description": self.description,
            "input_mean_tokens": self.input.mean,
            "output_mean_tokens": self.output.mean,
            **quantiles,
            "mean_context_tokens": self.mean_context,
            "context_std_tokens": self.context_std,
            "reasoning_share": self.reasoning_share,
            "classes": len(self.classes),
            "file": self.file,
        }


def _shifted(law: LengthLaw, shift: float, order: int) -> list[float]:
    """E[(X - shift)^k] for k = 0..order."""
    raw = law.moments(order)
    if not all(math.isfinite(moment) for moment in raw):
        raise InputError(f"moment {order} of the lengths is infinite; give the heavy-tailed law a max", key="workload")
    return [math.fsum(math.comb(k, r) * (-shift) ** (k - r) * raw[r] for r in range(k + 1)) for k in range(order + 1)]


def _law(value: Any, key: str) -> LengthLaw:
    if value is None:
        raise InputError("input and output belong together: give both length laws", key=key)
    return as_length_law(parse_tokens(value, key=key) if isinstance(value, str) else value, key)


def _classes(classes: Iterable[Any] | None, input: Any, output: Any) -> tuple[RequestClass, ...]:
    listed = [RequestClass(1.0, input, output)] if classes is None else [_class(item) for item in _listed(classes)]
    if not 0 < len(listed) <= 1000:
        raise InputError("needs between 1 and 1,000 classes (share, input, output)", key="classes")
    total = math.fsum(check_positive(f"classes.{i}.share", kind.share, most=1e12) for i, kind in enumerate(listed))
    return tuple(RequestClass(k.share / total, _law(k.input, "input"), _output_law(k.output), k.name) for k in listed)


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


def _marginals(kinds: tuple[RequestClass, ...]) -> tuple[LengthLaw, LengthLaw]:
    if len(kinds) == 1:
        return kinds[0].input, kinds[0].output
    return Mixture([(k.share, k.input) for k in kinds]), Mixture([(k.share, k.output) for k in kinds])


def _joint_sample(joint: Any) -> JointSample:
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


def _sample_laws(sample: JointSample) -> tuple[LengthLaw, LengthLaw]:
    return Empirical(sample.input, sample.weight), Empirical(sample.output, sample.weight)


def _share(value: Any) -> float | None:
    if value is None:
        return None
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0.0 <= value <= 1.0:
        raise InputError(f"{shown(value)} must be a share between 0 and 1", key="reasoning_share")
    return float(value)


def _at_least_one(tokens: Any) -> Any:
    import numpy as np

    return np.maximum(tokens, 1.0)


def _at_most(tokens: Any, cut: float) -> Any:
    import numpy as np

    return np.minimum(tokens, cut)
