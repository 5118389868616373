"""One frame of an image array, as a PNG. Only the bytes of this frame are read."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.errors import InvalidValue
from rollbook.lazy import needs
from rollbook.server.http.responses import not_found
from rollbook.server.queries import EpisodeRow
from rollbook.server.recordings.layout import PictureArray, layout_of
from rollbook.server.recordings.recording_file import RecordingFile

_MOST_FRAME_BYTES = 64 << 20
_MOST_SIDE = 8192


def frame_png(
    files: Sequence[RecordingFile],
    missing: Mapping[str, str],
    episode: EpisodeRow,
    name: str,
    index: int,
) -> bytes:
    """Runs in a thread. An array or a frame that is not there is a 404."""
    layout = layout_of(files, missing, episode)
    picture = next((each for each in layout.pictures if each.name == name), None)
    if picture is None or not 0 <= index < picture.frames:
        raise not_found("frame")
    if picture.row_bytes > _MOST_FRAME_BYTES or max(picture.width, picture.height) > _MOST_SIDE:
        size = f"{picture.width} x {picture.height}"
        expected = f"at most {_MOST_SIDE} pixels wide and high, and {_MOST_FRAME_BYTES:,} bytes"
        raise InvalidValue(record=name, field="frame", value=size, expected=expected)
    file = next(each for each in files if each.kind == picture.artifact)
    [rows] = file.rows(picture.key, index, index + 1)
    return _png(_pixels(rows[0], picture))


def _pixels(frame: NDArray[Any], picture: PictureArray) -> NDArray[np.uint8]:
    """Height, width and colours as bytes; a picture of other numbers is shown from its least to its greatest."""
    if picture.colours_first:
        frame = np.moveaxis(frame, 0, -1)
    if frame.dtype == np.bool_:
        frame = frame.astype(np.uint8) * np.uint8(255)
    if frame.dtype != np.uint8:
        frame = _stretched(frame)
    return np.ascontiguousarray(frame.reshape(picture.height, picture.width, -1))


def _stretched(frame: NDArray[Any]) -> NDArray[np.uint8]:
    """Values that are missing are black."""
    values = frame.astype(np.float64)
    finite = np.isfinite(values)
    if not finite.any():
        return np.zeros(values.shape, np.uint8)
    low, high = values[finite].min(), values[finite].max()
    with np.errstate(all="ignore"):
        share = (values - low) / (high - low) if high > low else np.zeros_like(values)
    return (np.where(finite, np.nan_to_num(share), 0) * 255).round().astype(np.uint8)


def _png(pixels: NDArray[np.uint8]) -> bytes:
    with needs("showing the pictures of a recording"):
        from PIL import Image

    shown = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
    out = io.BytesIO()
    Image.fromarray(shown).save(out, "PNG", compress_level=1)
    return out.getvalue()
