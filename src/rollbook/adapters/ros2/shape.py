"""Shape of a message: a tree of numbers, texts, times, groups and arrays, whatever language described it.

The columns of a topic follow from the tree and from the longest text and array that the topic holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

LENGTH = "_length"
"""Last part of the name of a column that tells how many entries of an array are real."""
PRESENT = "_present"
"""Last part of the name of a column that tells whether an optional field was set."""
NAME_FIELDS = ("name", "joint_names", "joints.name")
"""Fields with the names of joints. Most topics repeat the same names in every message."""
PLACEHOLDER = "structure_needs_at_least_one_member"
"""The byte that ROS 2 writes for a message without fields. It has no meaning and becomes no column."""
_MOST_PADDED = 1 << 28
_MOST_RATIO = 16
"""A column may have `_MOST_PADDED` bytes, or this many times the bytes of its real entries."""
MOST_COLUMNS = 1024
MOST_FIELDS = 2048
DEEPEST = 24


@dataclass(frozen=True, slots=True)
class Number:
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class Text:
    pass


@dataclass(frozen=True, slots=True)
class Moment:
    """Seconds and nanoseconds, which become one column of nanoseconds."""


@dataclass(frozen=True, slots=True)
class Array:
    of: Node
    length: int | None
    """None where every message has its own."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """A field that cannot become a column."""

    reason: str


class Member(NamedTuple):
    name: str
    node: Node
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    members: tuple[Member, ...]


Node: TypeAlias = Number | Text | Moment | Array | Group | Unusable


class ShapeProblem(ValueError):
    """The type cannot become columns; the text says why."""


def joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def array_key(path: str, level: int) -> str:
    """The key of an array in a survey. `level` counts the arrays around it that have the same path: an array directly
    inside of an array, which only JSON has, is of level 1."""
    return path + "[]" * level


def length_column(path: str, level: int) -> str:
    """`FIELD._length`; for arrays directly inside of arrays `FIELD._length_2` and so on."""
    return joined(path, f"{LENGTH}_{level + 1}" if level else LENGTH)


# ------------------------------------------------------------------------------------------- survey


@dataclass(slots=True)
class Extent:
    """The lengths of one array or text over all messages of a topic."""

    least: int = 2**62
    most: int = 0
    total: int = 0

    def add(self, lengths: NDArray[Any]) -> None:
        if lengths.size:
            self.least = min(self.least, int(lengths.min()))
            self.most = max(self.most, int(lengths.max()))
            self.total += int(lengths.sum(dtype=np.int64))

    @property
    def is_constant(self) -> bool:
        return self.least == self.most


@dataclass(slots=True)
class Survey:
    """What a first pass over a topic found out, by the path of the field."""

    rows: int = 0
    arrays: dict[str, Extent] = field(default_factory=dict)
    """By `array_key`."""
    texts: dict[str, Extent] = field(default_factory=dict)
    absent: dict[str, int] = field(default_factory=dict)
    """How often an optional field was not set."""

    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The names of joints, as long as every message has the same; empty if they differ."""

    def add_names(self, path: str, texts: list[str]) -> None:
        """`texts` are the names in a block of messages, one message after the other."""
        extent = self.arrays.get(path) or self.arrays.get(path.rpartition(".")[0])
        if extent is None or not extent.is_constant or not texts:
            self.names[path] = ()
            return
        known = self.names.setdefault(path, tuple(texts[: extent.most]))
        if not known or texts != [*known] * (len(texts) // len(known)):
            self.names[path] = ()

    def array(self, key: str, lengths: NDArray[Any]) -> None:
        self.arrays.setdefault(key, Extent()).add(lengths)

    def text(self, path: str, lengths: NDArray[Any]) -> None:
        self.texts.setdefault(path, Extent()).add(lengths)

    def presence(self, path: str, present: NDArray[np.bool_]) -> None:
        missing = int(present.size - np.count_nonzero(present))
        self.absent[path] = self.absent.get(path, 0) + missing


# ------------------------------------------------------------------------------------------ columns


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    """Of one row."""

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize

    def empty(self, rows: int) -> NDArray[Any]:
        """Rows that hold nothing yet: not-a-number, zero, false or an empty text."""
        fill = np.nan if self.dtype.kind == "f" else np.zeros((), self.dtype)[()]
        return np.full((rows, *self.shape), fill, self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPlan:
    columns: tuple[Column, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    """Fields that do not become columns, with the reason."""
    empty: tuple[str, ...] = ()
    """Arrays without an entry in any message, and optional fields that are never set."""

    @property
    def row_bytes(self) -> int:
        return sum(column.row_bytes for column in self.columns)


def plan_columns(root: Node, survey: Survey) -> ColumnPlan:
    columns: list[Column] = []
    skipped: list[tuple[str, str]] = []
    empty: list[str] = []
    for name, leaf, axes, entries in _leaves(root, survey, "", (), survey.rows):
        if isinstance(leaf, Unusable):
            skipped.append((name, leaf.reason))
            continue
        if name.rpartition(".")[2] == PLACEHOLDER:
            continue
        if 0 in axes:
            empty.append(name)
            continue
        column = Column(name, _dtype(name, leaf, survey), axes)
        real = entries * column.dtype.itemsize
        if isinstance(leaf, Text):
            real = 4 * survey.texts.get(name, Extent()).total
        padded = column.row_bytes * survey.rows
        if padded > max(_MOST_PADDED, _MOST_RATIO * real):
            reason = f"its lengths differ too much: {real} bytes would become {padded} with padding"
            skipped.append((name, reason))
            continue
        columns.append(column)
    names = Counter(column.name for column in columns)
    for name, count in names.items():
        if count > 1:
            raise ShapeProblem(f"{count} of its fields would become the column {name!r}")
    if len(columns) > MOST_COLUMNS:
        raise ShapeProblem(f"it has {len(columns)} fields; at most {MOST_COLUMNS} are imported")
    return ColumnPlan(columns=tuple(columns), skipped=tuple(skipped), empty=tuple(empty))


def _dtype(name: str, leaf: Node, survey: Survey) -> np.dtype[Any]:
    if isinstance(leaf, Number):
        return leaf.dtype
    if isinstance(leaf, Moment):
        return np.dtype(np.int64)
    return np.dtype(f"<U{max(1, survey.texts.get(name, Extent()).most)}")


_COUNT = Number(np.dtype(np.int64))
_FLAG = Number(np.dtype(np.bool_))


def _leaves(
    node: Node, survey: Survey, path: str, axes: tuple[int, ...], entries: int, level: int = 0
) -> Iterator[tuple[str, Node, tuple[int, ...], int]]:
    """Name, kind, shape of one row, and number of real values of every column."""
    if isinstance(node, Group):
        for name, member, is_optional in node.members:
            inner = joined(path, name)
            absent = survey.absent.get(inner, 0) if is_optional else 0
            if absent and not isinstance(member, Unusable):
                if absent == entries:
                    yield inner, _FLAG, (0,), 0
                    continue
                yield joined(inner, PRESENT), _FLAG, axes, entries
            yield from _leaves(member, survey, inner, axes, entries - absent)
    elif isinstance(node, Array):
        if node.length is not None:
            longest, inside = node.length, entries * node.length
        else:
            extent = survey.arrays.get(array_key(path, level), Extent(0))
            longest, inside = extent.most, extent.total
            if not extent.is_constant:
                yield length_column(path, level), _COUNT, axes, entries
        yield from _leaves(node.of, survey, path, (*axes, longest), inside, level + 1)
    else:
        yield column_name(path, node), node, axes, entries


def column_name(path: str, leaf: Node) -> str:
    name = path or "value"
    return f"{name}_ns" if isinstance(leaf, Moment) else name
