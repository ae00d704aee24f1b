"""Recurrent layers: the limits of the formulas, and rates against kernels measured elsewhere."""

import numpy as np
import pytest
import sympy

from capplan.formulas.recurrence_time import (
    context_recurrence_seconds,
    decode_recurrence_seconds,
    decode_state_bytes,
)

STATE = 64 * 128 * 128 * 4.0
MOVED = STATE, 61440.0, 73728.0, 49152.0
DECODE = 5.6e-6, 4.04e12, 2.73e12
CONTEXT = 6 * STATE / 4 / 229e12, 14e-6, 4.04e12, 2.73e12, 99.8, 48e-9


def decode(sequences, queries=1):
    return decode_recurrence_seconds(sequences, queries, *MOVED, *DECODE)


def context(prompts, tokens):
    return context_recurrence_seconds(prompts, tokens, *MOVED, *CONTEXT)


@pytest.mark.parametrize(("queries", "states"), [(1, 2), (2, 3), (4, 5), (8, 9)])
def test_a_verify_step_writes_a_state_for_every_token(queries, states):
    """aiconfigurator-core 0.12.0, H200, kimi delta, 96 heads, 64 sequences: 203, 311, 518, 967 us in vLLM."""
    measured = {1: 203.1e-6, 2: 310.6e-6, 4: 518.3e-6, 8: 967.1e-6}[queries]
    moved = decode_state_bytes(queries, 96 * 128 * 128 * 4, 0)
    assert moved == states * 96 * 128 * 128 * 4
    assert 64 * moved / measured == pytest.approx(3.9e12, rel=0.05)


def test_decode_is_the_floor_and_a_straight_line_of_sequences():
    assert decode(0) == DECODE[0]
    assert decode(256) - decode(128) == pytest.approx(decode(128) - decode(0))
    assert decode(64, 4) > 2 * decode(64, 1)


def test_a_lone_prompt_is_bound_by_its_chunks_and_many_by_arithmetic():
    assert context(1, 1e6) == pytest.approx(48e-9 * 1e6 + 1e6 * 49152 / 2.73e12, rel=0.02)
    many = context(64, 16384)
    assert many == pytest.approx(64 * 16384 * (CONTEXT[0] + 49152 / 2.73e12), rel=0.05)


def test_a_prefill_is_linear_in_its_tokens():
    steps = [context(16, tokens) for tokens in (16384, 32768, 49152)]
    assert steps[2] - steps[1] == pytest.approx(steps[1] - steps[0], rel=0.01)


def test_arrays_and_symbols_give_what_numbers_give():
    tokens = np.array([64.0, 4096.0])
    assert list(context(16, tokens)) == [context(16, 64.0), context(16, 4096.0)]
    symbol = sympy.Symbol("N", positive=True)
    assert float(decode(symbol).subs(symbol, 32)) == pytest.approx(decode(32))
