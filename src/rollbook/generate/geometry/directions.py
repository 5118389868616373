"""Fans of directions to draw from, with the exact probability density of every direction.

A direction is given by its azimuth about the world's +Z and the sine of its elevation. In these two coordinates the
area on the sphere is the plain product. Scaling the whole sphere linearly into a fan therefore divides every density by
one constant, and no integral is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.generate.geometry.poses import rotations, wrapped

Array = NDArray[np.float64]

EDGE = 1e-6
"""Limits are wider by this, so that a direction drawn at the edge of a fan lies inside it despite rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class Fans:
    """L fans as columns. Each is a power-spherical distribution about its middle, scaled into its limits.

    `kappa` 0 is uniform. The greater `kappa` is, the closer directions stay to the middle.
    """

    azimuth: Array
    """[L]: the middle, in radians from +x."""
    width: Array
    """[L]: radians from edge to edge, at most a full circle."""
    low: Array
    """[L]: sine of the lowest elevation."""
    high: Array
    """[L]: sine of the highest elevation."""
    kappa: Array

    def drawn(self, fan: NDArray[np.intp], uniforms: Array) -> Array:
        """[N, 3]: one direction from each of the fans `fan`; `uniforms` are [N, 2] numbers in [0, 1)."""
        cosine = power_spherical_cosines(uniforms[:, 0], self.kappa[fan])
        sine, around = np.sqrt(1 - cosine**2), 2 * np.pi * uniforms[:, 1]
        turn = np.arctan2(sine * np.cos(around), cosine) / (2 * np.pi)
        rise = (sine * np.sin(around) + 1) / 2
        low, high = self.low[fan], self.high[fan]
        return spherical(self.azimuth[fan] + turn * self.width[fan], low + rise * (high - low))

    def densities(self, directions: Array) -> Array:
        """[N, L]: densities per steradian of unit directions [N, 3]; 0 outside a fan."""
        azimuth = np.arctan2(directions[:, 1], directions[:, 0])
        turn = wrapped(azimuth[:, None] - self.azimuth) * (2 * np.pi / self.width)
        height = self.high - self.low
        rise = 2 * (directions[:, 2, None] - self.low) / height - 1
        within = (np.abs(turn) <= np.pi + EDGE) & (np.abs(rise) <= 1 + EDGE)
        cosine = np.sqrt(1 - np.clip(rise, -1, 1) ** 2) * np.cos(turn)
        whole = (self.kappa + 1) / (4 * np.pi) * ((1 + cosine) / 2) ** self.kappa
        squeezed = self.width / (2 * np.pi) * height / 2
        return np.where(within, whole / squeezed, 0.0)


def power_spherical_cosines(
    uniforms: Array, kappa: ArrayLike, widest: ArrayLike = np.pi
) -> NDArray[np.float64]:
    """Cosines of angles to the middle, all within `widest` radians; `uniforms` are in [0, 1)."""
    power = np.asarray(kappa, np.float64) + 1
    least = ((1 + np.cos(widest)) / 2) ** power
    return np.asarray(2 * (least + (1 - uniforms) * (1 - least)) ** (1 / power) - 1)


def spherical(azimuth: ArrayLike, rise: ArrayLike) -> Array:
    """Unit directions [..., 3] with this azimuth and this sine of the elevation."""
    level = np.sqrt(np.maximum(1 - np.square(rise), 0))
    return np.stack(
        np.broadcast_arrays(level * np.cos(azimuth), level * np.sin(azimuth), rise), axis=-1
    )


def walking_headings(poses: ArrayLike) -> Array:
    """[...]: heading of the person who carries the camera, about +Z, in radians from +x.

    It is the heading of the view direction. For a camera that looks straight up or down it is the heading of the
    upper or lower image edge.
    """
    turned = rotations(poses)
    forward, down = turned[..., :, 2], turned[..., :, 1]
    vertical = np.hypot(forward[..., 0], forward[..., 1]) < 1e-6
    facing = np.where(vertical[..., None], down * np.sign(forward[..., 2:]), forward)
    return np.asarray(np.arctan2(facing[..., 1], facing[..., 0]))


def bearings(start: ArrayLike, ends: ArrayLike, otherwise: ArrayLike) -> Array:
    """[...]: azimuths of `ends` seen from `start`; `otherwise` for ends straight above or below."""
    offset = np.asarray(ends, np.float64) - np.asarray(start, np.float64)
    level = np.hypot(offset[..., 0], offset[..., 1])
    return np.where(level < 1e-6, otherwise, np.arctan2(offset[..., 1], offset[..., 0]))
