"""Belief chart: what is believed about the success rate of both policies after the run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollbook import svg
from rollbook.report.axis import Axis, area, curve

Floats = NDArray[np.float64]

_POINTS = 201
_HEIGHT, _TOP, _BOTTOM = 170.0, 22.0, 132.0
_PRIOR = 0.5
"""Jeffreys: half a success and half a failure."""


def belief_chart(baseline: tuple[int, int], candidate: tuple[int, int]) -> str:
    """Posterior of both success rates, each from its successes and its pairs. It decides nothing."""
    if not (baseline[1] and candidate[1]):
        return ""
    grid = (np.arange(_POINTS) + 0.5) / _POINTS
    densities = [_density(grid, *each) for each in (baseline, candidate)]
    highest = max(float(each.max()) for each in densities)
    axis = Axis(0.0, 1.0, 2.0, 98.0)
    xs = [axis.percent(each) for each in grid.tolist()]
    floor = [_BOTTOM] * _POINTS
    parts = [
        svg.line(axis.at(mark), _TOP, axis.at(mark), _BOTTOM, "grid")
        + svg.text(axis.at(mark), _BOTTOM + 16, f"{100 * mark:.0f} %", "tick", "middle")
        for mark in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    curves = [(_BOTTOM - (_BOTTOM - _TOP) * each / highest).tolist() for each in densities]
    parts += [
        area(xs, curves[1], floor, _HEIGHT, "band"),
        curve(xs, curves[1], _HEIGHT, "curve"),
        curve(xs, curves[0], _HEIGHT, "hollow"),
    ]
    rates = [f"{hits:,} of {pairs:,}" for hits, pairs in (baseline, candidate)]
    parts.append(svg.text("50%", _HEIGHT - 4, "success rate", "tick", "middle"))
    title = f"Belief about the success rate: baseline {rates[0]}, candidate {rates[1]} pairs"
    return svg.wide_drawing(_HEIGHT, parts, title)


def _density(grid: Floats, hits: int, pairs: int) -> Floats:
    """Of the Beta posterior, scaled so that the areas of two curves are equal."""
    log = (hits + _PRIOR - 1) * np.log(grid) + (pairs - hits + _PRIOR - 1) * np.log1p(-grid)
    density = np.exp(log - log.max())
    return np.asarray(density / density.sum())
