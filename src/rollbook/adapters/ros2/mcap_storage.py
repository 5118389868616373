"""McapStorage: an MCAP file, read from its first record to its last, or to the place where it is damaged."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from rollbook.adapters.recording import Skipped
from rollbook.adapters.ros2.mcap_records import (
    FOOTER,
    FOOTER_BYTES,
    FRAME,
    MAGIC,
    MESSAGE,
    BrokenRecord,
    ChannelRecord,
    Chunk,
    Opcode,
    Schema,
    read_attachment_name,
    read_channel,
    read_chunk,
    read_header,
    read_metadata,
    read_schema,
    read_statistics,
)
from rollbook.adapters.ros2.packed import unpacked
from rollbook.adapters.ros2.storage import (
    LARGEST_MESSAGE,
    LATEST_NS,
    Batch,
    Channel,
    Damage,
    Message,
    StorageContents,
    Wanted,
)
from rollbook.errors import CountMismatch, UnknownFormat

_MOST_METADATA = 1 << 16
_PIECE = 1 << 20
_AT_ONCE = 512
"""Messages outside of chunks that are handed on together."""
_READ = (Opcode.HEADER, Opcode.SCHEMA, Opcode.CHANNEL, Opcode.MESSAGE, Opcode.CHUNK)
_MESSAGE = int(Opcode.MESSAGE)
"""A plain number: it is compared once for every message."""


_Message: TypeAlias = "tuple[int, int, int, bytes | None]"
"""Channel, log time, publish time and bytes."""


@dataclass(slots=True)
class _Summary:
    """The index at the end of the file."""

    schemas: dict[int, Schema] = field(default_factory=dict)
    channels: dict[int, ChannelRecord] = field(default_factory=dict)
    counts: dict[int, int] | None = None
    messages: int | None = None
    declared_channels: int | None = None


@dataclass(slots=True)
class _Found:
    """What a pass over the records has met besides messages."""

    profile: str = ""
    library: str = ""
    metadata: dict[str, dict[str, str]] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)


class McapStorage:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage: Damage | None = None
        self._file = open(path, "rb")  # noqa: SIM115 - open as long as this object
        self._size = os.fstat(self._file.fileno()).st_size
        if self._file.read(len(MAGIC)) != MAGIC:
            self._file.close()
            raise UnknownFormat(path=str(path), detail="it does not begin as an MCAP file does")
        self._schemas: dict[int, Schema] = {}
        self._records: dict[int, ChannelRecord] = {}
        self._channels: dict[int, Channel] = {}
        self._found = _Found()
        self._position = 0
        """Of the record that is being read."""

    # ------------------------------------------------------------------------------------- contents

    def contents(self) -> StorageContents:
        """From the index at the end. A file without one is read once from the beginning."""
        summary, wrong = self._summary()
        if summary is not None:
            channels = _described(summary)
            if channels is not None:
                self._read_extras()
                return self._contents(channels, None)
        counts: dict[Channel, int] = {}
        for batch in self.batches(lambda _: False):
            counts[batch.channel] = counts.get(batch.channel, 0) + len(batch.log_ns)
        damage = self.damage or wrong
        read = sum(counts.values())
        if damage is None and summary is not None and summary.messages not in (None, read):
            assert summary.messages is not None
            detail = "the statistics at its end do not match its records"
            raise CountMismatch(
                path=str(self.path),
                what="messages",
                declared=summary.messages,
                read=read,
                detail=detail,
            )
        found: dict[Channel, int | None] = dict.fromkeys(self._channels.values())
        if damage is None:
            found = {channel: counts.get(channel, 0) for channel in found}
        return self._contents(found, damage)

    def _contents(
        self, channels: dict[Channel, int | None], damage: Damage | None
    ) -> StorageContents:
        about: dict[str, Any] = {"profile": self._found.profile, "library": self._found.library}
        if self._found.metadata:
            about["metadata"] = dict(self._found.metadata)
        return StorageContents(
            channels=channels, skipped=tuple(self._found.skipped), damage=damage, about=about
        )

    def _summary(self) -> tuple[_Summary | None, Damage | None]:
        """None where the writer made no index, or where it is damaged."""
        footer_at = self._size - FOOTER_BYTES
        end = self._at(max(0, footer_at), FOOTER_BYTES)
        is_whole = (
            footer_at >= len(MAGIC)
            and end[-len(MAGIC) :] == MAGIC
            and FRAME.unpack(end[: FRAME.size]) == (Opcode.FOOTER, FOOTER.size)
        )
        if not is_whole:
            return None, self._damaged(self._size, "the file ends without its last record")
        start, offsets, checksum = FOOTER.unpack(end[FRAME.size : -len(MAGIC)])
        if start == 0:
            return None, None
        if not len(MAGIC) <= start <= footer_at or not (offsets == 0 or start <= offsets):
            return None, self._damaged(footer_at, "the place of its index is not in the file")
        section = memoryview(self._at(start, footer_at - start))
        if checksum and zlib.crc32(end[: FRAME.size + 16], zlib.crc32(section)) != checksum:
            return None, self._damaged(start, "the checksum of its index does not match")
        try:
            return _parsed_summary(section), None
        except BrokenRecord as error:
            return None, self._damaged(start, f"its index cannot be read: {error}")

    def _read_extras(self) -> None:
        """Walk over the records without reading messages: for the header, metadata and attachments."""
        self._start_pass()
        try:
            for _ in self._walk(only_extras=True):
                pass
        except BrokenRecord:
            pass  # reading the messages meets the same place and reports it

    # ------------------------------------------------------------------------------------- messages

    def batches(self, wanted: Wanted) -> Iterator[Batch]:
        """The messages of one record, which may be a chunk of many, or of several small records."""
        loose: dict[int, Batch] = {}
        count = 0
        for found in self._messages(wanted):
            for number, log_ns, publish_ns, data in found:
                batch = loose.get(number)
                if batch is None:
                    batch = loose[number] = Batch(self._channels[number], [], [], [])
                batch.log_ns.append(log_ns)
                batch.publish_ns.append(publish_ns)  # type: ignore[union-attr]
                if data is not None:
                    batch.data.append(data)
                    count += len(data) // _PIECE
            count += len(found)
            if count >= _AT_ONCE:
                yield from loose.values()
                loose, count = {}, 0
        yield from loose.values()

    def messages(self, wanted: Wanted) -> Iterator[Message]:
        for found in self._messages(wanted):
            for number, log_ns, _, data in found:
                if data is not None:
                    yield Message(self._channels[number], log_ns, data)

    def _messages(self, wanted: Wanted) -> Iterator[list[_Message]]:
        """The messages of every record up to the damage, if there is any."""
        self._start_pass()
        is_wanted: dict[int, bool] = {}
        try:
            for record in self._walk(only_extras=False):
                found: list[_Message] = []
                broken = None
                try:
                    self._split(record, wanted, is_wanted, found)
                except BrokenRecord as error:
                    broken = error
                yield found  # also those before the damage
                if broken is not None:
                    raise broken
        except BrokenRecord as error:
            self.damage = self._damaged(self._position, str(error))

    def _split(
        self,
        data: memoryview,
        wanted: Wanted,
        is_wanted: dict[int, bool],
        found: list[_Message],
    ) -> None:
        """Add the messages among these records. BrokenRecord says that the rest cannot be read."""
        end, at = len(data), 0
        while at < end:
            if at + FRAME.size > end:
                raise BrokenRecord("a record in it is cut off")
            opcode, length = FRAME.unpack_from(data, at)
            at += FRAME.size
            after = at + length
            if after > end:
                raise BrokenRecord(f"a record of {length} bytes does not fit")
            if opcode == _MESSAGE:
                if length < MESSAGE.size:
                    raise BrokenRecord("a message is too short")
                number, _, log_ns, publish_ns = MESSAGE.unpack_from(data, at)
                asked = is_wanted.get(number)
                if asked is None:
                    if number not in self._channels:
                        raise BrokenRecord(
                            f"a message is of channel {number}, which is not described"
                        )
                    asked = is_wanted[number] = wanted(self._channels[number])
                if log_ns > LATEST_NS or publish_ns > LATEST_NS:
                    raise BrokenRecord("a message is from a time after the year 2262")
                body = bytes(data[at + MESSAGE.size : after]) if asked else None
                found.append((number, log_ns, publish_ns, body))
            elif opcode in (Opcode.SCHEMA, Opcode.CHANNEL):
                self._describe(opcode, data[at:after])
            at = after

    def _walk(self, *, only_extras: bool) -> Iterator[memoryview]:
        """The records that hold messages and descriptions, with their frames; chunks unpacked.

        A file that ends without its last record, and a checksum over all records that does not match, are damage.
        """
        at = len(MAGIC)
        checksum = zlib.crc32(MAGIC)
        while True:
            self._position = at
            frame = self._at(at, FRAME.size)
            if len(frame) < FRAME.size:
                self.damage = self._damaged(at, "the file ends without its last record")
                return
            opcode, length = FRAME.unpack(frame)
            if length > self._size - at - FRAME.size:
                if opcode == Opcode.CHUNK and not only_extras:
                    yield self._cut_chunk(at)
                self.damage = self._damaged(at, "the file ends in the middle of a record")
                return
            if opcode == Opcode.DATA_END:
                expected = int.from_bytes(self._at(at + FRAME.size, 4), "little")
                if not only_extras and expected not in (0, checksum):
                    detail = "the checksum over all records does not match"
                    self.damage = self._damaged(at, detail)
                return
            if opcode == Opcode.FOOTER:
                return
            is_read = opcode in _READ and not (only_extras and opcode != Opcode.HEADER)
            if is_read and length > LARGEST_MESSAGE:
                self.damage = self._damaged(at, f"a record of {length} bytes is too large")
                return
            if is_read:
                record = self._at(at, FRAME.size + length)
                checksum = zlib.crc32(record, checksum)
                yield from self._content(opcode, memoryview(record))
            else:
                self._extra(at, opcode, length)
                if not only_extras:
                    checksum = self._checksum(at, FRAME.size + length, checksum)
            at += FRAME.size + length

    def _cut_chunk(self, at: int) -> memoryview:
        """The last chunk of a file that is cut off. Its checksum cannot be compared."""
        there = self._at(at + FRAME.size, min(self._size - at - FRAME.size, LARGEST_MESSAGE))
        chunk = read_chunk(memoryview(there), is_cut=True)
        if not chunk.compression:
            return chunk.data
        try:
            most = min(chunk.size, LARGEST_MESSAGE)
            return memoryview(unpacked(chunk.data, chunk.compression, most, is_cut=True))
        except ValueError as error:
            raise BrokenRecord(f"a chunk cannot be unpacked: {error}") from error

    def _content(self, opcode: int, record: memoryview) -> Iterator[memoryview]:
        body = record[FRAME.size :]
        if opcode == Opcode.HEADER:
            self._found.profile, self._found.library = read_header(body)
        elif opcode == Opcode.CHUNK:
            yield _unpacked_chunk(read_chunk(body))
        else:
            yield record

    def _extra(self, at: int, opcode: int, length: int) -> None:
        """Attachments are named; metadata records are kept as far as they are small."""
        if opcode == Opcode.ATTACHMENT:
            start = memoryview(self._at(at + FRAME.size, min(length, _MOST_METADATA)))
            name, size = read_attachment_name(start)
            reason = f"an attachment of {size} bytes: attachments are not imported"
            self._found.skipped.append(Skipped(f"attachment {name}", reason))
        elif opcode == Opcode.METADATA:
            if length > _MOST_METADATA:
                reason = f"a metadata record of {length} bytes is too large to keep"
                self._found.skipped.append(Skipped("metadata record", reason))
                return
            name, texts = read_metadata(memoryview(self._at(at + FRAME.size, length)))
            self._found.metadata[name] = texts

    def _describe(self, opcode: int, body: memoryview) -> None:
        if opcode == Opcode.SCHEMA:
            number, schema = read_schema(body)
            if self._schemas.setdefault(number, schema) != schema:
                raise BrokenRecord(f"schema {number} is described twice")
            return
        number, record = read_channel(body)
        if self._records.setdefault(number, record) != record:
            raise BrokenRecord(f"channel {number} is described twice")
        self._channels[number] = _channel(record, self._schemas)

    def _start_pass(self) -> None:
        self.damage = None
        self._schemas, self._records, self._channels = {}, {}, {}
        self._found = _Found()

    # ---------------------------------------------------------------------------------------- bytes

    def _at(self, position: int, length: int) -> bytes:
        self._file.seek(position)
        return self._file.read(length)

    def _checksum(self, at: int, length: int, checksum: int) -> int:
        self._file.seek(at)
        while length > 0:
            piece = self._file.read(min(_PIECE, length))
            checksum = zlib.crc32(piece, checksum)
            length -= len(piece)
        return checksum

    def _damaged(self, at: int, detail: str) -> Damage:
        return Damage(self.path.name, f"byte {at}", detail)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> McapStorage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _unpacked_chunk(chunk: Chunk) -> memoryview:
    data = chunk.data
    if chunk.compression:
        if chunk.size > LARGEST_MESSAGE:
            raise BrokenRecord(f"a chunk of {chunk.size} bytes is too large")
        try:
            data = memoryview(unpacked(data, chunk.compression, chunk.size))
        except ValueError as error:
            raise BrokenRecord(f"a chunk cannot be unpacked: {error}") from error
    if len(data) != chunk.size:
        raise BrokenRecord(f"a chunk has {len(data)} bytes instead of {chunk.size}")
    if chunk.checksum and zlib.crc32(data) != chunk.checksum:
        raise BrokenRecord("the checksum of a chunk does not match")
    return data


def _channel(record: ChannelRecord, schemas: dict[int, Schema]) -> Channel:
    schema = Schema("", "", b"")
    if record.schema_id:
        if record.schema_id not in schemas:
            raise BrokenRecord(f"the schema {record.schema_id} of a channel is not there")
        schema = schemas[record.schema_id]
    return Channel(
        record.topic,
        schema.name,
        record.encoding,
        schema.encoding,
        schema.data,
        record.description,
    )


def _parsed_summary(section: memoryview) -> _Summary:
    summary = _Summary()
    at = 0
    while at < len(section):
        if at + FRAME.size > len(section):
            raise BrokenRecord("it is cut off")
        opcode, length = FRAME.unpack_from(section, at)
        at += FRAME.size
        if length > len(section) - at:
            raise BrokenRecord("one of its records is cut off")
        body = section[at : at + length]
        if opcode == Opcode.SCHEMA:
            number, schema = read_schema(body)
            summary.schemas[number] = schema
        elif opcode == Opcode.CHANNEL:
            number, record = read_channel(body)
            summary.channels[number] = record
        elif opcode == Opcode.STATISTICS:
            messages, channels, _, counts = read_statistics(body)
            summary.messages, summary.declared_channels = messages, channels
            summary.counts = dict(counts)
        at += length
    return summary


def _described(summary: _Summary) -> dict[Channel, int | None] | None:
    """The channels with their declared counts; None where the index does not name all of them."""
    counts = summary.counts
    if counts is None or summary.declared_channels != len(summary.channels):
        return None
    if not counts.keys() <= summary.channels.keys() or sum(counts.values()) != summary.messages:
        return None
    found: dict[Channel, int | None] = {}
    try:
        for number, record in summary.channels.items():
            channel = _channel(record, summary.schemas)
            found[channel] = (found.get(channel) or 0) + counts.get(number, 0)
    except BrokenRecord:
        return None
    return found
