"""FlatVariety: ranges from which every flat of a store gets its size, and every walk its length.

A SceneConfig describes one flat exactly. A store in which all flats have the same size teaches a policy that size.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from rollbook.generate.config_checks import expect
from rollbook.generate.scenes.scene import Difficulty, SceneConfig
from rollbook.generate.scenes.walk import WalkConfig

_LEAST_AREA_M2 = 10.0
"""In smaller or longer flats the rooms sometimes do not fit, or are too narrow for their doors."""
_MOST_AREA_M2 = 100.0
_LONGEST = 1.6


class FlatVariety(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Both limits of a range may be drawn. A range of None keeps the value of the scene or of the walk."""

    rooms: tuple[int, int] | None = (1, 4)
    room_area_m2: tuple[float, float] | None = (11.0, 22.0)
    """Floor area of the flat for each of its rooms. None keeps `size_m` of the scene."""
    proportion: tuple[float, float] = (1.0, 1.6)
    """Longer side of the flat, divided by the shorter one. Not used without `room_area_m2`."""
    ceiling_m: tuple[float, float] | None = (2.3, 3.2)
    frames: tuple[int, int] | None = (12, 48)
    """Frames of a walk up to its root."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("rooms", 1, 24),
            ("room_area_m2", _LEAST_AREA_M2, _MOST_AREA_M2),
            ("proportion", 1, _LONGEST),
            ("ceiling_m", 2.2, 6),
            ("frames", 2, 10_000),
        ):
            low, high = getattr(self, name) or (least, most)
            expected = f"two numbers of {least:g} to {most:g}, the lower one first"
            expect(self, name, least <= low <= high <= most, expected, section="variety")

    @classmethod
    def of_difficulty(cls, difficulty: str) -> FlatVariety:
        return _PRESETS[Difficulty(difficulty)]

    def scene(self, config: SceneConfig, rng: np.random.Generator) -> SceneConfig:
        """The config of one flat."""
        share = rng.random(
            5
        ).tolist()  # always five numbers: a fixed range leaves the others as they are
        rooms = config.rooms if self.rooms is None else _whole(self.rooms, share[0])
        size, ceiling = config.size_m, config.ceiling_m
        if self.room_area_m2 is not None:
            area = rooms * _between(self.room_area_m2, share[1])
            longer = round(math.sqrt(area * _between(self.proportion, share[2])), 2)
            sides = (longer, round(area / longer, 2))
            size = sides if share[3] < 0.5 else (sides[1], sides[0])
        if self.ceiling_m is not None:
            ceiling = round(_between(self.ceiling_m, share[4]), 2)
        return msgspec.structs.replace(config, rooms=rooms, size_m=size, ceiling_m=ceiling)

    def walk(self, config: WalkConfig, rng: np.random.Generator) -> WalkConfig:
        """The config of one walk."""
        if self.frames is None:
            return config
        return msgspec.structs.replace(config, frames=_whole(self.frames, float(rng.random())))


def _between(limits: tuple[float, float], share: float) -> float:
    return limits[0] + share * (limits[1] - limits[0])


def _whole(limits: tuple[int, int], share: float) -> int:
    return limits[0] + int(share * (limits[1] - limits[0] + 1))


_PRESETS = {
    Difficulty.EASY: FlatVariety(rooms=(1, 1), room_area_m2=(14.0, 30.0)),
    Difficulty.MEDIUM: FlatVariety(),
    Difficulty.HARD: FlatVariety(rooms=(3, 6), room_area_m2=(12.0, 24.0), frames=(24, 72)),
}
