"""ChosenEpisodes: the episodes of an export, from folders on this machine or from a server."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from rollbook.adapters.episode_folder import checked_files, read_episode_file
from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.adapters.folder_importer import encoded_of, episode_folders
from rollbook.contracts.episode import FILE_NAMES, ArtifactKind
from rollbook.contracts.wire.episodes import EpisodeRecord
from rollbook.errors import ConfigurationError, StorageError
from rollbook.files import write_errors

if TYPE_CHECKING:
    from rollbook.client import Client, RecordedEpisode

OnFetched: TypeAlias = "Callable[[int, int], None]"

_TEXTS = (
    *("policy_version", "env_version", "git_sha", "status", "source", "robot", "name"),
    *("since", "until"),
)
_METADATA = "metadata."


def filters_of(query: str) -> dict[str, Any]:
    """Filters by name, from `policy_version=v4 tag=night metadata.task=pick`. Values may be quoted."""
    filters: dict[str, Any] = {}
    try:
        words = shlex.split(query)
    except ValueError as error:
        raise ConfigurationError(message=f"--query {query!r}: {error}") from error
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals):
            message = f"--query {query!r}: {word!r} is not a filter such as policy_version=v4"
            raise ConfigurationError(message=message)
        if name == "tag":
            filters.setdefault("tag", []).append(value)
        elif name.startswith(_METADATA):
            filters.setdefault("metadata", {})[name.removeprefix(_METADATA)] = value
        elif name == "seed":
            filters["seed"] = _whole(query, value)
        elif name in _TEXTS:
            filters[name] = value
        else:
            known = ", ".join(("seed", "tag", "metadata.PATH", *_TEXTS))
            raise ConfigurationError(message=f"--query: no filter {name!r}; known are {known}")
    return filters


def _whole(query: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        message = f"--query {query!r}: seed is {value!r}, expected a whole number"
        raise ConfigurationError(message=message) from None


class ChosenEpisodes:
    """As a context manager it removes what it fetched, and closes the connection."""

    def __init__(self, profile: str, *, near: Path) -> None:
        """`near`: fetched files lie beside this path, on the disk that has room for the export."""
        self._profile = profile
        self._near = near
        self._stack = ExitStack()
        self._client: Client | None = None
        self._folder: Path | None = None

    def find(
        self,
        names: Sequence[str],
        filters: Mapping[str, Any] | None,
        *,
        limit: int | None = None,
        on_episode: OnFetched | None = None,
    ) -> list[ExportedEpisode]:
        """Every file is compared with its SHA-256. The order is that of the names, then that of the server."""
        found: dict[str, Path | RecordedEpisode] = {}
        for name in names:
            found.update(self._named(name))
        if filters is not None:
            listed = self._connected().episodes(**filters, limit=limit)
            found.update((each.id, each) for each in listed)
        if not found:
            raise ConfigurationError(message="no episode matches the query")
        episodes: list[ExportedEpisode] = []
        for each in found.values():
            episodes.append(_from_folder(each) if isinstance(each, Path) else self._fetched(each))
            if on_episode is not None:
                on_episode(len(episodes), len(found))
        return episodes

    def _named(self, name: str) -> Iterator[tuple[str, Path | RecordedEpisode]]:
        path = Path(name)
        if path.exists():
            folders = list(episode_folders(path))
            if not folders:
                detail = "neither it nor a folder in it has an episode.json"
                raise StorageError(path=name, detail=detail)
            yield from ((str(folder.resolve()), folder) for folder in folders)
            return
        if "/" in name:
            raise ConfigurationError(message=f"there is nothing at {name}; name a folder or an id")
        yield name, self._connected().episode(name)

    def _connected(self) -> Client:
        if self._client is None:
            from rollbook.client import Client
            from rollbook.client.credentials import DEFAULT_PROFILE

            profile = None if self._profile == DEFAULT_PROFILE else self._profile
            self._client = self._stack.enter_context(Client(profile=profile, verbose=False))
        return self._client

    def _fetched(self, episode: RecordedEpisode) -> ExportedEpisode:
        folder = self._scratch() / episode.id
        with write_errors(self._near):
            folder.mkdir()
        kinds = [cast("ArtifactKind", each.kind) for each in episode.artifacts]
        for kind in kinds:
            episode.download(kind, folder / FILE_NAMES[kind])
        record = self._connected().episode(episode.id).record
        files = {kind: folder / FILE_NAMES[kind] for kind in kinds}
        digests = {cast("ArtifactKind", a.kind): a.sha256 or "" for a in record.artifacts}
        return _exported(record, files, digests)

    def _scratch(self) -> Path:
        if self._folder is None:
            parent = self._near.absolute().parent
            while not parent.exists():
                parent = parent.parent
            with write_errors(self._near):
                self._folder = Path(tempfile.mkdtemp(prefix=".rollbook-export-", dir=parent))
            self._stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder

    def __enter__(self) -> ChosenEpisodes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()


def _from_folder(folder: Path) -> ExportedEpisode:
    record = read_episode_file(folder)
    found = checked_files(folder, record.artifacts)
    files = {kind: path for kind, (path, _) in found.items()}
    return _exported(record, files, {kind: digest for kind, (_, digest) in found.items()})


def _exported(
    record: EpisodeRecord,
    files: dict[ArtifactKind, Path],
    digests: Mapping[ArtifactKind, str],
) -> ExportedEpisode:
    return ExportedEpisode.of_encoded(
        encoded_of(record, files), digests, episode_id=record.id or None
    )
