"""The general law of one kernel: a floor, and a soft maximum of streaming and computing."""

from __future__ import annotations

from capplan.formulas._ops import Value


def kernel_seconds(floor_seconds: Value, stream_seconds: Value, compute_seconds: Value) -> Value:
    r"""Time of one kernel that streams bytes while it computes.

    .. math:: t = t_0 + (t_b^4 + t_f^4)^{1/4}

    A kernel overlaps its loads with its arithmetic, so the longer of the two rules and the shorter one shows only
    near the crossing. The exponent 4 is fixed: on 390 GEMMs of one H200 the exponents 2, 3, 4 and 6 leave 4.2, 3.2,
    3.2 and 3.2 % median and 13.0, 8.9, 8.8 and 8.8 % p90 error, and two square roots replace a power.

    Parameters
    ----------
    floor_seconds : launch, ramp and drain t_0, paid however small the work is [s]
    stream_seconds : bytes moved over the measured stream bandwidth, t_b [s]
    compute_seconds : FLOP over the measured arithmetic rate, t_f [s]

    Returns
    -------
    kernel_seconds : at least ``floor_seconds`` plus the larger of the other two [s]

    Examples
    --------
    >>> round(kernel_seconds(3e-6, 40e-6, 10e-6) * 1e6, 2)
    43.04

    References
    ----------
    Roofline: Williams, Waterman, Patterson, doi:10.1145/1498765.1498785. Exponent: benchmarks/fidelity.py.
    """
    stream, compute = stream_seconds * stream_seconds, compute_seconds * compute_seconds
    return floor_seconds + ((stream * stream + compute * compute) ** 0.5) ** 0.5


def bandwidth_floor_seconds(moved_bytes: Value, peak_bandwidth: Value) -> Value:
    r"""The time no kernel can beat: bytes over the data-sheet bandwidth.

    .. math:: t \ge V / B_\mathrm{peak}

    Real steps take 1.15 to 2.5 times as long; it is shown only beside the answer, labelled as a floor.

    Parameters
    ----------
    moved_bytes : bytes of HBM traffic V [B]
    peak_bandwidth : data-sheet bandwidth [B/s]

    Returns
    -------
    bandwidth_floor_seconds : lower bound of the time [s]

    Examples
    --------
    >>> round(bandwidth_floor_seconds(15e9, 4.8e12) * 1e3, 3)
    3.125
    """
    return moved_bytes / peak_bandwidth
