"""EpisodeVideo: the video of an episode, looked at, cut and decoded; and CameraFiles, the mp4 files of one camera.

Frames are copied without encoding where the video has one frame for each row. Otherwise they are encoded again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from rollbook.adapters.extras import library
from rollbook.adapters.lerobot_export.clock import NS, TOLERANCE_NS, FrameGrid, Times
from rollbook.adapters.lerobot_export.stats import ColumnStats, sampled_rows
from rollbook.client.tiles import Tile
from rollbook.client.video import (
    MOST_PIXELS,
    Picture,
    VideoWriter,
    exact_rate,
    picture,
    video_errors,
)
from rollbook.contracts.video_file import CONTAINERS, container_of
from rollbook.errors import StorageError

_DEMUXERS = {"mp4": "mp4", "webm": "matroska", "matroska": "matroska", "avi": "avi"}
_COPIED = frozenset({"h264", "hevc", "av1", "vp9"})
"""Codecs that LeRobot's readers decode."""
_LONGEST_FILE_S = 1000.0
"""LeRobot compares times within a file as float32. Behind 1024 s its steps are larger than LeRobot's tolerance."""


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeVideo:
    """Facts of a video, from its packets; nothing is decoded. It holds 8 bytes for each frame."""

    path: Path
    times: Times
    """Nanoseconds from the first frame, in the order in which frames are shown."""
    delay: int
    """How many places a frame may be stored behind the place where it is shown."""
    width: int
    height: int
    codec: str
    pixels: str
    can_be_copied: bool
    """Whether its packets can become a part of another mp4 file."""

    @classmethod
    def of(cls, path: Path) -> EpisodeVideo:
        with _opened(path) as (container, stream, kind):
            begin, tick = stream.start_time or 0, _nanoseconds_of_tick(stream)
            stored: list[int] = []
            key_first, complete = False, True
            for packet in _packets(path, container, stream):
                if packet.pts is None:
                    complete = False
                    continue
                key_first = packet.is_keyframe if not stored else key_first
                stored.append(packet.pts - begin)
            if not stored:
                raise StorageError(path=str(path), detail="the video has no frames")
            at = np.array([round(each * tick) for each in stored], np.int64)
            times = np.sort(at)
            places = np.searchsorted(times, at)
            codec = str(stream.codec_context.codec.canonical_name)
            distinct = bool((np.diff(times) > 0).all())
            return cls(
                path=path,
                times=times,
                delay=int((np.arange(len(at)) - places).max()),
                width=stream.width,
                height=stream.height,
                codec=codec,
                pixels=str(stream.pix_fmt),
                can_be_copied=complete
                and key_first
                and distinct
                and kind == "mp4"
                and codec in _COPIED,
            )

    def has_frames_of(self, grid: FrameGrid, start_ns: int) -> bool:
        """Whether frame `i` of the video belongs to frame `i` of the grid, so that it can be copied as it is.
        Frames behind the last one are left out, if no other frame is made from them."""
        count = grid.count
        if not self.can_be_copied or len(self.times) < count:
            return False
        if len(self.times) > count and self.delay:
            return False
        off = np.abs(self.times[:count] + start_ns - grid.times(0, count))
        return int(off.max()) <= max(TOLERANCE_NS, int(NS / grid.fps / 4))

    def picks(self, grid: FrameGrid, start_ns: int) -> tuple[Times, int]:
        """For each frame of the grid the number of the nearest frame of the video, and the largest distance."""
        wanted = grid.times(0, grid.count) - start_ns
        after = np.minimum(np.searchsorted(self.times, wanted), len(self.times) - 1)
        before = np.maximum(after - 1, 0)
        nearer = np.abs(self.times[before] - wanted) <= np.abs(self.times[after] - wanted)
        chosen = np.where(nearer, before, after)
        return chosen, int(np.abs(self.times[chosen] - wanted).max())

    def pictures(self, frames: Times) -> Iterator[Picture]:
        """The frames with these numbers, which do not fall. A frame may be asked for several times."""
        wanted = iter(frames.tolist())
        number = next(wanted, None)
        with _opened(self.path) as (container, stream, _):
            stream.thread_type = "AUTO"
            for at, frame in enumerate(_decoded(self.path, container, stream)):
                if number is None:
                    return
                if at != number:
                    continue
                shown = picture(frame.to_ndarray(format="rgb24"), f"a frame of {self.path.name}")
                while number == at:
                    yield shown
                    number = next(wanted, None)
        if number is not None:
            detail = f"frame {number} of {len(self.times)} cannot be decoded"
            raise StorageError(path=str(self.path), detail=detail)

    def stats(self, count: int) -> ColumnStats:
        """Of the frames that LeRobot would look at, among the first `count`."""
        found: ColumnStats | None = None
        for shown in self.pictures(sampled_rows(count)):
            found = ColumnStats.of_picture(shown).joined(found)
        assert found is not None
        return found


