"""The chain of formulas behind an answer, made readable. The only room that may import sympy."""
