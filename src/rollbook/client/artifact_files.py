"""ArtifactFiles: the files to upload, checked before anything is created. Arrays are written to files here."""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

from numpy.typing import ArrayLike

from rollbook.contracts.episode import ARTIFACT_KINDS, FILE_NAMES, ArtifactKind, fits_slot
from rollbook.contracts.npz import inspect_npz, write_npz
from rollbook.contracts.streams import Clocks, clocked_streams
from rollbook.errors import ConfigurationError

_log = logging.getLogger("rollbook.client")

Given: TypeAlias = "str | os.PathLike[str] | Mapping[str, ArrayLike]"
"""A file, or arrays by key."""


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    kind: ArtifactKind
    path: Path
    size: int
    is_ours: bool = False
    """Written here, and nobody else changes it: the spool may link it instead of copying it."""


class ArtifactFiles:
    """Closing it removes the files that were written from arrays."""

    def __init__(self, given: Mapping[ArtifactKind, Given | None], t_ns: Clocks | None) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.by_kind: dict[ArtifactKind, ArtifactFile] = {}
        try:
            for kind, each in given.items():
                if each is not None:
                    known = checked_kind(kind)
                    self.by_kind[kind] = (
                        self._encoded(known, each, t_ns)
                        if isinstance(each, Mapping)
                        else checked_file(known, each)
                    )
        except BaseException:
            self.close()
            raise

    def _encoded(
        self, kind: ArtifactKind, arrays: Mapping[str, ArrayLike], t_ns: Clocks | None
    ) -> ArtifactFile:
        if kind == "video":
            message = "video= takes a file, not arrays; encode the frames as mp4 first"
            raise ConfigurationError(message=message)
        streams = clocked_streams(kind, arrays, t_ns)
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="rollbook-")
        path = Path(self._folder.name) / FILE_NAMES[kind]
        write_npz(path, streams)
        return ArtifactFile(kind, path, path.stat().st_size, is_ours=True)

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def __enter__(self) -> ArtifactFiles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def checked_kind(kind: str) -> ArtifactKind:
    for known in ARTIFACT_KINDS:
        if kind == known:
            return known
    known_kinds = ", ".join(ARTIFACT_KINDS)
    raise ConfigurationError(message=f"there is no artifact {kind!r}; it is one of {known_kinds}")


def checked_file(kind: ArtifactKind, given: str | os.PathLike[str]) -> ArtifactFile:
    path = Path(given)
    try:
        found = path.stat()
        if stat.S_ISREG(found.st_mode):
            with open(path, "rb"):
                pass
    except FileNotFoundError as error:
        raise ConfigurationError(message=f"{kind}={str(path)!r}: there is no such file") from error
    except (OSError, ValueError) as error:
        message = f"{kind}={str(path)!r} cannot be read: {error}"
        raise ConfigurationError(message=message) from error
    if not stat.S_ISREG(found.st_mode):
        raise ConfigurationError(message=f"{kind}={str(path)!r} is not a file; give the file in it")
    if not found.st_size:
        raise ConfigurationError(message=f"{kind}={str(path)!r} is empty; was it closed?")
    if not fits_slot(path, kind):
        wanted = "a video" if kind == "video" else "data such as .npz"
        message = f"{kind}={str(path)!r}: {kind} takes {wanted}; pass this file by another name"
        raise ConfigurationError(message=message)
    if path.suffix.lower() == ".npz":
        _warn_of_unreadable(kind, path)
    return ArtifactFile(kind, path, found.st_size)


def _warn_of_unreadable(kind: ArtifactKind, path: Path) -> None:
    """A warning, not an error: the rest of the episode is worth recording, and the file can be downloaded again."""
    problem = inspect_npz(path).problem
    if problem is not None:
        _log.warning(
            "%s=%r is recorded, but %s() cannot read it back: %s", kind, str(path), kind, problem
        )
