"""Power curve: the chance that a new run of some size shows a gain, if its pairs go like those of this run."""

from __future__ import annotations

from collections.abc import Callable

from markupsafe import Markup

from rollbook import svg
from rollbook.report.axis import Axis, curve

_POINTS = 40
_HEIGHT, _TOP, _BOTTOM = 164.0, 10.0, 124.0
_LEFT, _RIGHT = 9.0, 97.0


def power_curve(chance: Callable[[int], float], needed: int, goal: float) -> Markup:
    """`chance` by number of pairs; `needed` is the size that is marked, `goal` the chance that it is chosen for."""
    most = max(10, round(2.2 * needed))
    sizes = sorted({max(2, round(most * place / _POINTS)) for place in range(1, _POINTS + 1)})
    x = Axis(0, most, _LEFT, _RIGHT)

    def y_of(share: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * min(max(share, 0.0), 1.0)

    parts = []
    for share in (0.0, 0.5, goal, 1.0):
        kind = "goal" if share == goal else "grid"
        parts.append(svg.line(f"{_LEFT}%", y_of(share), f"{_RIGHT}%", y_of(share), kind))
        parts.append(svg.text("8%", y_of(share) + 4, f"{100 * share:.0f} %", "tick", "end"))
    chances = [chance(size) for size in sizes]
    xs = [x.percent(0), *(x.percent(size) for size in sizes)]
    parts.append(curve(xs, [y_of(0.0), *map(y_of, chances)], _HEIGHT, "curve"))
    at, there = x.at(needed), y_of(chance(needed))
    parts.append(svg.line(at, there, at, _BOTTOM, "zero"))
    parts.append(svg.circle(at, there, 4, "cand"))
    parts += [
        svg.text(x.at(mark), _BOTTOM + 16, f"{mark:,.0f}", "tick", "middle")
        for mark in svg.ticks(0, most, 4)
    ]
    parts.append(svg.text("53%", _HEIGHT - 4, "pairs of a new run", "tick", "middle"))
    title = (
        f"Chance to show a gain by pairs of a new run: {chance(needed):.0%} with {needed:,} pairs"
    )
    return Markup(svg.wide_drawing(_HEIGHT, parts, title))
