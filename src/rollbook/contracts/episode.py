"""Episode: the words that the SDK and the server share, and an episode as the server gives it back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import UNSET, UnsetType

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.typed_metadata import TYPED_METADATA, check_typed_metadata

__all__ = [
    "ARTIFACT_KINDS",
    "CONTENT_TYPES",
    "EPISODE_SOURCES",
    "EPISODE_STATUSES",
    "FILE_NAMES",
    "FINAL_STATUSES",
    "LONGEST_NAME",
    "LONGEST_ROBOT",
    "REPRODUCIBILITY",
    "TYPED_METADATA",
    "ArtifactKind",
    "ArtifactRecord",
    "EpisodeRecord",
    "EpisodeSource",
    "EpisodeStatus",
    "FinalStatus",
    "check_typed_metadata",
    "fits_slot",
]

ArtifactKind: TypeAlias = Literal["video", "sensors", "actions"]
EpisodeSource: TypeAlias = Literal["real", "sim", "replay"]
FinalStatus: TypeAlias = Literal["ready", "failed"]
EpisodeStatus: TypeAlias = Literal["recording", "ready", "failed", "archived"]

ARTIFACT_KINDS: tuple[ArtifactKind, ...] = get_args(ArtifactKind)
EPISODE_SOURCES: tuple[EpisodeSource, ...] = get_args(EpisodeSource)
FINAL_STATUSES: tuple[FinalStatus, ...] = get_args(FinalStatus)
EPISODE_STATUSES: tuple[EpisodeStatus, ...] = get_args(EpisodeStatus)

CONTENT_TYPES: Mapping[ArtifactKind, str] = MappingProxyType(
    {
        "video": "video/mp4",
        "sensors": "application/octet-stream",
        "actions": "application/octet-stream",
    }
)
"""Part of the signature of an upload URL."""

FILE_NAMES: Mapping[ArtifactKind, str] = MappingProxyType(
    {"video": "video.mp4", "sensors": "sensors.npz", "actions": "actions.npz"}
)
"""What an artifact is called where it is stored or downloaded."""

LONGEST_NAME = 200
LONGEST_ROBOT = 120
REPRODUCIBILITY = ("policy_version", "env_version", "git_sha", "seed")
"""The four fields that say what a run can be repeated with."""

_VIDEO_SUFFIXES = frozenset({".mp4", ".webm", ".mov", ".m4v"})
_DATA_SUFFIXES = frozenset(
    {".npz", ".npy", ".bin", ".h5", ".hdf5", ".parquet", ".feather", ".arrow"}
)


def fits_slot(path: str | PurePath, kind: ArtifactKind) -> bool:
    """False when the name of a file says that it is something else. Unknown names fit everywhere."""
    suffix = PurePath(path).suffix.lower()
    return suffix not in (_DATA_SUFFIXES if kind == "video" else _VIDEO_SUFFIXES)


class ArtifactRecord(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    size: int | None = None
    sha256: str | None = None
    content_type: str | None = None
    playable: bool | None = None
    """Of a video: whether a browser can show it."""


class EpisodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One episode as `GET /api/episodes/{id}` answers. Later servers may say more; what is not said is None."""

    id: str
    status: str
    name: str | None = None
    source: str | None = None
    robot: str | None = None
    policy_version: str | None = None
    env_version: str | None = None
    git_sha: str | None = None
    seed: int | None = None
    fps: float | None = None
    duration_s: float | None = None
    failure_time_s: float | None = None
    bytes_total: int | None = None
    metadata: dict[str, Any] = {}
    tags: list[str] = []
    artifacts: list[ArtifactRecord] = []
    created_at: str | None = None
    updated_at: str | None = None
    policy_revision: PolicyRevision | UnsetType = UNSET
    """Unset, which is false, when the episode was recorded without one."""

    def artifact(self, kind: ArtifactKind) -> ArtifactRecord | None:
        return next((each for each in self.artifacts if each.kind == kind), None)
