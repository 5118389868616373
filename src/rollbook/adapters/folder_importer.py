"""EpisodeFolderImporter: folders that Rollbook wrote itself become episodes: of a server, or of another folder.

`rollbook import --out`, `rollbook episodes download` and adapters with `output_dir` write such folders. The files are
taken as they are; nothing is encoded again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

from rollbook.adapters.encoded import EncodedEpisode
from rollbook.adapters.episode_folder import (
    EPISODE_FILE,
    checked_files,
    is_episode_folder,
    read_episode_file,
)
from rollbook.adapters.recording import EpisodeInRecording, RecordedStream, Recording
from rollbook.contracts.episode import FILE_NAMES, ArtifactKind, EpisodeSource, FinalStatus
from rollbook.contracts.npz import inspect_npz
from rollbook.contracts.source_file import SourceFile
from rollbook.contracts.streams import CLOCK_FIELD, split_key
from rollbook.contracts.wire.episodes import EpisodeRecord
from rollbook.digest import Plain
from rollbook.errors import DamagedRecording, UnknownFormat
from rollbook.files import write_errors

FORMAT = "episodes"
_LONG = 64
"""Characters of the name of a folder that make the name of its episode."""


def looks_like(path: Path) -> str | None:
    """Runs that the gymnasium adapter recorded are told apart: see GymnasiumImporter."""
    found = next(episode_folders(path), None)
    if found is None or read_episode_file(found).metadata.get("adapter") == "gymnasium":
        return None
    return f"{found.name} has an {EPISODE_FILE}"


def episode_folders(path: Path) -> Iterator[Path]:
    """The folder itself, or the folders in it that hold an episode each, in the order of their names."""
    if is_episode_folder(path):
        yield path
    elif path.is_dir():
        for folder in sorted(path.iterdir()):
            if not folder.name.startswith(".") and is_episode_folder(folder):
                yield folder


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFolderImporter:
    adapter: ClassVar[str | None] = None
    """Only episodes that this adapter recorded; None takes all."""

    @property
    def format(self) -> str:
        return FORMAT if self.adapter is None else self.adapter

    def options(self) -> dict[str, Plain]:
        return {}

    def scan(self, path: Path) -> Recording:
        found = [(folder, read_episode_file(folder)) for folder in episode_folders(path)]
        if self.adapter is not None:
            found = [each for each in found if each[1].metadata.get("adapter") == self.adapter]
        if not found:
            made = "" if self.adapter is None else f" that the adapter {self.adapter} recorded"
            detail = f"neither it nor a folder in it has an {EPISODE_FILE}{made}"
            raise UnknownFormat(path=str(path), detail=detail)
        return Recording(
            format=self.format,
            path=path,
            name=path.resolve().name,
            episodes=tuple(_episode(index, *each) for index, each in enumerate(found)),
            streams=tuple(_streams(*found[0])),
            files=tuple(file for folder, record in found for file in _files(folder, record)),
            about={"adapters": sorted({str(r.metadata.get("adapter")) for _, r in found})},
            detail=found,
        )

    def encode(self, recording: Recording, index: int, folder: Path) -> EncodedEpisode:
        found: list[tuple[Path, EpisodeRecord]] = recording.detail
        source, record = found[index]
        if record.status == "recording":
            detail = "the episode was not finished when it was downloaded; download it again"
            raise DamagedRecording(path=str(source / EPISODE_FILE), detail=detail)
        files: dict[ArtifactKind, Path] = {}
        for kind, (path, _) in checked_files(source, record.artifacts).items():
            files[kind] = folder / path.name
            with write_errors(folder):
                _link_or_copy(path, files[kind])
        return encoded_of(record, files)


def encoded_of(record: EpisodeRecord, files: dict[ArtifactKind, Path]) -> EncodedEpisode:
    return EncodedEpisode(
        files=files,
        name=record.name or record.id or "episode",
        source=cast("EpisodeSource", record.source),
        fps=record.fps,
        duration_s=record.duration_s,
        metadata=record.metadata,
        robot=record.robot,
        env_version=record.env_version,
        seed=record.seed,
        policy_version=record.policy_version,
        policy_revision=record.policy_revision or None,
        git_sha=record.git_sha,
        tags=tuple(record.tags),
        recorded_status=_status(record),
        failure_time_s=record.failure_time_s,
    )


def _status(record: EpisodeRecord) -> FinalStatus:
    """An archived episode was finished before."""
    return "failed" if record.status == "failed" else "ready"


def _link_or_copy(path: Path, target: Path) -> None:
    """A second name where the file system allows it: the files of an episode are never changed in place."""
    try:
        os.link(path.resolve(), target)
    except OSError:
        shutil.copyfile(path, target)


def _episode(index: int, folder: Path, record: EpisodeRecord) -> EpisodeInRecording:
    rows = record.metadata.get("steps")
    return EpisodeInRecording(
        index=index,
        key=folder.resolve().name[:_LONG],
        rows=rows if isinstance(rows, int) else None,
        duration_s=record.duration_s,
        files=tuple(_files(folder, record)),
        source=SourceFile.recorded_in(record.metadata),
        status=_status(record),
    )


def _files(folder: Path, record: EpisodeRecord) -> Iterator[Path]:
    yield folder / EPISODE_FILE
    yield from _artifact_paths(folder, record)


def _artifact_paths(folder: Path, record: EpisodeRecord) -> Iterator[Path]:
    for artifact in record.artifacts:
        yield folder / FILE_NAMES[cast("ArtifactKind", artifact.kind)]


def _streams(folder: Path, record: EpisodeRecord) -> Iterator[RecordedStream]:
    """A file that cannot be read has none here; importing its episode says why."""
    for path in _artifact_paths(folder, record):
        slot: Any = path.stem
        if slot == "video":
            yield RecordedStream(name="video", slot="video", type="mp4")
            continue
        arrays = inspect_npz(path).arrays if path.is_file() else {}
        for key, facts in arrays.items():
            if split_key(key)[1] != CLOCK_FIELD:
                kind = f"{facts.dtype}[{','.join(map(str, facts.shape[1:]))}]"
                yield RecordedStream(name=key, slot=slot, type=kind, rows=facts.shape[0])
