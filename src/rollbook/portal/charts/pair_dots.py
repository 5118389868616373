"""Pair dots: both sides of every pair as two dots on a line, the worst change at the left. Each pair is a link."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup, escape

from rollbook import svg
from rollbook.report.axis import Axis

MOST_DRAWN = 400
_WORST, _BEST = 120, 60
"""Of more pairs than can be drawn, these are drawn in any case."""
_HEIGHT, _TOP, _BOTTOM, _FLIPS = 250.0, 22.0, 192.0, 216.0
_LEFT, _RIGHT = 3.6, 98.8


@dataclass(frozen=True, slots=True)
class PairDot:
    baseline: float
    candidate: float
    gain: float
    """Above zero is better."""
    href: str
    words: str
    """What is said about the pair when it is pointed at."""
    flip: Literal["lost", "won"] | None = None


def pair_dots(
    pairs: Sequence[PairDot], title: str, write: Callable[[float], str], *, is_rate: bool = False
) -> Markup:
    """`write` writes a value of the axis. A rate is drawn from 0 to 1."""
    if not pairs:
        return Markup("")
    ordered = sorted(pairs, key=lambda each: each.gain)
    places = drawn_places(len(ordered))
    y_of, marks = _scale(ordered, is_rate)
    x = Axis(0, max(len(places) - 1, 1), _LEFT, _RIGHT)
    parts = [
        svg.line("3%", y_of(mark), "100%", y_of(mark), "axis")
        + svg.text("2.4%", y_of(mark) + 4, write(mark), anchor="end")
        for mark in marks
    ]
    half = 50 * (_RIGHT - _LEFT) / 100 / max(len(places), 2)
    for number, place in enumerate(places):
        parts.append(_pair(ordered[place], x.percent(number), half, y_of, number == 0))
    parts += _words(ordered, places, x)
    label = escape(title)
    return Markup(
        f'<svg class="c dots" width="100%" height="{_HEIGHT:g}" role="group" aria-label="{label}">'
        f"{''.join(parts)}</svg>"
    )


def drawn_places(count: int) -> list[int]:
    """Which of the sorted pairs are drawn: all of them, or the worst, the best and an even selection between."""
    if count <= MOST_DRAWN:
        return [*range(count)]
    between = MOST_DRAWN - _WORST - _BEST
    step = (count - _WORST - _BEST) / between
    middle = [_WORST + int(number * step) for number in range(between)]
    return [*range(_WORST), *middle, *range(count - _BEST, count)]


def thinned_words(count: int) -> str | None:
    """How pairs were left out; None where all are drawn."""
    if count <= MOST_DRAWN:
        return None
    return (
        f"Of {count:,} pairs, {MOST_DRAWN} are drawn: the {_WORST} worst, the {_BEST} best, and an even selection of "
        "the others."
    )


def _scale(
    pairs: Sequence[PairDot], is_rate: bool
) -> tuple[Callable[[float], float], Sequence[float]]:
    values = [side for each in pairs for side in (each.baseline, each.candidate)]
    low, high = (0.0, 1.0) if is_rate else (min(values), max(values))
    if high <= low:
        low, high = low - 0.5, high + 0.5

    def y_of(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (value - low) / (high - low)

    return y_of, (0.0, 1.0) if is_rate else svg.ticks(low, high, 4)


def _pair(
    pair: PairDot, at: float, half: float, y_of: Callable[[float], float], is_first: bool
) -> str:
    x, before, after = f"{at:.2f}%", y_of(pair.baseline), y_of(pair.candidate)
    kind = "l0" if not pair.gain else "lu" if pair.gain > 0 else "ld"
    parts = [
        f"<title>{escape(pair.words)}</title>",
        svg.rect(f"{at - half:.2f}%", _TOP - 6, f"{2 * half:.2f}%", _HEIGHT - 34, "hit", 2),
        svg.line(x, before, x, after, kind),
        svg.circle(x, before, 2.6, "base"),
        svg.circle(x, after, 2.8, "cand"),
    ]
    if pair.flip is not None:
        shape = "M0-4 4 3-4 3z" if pair.flip == "won" else "M0 4 4-3-4-3z"
        kind = "fillu" if pair.flip == "won" else "filld"
        parts.append(
            f'<svg x="{x}" y="{_FLIPS:g}" overflow="visible"><path class="{kind}" d="{shape}"/></svg>'
        )
    # one stop for the keyboard: a script moves it from pair to pair, and the table below has every link
    stop = "0" if is_first else "-1"
    return f'<a href="{escape(pair.href)}" tabindex="{stop}">{"".join(parts)}</a>'


def _words(ordered: Sequence[PairDot], places: Sequence[int], x: Axis) -> list[str]:
    worse = sum(each.gain < 0 for each in ordered)
    better = sum(each.gain > 0 for each in ordered)
    parts = [
        svg.text(f"{_LEFT - 0.4}%", 244, "worst change"),
        svg.text("99.2%", 244, "best change", anchor="end"),
    ]
    split = sum(place < worse for place in places) - 0.5
    if 0 < worse < len(ordered):
        at = x.percent(split)
        parts.append(
            f'<line class="zero" stroke-dasharray="2 3" x1="{at:.2f}%" x2="{at:.2f}%" y1="0" y2="208"/>'
        )
        same = len(ordered) - worse - better
        gained = f"{better:,} better" + (f", {same:,} the same" if same else "")
        if at < 12:
            words = [(f"{at + 0.6:.2f}%", f"{worse:,} worse, {gained}", "start")]
        elif at > 85:
            words = [(f"{at - 0.6:.2f}%", f"{worse:,} worse, {gained}", "end")]
        else:
            words = [
                (f"{at - 0.6:.2f}%", f"{worse:,} worse", "end"),
                (f"{at + 0.6:.2f}%", gained, "start"),
            ]
        parts += [svg.text(place, 10, text, anchor=anchor) for place, text, anchor in words]
    return parts
