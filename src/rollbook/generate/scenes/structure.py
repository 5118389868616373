"""The structure of a flat: walls, floor, ceiling, reveals, door leaves and window bars, with the class of each face.

The flat is a lattice of solid and open boxes. Rooms, doorways and windows are painted into it as open. The surface is
where an open box meets a solid one, so reveals, lintels and thresholds need no extra code. Outer walls have no outside
face, because no camera sees it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollbook.generate.scenes.floor_plan import DOOR_HEIGHT_M, FloorPlan, Opening, paint
from rollbook.generate.scenes.solids import Array, Solid, box, cut_lines, joined, lattice_surface

STRUCTURE = ("wall", "floor", "ceiling", "door", "door_frame", "window_frame")
"""Classes of the structure; the position of a class is its sem id."""
WALL, FLOOR, CEILING, DOOR, DOOR_FRAME, WINDOW_FRAME = range(len(STRUCTURE))

_SOLID, _PANEL, _OUTSIDE, _ROOM, _DOORWAY, _WINDOW = range(6)
"""Kinds of lattice boxes. From `_ROOM` on they are open; a panel is a shut door."""


def structure_of(plan: FloorPlan, edge: float) -> tuple[Solid, NDArray[np.int32]]:
    """Everything except objects, and the class of each face."""
    shell, classes = _shell(plan, edge)
    leaves = [_leaf(row, edge) for row in plan.leaves()]
    bars = [bar for window in plan.windows for bar in _bars(window, edge)]
    extra = [(solid, DOOR) for solid in leaves] + [(solid, WINDOW_FRAME) for solid in bars]
    ids = [classes, *(np.full(len(solid.faces), sem, np.int32) for solid, sem in extra)]
    return joined([shell, *(solid for solid, _ in extra)]), np.concatenate(ids)


def _shell(plan: FloorPlan, edge: float) -> tuple[Solid, NDArray[np.int32]]:
    stops = [0.0, plan.ceiling_m]
    for opening in (*plan.doors, *plan.windows):
        stops += [opening.low_m, opening.high_m]
    lines = (*(cut_lines(each, edge) for each in plan.lines), cut_lines(stops, edge))
    space = _painted(plan, lines)
    masks, classes = [], []
    for axis in range(3):
        # below the floor and above the ceiling is solid; beyond the sides is outside
        beyond = _SOLID if axis == 2 else _OUTSIDE
        width = [(1, 1) if k == axis else (0, 0) for k in range(3)]
        padded = np.pad(space, width, constant_values=beyond)
        low = np.take(padded, range(padded.shape[axis] - 1), axis)
        high = np.take(padded, range(1, padded.shape[axis]), axis)
        up = (high >= _ROOM) & (low <= _PANEL)
        down = (low >= _ROOM) & (high <= _PANEL)
        masks.append(up.astype(np.int8) - down.astype(np.int8))
        classes.append(_classes(np.where(up, high, low), np.where(up, low, high), axis, up))
    solid, places = lattice_surface(lines, masks)
    return solid, np.concatenate([each.ravel() for each in classes])[places].astype(np.int32)


def _painted(plan: FloorPlan, lines: tuple[Array, ...]) -> NDArray[np.int8]:
    """The kind of each box of the lattice."""
    space = np.full([len(each) - 1 for each in lines], _SOLID, np.int8)
    for room in plan.rooms:
        for part in room.parts:
            paint(space, lines, part, _ROOM, (0.0, plan.ceiling_m))
    for opening in plan.doors:
        heights = (opening.low_m, opening.high_m)
        paint(space, lines, opening.rect, _DOORWAY, heights)
        if opening.shut:
            paint(space, lines, opening.halves[1], _PANEL, heights)
    for opening in plan.windows:
        paint(space, lines, opening.rect, _WINDOW, (opening.low_m, opening.high_m))
    return space


def _classes(
    open_kind: NDArray[np.int8], solid_kind: NDArray[np.int8], axis: int, up: NDArray[np.bool_]
) -> NDArray[np.int8]:
    """The class of each cell face across one axis, by the two boxes that it separates."""
    level = np.where(up, FLOOR, CEILING) if axis == 2 else np.full(up.shape, WALL)
    frame = np.where(up & (axis == 2), FLOOR, DOOR_FRAME)
    found = np.select(
        [solid_kind == _PANEL, open_kind == _DOORWAY, open_kind == _WINDOW],
        [np.full(up.shape, DOOR), frame, np.full(up.shape, WINDOW_FRAME)],
        level,
    )
    return found.astype(np.int8)


def _leaf(row: Array, edge: float) -> Solid:
    x, y, half, thick, turn = row.tolist()
    leaf = box((-half, -thick, 0.01), (half, thick, DOOR_HEIGHT_M - 0.01), edge)
    return leaf.turned(turn).moved((x, y, 0))


def _bars(window: Opening, edge: float) -> list[Solid]:
    """A frame in the middle of the wall's depth, and one vertical bar between the panes."""
    across, wide, deep = 1 - window.axis, 0.06, 0.05
    middle = float(window.centre[window.axis])
    start, end = window.rect[across], window.rect[across + 2]
    low, high, half = window.low_m, window.high_m, (start + end) / 2
    spans = [
        (start, start + wide, low, high),
        (end - wide, end, low, high),
        (half - wide / 2, half + wide / 2, low + wide, high - wide),
        (start + wide, end - wide, low, low + wide),
        (start + wide, end - wide, high - wide, high),
    ]
    bars = []
    for a, b, z0, z1 in spans:
        corners = [[0.0, 0.0, z0], [0.0, 0.0, z1]]
        corners[0][window.axis], corners[1][window.axis] = middle - deep / 2, middle + deep / 2
        corners[0][across], corners[1][across] = a, b
        bars.append(box(corners[0], corners[1], edge))
    return bars
