"""Definitions of ROS messages: the text that a bag keeps, or the standard types of a release, as a Shape.

rosbags parses the text. Its own way to use a parsed type is to generate and run Python code; the tree here needs none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np

from rollbook.adapters.extras import library
from rollbook.adapters.ros2.shape import (
    DEEPEST,
    MOST_FIELDS,
    PLACEHOLDER,
    Array,
    Group,
    Member,
    Moment,
    Node,
    Number,
    ShapeProblem,
    Text,
)
from rollbook.adapters.ros2.storage import Channel

Typestore: TypeAlias = Literal[
    "latest", "foxy", "galactic", "humble", "iron", "jazzy", "kilted", "lyrical"
]
_Fields: TypeAlias = "list[tuple[str, Any]]"
_MOST_TEXT = 1 << 20
_SEPARATOR = re.compile(r"^=+\nIDL: .*$", re.MULTILINE)
_BASES = {
    "bool": "?",
    "byte": "<u1",
    "char": "<u1",
    "int8": "<i1",
    "uint8": "<u1",
    "int16": "<i2",
    "uint16": "<u2",
    "int32": "<i4",
    "uint32": "<u4",
    "int64": "<i8",
    "uint64": "<u8",
    "float32": "<f4",
    "float64": "<f8",
}
_TIME, _DURATION = "builtin_interfaces/msg/Time", "builtin_interfaces/msg/Duration"
_LONGEST_ARRAY = 1 << 24


def message_shape(channel: Channel, typestore: Typestore) -> tuple[Node, bool]:
    """The shape, and whether it is from the typestore because the file does not describe the type.

    ShapeProblem says why the type cannot be used.
    """
    if "/srv/" in channel.type:
        raise ShapeProblem(f"{channel.type} is a service event; only messages are imported")
    known = standard_types(typestore)
    name = _full_name(channel.type)
    if channel.definition_format:
        own = parsed_types(channel)
        return _Builder({**known, **own}).named(name, ()), False
    if name not in known:
        raise ShapeProblem(
            f"the file does not describe {name or 'its type'}, "
            f"and the typestore {typestore!r} does not have it"
        )
    return _Builder(known).named(name, ()), True


def standard_shape(channel: Channel, typestore: Typestore) -> Node | None:
    """The shape of a standard type, whatever the file says about it. None where the type is not one."""
    known = standard_types(typestore)
    name = _full_name(channel.type)
    return _Builder(known).named(name, ()) if name in known else None


def _full_name(name: str) -> str:
    """Some writers leave out the middle of `std_msgs/msg/String`."""
    package, slash, rest = name.partition("/")
    return f"{package}/msg/{rest}" if slash and "/" not in rest else name


@cache
def standard_types(typestore: Typestore) -> Mapping[str, _Fields]:
    typesys = library("rosbags.typesys")
    name = "latest" if typestore == "latest" else f"ros2_{typestore}"
    store = typesys.get_typestore(typesys.Stores(name))
    return {kind: list(fields) for kind, (_, fields) in store.fielddefs.items()}


def parsed_types(channel: Channel) -> Mapping[str, _Fields]:
    """The types in the definition that the file keeps with the channel."""
    if len(channel.definition) > _MOST_TEXT:
        raise ShapeProblem(f"its definition has more than {_MOST_TEXT} bytes")
    typesys = library("rosbags.typesys")
    try:
        text = channel.definition.decode("utf-8").replace("\r\n", "\n")
        if channel.definition_format == "ros2msg":
            types = typesys.get_types_from_msg(f"{text}\n", channel.type)
        elif channel.definition_format in ("ros2idl", "omgidl"):
            types = _from_idl(text)
        else:
            raise ShapeProblem(f"definitions in {channel.definition_format!r} are not read")
    except ShapeProblem:
        raise
    except (
        typesys.TypesysError,
        AssertionError,
        AttributeError,
        IndexError,
        KeyError,
        OverflowError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise ShapeProblem(f"the definition of {channel.type} cannot be parsed") from error
    return {kind: list(fields) for kind, (_, fields) in types.items()}


def _from_idl(text: str) -> dict[str, Any]:
    if "<<" in text:
        # the parser would compute the shift, however long the number gets
        raise ShapeProblem("its IDL computes with shifts, which ROS definitions do not")
    types: dict[str, Any] = {}
    for part in _SEPARATOR.split(text):
        if part.strip():
            types.update(library("rosbags.typesys").get_types_from_idl(part))
    return types


class _Builder:
    """Builds the tree of one type. The number of fields and the depth are limited: types may contain themselves."""

    def __init__(self, types: Mapping[str, _Fields]) -> None:
        self._types = types
        self._fields = 0

    def named(self, name: str, above: tuple[str, ...]) -> Node:
        if name in (_TIME, _DURATION):
            return Moment()
        if name not in self._types:
            owner = f" (in {above[-1]})" if above else ""
            raise ShapeProblem(f"the type {name}{owner} is not described")
        if name in above or len(above) > DEEPEST:
            raise ShapeProblem(f"the type {name} contains itself")
        members = []
        for field, description in self._types[name]:
            self._fields += 1
            if self._fields > MOST_FIELDS:
                raise ShapeProblem(f"it has more than {MOST_FIELDS} fields")
            members.append(Member(field, self._field(description, (*above, name))))
        return Group(tuple(members) or (Member(PLACEHOLDER, _base("uint8")),))

    def _field(self, description: Any, above: tuple[str, ...]) -> Node:
        kinds = library("rosbags.interfaces").Nodetype
        kind, detail = description
        if kind == kinds.BASE:
            return _base(detail[0])
        if kind == kinds.NAME:
            return self.named(detail, above)
        inner, length = detail
        if kind == kinds.SEQUENCE:
            return Array(self._field(inner, above), None)
        if not 0 < length <= _LONGEST_ARRAY:
            raise ShapeProblem(f"an array of {length} entries in {above[-1]} is not imported")
        return Array(self._field(inner, above), length)


def _base(name: str) -> Node:
    if name == "string":
        return Text()
    if name not in _BASES:
        raise ShapeProblem(f"fields of type {name} are not imported")
    return Number(np.dtype(_BASES[name]))
