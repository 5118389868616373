"""The records of an MCAP file. Everything that a record says about lengths is checked before it is used."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

MAGIC = b"\x89MCAP0\r\n"
FRAME = struct.Struct("<BQ")
MESSAGE = struct.Struct("<HIQQ")
FOOTER = struct.Struct("<QQL")
FOOTER_BYTES = FRAME.size + FOOTER.size + len(MAGIC)
_CHUNK = struct.Struct("<QQQL")


class Opcode(IntEnum):
    HEADER = 1
    FOOTER = 2
    SCHEMA = 3
    CHANNEL = 4
    MESSAGE = 5
    CHUNK = 6
    ATTACHMENT = 9
    ATTACHMENT_INDEX = 10
    STATISTICS = 11
    METADATA = 12
    DATA_END = 15


class BrokenRecord(ValueError):
    """The bytes are not the record that they claim to be."""


class Schema(NamedTuple):
    name: str
    encoding: str
    data: bytes


class ChannelRecord(NamedTuple):
    schema_id: int
    topic: str
    encoding: str
    description: tuple[tuple[str, str], ...] = ()
    """Of the metadata, what an export of Rollbook noted. Other metadata differs between files of one bag."""


class Chunk(NamedTuple):
    size: int
    """Bytes after unpacking."""
    checksum: int
    """CRC-32 after unpacking; 0 where the writer made none."""
    compression: str
    data: memoryview


@dataclass(slots=True)
class Fields:
    """Reads the fields of a record from first to last."""

    data: memoryview
    at: int = 0

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    def text(self) -> str:
        try:
            return str(self.take(self.number(4)), "utf-8")
        except UnicodeDecodeError as error:
            raise BrokenRecord("a text in it is not UTF-8") from error

    def texts(self) -> dict[str, str]:
        inside = Fields(self.take(self.number(4)))
        found = {}
        while inside.at < len(inside.data):
            name = inside.text()
            found[name] = inside.text()
        return found

    def take(self, count: int) -> memoryview:
        end = self.at + count
        if end > len(self.data):
            raise BrokenRecord(f"a field of {count} bytes does not fit into it")
        piece = self.data[self.at : end]
        self.at = end
        return piece


def read_header(data: memoryview) -> tuple[str, str]:
    """The profile and the library that wrote the file."""
    fields = Fields(data)
    return fields.text(), fields.text()


def read_schema(data: memoryview) -> tuple[int, Schema]:
    fields = Fields(data)
    number = fields.number(2)
    return number, Schema(fields.text(), fields.text(), bytes(fields.take(fields.number(4))))


def read_channel(data: memoryview) -> tuple[int, ChannelRecord]:
    fields = Fields(data)
    number = fields.number(2)
    schema_id, topic, encoding = fields.number(2), fields.text(), fields.text()
    noted = sorted(each for each in fields.texts().items() if each[0].startswith("rollbook."))
    return number, ChannelRecord(schema_id, topic, encoding, tuple(noted))


def read_chunk(data: memoryview, *, is_cut: bool = False) -> Chunk:
    """`is_cut`: the record ends early; the chunk has the bytes that are there."""
    fields = Fields(data)
    _, _, size, checksum = _CHUNK.unpack(fields.take(_CHUNK.size))
    compression = fields.text()
    length = fields.number(8)
    if is_cut:
        length = min(length, len(data) - fields.at)
    return Chunk(size, checksum, compression, fields.take(length))


def read_statistics(data: memoryview) -> tuple[int, int, int, Mapping[int, int]]:
    """The numbers of messages and of channels, when the messages begin, and the messages of each channel."""
    fields = Fields(data)
    messages, _, channels = fields.number(8), fields.number(2), fields.number(4)
    fields.take(12)  # attachments, metadata records and chunks
    start = fields.number(8)
    fields.take(8)
    counts = Fields(fields.take(fields.number(4)))
    found = {}
    while counts.at < len(counts.data):
        number = counts.number(2)
        found[number] = counts.number(8)
    return messages, channels, start, found


def read_metadata(data: memoryview) -> tuple[str, dict[str, str]]:
    fields = Fields(data)
    return fields.text(), fields.texts()


def read_attachment_name(data: memoryview) -> tuple[str, int]:
    """Name and size, from the beginning of an attachment."""
    fields = Fields(data)
    fields.take(16)
    name = fields.text()
    fields.text()
    return name, fields.number(8)
