"""Time, bytes and FLOP of a dense matrix product with few or many rows."""

from __future__ import annotations

from collections.abc import Sequence

from capplan.formulas._ops import Value
from capplan.formulas.roofline import kernel_seconds

ACTIVATION_BYTES = 2
"""Activations between kernels are bf16."""

GemmTerm = tuple[Value, Value, Value, Value, Value]
"""(how many, floor [s], streaming [s], streaming a row [s], computing a row [s]) of equal products."""


def gemm_flops(rows: Value, inputs: Value, outputs: Value) -> Value:
    r"""FLOP of a matrix product: a multiplication and an addition per element of the matrix and row.

    .. math:: F = 2\,m\,k\,n

    Parameters
    ----------
    rows : tokens m [1]
    inputs : k [elements]
    outputs : n [elements]

    Returns
    -------
    gemm_flops : arithmetic [FLOP]

    Examples
    --------
    >>> gemm_flops(8192, 8192, 8192)
    1099511627776
    """
    return 2 * rows * inputs * outputs


def gemm_bytes(rows: Value, inputs: Value, outputs: Value, bytes_per_element: Value) -> Value:
    r"""Bytes a matrix product moves: the matrix once, activations in and out.

    .. math:: V = w\,k\,n + 2\,m\,(k + n)

    Parameters
    ----------
    rows : tokens m [1]
    inputs : k [elements]
    outputs : n [elements]
    bytes_per_element : storage of the matrix w, scales included [B]

    Returns
    -------
    gemm_bytes : HBM traffic [B]

    Examples
    --------
    >>> gemm_bytes(1, 4096, 6144, 2)
    50352128
    """
    return bytes_per_element * inputs * outputs + ACTIVATION_BYTES * rows * (inputs + outputs)


def gemm_term(
    inputs: Value,
    outputs: Value,
    bytes_per_element: Value,
    floor_seconds: Value,
    stream_bandwidth: Value,
    narrow_outputs: Value,
    flops_per_second: Value,
    count: Value = 1,
) -> GemmTerm:
    r"""The constants of a product's time as a function of its rows alone.

    .. math:: t_b = \frac{w k (n + n_0) + 2 m (k + n)}{B}, \qquad t_f = \frac{2 m k n}{R}

    A narrow matrix has too few column tiles to keep every memory channel busy: it streams as if it were
    :math:`n_0` columns wider.

    Parameters
    ----------
    inputs : k [elements]
    outputs : n [elements]
    bytes_per_element : w [B]
    floor_seconds : t_0 [s]
    stream_bandwidth : measured B [B/s]
    narrow_outputs : n_0 [elements]
    flops_per_second : measured R [FLOP/s]
    count : equal products that run one after the other [1]

    Returns
    -------
    gemm_term : constants for :func:`gemms_seconds`

    Examples
    --------
    >>> gemm_term(4096, 6144, 2, 3e-6, 4e12, 0, 8e14)[1]
    3e-06
    """
    return (
        count,
        floor_seconds,
        bytes_per_element * inputs * (outputs + narrow_outputs) / stream_bandwidth,
        ACTIVATION_BYTES * (inputs + outputs) / stream_bandwidth,
        gemm_flops(1, inputs, outputs) / flops_per_second,
    )


def gemms_seconds(rows: Value, terms: Sequence[GemmTerm]) -> Value:
    r"""Time of matrix products that run one after the other on the same rows.

    .. math:: t = \sum_i c_i\,[t_{0,i} + ((a_i + b_i m)^4 + (f_i m)^4)^{1/4}]

    Parameters
    ----------
    rows : tokens m of the step on this GPU [1]
    terms : one of :func:`gemm_term` for each kind of product

    Returns
    -------
    linear_seconds : [s]

    Examples
    --------
    >>> term = gemm_term(4096, 6144, 2, 2.96e-6, 4.41e12, 676, 798e12)
    >>> round(gemms_seconds(64, [term]) * 1e6, 1)  # 16.1 us measured on an H200
    16.0

    References
    ----------
    Fitted to 390 products measured on one H200 (tests/truth/h200_kernels.json): 3.2 % median, 8.8 % p90 error for
    1 to 4,096 rows, 1,280 to 128,256 outputs, bf16 and fp8 with one scale a tensor.
    """
    total = 0.0
    for count, floor, stream, stream_per_row, compute_per_row in terms:
        total = total + count * kernel_seconds(floor, stream + stream_per_row * rows, compute_per_row * rows)
    return total
