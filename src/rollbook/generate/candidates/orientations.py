"""Orientations: where a candidate looks, and how far it may stray from that. Every camera is level but for its roll."""

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
"""Closer than this, nothing says which way it is from one point to the other."""


@dataclass(frozen=True, slots=True, eq=False)
class ViewJitter:
    """How views stray, a value per candidate. Radians."""

    azimuth: Array
    """Greatest turn to either side, drawn evenly; not used where there is a `kappa`."""
    elevation: Array
    """Greatest tilt up or down, as above."""
    roll: Array
    """Greatest roll to either side."""
    kappa: Array
    """NaN for the box above; else views are power-spherical about the one that was meant."""
    angle: Array
    """Widest angle to the one that was meant, where there is a `kappa`."""


def view_rotations(
    strategy_id: NDArray[np.int32],
    eyes: Array,
    reference_pose: ArrayLike,
    target_centre: Array | None,
    jitter: ViewJitter,
    uniforms: Array,
) -> Array:
    """[N, 3, 3]; `uniforms` are [N, 3] numbers in [0, 1). Who looks at a target has to be given one."""
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
    """Where each is meant to look, [N, 3] of length 1; as the reference does where its own rule gives no direction."""
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
    """A tilt beyond straight up or down comes back on the same side: no camera is turned over."""
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
    """Turns about the camera's own z, [N, 3, 3]."""
    turn = np.zeros((len(angles), 3, 3))
    turn[:, 0, 0] = turn[:, 1, 1] = np.cos(angles)
    turn[:, 1, 0] = np.sin(angles)
    turn[:, 0, 1] = -turn[:, 1, 0]
    turn[:, 2, 2] = 1
    return turn
