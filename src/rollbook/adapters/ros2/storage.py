"""Storage: one file of messages. Both kinds of file are read through the same few methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeAlias

from rollbook.adapters.recording import Skipped

LARGEST_MESSAGE = 1 << 28
"""Bytes of one message or chunk after unpacking. More is not unpacked: a small file can claim any size."""

LATEST_NS = 2**63 - 2**40
"""The latest time of a message: in the year 2262. The rest is room to move times that repeat."""


class Channel(NamedTuple):
    """Messages of one topic that are all described in the same way. Equal channels of several files are one stream."""

    topic: str
    type: str
    encoding: str
    """How the bytes of a message are written: `cdr`, `protobuf`, `json`."""
    definition_format: str
    """`ros2msg`, `ros2idl`, `protobuf`, `jsonschema`; empty where the file does not describe the type."""
    definition: bytes
    description: tuple[tuple[str, str], ...] = ()
    """What an export of Rollbook noted about the stream; see McapStream."""


class Batch(NamedTuple):
    """Messages of one channel in the order of the file."""

    channel: Channel
    log_ns: list[int]
    publish_ns: list[int] | None
    """None where the storage keeps no such time."""
    data: list[bytes]
    """Empty where the bytes of this channel were not asked for."""


class Message(NamedTuple):
    channel: Channel
    log_ns: int
    data: bytes


Wanted: TypeAlias = "Callable[[Channel], bool]"


@dataclass(frozen=True, slots=True)
class Damage:
    """Where a file stops to be readable. The messages before this place are imported."""

    file: str
    at: str
    detail: str

    def as_metadata(self) -> dict[str, str]:
        return {"at": f"{self.file}, {self.at}", "detail": self.detail}


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageContents:
    channels: Mapping[Channel, int | None]
    """Every channel with the number of messages that the file declares."""
    skipped: tuple[Skipped, ...] = ()
    damage: Damage | None = None
    about: Mapping[str, Any] = field(default_factory=dict)


class Storage(Protocol):
    path: Path
    damage: Damage | None
    """Set when a pass over the messages ends before the end of the file."""

    def contents(self) -> StorageContents: ...

    def batches(self, wanted: Wanted) -> Iterator[Batch]:
        """All messages, a few at a time. The bytes of channels that are not wanted are left out."""
        ...

    def messages(self, wanted: Wanted) -> Iterator[Message]:
        """The wanted messages one by one, in the order of the file across all channels."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Storage: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
