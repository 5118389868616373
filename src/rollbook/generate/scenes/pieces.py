"""Piece: a finished object before it is placed. Shape: an object under construction.

An object stands on z = 0 about the origin, with its width along x, its back at +y and its front at -y.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from rollbook.generate.scenes.solids import (
    Array,
    Solid,
    box,
    capsule,
    cylinder,
    joined,
    revolve,
    rounded_box,
    sphere,
)

Rng = np.random.Generator
Corner = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Support:
    """A level surface of an object on which other objects may stand."""

    rect: tuple[float, float, float, float]
    """Lower x, lower y, upper x, upper y in the object's frame."""
    z: float
    height: float = math.inf
    """Free height above it, for example up to the next board of a shelf."""


@dataclass(slots=True)
class Shape:
    """An object under construction."""

    edge: float
    parts: list[Solid] = field(default_factory=list)
    supports: list[Support] = field(default_factory=list)

    @property
    def solid(self) -> Solid:
        return joined(self.parts)

    def add(self, solid: Solid, at: Corner = (0, 0, 0)) -> None:
        self.parts.append(solid.moved(at))

    def box(self, low: Corner, high: Corner) -> None:
        self.parts.append(box(low, high, self.edge))

    def cushion(self, low: Corner, high: Corner, radius: float = 0.05) -> None:
        self.parts.append(rounded_box(low, high, radius, self.edge))

    def turned(self, *profile: tuple[float, float], at: Corner = (0, 0, 0)) -> None:
        self.add(revolve(profile, self.edge), at)

    def rod(self, radius: float, low: float, high: float, x: float = 0, y: float = 0) -> None:
        self.add(cylinder(radius, low, high, self.edge), (x, y, 0))

    def legs(self, width: float, depth: float, top: float, thick: float, *, rounded: bool) -> None:
        """Four legs at the corners."""
        for x in (-1, 1):
            for y in (-1, 1):
                at_x, at_y = x * (width - thick) / 2, y * (depth - thick) / 2
                if rounded:
                    self.rod(thick / 2, 0, top, at_x, at_y)
                else:
                    half = thick / 2
                    self.box((at_x - half, at_y - half, 0), (at_x + half, at_y + half, top))

    def support(
        self, width: float, depth: float, z: float, height: float = math.inf, y: float = 0.0
    ) -> None:
        """Adds a support: a rectangle about (0, y)."""
        self.supports.append(
            Support((-width / 2, y - depth / 2, width / 2, y + depth / 2), z, height)
        )

    def slab_on_legs(
        self, width: float, depth: float, high: float, slab: float, thick: float, *, rounded: bool
    ) -> None:
        self.box((-width / 2, -depth / 2, high - slab), (width / 2, depth / 2, high))
        self.legs(width - 0.06, depth - 0.06, high - slab, thick, rounded=rounded)

    def drawers(self, low: Corner, high: Corner, count: int) -> None:
        """A closed body with fronts and handles."""
        self.box((low[0], low[1] + 0.02, low[2]), high)
        step = (high[2] - low[2]) / count
        for k in range(count):
            z = low[2] + k * step
            self.box(
                (low[0] + 0.006, low[1], z + 0.006),
                (high[0] - 0.006, low[1] + 0.02, z + step - 0.006),
            )
            grip = capsule(0.007, 0.12, self.edge).laid(0)
            self.add(grip, ((low[0] + high[0]) / 2 - 0.06, low[1] - 0.009, z + step * 0.75))

    def open_shelves(self, width: float, depth: float, high: float, rows: int) -> None:
        board, half, back = 0.025, width / 2, depth / 2
        for x in (-half, half - board):
            self.box((x, -back, 0), (x + board, back, high))
        inner, rear = half - board, 0.01
        self.box((-inner, back - rear, 0), (inner, back, high))
        levels = np.linspace(0.05, high - board, rows + 1)
        for k, z in enumerate(levels.tolist()):
            self.box((-inner, -back, z), (inner, back - rear, z + board))
            room = math.inf if k == rows else float(levels[k + 1]) - z - board
            self.support(2 * inner, depth - rear, z + board, room, y=-rear / 2)

    def shade(self, radius: float, high: float, z: float) -> None:
        """A lamp shade, open above and below, with a bulb inside."""
        top = radius * 0.7
        self.turned(
            (radius, z), (top, z + high), (top - 0.005, z + high), (radius - 0.005, z), (radius, z)
        )
        self.add(sphere(0.03, self.edge), (0, 0, z + high / 2))
        self.rod(0.012, z, z + high / 2 - 0.03)


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A finished object, centred over the origin and standing on z = 0."""

    name: str
    solid: Solid
    supports: tuple[Support, ...]
    size: Array
    """[3]"""

    @classmethod
    def of(cls, name: str, shape: Shape) -> Piece:
        low, high = shape.solid.bounds
        x, y = ((low + high) / 2)[:2].tolist()
        supports = tuple(
            replace(
                each, rect=tuple(np.subtract(each.rect, (x, y, x, y)).tolist()), z=each.z - low[2]
            )
            for each in shape.supports
        )
        return cls(name, shape.solid.moved((-x, -y, -low[2])), supports, high - low)
