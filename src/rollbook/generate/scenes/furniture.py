"""Furniture: one builder per class, from boxes and turned shapes, with everyday sizes.

An object stands on z = 0 about the origin, with its width along x, its back at +y and its front at -y. Sizes are drawn
for every object, so two chairs of a flat may differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from rollbook.generate.scenes.clutter import CLUTTER
from rollbook.generate.scenes.pieces import Piece, Rng, Shape
from rollbook.generate.scenes.solids import Solid, box, capsule, joined, revolve, sphere, torus
from rollbook.generate.scenes.structure import STRUCTURE

# ------------------------------------------------------------------------------- tables and seats


def _table(rng: Rng, s: Shape) -> None:
    high = rng.uniform(0.72, 0.78)
    if rng.random() < 0.3:
        radius = rng.uniform(0.45, 0.6)
        s.turned((0, high - 0.03), (radius, high - 0.03), (radius, high), (0, high))
        s.turned((0, 0), (0.28, 0), (0.28, 0.03), (0.05, 0.06), (0.05, high - 0.03))
        s.support(radius * 1.3, radius * 1.3, high)
        return
    width, depth = rng.uniform(1.2, 1.7), rng.uniform(0.75, 0.95)
    s.slab_on_legs(width, depth, high, 0.035, 0.06, rounded=bool(rng.random() < 0.4))
    s.support(width, depth, high)


def _coffee_table(rng: Rng, s: Shape) -> None:
    width, depth, high = rng.uniform(0.8, 1.1), rng.uniform(0.5, 0.65), rng.uniform(0.38, 0.46)
    s.slab_on_legs(width, depth, high, 0.04, 0.05, rounded=bool(rng.random() < 0.5))
    s.support(width, depth, high)


def _desk(rng: Rng, s: Shape) -> None:
    width, depth, high = rng.uniform(1.1, 1.6), rng.uniform(0.6, 0.75), rng.uniform(0.72, 0.76)
    half, back = width / 2, depth / 2
    s.box((-half, -back, high - 0.03), (half, back, high))
    s.box((-half, -back, 0), (-half + 0.04, back, high - 0.03))
    s.drawers((half - 0.42, -back + 0.02, 0.0), (half, back, high - 0.03), 3)
    s.box((-half + 0.04, back - 0.03, 0.3), (half - 0.42, back, high - 0.03))
    s.support(width, depth, high)


def _chair(rng: Rng, s: Shape) -> None:
    width, depth = rng.uniform(0.4, 0.47), rng.uniform(0.4, 0.48)
    seat, top = rng.uniform(0.43, 0.48), rng.uniform(0.82, 0.98)
    round_ = bool(rng.random() < 0.5)
    s.legs(width, depth, seat - 0.03, 0.04, rounded=round_)
    s.cushion((-width / 2, -depth / 2, seat - 0.03), (width / 2, depth / 2, seat + 0.02), 0.02)
    for x in (-width / 2, width / 2 - 0.04):
        s.box((x, depth / 2 - 0.035, seat + 0.02), (x + 0.04, depth / 2, top))
    inner = width / 2 - 0.04
    for z in np.linspace(seat + 0.16, top - 0.08, int(rng.integers(2, 5))).tolist():
        s.box((-inner, depth / 2 - 0.03, z), (inner, depth / 2 - 0.005, z + 0.06))


def _office_chair(rng: Rng, s: Shape) -> None:
    seat = rng.uniform(0.44, 0.52)
    for turn in np.arange(5) * (2 * math.pi / 5):
        arm = box((0.02, -0.02, 0.06), (0.27, 0.02, 0.09), s.edge).turned(float(turn))
        s.add(arm)
        wheel = sphere(0.03, s.edge)
        s.add(wheel, (0.25 * math.cos(turn), 0.25 * math.sin(turn), 0.03))
    s.rod(0.03, 0.09, seat - 0.05)
    s.cushion((-0.24, -0.24, seat - 0.05), (0.24, 0.22, seat + 0.03), 0.04)
    s.box((-0.04, 0.2, seat + 0.03), (0.04, 0.24, seat + 0.12))
    s.cushion((-0.22, 0.18, seat + 0.1), (0.22, 0.26, seat + 0.62), 0.04)


def _stool(rng: Rng, s: Shape) -> None:
    high, radius = rng.uniform(0.42, 0.65), rng.uniform(0.16, 0.2)
    s.turned((0, high - 0.04), (radius, high - 0.04), (radius, high), (0, high))
    for turn in np.arange(3) * (2 * math.pi / 3):
        s.rod(0.018, 0, high - 0.04, 0.75 * radius * math.cos(turn), 0.75 * radius * math.sin(turn))
    s.add(torus(0.7 * radius, 0.008, s.edge), (0, 0, 0.18))


def _sofa(rng: Rng, s: Shape) -> None:
    _upholstered(rng, s, rng.uniform(1.6, 2.2), 2 + int(rng.random() < 0.5))


def _armchair(rng: Rng, s: Shape) -> None:
    _upholstered(rng, s, rng.uniform(0.8, 0.95), 1)


def _upholstered(rng: Rng, s: Shape, width: float, seats: int) -> None:
    depth, seat, top = rng.uniform(0.82, 0.95), rng.uniform(0.4, 0.45), rng.uniform(0.78, 0.9)
    half, back, arm = width / 2, depth / 2, rng.uniform(0.12, 0.2)
    s.legs(width - 0.1, depth - 0.1, 0.08, 0.05, rounded=True)
    s.box((-half, -back, 0.08), (half, back, seat - 0.14))
    s.cushion((-half, back - 0.2, seat - 0.14), (half, back, top), 0.06)
    for x in (-half, half - arm):
        s.cushion((x, -back, seat - 0.14), (x + arm, back - 0.2, seat + 0.17), 0.05)
    step = (width - 2 * arm) / seats
    for k in range(seats):
        x = -half + arm + k * step
        s.cushion((x, -back, seat - 0.14), (x + step, back - 0.32, seat + 0.02), 0.05)
        s.cushion((x, back - 0.34, seat + 0.02), (x + step, back - 0.2, top - 0.04), 0.06)
    s.support(width - 2 * arm, depth - 0.4, seat + 0.02, y=-0.2)


def _bed(rng: Rng, s: Shape) -> None:
    width, depth, high = rng.uniform(1.2, 1.8), rng.uniform(2.0, 2.1), rng.uniform(0.42, 0.52)
    half, back = width / 2, depth / 2
    s.legs(width - 0.1, depth - 0.1, 0.12, 0.06, rounded=False)
    s.box((-half, -back, 0.12), (half, back - 0.05, high - 0.2))
    s.box((-half, back - 0.05, 0.0), (half, back, rng.uniform(0.85, 1.15)))
    s.cushion((-half + 0.02, -back + 0.02, high - 0.2), (half - 0.02, back - 0.05, high), 0.06)
    s.support(width - 0.2, 0.45, high, y=back - 0.35)


# --------------------------------------------------------------------------------------- storage


def _nightstand(rng: Rng, s: Shape) -> None:
    width, depth, high = rng.uniform(0.4, 0.5), rng.uniform(0.36, 0.42), rng.uniform(0.45, 0.58)
    s.drawers((-width / 2, -depth / 2, 0.04), (width / 2, depth / 2, high), 2)
    s.legs(width, depth, 0.04, 0.04, rounded=False)
    s.support(width, depth, high)


def _wardrobe(rng: Rng, s: Shape) -> None:
    width, depth, high = rng.uniform(0.9, 1.5), rng.uniform(0.55, 0.62), rng.uniform(1.85, 2.15)
    half, back = width / 2, depth / 2
    s.box((-half, -back + 0.02, 0), (half, back, high))
    doors = 2 + int(width > 1.2)
    step = width / doors
    for k in range(doors):
        x = -half + k * step
        s.box((x + 0.005, -back, 0.08), (x + step - 0.005, -back + 0.02, high - 0.02))
        s.add(capsule(0.01, 0.18, s.edge), (x + step - 0.06, -back - 0.012, 0.95))
    s.support(width, depth - 0.02, high)


def _shelf(rng: Rng, s: Shape) -> None:
    width, depth, high = rng.uniform(0.7, 1.1), rng.uniform(0.28, 0.34), rng.uniform(1.5, 2.05)
    s.open_shelves(width, depth, high, int(rng.integers(4, 6)))


def _divider(rng: Rng, s: Shape) -> None:
    """A wide shelf with a back, for the middle of a room."""
    width, depth, high = rng.uniform(1.1, 1.6), rng.uniform(0.34, 0.4), rng.uniform(1.6, 1.9)
    s.open_shelves(width, depth, high, int(rng.integers(4, 6)))


def _cabinet(rng: Rng, s: Shape) -> None:
    width, depth, high = rng.uniform(0.8, 1.4), rng.uniform(0.38, 0.45), rng.uniform(0.75, 0.95)
    half = width / 2
    s.drawers((-half, -depth / 2, 0.08), (0, depth / 2, high), 3)
    s.drawers((0, -depth / 2, 0.08), (half, depth / 2, high), 1)
    s.legs(width - 0.06, depth - 0.06, 0.08, 0.05, rounded=False)
    s.support(width, depth, high)


def _tv_stand(rng: Rng, s: Shape) -> None:
    width, depth, high = rng.uniform(1.2, 1.7), rng.uniform(0.38, 0.45), rng.uniform(0.42, 0.52)
    s.open_shelves(width, depth, high, 2)


def _box(rng: Rng, s: Shape) -> None:
    """A carton, closed or open."""
    width, depth, high = rng.uniform(0.25, 0.5, 3).tolist()
    half, back = width / 2, depth / 2
    if rng.random() < 0.5:
        s.box((-half, -back, 0), (half, back, high))
        s.support(width, depth, high)
        return
    wall = 0.012
    s.box((-half, -back, 0), (half, back, wall))
    for x in (-half, half - wall):
        s.box((x, -back, wall), (x + wall, back, high))
    for y in (-back, back - wall):
        s.box((-half + wall, y, wall), (half - wall, y + wall, high))


def _bin(rng: Rng, s: Shape) -> None:
    radius, high = rng.uniform(0.12, 0.17), rng.uniform(0.28, 0.42)
    inner = radius - 0.01
    s.turned(
        (0, 0), (radius * 0.8, 0), (radius, high), (inner, high), (inner * 0.8, 0.02), (0, 0.02)
    )


# ----------------------------------------------------------------------- kitchen and bathroom


def _counter(rng: Rng, s: Shape) -> None:
    width, depth, high = rng.uniform(1.5, 2.2), 0.62, rng.uniform(0.88, 0.92)
    half, back = width / 2, depth / 2
    units = int(width / 0.55)
    step = width / units
    s.box((-half, -back + 0.06, 0), (half, back, 0.1))
    for k in range(units):
        x = -half + k * step
        s.drawers((x, -back + 0.02, 0.1), (x + step, back, high - 0.04), 1 + int(rng.integers(3)))
    s.box((-half, -back, high - 0.04), (half, back, high))
    s.box((-half, back - 0.02, high), (half, back, high + 0.12))
    s.turned((0, 0), (0.025, 0), (0.025, 0.22), (0.0, 0.26), at=(-half + 0.4, back - 0.1, high))
    s.support(width, depth - 0.2, high, y=-0.06)


def _refrigerator(rng: Rng, s: Shape) -> None:
    width, depth, high = rng.uniform(0.58, 0.7), rng.uniform(0.6, 0.68), rng.uniform(1.6, 1.9)
    half, back, split = width / 2, depth / 2, high * 0.36
    s.box((-half, -back + 0.05, 0), (half, back, high))
    s.cushion((-half, -back, 0.06), (half, -back + 0.05, split - 0.01), 0.015)
    s.cushion((-half, -back, split + 0.01), (half, -back + 0.05, high), 0.015)
    for z in (split - 0.3, split + 0.05):
        s.add(capsule(0.012, 0.25, s.edge), (half - 0.07, -back - 0.02, z))


def _toilet(rng: Rng, s: Shape) -> None:
    high, long = rng.uniform(0.39, 0.43), 1.25
    outside = [(0, 0), (0.11, 0), (0.1, 0.12), (0.19, high)]
    bowl = revolve([*outside, (0.13, high), (0.08, 0.2), (0, 0.18)], s.edge / long)
    s.add(Solid(bowl.vertices * (1.0, long, 1.0), bowl.faces), (0, -0.1, 0))
    s.box((-0.08, 0.1, 0), (0.08, 0.34, high - 0.02))
    s.cushion((-0.19, 0.16, high - 0.02), (0.19, 0.34, high + 0.36), 0.03)
    seat = torus(0.16, 0.022, s.edge / long)
    s.add(Solid(seat.vertices * (1.0, long, 1.0), seat.faces), (0, -0.1, high + 0.022))


def _washbasin(rng: Rng, s: Shape) -> None:
    width, high = rng.uniform(0.5, 0.7), rng.uniform(0.82, 0.88)
    s.turned((0, 0), (0.1, 0), (0.08, high - 0.14), (0, high - 0.14), at=(0, 0.08, 0))
    bowl = revolve([(0, 0), (0.6, 0.3), (1, 1), (0.92, 1), (0.5, 0.35), (0, 0.15)], s.edge / width)
    s.add(Solid(bowl.vertices * (width / 2, 0.22, 0.14), bowl.faces), (0, 0, high - 0.14))
    s.turned((0, 0), (0.018, 0), (0.018, 0.15), (0, 0.17), at=(0, 0.18, high - 0.02))


def _bathtub(rng: Rng, s: Shape) -> None:
    length, wide, high = rng.uniform(1.5, 1.7), rng.uniform(0.7, 0.78), rng.uniform(0.52, 0.58)
    half, back, wall = length / 2, wide / 2, 0.07
    s.box((-half, -back, 0), (half, back, 0.12))
    for x in (-half, half - wall):
        s.cushion((x, -back, 0.12), (x + wall, back, high), 0.03)
    for y in (-back, back - wall):
        s.cushion((-half + wall, y, 0.12), (half - wall, y + wall, high), 0.03)


# ----------------------------------------------------------------------- light, plants, floor


def _floor_lamp(rng: Rng, s: Shape) -> None:
    high = rng.uniform(1.35, 1.7)
    s.turned((0, 0), (0.14, 0), (0.14, 0.02), (0.015, 0.035), (0.015, high - 0.25))
    s.shade(rng.uniform(0.16, 0.22), 0.28, high - 0.25)


def _plant(rng: Rng, s: Shape) -> None:
    pot, high = rng.uniform(0.12, 0.18), rng.uniform(0.25, 0.35)
    s.turned(
        (0, 0),
        (pot * 0.75, 0),
        (pot, high),
        (pot - 0.015, high),
        (pot - 0.02, high - 0.05),
        (0, high - 0.05),
    )
    stem = rng.uniform(0.35, 0.9)
    s.rod(0.015, high - 0.05, high + stem * 0.6)
    for _ in range(int(rng.integers(9, 15))):
        turn, tilt = rng.uniform(0, 2 * math.pi), rng.uniform(0.2, 1.0)
        lift = high + stem * float(rng.uniform(0.15, 0.6))
        lean = np.array(
            [[math.cos(tilt), 0, -math.sin(tilt)], [0, 1, 0], [math.sin(tilt), 0, math.cos(tilt)]]
        )
        leaf = _leaf(rng.uniform(0.12, 0.2), s.edge)
        s.add(Solid(leaf.vertices @ lean.T, leaf.faces).turned(turn), (0.0, 0.0, lift))


def _leaf(half: float, edge: float) -> Solid:
    """A leaf along x from the origin, widest in the middle."""
    ends = [box((x, -0.05, -0.006), (x + half, 0.05, 0.006), edge) for x in (0.0, half)]
    leaf = joined(ends)
    taper = 1 - 0.9 * np.abs(leaf.vertices[:, :1] / half - 1)
    return Solid(
        leaf.vertices * np.insert(np.ones((len(taper), 2)), 1, taper[:, 0], axis=1), leaf.faces
    )


def _rug(rng: Rng, s: Shape) -> None:
    if rng.random() < 0.3:
        s.turned((0, 0), (0.7, 0), (0.7, 0.012), (0, 0.012))
    else:
        half, back = rng.uniform(0.6, 0.9), rng.uniform(0.4, 0.65)
        s.box((-half, -back, 0), (half, back, 0.012))


def _screen(rng: Rng, s: Shape) -> None:
    """A folding screen: panels in a zigzag."""
    panels, high, wide = int(rng.integers(3, 5)), rng.uniform(1.6, 1.85), rng.uniform(0.42, 0.5)
    lean = rng.uniform(0.35, 0.6)
    for k in range(panels):
        turn = lean if k % 2 else -lean
        panel = box((-wide / 2, -0.015, 0), (wide / 2, 0.015, high), s.edge).turned(turn)
        s.add(panel, ((k - (panels - 1) / 2) * wide * math.cos(lean), 0, 0))


_BUILDERS: tuple[Callable[[Rng, Shape], None], ...] = (
    *(_table, _coffee_table, _desk, _chair, _office_chair, _stool, _sofa, _armchair, _bed),
    *(_nightstand, _wardrobe, _shelf, _divider, _cabinet, _tv_stand, _box, _bin, _counter),
    *(_refrigerator, _toilet, _washbasin, _bathtub, _floor_lamp, _plant, _rug, _screen),
)
FURNITURE = {build.__name__.removeprefix("_"): build for build in _BUILDERS}

CLASSES: tuple[str, ...] = (*STRUCTURE, *FURNITURE, *CLUTTER)
"""All classes of faces; the position of a class is its sem id."""
SEM_IDS: dict[str, int] = {name: number for number, name in enumerate(CLASSES)}

_FURNITURE_DETAIL = 0.38
_CLUTTER_DETAIL = 0.16
"""Longest edge as a share of the walls' longest edge: cameras see objects, and small ones more so, from close by."""


def build(name: str, rng: Rng, max_edge_m: float) -> Piece:
    """A new object of a class, centred over the origin and standing on z = 0."""
    small = name in CLUTTER
    shape = Shape(max_edge_m * (_CLUTTER_DETAIL if small else _FURNITURE_DETAIL))
    (CLUTTER if small else FURNITURE)[name](rng, shape)
    return Piece.of(name, shape)
