"""Example: the lists of values in one record, a `tf.train.Example`, read in place.

The record is a Protocol Buffers message of three kinds of lists: bytes, float32 and int64. It is read here and not
with the library `protobuf`, which holds a copy of the whole episode. A list is decoded in blocks, so that a long
episode needs no more memory than a short one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
_BLOCK = 1 << 20
_EXAMPLE_FEATURES, _FEATURES_FEATURE, _ENTRY_KEY, _ENTRY_VALUE = 1, 1, 1, 2
_KINDS = {1: "bytes", 2: "float", 3: "int"}


class DamagedExample(Exception):
    """The bytes are not an Example."""


@dataclass(frozen=True, slots=True)
class BytesValues:
    listed: memoryview
    count: int
    header: int | None = None
    """Bytes before each entry, where all entries have the same length; else None."""

    def entries(self) -> Iterator[memoryview]:
        for entry, times in self.runs():
            for _ in range(times):
                yield entry

    def runs(self) -> Iterator[tuple[memoryview, int]]:
        """The entries, and how often each is repeated. Only entries of one length are compared with each other."""
        if self.header is None:
            for entry in _messages(self.listed, 1):
                yield entry, 1
            return
        size = len(self.listed) // self.count
        rows = np.frombuffer(self.listed, np.uint8).reshape(self.count, size)
        at_once = max(1, _BLOCK // size)
        for first in range(0, self.count, at_once):
            block = rows[first : first + at_once]
            changes = np.flatnonzero((block[1:] != block[:-1]).any(axis=1)) + 1
            for start, stop in zip([0, *changes], [*changes, len(block)], strict=True):
                at = (first + int(start)) * size
                yield self.listed[at + self.header : at + size], int(stop - start)


@dataclass(frozen=True, slots=True)
class FloatValues:
    parts: tuple[memoryview, ...]
    count: int

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        for part in self.parts:
            yield np.frombuffer(part, "<f4")


@dataclass(frozen=True, slots=True)
class IntValues:
    parts: tuple[memoryview, ...]
    count: int

    def blocks(self) -> Iterator[NDArray[np.int64]]:
        for part in self.parts:
            first = 0
            while first < len(part):
                block = np.frombuffer(part[first : first + _BLOCK], np.uint8)
                whole = _whole_varints(block)
                yield decoded_varints(block[:whole])
                first += whole


Values: TypeAlias = "BytesValues | FloatValues | IntValues"


def parse_example(data: memoryview) -> dict[str, Values]:
    """The lists by their names. A name that is there twice means the last one, as everywhere in Protocol Buffers."""
    found: dict[str, Values] = {}
    for features in _messages(data, _EXAMPLE_FEATURES):
        for entry in _messages(features, _FEATURES_FEATURE):
            key, value = "", memoryview(b"")
            for number, kind, part in _fields(entry):
                if kind == _BYTES and isinstance(part, memoryview):
                    if number == _ENTRY_KEY:
                        key = _text(part)
                    elif number == _ENTRY_VALUE:
                        value = part
            values = _values(value)
            if values is not None:
                found[key] = values
    return found


def _values(feature: memoryview) -> Values | None:
    """None for a feature without a list."""
    chosen: tuple[str, memoryview] | None = None
    for number, kind, part in _fields(feature):
        if kind == _BYTES and number in _KINDS and isinstance(part, memoryview):
            chosen = _KINDS[number], part
    if chosen is None:
        return None
    name, listed = chosen
    if name == "bytes":
        return _bytes_values(listed)
    return _float_values(listed) if name == "float" else _int_values(listed)


def _bytes_values(listed: memoryview) -> BytesValues:
    """Entries of one length are found without a loop: if every so many bytes there is the same header again, these are
    the headers."""
    if len(listed) > 1 and listed[0] == 1 << 3 | _BYTES:
        length, header = _varint(listed, 1)
        count, rest = divmod(len(listed), header + length)
        if count and not rest:
            rows = np.frombuffer(listed, np.uint8).reshape(count, -1)[:, :header]
            if (rows == rows[0]).all():
                return BytesValues(listed, count, header)
    return BytesValues(listed, sum(1 for _ in _messages(listed, 1)))


def _float_values(listed: memoryview) -> FloatValues:
    """TensorFlow packs floats. Protocol Buffers allow one field for each float as well."""
    packed, single = list[memoryview](), bytearray()
    for number, kind, part in _fields(listed):
        if number == 1 and isinstance(part, memoryview):
            if kind == _FIXED_32:
                single += part
            elif len(part) % 4:
                raise DamagedExample(f"a list of floats has {len(part)} bytes")
            else:
                packed.append(part)
    parts = (*packed, memoryview(bytes(single))) if single else tuple(packed)
    return FloatValues(parts, sum(map(len, parts)) // 4)


def _int_values(listed: memoryview) -> IntValues:
    packed, single = list[memoryview](), bytearray()
    for number, kind, part in _fields(listed):
        if number != 1:
            continue
        if isinstance(part, memoryview) and kind == _BYTES:
            packed.append(part)
        elif isinstance(part, int) and kind == _VARINT:
            single += _varint_bytes(part)
    parts = (*packed, memoryview(bytes(single))) if single else tuple(packed)
    return IntValues(parts, sum(map(_count_varints, parts)))


# -------------------------------------------------------------------------------------- wire format


def _messages(data: memoryview, wanted: int) -> Iterator[memoryview]:
    for number, kind, value in _fields(data):
        if number == wanted and kind == _BYTES and isinstance(value, memoryview):
            yield value


def _fields(data: memoryview) -> Iterator[tuple[int, int, memoryview | int]]:
    """Number, kind and value of each field of a message."""
    at, size = 0, len(data)
    while at < size:
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, kind, value
            continue
        if kind == _BYTES:
            length, at = _varint(data, at)
        elif kind in (_FIXED_32, _FIXED_64):
            length = 4 if kind == _FIXED_32 else 8
        else:
            raise DamagedExample(f"a field of kind {kind}")
        if length > size - at:
            raise DamagedExample(f"a field of {length} bytes, where {size - at} are left")
        yield number, kind, data[at : at + length]
        at += length


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A whole number, and where it ends."""
    value = shift = 0
    for byte in data[at : at + _LONGEST_VARINT]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at + shift // 7
    raise DamagedExample("a number that does not end")


