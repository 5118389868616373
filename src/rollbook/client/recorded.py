"""RecordedEpisode: an episode on the server, and methods that download its artifacts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from numpy.typing import NDArray

from rollbook.client.artifact_files import checked_kind
from rollbook.client.cache import Cache, IncomingFile
from rollbook.client.connection import Connection
from rollbook.client.facade import Facade, awaiting, blocking
from rollbook.client.runtime import finish
from rollbook.contracts.episode import ArtifactKind
from rollbook.contracts.npz import read_npz
from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.wire.episodes import ArtifactRecord, EpisodeRecord
from rollbook.errors import (
    APIError,
    ConfigurationError,
    NotFoundError,
    RateLimitError,
    RollbookError,
)
from rollbook.files import atomic_write

Arrays = dict[str, NDArray[Any]]


class RecordedCore:
    """The core of RecordedEpisode and AsyncRecordedEpisode."""

    def __init__(
        self,
        connection: Connection,
        cache: Cache,
        record: EpisodeRecord,
        urls: Mapping[ArtifactKind, str] | None = None,
    ) -> None:
        """`urls`: signed download URLs that are known already, by kind. Each saves a request."""
        self.record = record
        self._urls = dict(urls or {})
        self._connection = connection
        self._cache = cache

    async def sensors(self) -> Arrays:
        """Every array of sensors.npz by its key, `<namespace>/<field>`, with clocks under `<namespace>/_t_ns`."""
        return await self._arrays("sensors")

    async def actions(self) -> Arrays:
        """Every array of actions.npz by its key."""
        return await self._arrays("actions")

    async def video(self) -> Path:
        """The video, as a file in the cache."""
        return await self.fetch("video")

    async def read_metadata(self) -> dict[str, Any]:
        """All metadata. A list leaves out metadata that is large; then this asks the server for the episode."""
        if self.record.metadata_truncated:
            path = f"/api/episodes/{quote(self.record.id, safe='')}"
            self.record = await self._connection.call(
                "read the episode", "GET", path, answer=EpisodeRecord
            )
        return self.record.metadata

    async def fetch(self, kind: ArtifactKind) -> Path:
        """An artifact as a file in the cache, verified by its SHA-256. Copy the file if you want to keep it."""
        artifact = self._artifact(kind)
        in_thread = self._connection.runtime.in_thread
        if artifact.sha256 is not None:
            cached = await in_thread(partial(self._cache.find, artifact.sha256))
            if cached is not None:
                return cached
        what = f"{kind} of episode {self.record.id}"
        incoming = await in_thread(partial(self._cache.incoming, what, artifact.size))
        try:
            await self._download(kind, incoming)
        except BaseException:
            incoming.discard()
            raise
        return await in_thread(partial(self._cache.keep, incoming, artifact.sha256))

    async def download(self, kind: ArtifactKind, to: str | os.PathLike[str]) -> Path:
        """Writes an artifact to the file `to`, completely or not at all."""
        cached = await self.fetch(kind)
        target = Path(to)
        await self._connection.runtime.in_thread(partial(_copy, cached, target))
        return target

    async def delete(self) -> None:
        """Deletes the episode and its artifacts. This cannot be undone."""
        await self._change("delete", "DELETE", "")

    async def archive(self) -> None:
        """Hides the episode from lists and closes it to changes, until it is restored."""
        await self._change("archive", "POST", "/archive")

    async def restore(self) -> None:
        await self._change("restore", "POST", "/restore")

    # ------------------------------------------------------------------------------------ helpers

    async def _change(self, verb: str, method: str, suffix: str) -> None:
        path = f"/api/episodes/{self.record.id}{suffix}"
        await self._connection.call(f"{verb} the episode", method, path, answer=dict[str, Any])

    def _artifact(self, kind: str) -> ArtifactRecord:
        found = self.record.artifact(checked_kind(kind))
        if found is None:
            message = f"episode {self.record.id} has no {kind}"
            raise NotFoundError(status_code=404, message=message)
        return found

    async def _arrays(self, kind: ArtifactKind) -> Arrays:
        path = await self.fetch(kind)
        return await self._connection.runtime.in_thread(partial(read_npz, path))

    async def _download(self, kind: ArtifactKind, incoming: IncomingFile) -> None:
        """Resumes where the connection broke, as long as every attempt brings some bytes."""
        route = f"/api/episodes/{self.record.id}/artifact/{kind}"
        failed = 0
        while True:
            before = incoming.size
            try:
                known = self._urls.pop(kind, None)
                url = known or await self._connection.where(f"download {kind}", route)
                await self._connection.get(f"download {kind}", url, incoming, start=before)
                return
            except RollbookError as error:
                if incoming.is_whole:
                    return
                failed = 1 if incoming.size > before else failed + 1
                asked = error.retry_after if isinstance(error, RateLimitError) else None
                if known is not None and isinstance(error, APIError):
                    continue  # the URL may have expired: get a new one
                if not error.retryable or not await self._connection.pause(failed, asked):
                    raise


def _copy(source: Path, target: Path) -> None:
    with open(source, "rb") as file, atomic_write(target) as out:
        shutil.copyfileobj(file, out, 1 << 20)


class EpisodeFacts(Facade[RecordedCore]):
    """The fields of an episode as they were when it was read."""

    id: str
    status: str
    name: str | None
    source: str | None
    robot: str | None
    policy_version: str | None
    env_version: str | None
    git_sha: str | None
    seed: int | None
    fps: float | None
    duration_s: float | None
    failure_time_s: float | None
    bytes_total: int | None
    metadata_truncated: bool
    tags: list[str]
    artifacts: list[ArtifactRecord]
    missing_artifacts: list[str]
    created_at: str | None
    updated_at: str | None
    policy_revision: PolicyRevision | None

    def __init__(self, core: RecordedCore) -> None:
        super().__init__(core)
        for name in EpisodeRecord.__struct_fields__:
            if name != "metadata":
                setattr(self, name, getattr(core.record, name))
        self.policy_revision = core.record.policy_revision or None

    @property
    def record(self) -> EpisodeRecord:
        """All fields in one value."""
        return self._core.record

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, status={self.status!r}, name={self.name!r})"

    def _repr_html_(self) -> str:
        return self.record._repr_html_()


class RecordedEpisode(EpisodeFacts):
    @property
    def metadata(self) -> dict[str, Any]:
        """All metadata. Where a list left it out because it is large, the server is asked for it once."""
        return finish(self._core.read_metadata())

    read_metadata = blocking(RecordedCore.read_metadata)
    sensors = blocking(RecordedCore.sensors)
    actions = blocking(RecordedCore.actions)
    video = blocking(RecordedCore.video)
    fetch = blocking(RecordedCore.fetch)
    download = blocking(RecordedCore.download)
    delete = blocking(RecordedCore.delete)
    archive = blocking(RecordedCore.archive)
    restore = blocking(RecordedCore.restore)


class AsyncRecordedEpisode(EpisodeFacts):
    @property
    def metadata(self) -> dict[str, Any]:
        """All metadata. Where a list left it out because it is large, `await read_metadata()` first."""
        if self._core.record.metadata_truncated:
            text = (
                f"the list left out the large metadata of episode {self.id}; await read_metadata()"
            )
            raise ConfigurationError(message=text)
        return self._core.record.metadata

    read_metadata = awaiting(RecordedCore.read_metadata)
    sensors = awaiting(RecordedCore.sensors)
    actions = awaiting(RecordedCore.actions)
    video = awaiting(RecordedCore.video)
    fetch = awaiting(RecordedCore.fetch)
    download = awaiting(RecordedCore.download)
    delete = awaiting(RecordedCore.delete)
    archive = awaiting(RecordedCore.archive)
    restore = awaiting(RecordedCore.restore)
