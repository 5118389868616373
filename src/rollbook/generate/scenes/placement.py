"""Placement of objects. No object overlaps another, stands in front of a door or blocks the only passage.

Several poses are drawn and the first that fits is used. A footprint is [5]: centre, half sides, yaw.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.errors import ConfigurationError
from rollbook.generate.scenes.floor_plan import FloorPlan, Opening
from rollbook.generate.scenes.pieces import Piece, Support
from rollbook.generate.scenes.walk import WalkGrid, footprints

Array = NDArray[np.float64]
Rng = np.random.Generator

BODY_RADIUS_M = 0.25
"""Radius of a person who must be able to walk through the furnished flat."""
_DRAWS = 24
_WITH_A_FRONT = frozenset({"monitor", "tv", "laptop"})
_DOOR_DEPTH_M = 0.95
_WINDOW_DEPTH_M = 0.3
_WALL_GAP_M = 0.02
_CEILING_GAP_M = 0.02
_LEAST_FLOOR_LEFT = 0.35
"""Least share of the empty flat's free floor that stays free."""
_LEAST_IN_ONE_PIECE = 0.85
"""Least share of the free floor that is reachable."""


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    piece: Piece
    x: float
    y: float
    z: float
    yaw: float
    room: int
    on: int = -1
    """Index of the object on which it stands; -1 for the floor or a wall."""

    @property
    def footprint(self) -> Array:
        return np.array([self.x, self.y, *(self.piece.size[:2] / 2).tolist(), self.yaw])

    @property
    def top(self) -> float:
        return self.z + float(self.piece.size[2])

    def world(self, x: float, y: float) -> tuple[float, float]:
        """World coordinates of a point in the object's frame."""
        c, s = math.cos(self.yaw), math.sin(self.yaw)
        return self.x + c * x - s * y, self.y + s * x + c * y


def overlaps(one: ArrayLike, other: ArrayLike, gap_m: float = 0.0) -> NDArray[np.bool_]:
    """[m, n]: which footprints [m, 5] are closer than about the gap to which of [n, 5].

    Two rectangles are apart if they are apart along a side of either.
    """
    a, b = np.asarray(one, np.float64).reshape(-1, 5), np.asarray(other, np.float64).reshape(-1, 5)
    a = a + np.array([0, 0, gap_m, gap_m, 0])
    away = b[None, :, :2] - a[:, None, :2]
    apart = np.zeros((len(a), len(b)), bool)
    turn = b[None, :, 4] - a[:, None, 4]
    c, s = np.abs(np.cos(turn)), np.abs(np.sin(turn))
    for own, theirs, yaw in (
        (a[:, None], b[None], a[:, None, 4]),
        (b[None], a[:, None], b[None, :, 4]),
    ):
        along = np.abs(away[..., 0] * np.cos(yaw) + away[..., 1] * np.sin(yaw))
        across = np.abs(away[..., 1] * np.cos(yaw) - away[..., 0] * np.sin(yaw))
        reach_along = own[..., 2] + theirs[..., 2] * c + theirs[..., 3] * s
        reach_across = own[..., 3] + theirs[..., 2] * s + theirs[..., 3] * c
        apart |= (along > reach_along) | (across > reach_across)
    return ~apart


