"""Cameras: topics of pictures become one video, several side by side."""

from __future__ import annotations

import base64
import binascii
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.extras import library
from rollbook.adapters.ros2.storage import Channel
from rollbook.adapters.ros2.topic_reader import TopicReader, fields_of
from rollbook.adapters.video_source import decoded_picture
from rollbook.client.tiles import Tile, tiled, tiles
from rollbook.client.video import MOST_PIXELS, Picture, VideoWriter, picture
from rollbook.errors import RollbookError

_RAW = {
    "sensor_msgs/msg/Image",
    "foxglove.RawImage",
    "foxglove_msgs/msg/RawImage",
}
_PACKED = {
    "sensor_msgs/msg/CompressedImage",
    "foxglove.CompressedImage",
    "foxglove_msgs/msg/CompressedImage",
}
_VIDEO = {"foxglove.CompressedVideo", "foxglove_msgs/msg/CompressedVideo"}
_CODECS = {"h264": "h264", "h265": "hevc", "vp9": "vp9", "av1": "av1"}
_COLOURS: Mapping[str, tuple[int, tuple[int, ...]]] = {
    "rgb8": (3, (0, 1, 2)),
    "bgr8": (3, (2, 1, 0)),
    "8UC3": (3, (2, 1, 0)),
    "rgba8": (4, (0, 1, 2)),
    "bgra8": (4, (2, 1, 0)),
    "8UC4": (4, (2, 1, 0)),
    "mono8": (1, (0, 0, 0)),
    "8UC1": (1, (0, 0, 0)),
}
"""Bytes of a pixel, and where red, green and blue are in it. OpenCV's plain types have blue first, as in cv_bridge."""
_LOWEST_RATE, _HIGHEST_RATE = 0.1, 1000.0
PICTURE_FIELDS = ("data",)
"""Fields that are in the video and so not in a column."""
VIDEO_FRAME = "video_frame"
FIRST_TRIES = 300
"""Messages in which a first picture is looked for. A video stream may begin before its first key frame."""


def is_camera(channel: Channel) -> bool:
    return channel.type in _RAW | _PACKED | _VIDEO


class NoPicture(ValueError):
    """The message holds no picture that can be shown; the text says why."""


class PictureReader:
    """Decodes the messages of one camera. Videos need every message in its order."""

    def __init__(self, channel: Channel, reader: TopicReader, path: Path) -> None:
        self._channel = channel
        self._reader = reader
        self._path = path
        self._codec: Any = None

    def picture(self, message: bytes) -> Picture:
        try:
            fields = fields_of(self._reader, message)
        except ValueError as error:
            raise NoPicture(f"it cannot be decoded: {error}") from error
        data = _bytes(fields)
        try:
            if self._channel.type in _RAW:
                return _raw_picture(fields, data)
            if self._channel.type in _PACKED:
                return decoded_picture(data, self._path, "a picture")
            return self._video_picture(str(fields.get("format", "")), data)
        except RollbookError as error:
            raise NoPicture(str(error)) from error

    def _video_picture(self, form: str, data: bytes) -> Picture:
        av = library("av")
        if form not in _CODECS:
            raise NoPicture(f"video in {form!r} is not read")
        if self._codec is None:
            self._codec = av.CodecContext.create(_CODECS[form], "r")
            self._codec.thread_count = 1  # more threads would hold pictures back
        try:
            frames = self._codec.decode(av.Packet(data))
        except (av.FFmpegError, ValueError) as error:
            raise NoPicture(f"its video cannot be decoded ({error})") from error
        if not frames:
            raise NoPicture("its video gives no picture here")
        frame = frames[-1]
        if frame.width * frame.height > MOST_PIXELS:
            raise NoPicture(f"it has more than {MOST_PIXELS} pixels")
        return picture(frame.to_ndarray(format="rgb24"), "a frame")


def _bytes(fields: Mapping[str, NDArray[Any]]) -> bytes:
    data = fields.get("data")
    if data is None:
        return b""
    if data.dtype.kind == "U":
        try:
            return base64.b64decode(str(data), validate=True)
        except (binascii.Error, ValueError) as error:
            raise NoPicture("its data is not base64") from error
    return data.tobytes()


def _raw_picture(fields: Mapping[str, NDArray[Any]], data: bytes) -> Picture:
    encoding = str(fields.get("encoding", ""))
    if encoding not in _COLOURS:
        raise NoPicture(f"pictures in {encoding!r} are not shown in a video")
    depth, colours = _COLOURS[encoding]
    height, width, step = (int(fields.get(name, 0)) for name in ("height", "width", "step"))
    if not 0 < height * width <= MOST_PIXELS or step < width * depth or len(data) < height * step:
        raise NoPicture(f"{height} x {width} pixels, {step} bytes a row, in {len(data)} bytes")
    rows = np.frombuffer(data, np.uint8, height * step).reshape(height, step)
    pixels = rows[:, : width * depth].reshape(height, width, depth)
    return np.ascontiguousarray(pixels[:, :, colours])


# -------------------------------------------------------------------------------------------- video


@dataclass(slots=True)
class Camera:
    name: str
    pictures: PictureReader
    rows: int
    first: Picture
    """Gives the size: one video has one size."""
    frames: array[int] = field(default_factory=lambda: array("q"))
    """The frame of the video that shows each message first; -1 for those that no frame shows."""
    failed: int = 0
    """Messages that hold no picture, or one of another size. The picture before them is shown instead."""
    _latest: Picture | None = None
    _waiting: int | None = None
    """The message whose picture no frame has shown yet."""

    @property
    def not_shown(self) -> int:
        return sum(1 for frame in self.frames if frame < 0) - self.failed

    def take(self, message: bytes) -> None:
        self.frames.append(-1)
        try:
            made = self.pictures.picture(message)
        except NoPicture:
            self.failed += 1
            return
        if made.shape != self.first.shape:
            self.failed += 1
            return
        self._latest = made
        self._waiting = len(self.frames) - 1

    def shown(self, frame: int) -> Picture:
        """The newest picture; black before the first one."""
        if self._waiting is not None:
            self.frames[self._waiting] = frame
            self._waiting = None
        return np.zeros_like(self.first) if self._latest is None else self._latest


def lead_camera(cameras: Sequence[Camera]) -> Camera:
    """The camera with the most pictures: the video has one frame for each of them."""
    return max(cameras, key=lambda camera: camera.rows)


def picture_rate(rows: int, duration_ns: int) -> float:
    """Pictures a second, within what a video can have."""
    if rows < 2 or duration_ns <= 0:
        return 1.0
    return min(_HIGHEST_RATE, max(_LOWEST_RATE, (rows - 1) / duration_ns * 1e9))


def encode_video(
    target: Path, cameras: Sequence[Camera], messages: Iterable[tuple[Camera, bytes]], fps: float
) -> list[Tile]:
    """Messages come in the order of the file. Each picture of the lead camera makes a frame, beside the newest picture
    of every other camera."""
    lead = lead_camera(cameras)
    layout = tiles([c.name for c in cameras], [c.first for c in cameras])
    with VideoWriter(target, fps) as video:
        for camera, data in messages:
            camera.take(data)
            if camera is lead:
                video.add(tiled(layout, [each.shown(video.frames) for each in cameras]))
    return layout
