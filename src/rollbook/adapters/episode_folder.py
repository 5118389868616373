"""Episode folders: one episode as files on disk, with its facts in episode.json.

The same folder is written by `rollbook import --out`, by adapters with `output_dir`, and by `rollbook episodes
download`. episode.json is an EpisodeRecord, as the server sends it; its `id` is empty where no server has the episode.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast, get_args

import msgspec

from rollbook.adapters.encoded import EncodedEpisode
from rollbook.contracts.episode import FILE_NAMES, ArtifactKind, EpisodeSource
from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.typed_metadata import plain_metadata
from rollbook.contracts.wire.episodes import ArtifactRecord, EpisodeRecord
from rollbook.digest import file_sha256
from rollbook.errors import ChecksumMismatch, DamagedRecording, TruncatedFile
from rollbook.files import unreadable, write_bytes

EPISODE_FILE = "episode.json"
_LARGEST = 64 << 20
"""Bytes of an episode.json. The server accepts less metadata."""


def write_episode_file(
    folder: Path, encoded: EncodedEpisode, about: Mapping[str, Any] | None = None
) -> EpisodeRecord:
    """Write episode.json beside the files of the episode. `about` overrides what the adapter found."""
    given = {name: value for name, value in (about or {}).items() if value is not None}
    metadata = {**encoded.metadata, **given.get("metadata", {})}
    revision: PolicyRevision | None = given.get("policy_revision", encoded.policy_revision)
    record = EpisodeRecord(
        id="",
        status=encoded.status,
        name=given.get("name", encoded.name),
        source=given.get("source", encoded.source),
        robot=given.get("robot", encoded.robot),
        policy_version=given.get("policy_version", encoded.policy_version),
        env_version=given.get("env_version", encoded.env_version),
        git_sha=given.get("git_sha", encoded.git_sha),
        seed=encoded.seed,
        fps=encoded.fps,
        duration_s=encoded.duration_s,
        failure_time_s=encoded.failed_at_s,
        metadata=plain_metadata(metadata),
        tags=list(dict.fromkeys([*encoded.tags, *given.get("tags", ())])),
        artifacts=[_artifact(kind, path) for kind, path in encoded.files.items()],
        policy_revision=msgspec.UNSET if revision is None else revision,
    )
    text = json.dumps(msgspec.to_builtins(record), indent=2, ensure_ascii=False)
    write_bytes(folder / EPISODE_FILE, f"{text}\n".encode())
    return record


def is_episode_folder(path: Path) -> bool:
    return (path / EPISODE_FILE).is_file()


def read_episode_file(folder: Path) -> EpisodeRecord:
    """The facts of the episode. Its files are not looked at."""
    path = folder / EPISODE_FILE
    try:
        if path.stat().st_size > _LARGEST:
            detail = f"it is larger than {_LARGEST} bytes"
            raise DamagedRecording(path=str(path), detail=detail)
        record = msgspec.json.decode(path.read_bytes(), type=EpisodeRecord)
    except OSError as error:
        raise unreadable(path, error) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedRecording(path=str(path), detail=str(error)) from error
    for artifact in record.artifacts:
        if artifact.kind not in FILE_NAMES or artifact.size is None or artifact.sha256 is None:
            detail = f"the artifact {artifact.kind!r} has no size, no SHA-256 or an unknown name"
            raise DamagedRecording(path=str(path), detail=detail)
    if record.source not in get_args(EpisodeSource):
        detail = (
            f"source is {record.source!r}, expected one of {', '.join(get_args(EpisodeSource))}"
        )
        raise DamagedRecording(path=str(path), detail=detail)
    return record


def checked_files(
    folder: Path, artifacts: Iterable[ArtifactRecord]
) -> dict[ArtifactKind, tuple[Path, str]]:
    """Path and SHA-256 of each file. A file that is not the recorded one is refused by name."""
    found: dict[ArtifactKind, tuple[Path, str]] = {}
    for artifact in artifacts:
        kind = cast("ArtifactKind", artifact.kind)
        path = folder / FILE_NAMES[kind]
        size, digest = _content(path)
        if size != artifact.size:
            detail = f"it has {size} bytes; {EPISODE_FILE} says {artifact.size}"
            raise TruncatedFile(path=str(path), detail=detail)
        if digest != artifact.sha256:
            detail = f"its SHA-256 is {digest}; {EPISODE_FILE} says {artifact.sha256}"
            raise ChecksumMismatch(path=str(path), detail=detail)
        found[kind] = (path, digest)
    return found


def _artifact(kind: ArtifactKind, path: Path) -> ArtifactRecord:
    size, digest = _content(path)
    return ArtifactRecord(kind=kind, size=size, sha256=digest)


def _content(path: Path) -> tuple[int, str]:
    try:
        return file_sha256(path)
    except OSError as error:
        raise unreadable(path, error) from error