# ----------------------------------------------------------------------------------------- cutting


def tiles_in(metadata: Mapping[str, Any], video: EpisodeVideo) -> list[Tile] | None:
    """Where the cameras are in the picture; None where the episode does not say."""
    stated = metadata.get("video_cameras")
    if not isinstance(stated, list | tuple) or not stated:
        return None
    found = [_tile(each, video) for each in stated]
    if len({tile.camera for tile in found}) < len(found):
        detail = "video_cameras in its metadata names a camera twice"
        raise StorageError(path=str(video.path), detail=detail)
    return found


def _tile(stated: object, video: EpisodeVideo) -> Tile:
    if isinstance(stated, Mapping):
        camera = stated.get("camera")
        numbers = [stated.get(name) for name in ("x", "y", "width", "height")]
        if isinstance(camera, str) and camera and all(type(n) is int for n in numbers):
            x, y, width, height = (int(n or 0) for n in numbers)
            inside = 0 <= x < x + width <= video.width and 0 <= y < y + height <= video.height
            if inside:
                return Tile(camera, x, y, width, height)
    detail = f"video_cameras in its metadata: {stated!r} is not a part of {video.width} x {video.height} pixels"
    raise StorageError(path=str(video.path), detail=detail)


def is_whole(tile: Tile, video: EpisodeVideo) -> bool:
    """Whether the camera fills the picture. An odd length is stored with one pixel more."""
    return (tile.x, tile.y, tile.width + tile.width % 2, tile.height + tile.height % 2) == (
        *(0, 0),
        *(video.width + video.width % 2, video.height + video.height % 2),
    )


def encode_tiles(
    video: EpisodeVideo, frames: Times, tiles: Sequence[Tile], targets: Sequence[Path], fps: float
) -> None:
    """Write one video for each camera. The source is decoded once."""
    with ExitStack() as stack:
        writers = [stack.enter_context(VideoWriter(target, fps)) for target in targets]
        for shown in video.pictures(frames):
            for tile, writer in zip(tiles, writers, strict=True):
                rows, columns = (
                    slice(tile.y, tile.y + tile.height),
                    slice(tile.x, tile.x + tile.width),
                )
                writer.add(shown[rows, columns])


# ------------------------------------------------------------------------------------------- files


@dataclass(frozen=True, slots=True)
class VideoPlace:
    chunk: int
    file: int
    from_s: float
    to_s: float


