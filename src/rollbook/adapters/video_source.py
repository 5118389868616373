"""VideoSource: a part of an mp4 file of another tool, read frame by frame or copied without encoding."""

from __future__ import annotations

import io
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollbook.adapters.extras import library
from rollbook.client.video import MOST_PIXELS, Picture, picture, video_errors
from rollbook.errors import StorageError, TruncatedFile

if TYPE_CHECKING:
    import av

_PLAYABLE = {"h264": ("yuv420p", "yuvj420p"), "av1": ("yuv420p",), "vp9": ("yuv420p",)}
"""Pixel formats that every browser shows, by codec."""
_PICTURES = {b"\x89PNG": "png_pipe", b"\xff\xd8\xff": "jpeg_pipe"}


@dataclass(frozen=True, slots=True)
class VideoSource:
    """`count` frames of a file from time `start_s` on, at `fps` frames per second."""

    path: Path
    fps: float
    count: int
    start_s: float = 0.0

    def frames(self) -> Generator[Picture, None, None]:
        """Frames by their time. A frame that is missing or more than half a frame off is an error."""
        found = 0
        with self._opened() as (container, stream):
            if self.start_s > 0:
                at = round(self.start_s / _time_base(stream)) + (stream.start_time or 0)
                with video_errors(self.path, "cannot be searched"):
                    container.seek(at, stream=stream)
            for frame in self._decoded(container, stream):
                offset = self._position(stream, frame.pts) - found
                if offset < -0.5:
                    continue
                if offset > 0.5:
                    break
                yield picture(frame.to_ndarray(format="rgb24"), f"a frame of {self.path.name}")
                found += 1
                if found == self.count:
                    return
        missing_s = self.start_s + found / self.fps
        detail = f"frame {found} of {self.count}, at {missing_s:.3f} s, is not there"
        raise TruncatedFile(path=str(self.path), detail=detail)

    def is_the_whole_file(self) -> bool:
        """Whether the file holds exactly these frames, in a format that every browser shows."""
        with self._opened() as (container, stream):
            codec = stream.codec_context.codec.canonical_name
            if stream.pix_fmt not in _PLAYABLE.get(codec, ()):
                return False
            with video_errors(self.path, "cannot be read"):
                packets = [(p.pts, p.is_corrupt) for p in container.demux(stream)]
            times = sorted(pts for pts, _ in packets if pts is not None)
            if len(times) != self.count or any(is_cut for _, is_cut in packets):
                return False
            return all(abs(self._position(stream, t) - i) <= 0.5 for i, t in enumerate(times))

    def frames_behind(self) -> int:
        """How many frames the file has behind the last of these. Nothing is decoded."""
        with self._opened() as (container, stream), video_errors(self.path, "cannot be read"):
            times = [packet.pts for packet in container.demux(stream) if packet.pts is not None]
            return sum(self._position(stream, pts) > self.count - 0.5 for pts in times)

    def copy(self, target: Path) -> None:
        """Copy the frames bit for bit. The index is put first, so that playing can begin before the download ends."""
        part = target.with_name(f".{target.name}.{os.urandom(8).hex()}.tmp")
        try:
            with self._opened() as (container, stream), video_errors(target, "cannot be written"):
                options = {"movflags": "faststart"}
                with library("av").open(
                    os.fspath(part), "w", format="mp4", options=options
                ) as output:
                    out_stream = output.add_stream_from_template(stream, opaque=True)
                    for packet in container.demux(stream):
                        if packet.dts is not None:
                            packet.stream = out_stream
                            output.mux(packet)
            os.replace(part, target)
        finally:
            with suppress(OSError):
                part.unlink()

    @contextmanager
    def _opened(self) -> Iterator[tuple[Any, av.VideoStream]]:
        if not self.path.is_file():
            raise StorageError(path=str(self.path), detail="the video is missing")
        with video_errors(self.path, "it is not a complete video"):
            # The format is fixed: FFmpeg would otherwise also accept formats that read other files.
            container = library("av").open(
                os.fspath(self.path), format="mp4", metadata_errors="replace"
            )
        with container:
            if not container.streams.video:
                raise StorageError(path=str(self.path), detail="it contains no video")
            stream: av.VideoStream = container.streams.video[0]
            if getattr(stream, "codec_context", None) is None:
                raise StorageError(path=str(self.path), detail="its codec is not supported")
            if stream.width * stream.height > MOST_PIXELS:
                detail = f"{stream.width} x {stream.height} pixels are more than {MOST_PIXELS}"
                raise StorageError(path=str(self.path), detail=detail)
            stream.thread_type = "AUTO"
            yield container, stream

    def _decoded(self, container: Any, stream: av.VideoStream) -> Iterator[av.VideoFrame]:
        frames = iter(container.decode(stream))
        while True:
            with video_errors(self.path, "it is damaged"):
                frame = next(frames, None)
            if frame is None:
                return
            if frame.is_corrupt or frame.pts is None:
                raise StorageError(
                    path=str(self.path), detail="it is damaged: a frame is incomplete"
                )
            yield frame

    def _position(self, stream: av.VideoStream, pts: int | None) -> float:
        """Number of frames between the first of our frames and this one. The clock starts at the file's first frame."""
        seconds = ((pts or 0) - (stream.start_time or 0)) * _time_base(stream)
        return (seconds - self.start_s) * self.fps


def _time_base(stream: av.VideoStream) -> float:
    assert stream.time_base is not None
    return float(stream.time_base)


def decoded_picture(data: bytes, path: Path, what: str) -> Picture:
    """Decode a PNG or JPEG picture from a table."""
    form = next((form for magic, form in _PICTURES.items() if data.startswith(magic)), None)
    if form is None:
        raise StorageError(path=str(path), detail=f"{what} is neither PNG nor JPEG")
    with (
        video_errors(path, f"{what} cannot be decoded"),
        library("av").open(io.BytesIO(data), format=form) as container,
    ):
        stream = container.streams.video[0]
        if stream.width * stream.height > MOST_PIXELS:
            detail = f"{what} has more than {MOST_PIXELS} pixels"
            raise StorageError(path=str(path), detail=detail)
        for frame in container.decode(stream):
            return picture(frame.to_ndarray(format="rgb24"), what)
    raise StorageError(path=str(path), detail=f"{what} is empty")
