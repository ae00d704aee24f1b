"""Bytes and time of the exchanges between the GPUs of one instance."""

from __future__ import annotations

import math

from capplan.formulas import _ops
from capplan.formulas._ops import Value


def all_reduce_bytes(message_bytes: Value, gpus: Value) -> Value:
    r"""Bytes each GPU sends to reduce a message over a group: scatter, then gather.

    .. math:: V = 2 \frac{n - 1}{n} M

    Parameters
    ----------
    message_bytes : M, the same on every GPU [B]
    gpus : n [1]

    Returns
    -------
    all_reduce_bytes : sent by each GPU [B]

    Examples
    --------
    >>> all_reduce_bytes(1024, 4)
    1536.0

    References
    ----------
    Patarasuk and Yuan, doi:10.1016/j.jpdc.2008.09.002.
    """
    return 2 * (gpus - 1) / gpus * message_bytes


def all_reduce_seconds(
    message_bytes: Value,
    gpus: Value,
    floor_seconds: Value,
    floor_per_gpu_seconds: Value,
    two_step_floor_seconds: Value,
    bandwidth: Value,
) -> Value:
    r"""Time of an all-reduce inside one scale-up domain, the faster of one step and two.

    .. math:: t = a + a_1 n + \min\left(\frac{(n-1) M}{b},\ a_2 + \frac{2 (n-1)}{n} \frac{M}{b}\right)

    Small messages go whole to every peer in one step; large ones are scattered and gathered, which moves less and
    synchronises twice.

    Parameters
    ----------
    message_bytes : M [B]
    gpus : n [1]
    floor_seconds, floor_per_gpu_seconds : a, a_1 [s]
    two_step_floor_seconds : a_2 [s]
    bandwidth : measured b of one GPU [B/s]

    Returns
    -------
    all_reduce_seconds : 0 for one GPU [s]

    Examples
    --------
    >>> round(all_reduce_seconds(57344, 8, 2.6e-6, 0.74e-6, 16e-6, 299e9) * 1e6, 1)
    9.9

    References
    ----------
    Form and constants: fitted to the all-reduce tables of aiconfigurator-core 0.12.0 (Apache-2.0), 4 % median error.
    """
    if gpus == 1:
        return 0.0 * message_bytes
    one_step = (gpus - 1) * message_bytes / bandwidth
    two_steps = two_step_floor_seconds + all_reduce_bytes(message_bytes, gpus) / bandwidth
    return floor_seconds + floor_per_gpu_seconds * gpus + _ops.minimum(one_step, two_steps)


def internode_all_reduce_seconds(
    message_bytes: Value, nodes: Value, gpus_per_node: Value, floor_seconds: Value, bandwidth: Value
) -> Value:
    r"""What a second and further node adds to an all-reduce: each GPU reduces its share with its peers.

    .. math:: t = 4 a + \frac{2 (N-1)}{N} \frac{M}{g\,b}

    Scatter and gather each start a sending and a receiving proxy: four start-ups of about 26 us. DeepSeek-R1 over two
    nodes of 8 H100 (23 to 24 ms a token, 122 all-reduces) asks for some 130 us, an older library on A100 for 220 us.

    Parameters
    ----------
    message_bytes : M [B]
    nodes : N [1]
    gpus_per_node : g of the group in one node [1]
    floor_seconds : a of one exchange between nodes [s]
    bandwidth : measured b of one GPU's network adapter [B/s]

    Returns
    -------
    all_reduce_seconds : 0 for one node [s]

    Examples
    --------
    >>> round(internode_all_reduce_seconds(8 * 2**20, 2, 8, 25e-6, 45e9) * 1e6, 1)
    123.3

    References
    ----------
    Steps over two nodes: tests/truth/step_measurements.json. A100: profiles of github.com/microsoft/vidur.
    """
    if nodes == 1:
        return 0.0 * message_bytes
    return 4 * floor_seconds + all_reduce_bytes(message_bytes / gpus_per_node, nodes) / bandwidth


