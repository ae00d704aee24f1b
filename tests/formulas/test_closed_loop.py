"""The laws of a closed loop: what numbers, arrays and symbols make of them, limits, and published waits for a slot."""

import numpy as np
import pytest
import sympy

from capplan.formulas.closed_loop import (
    closed_loop_tpot_seconds,
    closed_loop_ttft_seconds,
    conserved_seconds,
    prompt_wait,
    slot_wait_seconds,
)

LAWS = {
    prompt_wait: ((5.0, 0.48, 0.037), (1.0, 0.2, 0.1), (64.0, 0.0, 0.25)),
    closed_loop_ttft_seconds: ((0.2, 2.0, 0.1), (0.05, 0.0, 0.0)),
    closed_loop_tpot_seconds: ((0.02, 0.1, 5.0, 2.0, 100.0), (0.02, 0.1, 2.0, 3.0, 100.0)),
    slot_wait_seconds: ((64.0, 32.0, 40.0), (16.0, 32.0, 40.0), (32.0, 32.0, 1.0)),
}


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_arrays_and_symbols_give_what_numbers_give(law):
    points = LAWS[law]
    numbers = [law(*point) for point in points]
    assert law(*np.array(points).T) == pytest.approx(numbers, rel=1e-12, abs=1e-15)
    names = sympy.symbols(f"x:{len(points[0])}", positive=True)
    symbolic = law(*names)
    assert [float(symbolic.subs(dict(zip(names, point, strict=True)))) for point in points] == pytest.approx(
        numbers, rel=1e-12, abs=1e-15
    )


def test_a_lone_request_waits_for_nobody():
    assert prompt_wait(1, 0.5, 0.25) == prompt_wait(0.5, 0.5, 0.25) == 0
    assert closed_loop_ttft_seconds(0.2, 0.0, 0.03) == pytest.approx(0.23)
    assert closed_loop_tpot_seconds(0.02, 0.1, 1, 0.0, 100) == 0.02
    assert slot_wait_seconds(1, 1, 40.0) == 0


def test_those_waited_for_and_those_that_join_are_all_the_others():
    base, prompt, decode, running, wait, steps = sympy.symbols("t0 P T b g o", positive=True)
    time = closed_loop_ttft_seconds(prompt, wait, base) + steps * closed_loop_tpot_seconds(
        decode, prompt, running, wait, steps
    )
    above = time.subs(sympy.Max(0.0, running - 1 - wait), running - 1 - wait)
    assert not above.has(sympy.Max)
    assert sympy.simplify(above - base - conserved_seconds(running, prompt, steps, decode)) == 0


def test_published_waits_of_one_instance_ask_for_the_same_slots():
    """W = (c/n - 1) E solved for n: 48.6 and 51.7 slots of 1k/8k, 48.4 and 51.8 of 8k/1k, all of 9,216 tokens.

    70B-FP8 on one H200, TensorRT-LLM, tests/truth/end_to_end_rows.csv: in flight, TTFT [s], TPOT [s], decode steps, and
    the TTFT of 32 in flight, all of which have a slot [s].
    """
    found = []
    for concurrency, ttft, tpot, steps, in_slot in (
        (64, 79.5392, 0.03048513, 8191, 0.4489),
        (128, 368.9672, 0.03042063, 8191, 0.4489),
        (64, 29.6766, 0.07923756, 1023, 2.6763),
        (128, 127.8100, 0.08047973, 1023, 2.6763),
    ):
        request, wait = in_slot + steps * tpot, ttft - in_slot
        slots = concurrency / (1 + wait / request)
        assert slot_wait_seconds(concurrency, slots, request) == pytest.approx(wait, rel=1e-12)
        found.append(slots)
    assert found == pytest.approx([48.6, 51.7, 48.4, 51.8], abs=0.06)
    assert max(found) / min(found) < 1.08
