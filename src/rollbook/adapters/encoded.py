"""EncodedEpisode: what every adapter makes, the files and all that is said about them; and how it is uploaded."""

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


class EpisodeAbout(TypedDict, total=False):
    """What a caller may say about an episode. It counts more than what the adapter found out by itself."""

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
    """Empty once the files are gone: they were made for an upload and not to be kept."""
    name: str
    source: EpisodeSource
    fps: float
    duration_s: float
    metadata: Mapping[str, Any]
    robot: str | None = None
    env_version: str | None = None
    seed: int | None = None
    failure: Exception | None = None
    """What ended the run before its time. Everything up to then is in the files."""

    @property
    def status(self) -> FinalStatus:
        return "ready" if self.failure is None else "failed"


@dataclass(frozen=True, slots=True)
class RecordedRun:
    encoded: EncodedEpisode
    episode: Episode | None
    """None when there was no server to send it to; then the files are all there is."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """One of many: a run, or why there is none."""

    item: int
    """The seed, or the index of the episode in its dataset."""
    run: RecordedRun | None = None
    error: Exception | None = None


OnProgress: TypeAlias = "Callable[[int, int, BatchResult], None]"
"""How many are done, of how many, and the last of them."""


# ------------------------------------------------------------------------------------------ files


@contextmanager
def artifact_folder(output_dir: AnyPath | None) -> Iterator[Path]:
    """Where files are to be written: the caller's folder, or one that is gone afterwards."""
    if output_dir is not None:
        yield prepared_folder(output_dir)
        return
    with tempfile.TemporaryDirectory(prefix="rollbook-") as folder:
        yield Path(folder)


def prepared_folder(output_dir: AnyPath) -> Path:
    """Refuses a folder with artifacts in it: a new episode must not be mixed with the video of another."""
    folder = Path(output_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        detail = f"the folder cannot be made: {error.strerror or error}"
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
    """Where encoded episodes go, and what the caller says about them. Made, and so checked, before anything runs."""

    client: Client | None
    about: EpisodeAbout = field(default_factory=EpisodeAbout)

    @classmethod
    def find(
        cls, client: Client | None, about: EpisodeAbout, output_dir: AnyPath | None
    ) -> Destination:
        _check_about(about)
        return cls(client or _default_client(output_dir), about)

    def named(self, **values: object) -> Destination:
        """The same for one of many, where the name may say which: `{seed}`, `{episode_index}`."""
        name = self.about.get("name")
        if name is None:
            return self
        for key, value in values.items():
            name = name.replace(f"{{{key}}}", str(value))
        return replace(self, about={**self.about, "name": name})

    def deliver(self, encoded: EncodedEpisode, *, kept: bool) -> RecordedRun:
        """Uploads, unless there is nowhere to or nothing; then raises what ended the run, if anything did."""
        if encoded.failure is not None and not encoded.files:
            raise encoded.failure
        try:
            episode = None if self.client is None else self._log(self.client, encoded)
        except Exception as error:
            if encoded.failure is None:
                raise
            encoded.failure.add_note(f"and what ran before could not be uploaded: {error}")
            raise encoded.failure from None
        if encoded.failure is not None:
            where = "in its files" if episode is None else f"episode {episode.id or 'in the spool'}"
            encoded.failure.add_note(f"what ran before is {where}, as failed")
            raise encoded.failure
        return RecordedRun(encoded if kept else replace(encoded, files={}), episode)

    def _log(self, client: Client, encoded: EncodedEpisode) -> Episode:
        said: dict[str, Any] = {
            "name": encoded.name,
            "source": encoded.source,
            "robot": encoded.robot,
            "env_version": encoded.env_version,
            **self.about,
            **{str(kind): path for kind, path in encoded.files.items()},
            "metadata": {**encoded.metadata, **self.about.get("metadata", {})},
        }
        if encoded.failure is not None:
            said["failure_time_s"] = encoded.duration_s
        return client.log_episode(
            **said,
            seed=encoded.seed,
            fps=encoded.fps,
            duration_s=encoded.duration_s,
            status=encoded.status,
        )


def _check_about(about: EpisodeAbout) -> None:
    """The client would find the same mistakes, but only after the run."""
    from rollbook.client.bodies import create_body

    unknown = sorted(about.keys() - EpisodeAbout.__annotations__.keys())
    if unknown:
        known = ", ".join(EpisodeAbout.__annotations__)
        raise ConfigurationError(message=f"there is no argument {unknown[0]!r}; known: {known}")
    create_body(
        source=about.get("source", "sim"),
        artifacts=(),
        texts={
            "name": about.get("name"),
            "robot": about.get("robot"),
            "policy_version": about.get("policy_version"),
            "env_version": about.get("env_version"),
            "git_sha": about.get("git_sha"),
        },
        seed=None,
        fps=None,
        metadata=about.get("metadata"),
        tags=about.get("tags"),
    )


def _default_client(output_dir: AnyPath | None) -> Client | None:
    """None when there is none, but a folder in which the episode can wait."""
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
    """One bad episode does not keep the others from being recorded, unless it is to; a refused key always does."""
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
