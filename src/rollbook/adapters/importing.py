"""Imports: the episodes of a recording go to a server or into folders, each exactly once.

An episode is known by the digest of its source file, its name in the file and the options of the import. So an import
that was stopped is continued by the same call, and a second import of the same file changes nothing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from rollbook.adapters.destination import Destination, EpisodeAbout
from rollbook.adapters.encoded import AnyPath, EncodedEpisode
from rollbook.adapters.episode_folder import (
    is_episode_folder,
    read_episode_file,
    write_episode_file,
)
from rollbook.adapters.recording import EpisodeInRecording, Importer, Recording
from rollbook.adapters.source_digest import SourceDigests
from rollbook.adapters.storable_text import check_names, with_storable_texts
from rollbook.client.http import wire_code
from rollbook.contracts.episode import FinalStatus
from rollbook.contracts.source_file import SOURCE_FILE_KEY, SourceFile
from rollbook.errors import (
    APIError,
    ConfigurationError,
    ConflictError,
    IdempotencyConflict,
    RollbookError,
    StorageError,
    TargetExists,
    TransportError,
)
from rollbook.files import make_folders, promote_folder, write_errors

if TYPE_CHECKING:
    from rollbook.client import Client, RecordedEpisode

_MOST_KEYS = 100
_SHOWN_REASONS = 3
_UNFINISHED = ".importing-"
_ABANDONED_S = 24 * 3600
_LONGEST_FOLDER = 100
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")

Outcome: TypeAlias = Literal["imported", "there already", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedEpisode:
    index: int
    key: str
    """Its name in the recording."""
    outcome: Outcome
    source: SourceFile | None = None
    """None where the file could not be read."""
    place: str | None = None
    """Id of the episode on the server, or its folder."""
    metadata: Mapping[str, Any] | None = None
    """What the importer says about it; None unless it was imported now."""
    error: Exception | None = None


OnImported: TypeAlias = "Callable[[int, int, ImportedEpisode], None]"
"""Called with the number of episodes that are done, of all, and the last one."""


class ImportTarget(Protocol):
    """A place for imported episodes."""

    def find(self, source: SourceFile, status: FinalStatus = "ready") -> str | None:
        """The place of the episode if it is there, complete. `status`: how the recorded run ended."""
        ...

    def folder(self) -> Path:
        """Where the files of an episode are written first."""
        ...

    def keep(self, encoded: EncodedEpisode, folder: Path, source: SourceFile) -> str:
        """Keep an episode whose files are in `folder`, and say where it is."""
        ...


def import_recording(
    importer: Importer,
    path: AnyPath,
    target: ImportTarget,
    *,
    episodes: Sequence[int] | None = None,
    on_imported: OnImported | None = None,
    stop_on_error: bool = False,
) -> list[ImportedEpisode]:
    """Import the episodes of a recording, or those with the given indices. An episode that fails does not stop the
    others, unless `stop_on_error`; a refused key, a quota and a server that cannot be reached do."""
    check_names(str(path))
    recording = importer.scan(Path(path))
    _refuse_nothing(recording)
    chosen = chosen_episodes(recording, episodes)
    one = _ImportOne(importer, recording, target)
    done: list[ImportedEpisode] = []
    for episode in chosen:
        try:
            imported = one.run(episode)
        except RollbookError as error:
            if stop_on_error or _fails_for_all(error):
                raise
            imported = ImportedEpisode(
                index=episode.index, key=episode.key, outcome="failed", error=error
            )
        done.append(imported)
        if on_imported is not None:
            on_imported(len(done), len(chosen), imported)
    return done


def _refuse_nothing(recording: Recording) -> None:
    """An import of 0 episodes would look like one that went well. What was left out may be why there are none."""
    if recording.episodes:
        return
    reasons = "; ".join(
        f"{each.name}: {each.reason}" for each in recording.skipped[:_SHOWN_REASONS]
    )
    detail = f"there is no episode in it{f' ({reasons})' if reasons else ''}"
    raise StorageError(path=str(recording.path), detail=detail)


def _fails_for_all(error: RollbookError) -> bool:
    """Every other episode would fail in the same way, after it was encoded, and after all retries of the client."""
    refused = isinstance(error, APIError) and error.status_code in (401, 403)
    return refused or isinstance(error, TransportError | ConfigurationError)


def chosen_episodes(
    recording: Recording, episodes: Sequence[int] | None
) -> tuple[EpisodeInRecording, ...]:
    if episodes is None:
        return recording.episodes
    known = {each.index: each for each in recording.episodes}
    for index in episodes:
        if index not in known:
            held = f"{min(known)} to {max(known)}" if known else "none"
            message = f"{recording.path} has no episode {index}; it has {held}"
            raise ConfigurationError(message=message)
    return tuple(known[index] for index in dict.fromkeys(episodes))


class _ImportOne:
    def __init__(self, importer: Importer, recording: Recording, target: ImportTarget) -> None:
        self._importer = importer
        self._recording = recording
        self._target = target
        self._digests = SourceDigests()

    def run(self, episode: EpisodeInRecording) -> ImportedEpisode:
        options = self._importer.options()
        source = self._digests.of_episode(self._recording, episode, options)
        facts: dict[str, Any] = {"index": episode.index, "key": episode.key, "source": source}
        there = self._target.find(source, episode.status)
        if there is not None:
            return ImportedEpisode(**facts, outcome="there already", place=there)
        with _removed_after(self._target.folder()) as folder:
            encoded = self._encoded(episode, folder)
            self._digests.check_unchanged(self._recording, episode)
            encoded = with_storable_texts(encoded)
            metadata = {**encoded.metadata, SOURCE_FILE_KEY: source.to_json()}
            encoded = replace(encoded, metadata=metadata)
            place = self._target.keep(encoded, folder, source)
        return ImportedEpisode(**facts, outcome="imported", place=place, metadata=metadata)

    def _encoded(self, episode: EpisodeInRecording, folder: Path) -> EncodedEpisode:
        try:
            return self._importer.encode(self._recording, episode.index, folder)
        except OSError as error:  # a full disk, or a disk with the recording that is gone
            where = error.filename or folder
            detail = f"cannot be read or written ({error.strerror or error})"
            raise StorageError(path=str(where), detail=detail) from error


@contextmanager
def _removed_after(folder: Path) -> Iterator[Path]:
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ------------------------------------------------------------------------------------- into folders


class ImportFolder:
    """A folder with one folder for each episode."""

    def __init__(self, path: AnyPath, about: EpisodeAbout | None = None) -> None:
        self.path = Path(path)
        self._destination = Destination.local(about or EpisodeAbout())
        self._known: dict[str, str] | None = None

    def find(self, source: SourceFile, status: FinalStatus = "ready") -> str | None:
        if self._known is None:
            _remove_abandoned(self.path)
            self._known = dict(self._imported())
        return self._known.get(source.import_key)

    def folder(self) -> Path:
        folder = self.path / f"{_UNFINISHED}{os.urandom(8).hex()}"
        with write_errors(self.path):
            make_folders(self.path)
            folder.mkdir()
        return folder

    def keep(self, encoded: EncodedEpisode, folder: Path, source: SourceFile) -> str:
        named = self._destination.named(episode_index=source.episode)
        write_episode_file(folder, encoded, named.about)
        final = self.path / _folder_name(source)
        try:
            promote_folder(folder, final)
        except TargetExists as error:
            if _import_key(final) != source.import_key:
                detail = "it holds another episode; choose another folder for --out"
                raise TargetExists(path=str(final), detail=detail) from error
            # another import of the same file was faster
        if self._known is not None:
            self._known[source.import_key] = str(final)
        return str(final)

    def _imported(self) -> Iterator[tuple[str, str]]:
        if not self.path.is_dir():
            return
        for folder in sorted(self.path.iterdir()):
            if folder.name.startswith(".") or not is_episode_folder(folder):
                continue
            key = _import_key(folder)
            if key is not None:
                yield key, str(folder)


def _import_key(folder: Path) -> str | None:
    """Which import made the episode in the folder; None where no import did."""
    if not is_episode_folder(folder):
        return None
    source = SourceFile.recorded_in(read_episode_file(folder).metadata)
    return None if source is None else source.import_key


def _remove_abandoned(path: Path) -> None:
    """Remove unfinished episodes of imports that were killed. One that is running writes more often than this."""
    long_ago = time.time() - _ABANDONED_S
    for folder in path.glob(f"{_UNFINISHED}*"):
        with suppress(OSError):
            if max(each.stat().st_mtime for each in (folder, *folder.rglob("*"))) < long_ago:
                shutil.rmtree(folder, ignore_errors=True)


def _folder_name(source: SourceFile) -> str:
    """Readable, allowed on every file system, and different for different imports."""
    stem = source.name.rsplit(".", 1)[0] or source.name
    text = "".join(each if each in _PLAIN else "_" for each in f"{stem}-{source.episode}")
    return f"{text[:_LONGEST_FOLDER].lstrip('.')}-{source.import_key[:8]}"


# -------------------------------------------------------------------------------------- to a server


class ImportServer:
    """A server, through a client."""

    def __init__(self, client: Client, about: EpisodeAbout | None = None) -> None:
        self._client = client
        self._destination = Destination.find(client, about or EpisodeAbout(), None)

    def find(self, source: SourceFile, status: FinalStatus = "ready") -> str | None:
        """An upload that broke off is failed too, but some of its artifacts are missing."""
        for each in self._with_key(source, with_archived=True):
            is_failed_run = each.status == status == "failed" and not each.missing_artifacts
            if each.status in ("ready", "archived") or is_failed_run:
                return each.id
        return None

    def folder(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="rollbook-import-"))

    def keep(self, encoded: EncodedEpisode, folder: Path, source: SourceFile) -> str:
        """An episode that another import of the same file has begun is continued, one that failed is begun anew."""
        facts = self._destination.named(episode_index=source.episode).facts(encoded)
        for number in range(_MOST_KEYS):
            key = f"import-{source.import_key}-{number}"
            try:
                episode = self._client.log_episode(**facts, idempotency_key=key)
            except ConflictError as error:
                there = self.find(source, encoded.status)
                if there is not None:  # another import of the same file was faster
                    return there
                if wire_code(error) != IdempotencyConflict.code:
                    raise
                continue
            if episode.status != encoded.status and episode.status != "spooled":
                continue
            return episode.id or "in the spool"
        message = f"the episode {source.episode!r} could not be created after {_MOST_KEYS} attempts"
        raise ConfigurationError(message=message)

    def _with_key(self, source: SourceFile, **filters: Any) -> Sequence[RecordedEpisode]:
        about = {SOURCE_FILE_KEY: {"import_key": source.import_key}}
        return list(self._client.episodes(metadata=about, **filters))
