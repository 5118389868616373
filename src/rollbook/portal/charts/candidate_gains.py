"""Every candidate of a step as a bar, the greatest gain first; invalid ones are crosses at the end."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from rollbook.svg import line, rect, wide_drawing

MOST_BARS = 240
"""More would be thinner than a pixel on a phone."""
_TOP, _FLOOR, _HEIGHT = 4.0, 80.0, 96.0
_CROSS = "m-2.5-2.5 5 5M2.5-2.5l-5 5"
_RING = "M2.5 0a2.5 2.5 0 1 0-5 0a2.5 2.5 0 1 0 5 0"


def candidate_gains(
    gains: Sequence[float],
    fills: Sequence[Markup],
    *,
    unlabelled: int,
    invalid: int,
    taken: int | None,
    title: str,
) -> Markup:
    """`gains` are in falling order, and `fills` their colours. `taken` is the place of the chosen one among all:
    labelled, then unlabelled, then invalid. The caller leaves out what is more than `MOST_BARS` in all."""
    count = len(gains) + unlabelled + invalid
    if not count:
        return Markup("")
    wide = 100 / count
    high, low = max([0.0, *gains]), min([0.0, *gains])
    scale = (_FLOOR - _TOP) / ((high - low) or 1.0)
    zero = _TOP + high * scale
    parts = []
    for place, (gain, fill) in enumerate(zip(gains, fills, strict=True)):
        tall = max(abs(gain) * scale, 1.0)
        top = zero - tall if gain >= 0 else zero
        parts.append(
            f'<rect x="{place * wide:.3f}%" width="{wide * 0.75:.3f}%" y="{top:.1f}" height="{tall:.1f}" {fill}/>'
        )
    for place in range(len(gains), count):
        shape = _RING if place < len(gains) + unlabelled else _CROSS
        parts.append(
            f'<svg x="{(place + 0.375) * wide:.3f}%" y="88" overflow="visible"><path class="note" d="{shape}"/></svg>'
        )
    if taken is not None:
        left, width = f"{(taken - 0.1) * wide:.3f}%", f"{wide * 0.95:.3f}%"
        top, tall = (2, _FLOOR) if taken < len(gains) else (_FLOOR + 2, _HEIGHT - _FLOOR - 4)
        parts.append(rect(left, top, width, tall, "chosen"))
    parts.append(line("0", zero + 0.5, "100%", zero + 0.5, "axis"))
    return Markup(wide_drawing(_HEIGHT, parts, title, "c gains"))
