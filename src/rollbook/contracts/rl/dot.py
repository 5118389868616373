"""Graphviz text: a node with a label that shows any id as it is."""

from __future__ import annotations

_ESCAPES = (("\\", r"\\"), ('"', r"\""), ("\n", r"\n"), ("&", "&amp;"))
"""The backslash first, since the others bring their own."""


def dot_node(name: str, shape: str, label: str, *, known: bool) -> str:
    style = "" if known else "style=dashed, "
    return f'  {name} [shape={shape}, {style}label="{_label(label)}"];'


def _label(text: str) -> str:
    """For a quoted label. Graphviz reads entities and backslash escapes there, and cannot draw control
    characters: those are spelled out."""
    visible = "".join(
        each if each.isprintable() or each == "\n" else each.encode("unicode_escape").decode()
        for each in text
    )
    for character, escape in _ESCAPES:
        visible = visible.replace(character, escape)
    return visible