class Furnished:
    """A flat during furnishing: the placed objects and the remaining free floor."""

    def __init__(self, plan: FloorPlan) -> None:
        self.plan = plan
        self.placed: list[Placed] = []
        self.grid = WalkGrid.over(plan.size, plan.solid).without(plan.leaves())
        self._outside = [footprints(plan.outside_of(number)) for number in range(len(plan.rooms))]
        self._clear = np.concatenate([footprints(plan.keep_clear(_DOOR_DEPTH_M)), plan.leaves()])
        self._windows = footprints([_floor_at_window(window) for window in plan.windows])
        self._floor = np.zeros((0, 5))
        self._top = plan.ceiling_m - _CEILING_GAP_M
        self._least_cells = _LEAST_FLOOR_LEFT * np.count_nonzero(self.grid.floor(BODY_RADIUS_M))
        self._ways = [self.grid.cell_of(door.centre) for door in plan.doors if not door.shut]
        if not self._passable(self.grid):
            message = (
                f"SceneConfig.size_m leaves no free floor to walk from room to room: "
                f"{len(plan.rooms)} rooms in {plan.size[0]:.1f} x {plan.size[1]:.1f} m, expected fewer or larger ones"
            )
            raise ConfigurationError(message=message)

    def try_floor(
        self, piece: Piece, room: int, poses: Array, gap_m: float, *, blocks: bool = True
    ) -> Placed | None:
        """Places the piece at the first pose of [m, 3] (x, y, yaw) that fits. `blocks`: the piece blocks walking."""
        feet = _feet(piece, poses)
        # a rug may lie in front of a door
        clear = self._clear if blocks else self.plan.leaves()
        bad = overlaps(feet, self._floor, gap_m).any(axis=1)
        # furniture may stand closer to a wall than to other furniture
        wall_gap = gap_m if gap_m > 0.2 else 0.0
        bad |= overlaps(feet, self._outside[room], wall_gap).any(axis=1)
        bad |= overlaps(feet, clear).any(axis=1)
        if piece.size[2] > 1.0:
            bad |= overlaps(feet, self._windows).any(axis=1) | (piece.size[2] > self._top)
        for row in np.flatnonzero(~bad).tolist():
            grid = self.grid.without(feet[row]) if blocks else self.grid
            if not blocks or self._passable(grid):
                self.grid = grid
                return self._add(piece, feet[row], 0.0, room)
        return None

    def try_wall(self, piece: Piece, room: int, poses: Array, z: float) -> Placed | None:
        """Hangs the piece at a height where there is no door, window or taller furniture."""
        if not len(poses) or z + piece.size[2] > self._top:
            return None
        feet = _feet(piece, poses)
        taller = [each.footprint for each in self.placed if each.top > z - 0.05]
        others = np.concatenate([self._clear, self._windows, np.array(taller).reshape(-1, 5)])
        bad = overlaps(feet, others, 0.05).any(axis=1)
        bad |= overlaps(feet, self._outside[room]).any(axis=1)
        for row in np.flatnonzero(~bad).tolist():
            grid = self.grid.without(feet[row])
            if self._passable(grid):
                self.grid = grid
                return self._add(piece, feet[row], z, room)
        return None

    def try_on(self, piece: Piece, number: int, support: Support, rng: Rng) -> Placed | None:
        """Places the piece on an object, beside the others there. A piece with a front is turned like the object."""
        holder = self.placed[number]
        z = holder.z + support.z
        if piece.size[2] > min(support.height - 0.01, self._top - z):
            return None
        in_front = piece.name in _WITH_A_FRONT
        in_line = in_front or (piece.name == "books" and math.isfinite(support.height))
        yaw = np.zeros(_DRAWS) if in_line else rng.uniform(-math.pi, math.pi, _DRAWS)
        c, s = np.abs(np.cos(yaw)), np.abs(np.sin(yaw))
        half_x, half_y = (piece.size[:2] / 2).tolist()
        reach = np.column_stack([half_x * c + half_y * s, half_x * s + half_y * c]) + 0.01
        low, high = np.array(support.rect[:2]) + reach, np.array(support.rect[2:]) - reach
        at = low + rng.random((_DRAWS, 2)) * (high - low)
        if in_front:
            at[:, 1] = high[:, 1] - rng.uniform(0, 0.05, _DRAWS)
        placed_at = np.array([holder.world(x, y) for x, y in at.tolist()])
        feet = _feet(piece, np.column_stack([placed_at, yaw + holder.yaw]))
        beside = [
            each.footprint for each in self.placed if each.on == number and abs(each.z - z) < 1e-6
        ]
        bad = overlaps(feet, np.array(beside).reshape(-1, 5), 0.01).any(axis=1)
        bad |= (high < low).any(axis=1)
        for row in np.flatnonzero(~bad)[:1].tolist():
            return self._add(piece, feet[row], z, holder.room, number)
        return None

    def _add(self, piece: Piece, foot: Array, z: float, room: int, on: int = -1) -> Placed:
        x, y, _, _, yaw = foot.tolist()
        placed = Placed(piece, x, y, z, yaw, room, on)
        self.placed.append(placed)
        if z == 0:
            self._floor = np.concatenate([self._floor, foot[None]])
        return placed

    def _passable(self, grid: WalkGrid) -> bool:
        """Whether enough floor is left, nearly all of it is connected, and every doorway leads to it."""
        piece = grid.floor(BODY_RADIUS_M)
        cells = np.count_nonzero(piece)
        all_cells = np.count_nonzero(grid.clearance >= BODY_RADIUS_M)
        enough = cells >= max(self._least_cells, _LEAST_IN_ONE_PIECE * all_cells)
        return bool(enough and all(piece[cell] for cell in self._ways))


