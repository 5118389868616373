"""Walk: a path through a flat with a camera at head height. WalkGrid: the free floor.

The grid stores the distance of every cell to the nearest wall or furniture, so one grid serves bodies of any width.
Paths are shortest paths that prefer a distance from walls. They are then straightened where there is space.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.errors import ConfigurationError
from rollbook.generate.config_checks import expect
from rollbook.generate.geometry.poses import looking_along, poses_of
from rollbook.generate.raycast.compiled import compiled

Array = NDArray[np.float64]

_COMFORT_M = 0.5
"""Cells closer to a wall than this cost more."""
_SMALLEST_FLOOR_M2 = 0.25
_MOST_FRAMES = 10_000


class WalkConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    frames: int = 24
    """Frames up to the root of rollouts, which is the last of them."""
    continuation_frames: int = 8
    """Frames recorded after the root."""
    step_m: float = 0.12
    """Distance between two frames along the path."""
    body_radius_m: float = 0.25
    head_height_m: tuple[float, float] = (1.45, 1.7)
    """Range from which one height is drawn per walk."""
    speed_mps: tuple[float, float] = (0.7, 1.1)
    """Range from which one speed is drawn per walk; it varies slightly during the walk."""
    pitch_deg: float = -14.0
    scan_deg: float = 22.0
    """Greatest turn of the head to either side of the path."""

    def __post_init__(self) -> None:
        expect(self, "frames", 2 <= self.frames <= _MOST_FRAMES, f"2 to {_MOST_FRAMES}")
        later = self.continuation_frames
        expect(self, "continuation_frames", 0 <= later <= _MOST_FRAMES, f"0 to {_MOST_FRAMES}")
        expect(self, "step_m", 0.01 <= self.step_m <= 1, "0.01 to 1")
        expect(self, "body_radius_m", 0.05 <= self.body_radius_m <= 1, "0.05 to 1")
        low, high = self.head_height_m
        expect(self, "head_height_m", 0.2 <= low <= high <= 2.2, "low <= high, in 0.2 to 2.2")
        low, high = self.speed_mps
        expect(self, "speed_mps", 0.05 <= low <= high <= 5, "low <= high, in 0.05 to 5")
        expect(self, "pitch_deg", -80 <= self.pitch_deg <= 80, "-80 to 80")
        expect(self, "scan_deg", 0 <= self.scan_deg <= 120, "0 to 120")


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    poses: NDArray[np.float32]
    """[frames, 12]"""
    t_ns: NDArray[np.int64]
    continuation: NDArray[np.float32]
    """[continuation_frames, 12]"""
    continuation_t_ns: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class WalkGrid:
    """The floor as a grid. Cell (i, j) is centred at ((i + 0.5) * cell_m, (j + 0.5) * cell_m)."""

    cell_m: float
    clearance: Array
    """[nx, ny]: metres from the cell's centre to the nearest obstacle; 0 inside one."""

    @classmethod
    def over(cls, size: tuple[float, float], solid: ArrayLike, cell_m: float = 0.1) -> WalkGrid:
        """The floor from (0, 0) to `size` without the rectangles [n, 4] of the walls."""
        shape = [max(1, math.ceil(side / cell_m - 1e-9)) for side in size]
        return cls(cell_m, np.full(shape, np.inf)).without(footprints(solid))

    def without(self, footprints: ArrayLike) -> WalkGrid:
        """The grid without these footprints [n, 5]: centre, half sides, yaw."""
        found = self.clearance
        x, y = ((np.arange(side) + 0.5) * self.cell_m for side in found.shape)
        for cx, cy, half_x, half_y, yaw in (
            np.asarray(footprints, np.float64).reshape(-1, 5).tolist()
        ):
            c, s = math.cos(yaw), math.sin(yaw)
            dx, dy = (x - cx)[:, None], y - cy
            along = np.maximum(np.abs(dx * c + dy * s) - half_x, 0)
            across = np.maximum(np.abs(dy * c - dx * s) - half_y, 0)
            found = np.minimum(found, np.hypot(along, across))
        return WalkGrid(self.cell_m, found)

    def clearance_at(self, points: ArrayLike) -> Array:
        """[...]: clearance at points [..., 2 or more], interpolated between cell centres; 0 outside the grid."""
        place = np.asarray(points, np.float64)[..., :2] / self.cell_m - 0.5
        last = np.array(self.clearance.shape) - 1
        inside = np.asarray(((place >= -0.5) & (place <= last + 0.5)).all(axis=-1))
        held = np.clip(np.where(inside[..., np.newaxis], place, 0), 0, last)
        low = np.minimum(held.astype(np.intp), np.maximum(last - 1, 0))
        high = np.minimum(low + 1, last)
        share = held - low
        i0, j0, i1, j1 = low[..., 0], low[..., 1], high[..., 0], high[..., 1]
        u, v = share[..., 0], share[..., 1]
        grid = self.clearance
        found = (grid[i0, j0] * (1 - v) + grid[i0, j1] * v) * (1 - u) + (
            grid[i1, j0] * (1 - v) + grid[i1, j1] * v
        ) * u
        return np.where(inside, found, 0.0)

    def cell_of(self, point: ArrayLike) -> tuple[int, int]:
        place = (np.asarray(point, np.float64)[:2] / self.cell_m).astype(np.intp)
        i, j = np.clip(place, 0, np.array(self.clearance.shape) - 1).tolist()
        return i, j

    def costs_from(self, cell: tuple[int, int], body_radius_m: float) -> Array:
        """[nx, ny]: cost of the best path from a cell to every other, roughly in metres; inf if there is none."""
        return _travel_costs(self._prices(body_radius_m), *cell)

    def floor(self, body_radius_m: float) -> NDArray[np.bool_]:
        """The largest connected area of cells in which a body of this radius can stand."""
        left = self.clearance >= body_radius_m
        best = np.zeros_like(left)
        while np.count_nonzero(left) > np.count_nonzero(best):
            cell = np.unravel_index(int(np.argmax(left)), left.shape)
            piece = np.isfinite(self.costs_from((int(cell[0]), int(cell[1])), body_radius_m))
            left &= ~piece
            if np.count_nonzero(piece) > np.count_nonzero(best):
                best = piece
        return best

    def way(self, costs: Array, goal: tuple[int, int]) -> Array:
        """[n, 2]: cell centres from the start of the costs to the goal."""
        cells = _descent(costs, *goal)[::-1]
        return np.asarray((cells + 0.5) * self.cell_m)

    def _prices(self, body_radius_m: float) -> Array:
        """Cost of each cell in metres; inf if the body does not fit."""
        crowding = np.maximum(0, 1 - self.clearance / _COMFORT_M)
        price = self.cell_m * (1 + 2 * crowding)
        return np.where(self.clearance >= body_radius_m, price, np.inf)


