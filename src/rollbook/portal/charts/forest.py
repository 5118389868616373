"""Forest: the same difference in several groups of pairs, one bar each, on one axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from rollbook import svg
from rollbook.portal.charts.interval_bar import interval_bar, shared_axis
from rollbook.report.axis import Axis
from rollbook.report.interval_forest import ForestRow

_HEAD = Markup(
    '<span class="hd">{}</span><span class="hd num">Pairs</span><span class="hd"></span>'
    '<span class="hd num"><span>{} <span class="ivl">and interval</span></span></span>'
)
_ROW = Markup(
    '<span class="clip" title="{name}">{name}</span><span class="num dim">{pairs:,}</span>'
    '<span class="noaxis">{bar}</span>'
    '<span class="num"><span class="strong {shown}">{change}</span>'
    '<span class="ivl dim small">&ensp;{interval}</span></span>'
)


def forest(
    rows: Sequence[ForestRow], heading: str, unit: str, write: Callable[[float], str]
) -> Markup:
    """`heading` names the groups, `unit` the numbers. `write` writes a difference without its unit."""
    within = shared_axis([(each.delta, each.interval) for each in rows])
    body = Markup("").join(
        _ROW.format(
            name=each.name,
            pairs=each.pairs,
            shown="" if each.shown == "not" else each.shown,
            bar=interval_bar(
                each.delta,
                each.interval,
                shown=each.shown,
                within=within,
                write=write,
                labels=False,
                missing="",
            ),
            change=write(each.delta),
            interval=" to ".join(map(write, each.interval)) if each.interval else "too few pairs",
        )
        for each in rows
    )
    axis = Axis(*within)
    marks = [
        svg.text(axis.at(mark), 11, write(mark), anchor="middle")
        for mark in svg.ticks(*within, 3)
        if 4 < axis.percent(mark) < 96
    ]
    ticks = Markup('<svg class="c" height="14" aria-hidden="true">{}</svg>').format(
        Markup("".join(marks))
    )
    foot = Markup('<span></span><span></span><span class="ticks">{}</span><span></span>')
    return Markup('<div class="forest">{}{}{}</div>').format(
        _HEAD.format(heading, unit), body, foot.format(ticks)
    )
