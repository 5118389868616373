"""Defects of a scan: holes, loose triangles in the air, and noise on the vertices."""

from __future__ import annotations

import msgspec
import numpy as np

from rollbook.generate.config_checks import expect
from rollbook.generate.geometry.mesh import TriangleMesh

_MOST_M = 0.05


class DefectConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    holes: int = 0
    """Number of holes in the surface."""
    hole_radius_m: float = 0.15
    """Largest radius of a hole; the smallest is a third of it."""
    shards: int = 0
    """Number of loose triangles in the air, without class and object."""
    noise_m: float = 0.0
    """Standard deviation of each vertex coordinate; noise beyond twice this is cut off."""

    def __post_init__(self) -> None:
        expect(self, "holes", 0 <= self.holes <= 10_000, "0 to 10000")
        expect(self, "hole_radius_m", 0 < self.hole_radius_m <= 1, "more than 0, at most 1")
        expect(self, "shards", 0 <= self.shards <= 100_000, "0 to 100000")
        expect(self, "noise_m", 0 <= self.noise_m <= _MOST_M, f"0 to {_MOST_M}")

    @property
    def any(self) -> bool:
        return self.holes > 0 or self.shards > 0 or self.noise_m > 0


def with_defects(
    mesh: TriangleMesh, config: DefectConfig, rng: np.random.Generator
) -> TriangleMesh:
    """The mesh with defects. The boxes of objects describe the objects, so they do not change."""
    vertices = mesh.vertices.astype(np.float64)
    x, y, z = (mesh.triangles[:, :, k] @ np.full(3, 1 / 3) for k in range(3))
    kept = np.ones(len(mesh), bool)
    share = mesh.areas / mesh.areas.sum()
    for face in rng.choice(len(mesh), config.holes, p=share).tolist():
        radius = config.hole_radius_m * rng.uniform(1 / 3, 1)
        kept &= (x - x[face]) ** 2 + (y - y[face]) ** 2 + (z - z[face]) ** 2 > radius**2
    noise = np.clip(rng.normal(size=vertices.shape), -2, 2) * config.noise_m
    low, high = mesh.bounds
    corners = rng.uniform(low + 0.2, high - 0.2, (config.shards, 1, 3))
    loose = (corners + rng.normal(0, 0.03, (config.shards, 3, 3))).reshape(-1, 3)
    torn = np.arange(len(loose)).reshape(-1, 3) + len(vertices)
    none = np.full(config.shards, -1, np.int32)
    return TriangleMesh(
        np.concatenate([vertices + noise, loose]),
        np.concatenate([mesh.faces[kept], torn]),
        np.concatenate([mesh.sem_id[kept], none]),
        np.concatenate([mesh.inst_id[kept], none]),
        name=mesh.name,
    )
