"""Orientations: the intended view direction of a candidate and its jitter. Cameras are level except for their roll."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.contracts.reasons import STRATEGY_NAMES
from rollbook.generate.geometry.directions import power_spherical_cosines, spherical
from rollbook.generate.geometry.poses import centres, forwards, looking_along

Array = NDArray[np.float64]
_RADIAL_AWAY, _RADIAL_TOWARDS, _TARGET_POINT = map(
    STRATEGY_NAMES.index, ("radial_away", "radial_towards", "target_point")
)
_AT_ONE_PLACE_M = 1e-3
"""Two points closer than this give no direction."""


@dataclass(frozen=True, slots=True, eq=False)
class ViewJitter:
    """Jitter of views, one value per candidate, in radians."""

    azimuth: Array
    """Greatest turn to either side, drawn evenly; unused if there is a `kappa`."""
    elevation: Array
    """Greatest tilt up or down, drawn evenly; unused if there is a `kappa`."""
    roll: Array
    """Greatest roll to either side."""
    kappa: Array
    """Concentration of power-spherical views about the intended direction; NaN for even jitter."""
    angle: Array
    """Greatest angle to the intended direction if there is a `kappa`."""


def view_rotations(
    strategy_id: NDArray[np.int32],
    eyes: Array,
    reference_pose: ArrayLike,
    target_centre: Array | None,
    jitter: ViewJitter,
    uniforms: Array,
) -> Array:
    """[N, 3, 3]: rotations of the candidates; `uniforms` are [N, 3] numbers in [0, 1)."""
    meant = view_directions(strategy_id, eyes, reference_pose, target_centre)
    looks = np.where(
        np.isnan(jitter.kappa)[:, None],
        _in_box(meant, jitter, uniforms),
        _in_cone(meant, jitter, uniforms),
    )
    return looking_along(looks) @ _rolled((2 * uniforms[:, 2] - 1) * jitter.roll)


def view_directions(
    strategy_id: NDArray[np.int32],
    eyes: Array,
    reference_pose: ArrayLike,
    target_centre: Array | None,
) -> Array:
    """[N, 3]: intended unit view directions; that of the reference where a strategy gives no direction."""
    ahead = np.broadcast_to(forwards(reference_pose), eyes.shape)
    away = eyes - centres(reference_pose)
    to_target = ahead if target_centre is None else target_centre - eyes
    strategy = strategy_id[:, None]
    looks = np.select(
        [strategy == _RADIAL_AWAY, strategy == _RADIAL_TOWARDS, strategy == _TARGET_POINT],
        [away, -away, to_target],
        ahead,
    )
    length = np.linalg.norm(looks, axis=1, keepdims=True)
    known = length > _AT_ONE_PLACE_M
    return np.where(known, looks / np.where(known, length, 1.0), ahead)


def _in_box(meant: Array, jitter: ViewJitter, uniforms: Array) -> Array:
    """Even jitter. A tilt beyond straight up or down is reflected, so that no camera is upside down."""
    turn = (2 * uniforms[:, 0] - 1) * jitter.azimuth
    tilt = (2 * uniforms[:, 1] - 1) * jitter.elevation
    azimuth = np.arctan2(meant[:, 1], meant[:, 0]) + turn
    elevation = np.arcsin(np.clip(meant[:, 2], -1, 1)) + tilt
    strayed = spherical(azimuth, np.sin(elevation))
    return np.where(((turn != 0) | (tilt != 0))[:, None], strayed, meant)


def _in_cone(meant: Array, jitter: ViewJitter, uniforms: Array) -> Array:
    kappa = np.nan_to_num(jitter.kappa)
    cosine = power_spherical_cosines(uniforms[:, 0], kappa, jitter.angle)
    sine, around = np.sqrt(np.maximum(1 - cosine**2, 0)), 2 * np.pi * uniforms[:, 1]
    seen = np.stack([sine * np.cos(around), sine * np.sin(around), cosine], axis=-1)
    return np.asarray((looking_along(meant) @ seen[..., None])[..., 0])


def _rolled(angles: Array) -> Array:
    """[N, 3, 3]: rotations about the camera's own z."""
    turn = np.zeros((len(angles), 3, 3))
    turn[:, 0, 0] = turn[:, 1, 1] = np.cos(angles)
    turn[:, 1, 0] = np.sin(angles)
    turn[:, 0, 1] = -turn[:, 1, 0]
    turn[:, 2, 2] = 1
    return turn
