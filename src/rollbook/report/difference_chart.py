"""Difference chart: the paired difference of every pair, cluster by cluster, the worst cluster first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollbook import svg
from rollbook.contracts.outcomes import OUTCOMES
from rollbook.report.axis import Axis, grid_line, range_around
from rollbook.report.pair_differences import PairDifferences
from rollbook.report.words import count

MOST_DRAWN = 600
"""Pairs that are drawn. Of more, an even selection that has the largest losses and gains."""
_COLOURS = 6
_HEIGHT = 240.0
_TOP, _BOTTOM = 24.0, 214.0
_LEFT, _RIGHT = 9.0, 99.0


def difference_chart(pairs: PairDifferences) -> str:
    """Each dot is a pair. Dots of one cluster have one colour, and a bar shows the mean of the cluster."""
    kind = OUTCOMES[pairs.metric]
    if not len(pairs):
        return ""
    order, starts = _ordered(pairs)
    shown = _drawn(len(order))
    deltas = pairs.deltas[order]
    low, high = range_around([float(deltas.min()), float(deltas.max())])
    x = Axis(-0.5, len(order) - 0.5, _LEFT, _RIGHT)

    def y_of(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (value - low) / (high - low)

    parts = [
        grid_line(y_of(mark), kind.change_text(mark), "zero" if mark == 0 else "grid")
        for mark in ((-1.0, 0.0, 1.0) if kind.type is bool else svg.ticks(low, high, 4))
        if low <= mark <= high
    ]
    drawn = set(shown.tolist())
    for number, (first, after) in enumerate(zip(starts, [*starts[1:], len(order)], strict=True)):
        colour = f"s{number % _COLOURS + 1}" if pairs.clusters else "s1"
        if pairs.clusters:
            middle = y_of(float(deltas[first:after].mean()))
            name = pairs.clusters[order[first]]
            words = (
                f"{pairs.by} {name}: mean {kind.change_text(float(deltas[first:after].mean()))} "
                f"in {count(after - first, 'pair')}"
            )
            bar = svg.line(x.at(first - 0.4), middle, x.at(after - 0.6), middle, f"mean {colour}")
            parts.append(svg.with_tooltip(words, bar))
        for place in range(first, after):
            if place in drawn:
                parts.append(
                    _dot(pairs, int(order[place]), x.at(place), y_of(float(deltas[place])), colour)
                )
    unit = pairs.by or "pair"
    parts.append(svg.text(x.at(0), _HEIGHT - 6, f"worst {unit}", "tick"))
    parts.append(svg.text(x.at(len(order) - 1), _HEIGHT - 6, f"best {unit}", "tick", "end"))
    return svg.wide_drawing(_HEIGHT, parts, _title(pairs, len(shown)))


def _dot(pairs: PairDifferences, row: int, x: str, y: float, colour: str) -> str:
    kind = OUTCOMES[pairs.metric]
    inside = f", {pairs.by} {pairs.clusters[row]}" if pairs.clusters else ""
    before, after = (
        kind.value_text(float(side[row])) for side in (pairs.baseline, pairs.candidate)
    )
    words = f"{pairs.ids[row]}{inside}: {before} → {after}"
    return svg.with_tooltip(words, svg.circle(x, y, 3, f"dot {colour}"))


def _ordered(pairs: PairDifferences) -> tuple[NDArray[np.intp], list[int]]:
    """Rows, the worst cluster first and the worst pair of each first; and where each cluster begins."""
    gains = pairs.gains
    if pairs.clusters is None:
        return np.argsort(gains, kind="stable"), [0]
    _, cluster, sizes = np.unique(np.array(pairs.clusters), return_inverse=True, return_counts=True)
    means = np.bincount(cluster, gains) / sizes
    order = np.lexsort((gains, cluster, means[cluster]))
    changes = np.flatnonzero(np.diff(cluster[order])) + 1
    return order, [0, *changes.tolist()]


def _drawn(pairs: int) -> NDArray[np.intp]:
    if pairs <= MOST_DRAWN:
        return np.arange(pairs)
    return np.unique(np.linspace(0, pairs - 1, MOST_DRAWN).round().astype(np.intp))


def _title(pairs: PairDifferences, drawn: int) -> str:
    label = OUTCOMES[pairs.metric].label
    grouped = f", by {pairs.by}" if pairs.by else ""
    thinned = "" if drawn == len(pairs) else f"; {drawn:,} of {len(pairs):,} pairs are drawn"
    return f"Difference in {label} of {count(len(pairs), 'pair')}{grouped}, worst first{thinned}"
