"""The charts of an audit page as SVG text. The style sheet of the page sets their colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rollbook.svg import line, rect, scaled_drawing, text, ticks

Floats = NDArray[np.floating]
Place = Callable[[float], float]
"""From a value to its coordinate in the drawing."""

_WIDTH = 950
_LABEL = 200
_ROW = 30
SERIES = 6
"""Number of series colours in the style sheet: `.series0`, `.series1`, …"""


def number(value: float, digits: int = 3) -> str:
    """A number for people: whole numbers with separators, others with few digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}g}"


# ----------------------------------------------------------------------------------------- bars


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    value: int
    note: str
    outer: int | None = None
    """Length of a pale bar behind: a larger count that includes this one."""


def bar_chart(bars: Sequence[Bar], title: str) -> str:
    """Horizontal bars, each with its number."""
    most = max((max(each.value, each.outer or 0) for each in bars), default=0) or 1
    room = _WIDTH - _LABEL - 150
    parts = []
    for place, each in enumerate(bars):
        top = place * _ROW
        long, wide = (room * (value or 0) / most for value in (each.value, each.outer))
        parts += [
            text(_LABEL - 10, top + 19, each.label, "label", "end"),
            _bar(_LABEL, top + 5, wide, _ROW - 10, "pale") if each.outer else "",
            _bar(_LABEL, top + 5, long, _ROW - 10, "bar"),
            text(_LABEL + max(long, wide) + 8, top + 19, number(each.value), "value"),
            text(_WIDTH, top + 19, each.note, "muted", "end"),
        ]
    return scaled_drawing(_WIDTH, max(len(bars), 1) * _ROW, parts, title)


def _bar(x: float, y: float, width: float, height: float, kind: str) -> str:
    """At least one unit wide, so that a small count can be seen."""
    return rect(x, y, max(width, 1.0), height, kind, corner=2)


# -------------------------------------------------------------------------------------- violins


def violin_chart(groups: Sequence[tuple[str, Floats]], title: str, axis: str) -> str:
    """The values of each group: density as an outline, quartiles as a box, the median as a line."""
    filled = [values for _, values in groups if len(values)]
    if not filled:
        return ""
    # a few outliers must not take the room of all other values
    low = min(float(np.quantile(values, 0.005)) for values in filled)
    high = max(float(np.quantile(values, 0.995)) for values in filled)
    high = high if high > low else low + 1
    row, right = 46.0, _WIDTH - 80.0
    height = len(groups) * row

    def place(value: float) -> float:
        inside = min(max(value, low), high)
        return _LABEL + (right - _LABEL) * (inside - low) / (high - low)

    parts = [_axis(ticks(low, high), place, height, axis, right)]
    for index, (label, values) in enumerate(groups):
        middle = (index + 0.5) * row
        parts += [
            text(_LABEL - 10, middle + 4, label, "label", "end"),
            text(_WIDTH, middle + 4, f"n {len(values):,}", "muted", "end"),
        ]
        if len(values):
            parts.append(_violin(values, low, high, middle, row * 0.42, place))
    return scaled_drawing(_WIDTH, height + 46, parts, title)


def _axis(marks: Sequence[float], place: Place, height: float, name: str, right: float) -> str:
    lines = [
        line(place(mark), 0, place(mark), height, "zero" if mark == 0 else "grid")
        + text(place(mark), height + 16, f"{mark:.3g}", "muted", "middle")
        for mark in marks
    ]
    return "".join(lines) + text((_LABEL + right) / 2, height + 38, name, "muted", "middle")


