"""The bytes of protobuf messages, made for many rows at once.

Numbers are written with a fixed width, so that all rows of a block have the same length and NumPy can lay them out
side by side. Only the varints of a timestamp differ in length: rows are grouped by it. A test compares the messages
with those of the protobuf library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes2D: TypeAlias = "NDArray[np.uint8]"
"""One row of bytes for each message."""
Part: TypeAlias = "bytes | Bytes2D"
"""The same bytes in every message, or one row for each."""

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_NS = 1_000_000_000


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tag(number: int, wire_type: int) -> bytes:
    return varint(number << 3 | wire_type)


def width(parts: Sequence[Part]) -> int:
    return sum(len(part) if isinstance(part, bytes) else part.shape[1] for part in parts)


def nested(number: int, parts: Sequence[Part]) -> list[Part]:
    """A field that holds a message, text, bytes or a packed list."""
    return [tag(number, LENGTH) + varint(width(parts)), *parts]


def text(number: int, value: str) -> bytes:
    data = value.encode()
    return tag(number, LENGTH) + varint(len(data)) + data


def raw(array: NDArray[Any]) -> Bytes2D:
    """The bytes of every row."""
    rows = np.ascontiguousarray(array).reshape(len(array), -1)
    return rows.view(np.uint8).reshape(len(array), -1)


def messages(parts: Sequence[Part], rows: int) -> list[bytes]:
    length = width(parts)
    if not length:
        return [b""] * rows
    block = np.empty((rows, length), np.uint8)
    at = 0
    for part in parts:
        if isinstance(part, bytes):
            block[:, at : at + len(part)] = np.frombuffer(part, np.uint8)
            at += len(part)
        else:
            block[:, at : at + part.shape[1]] = part
            at += part.shape[1]
    data = block.tobytes()
    return [data[first : first + length] for first in range(0, len(data), length)]


def stamped_messages(
    number: int,
    t_ns: NDArray[np.int64],
    others: Callable[[NDArray[np.intp]], Sequence[Part]],
) -> list[bytes]:
    """Messages that begin with a google.protobuf.Timestamp in field `number`. `others` gives the fields after it for
    the rows whose numbers it gets."""
    seconds, nanos = np.divmod(t_ns, _NS)
    lengths = np.stack([_varint_lengths(seconds), _varint_lengths(nanos)])
    made: list[bytes] = [b""] * len(t_ns)
    for s_length, n_length in np.unique(lengths, axis=1).T.tolist():
        rows = np.flatnonzero((lengths[0] == s_length) & (lengths[1] == n_length))
        stamp: list[Part] = []
        for field, values, length in ((1, seconds, s_length), (2, nanos, n_length)):
            if length:
                stamp += [tag(field, VARINT), _varints(values[rows], length)]
        parts = [*nested(number, stamp), *others(rows)]
        for row, message in zip(rows.tolist(), messages(parts, len(rows)), strict=True):
            made[row] = message
    return made


def _varint_lengths(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """0 for a value of 0, which is left out."""
    lengths = np.zeros(len(values), np.int64)
    for bits in range(0, 63, 7):
        lengths += values >= 1 << bits
    return lengths


def _varints(values: NDArray[np.int64], length: int) -> Bytes2D:
    out = np.empty((len(values), length), np.uint8)
    for i in range(length):
        out[:, i] = (values >> (7 * i)) & 0x7F
    out[:, : length - 1] |= 0x80
    return out
