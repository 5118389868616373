"""SVG as text: the elements that charts of stores and of replays are made of. Style sheets set their colours.

A place along x is a number in the units of the drawing, or a text in percent of its width.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape
from typing import TypeAlias

Place: TypeAlias = float | str


def scaled_drawing(width: float, height: float, parts: Iterable[str], title: str) -> str:
    """A drawing that is scaled as a whole, text included."""
    return f'<svg viewBox="0 0 {width:g} {height:g}" {_named(title)}>{"".join(parts)}</svg>'


def wide_drawing(height: float, parts: Iterable[str], title: str, kind: str = "chart") -> str:
    """A drawing as wide as the page allows. Places along x are in percent, so that text keeps its size."""
    return (
        f'<svg class="{kind}" width="100%" height="{height:g}" {_named(title)}>'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def _named(title: str) -> str:
    return f'role="img" aria-label="{escape(title)}"'


def text(x: Place, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{_at(x)}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def line(x1: Place, y1: float, x2: Place, y2: float, kind: str) -> str:
    return f'<line x1="{_at(x1)}" y1="{y1:.1f}" x2="{_at(x2)}" y2="{y2:.1f}" class="{kind}"/>'


def rect(x: Place, y: float, width: Place, height: float, kind: str, corner: float = 0) -> str:
    return (
        f'<rect x="{_at(x)}" y="{y:.1f}" width="{_at(width)}" height="{height:.1f}" rx="{corner:g}" '
        f'class="{kind}"/>'
    )


def circle(x: Place, y: float, radius: float, kind: str) -> str:
    return f'<circle cx="{_at(x)}" cy="{y:.1f}" r="{radius:g}" class="{kind}"/>'


def with_tooltip(words: str, *parts: str) -> str:
    return f"<g><title>{escape(words)}</title>{''.join(parts)}</g>"


def _at(place: Place) -> str:
    return place if isinstance(place, str) else f"{place:.1f}"


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers in a range."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= rough * 0.8)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [each * step for each in range(first, last + 1)]
