"""ArtifactFiles: the files to upload, checked before anything is created. Arrays are written to files here."""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.client.video import Picture, VideoWriter, picture
from rollbook.contracts.episode import ARTIFACT_KINDS, FILE_NAMES, ArtifactKind, fits_slot
from rollbook.contracts.npz import ArrayFacts, NpzArchive, inspect_npz, write_npz
from rollbook.contracts.streams import (
    CLOCK_FIELD,
    Clocks,
    clocked_streams,
    first_fall,
    split_key,
)
from rollbook.contracts.video_file import CONTAINERS, container_of, mp4_boxes
from rollbook.errors import ConfigurationError

_log = logging.getLogger("rollbook.client")

Frames: TypeAlias = "Picture | Sequence[Picture]"
"""Pictures, uint8: height, width and red-green-blue, or height and width of grey ones. An array counts them first."""
Given: TypeAlias = "str | os.PathLike[str] | Mapping[str, ArrayLike] | Frames"
"""A file; arrays by key for sensors and actions; frames for a video."""


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    kind: ArtifactKind
    path: Path
    size: int
    is_ours: bool = False
    """Written here, and nobody else changes it: the spool may link it instead of copying it."""


class ArtifactFiles:
    """Closing it removes the files that were written from arrays."""

    def __init__(
        self,
        given: Mapping[ArtifactKind, Given | None],
        t_ns: Clocks | None,
        fps: float | None = None,
    ) -> None:
        """`t_ns`: the clock of arrays. `fps`: the rate of frames that are to be encoded."""
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.by_kind: dict[ArtifactKind, ArtifactFile] = {}
        try:
            for kind, each in given.items():
                if isinstance(each, str | os.PathLike):
                    self.by_kind[kind] = checked_file(checked_kind(kind), each)
                elif each is not None:
                    self.by_kind[kind] = self._encoded(checked_kind(kind), each, t_ns, fps)
        except BaseException:
            self.close()
            raise

    def _encoded(
        self, kind: ArtifactKind, given: object, t_ns: Clocks | None, fps: float | None
    ) -> ArtifactFile:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="rollbook-")
        path = Path(self._folder.name) / FILE_NAMES[kind]
        if kind == "video":
            _write_video(path, given, fps)
        elif isinstance(given, Mapping):
            write_npz(path, clocked_streams(kind, given, t_ns))
        else:
            message = f"{kind}= takes a file or arrays by name, such as {{'state': array}}, not {type(given).__name__}"
            raise ConfigurationError(message=message)
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


def _write_video(path: Path, given: object, fps: float | None) -> None:
    """Encodes an array or a list of pictures. The first axis of an array counts the pictures."""
    if isinstance(given, Mapping | bytes):
        message = f"video= takes a file or an array of frames, not {type(given).__name__}"
        raise ConfigurationError(message=message)
    frames = given if isinstance(given, list | tuple) else np.asarray(given)
    if isinstance(frames, np.ndarray) and frames.dtype == object:
        message = f"video= takes a file, an array or a list of frames, not {type(given).__name__}"
        raise ConfigurationError(message=message)
    if isinstance(frames, np.ndarray) and (frames.ndim < 3 or _is_one_picture(frames)):
        message = (
            f"video= is an array of shape {frames.shape}, expected frames, height, width and colours: "
            "images[None] makes a video of one picture"
        )
        raise ConfigurationError(message=message)
    if not len(frames):
        raise ConfigurationError(message="video= has 0 frames; leave it out")
    if not fps:
        message = "video= is an array of frames: give fps= too, how many of them make a second"
        raise ConfigurationError(message=message)
    with VideoWriter(path, fps) as video:
        for row, frame in enumerate(frames):
            video.add(picture(frame, f"video= at row {row}"))


def _is_one_picture(frames: NDArray[Any]) -> bool:
    """Three axes are frames of grey pictures, but a last axis of 3 or 4 means colours."""
    return frames.ndim == 3 and frames.shape[2] in (3, 4)


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
    if kind == "video":
        _check_video(path, found.st_size)
    elif path.suffix.lower() == ".npz":
        _warn_of_content(kind, path)
    return ArtifactFile(kind, path, found.st_size)


def _check_video(path: Path, size: int) -> None:
    """A video that was not ended properly is worth recording: it can be repaired. What is no video is refused."""
    with open(path, "rb") as file:
        container = container_of(file)
        if container is None:
            message = f"video={str(path)!r} is not a video: expected {CONTAINERS}"
            raise ConfigurationError(message=message)
        if container != "mp4":
            return
        boxes = list(mp4_boxes(file))
    if b"moov" not in [kind for kind, _ in boxes]:
        _log.warning(
            "video=%r is recorded, but nothing can play it: it has no index; was it closed?",
            str(path),
        )
    elif max(end for _, end in boxes) > size:
        _log.warning("video=%r is recorded, but it is cut short", str(path))


def _warn_of_content(kind: ArtifactKind, path: Path) -> None:
    """A warning, not an error: the rest of the episode is worth recording, and the file can be downloaded again."""
    content = inspect_npz(path)
    if content.problem is not None:
        _log.warning(
            "%s=%r is recorded, but %s() cannot read it back: %s",
            kind,
            str(path),
            kind,
            content.problem,
        )
        return
    problem = next(_content_problems(path, content.arrays), None)
    if problem is not None:
        _log.warning("%s=%r is recorded, but %s", kind, str(path), problem)


def _content_problems(path: Path, arrays: Mapping[str, ArrayFacts]) -> Iterator[str]:
    """What would be refused if the arrays were given themselves. Only clocks are read, which are small."""
    for key, facts in arrays.items():
        if facts.dtype.kind == "c":
            yield f"{key} has complex values"
        if facts.shape[:1] == (0,):
            yield f"{key} has 0 rows"
    with NpzArchive(path) as archive:
        for key, facts in arrays.items():
            if (
                split_key(key)[1] == CLOCK_FIELD
                and facts.dtype.kind == "i"
                and len(facts.shape) == 1
            ):
                times = archive.read(key)
                row = first_fall(times)
                if row is not None:
                    yield f"{key} is {times[row]} at row {row}, not later than {times[row - 1]} before it"
