import pytest
import sympy

from capplan.formulas.cost import (
    answer_cost_per_million_tokens,
    cost_per_million_tokens,
    energy_per_token_joules,
    pool_cost_per_hour,
    request_price,
    run_cost_per_million_tokens,
)


def test_cost_of_a_measured_run():
    """github.com/allenai/olmocr, issue 249: 2,190 tokens in 32.82 s at $0.001097/s cost $0.036, $16.4 a million."""
    seconds, price = 32.82, 0.001097
    assert seconds * price == pytest.approx(0.036, abs=5e-4)
    assert run_cost_per_million_tokens(2190, seconds, price) == pytest.approx(16.4, abs=0.05)


def test_hourly_and_per_run_prices_agree():
    price, tokens, seconds = sympy.symbols("p n t", positive=True)
    per_hour = cost_per_million_tokens(price * 3600, tokens / seconds)
    assert sympy.simplify(per_hour - run_cost_per_million_tokens(tokens, seconds, price)) == 0


def test_reasoning_makes_answers_dearer_than_output():
    assert pool_cost_per_hour(64, 2.0) == 128.0
    output = cost_per_million_tokens(128.0, 10.0 * 1532)
    answer = answer_cost_per_million_tokens(128.0, 10.0, 1532 * 0.26)
    assert answer == pytest.approx(output / 0.26)


def test_cached_tokens_are_part_of_the_prompt():
    whole = request_price(10_000, 0, 1_000, 1.0, 0.1, 2.0)
    assert request_price(10_000, 10_000, 1_000, 1.0, 1.0, 2.0) == pytest.approx(whole)
    assert request_price(10_000, 8_000, 1_000, 1.0, 0.1, 2.0) == pytest.approx(0.0048)


def test_energy():
    assert energy_per_token_joules(8, 1000.0, 4000.0) == 2.0
