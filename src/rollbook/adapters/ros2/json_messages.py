"""JSON messages: their Shape is found out from the messages themselves, as they need not have a schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.ros2.objects import Values
from rollbook.adapters.ros2.shape import (
    DEEPEST,
    MOST_FIELDS,
    Array,
    Extent,
    Group,
    Member,
    Node,
    Number,
    ShapeProblem,
    Survey,
    Text,
    Unusable,
    array_key,
    joined,
)

_KINDS = {
    bool: "truth values",
    int: "whole numbers",
    float: "numbers",
    str: "texts",
    list: "arrays",
    dict: "objects",
}


@dataclass(slots=True)
class JsonShape:
    """What the values at one place of the messages were, over the whole topic."""

    kinds: set[type] = field(default_factory=set)
    least: int = 0
    greatest: int = 0
    members: dict[str, JsonShape] = field(default_factory=dict)
    entries: JsonShape | None = None
    count: int = 0
    """Values that were there and not null."""
    objects: int = 0
    lengths: Extent = field(default_factory=Extent)
    """Of texts or arrays."""

    def add(self, values: Sequence[Any], budget: list[int], depth: int = 0) -> None:
        """`budget` is the number of fields that may still be found."""
        if depth > DEEPEST:
            raise ShapeProblem(f"it is nested deeper than {DEEPEST} levels")
        by_kind: dict[type, list[Any]] = {}
        for value in values:
            if value is not None:
                by_kind.setdefault(type(value), []).append(value)
        self.kinds.update(by_kind)
        self.count += sum(map(len, by_kind.values()))
        for kind in (str, list):
            if kind in by_kind:
                self.lengths.add(np.fromiter(map(len, by_kind[kind]), np.int64))
        if int in by_kind:
            self.least = min(self.least, *by_kind[int])
            self.greatest = max(self.greatest, *by_kind[int])
        if list in by_kind:
            self.entries = self.entries or JsonShape()
            inside = [entry for each in by_kind[list] for entry in each]
            if None in inside:
                inside = [entry for entry in inside if entry is not None]
                self.entries.kinds.add(type(None))
            self.entries.add(inside, budget, depth + 1)
        if dict in by_kind:
            objects = by_kind[dict]
            self.objects += len(objects)
            for name in dict.fromkeys(name for each in objects for name in each):
                if name not in self.members:
                    budget[0] -= 1
                    if budget[0] < 0:
                        raise ShapeProblem(f"it has more than {MOST_FIELDS} fields")
                    self.members[name] = JsonShape()
                found = [each[name] for each in objects if name in each]
                self.members[name].add(found, budget, depth + 1)

    def note(self, survey: Survey, path: str = "", level: int = 0) -> None:
        """Tell the survey the lengths and how often fields were missing."""
        if str in self.kinds:
            survey.texts[path or "value"] = self.lengths
        if list in self.kinds:
            survey.arrays[array_key(path, level)] = self.lengths
            assert self.entries is not None
            self.entries.note(survey, path, level + 1)
        for name, member in self.members.items():
            inner = joined(path, name)
            survey.absent[inner] = self.objects - member.count
            member.note(survey, inner)

    def node(self) -> Node:
        kinds = set(self.kinds)
        if self.least < -(2**63) or self.greatest >= 2**63:
            return Unusable("it has whole numbers of more than 64 bits")
        if kinds == {int, float}:
            kinds = {float}
        if not kinds:
            return Unusable("it is null in every message")
        if type(None) in kinds:
            return Unusable("its arrays contain null")
        if len(kinds) > 1:
            names = " and ".join(sorted(_KINDS[kind] for kind in kinds))
            return Unusable(f"its values are of different kinds: {names}")
        [kind] = kinds
        if kind is dict:
            members = (Member(n, _usable(n, each), True) for n, each in self.members.items())
            return Group(tuple(members))
        if kind is list:
            if self.entries is None or not self.entries.kinds:
                return Array(Number(np.dtype(np.float64)), None)
            inner = self.entries.node()
            return inner if isinstance(inner, Unusable) else Array(inner, None)
        if kind is str:
            return Text()
        return Number(np.dtype({bool: np.bool_, int: np.int64, float: np.float64}[kind]))


def _usable(name: str, shape: JsonShape) -> Node:
    is_plain = name and name.isprintable() and not set(name) & set("./\\") and name[:1] != "_"
    if is_plain and len(name) <= 128:
        return shape.node()
    return Unusable("its name cannot be the name of a column")


class JsonAccess:
    def present(self, objects: Values, name: str) -> NDArray[np.bool_]:
        found = (each.get(name) is not None for each in objects)
        return np.fromiter(found, np.bool_, len(objects))

    def values(self, objects: Values, name: str) -> Values:
        return [each[name] for each in objects]

    def moments(self, values: Values) -> NDArray[np.int64]:
        raise TypeError("JSON has no times of its own")


_DECODER = msgspec.json.Decoder()


def decode_json(messages: Sequence[bytes]) -> list[Any]:
    """ValueError names the message that is not JSON."""
    made = []
    for number, data in enumerate(messages):
        try:
            made.append(_DECODER.decode(data))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"message {number} of a block is not JSON ({error})") from error
    return made
