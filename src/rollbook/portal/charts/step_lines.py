"""Step lines: the mean of several series after each step, all from zero at the root, each with its name at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from rollbook import svg

HEIGHT = 190
_TOP, _BOTTOM = 10.0, 160.0
_LEFT, _RIGHT = 9.0, 74.0
"""Percent of the width; the names stand right of them."""
_APART = 14.0
_MOST_TICKS = 6
COLOURS = ("s6", "s1", "s5", "s4", "s2", "s3")
"""Classes of the lines, in the order of the series."""
_LONGEST_NAME = 24


@dataclass(frozen=True, slots=True)
class StepLine:
    name: str
    values: Sequence[float | None]
    """After step 1, 2, …; a missing value ends the line."""


def step_lines(lines: Sequence[StepLine], name: str) -> Markup:
    """Empty when no line has a value."""
    known = [_until_missing(line.values) for line in lines]
    steps = max(map(len, known), default=0)
    if not steps:
        return Markup("")
    low = min(0.0, *(min(values, default=0.0) for values in known))
    marks = svg.ticks(low, max(1e-9, *(max(values, default=0.0) for values in known)) * 1.05, 4)
    high = max(marks[-1] if marks else 0.0, *(max(values, default=0.0) for values in known), 1e-9)

    def y(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (value - low) / (high - low)

    parts = [_grid(mark, y(mark)) for mark in marks]
    parts += [_step_label(step, steps) for step in _labelled(steps)]
    for index, values in enumerate(known):
        parts.append(_drawn([0.0, *values], steps, y, COLOURS[index % len(COLOURS)]))
    ends = {index: y(values[-1]) for index, values in enumerate(known) if values}
    for index, at in _spread(ends).items():
        parts.append(svg.text(f"{_RIGHT + 1.5:g}%", at + 4, _short(lines[index].name), "k"))
    return Markup('<svg class="c lines" height="{}" role="img" aria-label="{}">{}</svg>').format(
        HEIGHT, name, Markup("".join(parts))
    )


def _until_missing(values: Sequence[float | None]) -> list[float]:
    known: list[float] = []
    for value in values:
        if value is None:
            break
        known.append(value)
    return known


def _x(step: int, steps: int) -> str:
    return f"{_LEFT + (_RIGHT - _LEFT) * step / steps:.2f}%"


def _grid(mark: float, at: float) -> str:
    left, right = f"{_LEFT:g}%", f"{_RIGHT:g}%"
    words = f"{mark:g}".replace("-", "−")
    return svg.line(left, at, right, at, "axis") + svg.text(
        f"{_LEFT - 1:g}%", at + 4, words, anchor="end"
    )


def _labelled(steps: int) -> range:
    return range(0, steps + 1, max(1, -(-steps // _MOST_TICKS)))


def _step_label(step: int, steps: int) -> str:
    words = "root" if step == 0 else f"step {step}"
    return svg.text(_x(step, steps), 180, words, anchor="middle")


def _drawn(values: Sequence[float], steps: int, y: Callable[[float], float], colour: str) -> str:
    places = [(_x(step, steps), y(value)) for step, value in enumerate(values)]
    lines = [svg.line(x1, y1, x2, y2, f"run {colour}") for (x1, y1), (x2, y2) in pairwise(places)]
    dots = [svg.circle(x, at, 3.5, f"dot {colour}") for x, at in places[1:]]
    return "".join(lines + dots)


def _spread(ends: dict[int, float]) -> dict[int, float]:
    """Moves names apart that would overlap."""
    placed: dict[int, float] = {}
    last = -_APART
    for index in sorted(ends, key=lambda each: ends[each]):
        last = placed[index] = max(ends[index], last + _APART)
    return placed


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
