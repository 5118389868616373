"""RecordingFile: the NPZ artifact of an episode, opened when something of it is needed, and read by range.

It lives in a thread. A local file is read through its descriptor; of an object in S3 only the ranges are fetched. What
was read is kept for the next request, under the etag of the bytes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.episode import FILE_NAMES, ArtifactKind
from rollbook.contracts.npz import ArrayFacts, NpzArchive
from rollbook.contracts.streams import CLOCK_FIELD
from rollbook.errors import BlobNotFound, InvalidValue
from rollbook.scoring.actions import key_parts
from rollbook.server.blobs.blob_file import BlobFile
from rollbook.server.blobs.file_blobs import LocalBlobs
from rollbook.server.blobs.files import disk_errors
from rollbook.server.blobs.interface import BlobInfo, BlobStore
from rollbook.server.context import Caller, ServerContext
from rollbook.server.episodes.artifacts import served_blob
from rollbook.server.http.responses import Problem
from rollbook.server.kept_values import KeptValues
from rollbook.server.queries import EpisodeRow

T = TypeVar("T")

MOST_KEPT_OF_ONE = 32 << 20
"""Bytes of one array that are kept in memory. A larger array is read again for every request."""
_HEADERS_AT_ONCE = 128
_MOST_READ = 1 << 30
"""Bytes of a file that are read, or unpacked, for one answer."""
MOST_TIMES = 1 << 23
"""Times in all clocks of a file."""
_RECORDINGS: tuple[ArtifactKind, ...] = ("sensors", "actions")


@dataclass(frozen=True, slots=True)
class FileContent:
    """What the table of contents, the headers and the clocks say."""

    arrays: Mapping[str, ArrayFacts]
    clocks: Mapping[str, NDArray[np.int64]]
    """Nanoseconds, by the key of the clock."""
    unreadable: Mapping[str, str]
    """Arrays that cannot be read, and why."""


class RecordingFile:
    def __init__(
        self,
        blobs: BlobStore,
        kept: KeptValues,
        loop: asyncio.AbstractEventLoop,
        kind: ArtifactKind,
        info: BlobInfo,
    ) -> None:
        """`loop` fetches from S3, while this is used in a thread."""
        self.kind = kind
        self._blobs = blobs
        self._kept = kept
        self._loop = loop
        self._info = info
        self._file: BinaryIO | None = None
        self._archive: NpzArchive | None = None
        self._prepare: Any = None
        self._left = _MOST_READ

    # ----------------------------------------------------------------------------- called in a thread

    def content(self) -> FileContent:
        """Raises InvalidValue for a file that is not an NPZ archive."""
        archive = self._open()
        arrays: dict[str, ArrayFacts] = {}
        unreadable: dict[str, str] = {}
        keys = archive.keys
        for at in range(0, len(keys), _HEADERS_AT_ONCE):
            some = keys[at : at + _HEADERS_AT_ONCE]
            self._fetch_headers(some)
            for key in some:
                try:
                    arrays[key] = archive.facts(key)
                except InvalidValue as error:
                    unreadable[key] = reason_of(error)
        clocks: dict[str, NDArray[np.int64]] = {}
        for key, facts in arrays.items():
            if key_parts(key)[1] == CLOCK_FIELD and _is_clock(facts):
                if sum(map(len, clocks.values())) + facts.shape[0] > MOST_TIMES:
                    unreadable[key] = f"the clocks have more than {MOST_TIMES:,} times"
                    continue
                try:
                    clocks[key] = _whole_clock(list(self.rows(key, 0, facts.shape[0])))
                except InvalidValue as error:
                    unreadable[key] = reason_of(error)
        return FileContent(arrays, clocks, unreadable)

    def rows(self, key: str, start: int, stop: int) -> Iterator[NDArray[Any]]:
        """Pieces of the array from row to row. Raises InvalidValue if too many bytes would have to be read."""
        archive = self._open()
        self._fetch_headers([key])
        facts = archive.facts(key)
        first = 0 if archive.is_packed(key) else start
        size = (stop - first) * facts.dtype.itemsize * math.prod(facts.shape[1:])
        if size > self._left:
            raise InvalidValue(
                record=FILE_NAMES[self.kind],
                field=key,
                value=f"{size:,} bytes in this range",
                expected=f"at most {self._left:,} of {_MOST_READ:,} for one answer; zoom in",
            )
        self._left -= size
        return archive.rows(key, start, stop)

    @property
    def identity(self) -> tuple[str, str]:
        """Changes whenever the bytes do."""
        return self._info.key, self._info.etag

    def kept(self, what: str, key: str) -> Any | None:
        return self._kept.get((self.identity, what, key))

    def keep(self, what: str, key: str, value: Any, size: int) -> None:
        self._kept.keep((self.identity, what, key), value, size)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self) -> NpzArchive:
        if self._archive is None:
            stream = self._stream()
            self._archive = NpzArchive(stream, record=FILE_NAMES[self.kind])
        return self._archive

    def _stream(self) -> BinaryIO:
        if isinstance(self._blobs, LocalBlobs):
            with disk_errors():
                try:
                    file = self._blobs.objects.open(self._info.key.split("/"))
                except FileNotFoundError:
                    raise BlobNotFound(key=self._info.key) from None
            self._file = cast(BinaryIO, file)
            return self._file
        remote = BlobFile(self._blobs, self._info, self._loop)
        self._prepare = remote.prepare
        return cast(BinaryIO, remote)

    def _fetch_headers(self, keys: Sequence[str]) -> None:
        if self._prepare is not None and self._archive is not None:
            self._prepare(self._archive.positions(keys))


def reason_of(error: InvalidValue) -> str:
    """What is wrong, without the name of what it is about: whoever lists it names it."""
    return f"it is {error.value}, expected {error.expected}"


def _is_clock(facts: ArrayFacts) -> bool:
    return facts.dtype.kind in "iuM" and len(facts.shape) == 1 and facts.shape[0] > 0


def _whole_clock(pieces: list[NDArray[Any]]) -> NDArray[np.int64]:
    whole = np.concatenate(pieces)
    if whole.dtype.kind == "M":
        whole = whole.astype("M8[ns]")
    return whole.astype(np.int64)


# ------------------------------------------------------------------------------------ of one episode


async def read_recording(
    context: ServerContext,
    caller: Caller,
    episode: EpisodeRow,
    work: Callable[[Sequence[RecordingFile], Mapping[str, str]], T],
) -> T:
    """Calls `work` in a thread with the files of the episode, and with those that cannot be served and why."""
    files: list[RecordingFile] = []
    missing: dict[str, str] = {}
    for artifact in episode.artifacts:
        if artifact.kind not in _RECORDINGS or artifact.status == "requested":
            continue
        try:
            info = await served_blob(context, caller, artifact)
        except Problem as problem:
            missing[FILE_NAMES[artifact.kind]] = problem.error
        else:
            loop = asyncio.get_running_loop()
            files.append(RecordingFile(context.blobs, context.kept, loop, artifact.kind, info))
    files.sort(key=lambda each: _RECORDINGS.index(each.kind))

    def run() -> T:
        with ExitStack() as opened:
            for each in files:
                opened.callback(each.close)
            return work(files, missing)

    async with context.recording_turns:
        return await asyncio.to_thread(run)
