"""EpisodeFrames: the frames of a baseline's video at the times of its steps, for policies that use images.

Frames are decoded as steps are replayed, and converted to arrays only where a step needs them. A video starts with the
sensors. A step gets the frame that is nearest in time, or with `hold` the last frame before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.streams import CLOCK_FIELD
from rollbook.errors import ConfigurationError, InvalidValue
from rollbook.evals.baselines import Baseline
from rollbook.lazy import needs
from rollbook.scoring.actions import key_parts
from rollbook.scoring.observations import ObservationTable

FRAME_KEY = "/video/rgb"
_EARLY_S = 0.001
"""Clocks are rounded: a frame that is this little later than a step still counts as before it."""
_SEEK_ABOVE_S = 5.0
"""For a longer way forward the decoder seeks to a key frame; otherwise it decodes all frames between."""

Picture = NDArray[np.uint8]


class EpisodeFrames:
    def __init__(
        self, key: str | None = None, video: _Video | None = None, times: Any = ()
    ) -> None:
        self._key = key
        self._video = video
        self._times = times

    @classmethod
    def of(
        cls, baseline: Baseline, table: ObservationTable, asked: bool | Mapping[str, str]
    ) -> EpisodeFrames:
        """Empty when no frames are wanted. Raises InvalidValue when the episode has no video."""
        key = frame_key(asked)
        if key is None:
            return cls()
        if baseline.video is None:
            raise InvalidValue(
                record=f"episode {baseline.id}",
                field="video",
                value="missing",
                expected="a video, because frames are wanted",
            )
        video = _Video(baseline.video, exactly=table.align != "hold")
        return cls(key, video, _times(baseline, table, video.fps))

    @property
    def shown(self) -> bool:
        """Whether observations get frames."""
        return self._key is not None and self._video is not None

    def added_to(self, observation: dict[str, Any], step: int) -> dict[str, Any]:
        if self._key is not None and self._video is not None:
            observation[self._key] = self._video.at(float(self._times[step]))
        return observation

    def added_to_batch(self, observations: dict[str, Any], start: int) -> dict[str, Any]:
        if self._key is not None and self._video is not None:
            count = len(next(iter(observations.values())))
            seconds = self._times[start : start + count]
            observations[self._key] = np.stack([self._video.at(float(each)) for each in seconds])
        return observations

    def __enter__(self) -> EpisodeFrames:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._video is not None:
            self._video.close()


def frame_key(asked: bool | Mapping[str, str]) -> str | None:
    """The key of frames in an observation; None when no frames are wanted."""
    if isinstance(asked, bool):
        return FRAME_KEY if asked else None
    if set(asked) != {"video"} or not asked["video"]:
        message = (
            f"frames is {asked!r}, expected True, False or {{'video': key of the observation}}"
        )
        raise ConfigurationError(message=message)
    return asked["video"]


def _times(baseline: Baseline, table: ObservationTable, fps: float) -> NDArray[np.float64]:
    """Seconds from the start of the video to each step."""
    if table.t_ns is None:
        recorded = baseline.record.fps if baseline.record is not None else None
        return np.arange(len(table)) / (recorded or fps)
    sensors = baseline.sensors or {}
    firsts = [
        int(clock[0])
        for key, clock in sensors.items()
        if key_parts(key)[1] == CLOCK_FIELD and clock.ndim == 1 and len(clock)
    ]
    return (table.t_ns - min(firsts, default=int(table.t_ns[0]))) / 1e9


class _Video:
    def __init__(self, path: Path, *, exactly: bool) -> None:
        with needs("reading frames"):
            import av

        self._exactly = exactly
        self._path = path
        self._av: Any = av
        try:
            self._container: Any = av.open(str(path))
            self._stream: Any = self._container.streams.video[0]
        except (av.FFmpegError, IndexError) as error:
            raise self._unreadable(error) from error
        self._stream.thread_type = "AUTO"
        self._tick = float(self._stream.time_base or 1)
        self._begin = (self._stream.start_time or 0) * self._tick
        self._decoding: Iterator[Any] = iter(())
        self._now: tuple[float, Any] | None = None
        self._next: tuple[float, Any] | None = None
        self._shown: tuple[float, Picture] | None = None
        self._jump(0.0)

    @property
    def fps(self) -> float:
        return float(self._stream.average_rate or 30)

    def at(self, seconds: float) -> Picture:
        """The frame for this time; after the end, the last frame."""
        is_past = self._now is not None and seconds < self._now[0] - _EARLY_S
        is_far = self._next is not None and seconds - self._next[0] > _SEEK_ABOVE_S
        if is_past or is_far:
            self._jump(seconds)
        while self._next is not None and self._is_due(seconds):
            self._now, self._next = self._next, self._decoded()
        if self._now is None:
            raise self._unreadable("it has no frames")
        if self._shown is None or self._shown[0] != self._now[0]:
            self._shown = (self._now[0], self._now[1].to_ndarray(format="rgb24"))
        return self._shown[1]

    def close(self) -> None:
        self._container.close()

    def _is_due(self, seconds: float) -> bool:
        """Whether the next frame fits this time better than the current one."""
        assert self._next is not None
        if self._now is None or self._next[0] <= seconds + _EARLY_S:
            return True
        return self._exactly and self._next[0] - seconds < seconds - self._now[0]

    def _jump(self, seconds: float) -> None:
        """Seeks to the key frame before this time."""
        stamp = int((seconds + self._begin) / self._tick)
        with suppress(self._av.FFmpegError):  # a file without seeking is decoded from here on
            self._container.seek(max(stamp, 0), stream=self._stream, backward=True)
        self._decoding = iter(self._container.decode(self._stream))
        self._now, self._next = None, self._decoded()

    def _decoded(self) -> tuple[float, Any] | None:
        try:
            frame = next(self._decoding, None)
        except self._av.FFmpegError as error:
            raise self._unreadable(error) from error
        if frame is None:
            return None
        return frame.pts * self._tick - self._begin, frame

    def _unreadable(self, why: object) -> InvalidValue:
        return InvalidValue(
            record="video",
            field=self._path.name[:16],
            value=f"unreadable ({why})",
            expected="frames",
        )
