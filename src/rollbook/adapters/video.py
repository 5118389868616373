"""Video for browsers: H.264 with exact colours, at the recorded frame rate, with frequent key frames for seeking."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.extras import library
from rollbook.errors import ConfigurationError, StorageError

if TYPE_CHECKING:
    import av

Picture: TypeAlias = "NDArray[np.uint8]"
"""Axes: height, width, and red-green-blue."""

KEY_FRAME_GAP_S = 0.5
MOST_PIXELS = 1 << 26
_QUALITY = {"preset": "veryfast", "crf": "18"}
_LARGEST_DENOMINATOR = 1001
_HIGHEST_RATE = 1000.0

# The colour matrix is BT.601, and the file declares it. Readers that ignore the declaration assume BT.601 as well, so
# all of them show the right colours. Primaries and transfer curve are those of sRGB.
_BT601_MATRIX, _BT709_PRIMARIES, _SRGB_CURVE, _LIMITED_RANGE = 6, 1, 13, 1


def checked_rate(fps: object) -> float:
    if isinstance(fps, bool) or not isinstance(fps, int | float | np.integer | np.floating):
        raise ConfigurationError(message=f"fps={fps!r}; it has to be a number of frames a second")
    if not 0 < fps <= _HIGHEST_RATE:
        message = f"fps={fps}; it has to be above 0 and at most {_HIGHEST_RATE:g}"
        raise ConfigurationError(message=message)
    return float(fps)


def picture(value: object, what: str) -> Picture:
    """The value as a red-green-blue picture. Grey and transparent pictures are converted; anything else is refused."""
    array = np.asarray(value)
    if array.dtype == np.uint8 and array.ndim == 2:
        array = array[:, :, None]
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] not in (1, 3, 4):
        message = f"{what} is {array.dtype} of shape {array.shape}, not a picture (uint8, height, width, colours)"
        raise ConfigurationError(message=message)
    if not 0 < array.shape[0] * array.shape[1] <= MOST_PIXELS:
        raise ConfigurationError(
            message=f"{what} has {array.shape[0]} x {array.shape[1]} pixels; at most {MOST_PIXELS} are encoded"
        )
    return np.repeat(array, 3, axis=2) if array.shape[2] == 1 else array[:, :, :3]


@contextmanager
def video_errors(path: Path, failed: str) -> Iterator[None]:
    """Turn every FFmpeg error into a StorageError about this file."""
    try:
        yield
    except library("av").FFmpegError as error:
        detail = f"{failed}: {error.strerror or error}"
        raise StorageError(path=str(path), detail=detail) from error


class VideoWriter:
    """Frame `i` is shown at `i / fps`. The file appears when the block ends without an error."""

    def __init__(self, path: Path, fps: float) -> None:
        self._path = path
        self._part = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
        self._rate = Fraction(checked_rate(fps)).limit_denominator(_LARGEST_DENOMINATOR)
        self._av = library("av")
        self._container: Any = None
        self._stream: av.VideoStream | None = None
        self._shape: tuple[int, ...] = ()
        self.frames = 0

    def add(self, frame: Picture) -> None:
        if self._stream is None:
            self._shape = frame.shape
            self._stream = self._opened()
        elif frame.shape != self._shape:
            message = f"frame {self.frames} is {frame.shape}, the first one was {self._shape}; one video has one size"
            raise ConfigurationError(message=message)
        with video_errors(self._path, "cannot be encoded"):
            self._container.mux(self._stream.encode(self._converted(frame)))
        self.frames += 1

    def _opened(self) -> av.VideoStream:
        with video_errors(self._path, "cannot be written"):
            self._container = self._av.open(
                os.fspath(self._part), "w", format="mp4", options={"movflags": "faststart"}
            )
            stream: av.VideoStream = self._container.add_stream(
                "libx264", rate=self._rate, options=_QUALITY
            )
        height, width, _ = self._shape
        stream.height, stream.width = height + height % 2, width + width % 2
        stream.pix_fmt = "yuv420p"
        codec = stream.codec_context
        codec.time_base = 1 / self._rate
        codec.gop_size = max(1, math.floor(self._rate * Fraction(KEY_FRAME_GAP_S)))
        codec.max_b_frames = 0  # every reader then sees the first frame at time 0
        codec.colorspace, codec.color_range = _BT601_MATRIX, _LIMITED_RANGE
        codec.color_primaries, codec.color_trc = _BT709_PRIMARIES, _SRGB_CURVE
        return stream

    def _converted(self, frame: Picture) -> av.VideoFrame:
        odd = [(0, length % 2) for length in frame.shape[:2]]
        even = np.pad(frame, [*odd, (0, 0)], mode="edge") if any(o for _, o in odd) else frame
        made = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(even), format="rgb24")
        yuv: av.VideoFrame = made.reformat(
            format="yuv420p", dst_colorspace=_BT601_MATRIX, dst_color_range=_LIMITED_RANGE
        )
        yuv.pts, yuv.time_base = self.frames, 1 / self._rate
        return yuv

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._container is None:
            return
        try:
            with video_errors(self._path, "cannot be written"):
                if error is None and self._stream is not None:
                    self._container.mux(self._stream.encode())
                self._container.close()
            if error is None:
                os.replace(self._part, self._path)
        finally:
            with suppress(OSError):
                self._part.unlink()


# ------------------------------------------------------------------------------------------- tiles


@dataclass(frozen=True, slots=True)
class Tile:
    """Position of one camera in a picture that shows several."""

    camera: str
    x: int
    y: int
    width: int
    height: int


def tiles(cameras: Sequence[str], pictures: Sequence[Picture]) -> list[Tile]:
    """Up to three cameras side by side, more of them in rows. Every camera keeps its size."""
    columns = len(cameras) if len(cameras) <= 3 else math.ceil(math.sqrt(len(cameras)))
    heights = [p.shape[0] for p in pictures]
    widths = [p.shape[1] for p in pictures]
    column_widths = [max(widths[c::columns]) for c in range(columns)]
    row_heights = [max(heights[r : r + columns]) for r in range(0, len(cameras), columns)]
    return [
        Tile(
            camera,
            sum(column_widths[: i % columns]),
            sum(row_heights[: i // columns]),
            widths[i],
            heights[i],
        )
        for i, camera in enumerate(cameras)
    ]


def tiled(layout: Sequence[Tile], pictures: Sequence[Picture]) -> Picture:
    """One picture of all cameras, black in between."""
    if len(layout) == 1:
        return pictures[0]
    height = max(tile.y + tile.height for tile in layout)
    width = max(tile.x + tile.width for tile in layout)
    canvas = np.zeros((height, width, 3), np.uint8)
    for tile, each in zip(layout, pictures, strict=True):
        canvas[tile.y : tile.y + tile.height, tile.x : tile.x + tile.width] = each
    return canvas