def distinct_destinations(destinations: Value, copies: Value) -> Value:
    r"""Ranks or nodes that get at least one of a token's copies.

    .. math:: n\,(1 - (1 - 1/n)^k)

    Parameters
    ----------
    destinations : n [1]
    copies : experts k a token chooses [1]

    Returns
    -------
    distinct_destinations : expected number [1]

    Examples
    --------
    >>> round(distinct_destinations(8, 8), 2)  # DeepSeek-V3 over 8 GPUs
    5.25
    """
    return destinations * (1 - (1 - 1 / destinations) ** copies)


def dispatch_floor_seconds(nodes: Value, floor_seconds: Value, per_doubling_seconds: Value) -> Value:
    r"""Start-up of a low-latency expert dispatch over nodes.

    .. math:: t_0 = a + a_2 \log_2 N

    The receivers wait for a first flag of every sender; a combine over nodes starts in the same time over two nodes
    and over eight.

    Parameters
    ----------
    nodes : N [1]
    floor_seconds : a, inside one node [s]
    per_doubling_seconds : a_2 [s]

    Returns
    -------
    dispatch_floor_seconds : [s]

    Examples
    --------
    >>> round(dispatch_floor_seconds(8, 14.6e-6, 4.6e-6) * 1e6, 1)  # 27.8 us measured
    28.4

    References
    ----------
    DeepEP low-latency tables over 1, 2, 4, 8 H200 nodes of aiconfigurator-core 0.12.0 (Apache-2.0).
    """
    return floor_seconds + per_doubling_seconds * _ops.log(nodes) / math.log(2)


def exchange_seconds(
    intranode_bytes: Value,
    internode_bytes: Value,
    intranode_bandwidth: Value,
    internode_bandwidth: Value,
    floor_seconds: Value,
) -> Value:
    r"""Time of an expert dispatch, a combine or a send over two fabrics at once.

    .. math:: t = a + \max(V_\mathrm{in}/b_\mathrm{in},\ V_\mathrm{out}/b_\mathrm{out})

    Only bytes that leave the node load its adapter: with that, one bandwidth of 43 to 46 GB/s explains low-latency
    exchanges over 2 to 32 nodes, whose "bandwidth" per byte of payload seems to fall from 63 to 39 GB/s.

    Parameters
    ----------
    intranode_bytes, internode_bytes : what the busiest GPU sends over each fabric [B]
    intranode_bandwidth, internode_bandwidth : measured, of one GPU [B/s]
    floor_seconds : a [s]

    Returns
    -------
    exchange_seconds : [s]

    Examples
    --------
    >>> payload = 128 * 8 * 7168.0  # 128 tokens, 8 copies, fp8
    >>> round(exchange_seconds(payload * 7 / 128, payload * 120 / 128, 110e9, 43e9, 28e-6) * 1e6)  # 192 us measured
    188

    References
    ----------
    DeepEP, low-latency kernels over EP8 to EP256 on H800: github.com/deepseek-ai/DeepEP, docs/legacy.md.
    """
    return floor_seconds + _ops.maximum(intranode_bytes / intranode_bandwidth, internode_bytes / internode_bandwidth)


def exposed_communication_seconds(communication_seconds: Value, compute_seconds: Value, compute_share: Value) -> Value:
    r"""Time that communication adds to computation it overlaps with.

    .. math:: \max(X - C,\ s X)

    While one of two micro-batches communicates the other computes; an exchange that is itself run by multiprocessors
    takes a share s of them away for as long as it lasts.

    Parameters
    ----------
    communication_seconds : X of both micro-batches [s]
    compute_seconds : C of both micro-batches [s]
    compute_share : s, 0 where network adapters and copy engines do the work [1]

    Returns
    -------
    exposed_communication_seconds : [s]

    Examples
    --------
    >>> exposed_communication_seconds(3.0, 2.0, 0.0), exposed_communication_seconds(2.0, 3.0, 0.125)
    (1.0, 0.25)

    References
    ----------
    DeepSeek-V3 technical report, arXiv:2412.19437, sections 3.2.2 (20 of 132 multiprocessors) and 3.4.
    """
    return _ops.maximum(communication_seconds - compute_seconds, compute_share * communication_seconds)
