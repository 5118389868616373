"""TopicReader: turns the messages of one channel into columns, whatever their encoding is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.ros2.cdr import CdrReader
from rollbook.adapters.ros2.definitions import Typestore, message_shape, standard_shape
from rollbook.adapters.ros2.json_messages import JsonAccess, JsonShape, decode_json
from rollbook.adapters.ros2.objects import ObjectColumns
from rollbook.adapters.ros2.protobuf_messages import (
    ProtobufAccess,
    ProtobufShape,
    decode_protobuf,
    message_class,
)
from rollbook.adapters.ros2.shape import (
    MOST_FIELDS,
    NAME_FIELDS,
    Column,
    ColumnPlan,
    Group,
    Node,
    ShapeProblem,
    Survey,
    plan_columns,
)
from rollbook.adapters.ros2.storage import Channel

_DECODED_AT_ONCE = 256
"""Messages that are Python objects at the same time. With many more of them, most time goes to garbage collection."""


class TopicReader(Protocol):
    uses_typestore: bool
    replaced_texts: int
    """Texts that are not UTF-8, in the messages that were read."""
    cut_texts: int
    """Texts that end in NUL, which an array of text does not keep."""

    @property
    def survey(self) -> Survey: ...

    def look_at(self, messages: Sequence[bytes]) -> None:
        """First pass: note lengths. ValueError says that a message is not of its type."""
        ...

    def plan(self) -> ColumnPlan: ...

    def read(self, messages: Sequence[bytes], columns: Mapping[str, NDArray[Any]]) -> None:
        """Second pass: fill the columns of the plan."""
        ...

    def alone(self) -> TopicReader:
        """A reader for the same channel that has seen no message yet."""
        ...


def reader_for(channel: Channel, typestore: Typestore) -> TopicReader:
    """ShapeProblem says why the messages of the channel cannot be read."""
    if channel.encoding == "cdr":
        root, is_standard = message_shape(channel, typestore)
        return CdrTopic(root, is_standard)
    if channel.encoding == "protobuf" and channel.definition_format == "protobuf":
        return ProtobufTopic(message_class(channel))
    if channel.encoding == "json":
        return JsonTopic()
    raise ShapeProblem(f"messages in {channel.encoding or 'no encoding'!r} are not read")


def standard_reader(channel: Channel, typestore: Typestore) -> TopicReader | None:
    """For a channel whose definition in the file is wrong: that of the ROS release, if it is a standard type."""
    root = standard_shape(channel, typestore) if channel.encoding == "cdr" else None
    return None if root is None else CdrTopic(root, True)


def fields_of(reader: TopicReader, message: bytes) -> dict[str, NDArray[Any]]:
    """The columns of one message, each without its first axis."""
    single = reader.alone()
    single.look_at([message])
    columns = {column.name: column.empty(1) for column in single.plan().columns}
    single.read([message], columns)
    return {name: column[0] for name, column in columns.items()}


@dataclass(slots=True)
class CdrTopic:
    root: Node
    uses_typestore: bool
    replaced_texts: int = 0
    cut_texts: int = 0
    survey: Survey = field(default_factory=Survey)

    def look_at(self, messages: Sequence[bytes]) -> None:
        CdrReader(self.root).survey(messages, self.survey)
        for field_name in NAME_FIELDS:
            if field_name in self.survey.arrays and field_name in self.survey.texts:
                self._look_at_names(field_name, messages)

    def _look_at_names(self, field_name: str, messages: Sequence[bytes]) -> None:
        extent, text = self.survey.arrays[field_name], self.survey.texts[field_name]
        if self.survey.names.get(field_name) == () or not extent.is_constant:
            self.survey.names[field_name] = ()
            return
        column = Column(field_name, np.dtype(f"<U{max(1, text.most)}"), (extent.most,))
        rows = column.empty(len(messages))
        CdrReader(self.root).read(messages, {field_name: rows})
        self.survey.add_names(field_name, rows.ravel().tolist())

    def plan(self) -> ColumnPlan:
        return plan_columns(self.root, self.survey)

    def read(self, messages: Sequence[bytes], columns: Mapping[str, NDArray[Any]]) -> None:
        replaced, cut = CdrReader(self.root).read(messages, columns)
        self.replaced_texts += replaced
        self.cut_texts += cut

    def alone(self) -> CdrTopic:
        return CdrTopic(self.root, self.uses_typestore)


@dataclass(slots=True)
class ProtobufTopic:
    kind: Any
    uses_typestore: bool = False
    replaced_texts: int = 0
    cut_texts: int = 0
    survey: Survey = field(default_factory=Survey)
    root: Node = field(init=False)
    _columns: ObjectColumns = field(default_factory=lambda: ObjectColumns(ProtobufAccess()))

    def __post_init__(self) -> None:
        self.root = ProtobufShape().of(self.kind.DESCRIPTOR)

    def look_at(self, messages: Sequence[bytes]) -> None:
        for _, objects in self._decoded(messages):
            self._columns.survey(self.root, objects, self.survey)

    def plan(self) -> ColumnPlan:
        return plan_columns(self.root, self.survey)

    def read(self, messages: Sequence[bytes], columns: Mapping[str, NDArray[Any]]) -> None:
        for rows, objects in self._decoded(messages):
            part = {name: column[rows] for name, column in columns.items()}
            self.cut_texts += self._columns.read(self.root, objects, part, self.survey)

    def alone(self) -> ProtobufTopic:
        return ProtobufTopic(self.kind)

    def _decoded(self, messages: Sequence[bytes]) -> Iterator[tuple[slice, list[Any]]]:
        for first in range(0, len(messages), _DECODED_AT_ONCE):
            rows = slice(first, first + _DECODED_AT_ONCE)
            yield rows, decode_protobuf(self.kind, messages[rows], first)


@dataclass(slots=True)
class JsonTopic:
    uses_typestore: bool = False
    replaced_texts: int = 0
    cut_texts: int = 0
    survey: Survey = field(default_factory=Survey)
    _shape: JsonShape = field(default_factory=JsonShape)
    _budget: list[int] = field(default_factory=lambda: [MOST_FIELDS])
    _root: Node | None = None
    _columns: ObjectColumns = field(default_factory=lambda: ObjectColumns(JsonAccess()))

    def look_at(self, messages: Sequence[bytes]) -> None:
        objects = decode_json(messages)
        if not all(isinstance(each, dict) for each in objects):
            raise ValueError("a message is not a JSON object")
        self._shape.add(objects, self._budget)
        self.survey.rows += len(messages)

    def plan(self) -> ColumnPlan:
        self._shape.note(self.survey)
        self._root = self._shape.node() if self._shape.kinds else Group(())
        return plan_columns(self._root, self.survey)

    def read(self, messages: Sequence[bytes], columns: Mapping[str, NDArray[Any]]) -> None:
        assert self._root is not None
        objects = decode_json(messages)
        self.cut_texts += self._columns.read(self._root, objects, columns, self.survey)

    def alone(self) -> JsonTopic:
        return JsonTopic()
