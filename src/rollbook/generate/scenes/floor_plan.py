"""FloorPlan: the rooms, doors and windows of a flat, as rectangles seen from above."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.errors import ConfigurationError
from rollbook.generate.scenes.solids import Array

Rect = tuple[float, float, float, float]
"""Lower x, lower y, upper x, upper y."""

OUTER_WALL_M = 0.24
INNER_WALL_M = 0.12
SMALLEST_ROOM_M = 1.9
_DOOR_WIDTH_M = 0.92
DOOR_HEIGHT_M = 2.05
LEAF_M = 0.04
_WIDE_M = 1.2
"""Least length of the shared wall of two rectangles that may become one room."""
_LEAF_REACH_M = 1.6
"""Least distance from the middle of a leaf to another doorway, so that two leaves cannot collide."""


@dataclass(frozen=True, slots=True)
class Wall:
    """A straight piece of a room's wall, against which furniture may stand."""

    start: tuple[float, float]
    along: tuple[float, float]
    inward: tuple[float, float]
    length: float


@dataclass(frozen=True, slots=True)
class Room:
    parts: tuple[Rect, ...]
    """One rectangle, or the rectangles of an L-shaped room."""
    walls: tuple[Wall, ...] = ()

    @property
    def area(self) -> float:
        return sum((x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in self.parts)

    @property
    def bounds(self) -> Rect:
        sides = np.array(self.parts)
        return (*sides[:, :2].min(axis=0).tolist(), *sides[:, 2:].max(axis=0).tolist())


@dataclass(frozen=True, slots=True)
class Opening:
    """A door or window: a hole through the whole depth of a wall."""

    rect: Rect
    axis: int
    """The axis that leads through the opening: 0 is x."""
    low_m: float
    high_m: float
    rooms: tuple[int, ...]
    """The rooms on its lower and upper side, or the one room that it leads out of."""
    leaf: tuple[float, float, float] | None = None
    """The leaf of a door that stands ajar: hinge x and y, and its direction from the hinge in radians."""
    shut: bool = False

    @property
    def halves(self) -> tuple[Rect, Rect]:
        """The two halves of the wall's depth: the one at the room, and the one away from it."""
        low, high = list(self.rect), list(self.rect)
        low[self.axis + 2] = high[self.axis] = float(self.centre[self.axis])
        # an outer wall on the lower side has negative coordinates
        return (_rect(high), _rect(low)) if self.rect[self.axis] < 0 else (_rect(low), _rect(high))

    @property
    def width(self) -> float:
        across = 1 - self.axis
        return self.rect[across + 2] - self.rect[across]

    @property
    def centre(self) -> Array:
        return np.array([(self.rect[0] + self.rect[2]) / 2, (self.rect[1] + self.rect[3]) / 2])


@dataclass(frozen=True, slots=True, eq=False)
class FloorPlan:
    size: tuple[float, float]
    ceiling_m: float
    rooms: tuple[Room, ...]
    doors: tuple[Opening, ...]
    """The doors between rooms, and the entrance, which is shut."""
    windows: tuple[Opening, ...]
    solid: Array
    """[n, 4]: rectangles that cover all walls, seen from above."""
    lines: tuple[Array, Array] = field(repr=False)
    """All coordinates at which something begins or ends, along x and along y."""
    _room_of: NDArray[np.int8] = field(repr=False)

    def outside_of(self, room: int) -> Array:
        """[n, 4]: rectangles that cover everything outside a room."""
        return _rects_of(self.lines, self._room_of != room)

    def keep_clear(self, depth_m: float) -> Array:
        """[n, 4]: the floor in front of every door, on both sides."""
        found = []
        for door in self.doors:
            low, high = list(door.rect), list(door.rect)
            low[door.axis + 2], low[door.axis] = low[door.axis], low[door.axis] - depth_m
            high[door.axis], high[door.axis + 2] = (
                high[door.axis + 2],
                high[door.axis + 2] + depth_m,
            )
            found += [low, high]
        return np.array(found).reshape(-1, 4)

    def leaves(self) -> Array:
        """[n, 5]: centre x and y, half length, half thickness and direction of each open door leaf."""
        found = [
            (
                x + math.cos(turn) * d.width / 2,
                y + math.sin(turn) * d.width / 2,
                d.width / 2,
                LEAF_M / 2,
                turn,
            )
            for d in self.doors
            if d.leaf is not None
            for x, y, turn in [d.leaf]
        ]
        return np.array(found).reshape(-1, 5)


def plan_of(
    rng: np.random.Generator,
    *,
    rooms: int,
    size: tuple[float, float],
    ceiling_m: float,
    l_shaped: float,
    doors_ajar: float,
) -> FloorPlan:
    """A flat divided into rooms by straight walls. With probability `l_shaped`, two neighbours become one room."""
    made = _rooms(rng, rooms, size, rng.random() < l_shaped)
    inner = _inner_doors(rng, made)
    ways = [*inner, _entrance(rng, made, inner, size)]
    doors = [_with_leaf(rng, door, ways, doors_ajar) for door in ways]
    windows = _windows(rng, made, doors, size)
    lines = _plan_lines(made, [*doors, *windows], size)
    room_of = np.full([len(each) - 1 for each in lines], -1, np.int8)
    for number, room in enumerate(made):
        for part in room.parts:
            paint(room_of, lines, part, value=number)
    standing = room_of < 0
    for door in doors:
        if not door.shut:
            paint(standing, lines, door.rect, value=False)
    placed = tuple(
        replace(room, walls=_walls_of(lines, room_of == number)) for number, room in enumerate(made)
    )
    solid = _rects_of(lines, standing)
    return FloorPlan(size, ceiling_m, placed, tuple(doors), tuple(windows), solid, lines, room_of)


# ------------------------------------------------------------------------------------------ rooms


def _rooms(
    rng: np.random.Generator, count: int, size: tuple[float, float], l_shaped: bool
) -> list[Room]:
    """Rooms from repeated cuts of the largest rectangle. An L needs one more cut, whose two parts are joined."""
    leaves = [(0.0, 0.0, *size)]
    wanted = max(count + 1, 3) if l_shaped else count
    while len(leaves) < wanted:
        cut = _cut(rng, leaves)
        if cut is None:
            break
        leaves = cut
    if len(leaves) < count:
        message = (
            f"SceneConfig.rooms is {count}, expected at most {len(leaves)}: "
            f"more do not fit into {size[0]:.1f} x {size[1]:.1f} m"
        )
        raise ConfigurationError(message=message)
    found = [Room((leaf,)) for leaf in leaves]
    if len(leaves) > count:
        found = _with_l(rng, found)
    return found[:count]


def _cut(rng: np.random.Generator, leaves: list[Rect]) -> list[Rect] | None:
    """Cuts the largest rectangle that is long enough across its longer side, leaving space for the wall."""
    least = 2 * SMALLEST_ROOM_M + INNER_WALL_M
    order = sorted(range(len(leaves)), key=lambda k: -_area(leaves[k]))
    for k in order:
        x0, y0, x1, y1 = leaves[k]
        axis = 0 if x1 - x0 >= y1 - y0 else 1
        low, length = leaves[k][axis], leaves[k][axis + 2] - leaves[k][axis]
        if length < least:
            continue
        margin = (SMALLEST_ROOM_M + INNER_WALL_M / 2) / length
        share = float(np.clip(rng.uniform(0.38, 0.62), margin, 1 - margin))
        at = round(low + share * length, 2)
        first, second = list(leaves[k]), list(leaves[k])
        first[axis + 2], second[axis] = at - INNER_WALL_M / 2, at + INNER_WALL_M / 2
        return [*leaves[:k], _rect(first), _rect(second), *leaves[k + 1 :]]
    return None


def _with_l(rng: np.random.Generator, rooms: list[Room]) -> list[Room]:
    """Joins two neighbours into one room, an L if possible. It comes first; the others follow by decreasing area."""
    pairs = [
        (one, other, gap)
        for one in range(len(rooms))
        for other in range(one + 1, len(rooms))
        for gap in [_gap(rooms[one].parts[0], rooms[other].parts[0])]
        if gap is not None and _span(*gap) > _WIDE_M
    ]
    ls = [p for p in pairs if _is_l(rooms[p[0]].parts[0], rooms[p[1]].parts[0], p[2][0])]
    one, other, gap = (ls or pairs)[int(rng.integers(len(ls or pairs)))]
    merged = Room((rooms[one].parts[0], rooms[other].parts[0], gap[0]))
    rest = [room for number, room in enumerate(rooms) if number not in (one, other)]
    return [merged, *sorted(rest, key=lambda room: -room.area)]


def _gap(one: Rect, other: Rect) -> tuple[Rect, int] | None:
    """The piece of wall that two rectangles share, and the axis across it; None if they share none."""
    for axis in (0, 1):
        across = 1 - axis
        low, high = (one, other) if one[axis] < other[axis] else (other, one)
        if abs(high[axis] - low[axis + 2] - INNER_WALL_M) > 1e-6:
            continue
        start = max(one[across], other[across])
        end = min(one[across + 2], other[across + 2])
        if end - start > 1e-6:
            shared = [0.0] * 4
            shared[axis], shared[axis + 2] = low[axis + 2], high[axis]
            shared[across], shared[across + 2] = start, end
            return _rect(shared), axis
    return None


def _is_l(one: Rect, other: Rect, gap: Rect) -> bool:
    """Whether the two rectangles do not form one rectangle."""
    sides = np.array([one, other])
    hull = sides[:, 2:].max(axis=0) - sides[:, :2].min(axis=0)
    return bool(hull.prod() - _area(one) - _area(other) - _area(gap) > 1.0)


# --------------------------------------------------------------------------------- doors, windows


def _inner_doors(rng: np.random.Generator, rooms: Sequence[Room]) -> list[Opening]:
    """Doors that make every room reachable, and sometimes a second connection."""
    reached, doors = {0}, []
    possible = [
        (one, other, gap)
        for one in range(len(rooms))
        for other in range(one + 1, len(rooms))
        for part in rooms[one].parts
        for theirs in rooms[other].parts
        if (gap := _gap(part, theirs)) is not None and _span(*gap) > _DOOR_WIDTH_M + 0.3
    ]
    for pick in rng.permutation(len(possible)).tolist() * len(rooms):
        one, other, gap = possible[pick]
        if (one in reached) != (other in reached):
            reached |= {one, other}
            doors.append(_door(rng, (one, other), *gap))
    linked = {door.rooms for door in doors}
    for one, other, gap in possible:
        if (one, other) not in linked and rng.random() < 0.25:
            linked.add((one, other))
            doors.append(_door(rng, (one, other), *gap))
    if len(reached) < len(rooms):
        message = f"SceneConfig.rooms is {len(rooms)}, expected fewer: there is no wall wide enough for a door"
        raise ConfigurationError(message=message)
    return doors


def _door(rng: np.random.Generator, rooms: tuple[int, int], gap: Rect, axis: int) -> Opening:
    """A door near one end of the wall, or anywhere in it."""
    across = 1 - axis
    low, high = gap[across] + 0.15, gap[across + 2] - 0.15 - _DOOR_WIDTH_M
    start = float(rng.choice([low, high, rng.uniform(low, high)]))
    rect = list(gap)
    rect[across], rect[across + 2] = start, start + _DOOR_WIDTH_M
    return Opening(_rect(rect), axis, 0.0, DOOR_HEIGHT_M, rooms)


def _with_leaf(
    rng: np.random.Generator, door: Opening, ways: Sequence[Opening], chance: float
) -> Opening:
    """The door with a leaf that opens into one of the rooms, unless another door is near."""
    draw, hung_high, into_high, opened = rng.random(4).tolist()
    if draw >= chance or door.shut:
        return door
    across, side = 1 - door.axis, 1 if into_high > 0.5 else -1
    face = door.rect[door.axis + 2] if side > 0 else door.rect[door.axis]
    end, inward = (door.rect[across + 2], -1) if hung_high > 0.5 else (door.rect[across], 1)
    angle = math.radians(75 + 25 * opened)
    hinge, direction = np.zeros(2), np.zeros(2)
    hinge[door.axis], hinge[across] = face + side * LEAF_M, end + inward * LEAF_M / 2
    direction[door.axis], direction[across] = side * math.sin(angle), inward * math.cos(angle)
    middle = hinge + direction * door.width / 2
    near = [other for other in ways if np.hypot(*(other.centre - middle)) < _LEAF_REACH_M]
    if near != [door]:
        return door
    turn = math.atan2(direction[1], direction[0])
    return replace(door, leaf=(float(hinge[0]), float(hinge[1]), turn))


def _outer_sides(room: Room, size: tuple[float, float]) -> list[tuple[Rect, int]]:
    """The pieces of outer wall at a room's parts, and the axis across each."""
    found = []
    for part in room.parts[:2]:
        for axis in (0, 1):
            for end, at in ((axis, 0.0), (axis + 2, size[axis])):
                if abs(part[end] - at) < 1e-6:
                    rect = list(part)
                    rect[axis], rect[axis + 2] = (
                        (at - OUTER_WALL_M, at) if end == axis else (at, at + OUTER_WALL_M)
                    )
                    found.append((_rect(rect), axis))
    return found


def _entrance(
    rng: np.random.Generator,
    rooms: Sequence[Room],
    doors: Sequence[Opening],
    size: tuple[float, float],
) -> Opening:
    """The door out of the flat: shut, in a corner of the first room."""
    sides = _outer_sides(rooms[0], size)
    rect, axis = sides[int(rng.integers(len(sides)))]
    across = 1 - axis
    ends = [rect[across] + 0.2, rect[across + 2] - 0.2 - _DOOR_WIDTH_M]
    near = [
        min((abs(door.centre[across] - end) for door in doors if door.axis == axis), default=9.0)
        for end in ends
    ]
    start = ends[int(np.argmax(near))]
    placed = list(rect)
    placed[across], placed[across + 2] = start, start + _DOOR_WIDTH_M
    return Opening(_rect(placed), axis, 0.0, DOOR_HEIGHT_M, (0,), shut=True)


def _windows(
    rng: np.random.Generator,
    rooms: Sequence[Room],
    doors: Sequence[Opening],
    size: tuple[float, float],
) -> list[Opening]:
    """One or two windows per room in outer walls, away from doors. All have one sill and end at door height."""
    found: list[Opening] = []
    sill = float(rng.uniform(0.85, 1.0))
    for number, room in enumerate(rooms):
        sides = _outer_sides(room, size)
        wanted = min(len(sides), 1 + int(room.area > 14))
        for pick in rng.permutation(len(sides))[:wanted].tolist():
            rect, axis = sides[pick]
            across = 1 - axis
            room_for = rect[across + 2] - rect[across] - 0.6
            width = min(float(rng.uniform(0.9, 1.7)), room_for)
            start = rect[across] + 0.3 + float(rng.uniform(0, room_for - width))
            placed = list(rect)
            placed[across], placed[across + 2] = start, start + width
            window = Opening(_rect(placed), axis, sill, DOOR_HEIGHT_M, (number,))
            if not any(_overlap(window.rect, other.rect) for other in (*doors, *found)):
                found.append(window)
    return found


# ---------------------------------------------------------------------------------- lattice, seen from above


def _plan_lines(
    rooms: Sequence[Room], openings: Sequence[Opening], size: tuple[float, float]
) -> tuple[Array, Array]:
    rects = [part for room in rooms for part in room.parts]
    rects += [opening.rect for opening in openings]
    rects += [half for o in openings if o.shut for half in o.halves]
    found = []
    for axis in (0, 1):
        ends = [rect[k] for rect in rects for k in (axis, axis + 2)]
        ends += [-OUTER_WALL_M, size[axis] + OUTER_WALL_M]
        # lines that differ only by rounding would enclose cells without width
        found.append(np.unique(np.round(ends, 6)))
    return found[0], found[1]


def paint(
    space: NDArray[np.int8] | NDArray[np.bool_],
    lines: Sequence[Array],
    rect: Rect,
    value: int,
    heights: tuple[float, float] = (0.0, 0.0),
) -> None:
    """Sets cells whose centre lies in a rectangle, and between the heights if the grid has three axes."""
    limits = [(rect[0], rect[2]), (rect[1], rect[3]), heights][: space.ndim]
    hit = []
    for line, (start, end) in zip(lines, limits, strict=True):
        middle = (line[:-1] + line[1:]) / 2
        hit.append((middle > start) & (middle < end))
    space[np.ix_(*hit)] = value


def _rects_of(lines: tuple[Array, Array], wanted: NDArray[np.bool_]) -> Array:
    """[n, 4]: rectangles of the wanted cells, neighbours along y joined."""
    found = []
    for i, column in enumerate(wanted):
        change = np.flatnonzero(np.diff(np.pad(column.astype(np.int8), 1)))
        for j0, j1 in change.reshape(-1, 2).tolist():
            found.append((lines[0][i], lines[1][j0], lines[0][i + 1], lines[1][j1]))
    return np.array(found).reshape(-1, 4)


def _walls_of(lines: tuple[Array, Array], inside: NDArray[np.bool_]) -> tuple[Wall, ...]:
    """The straight pieces of a room's outline, each of full length."""
    walls = []
    for axis in (0, 1):
        cells = inside if axis == 0 else inside.T
        step = np.diff(np.pad(cells.astype(np.int8), ((1, 1), (0, 0))), axis=0)
        for inward in (1, -1):
            for row in range(len(step)):
                runs = np.flatnonzero(np.diff(np.pad((step[row] == inward).astype(np.int8), 1)))
                for start, end in runs.reshape(-1, 2).tolist():
                    at, first = float(lines[axis][row]), float(lines[1 - axis][start])
                    length = float(lines[1 - axis][end]) - first
                    walls.append(
                        Wall((at, first), (0.0, 1.0), (float(inward), 0.0), length)
                        if axis == 0
                        else Wall((first, at), (1.0, 0.0), (0.0, float(inward)), length)
                    )
    return tuple(walls)


def _rect(values: Sequence[float]) -> Rect:
    x0, y0, x1, y1 = values
    return float(x0), float(y0), float(x1), float(y1)


def _area(rect: Rect) -> float:
    return (rect[2] - rect[0]) * (rect[3] - rect[1])


def _span(gap: Rect, axis: int) -> float:
    """Length of a piece of shared wall."""
    return gap[3 - axis] - gap[1 - axis]


def _overlap(one: ArrayLike, other: ArrayLike, margin: float = 0.15) -> bool:
    a, b = np.asarray(one), np.asarray(other)
    return bool((a[:2] < b[2:] + margin).all() and (b[:2] < a[2:] + margin).all())
