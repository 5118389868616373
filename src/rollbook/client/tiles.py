"""Tile: the place of one camera in a picture that shows several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollbook.client.video import Picture


@dataclass(frozen=True, slots=True)
class Tile:
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
