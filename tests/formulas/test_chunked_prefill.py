import pytest
import sympy

from capplan.formulas.chunked_prefill import (
    aggregated_load,
    aggregated_max_rate,
    closed_loop_saturation,
    full_step_seconds,
    full_step_share,
    mean_step_seconds,
    prompt_seconds,
    saturated_closed_loop,
)


def test_largest_rate_fills_every_step():
    """At the largest rate the mean step is a full one: E[T] = M / (lambda (E[P] + E[D]))."""
    a, budget, prompt, steps, cost, b = sympy.symbols("a M P D w b", positive=True)
    rate = aggregated_max_rate(a, budget, prompt, steps, cost, b)
    step = mean_step_seconds(a, aggregated_load(rate, cost, b, steps))
    assert sympy.simplify(rate * step * (prompt + steps) - budget) == 0


def test_prompt_time_counts_attention_once_per_pair():
    assert prompt_seconds(1000.0, 1e6, 4e-5, 1e-9) == pytest.approx(0.0405)
    assert full_step_seconds(0.02, 1000.0, 1000.0, 1e6, 4e-5, 1e-9) == pytest.approx(0.02 + 0.0405)


def test_full_share_splits_the_prompt_tokens():
    share = full_step_share(0.5, 0.2)
    assert share + (1 - share) * 0.2 == pytest.approx(0.5)


def test_saturated_loop_is_littles_law():
    users, budget, prompt, output, full = 400.0, 2048.0, 1024.0, 128.0, 0.1
    rate, ttft, tpot = saturated_closed_loop(users, budget, prompt, output, full)
    assert rate * (ttft + (output - 1) * tpot) == pytest.approx(users)
    assert closed_loop_saturation(budget, prompt, output) == pytest.approx(rate * (output - 1) * tpot)
