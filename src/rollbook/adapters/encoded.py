"""EncodedEpisode: the files and facts of one episode, which every adapter makes; and its upload."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from rollbook.contracts.episode import (
    ARTIFACT_KINDS,
    FILE_NAMES,
    ArtifactKind,
    EpisodeSource,
    FinalStatus,
)
from rollbook.errors import AuthError, ConfigurationError, StorageError, TargetExists

if TYPE_CHECKING:
    from rollbook.client import Client, Episode

AnyPath: TypeAlias = "str | os.PathLike[str]"

_log = logging.getLogger("rollbook.adapters")
_TEXTS = ("name", "robot", "policy_version", "env_version", "git_sha")


class EpisodeAbout(TypedDict, total=False):
    """Facts that a caller may give about an episode. They override those that the adapter found."""

    name: str
    source: EpisodeSource
    robot: str
    policy_version: str
    env_version: str
    git_sha: str
    metadata: Mapping[str, Any]
    tags: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedEpisode:
    files: Mapping[ArtifactKind, Path]
    """Empty after an upload without `output_dir`, which does not keep the files."""
    name: str
    source: EpisodeSource
    fps: float
    duration_s: float
    metadata: Mapping[str, Any]
    robot: str | None = None
    env_version: str | None = None
    seed: int | None = None
    failure: Exception | None = None
    """The error that ended the run early. The files hold the steps before it."""

    @property
    def status(self) -> FinalStatus:
        return "ready" if self.failure is None else "failed"


@dataclass(frozen=True, slots=True)
class RecordedRun:
    encoded: EncodedEpisode
    episode: Episode | None
    """None when no server is configured and the episode exists only as files."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """Result of one item of a batch: a run or an error."""

    item: int
    """The seed, or the index of the episode in its dataset."""
    run: RecordedRun | None = None
    error: Exception | None = None


OnProgress: TypeAlias = "Callable[[int, int, BatchResult], None]"
"""Called with the number of finished items, the number of all items, and the last result."""


# ------------------------------------------------------------------------------------------ files


@contextmanager
def artifact_folder(output_dir: AnyPath | None) -> Iterator[Path]:
    """The folder for the files: that of the caller, or a temporary one."""
    if output_dir is not None:
        yield prepared_folder(output_dir)
        return
    with tempfile.TemporaryDirectory(prefix="rollbook-") as folder:
        yield Path(folder)


def prepared_folder(output_dir: AnyPath) -> Path:
    """Create the folder. One that already holds artifacts is refused, so that two episodes are not mixed."""
    folder = Path(output_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        detail = f"the folder cannot be created: {error.strerror or error}"
        raise StorageError(path=str(folder), detail=detail) from error
    for name in FILE_NAMES.values():
        if os.path.lexists(folder / name):
            detail = "choose an empty folder, or remove the files of the episode in it"
            raise TargetExists(path=str(folder / name), detail=detail)
    return folder


def files_in(folder: Path) -> dict[ArtifactKind, Path]:
    paths = {kind: folder / FILE_NAMES[kind] for kind in ARTIFACT_KINDS}
    return {kind: path for kind, path in paths.items() if path.is_file()}


# ----------------------------------------------------------------------------------------- upload


@dataclass(frozen=True, slots=True)
class Destination:
    """The server for encoded episodes, and the caller's facts about them. Both are checked before anything runs."""

    client: Client | None
    about: EpisodeAbout = field(default_factory=EpisodeAbout)

    @classmethod
    def find(
        cls, client: Client | None, about: EpisodeAbout, output_dir: AnyPath | None
    ) -> Destination:
        _check_about(about)
        return cls(client or _default_client(output_dir), about)

    def named(self, **values: object) -> Destination:
        """The same for one item of a batch: `{seed}` or `{episode_index}` in the name is replaced."""
        name = self.about.get("name")
        if name is None:
            return self
        for key, value in values.items():
            name = name.replace(f"{{{key}}}", str(value))
        return replace(self, about={**self.about, "name": name})

    def deliver(self, encoded: EncodedEpisode, *, kept: bool) -> RecordedRun:
        """Upload the episode if there is a server, then raise the error that ended the run, if there is one."""
        if encoded.failure is not None and not encoded.files:
            raise encoded.failure
        try:
            episode = None if self.client is None else self._log(self.client, encoded)
        except Exception as error:
            if encoded.failure is None:
                raise
            encoded.failure.add_note(f"the steps before the error could not be uploaded: {error}")
            raise encoded.failure from None
        if encoded.failure is not None:
            where = "in its files" if episode is None else f"episode {episode.id or 'in the spool'}"
            encoded.failure.add_note(f"the steps before the error are {where}, as failed")
            raise encoded.failure
        return RecordedRun(encoded if kept else replace(encoded, files={}), episode)

    def _log(self, client: Client, encoded: EncodedEpisode) -> Episode:
        facts: dict[str, Any] = {
            "name": encoded.name,
            "source": encoded.source,
            "robot": encoded.robot,
            "env_version": encoded.env_version,
            **self.about,
            **{str(kind): path for kind, path in encoded.files.items()},
            "metadata": {**encoded.metadata, **self.about.get("metadata", {})},
        }
        if encoded.failure is not None:
            facts["failure_time_s"] = encoded.duration_s
        return client.log_episode(
            **facts,
            seed=encoded.seed,
            fps=encoded.fps,
            duration_s=encoded.duration_s,
            status=encoded.status,
        )


def _check_about(about: EpisodeAbout) -> None:
    """Check the facts before the run. The client would refuse the same mistakes, but only after it."""
    from rollbook.client.bodies import create_body

    unknown = sorted(about.keys() - EpisodeAbout.__annotations__.keys())
    if unknown:
        known = ", ".join(EpisodeAbout.__annotations__)
        raise ConfigurationError(message=f"there is no argument {unknown[0]!r}; known: {known}")
    given: dict[str, Any] = {**about}
    create_body(
        source=about.get("source", "sim"),
        artifacts=(),
        texts={name: given.get(name) for name in _TEXTS},
        seed=None,
        fps=None,
        metadata=about.get("metadata"),
        tags=about.get("tags"),
    )


def _default_client(output_dir: AnyPath | None) -> Client | None:
    """None where no client is configured but an `output_dir` keeps the files."""
    from rollbook.client import default_client

    try:
        return default_client()
    except ConfigurationError as error:
        if output_dir is None:
            message = f"{error}; or pass output_dir= to keep the files and upload nothing"
            raise ConfigurationError(message=message) from error
        _log.warning("files are written, nothing is uploaded: %s", error)
        return None


# ------------------------------------------------------------------------------------------- many


def run_many(
    items: Sequence[int],
    work: Callable[[int], RecordedRun],
    *,
    on_progress: OnProgress | None,
    stop_on_error: bool,
) -> list[BatchResult]:
    """Work on every item. An error of one item does not stop the others unless `stop_on_error`; a refused key does."""
    results: list[BatchResult] = []
    for item in items:
        try:
            result = BatchResult(item, run=work(item))
        except AuthError:
            raise
        except Exception as error:
            if stop_on_error:
                raise
            result = BatchResult(item, error=error)
        results.append(result)
        if on_progress is not None:
            on_progress(len(results), len(items), result)
    return results
