"""Special functions on NumPy arrays: the gamma law, evaluated by quadrature where arrays make loops slow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capplan.formulas.special import LARGE_SHAPE

FloatArray = NDArray[np.float64]

# Gauss-Legendre points and weights on [-1, 1], 24 points: Abramowitz and Stegun, table 25.4.
_POINTS = (0.0640568928626056261, 0.191118867473616309, 0.315042679696163374, 0.433793507626045138,
           0.545421471388839536, 0.648093651936975569, 0.740124191578554364, 0.820001985973902922,
           0.886415527004401034, 0.938274552002732759, 0.974728555971309498, 0.99518721999702136)  # fmt: skip
_POINT_WEIGHTS = (0.127938195346752157, 0.125837456346828296, 0.121670472927803391, 0.115505668053725601,
                  0.107444270115965635, 0.0976186521041138883, 0.0861901615319532759, 0.0733464814110803057,
                  0.0592985849154367807, 0.0442774388174198062, 0.0285313886289336632,
                  0.0123412297999871995)  # fmt: skip
_NODES = np.array([(1.0 + sign * x) / 2 for x in _POINTS for sign in (-1, 1)])
_WEIGHTS = np.array([w / 2 for w in _POINT_WEIGHTS for _ in (-1, 1)])
_REACH = 8.0  # standard deviations of the cube root that a tail integral covers
_SMALL_SHAPE = 2.0  # below it the lower tail is singular at zero and the series is used
_SERIES_TERMS = 48
_BLOCK = 2048  # points integrated at once: their arrays stay in the cache of a core


def log_gamma(values: FloatArray) -> FloatArray:
    """Logarithm of the gamma function, elementwise."""
    return np.array([math.lgamma(value) for value in values.ravel().tolist()]).reshape(values.shape)


def normal_cdf_array(z: FloatArray) -> FloatArray:
    """Standard normal probabilities, elementwise."""
    scale = -1.0 / math.sqrt(2.0)
    return np.array([0.5 * math.erfc(scale * value) for value in z.ravel().tolist()]).reshape(z.shape)


class GammaLaws:
    r"""Gamma laws of scale 1 with many shapes at once, prepared for repeated evaluation.

    In :math:`u = x^{1/3}` a gamma law is nearly normal (Wilson and Hilferty), so 24 Gauss-Legendre points over eight
    standard deviations of the smaller tail give 1e-9; a series serves shapes below 2 near zero, the normal law with
    one Edgeworth term shapes above a million.

    Parameters
    ----------
    shapes : shape of each law, above 0 [1]
    """

    def __init__(self, shapes: Any) -> None:
        self.shapes: FloatArray = np.asarray(shapes, dtype=float)
        self.log_gamma = log_gamma(self.shapes)
        self._centre = np.cbrt(self.shapes) * np.maximum(0.0, 1.0 - 1.0 / (9.0 * self.shapes))
        self._width = self.shapes ** (-1.0 / 6.0) / 3.0
        self._any_large = bool((self.shapes > LARGE_SHAPE).any())
        self._any_small = bool((self.shapes < _SMALL_SHAPE).any())

    def pdf(self, x: FloatArray) -> FloatArray:
        """Density of each law at its own ``x``."""
        safe = np.maximum(x, 1e-300)
        exponent = (self.shapes - 1.0) * np.log(safe) - safe - self.log_gamma
        return np.where(x > 0.0, np.exp(np.minimum(exponent, 700.0)), 0.0)

    def cdf(self, x: FloatArray) -> FloatArray:
        """Cumulative probability of each law at its own ``x``, whose last axis runs over the laws."""
        root = np.cbrt(np.maximum(x, 0.0))
        away = root - self._centre
        upper = away > 0.0
        value = np.where(upper, 1.0, 0.0)
        near = np.abs(away) < _REACH * self._width
        value[near] = self._near(root[near], upper[near], np.nonzero(near)[-1])
        if self._any_small:
            value = self._with_series(value, x, upper)
        if self._any_large:
            value = self._with_normal(value, x)
        return np.clip(value, 0.0, 1.0)

    def _near(self, root: FloatArray, upper: Any, law: Any) -> FloatArray:
        """Cumulative probability at points not far out in a tail; ``law`` says whose each is."""
        value = np.empty(len(root))
        for start in range(0, len(root), _BLOCK):
            block = slice(start, start + _BLOCK)
            tail = self._tail(root[block], upper[block], law[block])
            value[block] = np.where(upper[block], 1.0 - tail, tail)
        return value

    def _tail(self, root: FloatArray, upper: Any, law: Any) -> FloatArray:
        """Mass beyond ``root`` on the smaller side."""
        reach = _REACH * self._width[law]
        length = np.where(upper, reach, -np.minimum(reach, root))
        u = root[:, None] + length[:, None] * _NODES
        log_density = (3.0 * self.shapes[law] - 1.0)[:, None] * np.log(np.maximum(u, 1e-300)) - u * u * u
        density = np.exp(np.minimum(log_density - self.log_gamma[law][:, None], 700.0))
        mass: FloatArray = 3.0 * np.abs(length) * np.einsum("ij,j->i", density, _WEIGHTS)
        return mass

    def _with_series(self, value: FloatArray, x: FloatArray, upper: Any) -> FloatArray:
        use = (self.shapes < _SMALL_SHAPE) & ~upper
        if not use.any():
            return value
        law = np.nonzero(use)[-1]
        shape, at = self.shapes[law], np.maximum(x[use], 0.0)
        term = 1.0 / shape
        total = term.copy()
        for n in range(1, _SERIES_TERMS):
            term = term * at / (shape + n)
            total += term
        value = value.copy()
        value[use] = total * np.exp(shape * np.log(np.maximum(at, 1e-300)) - at - self.log_gamma[law])
        return value

    def _with_normal(self, value: FloatArray, x: FloatArray) -> FloatArray:
        use = self.shapes > LARGE_SHAPE
        root = np.sqrt(self.shapes[use])
        z = (x[..., use] - self.shapes[use]) / root
        density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
        value = value.copy()
        value[..., use] = normal_cdf_array(z) - density * (2.0 / root) * (z * z - 1.0) / 6.0
        return value
