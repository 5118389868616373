"""Video for browsers: H.264 with exact colours, at the recorded frame rate, with frequent key frames for seeking."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollbook.errors import ConfigurationError, StorageError
from rollbook.lazy import needs

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


def exact_rate(fps: object) -> Fraction:
    return Fraction(checked_rate(fps)).limit_denominator(_LARGEST_DENOMINATOR)


def pyav() -> Any:
    with needs("encoding a video"):
        return import_module("av")


def picture(value: object, what: str) -> Picture:
    """The value as a red-green-blue picture. Grey and transparent pictures are converted; anything else is refused."""
    array = np.asarray(value)
    if array.dtype == np.uint8 and array.ndim == 2:
        array = array[:, :, None]
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] not in (1, 3, 4):
        message = f"{what} is {array.dtype} of shape {array.shape}, not a picture (uint8, height, width, colours)"
        if array.dtype.kind == "f":
            message += "; if its values are from 0 to 1: (image * 255).astype(np.uint8)"
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
    except pyav().FFmpegError as error:
        detail = f"{failed}: {error.strerror or error}"
        raise StorageError(path=str(path), detail=detail) from error


class VideoEncoder:
    """Encodes pictures of one size into an MP4 file, as they come. The first picture opens the file."""

    def __init__(
        self,
        path: Path,
        *,
        rate: Fraction,
        time_base: Fraction,
        movflags: str,
        **codec_options: str,
    ) -> None:
        """`rate`: frames a second, as far as known. `time_base`: seconds of one tick of the frame times."""
        self._path = path
        self._rate = rate
        self._time_base = time_base
        self._movflags = movflags
        # a key frame that is asked for is one from which players can start
        self._options = {**_QUALITY, "forced-idr": "1", **codec_options}
        self._av = pyav()
        self._container: Any = None
        self._stream: av.VideoStream | None = None
        self._shape: tuple[int, ...] = ()
        self._key_at = self._last_at = Fraction(0)
        self.frames = 0

    def add(self, frame: Picture, ticks: int) -> None:
        if self._stream is None:
            self._stream = self._opened(frame.shape)
            self._shape = frame.shape
        elif frame.shape != self._shape:
            message = f"frame {self.frames} is {frame.shape}, the first one was {self._shape}; one video has one size"
            raise ConfigurationError(message=message)
        with video_errors(self._path, "cannot be encoded"):
            self._container.mux(self._stream.encode(self._converted(frame, ticks)))
        self.frames += 1

    def finish(self) -> None:
        """Writes what the encoder still holds."""
        if self._stream is not None:
            with video_errors(self._path, "cannot be written"):
                self._container.mux(self._stream.encode())

    def close(self) -> None:
        container, self._container, self._stream = self._container, None, None
        if container is not None:
            with video_errors(self._path, "cannot be written"):
                container.close()

    def _opened(self, shape: tuple[int, ...]) -> av.VideoStream:
        with video_errors(self._path, "cannot be written"):
            self._container = self._av.open(
                os.fspath(self._path),
                "w",
                format="mp4",
                options={"movflags": self._movflags, "flush_packets": "1"},
            )
            stream: av.VideoStream = self._container.add_stream(
                "libx264", rate=self._rate, options=self._options
            )
        height, width, _ = shape
        stream.height, stream.width = height + height % 2, width + width % 2
        stream.pix_fmt = "yuv420p"
        codec = stream.codec_context
        codec.time_base = self._time_base
        codec.gop_size = max(1, math.floor(self._rate * Fraction(KEY_FRAME_GAP_S)))
        codec.max_b_frames = 0  # every reader then sees the first frame at time 0
        codec.colorspace, codec.color_range = _BT601_MATRIX, _LIMITED_RANGE
        codec.color_primaries, codec.color_trc = _BT709_PRIMARIES, _SRGB_CURVE
        return stream

    def _converted(self, frame: Picture, ticks: int) -> av.VideoFrame:
        odd = [(0, length % 2) for length in frame.shape[:2]]
        even = np.pad(frame, [*odd, (0, 0)], mode="edge") if any(o for _, o in odd) else frame
        made = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(even), format="rgb24")
        yuv: av.VideoFrame = made.reformat(
            format="yuv420p", dst_colorspace=_BT601_MATRIX, dst_color_range=_LIMITED_RANGE
        )
        yuv.pts, yuv.time_base = ticks, self._time_base
        if self._needs_key(ticks * self._time_base):
            yuv.pict_type = 1  # an I frame
        return yuv

    def _needs_key(self, at: Fraction) -> bool:
        """True when the next frame, as far away as the last one, would be too far from the last key frame. The rate
        that was announced need not be the rate at which frames come."""
        too_far = at + (at - self._last_at) - self._key_at > Fraction(KEY_FRAME_GAP_S)
        self._last_at = at
        if too_far:
            self._key_at = at
        return too_far


class VideoWriter:
    """Frame `i` is shown at `i / fps`. The file appears when the block ends without an error."""

    def __init__(self, path: Path, fps: float) -> None:
        self._path = path
        self._part = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
        rate = exact_rate(fps)
        self._encoder = VideoEncoder(
            self._part, rate=rate, time_base=1 / rate, movflags="faststart"
        )

    @property
    def frames(self) -> int:
        return self._encoder.frames

    def add(self, frame: Picture) -> None:
        self._encoder.add(frame, self.frames)

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._encoder.finish()
            self._encoder.close()
            if error is None and self.frames:
                os.replace(self._part, self._path)
        finally:
            with suppress(OSError):
                self._part.unlink()
