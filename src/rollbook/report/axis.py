"""Axis: from a value to a place along x in percent: a drawing is as wide as its page, and text keeps its size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rollbook import svg


@dataclass(frozen=True)
class Axis:
    low: float
    high: float
    left: float = 0.0
    right: float = 100.0
    """Where low and high are, in percent."""

    @classmethod
    def around(cls, values: Iterable[float], left: float = 0.0, right: float = 100.0) -> Axis:
        """An axis that shows all values and zero, with a little room at both ends."""
        low, high = range_around(values)
        return cls(low, high, left, right)

    def percent(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.left + (self.right - self.left) * min(max(share, 0.0), 1.0)

    def at(self, value: float) -> str:
        return f"{self.percent(value):.2f}%"

    def span(self, low: float, high: float) -> str:
        return f"{max(self.percent(high) - self.percent(low), 0.0):.2f}%"


def range_around(values: Iterable[float]) -> tuple[float, float]:
    """The range of the values and zero, with a little room at both ends."""
    known = [0.0, *values]
    low, high = min(known), max(known)
    room = 0.06 * (high - low) or 1.0
    return (low - room if low < 0 else low - room / 3), (
        high + room if high > 0 else high + room / 3
    )


def curve(xs: Sequence[float], ys: Sequence[float], height: float, kind: str) -> str:
    """A line through points. x in percent of the drawing, y in its units. Its width does not change with the page."""
    points = " ".join(f"{10 * x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
    return _stretched(f'<polyline points="{points}" class="{kind}"/>', height)


def area(
    xs: Sequence[float], tops: Sequence[float], bottoms: Sequence[float], height: float, kind: str
) -> str:
    """The area between two lines."""
    there = [f"{10 * x:.1f},{y:.1f}" for x, y in zip(xs, tops, strict=True)]
    back = [f"{10 * x:.1f},{y:.1f}" for x, y in zip(xs, bottoms, strict=True)]
    return _stretched(
        f'<polygon points="{" ".join([*there, *reversed(back)])}" class="{kind}"/>', height
    )


def _stretched(part: str, height: float) -> str:
    return (
        f'<svg x="0" y="0" width="100%" height="{height:g}" viewBox="0 0 1000 {height:g}" '
        f'preserveAspectRatio="none">{part}</svg>'
    )


def grid_line(y: float, words: str, kind: str = "grid") -> str:
    """A horizontal line with its value above its left end."""
    return svg.line("0", y, "100%", y, kind) + svg.text("0", y - 4, words, "tick")