def footprints(rects: ArrayLike) -> Array:
    """[n, 5]: footprints of axis-aligned rectangles [n, 4]."""
    rect = np.asarray(rects, np.float64).reshape(-1, 4)
    middle, half = (rect[:, :2] + rect[:, 2:]) / 2, (rect[:, 2:] - rect[:, :2]) / 2
    return np.column_stack([middle, half, np.zeros(len(rect))])


def take_walk(grid: WalkGrid, config: WalkConfig, rng: np.random.Generator) -> Walk:
    """A walk between distant points of the free floor, continued to further points until it is long enough."""
    count = config.frames + config.continuation_frames
    path = _resampled(_long_path(grid, config, count, rng), config.step_m)
    first = int(rng.integers(len(path) - count + 1))
    poses = _head(path, config, rng)[first : first + count].astype(np.float32)
    speed = rng.uniform(*config.speed_mps)
    pace = speed * (1 + 0.15 * np.sin(np.arange(count - 1) * 0.4 + rng.uniform(0, 2 * math.pi)))
    seconds = np.concatenate([[0.0], np.cumsum(config.step_m / pace)]) + rng.uniform(1, 60)
    t_ns = np.round(seconds * 1e9).astype(np.int64)
    cut = config.frames
    return Walk(poses[:cut], t_ns[:cut], poses[cut:], t_ns[cut:])


def _long_path(grid: WalkGrid, config: WalkConfig, count: int, rng: np.random.Generator) -> Array:
    """Points of a path that is long enough for all frames."""
    free = np.argwhere(grid.floor(config.body_radius_m))
    if len(free) * grid.cell_m**2 < _SMALLEST_FLOOR_M2:
        message = (
            f"WalkConfig.body_radius_m is {config.body_radius_m}, which leaves "
            f"{len(free) * grid.cell_m**2:.2f} m2 of free floor to walk on: "
            "expected a smaller body, or a scene with less furniture or larger rooms"
        )
        raise ConfigurationError(message=message)
    i, j = free[int(rng.integers(len(free)))].tolist()
    legs: list[Array] = []
    length = 0.0
    while length < (count + 1) * config.step_m:
        costs = grid.costs_from((i, j), config.body_radius_m)
        reach = costs[free[:, 0], free[:, 1]]
        far = free[reach >= 0.5 * reach.max()]
        goal = far[int(rng.integers(len(far)))].tolist()
        leg = _straightened(grid.way(costs, (goal[0], goal[1])), grid, config)
        legs.append(leg if not legs else leg[1:])
        length += float(np.linalg.norm(np.diff(leg, axis=0), axis=1).sum())
        i, j = goal
    return np.concatenate(legs)


