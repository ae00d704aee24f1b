"""What arrives: the joint law of prompt and output tokens of the requests."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from capplan.cards.workload_parts import (
    JointSample,
    RequestClass,
    checked_classes,
    checked_reasoning,
    checked_share,
    joint_sample,
    marginal,
)
from capplan.errors import InputError
from capplan.formulas.empirical import Empirical
from capplan.formulas.length_law import LengthLaw, check_positive, check_tokens
from capplan.quantities.units import parse_tokens

if TYPE_CHECKING:
    from capplan.cards.arrivals import Arrivals
    from capplan.formulas.decode_nodes import DecodeMoments, DecodeNodes

__all__ = ["JointSample", "RequestClass", "Workload"]


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
    reasoning : law of the reasoning tokens among the output of a request; classes have their own
    reasoning_share : share of output tokens that are reasoning, where no law of them is known: then it is that of
        every request; None where nothing is known [1]

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
    reasoning: LengthLaw | None
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
        reasoning: Any = None,
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
        if reasoning is not None and (classes is not None or reasoning_share is not None):
            raise InputError("give one of reasoning, reasoning_share and the reasoning of classes", key="reasoning")
        sample = None if joint is None else joint_sample(joint)
        kinds = () if sample else checked_classes(classes, RequestClass(1.0, input, output, reasoning=reasoning))
        first, second, third = _laws(kinds) if sample is None else _sample_laws(sample, reasoning)
        share = checked_share(reasoning_share) if third is None else min(1.0, third.mean / second.mean)
        told = ({} if sources is None else sources, file, description, arrivals, remarks)
        values = (first, second, kinds, sample, name, third, share, *told)
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

    def reasoning_nodes(self, n: int = 240) -> DecodeNodes:
        """Weighted decode steps up to the first token after the reasoning, each with the prompts of such requests."""
        from capplan.cards.reasoning import reasoning_nodes

        return reasoning_nodes(self, n)

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

    def with_reasoning_share(self, share: float) -> Workload:
        """The same requests with that share of every output as reasoning, in the place of what was known of it."""
        return self._mapped(lambda law: law, lambda tokens: tokens, share)

    def share_cut(self, budget: float) -> float:
        """Share of requests whose output exceeds ``budget`` tokens [1]."""
        return 1.0 - float(self.output.cdf(budget))

    def _mapped(self, on_law: Any, on_tokens: Any, share: float | None = None) -> Workload:
        """Outputs, and what is known of their reasoning, changed; ``share`` replaces the latter."""
        sample = kinds = law = None
        known = None if share is not None else self.reasoning
        if self.joint is not None:
            sample = (self.joint.input, on_tokens(self.joint.output), self.joint.weight)
            law = None if known is None else on_law(known)
        else:
            kinds = [
                replace(kind, output=on_law(kind.output),
                        reasoning=None if known is None or kind.reasoning is None else on_law(kind.reasoning))
                for kind in self.classes
            ]  # fmt: skip
        if share is None and known is None:
            share = self.reasoning_share
        return Workload(joint=sample, classes=kinds, name=self.name, reasoning=law, reasoning_share=share,
                        sources=self.sources, file=self.file, description=self.description, arrivals=self.arrivals,
                        remarks=self.remarks)  # fmt: skip

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

    def draw_reasoning(self, outputs: Any, random: Any) -> Any:
        """Reasoning tokens of requests of these output tokens, drawn with a ``numpy.random.Generator``.

        The law of the reasoning tokens is kept; the longer the output, the longer its reasoning. Where only a share is
        known, that share of the decode steps of each; none where nothing is.
        """
        from capplan.cards.reasoning import drawn_reasoning

        return drawn_reasoning(self, outputs, random)

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
            "reasoning_law": self.reasoning is not None,
            "classes": len(self.classes),
            "file": self.file,
        }


def _shifted(law: LengthLaw, shift: float, order: int) -> list[float]:
    """E[(X - shift)^k] for k = 0..order."""
    raw = law.moments(order)
    if not all(math.isfinite(moment) for moment in raw):
        raise InputError(f"moment {order} of the lengths is infinite; give the heavy-tailed law a max", key="workload")
    return [math.fsum(math.comb(k, r) * (-shift) ** (k - r) * raw[r] for r in range(k + 1)) for k in range(order + 1)]


def _laws(kinds: tuple[RequestClass, ...]) -> tuple[LengthLaw, LengthLaw, LengthLaw | None]:
    """Laws of prompt, output and reasoning tokens over all classes."""
    return marginal(kinds, "input"), marginal(kinds, "output"), marginal(kinds, "reasoning")


def _sample_laws(sample: JointSample, reasoning: Any) -> tuple[LengthLaw, LengthLaw, LengthLaw | None]:
    output = Empirical(sample.output, sample.weight)
    return Empirical(sample.input, sample.weight), output, checked_reasoning(reasoning, output)


def _at_least_one(tokens: Any) -> Any:
    import numpy as np

    return np.maximum(tokens, 1.0)


def _at_most(tokens: Any, cut: float) -> Any:
    import numpy as np

    return np.minimum(tokens, cut)
