"""Trend: one number per version with its interval, oldest first. The newest is filled, all others are hollow.

The versions may have been measured against different baselines, so a line from one to the next is no comparison: the
page that shows the chart has to say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from markupsafe import Markup

from rollbook import svg

HEIGHT = 168
_TOP, _BOTTOM, _LABELS = 12.0, 130.0, 156.0
_LEFT, _RIGHT = 12.0, 96.0
"""Where the first and the last version stand, in percent of the width. The values of the grid stand left of them."""
_MOST_LABELS = 8
_LONGEST_LABEL = 12
_LETTERS = 38
"""So many letters of labels have room beside each other in the narrowest place where the chart is shown."""
_SEPARATORS = "-_/.@: "


@dataclass(frozen=True, slots=True)
class VersionValue:
    label: str
    value: float
    lower: float
    upper: float


def trend(
    values: Sequence[VersionValue],
    words: Callable[[float], str],
    name: str,
    *,
    within: tuple[float, float] | None = None,
    shows_zero: bool = False,
) -> Markup:
    """`words` writes a number with its unit. `within` are the values that are possible, such as 0 to 1 for a rate.
    Empty for no values."""
    if not values:
        return Markup("")
    low, high = _range(values, within, shows_zero)

    def place(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * min(max((value - low) / (high - low), 0.0), 1.0)

    parts = []
    for tick in svg.ticks(low, high, 4):
        y = place(tick)
        kind = "zero" if shows_zero and tick == 0 else "axis"
        parts.append(svg.line("9%", y, "100%", y, kind))
        parts.append(svg.text("8%", y + 4, words(tick), anchor="end"))
    places = [_x(index, len(values)) for index in range(len(values))]
    for index in range(1, len(values)):
        before, after = values[index - 1], values[index]
        parts.append(
            svg.line(
                places[index - 1], place(before.value), places[index], place(after.value), "join"
            )
        )
    labels = _labels([each.label for each in values])
    room = max(2, min(_MOST_LABELS, _LETTERS // (max(map(len, labels)) + 1)))
    step = -(-len(values) // room)
    for index, (x, each) in enumerate(zip(places, values, strict=True)):
        is_last = index == len(values) - 1
        told = f"{each.label}: {words(each.value)}, {words(each.lower)} to {words(each.upper)}"
        interval = svg.line(x, place(each.lower), x, place(each.upper), "cap")
        dot = svg.circle(x, place(each.value), 5 if is_last else 4, "cand" if is_last else "base")
        parts.append(svg.with_tooltip(told, interval, dot))
        if (len(values) - 1 - index) % step == 0:
            parts.append(svg.text(x, _LABELS, labels[index], "b" if is_last else "", "middle"))
    return Markup(svg.wide_drawing(HEIGHT, parts, name, "c trend"))


def _x(index: int, count: int) -> str:
    share = 0.5 if count == 1 else index / (count - 1)
    return f"{_LEFT + (_RIGHT - _LEFT) * share:.2f}%"


def _range(
    values: Sequence[VersionValue], within: tuple[float, float] | None, shows_zero: bool
) -> tuple[float, float]:
    known = [number for each in values for number in (each.value, each.lower, each.upper)]
    known += [0.0] if shows_zero else []
    low, high = min(known), max(known)
    room = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    low, high = low - room, high + room
    if within is not None:
        low, high = max(low, within[0]), min(high, within[1])
    return low, high


def _labels(versions: Sequence[str]) -> list[str]:
    """Versions of one policy often begin alike: what all of them begin with is left out, up to a separator. Of a long
    one the end is shown, which tells it apart."""
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*versions, strict=False))
    common = "".join(letters[0] for letters in alike) if len(set(versions)) > 1 else ""
    shared = max((common.rfind(each) + 1 for each in _SEPARATORS), default=0)
    rest = [each[shared:] for each in versions]
    if not all(rest):
        rest = list(versions)
    return [
        each if len(each) <= _LONGEST_LABEL else f"…{each[1 - _LONGEST_LABEL :]}" for each in rest
    ]
