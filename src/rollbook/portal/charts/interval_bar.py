"""Interval bar: a difference and its interval on an axis with zero.

A solid bar with a disc was shown to be better or worse; a thin one with a ring was not. More loss than the gate allows
is hatched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from markupsafe import Markup

from rollbook import svg
from rollbook.contracts.decision import Interval
from rollbook.portal.formats import signed
from rollbook.report.axis import Axis
from rollbook.report.words import Shown

_MIDDLE, _FLOOR = 14.0, 26.0
_LABELLED, _PLAIN = 44.0, 28.0
_CLASSES: dict[Shown, str] = {"better": "up", "worse": "down", "not": ""}
_CLOSEST, _CLOSEST_ZERO = 17.0, 9.5
"""Percent between two labels under a bar, and between a label and that of zero."""


def interval_bar(
    estimate: float | None,
    interval: Interval | None,
    *,
    shown: Shown = "not",
    margin: float | None = None,
    within: Interval | None = None,
    write: Callable[[float], str] = signed,
    level: str = "",
    labels: bool = True,
    missing: str = "no interval",
) -> Markup:
    """`margin` is where the loss that the gate allows ends: below zero where less is worse, above it where more is.
    `within` is the axis where several bars share one. `level` names the interval, such as "90 %". `missing` stands in
    the place of an interval that there is not."""
    bounds = interval if interval is not None and all(map(math.isfinite, interval)) else None
    known = [each for each in (estimate, *(bounds or ())) if each is not None]
    known = [each for each in known if math.isfinite(each)]
    if within is None:
        axis = Axis.around([*known, *([] if margin is None else [margin * 1.3])], 2.0, 98.0)
    else:
        axis = Axis(*within)
    parts = [*_ground(axis, margin)]
    if bounds is None or estimate is None:
        parts.append(_without(axis, known, missing, labels))
        title = missing
    else:
        parts.append(_bar(axis, estimate, bounds, shown))
        parts += _labels(axis, bounds, write) if labels else []
        title = (
            f"{level} interval {write(bounds[0])} to {write(bounds[1])}, estimate {write(estimate)}"
        )
    return Markup(svg.wide_drawing(_LABELLED if labels else _PLAIN, parts, title.strip(), "c"))


def shared_axis(bars: Sequence[tuple[float | None, Interval | None]]) -> Interval:
    """An axis on which all of these bars can be compared."""
    ends = [end for estimate, interval in bars for end in (estimate, *(interval or ()))]
    axis = Axis.around(each for each in ends if each is not None and math.isfinite(each))
    return axis.low, axis.high


def _ground(axis: Axis, margin: float | None) -> list[str]:
    parts = []
    if margin:
        edge = axis.percent(margin)
        left, width = (0.0, edge) if margin < 0 else (edge, 100.0 - edge)
        parts.append(svg.rect(f"{left:.2f}%", 2, f"{width:.2f}%", _FLOOR - 2, "margin"))
        parts.append(svg.line(f"{edge:.2f}%", 2, f"{edge:.2f}%", _FLOOR, "axis"))
    parts.append(svg.line("0", _FLOOR, "100%", _FLOOR, "axis"))
    parts.append(svg.line(axis.at(0), 0, axis.at(0), _FLOOR + 4, "zero"))
    return parts


def _bar(axis: Axis, estimate: float, bounds: Interval, shown: Shown) -> str:
    low, high = (axis.at(bound) for bound in bounds)
    is_shown = shown != "not"
    return (
        f'<g class="{_CLASSES[shown]}">'
        + svg.line(low, _MIDDLE, high, _MIDDLE, "ci" if is_shown else "cap")
        + svg.line(low, _MIDDLE - 5, low, _MIDDLE + 5, "cap")
        + svg.line(high, _MIDDLE - 5, high, _MIDDLE + 5, "cap")
        + svg.circle(
            axis.at(estimate), _MIDDLE, 5 if is_shown else 3.5, "pt" if is_shown else "base"
        )
        + "</g>"
    )


def _labels(axis: Axis, bounds: Interval, write: Callable[[float], str]) -> list[str]:
    """Both bounds and zero, as far as there is room: of two bounds that are close, the one further from zero."""
    written: list[str] = []
    used: list[float] = []
    for bound in sorted(bounds, key=abs, reverse=True):
        place = axis.percent(bound)
        if all(abs(place - other) >= _CLOSEST for other in used):
            anchor = "start" if place < 8 else "end" if place > 92 else "middle"
            written.append(svg.text(axis.at(bound), 42, write(bound), anchor=anchor))
            used.append(place + {"start": 6, "end": -6}.get(anchor, 0))
    if all(abs(axis.percent(0) - other) >= _CLOSEST_ZERO for other in used):
        written.append(svg.text(axis.at(0), 42, "0", anchor="middle"))
    return written


def _without(axis: Axis, known: list[float], missing: str, labels: bool) -> str:
    dot = svg.circle(axis.at(known[0]), _MIDDLE, 3.5, "base") if known else ""
    zero_at = axis.percent(0)
    dot_at = axis.percent(known[0]) if known else zero_at
    # on the side that has more room
    if max(dot_at, zero_at) < 60:
        place, anchor = max(dot_at, zero_at) + 4, "start"
    else:
        place, anchor = dot_at - 4, "end"
    zero = svg.text(axis.at(0), 42, "0", anchor="middle") if labels else ""
    return dot + svg.text(f"{place:.2f}%", 17, missing, anchor=anchor) + zero
