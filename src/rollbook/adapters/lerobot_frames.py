"""CameraFrames: the pictures of one episode of a LeRobot dataset, one camera or several side by side."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from rollbook.adapters.lerobot_columns import read_table
from rollbook.adapters.lerobot_episodes import EpisodeEntry
from rollbook.adapters.lerobot_info import LeRobotInfo
from rollbook.adapters.video_source import VideoSource, decoded_picture
from rollbook.client.tiles import Tile, tiled, tiles
from rollbook.client.video import Picture, VideoWriter
from rollbook.errors import ConfigurationError, StorageError, TruncatedFile


@dataclass(frozen=True, slots=True)
class CameraFrames:
    info: LeRobotInfo
    entry: EpisodeEntry
    cameras: tuple[str, ...]

    def encode(self, target: Path) -> list[Tile]:
        """Write the video, with frame `i` for row `i`, and return the position of each camera in it.

        A single video that browsers can already play is copied bit for bit. Everything else is encoded again.
        """
        if len(self.cameras) == 1 and self.cameras[0] in self.entry.videos:
            source = self._source(self.cameras[0])
            if source.start_s == 0 and source.is_the_whole_file():
                source.copy(target)
                with closing(source.frames()) as frames:
                    return tiles(self.cameras, [next(frames)])
        layout: list[Tile] = []
        with ExitStack() as stack:
            video = stack.enter_context(VideoWriter(target, self.info.fps))
            streams = [stack.enter_context(closing(self._frames(c))) for c in self.cameras]
            for pictures in zip(*streams, strict=True):
                layout = layout or tiles(self.cameras, pictures)
                self._check_sizes(layout, pictures)
                video.add(tiled(layout, pictures))
        return layout

    def frames_left_out(self) -> dict[str, int]:
        """Cameras whose videos have more frames of the episode than it has rows, and how many."""
        found = {}
        for camera in self.cameras:
            video = self.entry.videos.get(camera)
            if video is None:
                continue
            if math.isinf(video.to_s):
                extra = self._source(camera).frames_behind()
            else:
                extra = round((video.to_s - video.from_s) * self.info.fps) - self.entry.length
            if extra > 0:
                found[camera] = extra
        return found

    def _frames(self, camera: str) -> Generator[Picture, None, None]:
        is_video = camera in self.entry.videos
        return self._source(camera).frames() if is_video else self._pictures(camera)

    def _source(self, camera: str) -> VideoSource:
        video = self.entry.videos[camera]
        frames = (video.to_s - video.from_s) * self.info.fps
        if not math.isinf(frames) and round(frames) < self.entry.length:
            detail = f"{round(frames)} frames belong to episode {self.entry.index}"
            raise TruncatedFile(
                path=str(video.path), detail=f"{detail}, which has {self.entry.length}"
            )
        return VideoSource(video.path, self.info.fps, self.entry.length, video.from_s)

    def _pictures(self, camera: str) -> Generator[Picture, None, None]:
        """Pictures that are stored in the table itself, row by row."""
        path = self.entry.data
        table = read_table(self.info, self.entry, [camera])
        for row, value in enumerate(table.column(camera).to_pylist()):
            data = value.get("bytes") if isinstance(value, dict) else None
            if not isinstance(data, bytes):
                detail = f"{camera} of row {row} is not a picture in the table; pictures in other files are not read"
                raise StorageError(path=str(path), detail=detail)
            yield decoded_picture(data, path, f"{camera} of row {row}")

    def _check_sizes(self, layout: Sequence[Tile], pictures: Sequence[Picture]) -> None:
        for tile, each in zip(layout, pictures, strict=True):
            if each.shape[:2] != (tile.height, tile.width):
                detail = f"{tile.camera} changes its size in episode {self.entry.index}"
                raise StorageError(path=str(self.entry.data), detail=detail)


def chosen_cameras(info: LeRobotInfo, cameras: Sequence[str] | None) -> tuple[str, ...]:
    """None takes all cameras."""
    if cameras is None:
        return info.cameras
    if isinstance(cameras, str):
        cameras = (cameras,)
    for name in cameras:
        if name not in info.cameras:
            known = ", ".join(info.cameras) or "none"
            raise ConfigurationError(message=f"there is no camera {name!r}; known: {known}")
    return tuple(dict.fromkeys(cameras))
