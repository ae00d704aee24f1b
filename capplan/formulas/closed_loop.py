"""A closed loop: so many requests always in flight, a new one sent when one is answered, as benchmarks do."""

from __future__ import annotations

from capplan.formulas import _ops
from capplan.formulas._ops import Value


def prompt_wait(running: Value, sqrt_factor: Value, linear_factor: Value) -> Value:
    r"""Prompts a request waits for before its own, in prompts.

    .. math:: g = g_a \sqrt{b - 1} + g_b (b - 1)

    Requests that start together send their next prompts together; how far they drift apart is a habit of the load
    generator and of the engine, so both factors are calibrated, not derived.

    Parameters
    ----------
    running : requests b of one data-parallel rank that hold a slot, 1 or more [1]
    sqrt_factor, linear_factor : g_a, g_b [1]

    Returns
    -------
    prompt_wait : g [1]

    Examples
    --------
    >>> prompt_wait(5, 0.5, 0.25)
    2.0
    """
    others = _ops.maximum(running - 1, 0.0)
    return sqrt_factor * others**0.5 + linear_factor * others


def closed_loop_ttft_seconds(prompt_seconds: Value, wait: Value, base_seconds: Value) -> Value:
    r"""Mean TTFT while every slot is busy.

    .. math:: \mathrm{TTFT} = t_0 + P\,(1 + g)

    Parameters
    ----------
    prompt_seconds : P, one prompt in a step of its own [s]
    wait : g of :func:`prompt_wait` [1]
    base_seconds : t_0, what the client and the front end take [s]

    Returns
    -------
    ttft_seconds : mean [s]

    Examples
    --------
    >>> closed_loop_ttft_seconds(0.2, 2.0, 0.1)
    0.7000000000000001
    """
    return base_seconds + prompt_seconds * (1 + wait)


def closed_loop_tpot_seconds(
    decode_seconds: Value, joined_seconds: Value, running: Value, wait: Value, decode_steps: Value
) -> Value:
    r"""Mean TPOT while every slot is busy: decode steps, and the prompts of the others that join them.

    .. math:: \mathrm{TPOT} = T + \frac{(b - 1 - g)^+}{o}\,\Delta P

    From one answer to the next the same request sees each of the others once; those it did not wait for before its
    first token join its decode steps. A joining prompt shares the weight reads of the step, so it adds less than it
    takes alone.

    Parameters
    ----------
    decode_seconds : T, a step with b sequences on each rank and no prompt [s]
    joined_seconds : Delta P, what one prompt on each rank adds to such a step [s]
    running : b, of one data-parallel rank [1]
    wait : g of :func:`prompt_wait` [1]
    decode_steps : o, output tokens less one [1]

    Returns
    -------
    tpot_seconds : mean [s]

    Examples
    --------
    >>> closed_loop_tpot_seconds(0.02, 0.1, 5, 2.0, 100)
    0.022

    References
    ----------
    With P for Delta P and a cost that overlaps nothing it is the conservation law TTFT + o TPOT = b P + o T, which
    664 public runs of fixed length obey within 0.2 % median and 1.3 % p90.
    """
    return decode_seconds + _ops.maximum(running - 1 - wait, 0.0) * joined_seconds / decode_steps


def slot_wait_seconds(concurrency: Value, slots: Value, request_seconds: Value) -> Value:
    r"""Mean wait for a slot where fewer requests fit than are in flight.

    .. math:: W = (c / n - 1)^+ (\mathrm{TTFT} + o\,\mathrm{TPOT})

    Little's law with all slots busy: a request spends a share n/c of its time in one.

    Parameters
    ----------
    concurrency : requests in flight c [1]
    slots : requests that run at once n [1]
    request_seconds : time in a slot, prefill and decode [s]

    Returns
    -------
    slot_wait_seconds : [s]

    Examples
    --------
    >>> slot_wait_seconds(64, 32, 40.0), slot_wait_seconds(16, 32, 40.0)
    (40.0, 0.0)

    References
    ----------
    70B-FP8 on one H200, TensorRT-LLM, 1k/8k at 64 and 128 in flight: 79.5 and 369 s measured.
    """
    return _ops.maximum(concurrency / slots - 1, 0.0) * request_seconds


def conserved_seconds(running: Value, prompt_seconds: Value, decode_steps: Value, decode_seconds: Value) -> Value:
    r"""Time of a request while every slot is busy: b prompts are read and o steps made between its start and its end.

    .. math:: \mathrm{TTFT} + o\,\mathrm{TPOT} = b\,P + o\,T

    Whatever the scheduler does, a request of a closed loop sees one prompt of each slot of its rank, its own included.
    Two output lengths o at the same prompt and concurrency therefore split P and T without a model of either.

    Parameters
    ----------
    running : requests b of one data-parallel rank, all in a slot [1]
    prompt_seconds : P, what one prompt on each rank adds to the engine's work [s]
    decode_steps : o, output tokens less one [1]
    decode_seconds : T, a step with b sequences on each rank and no prompt [s]

    Returns
    -------
    conserved_seconds : mean time of a request [s]

    Examples
    --------
    >>> conserved_seconds(8, 0.1, 100, 0.02)
    2.8

    References
    ----------
    664 public runs of fixed length obey it within 0.2 % median and 1.3 % p90.
    """
    return running * prompt_seconds + decode_steps * decode_seconds


def requests_in_flight(request_rate: Value, request_seconds: Value) -> Value:
    r"""Mean number of requests in flight under open arrivals, by Little's law.

    .. math:: N = \lambda\,E

    Parameters
    ----------
    request_rate : requests answered a second [1/s]
    request_seconds : mean time of one [s]

    Returns
    -------
    requests_in_flight : [1]

    Examples
    --------
    >>> requests_in_flight(2.0, 8.0)
    16.0

    References
    ----------
    Little, Operations Research 9 (1961) 383.
    """
    return request_rate * request_seconds
