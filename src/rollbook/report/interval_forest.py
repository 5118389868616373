"""Interval forest: the difference of an outcome over all pairs and in each slice, with its interval, on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollbook import svg
from rollbook.contracts.decision import Interval
from rollbook.contracts.outcomes import OUTCOMES, Outcome
from rollbook.report.axis import Axis
from rollbook.report.words import Shown, count

_ROW = 46.0
_WORDS = 20.0
"""The upper part of a row, in which its name and its numbers stand: no line runs through them."""
_BAR = 24.0
_FOOT = 24.0


@dataclass(frozen=True)
class ForestRow:
    name: str
    pairs: int
    delta: float
    interval: Interval | None
    shown: Shown = "not"


def interval_forest(metric: Outcome, rows: Sequence[ForestRow], margin: float | None = None) -> str:
    """A solid bar was shown to be better or worse; a thin one was not. `margin` is the loss that is accepted."""
    kind = OUTCOMES[metric]
    if not rows:
        return ""
    axis, limit = _axis(metric, rows, margin)
    height = len(rows) * _ROW
    bands = [(number * _ROW + _WORDS, (number + 1) * _ROW) for number in range(len(rows))]
    parts = [_grid(metric, axis, mark, bands) for mark in svg.ticks(axis.low, axis.high, 4)]
    if limit is not None:
        parts.append(_upright(axis.at(limit), bands, "margin"))
    parts += [_row(metric, row, axis, number * _ROW) for number, row in enumerate(rows)]
    title = f"Difference in {kind.label} with its interval, {count(len(rows), 'row')}"
    return svg.wide_drawing(height + _FOOT, parts, title)


def _grid(metric: Outcome, axis: Axis, mark: float, bands: Sequence[tuple[float, float]]) -> str:
    at, kind = axis.at(mark), OUTCOMES[metric]
    words = kind.change_text(mark).removesuffix(kind.unit)
    anchor = "start" if axis.percent(mark) < 5 else "end" if axis.percent(mark) > 95 else "middle"
    return _upright(at, bands, "zero" if mark == 0 else "grid") + svg.text(
        at, bands[-1][1] + 16, words, "tick", anchor
    )


def _upright(at: str, bands: Sequence[tuple[float, float]], kind: str) -> str:
    return "".join(svg.line(at, top, at, bottom, kind) for top, bottom in bands)


def interval_bar(metric: Outcome, row: ForestRow, margin: float | None = None) -> str:
    """One interval without words, for a place where the numbers stand beside it."""
    axis, limit = _axis(metric, [row], margin)
    bands = [(0.0, _BAR)]
    parts = [_grid(metric, axis, mark, bands) for mark in svg.ticks(axis.low, axis.high, 3)]
    if limit is not None:
        parts.append(_upright(axis.at(limit), bands, "margin"))
    kind = OUTCOMES[metric]
    title = f"Difference in {kind.label} with its interval"
    return svg.wide_drawing(_BAR + _FOOT, [*parts, _bar(metric, row, axis, _BAR / 2)], title)


def _axis(
    metric: Outcome, rows: Sequence[ForestRow], margin: float | None
) -> tuple[Axis, float | None]:
    """The axis of all rows, and where the margin is on it."""
    limit = margin if margin is None or not OUTCOMES[metric].higher_is_better else -margin
    ends = [end for row in rows for end in (row.delta, *(row.interval or ()))]
    return Axis.around([*ends, *([] if limit is None else [limit])], 1.0, 99.0), limit


def _row(metric: Outcome, row: ForestRow, axis: Axis, top: float) -> str:
    delta = OUTCOMES[metric].change_text(row.delta)
    return "".join(
        [
            svg.text("0", top + 15, row.name, "label halo"),
            svg.text(
                "100%", top + 15, f"{delta} · {count(row.pairs, 'pair')}", "value halo", "end"
            ),
            _bar(metric, row, axis, top + 32),
        ]
    )


def _bar(metric: Outcome, row: ForestRow, axis: Axis, y: float) -> str:
    if row.interval is None:
        return svg.circle(axis.at(row.delta), y, 4, "ring not")
    kind = OUTCOMES[metric]
    low, high = (axis.at(bound) for bound in row.interval)
    bounds = " to ".join(kind.change_text(bound) for bound in row.interval)
    return svg.with_tooltip(
        f"{row.name or kind.label}: {kind.change_text(row.delta)}, {bounds}",
        svg.line(low, y, high, y, f"bar {row.shown}"),
        svg.line(low, y - 5, low, y + 5, f"bar {row.shown}"),
        svg.line(high, y - 5, high, y + 5, f"bar {row.shown}"),
        svg.circle(axis.at(row.delta), y, 4.5, f"ring {row.shown}"),
    )
