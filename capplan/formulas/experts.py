"""Mixture of experts: which experts a batch touches, how unevenly, and how long their products take."""

from __future__ import annotations

import math
from collections.abc import Sequence

from capplan.formulas import _ops
from capplan.formulas._ops import Value
from capplan.formulas.gemm import ACTIVATION_BYTES
from capplan.formulas.roofline import kernel_seconds

_EULER_GAMMA = 0.5772156649015329

ExpertTerm = tuple[Value, Value, Value, Value, Value]
"""(floor [s], streaming an expert [s], streaming a row [s], computing a row [s], padding rows an expert [1])."""


def distinct_experts(tokens: Value, experts: Value, top_k: Value) -> Value:
    r"""Experts that at least one token of a batch chooses, tokens choosing independently.

    .. math:: D = E\,(1 - (1 - k/E)^T)

    Parameters
    ----------
    tokens : T, of all ranks that share the experts [tokens]
    experts : E, copies of busy ones included [1]
    top_k : k each token chooses [1]

    Returns
    -------
    distinct_experts : expected number [1]; published "balanced" kernel tables are dealt round-robin instead, min(E, kT)

    Examples
    --------
    >>> round(distinct_experts(3, 8, 2), 2)  # Mixtral, three tokens: not six
    4.62

    References
    ----------
    Occupancy of cells, Feller, An Introduction to Probability Theory and Its Applications, volume I, II.5.
    """
    return experts * (1 - (1 - top_k / experts) ** tokens)


def normal_maximum(count: int) -> float:
    r"""Mean of the largest of n standard normal variables, by extreme value theory.

    .. math:: u - \frac{\ln\ln n + \ln 4\pi - 2\gamma}{2 u}, \qquad u = \sqrt{2 \ln n}

    Parameters
    ----------
    count : n [1]

    Returns
    -------
    maximum : in standard deviations; within 12 % of the exact mean from n = 4, within 3 % from 32, 0 for n = 1 [1]

    Examples
    --------
    >>> round(normal_maximum(32), 2)  # exact: 2.07
    2.14

    References
    ----------
    H. A. David, H. N. Nagaraja, Order Statistics, section 10.5.
    """
    if count == 1:
        return 0.0
    u = math.sqrt(2 * math.log(count))
    return u - (math.log(math.log(count)) + math.log(4 * math.pi) - 2 * _EULER_GAMMA) / (2 * u)


def fullest_rank_share(experts: Value, ranks: Value) -> Value:
    r"""Share of all experts on the expert-parallel rank that holds most.

    .. math:: \lceil E/n \rceil / E

    Parameters
    ----------
    experts : E, copies of busy ones included [1]
    ranks : n [1]

    Returns
    -------
    share : 1/n where n divides E [1]

    Examples
    --------
    >>> fullest_rank_share(256 + 32, 144) * 288, fullest_rank_share(256, 144) * 256
    (2.0, 2.0)
    """
    return _ops.ceil(experts / ranks) / experts


def busiest_rank_rows(rows: Value, experts: Value, ranks: int, skew: Value = 1.0) -> Value:
    r"""Token-expert pairs on the busiest expert-parallel rank.

    .. math:: r = \min(R,\ s\,q R + z_n \sqrt{q R (1 - q)})

    with q the :func:`fullest_rank_share` and :math:`z_n` the :func:`normal_maximum` of n ranks.

    Parameters
    ----------
    rows : pairs R of the whole group, tokens times k [1]
    experts : E of the whole group, copies included [1]
    ranks : n [1]
    skew : lasting imbalance s, the busiest rank's share over the mean in a long run; 1 where experts are balanced [1]

    Returns
    -------
    rows : on the busiest rank [1]

    Examples
    --------
    >>> busiest_rank_rows(512, 256, 1)
    512.0
    >>> round(busiest_rank_rows(16384 * 8, 256, 128))
    1108
    """
    share = fullest_rank_share(experts, ranks)
    mean = rows * share
    return _ops.minimum(1.0 * rows, skew * mean + normal_maximum(ranks) * (mean * (1 - share)) ** 0.5)


