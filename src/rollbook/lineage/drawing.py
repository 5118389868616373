"""A lineage report as lines for a terminal, and as a drawing for Graphviz."""

from __future__ import annotations

from collections.abc import Iterator

from rollbook.contracts.rl.graph import dot_text
from rollbook.lineage.report import LineageReport, State

MARKS: dict[State, str] = {"verified": "ok", "broken": "BROKEN", "missing": "missing"}
_COLOURS: dict[State, str] = {"verified": "#2e7d32", "broken": "#c62828", "missing": "#8d6e63"}
_SHAPES = {
    "run": "octagon",
    "episodes": "tab",
    "revision": "ellipse",
    "training": "component",
    "batch": "box",
    "artifacts": "note",
    "rollouts": "folder",
    "store": "cylinder",
    "source_rows": "parallelogram",
    "source": "cylinder",
    "recording": "note",
}


def tree_lines(report: LineageReport) -> Iterator[tuple[State, str]]:
    """The start, then what it was made from and what it was used for. Each record is drawn once in a direction."""
    start = report.nodes[report.start]
    yield start.state, start.title
    for heading, to_origins in (("made from", True), ("used for", False)):
        lines = list(_branch(report, report.start, 1, {report.start}, to_origins))
        if lines:
            yield "verified", f"  {heading}:"
            yield from lines


def _branch(
    report: LineageReport, key: str, depth: int, drawn: set[str], to_origins: bool
) -> Iterator[tuple[State, str]]:
    for link in report.links:
        here, there = (link.made, link.source) if to_origins else (link.source, link.made)
        if here != key or link.to_origins != to_origins:
            continue
        node = report.nodes[there]
        again = there in drawn
        note = " (see above)" if again else ""
        text = f"{'  ' * (depth + 1)}{link.relation}: {node.title}{note}  [{link.by}]"
        yield node.state, text
        if not again:
            drawn.add(there)
            yield from _branch(report, there, depth + 1, drawn, to_origins)


def to_dot(report: LineageReport) -> str:
    """The report as Graphviz text: arrows lead from an origin to what was made of it."""
    names = {key: f"n{number}" for number, key in enumerate(report.nodes)}
    lines = ["digraph lineage {", "  rankdir=LR;", "  node [fontsize=10];"]
    for key, node in report.nodes.items():
        style = "bold" if key == report.start else "solid"
        style = "dashed" if node.state == "missing" else style
        label = dot_text(node.title)
        lines.append(
            f'  {names[key]} [shape={_SHAPES[node.kind]}, style={style}, color="{_COLOURS[node.state]}", '
            f'label="{label}"];'
        )
    for link in report.links:
        label = dot_text(link.relation)
        lines.append(
            f'  {names[link.source]} -> {names[link.made]} [label="{label}", color="{_COLOURS[link.state]}"];'
        )
    return "\n".join([*lines, "}", ""])