def poses_at_walls(
    plan: FloorPlan, room: int, piece: Piece, rng: Rng, *, cornered: bool = False
) -> Array:
    """[m, 3]: poses with the back to a wall of the room; with `cornered`, at one end of the wall."""
    width, depth = piece.size[:2].tolist()
    walls = [wall for wall in plan.rooms[room].walls if wall.length >= width + 2 * _WALL_GAP_M]
    if not walls:
        return np.zeros((0, 3))
    share = np.array([wall.length for wall in walls])
    poses = []
    for pick in rng.choice(len(walls), _DRAWS, p=share / share.sum()).tolist():
        wall = walls[pick]
        room_for = wall.length - width - 2 * _WALL_GAP_M
        slide = float(rng.integers(2)) if cornered else rng.random()
        at = width / 2 + _WALL_GAP_M + slide * room_for
        off = depth / 2 + _WALL_GAP_M
        x = wall.start[0] + wall.along[0] * at + wall.inward[0] * off
        y = wall.start[1] + wall.along[1] * at + wall.inward[1] * off
        poses.append((x, y, math.atan2(wall.inward[0], -wall.inward[1])))
    return np.array(poses)


def poses_in_room(plan: FloorPlan, room: int, rng: Rng, *, square: bool = False) -> Array:
    """[m, 3]: poses anywhere in the room; with `square`, parallel to its walls."""
    x0, y0, x1, y1 = plan.rooms[room].bounds
    yaw = rng.uniform(-math.pi, math.pi, _DRAWS)
    if square:
        yaw = rng.integers(4, size=_DRAWS) * (math.pi / 2) + rng.normal(0, 0.05, _DRAWS)
    return np.column_stack([rng.uniform(x0, x1, _DRAWS), rng.uniform(y0, y1, _DRAWS), yaw])


def poses_before(anchor: Placed, piece: Piece, gap_m: float, rng: Rng) -> Array:
    """[m, 3]: poses in front of an object, facing it."""
    off = -(anchor.piece.size[1] + piece.size[1]) / 2 - gap_m - rng.uniform(0, 0.08, _DRAWS)
    side = rng.normal(0, 0.06, _DRAWS) * anchor.piece.size[0]
    turn = anchor.yaw + math.pi + rng.normal(0, 0.08, _DRAWS)
    at = [anchor.world(x, y) for x, y in zip(side.tolist(), off.tolist(), strict=True)]
    return np.column_stack([np.array(at), turn])


def poses_beside(anchor: Placed, piece: Piece, rng: Rng) -> Array:
    """[m, 3]: poses left or right of an object, with the backs in line."""
    off = (anchor.piece.size[0] + piece.size[0]) / 2 + rng.uniform(0.02, 0.1, _DRAWS)
    side = rng.choice([-1.0, 1.0], _DRAWS)
    back = (anchor.piece.size[1] - piece.size[1]) / 2
    at = [anchor.world(x, back) for x in (off * side).tolist()]
    return np.column_stack([np.array(at), np.full(_DRAWS, anchor.yaw)])


def poses_around(anchor: Placed, piece: Piece, rng: Rng) -> Array:
    """[m, 3]: poses on any side of a table, facing it."""
    width, depth = anchor.piece.size[:2].tolist()
    poses = []
    for side in rng.integers(4, size=_DRAWS).tolist():
        long, reach = (width, depth) if side % 2 == 0 else (depth, width)
        slot = rng.uniform(-0.5, 0.5) * max(long - piece.size[0], 0)
        away = (reach + piece.size[1]) / 2 + rng.uniform(0.03, 0.12)
        turn = side * math.pi / 2
        x = math.cos(turn) * slot - math.sin(turn) * away
        y = math.sin(turn) * slot + math.cos(turn) * away
        yaw = anchor.yaw + turn + rng.normal(0, 0.06)
        poses.append((*anchor.world(x, y), yaw))
    return np.array(poses)


def _feet(piece: Piece, poses: Array) -> Array:
    """[m, 5]: the footprint of a piece at poses [m, 3]."""
    half = np.broadcast_to(piece.size[:2] / 2, (len(poses), 2))
    return np.column_stack([poses[:, :2], half, poses[:, 2]])


def _floor_at_window(window: Opening) -> tuple[float, ...]:
    """The floor on both sides of a window."""
    rect = list(window.rect)
    rect[window.axis] -= _WINDOW_DEPTH_M
    rect[window.axis + 2] += _WINDOW_DEPTH_M
    return tuple(rect)