def _violin(
    values: Floats, low: float, high: float, middle: float, half: float, place: Place
) -> str:
    counts, edges = np.histogram(values, bins=48, range=(low, high))
    smooth = np.convolve(counts, [1, 2, 3, 2, 1], "same") / max(float(counts.max()), 1.0) / 9
    smooth = smooth / max(float(smooth.max()), 1e-9) * half
    centres = [place(each) for each in (edges[:-1] + edges[1:]) / 2]
    upper = [f"{x:.1f},{middle - y:.1f}" for x, y in zip(centres, smooth, strict=True)]
    lower = [f"{x:.1f},{middle + y:.1f}" for x, y in zip(centres, smooth, strict=True)]
    q05, q25, q50, q75, q95 = (
        float(each) for each in np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95])
    )
    tooltip = (
        f"median {q50:.3g}, half of them {q25:.3g} to {q75:.3g}, nine of ten {q05:.3g} to {q95:.3g}"
    )
    return "".join(
        [
            f"<g><title>{tooltip}</title>",
            f'<polygon points="{" ".join([*upper, *reversed(lower)])}" class="violin"/>',
            line(place(q05), middle, place(q95), middle, "whisker"),
            _bar(place(q25), middle - 6, place(q75) - place(q25), 12, "box"),
            line(place(q50), middle - 9, place(q50), middle + 9, "median"),
            "</g>",
        ]
    )


# ---------------------------------------------------------------------------------------- lines


@dataclass(frozen=True, slots=True)
class Series:
    """A mean per step, with the range of the middle half of the rollouts."""

    name: str
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def line_chart(series: Sequence[Series], title: str, axis: str) -> str:
    """Means over steps, with the middle half of the rollouts as a band."""
    drawn = [each for each in series if len(each.mean)]
    if not drawn:
        return ""
    steps = max(len(each.mean) for each in drawn)
    low = min(0.0, *(min(each.low) for each in drawn))
    high = max(*(max(each.high) for each in drawn), low + 1e-6)
    left, right, bottom = 60.0, _WIDTH - 220.0, 280.0

    def x_of(step: int) -> float:
        return left + (right - left) * (step / max(steps - 1, 1) if steps > 1 else 0.5)

    def y_of(value: float) -> float:
        return bottom - (bottom - 10) * (value - low) / (high - low)

    parts = [
        line(left, y_of(mark), right, y_of(mark), "zero" if mark == 0 else "grid")
        + text(left - 8, y_of(mark) + 4, f"{mark:.3g}", "muted", "end")
        for mark in ticks(low, high)
    ]
    shown = range(0, steps, math.ceil(steps / 10))
    parts += [text(x_of(step), bottom + 20, f"step {step}", "muted", "middle") for step in shown]
    ends = _spread_labels([y_of(each.mean[-1]) for each in drawn], 17)
    for index, (each, end) in enumerate(zip(drawn, ends, strict=True)):
        xs = [x_of(step) for step in range(len(each.mean))]
        parts.append(_series(each, index % SERIES, xs, y_of, end, right))
    parts.append(text((left + right) / 2, bottom + 42, axis, "muted", "middle"))
    return scaled_drawing(_WIDTH, bottom + 50, parts, title)


def _series(
    each: Series, colour: int, xs: list[float], y_of: Place, end: float, right: float
) -> str:
    mean, low, high = (
        [f"{x:.1f},{y_of(value):.1f}" for x, value in zip(xs, values, strict=True)]
        for values in (each.mean, each.low, each.high)
    )
    dots = "".join(
        f'<circle cx="{point.partition(",")[0]}" cy="{point.partition(",")[2]}" r="3.5" class="dot"/>'
        for point in mean
    )
    return "".join(
        [
            f'<g class="series{colour}"><title>{escape(each.name)}</title>',
            f'<polygon points="{" ".join([*high, *reversed(low)])}" class="band"/>',
            f'<polyline points="{" ".join(mean)}" class="curve"/>{dots}',
            text(right + 12, end + 4, each.name, "name"),
            "</g>",
        ]
    )


def _spread_labels(places: list[float], least: float) -> list[float]:
    """Move labels apart so that they do not overlap. Their order stays."""
    order = sorted(range(len(places)), key=places.__getitem__)
    moved = list(places)
    for before, after in pairwise(order):
        moved[after] = max(moved[after], moved[before] + least)
    return moved


# ------------------------------------------------------------------------------------ from above


