"""Money and energy per token."""

from __future__ import annotations

from capplan.formulas._ops import Value

SECONDS_PER_HOUR = 3600.0
TOKENS_PER_MILLION = 1e6


def cost_per_million_tokens(price_per_hour: Value, tokens_per_second: Value) -> Value:
    r"""Price of a million tokens of whatever the rate counts: output, answer or input tokens.

    .. math:: \frac{\$/h}{3600\,X}\,10^6

    Parameters
    ----------
    price_per_hour : of all GPUs that make these tokens [$/h]
    tokens_per_second : X [tokens/s]

    Returns
    -------
    cost : [$/10^6 tokens]

    Examples
    --------
    >>> round(cost_per_million_tokens(16.0, 10_000.0), 4)
    0.4444

    References
    ----------
    Arithmetic; github.com/kubernetes-sigs/inference-perf, issue 139.
    """
    return price_per_hour / (tokens_per_second * SECONDS_PER_HOUR) * TOKENS_PER_MILLION


def run_cost_per_million_tokens(tokens: Value, seconds: Value, price_per_second: Value) -> Value:
    r"""Price of a million tokens from one measured run.

    .. math:: \frac{t\cdot\$/s}{n}\,10^6

    Parameters
    ----------
    tokens : tokens of the run n [tokens]
    seconds : its duration t [s]
    price_per_second : [$/s]

    Returns
    -------
    cost : [$/10^6 tokens]

    Examples
    --------
    >>> round(run_cost_per_million_tokens(2190, 32.82, 0.001097), 1)
    16.4

    References
    ----------
    Arithmetic; the run: github.com/allenai/olmocr, issue 249.
    """
    return seconds * price_per_second / tokens * TOKENS_PER_MILLION


def pool_cost_per_hour(gpus: Value, price_per_gpu_hour: Value) -> Value:
    """Price of a pool: GPUs times price per GPU-hour.

    Parameters
    ----------
    gpus : [-]
    price_per_gpu_hour : [$/h]

    Returns
    -------
    price : [$/h]

    References
    ----------
    Arithmetic.
    """
    return gpus * price_per_gpu_hour


def answer_cost_per_million_tokens(price_per_hour: Value, request_rate: Value, answer_tokens: Value) -> Value:
    r"""Price of a million answer tokens: reasoning tokens are paid for but not read.

    .. math:: \frac{\$/h}{3600\,\lambda\,E[A]}\,10^6

    Parameters
    ----------
    price_per_hour : of the whole deployment [$/h]
    request_rate : requests served lambda [1/s]
    answer_tokens : mean tokens of an answer without its reasoning E[A] [tokens]

    Returns
    -------
    cost : [$/10^6 answer tokens]

    Examples
    --------
    >>> round(answer_cost_per_million_tokens(36.0, 10.0, 400.0), 6)
    2.5

    References
    ----------
    Arithmetic.
    """
    return cost_per_million_tokens(price_per_hour, request_rate * answer_tokens)


def request_price(
    prompt_tokens: Value, cached_tokens: Value, output_tokens: Value, input_price: Value, cached_price: Value,
    output_price: Value,
) -> Value:  # fmt: skip
    r"""What an API charges for a request; cached tokens are part of the prompt, not on top of it.

    .. math:: \frac{(P - h) p_{in} + h\,p_{cached} + L\,p_{out}}{10^6}

    Parameters
    ----------
    prompt_tokens, cached_tokens, output_tokens : P, those of it found in a cache h, L [tokens]
    input_price, cached_price, output_price : [$/10^6 tokens]

    Returns
    -------
    price : [$]

    Examples
    --------
    >>> round(request_price(10_000, 8_000, 1_000, 1.0, 0.1, 2.0), 6)
    0.0048

    References
    ----------
    Usage fields of the OpenAI API: ``prompt_tokens`` includes ``cached_tokens`` (platform.openai.com).
    """
    fresh = (prompt_tokens - cached_tokens) * input_price
    return (fresh + cached_tokens * cached_price + output_tokens * output_price) / TOKENS_PER_MILLION


def energy_per_token_joules(gpus: Value, watts_per_gpu: Value, tokens_per_second: Value) -> Value:
    r"""Energy of one token.

    .. math:: n\,W/X

    Parameters
    ----------
    gpus : [-]
    watts_per_gpu : power drawn by one GPU and its share of the machine [W]
    tokens_per_second : X [tokens/s]

    Returns
    -------
    energy : [J/token]

    Examples
    --------
    >>> energy_per_token_joules(8, 1000.0, 4000.0)
    2.0

    References
    ----------
    Arithmetic.
    """
    return gpus * watts_per_gpu / tokens_per_second