def busiest_rank_distinct(distinct: Value, experts: Value, ranks: int) -> Value:
    r"""Distinct experts the busiest rank must read.

    .. math:: \min(q E,\ q D + z_n \sqrt{q D (1 - D/E)})

    with q the :func:`fullest_rank_share` and :math:`z_n` the :func:`normal_maximum` of n ranks.

    Parameters
    ----------
    distinct : D of the whole group [1]
    experts : E of the whole group, copies included [1]
    ranks : n [1]

    Returns
    -------
    distinct_experts : on the busiest rank [1]

    Examples
    --------
    >>> round(busiest_rank_distinct(distinct_experts(4, 256, 8), 256, 8), 2)
    6.61
    """
    share = fullest_rank_share(experts, ranks)
    mean = distinct * share
    deviation = (mean * (1 - distinct / experts)) ** 0.5
    return _ops.minimum(experts * share, mean + normal_maximum(ranks) * deviation)


def expert_term(
    inputs: Value,
    outputs: Value,
    bytes_per_element: Value,
    floor_seconds: Value,
    stream_bandwidth: Value,
    narrow_outputs: Value,
    flops_per_second: Value,
    padding_rows: Value,
) -> ExpertTerm:
    r"""The constants of a grouped product's time as a function of rows and distinct experts.

    .. math:: t_b = \frac{D w k n (1 + e_0 / \min(k, n)) + 2 r (k + n)}{B}, \qquad
              t_f = \frac{2 k n (r + D m_1)}{R}

    Parameters
    ----------
    inputs, outputs : k and n of one expert's matrix on this GPU [elements]
    bytes_per_element : w [B]
    floor_seconds : t_0 [s]
    stream_bandwidth : measured B [B/s]
    narrow_outputs : e_0, by which an expert split over many GPUs streams as if it were wider [elements]
    flops_per_second : measured R [FLOP/s]
    padding_rows : m_1, rows of an expert's last tile that hold no token [1]

    Returns
    -------
    expert_term : constants for :func:`experts_seconds`

    Examples
    --------
    >>> expert_term(7168, 4096, 1, 4e-6, 3e12, 0, 1e15, 0)[0]
    4e-06
    """
    return (
        floor_seconds,
        bytes_per_element * inputs * outputs * (1 + narrow_outputs / _ops.minimum(inputs, outputs)) / stream_bandwidth,
        ACTIVATION_BYTES * (inputs + outputs) / stream_bandwidth,
        2 * inputs * outputs / flops_per_second,
        padding_rows,
    )


def handling_term(handled_bytes: Value, stream_bandwidth: Value) -> ExpertTerm:
    r"""What happens to a token-expert pair around the products, as one more term of :func:`experts_seconds`.

    .. math:: t = \frac{r\,V}{B}

    Each pair is copied to its expert, quantised where the format wants it, activated, scaled and added up again.

    Parameters
    ----------
    handled_bytes : V, read and written for a pair outside the products [B]
    stream_bandwidth : measured B [B/s]

    Returns
    -------
    handling_term : constants for :func:`experts_seconds`

    Examples
    --------
    >>> handling_term(60_000, 3e12)[2]
    2e-08
    """
    return (0.0, 0.0, handled_bytes / stream_bandwidth, 0.0, 0.0)


def experts_seconds(rows: Value, distinct: Value, terms: Sequence[ExpertTerm]) -> Value:
    r"""Time of the routed experts of one layer: one grouped product for each kind of matrix.

    .. math:: t = \sum_i t_{0,i} + (t_{b,i}^4 + t_{f,i}^4)^{1/4}

    Parameters
    ----------
    rows : token-expert pairs on this GPU [1]
    distinct : experts on this GPU that have any [1]
    terms : one of :func:`expert_term` for each matrix of an expert

    Returns
    -------
    experts_seconds : one layer [s]

    Examples
    --------
    >>> up = expert_term(7168, 4096, 1, 8e-6, 2.96e12, 0, 1.1e15, 30)
    >>> round(experts_seconds(512, 32, [up]) * 1e6)  # 325 us measured on an H800
    330

    References
    ----------
    Grouped DeepGEMM products on one H800, published with InferSim: tests/truth/h800_kernels.json.
    """
    total = 0.0
    for floor, stream_per_expert, stream_per_row, compute_per_row, padding_rows in terms:
        stream = distinct * stream_per_expert + rows * stream_per_row
        total = total + kernel_seconds(floor, stream, (rows + distinct * padding_rows) * compute_per_row)
    return total
