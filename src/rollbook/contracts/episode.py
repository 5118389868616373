"""Episode: the words and limits that the SDK and the server share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import Literal, TypeAlias, get_args

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
"""File name of an artifact where it is stored or downloaded."""

LONGEST_NAME = 200
LONGEST_ROBOT = 120
REPRODUCIBILITY = ("policy_version", "env_version", "git_sha", "seed")
"""The four fields that are needed to repeat a run."""

_VIDEO_SUFFIXES = frozenset({".mp4", ".webm", ".mov", ".m4v"})
_DATA_SUFFIXES = frozenset(
    {".npz", ".npy", ".bin", ".h5", ".hdf5", ".parquet", ".feather", ".arrow"}
)


def fits_slot(path: str | PurePath, kind: ArtifactKind) -> bool:
    """False when the name of a file names another kind of file. Unknown names fit everywhere."""
    suffix = PurePath(path).suffix.lower()
    return suffix not in (_DATA_SUFFIXES if kind == "video" else _VIDEO_SUFFIXES)
