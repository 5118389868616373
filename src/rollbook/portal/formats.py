"""How numbers, times, sizes and ids are written on pages. These are the filters of the templates.

A minus is a true minus, zero has no sign, and what is missing is a dash.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime

from markupsafe import Markup

MISSING = "–"
_MINUS = "\u2212"
_SIZES = ("B", "kB", "MB", "GB", "TB", "PB")


def number(value: float | None, digits: int = 2) -> str:
    if value is None or not math.isfinite(value):
        return MISSING
    text = f"{abs(value):,.{digits}f}"
    negative = value < 0 and float(text.replace(",", "")) != 0
    return f"{_MINUS}{text}" if negative else text


def signed(value: float | None, digits: int = 2) -> str:
    """A difference: with a plus or a minus, unless it is zero as written."""
    text = number(value, digits)
    is_zero = not any(each in text for each in "123456789")
    return text if is_zero or text.startswith(_MINUS) else f"+{text}"


def points(value: float | None) -> str:
    """A difference of two rates, in points."""
    return signed(None if value is None else value * 100, 1)


def percent(value: float | None, digits: int = 1) -> str:
    return (
        MISSING if value is None or not math.isfinite(value) else f"{number(value * 100, digits)} %"
    )


def count(value: int | None) -> str:
    return MISSING if value is None else number(value, 0)


def p_value(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return MISSING
    return "≤ 0.0001" if value <= 1e-4 else f"{float(f'{value:.2g}'):g}"


def size(value: int | None) -> str:
    """Bytes, in steps of a thousand."""
    if value is None:
        return MISSING
    amount, unit = float(value), 0
    while amount >= 999.5 and unit < len(_SIZES) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:.{0 if unit == 0 or amount >= 99.95 else 1}f} {_SIZES[unit]}"


def seconds(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return MISSING
    if value < 120:
        return f"{number(value, 1 if value < 100 else 0)} s"
    whole = round(value)
    if whole < 7200:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def exact_seconds(value: float | None) -> str:
    """A place on a timeline, in milliseconds."""
    return MISSING if value is None or not math.isfinite(value) else f"{number(value, 3)} s"


def plain(value: float | None) -> str:
    """As few digits as it has: 25 for 25.0, and 29.97."""
    return MISSING if value is None or not math.isfinite(value) else f"{round(value, 3):,g}"


def moment(at_us: int | None) -> Markup:
    """A time in UTC. A script of the page writes it in the zone of the reader, with UTC as its title."""
    if at_us is None:
        return Markup("never")
    at = datetime.fromtimestamp(at_us / 1e6, UTC)
    exact, plain = at.isoformat(timespec="milliseconds"), at.strftime("%Y-%m-%d %H:%M UTC")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(exact, plain, plain)


def short(text: str | None, length: int = 8) -> str:
    """The beginning of an id or a digest."""
    if text is None:
        return MISSING
    return text if len(text) <= length else f"{text[:length]}…"


def ends(text: str, first: int = 8, last: int = 4) -> str:
    """An id in a list. Ids that were made together begin alike, so its end is shown too."""
    return text if len(text) <= first + last + 1 else f"{text[:first]}…{text[-last:]}"


FILTERS = {
    each.__name__: each
    for each in (
        number,
        signed,
        points,
        percent,
        count,
        p_value,
        size,
        seconds,
        exact_seconds,
        plain,
        moment,
        short,
        ends,
    )
}
