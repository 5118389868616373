"""Protobuf messages: the descriptors in an MCAP file as a Shape, and messages decoded with them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter, methodcaller
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.extras import library
from rollbook.adapters.ros2.objects import Values
from rollbook.adapters.ros2.shape import (
    DEEPEST,
    MOST_FIELDS,
    Array,
    Group,
    Member,
    Moment,
    Node,
    Number,
    ShapeProblem,
    Text,
    Unusable,
)
from rollbook.adapters.ros2.storage import Channel

_NUMBERS = {
    "CPPTYPE_INT32": "<i4",
    "CPPTYPE_INT64": "<i8",
    "CPPTYPE_UINT32": "<u4",
    "CPPTYPE_UINT64": "<u8",
    "CPPTYPE_DOUBLE": "<f8",
    "CPPTYPE_FLOAT": "<f4",
    "CPPTYPE_BOOL": "?",
    "CPPTYPE_ENUM": "<i4",
}
_MOMENTS = ("google.protobuf.Timestamp", "google.protobuf.Duration")
_MOST_SECONDS = 2**63 // 10**9 - 3
_MOST_DESCRIPTORS = 1 << 24


def message_class(channel: Channel) -> Any:
    """The class of the messages. ShapeProblem says what is wrong with the descriptors."""
    if len(channel.definition) > _MOST_DESCRIPTORS:
        raise ShapeProblem(f"its descriptors have more than {_MOST_DESCRIPTORS} bytes")
    descriptor_pb2 = library("google.protobuf.descriptor_pb2")
    error_type = library("google.protobuf.message").DecodeError
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(channel.definition)
        pool = library("google.protobuf.descriptor_pool").DescriptorPool()
        waiting = {file.name: file for file in files.file}
        while waiting:
            # a file can be added after the files that it imports
            ready = [f for f in waiting.values() if not waiting.keys() & set(f.dependency)]
            if not ready:
                raise ShapeProblem("its descriptor files import each other")
            for file in ready:
                pool.Add(waiting.pop(file.name))
        descriptor = pool.FindMessageTypeByName(channel.type)
        return library("google.protobuf.message_factory").GetMessageClass(descriptor)
    except (error_type, KeyError, TypeError, ValueError) as error:
        if isinstance(error, ShapeProblem):
            raise
        raise ShapeProblem(f"its descriptors of {channel.type!r} cannot be used") from error


class ProtobufShape:
    """Builds the tree of one message class. Types that contain themselves, and maps, do not become columns."""

    def __init__(self) -> None:
        self._fields = 0

    def of(self, descriptor: Any, above: tuple[str, ...] = ()) -> Node:
        if _is_moment(descriptor):
            return Moment()
        if descriptor.full_name in above or len(above) > DEEPEST:
            return Unusable("its type contains itself")
        members = []
        for each in descriptor.fields:
            self._fields += 1
            if self._fields > MOST_FIELDS:
                raise ShapeProblem(f"it has more than {MOST_FIELDS} fields")
            node = self._field(each, (*above, descriptor.full_name))
            members.append(Member(each.name, node, each.has_presence))
        return Group(tuple(members))

    def _field(self, each: Any, above: tuple[str, ...]) -> Node:
        if each.message_type is not None and each.message_type.GetOptions().map_entry:
            return Unusable("maps do not become columns")
        node = self._single(each, above)
        return Array(node, None) if _is_repeated(each) and not isinstance(node, Unusable) else node

    def _single(self, each: Any, above: tuple[str, ...]) -> Node:
        if each.message_type is not None:
            return self.of(each.message_type, above)
        kinds = type(each)
        if each.cpp_type == kinds.CPPTYPE_STRING:
            is_text = each.type == kinds.TYPE_STRING
            return Text() if is_text else Array(Number(np.dtype(np.uint8)), None)
        for name, dtype in _NUMBERS.items():
            if each.cpp_type == getattr(kinds, name):
                return Number(np.dtype(dtype))
        return Unusable("its type is not known")


def _is_moment(descriptor: Any) -> bool:
    """Whether it is protobuf's own type, and the descriptors in the file have not changed its fields."""
    kinds = {each.name: each.cpp_type for each in descriptor.fields if not _is_repeated(each)}
    kind = library("google.protobuf.descriptor").FieldDescriptor
    own = {"seconds": kind.CPPTYPE_INT64, "nanos": kind.CPPTYPE_INT32}
    return descriptor.full_name in _MOMENTS and kinds == own


def _is_repeated(each: Any) -> bool:
    if hasattr(each, "is_repeated"):
        return bool(each.is_repeated)
    return bool(each.label == each.LABEL_REPEATED)  # protobuf before 6.30


class ProtobufAccess:
    def present(self, objects: Values, name: str) -> NDArray[np.bool_]:
        return np.fromiter(map(methodcaller("HasField", name), objects), np.bool_, len(objects))

    def values(self, objects: Values, name: str) -> Values:
        return list(map(attrgetter(name), objects))

    def moments(self, values: Values) -> NDArray[np.int64]:
        seconds = np.fromiter(map(attrgetter("seconds"), values), np.int64, len(values))
        if (np.abs(seconds) > _MOST_SECONDS).any():
            raise ValueError("a time is beyond the years that 64 bits of nanoseconds hold")
        nanos = np.fromiter(map(attrgetter("nanos"), values), np.int64, len(values))
        return seconds * 1_000_000_000 + nanos


def decode_protobuf(kind: Any, messages: Sequence[bytes], first: int = 0) -> list[Any]:
    """ValueError names the message that is not of this type. `first` is the number of the first one."""
    error_type = library("google.protobuf.message").DecodeError
    made = []
    for number, data in enumerate(messages, first):
        try:
            made.append(kind.FromString(data))
        except error_type as error:
            raise ValueError(f"message {number} of a block is not of its type") from error
    return made
