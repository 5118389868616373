"""PLY files: every element with its columns, also if faces have different numbers of corners.

Many scans mix triangles and quads in binary files and store an `object_id` with every face. General loaders fail on the
first or lose the second (docs/decisions/0016-reading-meshes.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollbook.errors import InvalidMesh

_TYPES = {
    **dict.fromkeys(("char", "int8"), "i1"),
    **dict.fromkeys(("uchar", "uint8"), "u1"),
    **dict.fromkeys(("short", "int16"), "i2"),
    **dict.fromkeys(("ushort", "uint16"), "u2"),
    **dict.fromkeys(("int", "int32"), "i4"),
    **dict.fromkeys(("uint", "uint32"), "u4"),
    **dict.fromkeys(("float", "float32"), "f4"),
    **dict.fromkeys(("double", "float64"), "f8"),
}
_FORMATS = {"ascii": "", "binary_little_endian": "<", "binary_big_endian": ">"}


class _Property(NamedTuple):
    name: str
    dtype: str
    count_dtype: str | None
    """Type of the count before a list; None for a single value."""


class Lists(NamedTuple):
    """The lists of all entries in one array."""

    counts: NDArray[np.int64]
    values: NDArray[Any]


@dataclass(slots=True)
class PlyElement:
    rows: int
    properties: list[_Property] = field(default_factory=list)
    columns: dict[str, NDArray[Any]] = field(default_factory=dict)
    lists: dict[str, Lists] = field(default_factory=dict)


def read_ply(path: Path) -> dict[str, PlyElement]:
    """All elements by name."""
    data = path.read_bytes()
    header, end, body = data.partition(b"end_header")
    if not data.startswith(b"ply") or not end:
        raise InvalidMesh(record=path.name, detail="it does not start with a PLY header")
    order, elements = _parsed_header(header, path.name)
    body = body[2 if body.startswith(b"\r\n") else 1 :]
    source: _Bytes | _Words = _Bytes(body, order) if order else _Words(body, path.name)
    for name, element in elements.items():
        try:
            source.read(element)
        except (ValueError, IndexError, OverflowError) as error:
            detail = f"element {name!r} is not as long as its header says ({error})"
            raise InvalidMesh(record=path.name, detail=detail) from error
    return elements


def _parsed_header(header: bytes, name: str) -> tuple[str, dict[str, PlyElement]]:
    order: str | None = None
    elements: dict[str, PlyElement] = {}
    element = PlyElement(0)
    for line in header.decode("ascii", "replace").splitlines()[1:]:
        words = line.split()
        try:
            if words[:1] == ["format"]:
                order = _FORMATS[words[1]]
            elif words[:1] == ["element"]:
                element = elements[words[1]] = PlyElement(int(words[2]))
            elif words[:2] == ["property", "list"]:
                element.properties.append(_Property(words[4], _TYPES[words[3]], _TYPES[words[2]]))
            elif words[:1] == ["property"]:
                element.properties.append(_Property(words[2], _TYPES[words[1]], None))
        except (KeyError, IndexError, ValueError) as error:
            raise InvalidMesh(record=name, detail=f"header line {line!r}") from error
    if order is None:
        raise InvalidMesh(record=name, detail="the header names no format")
    return order, elements


# ---------------------------------------------------------------------------------- binary bodies


class _Bytes:
    def __init__(self, data: bytes, order: str) -> None:
        self._data = data
        self._order = order
        self._at = 0

    def read(self, element: PlyElement) -> None:
        if not element.rows:
            return
        if self._read_even(element):
            return
        starts, lengths = self._starts_and_lengths(element)
        self._gather(element, starts, lengths)

    def _dtype(self, element: PlyElement, lengths: tuple[int, ...]) -> np.dtype[Any]:
        """The type of an entry whose lists have these lengths."""
        fields: list[Any] = []
        listed = iter(lengths)
        for each in element.properties:
            if each.count_dtype is not None:
                fields.append((f"#{each.name}", self._order + each.count_dtype))
                fields.append((each.name, self._order + each.dtype, (next(listed),)))
            else:
                fields.append((each.name, self._order + each.dtype))
        return np.dtype(fields)

    def _read_even(self, element: PlyElement) -> bool:
        """The fast path, for entries of equal length. Returns False if the lengths differ."""
        lengths = self._lengths_at(element, self._at)[0]
        dtype = self._dtype(element, lengths)
        if self._at + dtype.itemsize * element.rows > len(self._data):
            return False
        table = np.frombuffer(self._data, dtype, element.rows, self._at)
        listed = [each.name for each in element.properties if each.count_dtype is not None]
        if any(
            (table[f"#{name}"] != length).any()
            for name, length in zip(listed, lengths, strict=True)
        ):
            return False
        self._at += dtype.itemsize * element.rows
        for each in element.properties:
            if each.count_dtype is None:
                element.columns[each.name] = table[each.name]
            else:
                counts = table[f"#{each.name}"].astype(np.int64)
                element.lists[each.name] = Lists(counts, table[each.name].reshape(-1))
        return True

    def _lengths_at(self, element: PlyElement, at: int) -> tuple[tuple[int, ...], int]:
        """The list lengths of the entry that starts at `at`, and its end."""
        lengths = []
        for each in element.properties:
            size = np.dtype(each.dtype).itemsize
            if each.count_dtype is None:
                at += size
                continue
            width = np.dtype(each.count_dtype).itemsize
            raw = self._data[at : at + width]
            if len(raw) < width:
                raise ValueError("it ends early")
            lengths.append(int.from_bytes(raw, "little" if self._order == "<" else "big"))
            at += width + size * lengths[-1]
        return tuple(lengths), at

    def _starts_and_lengths(
        self, element: PlyElement
    ) -> tuple[NDArray[np.int64], list[tuple[int, ...]]]:
        starts, lengths, at = np.zeros(element.rows, np.int64), [], self._at
        for row in range(element.rows):
            starts[row] = at
            found, at = self._lengths_at(element, at)
            lengths.append(found)
        if at > len(self._data):
            raise ValueError("it ends early")
        self._at = at
        return starts, lengths

    def _gather(
        self, element: PlyElement, starts: NDArray[np.int64], lengths: list[tuple[int, ...]]
    ) -> None:
        """Reads all entries of one shape at a time, and puts them into their order."""
        raw = np.frombuffer(self._data, np.uint8)
        shapes, shape_of = np.unique(np.array(lengths), axis=0, return_inverse=True)
        listed = [each.name for each in element.properties if each.count_dtype is not None]
        for each in element.properties:
            if each.count_dtype is None:
                element.columns[each.name] = np.zeros(element.rows, self._order + each.dtype)
            else:
                counts = np.array(lengths)[:, listed.index(each.name)].astype(np.int64)
                values = np.zeros(int(counts.sum()), self._order + each.dtype)
                element.lists[each.name] = Lists(counts, values)
        for number, shape in enumerate(shapes):
            rows = np.flatnonzero(shape_of.reshape(-1) == number)
            dtype = self._dtype(element, tuple(int(length) for length in shape))
            picked = raw[starts[rows, None] + np.arange(dtype.itemsize)]
            table = np.ascontiguousarray(picked).view(dtype).reshape(-1)
            for name in element.columns:
                element.columns[name][rows] = table[name]
            for name, (counts, values) in element.lists.items():
                begins = np.cumsum(counts)[rows] - counts[rows]
                width = int(counts[rows[0]])
                values[begins[:, None] + np.arange(width)] = table[name].reshape(len(rows), width)


# ----------------------------------------------------------------------------------- text bodies


class _Words:
    def __init__(self, data: bytes, name: str) -> None:
        try:
            self._words = np.array(data.split(), np.float64)
        except ValueError as error:
            raise InvalidMesh(record=name, detail=f"a value is not a number ({error})") from error
        self._at = 0

    def read(self, element: PlyElement) -> None:
        properties = element.properties
        places: dict[str, list[NDArray[Any]]] = {each.name: [] for each in properties}
        fixed = [each.name for each in properties if each.count_dtype is None]
        if len(fixed) == len(properties):
            end = self._at + element.rows * len(fixed)
            table = self._words[self._at : end].reshape(element.rows, len(fixed))
            element.columns = dict(zip(fixed, table.T, strict=True))
            self._at = end
            return
        for _ in range(element.rows):
            for each in properties:
                count = 1
                if each.count_dtype is not None:
                    count = int(self._words[self._at])
                    self._at += 1
                places[each.name].append(self._words[self._at : self._at + count])
                self._at += count
        if self._at > len(self._words):
            raise ValueError("it ends early")
        for each in properties:
            found = places[each.name]
            values = np.concatenate(found).astype(each.dtype) if found else np.zeros(0, each.dtype)
            if each.count_dtype is None:
                element.columns[each.name] = values
            else:
                counts = np.array([len(part) for part in found], np.int64)
                element.lists[each.name] = Lists(counts, values)
