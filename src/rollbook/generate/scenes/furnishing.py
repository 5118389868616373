"""Furnishing: the objects of each kind of room, and the order in which they are placed.

A room has a kind, and a kind has a list of wishes. The wishes that define the kind come first, then those that depend
on space. A wish for which no place is found is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollbook.generate.scenes.floor_plan import FloorPlan
from rollbook.generate.scenes.furniture import build
from rollbook.generate.scenes.pieces import Piece
from rollbook.generate.scenes.placement import (
    Array,
    Furnished,
    Placed,
    Rng,
    poses_around,
    poses_at_walls,
    poses_before,
    poses_beside,
    poses_in_room,
)


@dataclass(frozen=True, slots=True)
class Wish:
    name: str
    where: str = "wall"
    """wall, corner or free; or relative to the last object of class `of`: before, beside, around, opposite."""
    of: str = ""
    chance: float = 1.0
    """Probability of the wish. 1 is certain; less is scaled by the configured amount of furniture."""


_SEATS = tuple(Wish("chair", "around", "table") for _ in range(4))
_KINDS: dict[str, tuple[Wish, ...]] = {
    "living": (
        Wish("sofa"),
        Wish("coffee_table", "before", "sofa"),
        Wish("tv_stand", "opposite", "sofa"),
        Wish("armchair", "corner", chance=0.7),
        Wish("shelf", chance=0.8),
        Wish("floor_lamp", "beside", "sofa", 0.7),
        Wish("plant", "corner", chance=0.7),
        Wish("rug", "free", chance=0.6),
    ),
    "bedroom": (
        Wish("bed"),
        Wish("nightstand", "beside", "bed"),
        Wish("nightstand", "beside", "bed", 0.7),
        Wish("wardrobe"),
        Wish("cabinet", chance=0.5),
        Wish("chair", "corner", chance=0.5),
        Wish("rug", "free", chance=0.5),
        Wish("plant", "corner", chance=0.4),
    ),
    "office": (
        Wish("desk"),
        Wish("office_chair", "before", "desk"),
        Wish("shelf"),
        Wish("cabinet", chance=0.7),
        Wish("shelf", chance=0.6),
        Wish("bin", "corner", chance=0.6),
        Wish("armchair", "corner", chance=0.5),
        Wish("plant", "corner", chance=0.5),
        Wish("floor_lamp", "corner", chance=0.4),
    ),
    "dining": (
        Wish("table", "free"),
        *_SEATS,
        Wish("cabinet"),
        Wish("shelf", chance=0.5),
        Wish("plant", "corner", chance=0.6),
        Wish("floor_lamp", "corner", chance=0.5),
        Wish("stool", "corner", chance=0.3),
    ),
    "kitchen": (
        Wish("counter"),
        Wish("refrigerator", "corner"),
        Wish("table", "free"),
        *_SEATS[:3],
        Wish("counter", chance=0.4),
        Wish("bin", "corner", chance=0.8),
        Wish("stool", "free", chance=0.5),
    ),
    "bathroom": (
        Wish("washbasin"),
        Wish("toilet"),
        Wish("bathtub", "corner"),
        Wish("bin", "corner", chance=0.7),
        Wish("cabinet", chance=0.4),
        Wish("stool", "corner", chance=0.4),
    ),
}
_FILLERS = ("shelf", "cabinet", "plant", "stool", "armchair", "box", "chair", "floor_lamp", "bin")
_TALL = ("divider", "screen", "divider", "screen", "plant")
_SMALL_ROOM_M2 = 6.0
_GAPS_M = {"free": (0.65, 0.4, 0.25), "before": (0.02,), "around": (0.02,), "beside": (0.01,)}
"""Gaps to walls and to other objects, tried in turn."""

_ON: dict[str, tuple[str, ...]] = {
    "desk": ("monitor", "laptop", "lamp", "mug", "book", "books", "bottle", "carton"),
    "tv_stand": ("tv", "vase", "book", "books", "bowl", "carton"),
    "bed": ("pillow", "pillow", "book"),
    "sofa": ("pillow", "pillow", "book"),
    "armchair": ("pillow",),
    "shelf": ("books", "books", "book", "vase", "bowl", "carton", "ball", "bottle"),
    "divider": ("books", "books", "book", "vase", "bowl", "carton", "ball", "bottle"),
    "wall_shelf": ("books", "vase", "bottle", "mug", "bowl"),
    "table": ("bowl", "vase", "mug", "bottle", "book", "laptop", "carton"),
    "coffee_table": ("book", "bowl", "mug", "vase", "bottle"),
    "counter": ("bowl", "bottle", "mug", "carton", "vase"),
    "nightstand": ("lamp", "book", "mug", "bottle"),
    "cabinet": ("lamp", "vase", "books", "bowl", "carton", "ball"),
    "wardrobe": ("carton", "carton"),
    "box": ("book", "ball"),
}
"""Small objects by the furniture that holds them. A desk or television stand always holds the first of its list."""
_ALWAYS = {"desk", "tv_stand"}
_ON_FLOOR = ("box", "ball", "book", "box")
_PER_M2 = 3.0
"""Small objects per square metre at full clutter."""


def furnish(
    plan: FloorPlan,
    furniture: Rng,
    clutter_rng: Rng,
    *,
    max_edge_m: float,
    amount: float,
    clutter: float,
    occlusion: float,
) -> tuple[Furnished, tuple[str, ...]]:
    """The furnished flat, and the kind of each room."""
    flat = Furnished(plan)
    kinds = _kinds(plan, furniture)
    for room, kind in enumerate(kinds):
        for wish in _KINDS[kind]:
            draw = float(furniture.random())
            if wish.chance == 1 or draw < wish.chance * 2 * amount:
                _place_wish(flat, room, wish, furniture, max_edge_m)
    tall, filling, hanging = furniture.spawn(3)
    for room in range(len(kinds)):
        area = plan.rooms[room].area
        for _ in range(round(occlusion * area / 4)):
            wish = Wish(str(tall.choice(_TALL)), "free")
            _place_wish(flat, room, wish, tall, max_edge_m)
        for _ in range(round(max(amount - 0.25, 0) * area / 3.0)):
            wish = Wish(str(filling.choice(_FILLERS)), str(filling.choice(["wall", "corner"])))
            _place_wish(flat, room, wish, filling, max_edge_m)
        _hang(flat, room, hanging, max_edge_m, amount)
    _place_clutter(flat, clutter_rng, max_edge_m, clutter)
    return flat, kinds


def _kinds(plan: FloorPlan, rng: Rng) -> tuple[str, ...]:
    """The largest room is the living room, a very small one the bathroom; the others differ as far as possible."""
    largest = int(np.argmax([room.area for room in plan.rooms]))
    others = ["bedroom", "office", "kitchen", "dining"]
    if len(plan.rooms) == 1:
        return (str(rng.choice(["living", *others])),)
    order = rng.permutation(len(others)).tolist()
    found = []
    for number, room in enumerate(plan.rooms):
        if number == largest:
            found.append("living")
        elif room.area < _SMALL_ROOM_M2:
            found.append("bathroom")
        else:
            found.append(others[order[len(found) % len(others)]])
    return tuple(found)


def _place_wish(
    flat: Furnished, room: int, wish: Wish, rng: Rng, max_edge_m: float
) -> Placed | None:
    """Places the wished object with the largest gap that fits; None if no place is found."""
    piece = build(wish.name, rng, max_edge_m)
    for gap_m in _GAPS_M.get(wish.where, (0.05,)):
        poses = _poses(flat, room, wish, piece, rng)
        flat_one = wish.name == "rug"
        found = flat.try_floor(piece, room, poses, 0.02 if flat_one else gap_m, blocks=not flat_one)
        if found is not None:
            return found
    return None


def _poses(flat: Furnished, room: int, wish: Wish, piece: Piece, rng: Rng) -> Array:
    """Poses to try; none if the object that the wish refers to is missing."""
    if wish.where in ("wall", "corner"):
        return poses_at_walls(flat.plan, room, piece, rng, cornered=wish.where == "corner")
    if wish.where == "free":
        return poses_in_room(flat.plan, room, rng, square=True)
    anchors = [each for each in flat.placed if each.room == room and each.piece.name == wish.of]
    if not anchors:
        return np.zeros((0, 3))
    if wish.where == "before":
        return poses_before(anchors[-1], piece, 0.35 if wish.of == "sofa" else 0.03, rng)
    if wish.where == "beside":
        return poses_beside(anchors[-1], piece, rng)
    if wish.where == "opposite":
        poses = poses_at_walls(flat.plan, room, piece, rng)
        turned = np.cos(poses[:, 2] - anchors[-1].yaw)
        return poses[np.argsort(turned, kind="stable")]
    return poses_around(anchors[-1], piece, rng)


def _hang(flat: Furnished, room: int, rng: Rng, max_edge_m: float, amount: float) -> None:
    """Hangs pictures, clocks and shelves at about eye height, above a lamp on a cabinet."""
    for _ in range(round(flat.plan.rooms[room].area * amount / 5)):
        name = str(rng.choice(["picture", "picture", "clock", "wall_shelf"]))
        piece = build(name, rng, max_edge_m)
        poses = poses_at_walls(flat.plan, room, piece, rng)
        flat.try_wall(piece, room, poses, float(rng.uniform(1.42, 1.6)))


def _place_clutter(flat: Furnished, rng: Rng, max_edge_m: float, clutter: float) -> None:
    """Places small objects, first on furniture, then on the floor."""
    for number in range(len(flat.placed)):
        holder = flat.placed[number]
        liked = _ON.get(holder.piece.name, ())
        for support in holder.piece.supports if liked else ():
            x0, y0, x1, y1 = support.rect
            expected = min(clutter * _PER_M2 * (x1 - x0) * (y1 - y0), 8 * clutter)
            names = [str(rng.choice(liked)) for _ in range(int(rng.poisson(expected)))]
            if holder.piece.name in _ALWAYS and support is holder.piece.supports[-1]:
                names.insert(0, liked[0])
            for name in names:
                flat.try_on(build(name, rng, max_edge_m), number, support, rng)
    for room in range(len(flat.plan.rooms)):
        for _ in range(int(rng.poisson(clutter * flat.plan.rooms[room].area / 7))):
            piece = build(str(rng.choice(_ON_FLOOR)), rng, max_edge_m)
            flat.try_floor(piece, room, poses_in_room(flat.plan, room, rng), 0.05)
