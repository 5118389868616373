"""A depth image as a PNG file: near is bright, far is dark, unknown is a checkerboard, and a scale is drawn below."""

from __future__ import annotations

import math
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.lazy import needs
from rollbook.store.audit.charts import colour_ramp

_INK, _PAPER, _UNKNOWN_LIGHT, _UNKNOWN_DARK = range(4)
_FIRST = 4
"""The first palette entries are for what is not depth. The colour ramp has the others."""
_GREYS = ((34, 34, 34), (255, 255, 255), (216, 216, 216), (190, 190, 190))
_SCALE_HEIGHT = 33
_TEXT_WIDTH = 76


def depth_png(
    depth_m: NDArray[Any],
    *,
    at_least_px: int = 480,
    title: str = "",
    limits: tuple[float, float] | None = None,
) -> bytes:
    """Draw a depth image. Its longer side gets at least `at_least_px` pixels; NaN is unknown depth. `limits` are the
    depths at the ends of the colours; without them, the nearest and the farthest of the image."""
    with needs("drawing a depth image"):
        from PIL import Image, ImageDraw, ImageFont
        from PIL.PngImagePlugin import PngInfo
    enlarged = max(math.ceil(at_least_px / max(max(depth_m.shape, default=1), 1)), 1)
    depth = depth_m.repeat(enlarged, axis=0).repeat(enlarged, axis=1)
    height, width = depth.shape
    seen = np.isfinite(depth)
    near, far = (float(depth[seen].min()), float(depth[seen].max())) if seen.any() else (0.0, 0.0)
    near, far = limits or (near, far)
    share = np.clip(np.where(seen, depth - near, 0) / max(far - near, 1e-6), 0, 1)
    rows, columns = np.indices(depth.shape) // 6
    unknown = np.where((rows + columns) % 2, _UNKNOWN_LIGHT, _UNKNOWN_DARK)
    pixels = np.where(seen, _FIRST + np.round(share * (255 - _FIRST)), unknown).astype(np.uint8)

    if width >= 3 * _TEXT_WIDTH:
        scale = np.full((_SCALE_HEIGHT, width), _PAPER, np.uint8)
        bar = slice(_TEXT_WIDTH, width - _TEXT_WIDTH)
        scale[9:-9, bar] = np.linspace(_FIRST, 255, bar.stop - bar.start)
        pixels = np.vstack([pixels, scale])
    image = Image.fromarray(pixels)
    image.putpalette(np.vstack([np.array(_GREYS, np.uint8), colour_ramp(256 - _FIRST)]).tobytes())
    if image.height > height:
        draw, font = ImageDraw.Draw(image), ImageFont.load_default(16)
        middle = height + _SCALE_HEIGHT / 2
        draw.text((9, middle), f"{near:.2f} m", _INK, font, anchor="lm")
        draw.text((width - 9, middle), f"{far:.2f} m", _INK, font, anchor="rm")

    texts = PngInfo()
    texts.add_text("Title", title.encode("latin-1", "replace"))
    texts.add_text("Comment", f"depth from {near:.3f} m to {far:.3f} m")
    file = BytesIO()
    image.save(file, "png", pnginfo=texts, compress_level=9)
    return file.getvalue()
