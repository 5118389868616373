"""Messages: the rows of a stream as protobuf messages, in a schema of Foxglove or in one made for the stream."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.exports import mcap_wire as wire
from rollbook.adapters.exports.entry_names import PoseColumns
from rollbook.adapters.exports.stream_rows import Block, StreamRows
from rollbook.adapters.extras import library
from rollbook.contracts.npz import ArrayFacts
from rollbook.errors import InvalidValue

JOINT_FIELDS = ("position", "velocity", "acceleration", "effort")
PACKAGE = "rollbook"
"""Package of the schemas that are made for a stream."""
_INFO = 2
"""Level of a foxglove.Log. Viewers hide messages of an unknown level."""


class Messages(Protocol):
    """Encodes the rows of a stream."""

    @property
    def schema_name(self) -> str: ...

    def schema(self) -> bytes:
        """A FileDescriptorSet."""
        ...

    def paths(self) -> dict[str, str]:
        """For every field of the stream: where its values are in the message."""
        ...

    def encode(self, block: Block) -> list[bytes]:
        """One message for each row."""
        ...


def _foxglove(name: str) -> Any:
    return getattr(library(f"foxglove_schemas_protobuf.{name}_pb2"), name)


def _descriptors(message_class: Any) -> bytes:
    made = library("mcap_protobuf.schema").build_file_descriptor_set(message_class)
    return bytes(made.SerializeToString(deterministic=True))


def _number(message_class: Any, field: str) -> int:
    return int(message_class.DESCRIPTOR.fields_by_name[field].number)


def _doubles(array: NDArray[Any]) -> NDArray[np.float64]:
    return array.astype("<f8", copy=False)


# ------------------------------------------------------------------------------------ of Foxglove


@dataclass(frozen=True, slots=True)
class JointStates:
    """foxglove.JointStates: vectors of one value for each joint, as position, velocity, acceleration or effort."""

    joints: Sequence[str]
    roles: Mapping[str, str]
    """The field of the stream for each role."""

    @property
    def schema_name(self) -> str:
        return "foxglove.JointStates"

    def schema(self) -> bytes:
        return _descriptors(_foxglove("JointStates"))

    def paths(self) -> dict[str, str]:
        return {field: f"joints[].{role}" for role, field in self.roles.items()}

    def encode(self, block: Block) -> list[bytes]:
        states, state = _foxglove("JointStates"), _foxglove("JointState")
        tagged = [
            (wire.tag(_number(state, role), wire.FIXED64), _doubles(block.fields[field]))
            for role, field in sorted(self.roles.items(), key=lambda r: _number(state, r[0]))
        ]

        def joints(rows: NDArray[np.intp]) -> list[wire.Part]:
            parts: list[wire.Part] = []
            for i, name in enumerate(self.joints):
                inside: list[wire.Part] = [wire.text(_number(state, "name"), name)]
                for tag, values in tagged:
                    inside += [tag, wire.raw(values[rows, i])]
                parts += wire.nested(_number(states, "joints"), inside)
            return parts

        return wire.stamped_messages(_number(states, "timestamp"), block.t_ns, joints)


@dataclass(frozen=True, slots=True)
class Poses:
    """foxglove.PoseInFrame, or PosesInFrame where a row holds several poses."""

    frame: str
    columns: PoseColumns

    @property
    def schema_name(self) -> str:
        return f"foxglove.{self._class_name}"

    @property
    def _class_name(self) -> str:
        return "PosesInFrame" if self.columns.several else "PoseInFrame"

    def schema(self) -> bytes:
        return _descriptors(_foxglove(self._class_name))

    def paths(self) -> dict[str, str]:
        where = "poses[]" if self.columns.several else "pose"
        names = [f"{where}.position.{axis}" for axis in "xyz"]
        names += [f"{where}.orientation.{axis}" for axis in "xyzw"]
        found: dict[str, dict[int, str]] = {}
        for (field, column), name in zip(self.columns.sources, names, strict=True):
            found.setdefault(field, {})[column] = name
        return {field: ",".join(at[i] for i in sorted(at)) for field, at in found.items()}

    def encode(self, block: Block) -> list[bytes]:
        message, pose = _foxglove(self._class_name), _foxglove("Pose")
        axes = (_foxglove("Vector3"), "xyz"), (_foxglove("Quaternion"), "xyzw")
        columns = [_doubles(block.fields[field])[..., i] for field, i in self.columns.sources]
        values = np.stack(columns, axis=-1).reshape(len(block.t_ns), -1, 7)

        def poses(rows: NDArray[np.intp]) -> list[wire.Part]:
            parts: list[wire.Part] = [wire.text(_number(message, "frame_id"), self.frame)]
            for i in range(values.shape[1]):
                inside: list[wire.Part] = []
                at = 0
                for field, (kind, names) in zip(("position", "orientation"), axes, strict=True):
                    numbers: list[wire.Part] = []
                    for axis in names:
                        numbers.append(wire.tag(_number(kind, axis), wire.FIXED64))
                        numbers.append(wire.raw(values[rows, i, at]))
                        at += 1
                    inside += wire.nested(_number(pose, field), numbers)
                field = "poses" if self.columns.several else "pose"
                parts += wire.nested(_number(message, field), inside)
            return parts

        return wire.stamped_messages(_number(message, "timestamp"), block.t_ns, poses)


@dataclass(frozen=True, slots=True)
class Logs:
    """foxglove.Log: one text for each row."""

    stream: StreamRows
    field: str

    @property
    def schema_name(self) -> str:
        return "foxglove.Log"

    def schema(self) -> bytes:
        return _descriptors(_foxglove("Log"))

    def paths(self) -> dict[str, str]:
        return {self.field: "message"}

    def encode(self, block: Block) -> list[bytes]:
        log = _foxglove("Log")
        level = wire.tag(_number(log, "level"), wire.VARINT) + wire.varint(_INFO)
        stamps = wire.stamped_messages(_number(log, "timestamp"), block.t_ns, lambda rows: [level])
        tag = wire.tag(_number(log, "message"), wire.LENGTH)
        name = wire.text(_number(log, "name"), self.stream.namespace)
        texts = _utf8(self.stream, self.field, block.fields[self.field])
        return [
            b"".join((stamp, tag, wire.varint(len(text)), text, name))
            for stamp, text in zip(stamps, texts, strict=True)
        ]


# ---------------------------------------------------------------------------------- of the stream

_INTS = {
    **dict.fromkeys(("i1", "i2", "i4"), ("TYPE_SFIXED32", "<i4")),
    **dict.fromkeys(("u1", "u2", "u4"), ("TYPE_FIXED32", "<u4")),
    "i8": ("TYPE_SFIXED64", "<i8"),
    "u8": ("TYPE_FIXED64", "<u8"),
    **dict.fromkeys(("f2", "f4"), ("TYPE_FLOAT", "<f4")),
    "f8": ("TYPE_DOUBLE", "<f8"),
    "b1": ("TYPE_BOOL", "|u1"),
}
"""Type in protobuf and on the wire. Every value keeps its value; types that protobuf does not have become wider."""
_WIRE_TYPES = {1: wire.VARINT, 4: wire.FIXED32, 8: wire.FIXED64}


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    """In the stream."""
    known_as: str
    """In the message."""
    number: int
    kind: str
    """Type in protobuf."""
    wire_dtype: np.dtype[Any] | None
    """None for text and bytes."""
    values: int | None
    """Values of one row; None for a single one."""

    @property
    def is_text(self) -> bool:
        return self.kind == "TYPE_STRING"

    def parts(self, array: NDArray[Any]) -> list[wire.Part]:
        if self.wire_dtype is None:
            return wire.nested(self.number, [wire.raw(array)]) if array.size else []
        if array.dtype.kind in "mM":
            array = array.view(np.int64)
        flat = wire.raw(array.reshape(len(array), -1).astype(self.wire_dtype, copy=False))
        if self.values is None:
            return [wire.tag(self.number, _WIRE_TYPES[self.wire_dtype.itemsize]), flat]
        return wire.nested(self.number, [flat]) if self.values else []


@dataclass(frozen=True, slots=True)
class OwnSchema:
    """A schema made for the stream: one field of the message for each field of the stream."""

    stream: StreamRows
    message: str
    """Name of the message in the package."""
    fields: Sequence[_Field]

    @classmethod
    def of(cls, stream: StreamRows, taken: set[str]) -> OwnSchema:
        """`taken`: names of messages that exist. The new one is added."""
        message = _identifier(stream.namespace, taken)
        names: set[str] = set()
        # texts come last: the other fields have a fixed length, and fields are written in the order of their numbers
        ordered = sorted(stream.fields.items(), key=lambda each: each[1].dtype.kind == "U")
        fields = [
            _Field(name, _identifier(name, names), number, *_protobuf_type(facts))
            for number, (name, facts) in enumerate(ordered, 1)
        ]
        return cls(stream, message, fields)

    @property
    def schema_name(self) -> str:
        return f"{PACKAGE}.{self.message}"

    def paths(self) -> dict[str, str]:
        return {each.name: each.known_as for each in self.fields}

    def schema(self) -> bytes:
        pb = library("google.protobuf.descriptor_pb2")
        made = pb.FileDescriptorSet()
        file = made.file.add(
            name=f"{PACKAGE}/{self.message}.proto", package=PACKAGE, syntax="proto3"
        )
        message = file.message_type.add(name=self.message)
        kinds = pb.FieldDescriptorProto
        for each in self.fields:
            field = message.field.add(
                name=each.known_as,
                json_name=each.known_as,
                number=each.number,
                type=getattr(kinds, each.kind),
            )
            field.label = kinds.LABEL_OPTIONAL if each.values is None else kinds.LABEL_REPEATED
            if each.values is None:  # so that a value of 0 is not taken for a missing one
                field.proto3_optional = True
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{each.known_as}")
        return bytes(made.SerializeToString(deterministic=True))

    def encode(self, block: Block) -> list[bytes]:
        parts: list[wire.Part] = []
        for each in self.fields:
            if not each.is_text:
                parts += each.parts(block.fields[each.name])
        made = wire.messages(parts, len(block.t_ns))
        for each in self.fields:
            if each.is_text:
                rows = self._texts(each, block.fields[each.name])
                made = [before + text for before, text in zip(made, rows, strict=True)]
        return made

    def _texts(self, field: _Field, array: NDArray[Any]) -> list[bytes]:
        tag = wire.tag(field.number, wire.LENGTH)
        texts = _utf8(self.stream, field.name, array.reshape(-1))
        encoded = [b"".join((tag, wire.varint(len(text)), text)) for text in texts]
        each = 1 if field.values is None else field.values
        if each == 1:
            return encoded
        return [b"".join(encoded[i * each : (i + 1) * each]) for i in range(len(array))]


def _protobuf_type(facts: ArrayFacts) -> tuple[str, np.dtype[Any] | None, int | None]:
    """Type, type on the wire, and values of one row."""
    shape = facts.shape[1:]
    values = math.prod(shape) if shape else None
    code = facts.dtype.str[1:]
    if facts.dtype.kind == "U":
        return "TYPE_STRING", None, values
    if facts.dtype.kind in "mM":
        code = "i8"
    if code not in _INTS or (code == "u1" and values is not None):
        return "TYPE_BYTES", None, None
    kind, on_wire = _INTS[code]
    return kind, np.dtype(on_wire), values


def _identifier(name: str, taken: set[str]) -> str:
    """The name with letters, digits and underscores only, different from those that are taken."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name).strip("_") or "value"
    plain = f"_{plain}" if plain[0].isdigit() else plain
    # names that differ only in case, or in an underscore, are the same in the languages that are generated from them
    others = {each.replace("_", "").lower() for each in taken}
    chosen, number = plain, 1
    while chosen.replace("_", "").lower() in others:
        number += 1
        chosen = f"{plain}_{number}"
    taken.add(chosen)
    return chosen


def _utf8(stream: StreamRows, field: str, texts: NDArray[Any]) -> Iterable[bytes]:
    try:
        return [text.encode() for text in texts.tolist()]
    except UnicodeEncodeError as error:
        raise InvalidValue(
            record=str(stream.kind),
            field=f"{stream.namespace}/{field}",
            value=f"text with half a character ({error.object!r})",
            expected="text that UTF-8 can express",
        ) from error
