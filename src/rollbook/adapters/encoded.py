"""EncodedEpisode: the files and facts of one episode, which every adapter makes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from rollbook.contracts.episode import (
    ARTIFACT_KINDS,
    FILE_NAMES,
    ArtifactKind,
    EpisodeSource,
    FinalStatus,
)
from rollbook.contracts.policy import PolicyRevision
from rollbook.errors import StorageError, TargetExists

AnyPath: TypeAlias = "str | os.PathLike[str]"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedEpisode:
    files: Mapping[ArtifactKind, Path]
    """Empty after an upload without `output_dir`, which does not keep the files."""
    name: str
    source: EpisodeSource
    fps: float | None
    """None where the streams have clocks of their own and there is no video."""
    duration_s: float | None
    """None where the recording does not say."""
    metadata: Mapping[str, Any]
    robot: str | None = None
    env_version: str | None = None
    seed: int | None = None
    policy_version: str | None = None
    """None where the recording does not say which policy acted; the caller may know."""
    policy_revision: PolicyRevision | None = None
    git_sha: str | None = None
    tags: tuple[str, ...] = ()
    failure: Exception | None = None
    """The error that ended the run early. The files hold the steps before it."""
    recorded_status: FinalStatus = "ready"
    """How the run ended when it was recorded."""
    failure_time_s: float | None = None
    """When the recorded run failed, if it did and if that is known."""

    @property
    def status(self) -> FinalStatus:
        return self.recorded_status if self.failure is None else "failed"

    @property
    def failed_at_s(self) -> float | None:
        """A run that the adapter saw failing ends where its steps end."""
        return self.failure_time_s if self.failure is None else self.duration_s


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
