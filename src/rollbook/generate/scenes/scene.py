"""Scene: a furnished flat made from a seed, with the class and object of every face and a box around every object.

The same config gives the same mesh, byte for byte. Layout, furniture, clutter and defects use separate random streams,
so a change of one setting does not affect the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollbook.errors import ConfigurationError
from rollbook.generate.config_checks import expect
from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.mesh import TriangleMesh
from rollbook.generate.geometry.poses import poses_of
from rollbook.generate.scenes.defects import DefectConfig, with_defects
from rollbook.generate.scenes.floor_plan import SMALLEST_ROOM_M, FloorPlan, plan_of
from rollbook.generate.scenes.furnishing import furnish
from rollbook.generate.scenes.furniture import CLASSES, SEM_IDS
from rollbook.generate.scenes.placement import Placed
from rollbook.generate.scenes.solids import Solid, about_z, joined
from rollbook.generate.scenes.structure import STRUCTURE, structure_of
from rollbook.generate.scenes.walk import WalkGrid

GENERATOR_VERSION = "rollbook.scene.v1"
"""Changes whenever the same config would give another mesh."""

_GRAIN_M = 2.0**-16
"""Grid to which vertices are rounded, so that rounding differences between machines do not change the mesh."""


class Difficulty(StrEnum):
    EASY = "easy"
    MEDIUM = "medium"
    HARD = "hard"


class SceneConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seed: int = 0
    rooms: int = 2
    size_m: tuple[float, float] = (7.5, 5.5)
    """Size of the whole flat along x and y, inner walls included; the actual size differs by up to 6 %."""
    ceiling_m: float = 2.6
    max_edge_m: float = 0.25
    """Longest edge of a triangle. Furniture has shorter edges than walls, and small objects even shorter ones."""
    furniture: float = 0.5
    """0 is only the essential furniture, 1 as much as fits while the flat stays walkable."""
    clutter: float = 0.5
    """Amount of small objects on tables, shelves and the floor, 0 to 1."""
    occlusion: float = 0.25
    """Amount of tall furniture in the middle of rooms, 0 to 1."""
    l_shaped: float = 0.3
    """Probability that one room is L-shaped."""
    doors_ajar: float = 0.6
    """Probability that a doorway has a door, which then stands ajar."""
    defects: DefectConfig = DefectConfig()
    """Defects as in a scan. None by default."""

    def __post_init__(self) -> None:
        shortest = SMALLEST_ROOM_M * 1.06
        expect(self, "seed", 0 <= self.seed < 2**63, "0 to 2^63 - 1")
        expect(self, "rooms", 1 <= self.rooms <= 24, "1 to 24")
        fine = all(math.isfinite(side) and shortest <= side <= 60 for side in self.size_m)
        expect(self, "size_m", fine, f"two lengths of {shortest:.1f} to 60")
        expect(self, "ceiling_m", 2.2 <= self.ceiling_m <= 6, "2.2 to 6")
        expect(self, "max_edge_m", 0.03 <= self.max_edge_m <= 2, "0.03 to 2")
        for name in ("furniture", "clutter", "occlusion", "l_shaped", "doors_ajar"):
            expect(self, name, 0 <= getattr(self, name) <= 1, "0 to 1")

    @classmethod
    def of_difficulty(cls, difficulty: str, **fields: Any) -> SceneConfig:
        """A preset; given fields replace those of the preset."""
        if difficulty not in _PRESETS:
            known = ", ".join(_PRESETS)
            message = f"SceneConfig difficulty is {difficulty!r}, expected one of {known}"
            raise ConfigurationError(message=message)
        return cls(**{**_PRESETS[difficulty], **fields})


_PRESETS: dict[str, dict[str, Any]] = {
    Difficulty.EASY: {
        "rooms": 1,
        "size_m": (5.0, 4.5),
        "furniture": 0.4,
        "clutter": 0.3,
        "occlusion": 0.0,
        "l_shaped": 0.0,
    },
    Difficulty.MEDIUM: {},
    Difficulty.HARD: {
        "rooms": 4,
        "size_m": (10.5, 8.0),
        "furniture": 0.8,
        "clutter": 0.9,
        "occlusion": 0.8,
        "l_shaped": 0.6,
        "defects": DefectConfig(holes=20, shards=30, noise_m=0.003),
    },
}


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    config: SceneConfig
    mesh: TriangleMesh
    boxes: Boxes
    """One tight, upright box per object; `inst_id` is that of its faces."""
    plan: FloorPlan
    walkable: WalkGrid
    room_kinds: tuple[str, ...]
    class_names: tuple[str, ...] = CLASSES
    """Class names by sem id."""
    first_object_class: int = len(STRUCTURE)
    """Classes before this one are walls, floors and the like."""


def make_scene(config: SceneConfig) -> Scene:
    layout, furniture, clutter, damage = np.random.default_rng(config.seed).spawn(4)
    size = np.round(np.array(config.size_m) * layout.uniform(0.94, 1.06, 2), 2).tolist()
    plan = plan_of(
        layout,
        rooms=config.rooms,
        size=(size[0], size[1]),
        ceiling_m=config.ceiling_m,
        l_shaped=config.l_shaped,
        doors_ajar=config.doors_ajar,
    )
    flat, kinds = furnish(
        plan,
        furniture,
        clutter,
        max_edge_m=config.max_edge_m,
        amount=config.furniture,
        clutter=config.clutter,
        occlusion=config.occlusion,
    )
    mesh = _mesh(plan, flat.placed, config)
    boxes = _boxes(flat.placed)
    if config.defects.any:
        mesh = with_defects(mesh, config.defects, damage)
        boxes = boxes.take(np.flatnonzero(np.isin(boxes.inst_id, mesh.inst_id)))
    return Scene(config, mesh, boxes, plan, flat.grid, kinds)


def _mesh(plan: FloorPlan, placed: list[Placed], config: SceneConfig) -> TriangleMesh:
    shell, classes = structure_of(plan, config.max_edge_m)
    solids = [each.piece.solid.turned(each.yaw).moved((each.x, each.y, each.z)) for each in placed]
    whole: Solid = joined([shell, *solids])
    counts = [len(solid.faces) for solid in solids]
    names = np.array([SEM_IDS[each.piece.name] for each in placed], np.int32)
    instances = np.repeat(np.arange(len(placed), dtype=np.int32), counts)
    return TriangleMesh(
        np.round(whole.vertices / _GRAIN_M) * _GRAIN_M,
        whole.faces,
        np.concatenate([classes, np.repeat(names, counts)]),
        np.concatenate([np.full(len(classes), -1, np.int32), instances]),
        name=f"scene {config.seed}",
    )


def _boxes(placed: list[Placed]) -> Boxes:
    turns = np.array([about_z(each.yaw) for each in placed]).reshape(-1, 3, 3)
    sizes = np.array([each.piece.size for each in placed]).reshape(-1, 3)
    centres: NDArray[np.float64] = np.array([(each.x, each.y, each.z) for each in placed]).reshape(
        -1, 3
    )
    return Boxes.build(
        poses_of(turns, centres + sizes * (0, 0, 0.5)),
        sizes + 4 * _GRAIN_M,
        [SEM_IDS[each.piece.name] for each in placed],
        inst_id=np.arange(len(placed)),
        class_name=[each.piece.name for each in placed],
        name="scene objects",
    )