def _straightened(path: Array, grid: WalkGrid, config: WalkConfig) -> Array:
    """The path straightened between its ends: points move towards the middle of their neighbours on free floor."""
    placed = path.copy()
    for _ in range(40):
        moved = placed[1:-1] + 0.5 * ((placed[:-2] + placed[2:]) / 2 - placed[1:-1])
        fits = grid.clearance_at(moved) >= config.body_radius_m
        placed[1:-1] = np.where(fits[:, None], moved, placed[1:-1])
    return placed


def _resampled(path: Array, step_m: float) -> Array:
    """Points `step_m` apart along the path."""
    at = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(path, axis=0), axis=1))])
    wanted = np.arange(int(at[-1] / step_m) + 1) * step_m
    return np.column_stack([np.interp(wanted, at, path[:, k]) for k in (0, 1)])


def _head(path: Array, config: WalkConfig, rng: np.random.Generator) -> Array:
    """Camera poses [n, 12] along a path: they look ahead and slowly turn from side to side."""
    along = np.diff(path, axis=0)
    heading = np.unwrap(np.arctan2(along[:, 1], along[:, 0]))
    window = 9
    padded = np.pad(np.append(heading, heading[-1]), window // 2, mode="edge")
    smooth = np.convolve(padded, np.ones(window) / window, mode="valid")
    walked = np.arange(len(path)) * config.step_m
    turn, nod, bob = rng.uniform(0, 2 * math.pi, 3).tolist()
    period_m = rng.uniform(3, 5)
    yaw = smooth + math.radians(config.scan_deg) * np.sin(walked * 2 * math.pi / period_m + turn)
    pitch = np.radians(config.pitch_deg + rng.normal(0, 2) + 3 * np.sin(walked * 1.1 + nod))
    level = np.cos(pitch)
    forward = np.column_stack([np.cos(yaw) * level, np.sin(yaw) * level, np.sin(pitch)])
    low, high = config.head_height_m
    height = np.clip(rng.uniform(low, high) + 0.015 * np.sin(walked * 9 + bob), low, high)
    return poses_of(looking_along(forward), np.column_stack([path, height]))


@compiled
def _travel_costs(prices: Array, i0: int, j0: int) -> Array:
    """Least costs from one cell, with steps to eight neighbours, by sweeps in four directions until no change."""
    nx, ny = prices.shape
    costs = np.full((nx, ny), np.inf)
    if not np.isfinite(prices[i0, j0]):
        return costs
    costs[i0, j0] = 0.0
    diagonal, changed = math.sqrt(2.0), True
    while changed:
        changed = False
        for sweep in range(4):
            for a in range(nx):
                i = a if sweep % 2 == 0 else nx - 1 - a
                for b in range(ny):
                    j = b if sweep < 2 else ny - 1 - b
                    here = prices[i, j]
                    if not np.isfinite(here):
                        continue
                    best = costs[i, j]
                    for di in range(-1, 2):
                        for dj in range(-1, 2):
                            k, m = i + di, j + dj
                            if k < 0 or m < 0 or k >= nx or m >= ny or (di == 0 and dj == 0):
                                continue
                            step = diagonal if di != 0 and dj != 0 else 1.0
                            offer = costs[k, m] + step * (here + prices[k, m]) / 2
                            best = min(best, offer)
                    if best < costs[i, j] - 1e-12:
                        costs[i, j] = best
                        changed = True
    return costs


@compiled
def _descent(costs: Array, i: int, j: int) -> NDArray[np.int64]:
    """Cells from (i, j) to the cell of cost 0; each is the cheapest neighbour of the previous one."""
    nx, ny = costs.shape
    cells = np.empty((nx * ny, 2), np.int64)
    count = 0
    while True:
        cells[count, 0], cells[count, 1] = i, j
        count += 1
        next_i, next_j = i, j
        for di in range(-1, 2):
            for dj in range(-1, 2):
                k, m = i + di, j + dj
                inside = 0 <= k < nx and 0 <= m < ny
                if inside and costs[k, m] < costs[next_i, next_j]:
                    next_i, next_j = k, m
        if next_i == i and next_j == j:
            return cells[:count]
        i, j = next_i, next_j
