"""A depth image as a PNG file: near is bright, far is dark, unknown is chequered, and the scale is written below."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

_INK, _PAPER, _UNKNOWN_LIGHT, _UNKNOWN_DARK = range(4)
_FIRST = 4
"""The first palette entries are for what is not depth; the ramp has the others."""
_GREYS = ((34, 34, 34), (255, 255, 255), (216, 216, 216), (190, 190, 190))
_DOTS = (31599, 29850, 29671, 31143, 18925, 31183, 31695, 9383, 31727, 31215, 8192, 24512, 0)
_GLYPHS = dict(zip("0123456789.m ", _DOTS, strict=True))
"""Three by five dots each, the lowest bit first: enough to write a depth."""


def colour_ramp(size: int, lightest: float = 0.95, darkest: float = 0.28) -> Pixels:
    """Colours from light to dark that look evenly spaced: a straight line in OKLCH, hue from yellow to violet."""
    at = np.linspace(0, 1, size)
    lightness = lightest + (darkest - lightest) * at
    hue = np.radians(100 + 195 * at)
    chroma = 0.1  # what every one of these hues has on a screen
    lab = np.stack([lightness, chroma * np.cos(hue), chroma * np.sin(hue)])
    cone = np.array([[1, 0.39634, 0.21580], [1, -0.10556, -0.06385], [1, -0.08948, -1.29149]]) @ lab
    linear = (
        np.array(
            [
                [4.07674, -3.30771, 0.23097],
                [-1.26844, 2.60976, -0.34132],
                [-0.00420, -0.70342, 1.70761],
            ]
        )
        @ cone**3
    )
    linear = np.clip(linear, 0, 1)
    shown = np.where(linear > 0.0031308, 1.055 * linear ** (1 / 2.4) - 0.055, 12.92 * linear)
    return np.round(shown.T * 255).astype(np.uint8)


def depth_png(depth_m: NDArray[Any], *, at_least_px: int = 480, title: str = "") -> bytes:
    """The image, enlarged to at least that many pixels on its longer side; NaN is unknown."""
    scale = max(math.ceil(at_least_px / max(max(depth_m.shape, default=1), 1)), 1)
    seen = np.isfinite(depth_m)
    near, far = (
        (float(depth_m[seen].min()), float(depth_m[seen].max())) if seen.any() else (0.0, 0.0)
    )
    image = np.repeat(np.repeat(_indexed(depth_m, seen, near, far), scale, axis=0), scale, axis=1)
    unknown = np.repeat(np.repeat(~seen, scale, axis=0), scale, axis=1)
    image[unknown] = _chequered(image.shape)[unknown]
    text = {"Title": title, "Comment": f"depth from {near:.3f} m to {far:.3f} m"}
    return _encode(np.vstack([image, _legend(image.shape[1], near, far)]), _palette(), text)


def _palette() -> Pixels:
    return np.vstack([np.array(_GREYS, np.uint8), colour_ramp(256 - _FIRST)])


def _indexed(depth_m: NDArray[Any], seen: NDArray[np.bool_], near: float, far: float) -> Pixels:
    share = np.where(seen, depth_m - near, 0) / max(far - near, 1e-6)
    return (_FIRST + np.round(share * (255 - _FIRST))).astype(np.uint8)


def _chequered(shape: tuple[int, ...], side: int = 6) -> Pixels:
    rows, columns = np.indices(shape[:2]) // side
    return np.where((rows + columns) % 2, _UNKNOWN_LIGHT, _UNKNOWN_DARK).astype(np.uint8)


def _legend(width: int, near: float, far: float, dot: int = 3) -> Pixels:
    """The ramp with the nearest and the farthest depth beside it."""
    strip = np.full((11 * dot, width), _PAPER, np.uint8)
    low, high = _written(f"{near:.2f} m", dot), _written(f"{far:.2f} m", dot)
    edge = 3 * dot
    if width < low.shape[1] + high.shape[1] + 6 * edge:
        return strip[:0]
    strip[edge : edge + low.shape[0], edge : edge + low.shape[1]] = low
    strip[edge : edge + high.shape[0], width - edge - high.shape[1] : width - edge] = high
    first, last = 2 * edge + low.shape[1], width - 2 * edge - high.shape[1]
    strip[edge : edge + 5 * dot, first:last] = np.linspace(_FIRST, 255, last - first).astype(
        np.uint8
    )
    return strip


def _written(text: str, dot: int) -> Pixels:
    glyphs = [_glyph(_GLYPHS[each]) for each in text]
    line = np.hstack([np.hstack([each, np.zeros((5, 1), bool)]) for each in glyphs])[:, :-1]
    dots = np.repeat(np.repeat(line, dot, axis=0), dot, axis=1)
    return np.where(dots, _INK, _PAPER).astype(np.uint8)


def _glyph(bits: int) -> NDArray[np.bool_]:
    return np.array([bits >> place & 1 for place in range(15)], bool).reshape(5, 3)


def _encode(image: Pixels, palette: Pixels, text: Mapping[str, str]) -> bytes:
    height, width = image.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    rows = np.hstack([np.zeros((height, 1), np.uint8), image])
    words = [f"{key}\0{value}".encode("latin-1", "replace") for key, value in text.items() if value]
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", header),
            _chunk(b"PLTE", palette.tobytes()),
            *(_chunk(b"tEXt", each) for each in words),
            _chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)),
            _chunk(b"IEND", b""),
        ]
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
