"""What a prompt adds to the decode steps it joins: a line and a square in its tokens."""

from __future__ import annotations

import numpy as np

from capplan.planning.prefill_pool import token_budget
from capplan.planning.problem import Problem
from capplan.serving.layout import Layout
from capplan.serving.prefill import prefill


def prompt_line(problem: Problem, layout: Layout) -> tuple[float, float]:
    """(d, g): seconds a prompt token adds to a step, d, and its attention, g/2 a token squared.

    From three passes of half, one and two token budgets: a chunk shares the weight reads of the decode step it joins,
    so the constant of the parabola is not paid again. One rank prefills while the others of its instance wait.
    """
    return problem.kept("prompt line", layout, lambda: _prompt_line(problem, layout))


def _prompt_line(problem: Problem, layout: Layout) -> tuple[float, float]:
    budget = token_budget(problem)
    tokens = budget * np.array([0.5, 1.0, 2.0])
    passed = prefill(problem.model, problem.hardware, layout, tokens, **problem.timing()).seconds
    seconds = np.broadcast_to(np.asarray(passed, float), tokens.shape)
    slopes = np.diff(seconds) / np.diff(tokens)
    square = max(0.0, float(slopes[1] - slopes[0]) / (0.75 * budget))
    return max(0.0, float(slopes[0]) - square * 0.75 * budget), square
