"""Lineage graph: boxes in columns from left to right, and arrows between them. Every box may be a link.

The drawing is in bands, one above the other. What is missing is a dashed box: it says so, and nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from markupsafe import Markup

NodeKind: TypeAlias = Literal["", "sel", "ship", "regress", "missing"]

WIDTH = 1328
_XS = (4, 276, 548, 832, 1116)
_BOX = 208
_LINES = {1: 30, 2: 44, 3: 58}
"""Height of a box by the number of its lines."""
_GAP, _HEADING, _BETWEEN_BANDS = 22, 40, 34
_LONGEST_TITLE, _LONGEST_TEXT, _LONGEST_MONO = 23, 33, 28


@dataclass(frozen=True, slots=True)
class Node:
    key: str
    title: str
    text: str = ""
    mono: str = ""
    href: str | None = None
    kind: NodeKind = ""

    @property
    def height(self) -> int:
        return _LINES[1 + bool(self.text) + bool(self.mono)]


@dataclass(frozen=True, slots=True)
class Edge:
    start: str
    end: str
    is_main: bool = False
    """On the way to the decision that counts."""
    is_missing: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    headings: Sequence[str]
    """One above each column; an empty one is not drawn."""
    columns: Sequence[Sequence[Node]]
    """At most five."""


def lineage_graph(bands: Sequence[Band], edges: Sequence[Edge], name: str) -> Markup:
    places: dict[str, tuple[float, float, int]] = {}
    drawn: list[Markup] = []
    top = 0.0
    for band in bands:
        drawn += [
            Markup('<text class="col" x="{}" y="{:g}">{}</text>').format(x, top + 16, heading)
            for x, heading in zip(_XS, band.headings, strict=False)
            if heading
        ]
        height = max((_column_height(each) for each in band.columns), default=0.0)
        for x, column in zip(_XS, band.columns, strict=False):
            y = top + _HEADING + (height - _column_height(column)) / 2
            for node in column:
                places[node.key] = (x, y, node.height)
                drawn.append(_box(node, x, y))
                y += node.height + _GAP
        top += _HEADING + height + _BETWEEN_BANDS
    arrows = [_arrow(each, places) for each in edges if each.start in places and each.end in places]
    return Markup(
        '<svg viewBox="0 0 {} {:g}" role="group" aria-label="{}"><defs>{}</defs>{}{}</svg>'
    ).format(
        WIDTH,
        max(top - _BETWEEN_BANDS, 1) + 6,
        name,
        _TIPS,
        Markup().join(arrows),
        Markup().join(drawn),
    )


_TIPS = Markup(
    '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0 8 4 0 8z" fill="var(--edge)"/></marker>'
    '<marker id="tip-main" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
    '<path d="M0 0 8 4 0 8z" fill="var(--accent)"/></marker>'
)


def _column_height(nodes: Sequence[Node]) -> float:
    return sum(node.height for node in nodes) + _GAP * max(len(nodes) - 1, 0)


def _box(node: Node, x: float, y: float) -> Markup:
    lines = [
        ("a", 19, _cut(node.title, _LONGEST_TITLE)),
        ("m", 35, _cut(node.text, _LONGEST_TEXT)),
        ("mo", 50 if node.text else 35, _cut(node.mono, _LONGEST_MONO)),
    ]
    texts = Markup().join(
        Markup('<text class="{}" x="{:g}" y="{:g}">{}</text>').format(kind, x + 12, y + down, words)
        for kind, down, words in lines
        if words
    )
    whole = " · ".join(each for each in (node.title, node.text, node.mono) if each)
    group = Markup(
        '<g class="node {}"><title>{}</title><rect x="{:g}" y="{:g}" width="{}" height="{}" rx="6"/>{}</g>'
    ).format(node.kind, whole, x, y, _BOX, node.height, texts)
    return group if node.href is None else Markup('<a href="{}">{}</a>').format(node.href, group)


def _arrow(edge: Edge, places: Mapping[str, tuple[float, float, int]]) -> Markup:
    (x1, y1, high1), (x2, y2, high2) = places[edge.start], places[edge.end]
    x1, y1, y2 = x1 + _BOX, y1 + high1 / 2, y2 + high2 / 2
    bend = (x1 + x2) / 2
    path = f"M{x1:g} {y1:g}C{bend:g} {y1:g} {bend:g} {y2:g} {x2:g} {y2:g}"
    if edge.is_missing:
        return Markup('<path class="edge" stroke-dasharray="3 3" d="{}"/>').format(path)
    kind, tip = ("edge hot", "tip-main") if edge.is_main else ("edge", "tip")
    return Markup('<path class="{}" d="{}" marker-end="url(#{})"/>').format(kind, path, tip)


def _cut(words: str, longest: int) -> str:
    return words if len(words) <= longest else f"{words[: longest - 1]}…"
