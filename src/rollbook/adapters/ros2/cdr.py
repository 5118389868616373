"""CdrReader: the columns of many messages in CDR, the encoding of ROS 2, at once.

Every step reads one field of all messages of a block: each message has its own position, and the positions are an
array. Loops in Python are over fields and over the entries of nested arrays, never over messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.ros2.shape import (
    LENGTH,
    Array,
    Group,
    Moment,
    Node,
    Number,
    Survey,
    Text,
    column_name,
    joined,
)

_HEAD = 4
"""Bytes before the first field, which tell the byte order."""
_PADDING = 7
"""Bytes that may follow the last field: writers fill up to a multiple of 4 or 8."""
_LONG = 256
"""Arrays with this many entries are copied length by length; shorter ones entry by entry, all lengths together."""
Positions: TypeAlias = "NDArray[np.int64]"
Columns: TypeAlias = "Mapping[str, NDArray[Any]]"


@dataclass(frozen=True, slots=True)
class CdrReader:
    root: Node

    def survey(self, messages: Sequence[bytes], survey: Survey) -> None:
        """Note the lengths of arrays and texts. ValueError says that a message is not of this type."""
        for first, walk in _walks(messages):
            walk.survey = survey
            self._run(walk, first)
        survey.rows += len(messages)

    def read(self, messages: Sequence[bytes], columns: Columns) -> tuple[int, int]:
        """Fill the columns, which are as large as the survey says. Fields without a column are passed over.

        Returns how many texts are not UTF-8, whose wrong bytes are replaced, and how many end in NUL, which an array of
        text does not keep.
        """
        replaced = cut = 0
        for first, walk in _walks(messages):
            rows = slice(first, first + walk.count)
            walk.columns = {name: column[rows] for name, column in columns.items()}
            self._run(walk, first)
            replaced += walk.replaced_texts
            cut += walk.cut_texts
        return replaced, cut

    def _run(self, walk: _Walk, first: int) -> None:
        walk.first = first
        walk.node(self.root, "", np.arange(walk.count), ())
        rest = walk.end - walk.at
        if (rest > _PADDING).any():
            row = int(np.argmax(rest > _PADDING))
            raise ValueError(f"{int(rest[row])} bytes are left over {walk.which(row)}")


def _walks(messages: Sequence[bytes]) -> Iterator[tuple[int, _Walk]]:
    """One walk for each run of messages in the same byte order."""
    heads = np.frombuffer(b"".join(each[:2].ljust(2, b"\xff") for each in messages), np.uint8)
    orders = heads.reshape(-1, 2)
    wrong = (orders[:, 0] != 0) | (orders[:, 1] > 1)
    if wrong.any():
        row = int(np.argmax(wrong))
        kind = messages[row][:2].hex() or "nothing"
        raise ValueError(f"message {row} of a block begins with {kind}, not as plain CDR does")
    starts = [0, *(np.flatnonzero(np.diff(orders[:, 1])) + 1).tolist(), len(messages)]
    for first, end in pairwise(starts):
        if first < end:
            yield first, _Walk(messages[first:end], bool(orders[first, 1]))


class _Walk:
    """The positions in all messages of a block."""

    def __init__(self, messages: Sequence[bytes], is_little: bool) -> None:
        self.count = len(messages)
        self.first = 0
        sizes = np.fromiter(map(len, messages), np.int64, self.count)
        self._data = b"".join(messages)
        ends = np.cumsum(sizes)
        self._start = ends - sizes + _HEAD
        self.at = self._start.copy()
        self.end = ends
        self._order: Literal["<", ">"] = "<" if is_little else ">"
        self.replaced_texts = self.cut_texts = 0
        self.survey: Survey | None = None
        self.columns: Columns = {}
        if (sizes < _HEAD).any():
            raise ValueError("a message has less than 4 bytes")

    def which(self, row: int) -> str:
        return f"in message {self.first + row} of a block"

    def node(self, node: Node, path: str, rows: Positions, index: tuple[int, ...]) -> None:
        """Read one field of these rows. `index` is the place in the arrays around it."""
        if isinstance(node, Group):
            for name, member, _ in node.members:
                self.node(member, joined(path, name), rows, index)
        elif isinstance(node, Number):
            at = self._take(rows, node.dtype.itemsize, node.dtype.itemsize)
            column = self.columns.get(column_name(path, node))
            if column is not None:
                column[_place(rows, *index)] = self._values(node.dtype, at)
        elif isinstance(node, Moment):
            at = self._take(rows, 4, 8)
            column = self.columns.get(column_name(path, node))
            if column is not None:
                column[_place(rows, *index)] = self._moments(at)
        elif isinstance(node, Text):
            self._text(path, rows, index)
        elif isinstance(node, Array):
            self._array(node, path, rows, index)

    # ---------------------------------------------------------------------------------------- arrays

    def _array(self, node: Array, path: str, rows: Positions, index: tuple[int, ...]) -> None:
        if node.length is not None:
            lengths = np.full(len(rows), node.length, np.int64)
        else:
            lengths = self._values(np.dtype("<u4"), self._take(rows, 4, 4)).astype(np.int64)
            if self.survey is not None:
                self.survey.array(path, lengths)
            column = self.columns.get(joined(path, LENGTH))
            if column is not None:
                column[_place(rows, *index)] = lengths
        leaves = _packed(node.of, path)
        if leaves is not None:
            self._packed_entries(leaves, rows, lengths, index)
            return
        # every entry has at least one byte
        self._check(rows, self.at[rows] + lengths)
        for entry in range(int(lengths.max(initial=0))):
            self.node(node.of, path, rows[lengths > entry], (*index, entry))

    def _packed_entries(
        self,
        leaves: Sequence[_Leaf],
        rows: Positions,
        lengths: Positions,
        index: tuple[int, ...],
    ) -> None:
        """Entries that are all of one size and lie side by side."""
        width = leaves[0].width
        stride = leaves[-1].offset + leaves[-1].bytes
        some = lengths > 0
        if not some.all():
            rows, lengths = rows[some], lengths[some]
        if not len(rows):
            return
        at = self._take(rows, width, lengths * stride)
        used = [leaf for leaf in leaves if leaf.name in self.columns]
        if not used:
            return
        sizes = np.unique(lengths).tolist()
        if len(sizes) == 1 or int(lengths.sum()) >= _LONG * len(sizes):
            for size in sizes:
                chosen = lengths == size
                for leaf in used:
                    values = self._strided(leaf, at[chosen], size, stride)
                    self.columns[leaf.name][_place(rows[chosen], *index, slice(0, size))] = values
            return
        owners = np.repeat(rows, lengths)
        entries = np.arange(len(owners)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        places = np.repeat(at, lengths) + entries * stride
        for leaf in used:
            values = self._strided(leaf, places, 1, stride)[:, 0]
            self.columns[leaf.name][_place(owners, *index, entries)] = values

    def _strided(self, leaf: _Leaf, at: Positions, count: int, stride: int) -> NDArray[Any]:
        """`count` entries of each row, `stride` bytes apart."""
        at = at + leaf.offset
        if isinstance(leaf.node, Moment):
            steps = at[:, None] + np.arange(count) * stride
            return self._moments(steps)
        is_flag = leaf.node.dtype.kind == "b"
        dtype = np.dtype(np.uint8) if is_flag else leaf.node.dtype.newbyteorder(self._order)
        shape: tuple[int, ...] = (count,)
        strides: tuple[int, ...] = (stride,)
        if leaf.length is not None:
            shape, strides = (count, leaf.length), (stride, leaf.width)
        reach = (count - 1) * stride + leaf.bytes
        windows: NDArray[Any] = np.ndarray(
            (len(self._data) - reach + 1, *shape), dtype, self._data, 0, (1, *strides)
        )
        values = windows[at]
        return values != 0 if is_flag else values

    # ----------------------------------------------------------------------------------------- texts

    def _text(self, path: str, rows: Positions, index: tuple[int, ...]) -> None:
        sizes = self._values(np.dtype("<u4"), self._take(rows, 4, 4)).astype(np.int64)
        at = self._take(rows, 1, sizes)
        lengths = np.maximum(sizes - 1, 0)  # the last byte is NUL
        if self.survey is not None:
            self.survey.text(path or "value", lengths)
        column = self.columns.get(path or "value")
        if column is None or not lengths.any():
            return
        longest = int(lengths.max())
        places = np.minimum(at[:, None] + np.arange(longest), len(self._data) - 1)
        letters = np.frombuffer(self._data, np.uint8)[places]
        letters[np.arange(longest) >= lengths[:, None]] = 0
        texts = letters.astype("<u4").view(f"<U{longest}")[:, 0]
        ends = letters[np.arange(len(letters)), lengths - 1]
        self.cut_texts += int(np.count_nonzero((ends == 0) & (lengths > 0)))
        for row in np.flatnonzero((letters > 127).any(axis=1)).tolist():
            raw = self._data[at[row] : at[row] + lengths[row]]
            texts[row] = self._decoded(raw)
        column[_place(rows, *index)] = texts

    def _decoded(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self.replaced_texts += 1
            return raw.decode("utf-8", "replace")

    # ---------------------------------------------------------------------------------------- values

    def _take(self, rows: Positions, alignment: int, size: int | Positions) -> Positions:
        """Where the next field of `size` bytes begins; the positions move behind it."""
        at = self.at[rows]
        if alignment > 1:
            at += (self._start[rows] - at) & (alignment - 1)
        after = at + size
        self._check(rows, after)
        self.at[rows] = after
        return at

    def _check(self, rows: Positions, after: Positions) -> None:
        beyond = after > self.end[rows]
        if beyond.any():
            row = int(rows[int(np.argmax(beyond))])
            raise ValueError(f"a field goes beyond the end {self.which(row)}")

    def _values(self, dtype: np.dtype[Any], at: Positions) -> NDArray[Any]:
        is_flag = dtype.kind == "b"
        plain = np.dtype(np.uint8) if is_flag else dtype.newbyteorder(self._order)
        count = len(self._data) - plain.itemsize + 1
        if count <= 0 or not at.size:
            return np.zeros(at.shape, dtype)
        # one value at every byte: only those that are asked for are read
        values: NDArray[Any] = np.ndarray((count,), plain, self._data, 0, (1,))[at]
        return values != 0 if is_flag else values

    def _moments(self, at: Positions) -> NDArray[np.int64]:
        seconds = self._values(np.dtype("<i4"), at).astype(np.int64)
        return seconds * 1_000_000_000 + self._values(np.dtype("<u4"), at + 4).astype(np.int64)


def _place(*parts: Any) -> Any:
    """An index of a column: rows, places in the arrays around, and entries."""
    return parts


# ---------------------------------------------------------------------------------- packed entries


@dataclass(frozen=True, slots=True)
class _Leaf:
    name: str
    node: Number | Moment
    width: int
    """Bytes of one value, to which it is aligned."""
    offset: int
    length: int | None = None
    """Entries of an array of fixed length inside of the entry."""

    @property
    def bytes(self) -> int:
        size = 8 if isinstance(self.node, Moment) else self.width
        return size * (1 if self.length is None else self.length)


def _packed(node: Node, path: str) -> list[_Leaf] | None:
    """The values of an entry, if all have the same width: then entries have no gaps. None for any other entry."""
    leaves: list[_Leaf] = []
    if not _add_leaves(node, path, leaves) or not leaves:
        return None
    return leaves if len({leaf.width for leaf in leaves}) == 1 else None


def _add_leaves(node: Node, path: str, leaves: list[_Leaf]) -> bool:
    offset = leaves[-1].offset + leaves[-1].bytes if leaves else 0
    if isinstance(node, Number):
        leaves.append(_Leaf(path or "value", node, node.dtype.itemsize, offset))
    elif isinstance(node, Moment):
        leaves.append(_Leaf(column_name(path, node), node, 4, offset))
    elif isinstance(node, Array) and node.length is not None and isinstance(node.of, Number):
        leaves.append(_Leaf(path or "value", node.of, node.of.dtype.itemsize, offset, node.length))
    elif isinstance(node, Group):
        return all(_add_leaves(each.node, joined(path, each.name), leaves) for each in node.members)
    else:
        return False
    return True
