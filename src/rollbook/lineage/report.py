"""LineageReport: what a walk found: records, the links between them, and what was compared with what.

`verified`: a digest was computed again from the content, and it is the recorded one. `broken`: it is another one, or
the content cannot be read. `missing`: the record is named, and it is in none of the places that were looked into.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from rollbook.errors import RollbookError

State: TypeAlias = Literal["verified", "broken", "missing"]
Kind: TypeAlias = Literal[
    "run",
    "episodes",
    "revision",
    "training",
    "batch",
    "artifacts",
    "rollouts",
    "store",
    "source_rows",
    "source",
    "recording",
]
KINDS: tuple[Kind, ...] = (
    *("run", "episodes", "revision", "training", "batch", "artifacts"),
    *("rollouts", "store", "source_rows", "source", "recording"),
)


class Check(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One comparison."""

    what: str
    state: State
    detail: str = ""
    """In words: what was computed from what; why it is broken; what was looked for."""
    where: str | None = None
    """The file, folder or URL that was read, or the places that were looked into."""
    expected: str | None = None
    found: str | None = None


class Node(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record, or several of one kind that are used together."""

    key: str
    kind: Kind
    title: str
    place: str | None = None
    facts: dict[str, str] = {}
    checks: tuple[Check, ...] = ()

    @property
    def state(self) -> State:
        return worst(each.state for each in self.checks)


class Link(Struct, frozen=True, kw_only=True):
    """`made` was made from `source`, or names it."""

    source: str
    made: str
    relation: str
    state: State
    by: str
    """The digest or id that joins the two."""
    to_origins: bool
    """Found on the way to the origins of the start; else on the way to its uses."""


class LineageReport(Struct, frozen=True, kw_only=True):
    start: str
    nodes: dict[str, Node]
    """By key, in the order in which the walk met them."""
    links: tuple[Link, ...]
    looked_in: tuple[str, ...]
    """Folders and servers that were searched."""

    @property
    def state(self) -> State:
        return worst(each.state for each in self.nodes.values())

    @property
    def broken(self) -> list[tuple[Node, Check]]:
        return self._checks_in("broken")

    @property
    def missing(self) -> list[tuple[Node, Check]]:
        return self._checks_in("missing")

    def _checks_in(self, state: State) -> list[tuple[Node, Check]]:
        return [
            (node, check)
            for node in self.nodes.values()
            for check in node.checks
            if check.state == state
        ]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "state": self.state,
            "start": self.start,
            "broken": len(self.broken),
            "missing": len(self.missing),
            "nodes": [
                {**msgspec.to_builtins(each), "state": each.state} for each in self.nodes.values()
            ],
            "links": msgspec.to_builtins(self.links),
            "looked_in": list(self.looked_in),
        }


def worst(states: Iterable[State]) -> State:
    """Broken, else missing, else verified."""
    found = set(states)
    return "broken" if "broken" in found else "missing" if "missing" in found else "verified"


def compared(
    what: str, expected: str, found: str, detail: str = "", where: str | None = None
) -> Check:
    """Verified if both are the same; otherwise broken, with both."""
    if expected == found:
        return Check(what=what, state="verified", detail=detail, where=where)
    text = f"expected {expected}, found {found}" + (f" ({detail})" if detail else "")
    return Check(
        what=what, state="broken", detail=text, where=where, expected=expected, found=found
    )


def broken_by(what: str, error: Exception, where: str | None = None) -> Check:
    """The check that this error ended."""
    return Check(what=what, state="broken", detail=whole_text(error), where=where)


def whole_text(error: Exception) -> str:
    """Not shortened: the end of a long message may be the digest that differs."""
    if isinstance(error, RollbookError) and type(error).__str__ is RollbookError.__str__:
        return error.template.format(**error.fields)
    return str(error)