@dataclass(frozen=True, slots=True, eq=False)
class Overhead:
    """One decision seen from above. Places are [n, 2] in metres; world x points right, y up."""

    places: Floats
    facing: Floats
    """[n, 2]: direction in which each camera looks, seen from above."""
    valid: NDArray[np.bool_]
    gains: Floats
    """[n]; NaN without a label."""
    names: Sequence[str]
    chosen: int
    path: Floats
    """[k, 2]: path of the camera. The last point is its position before the decision."""
    target: Floats | None
    """[2]: centre of the target."""
    footprint: Floats | None
    """[k, 2]: outline of the box of the target."""

    @property
    def framed(self) -> Floats:
        """The points that the picture must show. Invalid candidates can be anywhere, so they are left out."""
        parts = [self.places[self.valid], self.path]
        parts += [each.reshape(-1, 2) for each in (self.target, self.footprint) if each is not None]
        points = np.concatenate(parts)
        points = points[np.isfinite(points).all(axis=1)]
        return points if len(points) else self.places[np.isfinite(self.places).all(axis=1)]


@dataclass(frozen=True, slots=True, eq=False)
class _Frame:
    """Conversion from metres to picture coordinates."""

    low: Floats
    scale: float
    width: float
    height: float

    @classmethod
    def around(cls, points: Floats, width: float = 560.0, margin: float = 44.0) -> _Frame:
        """A frame of the given width. Its height is two thirds of the width up to the full width."""
        low, high = points.min(axis=0), points.max(axis=0)
        spans = np.maximum(high - low, 0.1)
        height = width * float(np.clip(spans[1] / spans[0], 0.67, 1.0))
        scale = float(min((width - 2 * margin) / spans[0], (height - 2 * margin) / spans[1]))
        corner = (low + high) / 2 - np.array([width, height]) / scale / 2
        return cls(corner, scale, width, height)

    def at(self, place: Floats) -> tuple[float, float]:
        x, y = ((place - self.low) * self.scale).tolist()
        return x, self.height - y

    def holds(self, place: Floats) -> bool:
        """Whether a place lies inside the frame. False for NaN."""
        x, y = self.at(place)
        return 0 <= x <= self.width and 0 <= y <= self.height


def overhead_chart(view: Overhead, title: str) -> str:
    """Candidates in the room: colour shows gain, a hollow ring is invalid, the big ring marks the selected one."""
    points = view.framed
    if not len(points):
        return ""
    frame = _Frame.around(points)
    inside = [frame.holds(place) for place in view.places]
    valid_last = [row for row in np.argsort(view.valid, kind="stable").tolist() if inside[row]]
    outside = len(inside) - len(valid_last)
    left_out = f"{outside} invalid farther away" if outside else ""
    drawn = [
        _target(view, frame),
        _path(view, frame),
        *(_camera(view, row, frame) for row in valid_last),
        _chosen(view, frame) if 0 <= view.chosen < len(inside) and inside[view.chosen] else "",
        _ruler(frame),
        text(frame.width - 6, frame.height + 14, left_out, "muted", "end"),
    ]
    return scaled_drawing(frame.width, frame.height + 20, drawn, title)


def _camera(view: Overhead, row: int, frame: _Frame) -> str:
    x, y = frame.at(view.places[row])
    dx, dy = (view.facing[row] * 13).tolist()
    fill = f' style="fill:{_gain_colour(view.gains, row)}"' if np.isfinite(view.gains[row]) else ""
    kind = "camera" if view.valid[row] else "camera invalid"
    look = line(x, y, x + dx, y - dy, "look") if view.valid[row] else ""
    tooltip = escape(view.names[row])
    return f'<g><title>{tooltip}</title>{look}<circle cx="{x:.1f}" cy="{y:.1f}" r="5" class="{kind}"{fill}/></g>'


