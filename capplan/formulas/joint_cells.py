"""A joint sample of prompts and outputs in few cells that keep its moments."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def importance_groups(values: FloatArray, weights: FloatArray, n: int) -> IntArray:
    """Group (0..n-1) of each value: equal shares of mass, of the square and of the fourth power together.

    So the tail, which rules the high moments, is cut finely. Equal values share a group.
    """
    distinct, index = np.unique(values, return_inverse=True)
    w = np.bincount(index, weights)
    importance: Any = sum(np.cumsum(w * distinct**k) / max(float((w * distinct**k).sum()), 1e-300) for k in (0, 2, 4))
    group: IntArray = np.minimum((importance / 3 * n).astype(np.int64), n - 1)[index]
    return group


def two_point_laws(group: IntArray, values: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """For each group of a weighted sample, two values and masses with its mass and first three moments.

    Parameters
    ----------
    group : number of the group of each value, 0..G-1, none of them empty
    values, weights : the sample

    Returns
    -------
    points, masses : two columns, one row a group
    """
    mass = np.bincount(group, weights)
    mean = np.bincount(group, weights * values) / mass
    rest = values - mean[group]
    variance, third = (np.bincount(group, weights * rest**k) / mass for k in (2, 3))
    spread = variance > 1e-12 * mean**2
    half = np.divide(third, 2 * variance, out=np.zeros_like(mean), where=spread)
    root = np.sqrt(half**2 + np.where(spread, variance, 0.0))
    upper = np.divide(root - half, 2 * root, out=np.full_like(mean, 0.5), where=spread)
    points = np.column_stack([mean + half - root, mean + half + root])
    points = np.clip(points, values.min(), values.max())  # rounding alone leads beyond
    return points, np.column_stack([mass * (1 - upper), mass * upper])


def compact_sample(values: FloatArray, weights: FloatArray, groups: int) -> tuple[FloatArray, FloatArray]:
    """At most ``2 * groups`` weighted values with the first three moments of a sample, the fourth nearly."""
    points, masses = two_point_laws(_numbered(importance_groups(values, weights, groups)), values, weights)
    return points.ravel(), masses.ravel()


def compact_joint(
    prompts: FloatArray, outputs: FloatArray, weights: FloatArray, groups: int, inside: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """At most ``4 * groups * inside`` weighted pairs in the place of a joint sample.

    Outputs are cut into ``groups``, the prompts of each into ``inside`` cells. A group of outputs and a cell of
    prompts are two values each with the mass and first three moments of their members; inside a group the two are
    taken as independent. So E[L..L^3] and E[P..P^3] are exact, E[L^4] and the cross moments nearly.

    Returns
    -------
    prompts, outputs [token], weights [1, the sum of those given]
    """
    group = _numbered(importance_groups(outputs, weights, groups))
    cell = _cells_inside(group, prompts, weights, inside)
    output_points, output_masses = two_point_laws(group, outputs, weights)
    prompt_points, prompt_masses = two_point_laws(cell, prompts, weights)
    home = np.empty(len(prompt_points), dtype=np.int64)
    home[cell] = group
    share = output_masses / output_masses.sum(axis=1, keepdims=True)
    p = np.repeat(prompt_points[:, :, None], 2, axis=2)
    d = np.repeat(output_points[home][:, None, :], 2, axis=1)
    w = prompt_masses[:, :, None] * share[home][:, None, :]
    return _merged(p.ravel(), d.ravel(), w.ravel())


def _cells_inside(group: IntArray, prompts: FloatArray, weights: FloatArray, inside: int) -> IntArray:
    cell = np.empty(len(prompts), dtype=np.int64)
    order = np.argsort(group, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        cell[members] = importance_groups(prompts[members], weights[members], inside)
    return _numbered(group * inside + cell)


def _numbered(labels: IntArray) -> IntArray:
    """Labels renumbered 0..n-1, none left out."""
    index: IntArray = np.unique(labels, return_inverse=True)[1]
    return index


def _merged(p: FloatArray, d: FloatArray, w: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Pairs that occur twice (a group of one value) as one; those without mass left out."""
    pairs, index = np.unique(np.column_stack([p, d]), axis=0, return_inverse=True)
    mass: FloatArray = np.bincount(index.ravel(), w).astype(float)
    return pairs[mass > 0, 0], pairs[mass > 0, 1], mass[mass > 0]
