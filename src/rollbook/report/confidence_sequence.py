"""Confidence sequence: the range of the difference that is not ruled out yet, pair after pair."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollbook import svg
from rollbook.contracts.outcomes import OUTCOMES, Outcome
from rollbook.report.axis import Axis, area, curve, grid_line, range_around
from rollbook.report.words import count, percent

Floats = NDArray[np.float64]

MOST_POINTS = 200
_HEIGHT, _TOP, _BOTTOM = 250.0, 20.0, 212.0
_LEFT, _RIGHT = 9.0, 99.0


@dataclass(frozen=True)
class BoundsOverPairs:
    """After so many pairs: the mean difference and both bounds, in the unit of the outcome."""

    metric: Outcome
    pairs: Floats
    mean: Floats
    low: Floats
    high: Floats
    level: float
    """How often all ranges together contain the true difference."""


def confidence_sequence_chart(bounds: BoundsOverPairs) -> str:
    """The range may be read after any pair: it is wider than the interval of the decision, which is read once."""
    if not len(bounds.pairs):
        return ""
    kind = OUTCOMES[bounds.metric]
    chosen = np.unique(
        np.linspace(0, len(bounds.pairs) - 1, min(MOST_POINTS, len(bounds.pairs))).astype(np.intp)
    )
    pairs, mean, low, high = (
        each[chosen].tolist() for each in (bounds.pairs, bounds.mean, bounds.low, bounds.high)
    )
    # the first pairs say nothing and would take all the room
    settled = max(1, len(pairs) // 10)
    bottom, top = range_around([*low[settled - 1 :], *high[settled - 1 :], *mean[settled - 1 :]])
    x = Axis(0, float(bounds.pairs[-1]), _LEFT, _RIGHT)
    xs = [x.percent(each) for each in pairs]

    def y_of(value: float) -> float:
        inside = min(max(value, bottom), top)
        return _BOTTOM - (_BOTTOM - _TOP) * (inside - bottom) / (top - bottom)

    parts = [
        grid_line(y_of(mark), kind.change_text(mark), "zero" if mark == 0 else "grid")
        for mark in svg.ticks(bottom, top, 4)
    ]
    lows, highs, means = ([y_of(each) for each in side] for side in (low, high, mean))
    parts += [
        area(xs, highs, lows, _HEIGHT, "band"),
        curve(xs, lows, _HEIGHT, "bound"),
        curve(xs, highs, _HEIGHT, "bound"),
        curve(xs, means, _HEIGHT, "curve"),
    ]
    parts += [
        svg.text(x.at(mark), _BOTTOM + 16, f"{mark:,.0f}", "tick", "middle")
        for mark in svg.ticks(0, float(bounds.pairs[-1]), 5)
        if mark
    ]
    parts.append(svg.text("50%", _HEIGHT - 4, "pairs, in the order of their ids", "tick", "middle"))
    last = f"{kind.change_text(low[-1])} to {kind.change_text(high[-1])}"
    title = (
        f"Difference in {kind.label} after each pair, {percent(bounds.level)} confidence sequence: "
        f"after {count(int(bounds.pairs[-1]), 'pair')} {last}"
    )
    return svg.wide_drawing(_HEIGHT, parts, title)