@dataclass(slots=True)
class CameraFiles:
    """Appends videos of episodes to mp4 files, without encoding. A video of another kind begins a new file."""

    root: Path
    feature: str
    fps: float
    largest: int
    """Bytes of a file; a single episode may be larger."""
    files_per_chunk: int
    files: int = 0
    _output: Any = None
    _stream: Any = None
    _path: Path = field(default_factory=Path)
    _kind: object = None
    _delay: int = 0
    """Of the first video of the file. A later one may be stored with less delay, but not with more."""
    _size: int = 0
    _frames: int = 0

    def append(self, video: EpisodeVideo, count: int) -> VideoPlace:
        rate = exact_rate(self.fps)
        size = video.path.stat().st_size
        with _opened(video.path) as (container, stream, _):
            kind = (
                *(video.codec, video.pixels, video.width, video.height),
                bytes(stream.codec_context.extradata or b""),
            )
            full = self._size + size > self.largest
            long = (self._frames + count) / self.fps > _LONGEST_FILE_S
            other = kind != self._kind or video.delay > self._delay
            if self._output is None or full or long or other:
                self.close()
                self._open(stream, rate)
                self._kind, self._delay = kind, video.delay
            begin, tick = stream.start_time or 0, _nanoseconds_of_tick(stream)
            with video_errors(self._path, "cannot be written"):
                for stored, packet in enumerate(_packets(video.path, container, stream)):
                    at = round((packet.pts - begin) * tick)
                    place = int(np.searchsorted(video.times, at))
                    if place < count:
                        self._mux(packet, place, stored - self._delay, rate)
        first, self._frames, self._size = self._frames, self._frames + count, self._size + size
        number = self.files - 1
        return VideoPlace(
            number // self.files_per_chunk,
            number % self.files_per_chunk,
            first / self.fps,
            self._frames / self.fps,
        )

    def close(self) -> None:
        output, self._output = self._output, None
        if output is not None:
            with video_errors(self._path, "cannot be written"):
                output.close()

    def __enter__(self) -> CameraFiles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            with suppress(StorageError):  # the error of the block is the one to tell
                self.close()

    def _open(self, template: Any, rate: Fraction) -> None:
        chunk, file = divmod(self.files, self.files_per_chunk)
        folder = self.root / "videos" / self.feature / f"chunk-{chunk:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"file-{file:03d}.mp4"
        with video_errors(self._path, "cannot be written"):
            options = {"movflags": "faststart"}
            self._output = library("av").open(
                os.fspath(self._path), "w", format="mp4", options=options
            )
            self._stream = self._output.add_stream_from_template(template, opaque=True)
            self._stream.time_base = Fraction(1, rate.numerator)
        self.files += 1
        self._frames = self._size = 0

    def _mux(self, packet: Any, place: int, stored: int, rate: Fraction) -> None:
        packet.stream = self._stream
        packet.time_base = Fraction(1, rate.numerator)
        packet.pts = (self._frames + place) * rate.denominator
        packet.dts = (self._frames + stored) * rate.denominator
        packet.duration = rate.denominator
        self._output.mux(packet)


# ----------------------------------------------------------------------------------------- reading


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any, str]]:
    """The container, its video, and the kind of container. The kind is fixed by the first bytes: FFmpeg would otherwise
    also accept formats that read other files."""
    try:
        with open(path, "rb") as file:
            kind = container_of(file)
    except OSError as error:
        detail = f"the video cannot be read: {error.strerror or error}"
        raise StorageError(path=str(path), detail=detail) from error
    if kind is None:
        raise StorageError(path=str(path), detail=f"it is not a video ({CONTAINERS})")
    with video_errors(path, "it is not a complete video"):
        container = library("av").open(os.fspath(path), format=_DEMUXERS[kind])
    with container:
        if not container.streams.video:
            raise StorageError(path=str(path), detail="it contains no video")
        stream = container.streams.video[0]
        if getattr(stream, "codec_context", None) is None:
            raise StorageError(path=str(path), detail="its codec is not supported")
        if not 0 < stream.width * stream.height <= MOST_PIXELS:
            detail = f"{stream.width} x {stream.height} pixels; at most {MOST_PIXELS} are read"
            raise StorageError(path=str(path), detail=detail)
        yield container, stream, kind


def _packets(path: Path, container: Any, stream: Any) -> Iterator[Any]:
    packets = iter(container.demux(stream))
    while True:
        with video_errors(path, "it is damaged"):
            packet = next(packets, None)
        if packet is None:
            return
        if packet.size:
            if packet.is_corrupt:
                raise StorageError(path=str(path), detail="it is damaged: a frame is incomplete")
            yield packet


def _decoded(path: Path, container: Any, stream: Any) -> Iterator[Any]:
    frames = iter(container.decode(stream))
    while True:
        with video_errors(path, "it is damaged"):
            frame = next(frames, None)
        if frame is None:
            return
        if frame.is_corrupt:
            raise StorageError(path=str(path), detail="it is damaged: a frame is incomplete")
        yield frame


def _nanoseconds_of_tick(stream: Any) -> Fraction:
    return Fraction(stream.time_base) * NS