def colour_ramp(size: int, lightest: float = 0.95, darkest: float = 0.28) -> NDArray[np.uint8]:
    """Colours from light to dark that look evenly spaced: a straight line in OKLCH, hue from yellow to violet."""
    at = np.linspace(0, 1, size)
    lightness = lightest + (darkest - lightest) * at
    hue = np.radians(100 + 195 * at)
    chroma = 0.1  # a screen can show this chroma for all of these hues
    lab = np.stack([lightness, chroma * np.cos(hue), chroma * np.sin(hue)])
    cone = np.array([[1, 0.39634, 0.21580], [1, -0.10556, -0.06385], [1, -0.08948, -1.29149]]) @ lab
    linear = (
        np.array(
            [
                [4.07674, -3.30771, 0.23097],
                [-1.26844, 2.60976, -0.34132],
                [-0.00420, -0.70342, 1.70761],
            ]
        )
        @ cone**3
    )
    linear = np.clip(linear, 0, 1)
    shown = np.where(linear > 0.0031308, 1.055 * linear ** (1 / 2.4) - 0.055, 12.92 * linear)
    return np.round(shown.T * 255).astype(np.uint8)


_RAMP = [f"rgb({r},{g},{b})" for r, g, b in colour_ramp(64, 0.92, 0.38).tolist()]


def _gain_colour(gains: Floats, row: int) -> str:
    low, high = float(np.nanmin(gains)), float(np.nanmax(gains))
    share = (float(gains[row]) - low) / (high - low) if high > low else 1.0
    return _RAMP[round(share * (len(_RAMP) - 1))]


def _chosen(view: Overhead, frame: _Frame) -> str:
    x, y = frame.at(view.places[view.chosen])
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="11" class="chosen"/>' + text(
        x, y - 17, "taken", "chosen-name", "middle"
    )


def _path(view: Overhead, frame: _Frame) -> str:
    if not len(view.path):
        return ""
    points = [frame.at(place) for place in view.path]
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    x, y = points[-1]
    return (
        f'<polyline points="{joined}" class="path"/>'
        f'<rect x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10" class="here"/>'
        + text(x, y + 20, "camera", "here-name", "middle")
    )


def _target(view: Overhead, frame: _Frame) -> str:
    box = ""
    if view.footprint is not None:
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(frame.at, view.footprint))
        box = f'<polygon points="{corners}" class="target-box"/>'
    if view.target is None:
        return box
    x, y = frame.at(view.target)
    cross = line(x - 7, y - 7, x + 7, y + 7, "target") + line(x - 7, y + 7, x + 7, y - 7, "target")
    return box + cross + text(x, y + 22, "target", "target-name", "middle")


def _ruler(frame: _Frame) -> str:
    lengths = (each for each in (0.1, 0.25, 0.5, 1.0, 2.0, 5.0) if each * frame.scale <= 160)
    metres = max(lengths, default=0.1)
    end, y = 8 + metres * frame.scale, frame.height + 9
    return line(8, y, end, y, "ruler") + text(end + 8, y + 5, f"{metres:g} m", "muted")


def gain_scale(low: float, high: float) -> str:
    """The colour scale of gains, with numbers at both ends."""
    stops = "".join(
        f'<stop offset="{at / (len(_RAMP) - 1):.3f}" stop-color="{colour}"/>'
        for at, colour in enumerate(_RAMP)
    )
    return scaled_drawing(
        320,
        22,
        [
            f'<defs><linearGradient id="gains">{stops}</linearGradient></defs>',
            text(0, 16, f"{low:.2g}", "muted"),
            '<rect x="60" y="5" width="180" height="13" rx="2" fill="url(#gains)"/>',
            text(250, 16, f"{high:.2g}", "muted"),
        ],
        "colours of gains",
    )


def outline(points: Floats) -> Floats:
    """The convex hull of points in the plane, by Andrew's monotone chain."""
    ordered = sorted({(float(x), float(y)) for x, y in points})
    halves = [_half(ordered), _half(ordered[::-1])]
    return np.array([*halves[0][:-1], *halves[1][:-1]]) if len(ordered) > 2 else np.array(ordered)


def _half(ordered: list[tuple[float, float]]) -> list[tuple[float, float]]:
    kept: list[tuple[float, float]] = []
    for x, y in ordered:
        while len(kept) > 1:
            (ax, ay), (bx, by) = kept[-2:]
            if (bx - ax) * (y - ay) - (by - ay) * (x - ax) > 0:
                break
            kept.pop()
        kept.append((x, y))
    return kept
