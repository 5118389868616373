"""Histogram: how often each value occurs, on a log scale so that rare values can be seen, with the mean as a line."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from rollbook import svg

HEIGHT = 30
_FLOOR = 28.0


def histogram(
    bins: Sequence[int], low: float, high: float, mean: float | None, name: str
) -> Markup:
    """`bins` are counts of equal parts from `low` to `high`."""
    most = math.log1p(max(bins, default=0)) or 1.0
    width = 100 / max(len(bins), 1)
    parts = []
    for place, each in enumerate(bins):
        if each > 0:
            tall = max(math.log1p(each) / most * (_FLOOR - 2), 1.5)
            x = f"{place * width:.2f}%"
            parts.append(svg.rect(x, _FLOOR - tall, f"{width * 0.8:.2f}%", tall, "fillm"))
    parts.append(svg.line("0%", _FLOOR + 0.5, "100%", _FLOOR + 0.5, "axis"))
    if mean is not None and high > low:
        x = f"{min(max((mean - low) / (high - low), 0.0), 1.0) * 100:.2f}%"
        parts.append(svg.line(x, 0, x, HEIGHT, "mean"))
    return Markup('<svg class="c" height="{}" role="img" aria-label="{}">{}</svg>').format(
        HEIGHT, name, Markup("".join(parts))
    )


def histogram_axis(low: float, high: float) -> Markup:
    """The numbers below histograms of this range."""
    parts = []
    for tick in svg.ticks(low, high, 4):
        at = (tick - low) / (high - low) if high > low else 0.0
        anchor = "start" if at < 0.02 else "end" if at > 0.98 else "middle"
        parts.append(svg.text(f"{at * 100:.1f}%", 12, f"{tick:g}".replace("-", "−"), anchor=anchor))
    return Markup('<svg class="c" height="16" aria-hidden="true">{}</svg>').format(
        Markup("".join(parts))
    )
