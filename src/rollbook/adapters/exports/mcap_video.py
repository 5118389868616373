"""VideoPackets: the frames of an episode's video as they are stored, one packet for each, for foxglove.CompressedVideo.

The format allows no B frames, wants H.264 and H.265 as Annex B, and the parameter sets in front of every key frame.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

from rollbook.adapters.extras import library
from rollbook.client.video import MOST_PIXELS, VideoEncoder, picture, video_errors
from rollbook.contracts.video_file import container_of
from rollbook.errors import StorageError
from rollbook.files import unreadable

_FILTERS = {"h264": "h264_mp4toannexb", "hevc": "hevc_mp4toannexb"}
_FORMATS = {"h264": "h264", "hevc": "h265"}
_DEMUXERS = {"mp4": "mp4", "webm": "matroska", "matroska": "matroska", "avi": "avi"}
_NS = 1_000_000_000
_LONGEST_NS = 2**61


@dataclass(frozen=True, slots=True)
class VideoPackets:
    path: Path
    codec: str
    frames: int
    in_order: bool
    """Whether frames are stored in the order in which they are shown, from a key frame on."""
    offsets_ns: tuple[int, ...]
    """Time of every frame from the first one on, in the order in which they are shown."""

    @classmethod
    def of(cls, path: Path) -> VideoPackets:
        """Looks at every packet and decodes none."""
        with _opened(path) as (container, stream):
            codec = str(stream.codec_context.codec.canonical_name)
            with video_errors(path, "it is damaged"):
                packets: list[tuple[int | None, bool]] = []
                for packet in container.demux(stream):
                    if packet.is_corrupt:
                        detail = f"it is damaged: frame {len(packets)} is incomplete"
                        raise StorageError(path=str(path), detail=detail)
                    if packet.size:
                        packets.append((packet.pts, packet.is_keyframe))
            times = [pts for pts, _ in packets if pts is not None]
            first = min(times, default=0)
            offsets = tuple(_offset_ns(path, stream, pts - first) for pts in sorted(times))
        rising = len(times) == len(packets) and all(a < b for a, b in pairwise(times))
        in_order = rising and bool(packets) and packets[0][1]
        return cls(path, codec, len(packets), in_order, offsets)

    @property
    def can_be_copied(self) -> bool:
        return self.codec in _FILTERS and self.in_order

    @property
    def format(self) -> str:
        return _FORMATS[self.codec]

    def packets(self) -> Iterator[tuple[int, bytes]]:
        """Time in nanoseconds from the first frame, and the bytes, of every frame."""
        with _opened(self.path) as (container, stream):
            filtering = library("av.bitstream").BitStreamFilterContext(_FILTERS[self.codec], stream)
            first = None
            with video_errors(self.path, "it is damaged"):
                for packet in container.demux(stream):
                    if not packet.size:
                        continue
                    first = packet.pts if first is None else first
                    at = _offset_ns(self.path, stream, packet.pts - first)
                    yield at, b"".join(bytes(each) for each in filtering.filter(packet))

    def encoded_again(self, target: Path) -> VideoPackets:
        """The same frames at the same times as H.264 without B frames, in the file `target`."""
        with _opened(self.path) as (container, stream):
            rate = Fraction(stream.average_rate or 30)
            encoder = VideoEncoder(
                target, rate=rate, time_base=Fraction(stream.time_base), movflags="faststart"
            )
            try:
                first = None
                with video_errors(self.path, "it is damaged"):
                    for frame in container.decode(stream):
                        first = frame.pts if first is None else first
                        shown = picture(frame.to_ndarray(format="rgb24"), "a frame of the video")
                        encoder.add(shown, frame.pts - first)
                encoder.finish()
            finally:
                encoder.close()
        return VideoPackets.of(target)


def _offset_ns(path: Path, stream: Any, ticks: int) -> int:
    offset = round(ticks * Fraction(stream.time_base) * _NS)
    if offset > _LONGEST_NS:
        raise StorageError(path=str(path), detail=f"a frame at {offset / _NS:.0f} s is too late")
    return offset


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    try:
        with open(path, "rb") as file:
            container = container_of(file)
    except OSError as error:
        raise unreadable(path, error) from error
    if container is None:
        raise StorageError(path=str(path), detail="it is not a video")
    with video_errors(path, "it is not a complete video"):
        opened = library("av").open(
            os.fspath(path), format=_DEMUXERS[container], metadata_errors="replace"
        )
    with opened:
        if not opened.streams.video:
            raise StorageError(path=str(path), detail="it contains no video")
        stream = opened.streams.video[0]
        if getattr(stream, "codec_context", None) is None:
            raise StorageError(path=str(path), detail="its codec is not supported")
        if stream.width * stream.height > MOST_PIXELS:
            detail = f"{stream.width} x {stream.height} pixels are more than {MOST_PIXELS}"
            raise StorageError(path=str(path), detail=detail)
        yield opened, stream
