"""Recording: what a file or folder of another tool holds, before anything of it is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from rollbook.adapters.encoded import EncodedEpisode
from rollbook.contracts.episode import FinalStatus
from rollbook.contracts.source_file import SourceFile
from rollbook.digest import Plain

Slot: TypeAlias = Literal["sensors", "actions", "video"]
"""The artifact that the values of a stream go to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStream:
    name: str
    """The name in the file: a topic, a column, a dataset."""
    slot: Slot
    type: str
    """The type as its format calls it, such as `sensor_msgs/msg/JointState` or `float32[7]`."""
    rows: int | None = None
    """Rows or messages that the file declares; None where it does not say."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A part of the recording that is not imported."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeInRecording:
    index: int
    key: str
    """Its name in the recording, such as `demo_3`. It is part of what makes two imports the same."""
    rows: int | None = None
    """Steps, frames or messages that the recording declares; None where it does not say."""
    duration_s: float | None = None
    files: tuple[Path, ...] = ()
    """The files that the episode is read from; empty where these are all files of the recording."""
    source: SourceFile | None = None
    """Where the episode was imported before: the file that it came from then."""
    status: FinalStatus = "ready"
    """How the recorded run ended. A failed one stays failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Made by an importer's `scan`, without reading rows."""

    format: str
    path: Path
    name: str
    episodes: tuple[EpisodeInRecording, ...]
    streams: tuple[RecordedStream, ...]
    skipped: tuple[Skipped, ...] = ()
    losses: tuple[str, ...] = ()
    """What the import changes, one sentence each: for example that times are made up from a frame rate."""
    files: tuple[Path, ...]
    """The files whose digest identifies the recording."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """More facts to show: versions, clocks, names of tasks. JSON."""
    detail: Any = None
    """What the importer itself keeps between `scan` and `encode`."""


class Importer(Protocol):
    """Reads one format. Its options are given when it is made."""

    @property
    def format(self) -> str: ...

    def options(self) -> dict[str, Plain]:
        """The options that change the result. They are recorded with every episode."""
        ...

    def scan(self, path: Path) -> Recording:
        """Describe the recording. A path that is not of this format is refused."""
        ...

    def encode(self, recording: Recording, index: int, folder: Path) -> EncodedEpisode:
        """Write the files of one episode into an empty folder, and compare what was read with what was declared.

        Memory does not grow with the length of the recording. A difference raises CountMismatch, except behind the
        place where the recording is cut off or damaged: that is imported up to there, and `damage` in the metadata
        says so.
        """
        ...
