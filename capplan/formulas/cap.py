"""Waiting behind a cap on the batch, first come first served: Hayward's scaling and single-server work.

Numerical where a sum over states is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from capplan.formulas._ops import Value, maximum


@dataclass(frozen=True)
class CappedBatch:
    """What the cap does, relative to the batch without it.

    ``wait_probability``: share of arrivals that find no slot [1]. ``mean_ratio`` and ``variance_ratio``: mean and
    variance of the running batch over their values without the cap [1].
    """

    wait_probability: float
    mean_ratio: float
    variance_ratio: float


def capped_load(request_rate: Value, mean_steps: Value, a: Value, marginal_seconds: Value, cap: Value) -> Value:
    r"""Load of the slots, :math:`\rho = \lambda E[D](a + b m)/m`.

    Parameters
    ----------
    request_rate : lambda [1/s]
    mean_steps : E[D] [token]
    a, marginal_seconds : step time a + b n [s]
    cap : m, largest batch [1]

    Returns
    -------
    load : rho; waiting grows without bound at 1 [1]
    """
    return request_rate * mean_steps * (a + marginal_seconds * cap) / cap


def peakedness(batch_variance: Value, batch_mean: Value, load: Value) -> Value:
    r"""Variance of the batch over that of the insensitive law, :math:`z = V_N/(E_sN/(1-x))` [1]."""
    return batch_variance / (batch_mean / (1 - load))


def capped_batch(cap: float, a_over_b: float, load: float, slot_load: float, peaked: float) -> CappedBatch:
    """Truncated insensitive law with a geometric tail, in units of the peakedness (Hayward's approximation).

    States n = m/z, m/z - 1, ... have weight ``x^n Gamma(r + n)/n!``, r = (a/b + 1)/z; those beyond the cap together
    ``w_0 rho / (1 - rho)``.

    Parameters
    ----------
    cap : m [1]
    a_over_b : step seconds of an empty batch over those of one request [1]
    load : x [1]
    slot_load : rho, below 1 [1]
    peaked : z [1]

    Returns
    -------
    capped : share of arrivals that wait, and what the cap does to the batch

    References
    ----------
    A. A. Fredericks, Bell Syst. Tech. J. 59 (1980) 809 (Hayward's approximation).
    """
    shape, levels = (a_over_b + 1.0) / peaked, cap / peaked
    mean, variance = shape * load / (1 - load), shape * load / (1 - load) ** 2
    total = first = second = 0.0
    weight, level = 1.0, levels
    while level > -1e-9 and (weight > 1e-14 * total or level > mean):
        total, first, second = total + weight, first + weight * level, second + weight * level**2
        # weight(n - 1) / weight(n); below level 1 the last state is fractional
        weight *= level / (load * (shape + level - 1)) if shape + level > 1 else 0.0
        level -= 1.0
    if math.isinf(total):  # so light a load that the cap is out of reach
        return CappedBatch(0.0, 1.0, 1.0)
    beyond = slot_load / (1 - slot_load)
    mass = total + beyond
    running, square = (first + beyond * levels) / mass, (second + beyond * levels**2) / mass
    return CappedBatch(
        wait_probability=(1.0 + beyond) / mass,
        mean_ratio=min(1.0, running / mean),
        variance_ratio=min(1.0, max(0.0, square - running**2) / variance),
    )


def work_mean(a: Value, e: Value, c: Value, cap: Value, moments: Value) -> Value:
    r"""Mean work of a request at a full batch, :math:`V = D(a/m + e) + c(P'D + D^2/2)` [s].

    Parameters
    ----------
    a, e, c : step seconds of an empty batch [s], a sequence [s], a cached token [s/token]
    cap : m [1]
    moments : joint moments ``m01``, ``m11``, ``m02`` of (P', D) [token^k]
    """
    return (a / cap + e) * moments.m01 + c * (moments.m11 + moments.m02 / 2)


def wait_mean_of_waiting(work: Value, work_square: Value, arrival_variation: Value, slot_load: Value) -> Value:
    r"""Mean wait of those that wait: a single server's, eased at light load where many slots hide long jobs.

    .. math:: E[W|W>0] = \frac{E[V](c_a^2 + c_V^2)}{2(1-\rho)} \Big/
              \left(1 + 1.8(1-\rho)\frac{(c_V^2-1)^+}{c_V^2+1}\right)

    Parameters
    ----------
    work : E[V] [s]
    work_square : E[V^2] [s^2]
    arrival_variation : index of dispersion of arrivals c_a^2 [1]
    slot_load : rho [1]

    Returns
    -------
    wait_mean : [s]; the factor 1.8 was chosen by eye on 140 simulated configurations
    """
    cv2 = work_square / work**2 - 1
    easing = 1 + 1.8 * (1 - slot_load) * maximum(cv2 - 1, 0 * cv2) / (cv2 + 1)
    return work * (arrival_variation + cv2) / (2 * (1 - slot_load)) / easing


def wait_quantile(p: float, wait_probability: float, wait_mean: float) -> float:
    r"""Quantile of the wait, :math:`E[W|W>0]\,\ln(P_W/(1-p))`, 0 where fewer than 1 - p wait [s]."""
    return wait_mean * math.log(wait_probability / (1.0 - p)) if wait_probability > 1.0 - p else 0.0
