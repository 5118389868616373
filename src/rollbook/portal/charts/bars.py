"""Bars: counts beside each other, each with its label and its number in words. Also the waterfall of a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from rollbook import svg
from rollbook.portal.formats import count, percent


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    value: int
    share: float | None = None
    """Written behind the number."""
    title: str = ""
    """The exact name, on hover."""
    accent: bool = False


def bars(rows: Sequence[Bar], *, whole: int | None = None, digits: int = 0) -> Markup:
    """Each bar beside the longest one; with `whole` each in a pale bar that stands for the whole."""
    longest = whole or max((row.value for row in rows), default=0) or 1
    return Markup('<div class="bars">{}</div>').format(
        Markup("").join(_row(row, longest, whole is not None, digits) for row in rows)
    )


def _row(row: Bar, longest: int, has_track: bool, digits: int) -> Markup:
    share = Markup("")
    if row.share is not None:
        share = Markup(' <span class="dim">{}</span>').format(_share(row.share, digits))
    title = Markup(' title="{}"').format(row.title) if row.title else ""
    return Markup('<span{}>{}</span>{}<span class="num">{}{}</span>').format(
        title, row.label, bar(row.value, longest, has_track, row.accent), count(row.value), share
    )


def _share(share: float, digits: int) -> str:
    """What is there is not 0 %."""
    least = 10.0**-digits / 100
    is_less = 0 < share < least / 2
    return f"< {percent(least, digits)}" if is_less else percent(share, digits)


def bar(value: float, longest: float, has_track: bool = True, accent: bool = False) -> Markup:
    """One bar without words, 16 px high. The number stands beside it, so readers of the page skip it."""
    length = min(max(value / longest, 0.0), 1.0) if longest > 0 else 0.0
    parts = [svg.rect(0, 0, "100%", 16, "fills", 2)] if has_track else []
    if length:
        kind = "filla" if accent else "fillm"
        parts.append(svg.rect(0, 0, f"{length * 100:.2f}%", 16, kind, 2))
    return Markup('<svg class="c" height="16" aria-hidden="true">{}</svg>').format(
        Markup("".join(parts))
    )
