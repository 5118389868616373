"""CameraVideo: pictures of one or several cameras become one video, one frame for each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from rollbook.client.tiles import Tile, tiled, tiles
from rollbook.client.video import Picture, VideoWriter
from rollbook.errors import ConfigurationError, DamagedRecording

LOSSY = "Pictures of {} become an H.264 video, which is lossy."


class CameraVideo:
    """As a context manager. The file appears when the block ends without an error."""

    def __init__(self, target: Path, fps: float, cameras: Sequence[str], source: Path) -> None:
        """`source` is named in errors."""
        self._writer = VideoWriter(target, fps)
        self._cameras = tuple(cameras)
        self._source = source
        self._layout: list[Tile] = []

    @property
    def frames(self) -> int:
        return self._writer.frames

    @property
    def layout(self) -> list[dict[str, Any]]:
        """The place of each camera, for the metadata."""
        return [asdict(tile) for tile in self._layout]

    def add(self, pictures: Sequence[Picture]) -> None:
        self._layout = self._layout or tiles(self._cameras, pictures)
        for tile, each in zip(self._layout, pictures, strict=True):
            if each.shape[:2] != (tile.height, tile.width):
                detail = f"{tile.camera} changes its size at step {self.frames}"
                raise DamagedRecording(path=str(self._source), detail=detail)
        self._writer.add(tiled(self._layout, pictures))

    def __enter__(self) -> CameraVideo:
        self._writer.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._writer.__exit__(kind, error, trace)


def chosen_cameras(
    known: Sequence[str], cameras: Sequence[str] | None, name: str
) -> tuple[str, ...]:
    """None takes all cameras. `name` says in errors whose cameras they are."""
    if cameras is None:
        return tuple(known)
    for camera in cameras:
        if camera not in known:
            there = ", ".join(known) or "none"
            message = f"{name} has no camera {camera!r}; it has: {there}"
            raise ConfigurationError(message=message)
    return tuple(dict.fromkeys(cameras))
