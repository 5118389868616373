"""Columns from messages that a library decodes one by one into Python objects: protobuf and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.ros2.shape import (
    NAME_FIELDS,
    PRESENT,
    Array,
    Group,
    Moment,
    Node,
    Number,
    Survey,
    Text,
    Unusable,
    array_key,
    column_name,
    joined,
    length_column,
)

Values: TypeAlias = "Sequence[Any]"
_Places: TypeAlias = "tuple[NDArray[np.int64], ...]"
_Wanted: TypeAlias = "Mapping[str, NDArray[Any]]"


class Access(Protocol):
    """How the fields of decoded objects are read, one field of many objects at once."""

    def present(self, objects: Values, name: str) -> NDArray[np.bool_]:
        """Which of the objects have an optional field."""
        ...

    def values(self, objects: Values, name: str) -> Values: ...

    def moments(self, values: Values) -> NDArray[np.int64]:
        """Times in nanoseconds. ValueError for one that 64 bits do not hold."""
        ...


class ObjectColumns:
    """Walks over a Shape. Every step looks at one field of all objects."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def survey(self, root: Node, objects: Values, survey: Survey) -> None:
        self._survey(root, objects, "", survey)
        survey.rows += len(objects)

    def read(self, root: Node, objects: Values, columns: _Wanted, survey: Survey) -> int:
        """Fill the columns. Fields without a column are not looked at. Returns how many texts end in NUL, which an
        array of text does not keep."""
        wanted = {path for name in columns for path in _paths_to(name)}
        absent = {path for path, count in survey.absent.items() if count}
        reading = _Reading(self._access, columns, wanted, absent)
        reading.node(root, objects, "", (np.arange(len(objects)),))
        return reading.cut_texts

    def _survey(
        self, node: Node, values: Values, path: str, survey: Survey, level: int = 0
    ) -> None:
        if isinstance(node, Group):
            for name, member, is_optional in node.members:
                inner, owners = joined(path, name), values
                if is_optional and values:
                    present = self._access.present(values, name)
                    survey.presence(inner, present)
                    owners = _chosen(values, present)
                if not isinstance(member, Number | Unusable):
                    self._survey(member, self._access.values(owners, name), inner, survey)
        elif isinstance(node, Array):
            lengths = np.fromiter(map(len, values), np.int64, len(values))
            survey.array(array_key(path, level), lengths)
            if not isinstance(node.of, Number):
                self._survey(node.of, list(chain.from_iterable(values)), path, survey, level + 1)
        elif isinstance(node, Text):
            survey.text(path or "value", np.fromiter(map(len, values), np.int64, len(values)))
            if path in NAME_FIELDS:
                survey.add_names(path, list(values))
        elif isinstance(node, Moment):
            self._access.moments(
                values
            )  # a time that cannot be kept is found before anything is written


def _paths_to(name: str) -> Iterator[str]:
    """The fields that have to be looked at for a column: `a`, `a.b` and `a.b.c` for `a.b.c`."""
    yield name
    if name.endswith("_ns"):
        yield name.removesuffix("_ns")
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _chosen(values: Values, present: NDArray[np.bool_]) -> Values:
    return values if present.all() else list(compress(values, present.tolist()))


@dataclass(slots=True)
class _Reading:
    access: Access
    columns: _Wanted
    wanted: set[str]
    absent: set[str]
    """Optional fields that some messages do not set. All others are always there."""
    cut_texts: int = 0

    def node(self, node: Node, values: Values, path: str, places: _Places, level: int = 0) -> None:
        if isinstance(node, Group):
            for name, member, _ in node.members:
                inner = joined(path, name)
                if inner in self.wanted:
                    self._member(member, values, inner, name, places)
        elif isinstance(node, Array):
            self._arrays(node, values, path, places, level)
        else:
            column = self.columns.get(column_name(path, node))
            if column is None or not len(values):
                return
            if isinstance(node, Text):
                self.cut_texts += sum(text[-1:] == "\0" for text in values)
            is_moment = isinstance(node, Moment)
            column[places] = (
                self.access.moments(values) if is_moment else np.array(values, column.dtype)
            )

    def _member(self, node: Node, owners: Values, path: str, name: str, places: _Places) -> None:
        if path in self.absent and owners:
            present = self.access.present(owners, name)
            column = self.columns.get(joined(path, PRESENT))
            if column is not None:
                column[places] = present
            if not present.all():
                owners = _chosen(owners, present)
                places = tuple(place[present] for place in places)
        self.node(node, self.access.values(owners, name), path, places)

    def _arrays(self, node: Array, values: Values, path: str, places: _Places, level: int) -> None:
        lengths = np.fromiter(map(len, values), np.int64, len(values))
        column = self.columns.get(length_column(path, level))
        if column is not None:
            column[places] = lengths
        total = int(lengths.sum())
        owners = tuple(np.repeat(place, lengths) for place in places)
        entries = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        inner = (*owners, entries)
        if not isinstance(node.of, Number):
            self.node(node.of, list(chain.from_iterable(values)), path, inner, level + 1)
            return
        column = self.columns.get(path or "value")
        if column is not None and total:
            column[inner] = _flat(values, node.of.dtype, total)


def _flat(values: Values, dtype: np.dtype[Any], total: int) -> NDArray[Any]:
    if isinstance(values[0], bytes):
        return np.frombuffer(b"".join(values), np.uint8)
    return np.fromiter(chain.from_iterable(values), dtype, total)
