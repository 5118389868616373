"""FrameLog: the pictures of an episode, encoded as they come. Several cameras become one video, side by side."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rollbook.client.live_video import LONGEST_GAP_S, TICKS_PER_SECOND, LiveVideo
from rollbook.client.step_clock import StepClock
from rollbook.client.tiles import Tile, tiled, tiles
from rollbook.client.video import Picture, picture, pyav
from rollbook.errors import InvalidValue
from rollbook.files import write_bytes

FRAMES_FILE, CAMERAS_FILE = "frames.mp4", "cameras.json"


class FrameLog:
    """One frame of the video shows one picture of each camera. Threads may share a log.

    The cameras are known when one of them gives its second picture. From then on a frame is written when every camera
    has given a picture, or when one gives the next: a camera that is slower shows its last picture again. The time of a
    frame is that of its first picture.
    """

    def __init__(self, folder: Path, fps: float | None) -> None:
        pyav()
        self._folder = folder
        self._fps = fps
        self._clock = StepClock("frame", fps)
        self._camera_clocks: dict[str | None, StepClock] = {}
        """The times of each camera rise, also of those whose pictures do not begin a frame."""
        self._lock = threading.Lock()
        self._video: LiveVideo | None = None
        self._cameras: dict[str | None, Picture] = {}
        """The last picture of each camera."""
        self._waiting: set[str | None] = set()
        """The cameras that have given a picture for the next frame."""
        self._layout: list[Tile] = []
        self._times: list[int] = []
        """The times in nanoseconds of the first frame and of the next one."""
        self._is_given = False
        self._ticks = -1

    def add(self, image: Any, camera: str | None, t: float | None, t_ns: int | None) -> None:
        with self._lock:
            shown = self._checked(image, camera)
            clock = self._camera_clocks.setdefault(camera, StepClock("frame", self._fps))
            now_ns = clock.next_ns(t, t_ns)
            if camera in self._waiting:
                self._write()
            if not self._waiting:
                self._begin_frame(t, t_ns)
            clock.accept(now_ns, is_given=t is not None or t_ns is not None)
            self._cameras[camera] = shown
            self._waiting.add(camera)
            if camera is None or (self._layout and len(self._waiting) == len(self._layout)):
                self._write()

    def close(self) -> None:
        """Writes the frame for which pictures are waiting."""
        with self._lock:
            if self._waiting:
                self._write()
            if self._video is not None:
                self._video.close()

    @property
    def frames(self) -> int:
        return 0 if self._video is None else self._video.frames

    def _checked(self, image: Any, camera: str | None) -> Picture:
        named: object = camera
        if named is not None and not (isinstance(named, str) and named):
            raise self._refusal("camera", repr(camera), "the name of a camera")
        field = "image" if camera is None else f"image of camera {camera!r}"
        shown = picture(image, f"frame at row {self.frames}: {field}")
        if self._cameras and (camera is None) != (None in self._cameras):
            raise self._refusal("camera", repr(camera), "a name for every camera, or for none")
        if self._layout and camera not in self._cameras:
            known = ", ".join(tile.camera for tile in self._layout)
            raise self._refusal("camera", repr(camera), f"one of the first frame: {known}")
        before = self._cameras.get(camera)
        if before is not None and shown.shape != before.shape:
            expected = f"{before.shape[:2]}, the size of the first one"
            raise self._refusal(field, f"of size {shown.shape[:2]}", expected)
        return shown.copy()  # it may wait for other cameras, and the caller may reuse the array

    def _begin_frame(self, t: float | None, t_ns: int | None) -> None:
        now_ns = self._clock.next_ns(t, t_ns)
        self._is_given = t is not None or t_ns is not None
        passed_s = (now_ns - self._times[-1]) / 1e9 if self._times else 0
        if passed_s > LONGEST_GAP_S and (self._is_given or self._fps is None):
            expected = f"at most {LONGEST_GAP_S} s; end this episode and start another one"
            raise self._refusal("t", f"{passed_s:.0f} s after the frame before it", expected)
        self._clock.accept(now_ns, self._is_given)
        self._times = [*self._times[:1], now_ns]

    def _write(self) -> None:
        names = list(self._cameras)
        if not self._layout:
            self._layout = tiles([name or "" for name in names], list(self._cameras.values()))
            if names != [None]:
                cameras = [asdict(tile) for tile in self._layout]
                write_bytes(self._folder / CAMERAS_FILE, json.dumps(cameras).encode())
        if self._video is None:
            fixed = None if self._is_given else self._fps
            self._video = LiveVideo(self._folder / FRAMES_FILE, fixed)
        if self._fps is not None and not self._is_given:
            self._ticks = self._video.frames
        else:
            passed_ns = self._times[-1] - self._times[0]
            self._ticks = max(self._ticks + 1, passed_ns * TICKS_PER_SECOND // 10**9)
        self._waiting.clear()
        self._video.add(tiled(self._layout, list(self._cameras.values())), self._ticks)

    def _refusal(self, field: str, value: str, expected: str) -> InvalidValue:
        record = f"frame at row {self.frames}"
        return InvalidValue(record=record, field=field, value=value, expected=expected)
