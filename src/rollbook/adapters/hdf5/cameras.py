"""CameraPictures: the pictures of one camera in a file, as arrays or as JPEG and PNG; and their video."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.steps.h5_dataset import DatasetReader, H5Dataset
from rollbook.adapters.video_source import decoded_picture
from rollbook.client.tiles import Tile, tiled, tiles
from rollbook.client.video import MOST_PIXELS, Picture, VideoWriter, picture
from rollbook.errors import ConfigurationError, DamagedRecording

Form: TypeAlias = Literal["arrays", "padded", "lists"]
"""`padded`: each row is a compressed picture, filled up with zeros. `lists`: each row is one, as long as it is."""
ColourOrder: TypeAlias = Literal["rgb", "bgr"]

_JPEG, _JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
_PNG, _PNG_END = b"\x89PNG", b"IEND\xaeB`\x82"
_PICTURE_FOLDERS = frozenset({"images", "rgb_images"})


def camera_form(described: H5Dataset) -> Form | None:
    """How a dataset holds pictures; None for one that holds something else, as far as type and shape tell."""
    folder = described.name.split("/")[-2:-1]
    in_folder = bool(folder) and folder[0] in _PICTURE_FOLDERS
    if described.kind == "bytes":
        return "lists" if len(described.shape) == 1 else None
    if described.kind != "numbers" or described.dtype != np.uint8:
        return None
    shape = described.row_shape
    if len(shape) == 3 and (shape[2] == 3 or (in_folder and shape[2] in (1, 4))):
        return "arrays" if math.prod(shape[:2]) <= MOST_PIXELS else None
    if in_folder and len(shape) == 2:
        return "arrays" if math.prod(shape) <= MOST_PIXELS else None
    return "padded" if in_folder and len(shape) == 1 else None


@dataclass
class CameraPictures:
    reader: DatasetReader
    form: Form
    colour_order: ColourOrder
    path: Path
    lengths: list[int] = field(default_factory=list)
    """Bytes of each compressed picture that was read, to be compared with the lengths that the file declares."""

    @property
    def name(self) -> str:
        return self.reader.described.name

    def frames(self) -> Generator[Picture, None, None]:
        """A frame is valid until the next one is asked for."""
        for frame in self._read():
            # channels of a grey picture are equal, so it has no order
            yield frame[:, :, ::-1] if self.colour_order == "bgr" else frame

    def _read(self) -> Generator[Picture, None, None]:
        if self.form == "arrays":
            for block in self.reader.blocks():
                for each in block:
                    yield picture(each, self.name)
            return
        rows = (
            (row for block in self.reader.blocks() for row in block)
            if self.form == "padded"
            else self.reader.byte_rows()
        )
        for number, row in enumerate(rows):
            data = row.tobytes().rstrip(b"\0")
            self.lengths.append(len(data))
            yield _decoded(data, self.path, f"{self.name} in row {number}")


def _decoded(data: bytes, path: Path, what: str) -> Picture:
    end = _PNG_END if data.startswith(_PNG) else _JPEG_END
    if not data.endswith(end):
        raise DamagedRecording(path=str(path), detail=f"{what} is cut off")
    return decoded_picture(data, path, what)


def compressed_problem(row: NDArray[np.uint8]) -> str | None:
    """Why rows like this, the first one, are not the pictures of a video; None for JPEG and PNG of 8 bits."""
    start = row[:26].tobytes()
    if start.startswith(_JPEG):
        return None
    if not start.startswith(_PNG) or len(start) < 26:
        return "its rows are lists of bytes, but not JPEG or PNG pictures"
    if start[24] > 8:
        return f"its pictures have {start[24]} bits for each value, of which a video keeps 8"
    return None


# ------------------------------------------------------------------------------------------ video


def write_video(
    cameras: Sequence[CameraPictures], target: Path, fps: float
) -> tuple[list[Tile], int]:
    """Write all cameras side by side, frame `i` for row `i`. Returns their positions and the number of frames."""
    layout: list[Tile] = []
    with ExitStack() as stack:
        video = stack.enter_context(VideoWriter(target, fps))
        streams = [stack.enter_context(closing(camera.frames())) for camera in cameras]
        for pictures in zip(*streams, strict=True):
            layout = layout or tiles([camera.name for camera in cameras], pictures)
            for tile, each in zip(layout, pictures, strict=True):
                if each.shape[:2] != (tile.height, tile.width):
                    detail = f"{tile.camera} changes its size at row {video.frames}"
                    raise DamagedRecording(path=str(cameras[0].path), detail=detail)
            video.add(tiled(layout, pictures))
        frames = video.frames
    return layout, frames


def check_lengths(
    cameras: Sequence[CameraPictures], declared: NDArray[Any], name: str, path: Path
) -> None:
    """Compare the lengths of the compressed pictures with those that the file declares.

    The file does not say which row of the lengths belongs to which camera, so each camera has to match one of them.
    """
    left = list(range(len(declared)))
    for camera in cameras:
        read = np.array(camera.lengths, np.float64)
        match = next((row for row in left if np.array_equal(declared[row], read)), None)
        if match is None:
            detail = f"the lengths of the pictures of {camera.name} are in no row of {name}"
            raise DamagedRecording(path=str(path), detail=detail)
        left.remove(match)


def chosen_cameras(known: Mapping[str, Form], cameras: tuple[str, ...] | None) -> tuple[str, ...]:
    """None takes all cameras except those of `next_obs`, whose pictures are those of `obs` one step later."""
    if cameras is None:
        return tuple(name for name in known if not name.startswith("next_obs/"))
    chosen = []
    for wanted in cameras:
        ends = [name for name in known if name.rpartition("/")[2] == wanted]
        plain = [name for name in ends if not name.startswith("next_obs/")] or ends
        names = [wanted] if wanted in known else plain
        if len(names) != 1:
            told = ", ".join(names or known) or "none"
            problem = "there is no camera" if not names else "more than one camera is called"
            raise ConfigurationError(message=f"{problem} {wanted!r}; known: {told}")
        chosen.append(names[0])
    return tuple(dict.fromkeys(chosen))
