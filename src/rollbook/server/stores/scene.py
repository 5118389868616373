"""The surroundings of a rollout for people: the mesh of its scene with fewer triangles, or the points that were seen.

The mesh is in the source store from which the rollout was made, if the server may read it. It has to be the source
store that the rollout names by its digest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rollbook.errors import ChecksumMismatch, RollbookError
from rollbook.generate.geometry.decimation import decimated
from rollbook.generate.sources.reader import SourceStore
from rollbook.server.context import Caller, ServerContext
from rollbook.server.stores.ceiling import ceiling_over
from rollbook.server.stores.opened import OpenedStore
from rollbook.server.stores.source_store import open_source, source_folders
from rollbook.store.audit.step_candidates import points_seen, poses_considered, target_of
from rollbook.store.reader import RolloutZarrStoreReader

MOST_TRIANGLES = 25_000
MOST_POINTS = 60_000
_HEADROOM_M = 0.1
_WORTH_CUTTING_M = 0.2
_BELOW_CEILING_M = 0.05
_KEPT_MESHES = 16

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    kind: Literal["mesh", "points", "none"]
    positions: Floats
    """[V, 3]: vertices, or points."""
    corners: NDArray[np.uint32]
    """[F, 3]: triangles."""
    walk: Floats
    """[T, 3]: where the camera went before the root."""
    triangles: int
    """Of the whole mesh."""
    cut_m: float | None
    """Surfaces above this height hide what is below, so they are left out."""
    reason: str | None
    """Why there is no mesh."""


async def scene_of(
    context: ServerContext, caller: Caller, opened: OpenedStore, rollout_row: int
) -> Scene:
    folders = await source_folders(context, caller.org_id, opened)
    return await opened.run(lambda reader: _scene(reader, rollout_row, folders))


def _scene(reader: RolloutZarrStoreReader, row: int, folders: tuple[Path, ...]) -> Scene:
    source_row, digest, key = _source_of(reader, row)
    try:
        source = open_source(folders, digest)
        if source.entry(source_row).sample_key != key:
            detail = f"its row {source_row} is not {key}"
            raise ChecksumMismatch(path="source store", detail=detail)
        return mesh_scene(reader, row, source, source_row)
    except RollbookError as error:
        reason = str(error.fields.get("detail", error))
    except OSError as error:
        reason = str(error)
    points = points_seen(reader, row, MOST_POINTS)
    return Scene(
        kind="points" if len(points) else "none",
        positions=points,
        corners=np.zeros((0, 3), np.uint32),
        walk=np.zeros((0, 3), np.float32),
        triangles=0,
        cut_m=_cut(reader, row, points, ceiling=None),
        reason=reason,
    )


def _source_of(reader: RolloutZarrStoreReader, row: int) -> tuple[int, str | None, str | None]:
    """The source row of a rollout: its index, the digest of its source store, and its key."""
    source_row = int(reader.array("rollouts/source_row_id")[row])
    places = np.flatnonzero(reader.array("sources/source_row_id") == source_row)[:1]
    if not len(places):
        return source_row, None, None
    [digest] = reader.decoded("sources", "source_offline_store_manifest_hash_id", places)
    [key] = reader.decoded("sources", "sample_key_id", places)
    return source_row, digest, key


def mesh_scene(
    reader: RolloutZarrStoreReader, row: int, source: SourceStore, source_row: int
) -> Scene:
    scene_id = source.entry(source_row).scene_id
    positions, faces, triangles = _fewer_triangles(source, scene_id)
    walk = np.ascontiguousarray(source.row(source_row).actor.poses[:, 9:], np.float32)
    cut = _cut(reader, row, positions, ceiling=ceiling_over(walk[-1], positions, faces))
    if cut is not None:
        faces = faces[(positions[:, 2] <= cut)[faces].any(axis=1)]
    return Scene(
        kind="mesh",
        positions=positions,
        corners=faces.astype(np.uint32),
        walk=walk,
        triangles=triangles,
        cut_m=cut,
        reason=None,
    )


@lru_cache(_KEPT_MESHES)
def _fewer_triangles(source: SourceStore, scene_id: str) -> tuple[Floats, NDArray[np.int32], int]:
    mesh = source.mesh(scene_id)
    positions, faces = decimated(mesh.vertices, mesh.faces, MOST_TRIANGLES)
    return positions, faces, len(mesh)


def _cut(
    reader: RolloutZarrStoreReader, row: int, positions: Floats, *, ceiling: float | None
) -> float | None:
    """A little above the highest camera and the target, but below the ceiling. None where no more than cameras and the
    target reach that high."""
    if not len(positions):
        return None
    heights = poses_considered(reader, row)[:, 11]
    tops = [float(heights[np.isfinite(heights)].max(initial=-np.inf))]
    tops.append(float(reader.array("rollouts/root_pose_world")[row, 11]))
    target = target_of(reader, row)
    if target is not None and target.is_drawable:
        reach = float(np.abs(target.pose[6:9]) @ target.extents) / 2
        tops.append(float(target.pose[11]) + reach)
    cut = max((top for top in tops if np.isfinite(top)), default=np.inf) + _HEADROOM_M
    if ceiling is not None:
        return round(min(cut, ceiling - _BELOW_CEILING_M), 2)
    if positions[:, 2].max() < cut + _WORTH_CUTTING_M:
        return None
    return round(cut, 2)
