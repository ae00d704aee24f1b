r"""Second moments of batch and step time from the spectrum of the branching process: numerical, no interpolation.

With :math:`A = (1-e^{-i\omega D})/(i\omega)` and :math:`B = (e^{-i\omega D}(1+i\omega D)-1)/\omega^2` (frequencies in
radians a step), :math:`h = \lambda E[(e+cP')A + cB]`, :math:`R = 1/(1-h)`, :math:`G = E[A]R`,
:math:`kk = \lambda^2 E|(e+cP')A + cB|^2`, :math:`\Lambda = \lambda a/(1-x)`:

.. math::
    V_T &= \Lambda\{E[D](b^2+c^2\nu^2) + \tfrac1\pi\int_0^\infty kk(|R|^2-1)/\lambda^2\,d\omega\}\\
    V_N &= \Lambda\{E[D] + \tfrac1\pi\int [2\Re(\bar G A_k) + |G|^2 kk]\,d\omega\}\\
    C &= \Lambda\{bE[D] + \tfrac1\pi\int\Re[A_k\bar R + G\,kk\,\bar R - A_k]/\lambda\,d\omega\}
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from capplan.formulas.decode_nodes import DecodeNodes
from capplan.formulas.special_arrays import FloatArray

_FREQUENCIES = 96


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Second moments over steps, and what the averages over a request need.

    ``step_variance`` V_T [s^2], ``batch_variance`` V_N [1], ``covariance`` C [s]; ``frequencies`` [1/step] with
    quadrature ``weights`` and ``density`` of the step time's spectrum (weights included) [s^2].
    """

    step_variance: float
    batch_variance: float
    covariance: float
    frequencies: FloatArray
    density: FloatArray

    def averaged_variance(self, steps: FloatArray) -> FloatArray:
        """Variance of the step time averaged over ``steps`` consecutive steps [s^2]."""
        window = np.sinc(np.outer(steps, self.frequencies) / (2 * math.pi)) ** 2
        return np.asarray(window @ self.density)


def decode_spectrum(
    nodes: DecodeNodes,
    a: float,
    e: float,
    c: float,
    request_rate: float,
    excess: float | Callable[[FloatArray], Any] = 0.0,
    frequencies: int = _FREQUENCIES,
) -> Spectrum:
    """Integrate the spectrum of a stable rank.

    Parameters
    ----------
    nodes : lengths with their prompt laws
    a, e, c : step time a + e batch + c context [s], [s], [s/token]
    request_rate : lambda [1/s]
    excess : arrival spectrum over rate, less 1 (0 is Poisson): a number, or a function of the frequency [rad/s]
    frequencies : points of the logarithmic grid

    Returns
    -------
    spectrum : second moments over steps

    Raises
    ------
    ValueError : the load is 1 or more
    """
    own = e + c * (nodes.prompt_mean + nodes.steps / 2)
    load = request_rate * float(nodes.weights @ (nodes.steps * own))
    if not load < 1.0:
        raise ValueError("the load must be below 1")
    omega, weight = _grid(nodes, own, load, frequencies)
    a1, b1 = _transforms(nodes.steps, omega)
    base, spread = e + c * nodes.prompt_mean, c**2 * nodes.prompt_variance
    response = base[:, None] * a1 + c * b1
    mean_response = _average(nodes, response)
    square = _average(nodes, np.abs(response) ** 2 + spread[:, None] * np.abs(a1) ** 2)
    cross = _average(nodes, a1 * np.conj(response))
    mean_a = _average(nodes, a1)
    resolvent = 1.0 / (1.0 - request_rate * mean_response)
    return _moments(
        nodes, (a, e, c), request_rate, load, omega, weight, (mean_response, square, cross, mean_a, resolvent), excess
    )


def _moments(
    nodes: DecodeNodes,
    step: tuple[float, float, float],
    rate: float,
    load: float,
    omega: FloatArray,
    weight: FloatArray,
    parts: tuple[Any, ...],
    excess: float | Callable[[FloatArray], Any],
) -> Spectrum:
    mean_response, square, cross, mean_a, resolvent = parts
    a, e, c = step
    flow = rate * a / (1.0 - load)
    gain = rate * mean_a * resolvent  # batch seconds an arrival spectrum brings, with its children
    size = np.abs(resolvent) ** 2
    local = _local(nodes, e, c)
    burst = np.broadcast_to(excess(omega * (1 - load) / a) if callable(excess) else float(excess), omega.shape)
    total = mean_response * resolvent
    step_density = square * size + burst * np.abs(total) ** 2
    v_t = local[0] + float(weight @ (square * (size - 1.0) + burst * np.abs(total) ** 2))
    count = mean_a * resolvent
    v_n = local[1] + float(
        weight @ (2 * (np.conj(gain) * cross).real + np.abs(gain) ** 2 * square + burst * np.abs(count) ** 2)
    )
    cov = local[2] + float(
        weight
        @ (
            cross * np.conj(resolvent) - cross + gain * square * np.conj(resolvent) + burst * count * np.conj(total)
        ).real
    )
    return Spectrum(flow * v_t, flow * v_n, flow * cov, omega, flow * weight * step_density)


def _local(nodes: DecodeNodes, e: float, c: float) -> tuple[float, float, float]:
    """E[D] E_run[w^2], E[D] and b E[D]: the part of the variances without any memory between requests."""
    d, base = nodes.steps, e + c * nodes.prompt_mean
    square = (base**2 + c**2 * nodes.prompt_variance) * d + base * c * d**2 + c**2 * d**3 / 3
    return (
        float(nodes.weights @ square),
        float(nodes.weights @ d),
        float(nodes.weights @ (base * d + c * d**2 / 2)),
    )


def _grid(nodes: DecodeNodes, own: FloatArray, load: float, n: int) -> tuple[FloatArray, FloatArray]:
    """Logarithmic frequencies from far below the relaxation rate to far above the shortest length's, with weights."""
    work = nodes.weights * nodes.steps * own
    typical = float((work @ nodes.steps) / work.sum()) / 2
    slowest, fastest = (1.0 - load) / typical, 1.0 / max(1.0, float(nodes.weights @ nodes.steps) / 20)
    omega = np.geomspace(slowest / 300, max(30 * fastest, 100 * slowest), n)
    weight = omega * math.log(omega[1] / omega[0])
    weight[[0, -1]] /= 2
    weight[0] += omega[0]  # the flat stretch down to zero
    return omega, weight / math.pi


def _transforms(steps: FloatArray, omega: FloatArray) -> tuple[Any, Any]:
    """A and B of the module's formulas, with series where omega D is small."""
    y = np.outer(steps, omega)
    turn = np.exp(-1j * y)
    small = y < 1e-2
    a1 = (1.0 - turn) / (1j * omega)
    b1 = (turn * (1.0 + 1j * y) - 1.0) / omega**2
    d = steps[:, None]
    a1 = np.where(small, d * (1 - 0.5j * y - y**2 / 6), a1)
    return a1, np.where(small, d**2 * (0.5 - 1j * y / 3 - y**2 / 8), b1)


def _average(nodes: DecodeNodes, table: Any) -> Any:
    """Mean over requests for each frequency; einsum, because threaded products are slow on tables this small."""
    return np.einsum("i,ij->j", nodes.weights, table)