def _varint_bytes(value: int) -> bytes:
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _count_varints(part: memoryview) -> int:
    """Every number ends with a byte below 128."""
    if len(part) and part[-1] >= 0x80:
        raise DamagedExample("a list of numbers whose last one does not end")
    blocks = (part[first : first + _BLOCK] for first in range(0, len(part), _BLOCK))
    return sum(int(np.count_nonzero(np.frombuffer(each, np.uint8) < 0x80)) for each in blocks)


def _whole_varints(block: NDArray[np.uint8]) -> int:
    """Bytes of the block up to the end of its last whole number."""
    tail = np.flatnonzero(block[-_LONGEST_VARINT:] < 0x80)
    if not tail.size:
        raise DamagedExample("a number of more than 10 bytes")
    return max(0, len(block) - _LONGEST_VARINT) + int(tail[-1]) + 1


def decoded_varints(block: NDArray[np.uint8]) -> NDArray[np.int64]:
    """All whole numbers of the block."""
    ends = np.flatnonzero(block < 0x80)
    if len(ends) == len(block):
        return block.astype(np.int64)
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    longest = int(lengths.max())
    if longest > _LONGEST_VARINT:
        raise DamagedExample("a number of more than 10 bytes")
    values = np.zeros(len(ends), np.uint64)
    for position in range(longest):
        there = lengths > position
        seven_bits = block[starts[there] + position].astype(np.uint64) & np.uint64(0x7F)
        values[there] |= seven_bits << np.uint64(7 * position)
    return values.view(np.int64)


def _text(data: memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise DamagedExample("the name of a feature is not text") from error
