"""What the stationary laws need of a workload: joint moments of prompt and decode steps, and weighted length nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from capplan.formulas.length_law import LengthLaw

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class DecodeMoments:
    """Joint moments ``m_ij = E[P'^i D^j]``, with D = L - 1 decode steps and P' = P - 1/2 [token^(i+j)].

    The half token makes the integral of the running context over age equal to the exact sum over whole steps.
    """

    m10: float
    m20: float
    m30: float
    m01: float
    m02: float
    m03: float
    m04: float
    m11: float
    m21: float
    m31: float
    m12: float
    m22: float
    m13: float

    @property
    def prompt_variance(self) -> float:
        """Variance of the prompt length [token^2]."""
        return max(0.0, self.m20 - self.m10**2)

    @property
    def prompt_third(self) -> float:
        """Third central moment of the prompt length [token^3]."""
        return self.m30 - 3.0 * self.m10 * self.m20 + 2.0 * self.m10**3

    @property
    def steps_cv(self) -> float:
        """Coefficient of variation of the decode steps of a request [1]."""
        return float(np.sqrt(max(0.0, self.m02 / self.m01**2 - 1.0))) if self.m01 > 0.0 else 0.0


ORDERS = tuple((int(name[1]), int(name[2])) for name in DecodeMoments.__dataclass_fields__)
"""The pairs (i, j) of :class:`DecodeMoments`, in its order."""


@dataclass(frozen=True, eq=False)
class DecodeNodes:
    """Weighted lengths, each with the law of the prompt given that length.

    Parameters
    ----------
    steps : decode steps D of each node [token]
    weights : share of requests of each node, summing to 1 [1]
    prompt_mean : E[P' | node] [token]
    prompt_variance : Var(P | node) [token^2]
    prompt_third : third central moment of P | node [token^3]
    """

    steps: FloatArray
    weights: FloatArray
    prompt_mean: FloatArray
    prompt_variance: FloatArray
    prompt_third: FloatArray

    @classmethod
    def product(cls, steps: FloatArray, weights: FloatArray, prompt: Sequence[float]) -> DecodeNodes:
        """Nodes with one prompt law for all: ``prompt`` holds mean (of P'), variance and third central moment."""
        mean, variance, third = (np.full(len(steps), value) for value in prompt)
        return cls(steps, weights / weights.sum(), mean, variance, third)

    @classmethod
    def joined(cls, parts: Sequence[tuple[float, DecodeNodes]]) -> DecodeNodes:
        """The nodes of several classes of requests with their shares."""
        columns = [
            np.concatenate(
                [share * nodes.weights if name == "weights" else getattr(nodes, name) for share, nodes in parts]
            )
            for name in cls.__dataclass_fields__
        ]
        return cls(*columns)

    @classmethod
    def grouped(cls, prompts: FloatArray, steps: FloatArray, weights: FloatArray, n: int) -> DecodeNodes:
        """A joint sample compressed to at most ``n`` groups of neighbouring lengths.

        Groups hold equal shares of ``1 + (D/E[D])^2 + (D/E[D])^4`` (scaled), so the tail, which rules the fourth
        moment, is nearly kept request by request.
        """
        p = prompts - 0.5
        return cls._regrouped(steps, weights, p, p**2, p**3, n)

    def merged(self, n: int) -> DecodeNodes:
        """The nodes reduced to at most ``n``, neighbours in length sharing one (see :meth:`grouped`)."""
        mean = self.prompt_mean
        square = self.prompt_variance + mean**2
        cube = self.prompt_third + 3 * mean * square - 2 * mean**3
        return self._regrouped(self.steps, self.weights, mean, square, cube, n)

    @classmethod
    def _regrouped(
        cls, steps: FloatArray, weights: FloatArray, p1: FloatArray, p2: FloatArray, p3: FloatArray, n: int
    ) -> DecodeNodes:
        """Groups of neighbouring lengths with their mean length and the raw prompt moments of their members."""
        order = np.argsort(steps, kind="stable")
        d, w = steps[order], weights[order]
        importance = sum(np.cumsum(w * d**k) / max(float((w * d**k).sum()), 1e-300) for k in (0, 2, 4))
        group = np.minimum((np.asarray(importance) / 3 * n).astype(int), n - 1)
        mass = np.bincount(group, w, n)
        used = mass > 0.0
        members = (d, p1[order], p2[order], p3[order])
        length, mean, square, cube = (np.bincount(group, w * one, n)[used] / mass[used] for one in members)
        variance = np.maximum(square - mean**2, 0.0)
        return cls(length, mass[used] / mass.sum(), mean, variance, cube - 3 * mean * square + 2 * mean**3)

    def overlap(self) -> tuple[float, float, float]:
        r"""Integrals of the load left at age u: :math:`\int G_0^2,\ \int G_0 G_1,\ \int G_1^2\,du`.

        :math:`G_0(u) = P(D>u)` and :math:`G_1(u) = E[P' + u;\,D>u]`, so that
        :math:`\int E[w(u); D>u]^2 du = e^2 I_{00} + 2 e c I_{01} + c^2 I_{11}`.

        Returns
        -------
        integrals : [token], [token^2], [token^3]
        """
        order = np.argsort(self.steps)
        d, w, p = self.steps[order], self.weights[order], self.prompt_mean[order]
        left = np.cumsum(w[::-1])[::-1]
        prompt_left = np.cumsum((w * p)[::-1])[::-1]
        low = np.concatenate([[0.0], d[:-1]])
        powers = [(d**k - low**k) / k for k in (1, 2, 3)]
        i00 = left**2 * powers[0]
        i01 = left * (prompt_left * powers[0] + left * powers[1])
        i11 = prompt_left**2 * powers[0] + 2 * prompt_left * left * powers[1] + left**2 * powers[2]
        return float(i00.sum()), float(i01.sum()), float(i11.sum())


def prompt_cumulants(law: LengthLaw) -> tuple[float, float, float]:
    """Mean of P - 1/2, variance and third central moment of a law of prompt tokens [token, token^2, token^3]."""
    _, m1, m2, m3 = law.moments(3)
    return m1 - 0.5, max(0.0, m2 - m1**2), m3 - 3 * m1 * m2 + 2 * m1**3


def sample_moments(prompts: Any, steps: Any, weights: Any) -> DecodeMoments:
    """Joint moments of a weighted sample of (prompt tokens, decode steps)."""
    p = np.asarray(prompts, dtype=float) - 0.5
    d, w = np.asarray(steps, dtype=float), np.asarray(weights, dtype=float)
    w = w / w.sum()
    return DecodeMoments(*(float(np.sum(w * p**i * d**j)) for i, j in ORDERS))
