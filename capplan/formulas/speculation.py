"""Tokens a verify step of speculative decoding or multi-token prediction yields."""

from __future__ import annotations

from collections.abc import Sequence

from capplan.formulas._ops import Value


def tokens_per_verify_step(acceptance: Sequence[Value]) -> Value:
    r"""Mean tokens of a verify step: the drafts accepted in a row, and one token the model itself draws.

    .. math:: 1 + \sum_{j=1}^{k} \prod_{i \le j} \alpha_i

    Parameters
    ----------
    acceptance : probability alpha that a draft token is accepted given that all before it were, by position [1]

    Returns
    -------
    tokens_per_step : between 1 and k + 1; 1 without drafts [tokens]

    Examples
    --------
    >>> tokens_per_verify_step([0.9]), round(tokens_per_verify_step([0.8, 0.8]), 2)
    (1.9, 2.44)

    References
    ----------
    Leviathan, Kalman, Matias, arXiv:2211.17192, equation 1 for equal alpha.
    """
    tokens, run = 1.0, 1.0
    for share in acceptance:
        run = run * share
        tokens = tokens + run
    return tokens
