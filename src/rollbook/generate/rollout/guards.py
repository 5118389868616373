"""Guards: least distances between a branch, the places its chain has visited, and its siblings.

A guard at 0 is off. A candidate that cannot be compared does not pass, for example one without a bearing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollbook.errors import ConfigurationError, InvalidValue
from rollbook.generate.config_checks import expect
from rollbook.generate.geometry.poses import centres, headings, wrapped

Mask = NDArray[np.bool_]

_DISTANCES = ("min_history_distance_m", "min_sibling_distance_m")
_ANGLES = ("min_sibling_yaw_deg", "min_sibling_target_bearing_deg")


@dataclass(frozen=True, slots=True, eq=False)
class GuardView:
    """The input of the guards: one whole shell and the visited places."""

    poses: NDArray[np.float64]
    """[N, 12]"""
    strategy_id: NDArray[np.int32]
    """[N]"""
    target_bearing_deg: NDArray[np.float64] | None
    """[N]; None when there is no target."""
    history: NDArray[np.float64]
    """[k, 3]: visited camera centres, including the current one."""

    def __post_init__(self) -> None:
        count = len(self.poses)
        _check_shape("poses", self.poses, (count, 12))
        _check_shape("strategy_id", self.strategy_id, (count,))
        if self.target_bearing_deg is not None:
            _check_shape("target_bearing_deg", self.target_bearing_deg, (count,))
        _check_shape("history", self.history, (len(self.history), 3))

    def __len__(self) -> int:
        return len(self.poses)


class Guards(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Least differences between the branches of one node. All are off unless set."""

    min_history_distance_m: float = 0.0
    """Least distance from every visited camera centre."""
    min_sibling_distance_m: float = 0.0
    """Least distance between the camera centres of siblings."""
    min_sibling_yaw_deg: float = 0.0
    """Least angle between the headings of siblings about +Z."""
    min_sibling_target_bearing_deg: float = 0.0
    """Least angle between the target bearings of siblings."""
    require_sibling_strategy_diversity: bool = False
    """Whether all siblings must have different view strategies."""

    def __post_init__(self) -> None:
        for fields, most, expected in (
            (_DISTANCES, math.inf, "a finite number of metres from 0 up"),
            (_ANGLES, 180.0, "an angle from 0 to 180"),
        ):
            for field in fields:
                value = getattr(self, field)
                holds = 0 <= value <= most and math.isfinite(value)
                expect(self, field, holds, expected, section="guards")

    def far_from_history(self, view: GuardView) -> Mask:
        """[N]: which candidates are far enough from every visited place."""
        if self.min_history_distance_m == 0:
            return np.ones(len(view), np.bool_)
        offsets = centres(view.poses)[:, None] - view.history
        far = np.linalg.norm(offsets, axis=-1) >= self.min_history_distance_m
        return np.asarray(far.all(axis=1))

    def apart_from(self, view: GuardView, sibling: int) -> Mask:
        """[N]: which candidates differ enough from candidate `sibling`, which itself never does."""
        apart = np.ones(len(view), np.bool_)
        apart[sibling] = False
        if self.min_sibling_distance_m:
            centre = centres(view.poses)
            distance = np.linalg.norm(centre - centre[sibling], axis=-1)
            apart &= distance >= self.min_sibling_distance_m
        if self.min_sibling_yaw_deg:
            heading = np.rad2deg(headings(view.poses))
            apart &= _turn_deg(heading, sibling) >= self.min_sibling_yaw_deg
        if self.min_sibling_target_bearing_deg:
            bearing = self._bearings(view)
            apart &= _turn_deg(bearing, sibling) >= self.min_sibling_target_bearing_deg
        if self.require_sibling_strategy_diversity:
            apart &= view.strategy_id != view.strategy_id[sibling]
        return apart

    def _bearings(self, view: GuardView) -> NDArray[np.float64]:
        if view.target_bearing_deg is None:
            raise ConfigurationError(
                message=f"guards.min_sibling_target_bearing_deg is {self.min_sibling_target_bearing_deg}, "
                "expected 0: there is no target to take a bearing of"
            )
        return view.target_bearing_deg


def _turn_deg(angles_deg: NDArray[np.float64], sibling: int) -> NDArray[np.float64]:
    """[N]: angle to the sibling, by the shorter way round."""
    turn = wrapped(np.deg2rad(np.asarray(angles_deg, np.float64) - angles_deg[sibling]))
    return np.asarray(np.rad2deg(np.abs(turn)))


def _check_shape(field: str, values: NDArray[np.generic], expected: tuple[int, ...]) -> None:
    if values.shape != expected:
        raise InvalidValue(
            record="guard view",
            field=field,
            value=f"of shape {list(values.shape)}",
            expected=f"{list(expected)}",
        )
