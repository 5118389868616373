"""Directions: fans that can be drawn from, with the exact density of every direction in them.

Azimuth turns about the world's +Z, and the sine of the elevation goes with it, because the two together measure area:
a patch of the sphere is as large as its azimuths times its sines. So squeezing the whole sphere linearly into a fan
divides every density by one constant, and nothing has to be integrated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.generate.geometry.poses import rotations, wrapped

Array = NDArray[np.float64]

EDGE = 1e-6
"""What is drawn at the edge of a fan lies in it, whichever way it was rounded: limits are this much wider."""


@dataclass(frozen=True, slots=True, eq=False)
class Fans:
    """L fans as columns: each is a power-spherical distribution about its middle, squeezed into its limits.

    `kappa` 0 is uniform; the greater it is, the closer directions keep to the middle.
    """

    azimuth: Array
    """[L], radians from +x: the middle."""
    width: Array
    """[L], radians from edge to edge, at most a full circle."""
    low: Array
    """[L]: sine of the least elevation."""
    high: Array
    """[L]: sine of the greatest elevation."""
    kappa: Array

    def drawn(self, fan: NDArray[np.intp], uniforms: Array) -> Array:
        """One direction [N, 3] from each of these fans; `uniforms` are [N, 2] numbers in [0, 1)."""
        cosine = power_spherical_cosines(uniforms[:, 0], self.kappa[fan])
        sine, around = np.sqrt(1 - cosine**2), 2 * np.pi * uniforms[:, 1]
        turn = np.arctan2(sine * np.cos(around), cosine) / (2 * np.pi)
        rise = (sine * np.sin(around) + 1) / 2
        low, high = self.low[fan], self.high[fan]
        return spherical(self.azimuth[fan] + turn * self.width[fan], low + rise * (high - low))

    def densities(self, directions: Array) -> Array:
        """[N, L] per steradian, of directions [N, 3] of length 1; 0 outside a fan."""
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
    """Cosines of the angle to the middle, none wider than `widest` radians; `uniforms` in [0, 1)."""
    power = np.asarray(kappa, np.float64) + 1
    least = ((1 + np.cos(widest)) / 2) ** power
    return np.asarray(2 * (least + (1 - uniforms) * (1 - least)) ** (1 / power) - 1)


def spherical(azimuth: ArrayLike, rise: ArrayLike) -> Array:
    """Directions [..., 3] of this azimuth and this sine of the elevation."""
    level = np.sqrt(np.maximum(1 - np.square(rise), 0))
    return np.stack(
        np.broadcast_arrays(level * np.cos(azimuth), level * np.sin(azimuth), rise), axis=-1
    )


def walking_headings(poses: ArrayLike) -> Array:
    """Where the one who carries the camera faces, about +Z, radians from +x, [...].

    That is where the camera looks; straight up or down, it is where the edge of the image says.
    """
    turned = rotations(poses)
    forward, down = turned[..., :, 2], turned[..., :, 1]
    vertical = np.hypot(forward[..., 0], forward[..., 1]) < 1e-6
    facing = np.where(vertical[..., None], down * np.sign(forward[..., 2:]), forward)
    return np.asarray(np.arctan2(facing[..., 1], facing[..., 0]))


def bearings(start: ArrayLike, ends: ArrayLike, otherwise: ArrayLike) -> Array:
    """Azimuths of `ends` seen from `start`, [...]; `otherwise` for what lies straight above or below."""
    offset = np.asarray(ends, np.float64) - np.asarray(start, np.float64)
    level = np.hypot(offset[..., 0], offset[..., 1])
    return np.where(level < 1e-6, otherwise, np.arctan2(offset[..., 1], offset[..., 0]))
