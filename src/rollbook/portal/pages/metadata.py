"""The metadata of an episode for people: typed values, each in its own form, and all of it as a tree."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rollbook.contracts.typed_metadata import EpisodeOutcome, JointState, TypedValue, typed_values

_MOST_TYPED = 24
_MOST_NODES = 600
_LONGEST_VALUE = 300
_SCALARS = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True)
class Joint:
    name: str
    position: float
    velocity: float | None
    effort: float | None
    share: float
    """Of the largest position of this state, from -1 to 1."""


@dataclass(frozen=True, slots=True)
class TypedEntry:
    path: str
    kind: str
    """The name of the class, such as `Battery`."""
    value: TypedValue
    joints: tuple[Joint, ...] = ()


def typed_entries(metadata: Mapping[str, Any]) -> list[TypedEntry]:
    """The outcome is left out: a page shows it on its own."""
    others = (
        (path, value)
        for path, value in typed_values(metadata)
        if not isinstance(value, EpisodeOutcome)
    )
    return [
        TypedEntry(path or "metadata", type(value).__name__, value, _joints(value))
        for path, value in islice(others, _MOST_TYPED)
    ]


def _joints(value: TypedValue) -> tuple[Joint, ...]:
    if not isinstance(value, JointState):
        return ()
    largest = max(map(abs, value.positions)) or math.inf
    nothing = [None] * len(value.positions)
    rows = zip(
        value.names or [str(number) for number in range(len(value.positions))],
        value.positions,
        nothing if value.velocities is None else value.velocities,
        nothing if value.efforts is None else value.efforts,
        strict=True,
    )
    return tuple(Joint(*row, share=row[1] / largest) for row in rows)


# ---------------------------------------------------------------------------------------------- tree


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    text: str
    """The value, or how much is below."""
    below: tuple[Node, ...] = ()


class _Tree:
    """Takes so many nodes and no more: metadata can be megabytes of JSON."""

    def __init__(self) -> None:
        self.left = _MOST_NODES

    def node(self, name: str, value: Any) -> Node:
        self.left -= 1
        if isinstance(value, Mapping):
            below = self._below(list(value.items()))
            return Node(name, _counted(len(value), "entry", "entries"), below)
        if isinstance(value, list) and not all(isinstance(each, _SCALARS) for each in value):
            below = self._below([(str(number), each) for number, each in enumerate(value)])
            return Node(name, _counted(len(value), "item", "items"), below)
        return Node(name, _short_json(value))

    def _below(self, entries: list[tuple[str, Any]]) -> tuple[Node, ...]:
        nodes = []
        for number, (name, value) in enumerate(entries):
            if self.left <= 0:
                nodes.append(Node("…", f"{len(entries) - number} more"))
                break
            nodes.append(self.node(name, value))
        return tuple(nodes)


def metadata_tree(metadata: Mapping[str, Any]) -> Node:
    return _Tree().node("metadata", metadata)


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _short_json(value: Any) -> str:
    shown = value[:_LONGEST_VALUE] if isinstance(value, list | str) else value
    text = json.dumps(shown, ensure_ascii=False)
    if shown is value or shown == value:
        return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
    return f"{text[:_LONGEST_VALUE]}… ({len(value)} in all)"
