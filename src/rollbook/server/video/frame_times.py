"""FrameTimes: when each frame of an MP4 file is shown, read from its index without decoding anything.

A player needs it to show exactly the frame of a time. Bad content gives None; the player then relies on the declared
rate.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollbook.server.blobs.interface import BlobStore
from rollbook.server.video.inspect_video import VideoLimits

MOST_TIMES = 100_000
"""Frames of a video with a variable rate whose times are listed."""
_LARGEST_INDEX = 32 << 20
_MOST_BOXES = 1000
_CONTAINERS = (b"trak", b"mdia", b"minf", b"stbl", b"edts")
_NEARLY_CONSTANT = 0.25
"""Of a frame: times this close to a constant rate never lead to another frame."""

Boxes: TypeAlias = "dict[bytes, memoryview]"
ReadRange: TypeAlias = "Callable[[int, int], Awaitable[bytes]]"


@dataclass(frozen=True, slots=True)
class FrameTimes:
    frames: int
    fps: float
    """The mean rate."""
    times: list[float] | None
    """Seconds from the start of the video, where the rate is not constant."""
    width: int
    height: int


async def frame_times(blobs: BlobStore, key: str) -> FrameTimes | None:
    """None for a file without such an index: another container, fragments, or something damaged."""

    async def read(start: int, end: int) -> bytes:
        return b"".join([chunk async for chunk in await blobs.read(key, start, end)])

    index = await _index(read)
    if index is None:
        return None
    try:
        return await asyncio.to_thread(_times_of, index)
    except (struct.error, ValueError, IndexError, OverflowError):
        return None


async def _index(read: ReadRange) -> bytes | None:
    """The content of the box `moov`, wherever it is in the file."""
    at = 0
    for _ in range(_MOST_BOXES):
        head = await read(at, at + 16)
        if len(head) < 8:
            return None
        size, opening = int.from_bytes(head[:4], "big"), 8
        if size == 1:
            size, opening = int.from_bytes(head[8:16], "big"), 16
        if head[4:8] == b"moov":
            return await read(at + opening, at + size) if 8 < size <= _LARGEST_INDEX else None
        if size < 8:
            return None
        at += size
    return None


def _boxes(content: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    at = 0
    for _ in range(_MOST_BOXES):
        if at + 8 > len(content):
            return
        size, kind = struct.unpack_from(">I4s", content, at)
        if size < 8 or at + size > len(content):
            return
        yield kind, content[at + 8 : at + size]
        at += size


def _flat(content: memoryview, deepest: int = 5) -> Boxes:
    """The boxes of a track by kind; those inside of others too."""
    found: Boxes = {}
    for kind, inside in _boxes(content):
        is_container = kind in _CONTAINERS and deepest > 0
        found.update(_flat(inside, deepest - 1) if is_container else {kind: inside})
    return found


def _times_of(index: bytes) -> FrameTimes | None:
    movie = list(_boxes(memoryview(index)))
    tracks = (_flat(content) for kind, content in movie if kind == b"trak")
    video = next((each for each in tracks if bytes(each.get(b"hdlr", b"")[8:12]) == b"vide"), None)
    if video is None or b"stts" not in video or b"mdhd" not in video:
        return None
    scale = _timescale(video[b"mdhd"])
    ticks = _shown_at(video)
    if not len(ticks) or scale <= 0:
        return None
    movie_scale = _timescale(dict(movie)[b"mvhd"])
    ticks = np.sort(ticks)
    times = ticks / scale + _start_s(video, scale, movie_scale)
    width, height = struct.unpack_from(">II", video[b"tkhd"], len(video[b"tkhd"]) - 8)
    length = int(ticks[-1] - ticks[0])
    steps, length = (len(times) - 1, length) if length else (1, max(1, _first_step(video)))
    fps = steps * scale / length
    return FrameTimes(len(times), float(fps), _listed(times, fps), width >> 16, height >> 16)


def _timescale(box: memoryview) -> int:
    """Ticks of a second, of `mdhd` or `mvhd`."""
    place = 20 if box[0] == 1 else 12
    return int(struct.unpack_from(">I", box, place)[0])


def _pairs(box: memoryview, kind: str) -> NDArray[np.int64]:
    """Rows of two numbers each, after the version and a count."""
    count = struct.unpack_from(">I", box, 4)[0]
    return np.frombuffer(box[8 : 8 + 8 * count], kind).reshape(-1, 2).astype(np.int64)


def _shown_at(video: Boxes) -> NDArray[np.int64]:
    runs = _pairs(video[b"stts"], ">u4")
    if runs[:, 0].sum() > VideoLimits().most_frames:
        raise ValueError("more frames than a video may have")
    steps = np.repeat(runs[:, 1], runs[:, 0])
    decoded = np.concatenate([[0], np.cumsum(steps)[:-1]]) if len(steps) else steps
    if b"ctts" not in video:
        return decoded
    later = _pairs(video[b"ctts"], ">i4")
    if later[:, 0].sum() != len(decoded):
        raise ValueError("other frames are shown than there are")
    return decoded + np.repeat(later[:, 1], later[:, 0])


def _first_step(video: Boxes) -> int:
    return int(_pairs(video[b"stts"], ">u4")[0, 1])


def _start_s(video: Boxes, scale: int, movie_scale: int) -> float:
    """What the edit list adds to every time: players leave out what it leaves out."""
    box = video.get(b"elst")
    if box is None:
        return 0.0
    form = ">Qqi" if box[0] == 1 else ">Iii"
    delay = 0.0
    for number in range(struct.unpack_from(">I", box, 4)[0]):
        length, start, _ = struct.unpack_from(form, box, 8 + number * struct.calcsize(form))
        if start >= 0:
            return float(delay - start / scale)
        delay += length / max(1, movie_scale)
    return delay


def _listed(times: NDArray[np.float64], fps: float) -> list[float] | None:
    constant = np.arange(len(times)) / fps
    if len(times) > MOST_TIMES or np.abs(times - constant).max() * fps <= _NEARLY_CONSTANT:
        return None
    return [round(float(each), 6) for each in times]
