"""SqliteStorage: a .db3 file, opened so that nothing is written beside it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from rollbook.adapters.recording import Skipped
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
from rollbook.errors import DamagedRecording, UnknownFormat

MAGIC = b"SQLite format 3\0"
JOURNALS = ("-wal", "-journal")
"""What a recorder that was killed leaves beside the file. It may hold messages."""
_TABLES = {"topics", "messages"}
_AT_ONCE = 512
_BYTES_AT_ONCE = 1 << 20


class SqliteStorage:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage: Damage | None = None
        with open(path, "rb") as file:
            header = file.read(100)
            size = os.fstat(file.fileno()).st_size
        if header[: len(MAGIC)] != MAGIC:
            raise UnknownFormat(path=str(path), detail="it does not begin as an SQLite file does")
        self._cut = _cut_off(path.name, header, size)
        self._stack = ExitStack()
        try:
            self._database = self._opened()
            self._channels = self._read_channels()
        except sqlite3.Error as error:
            self.close()
            raise DamagedRecording(path=str(path), detail=f"SQLite says: {error}") from error
        except BaseException:
            self.close()
            raise

    def _opened(self) -> sqlite3.Connection:
        path = self.path
        journals = [Path(f"{path}{suffix}") for suffix in JOURNALS]
        journals = [each for each in journals if each.is_file() and each.stat().st_size]
        if journals:
            # SQLite has to write to use them: it does so in a copy
            folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="rollbook-"))
            path = Path(shutil.copy(path, folder))
            for journal in journals:
                shutil.copy(journal, folder)
        query = "" if journals else "?immutable=1"
        database = sqlite3.connect(f"{path.absolute().as_uri()}{query}", uri=True)
        self._stack.callback(database.close)
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_MESSAGE)
        database.execute("PRAGMA trusted_schema=OFF")
        # without this, SQLite refuses every page of a file that is shorter than its header says
        database.execute("PRAGMA writable_schema=ON")
        return database

    def _read_channels(self) -> dict[int, Channel]:
        kinds = dict(self._rows("SELECT name, sql FROM sqlite_master WHERE type = 'table'"))
        plain = {
            name
            for name, sql in kinds.items()
            if str(sql).lstrip().upper().startswith("CREATE TABLE")
        }
        if not plain >= _TABLES:
            detail = "it has no tables topics and messages"
            raise UnknownFormat(path=str(self.path), detail=detail)
        definitions: dict[Any, tuple[str, bytes]] = {}
        if "message_definitions" in plain:
            query = "SELECT topic_type, encoding, encoded_message_definition FROM message_definitions ORDER BY rowid"
            for name, form, text in self._rows(query):
                definitions.setdefault(name, (str(form), str(text).encode()))
        channels = {}
        for number, topic, kind, encoding in self._rows(
            "SELECT id, name, type, serialization_format FROM topics ORDER BY rowid"
        ):
            if not (isinstance(number, int) and isinstance(topic, str) and isinstance(kind, str)):
                detail = f"row {number!r} of its table topics is not a topic"
                raise DamagedRecording(path=str(self.path), detail=detail)
            form, definition = definitions.get(kind, ("", b""))
            if not definition:
                form = ""
            channels[number] = Channel(topic, kind, str(encoding), form, definition)
        return channels

    def contents(self) -> StorageContents:
        counts: dict[Any, int] = {}
        damage = self._cut
        try:
            query = "SELECT topic_id, COUNT(*) FROM messages GROUP BY topic_id"
            counts = dict(self._rows(query))
        except sqlite3.Error as error:
            damage = damage or Damage(self.path.name, "its table messages", f"SQLite says: {error}")
        found: dict[Channel, int | None] = {}
        for number, channel in self._channels.items():
            count = None if damage else counts.get(number, 0)
            found[channel] = count if count is None else count + (found.get(channel) or 0)
        skipped = [
            Skipped(
                f"topic id {number}", f"{count} messages belong to no topic of its table topics"
            )
            for number, count in counts.items()
            if number not in self._channels
        ]
        return StorageContents(channels=found, skipped=tuple(skipped), damage=damage)

    def batches(self, wanted: Wanted) -> Iterator[Batch]:
        found: dict[int, Batch] = {}
        count = size = 0
        asked = {number for number, channel in self._channels.items() if wanted(channel)}
        for number, log_ns, data in self._messages():
            batch = found.get(number)
            if batch is None:
                batch = found[number] = Batch(self._channels[number], [], None, [])
            batch.log_ns.append(log_ns)
            if number in asked:
                batch.data.append(data)
                size += len(data)
            count += 1
            if count >= _AT_ONCE or size >= _BYTES_AT_ONCE:
                yield from found.values()
                found, count, size = {}, 0, 0
        yield from found.values()

    def messages(self, wanted: Wanted) -> Iterator[Message]:
        asked = {number for number, channel in self._channels.items() if wanted(channel)}
        for number, log_ns, data in self._messages():
            if number in asked:
                yield Message(self._channels[number], log_ns, data)

    def _messages(self) -> Iterator[tuple[int, int, bytes]]:
        self.damage = self._cut
        read = 0
        known = self._channels
        try:
            query = "SELECT topic_id, timestamp, data FROM messages ORDER BY rowid"
            for number, log_ns, data in self._database.execute(query):
                if type(log_ns) is not int or type(data) is not bytes:
                    self.damage = self._after(read, "a time or the bytes of a message are missing")
                    return
                if not -LATEST_NS <= log_ns <= LATEST_NS:
                    self.damage = self._after(read, f"a message has the time {log_ns}")
                    return
                read += 1
                if number in known:
                    yield number, log_ns, data
        except sqlite3.Error as error:
            self.damage = self._after(read, f"SQLite says: {error}")

    def _after(self, read: int, detail: str) -> Damage:
        return Damage(self.path.name, f"after message {read}", detail)

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        return self._database.execute(query).fetchall()

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> SqliteStorage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _cut_off(name: str, header: bytes, size: int) -> Damage | None:
    """The header counts pages; a file that was cut off has fewer."""
    page = int.from_bytes(header[16:18], "big")
    page = 1 << 16 if page == 1 else page
    # the count holds only if the writer that made the last change also wrote it
    is_current = header[24:28] == header[92:96]
    expected = page * int.from_bytes(header[28:32], "big") if is_current else 0
    if size >= expected:
        return None
    return Damage(name, f"byte {size}", f"the file is cut off: its header says {expected} bytes")
