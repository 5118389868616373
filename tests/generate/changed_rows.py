"""The first row of the tiny source with something about it changed, in a store of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.mesh import TriangleMesh
from rollbook.generate.geometry.poses import poses_of
from rollbook.generate.sources.reader import ActorView, OracleView, SourceStore
from rollbook.generate.sources.splits import SplitConfig
from rollbook.generate.sources.writer import SourceStoreWriter
from tests.generate.oracle_rooms import box_triangles
from tests.generate.tiny_source import tiny_source


def the_row() -> tuple[ActorView, OracleView]:
    row = SourceStore.open(tiny_source()).row(0)
    assert row.oracle is not None
    return row.actor, row.oracle


def a_store(
    path: Path,
    actor: ActorView,
    boxes: Boxes,
    *,
    mesh: TriangleMesh | None = None,
    continuation: NDArray[np.float32] | None = None,
) -> dict[str, str]:
    """That row with another actor's side and other true boxes, as the `source` of a config."""
    _, oracle = the_row()
    later = oracle.continuation if continuation is None else continuation
    with SourceStoreWriter(path, config={}, splits=SplitConfig(train=1, val=0, test=0)) as writer:
        writer.add_scene("scene", oracle.mesh if mesh is None else mesh, boxes)
        writer.add_row("scene", "row", actor, later, oracle.continuation_t_ns[: len(later)])
        writer.finish()
    return {"store_dir": str(path), "split": "train"}


def with_box(mesh: TriangleMesh, centre: ArrayLike, size: float) -> TriangleMesh:
    """The mesh and a closed cube."""
    middle = np.asarray(centre, np.float64)
    corners = box_triangles(middle - size / 2, middle + size / 2).reshape(-1, 3)
    return TriangleMesh(
        np.concatenate([mesh.vertices, corners]),
        np.concatenate([mesh.faces, len(mesh.vertices) + np.arange(len(corners)).reshape(-1, 3)]),
    )


def ahead_of(actor: ActorView, metres: float) -> NDArray[np.float64]:
    """A place in front of the root."""
    pose = actor.poses[-1].astype(np.float64)
    return np.asarray(pose[9:] + metres * pose[:9].reshape(3, 3)[:, 2])


def told_of(actor: ActorView, centre: ArrayLike, size: float) -> tuple[ActorView, Boxes]:
    """An actor that has detected a cube there and nothing else, and has points in it; and the true box."""
    box = Boxes.build(poses_of(np.eye(3), centre)[None], [[size] * 3], [7], class_name=["ghost"])
    offsets = np.random.default_rng(0).uniform(-size / 2, size / 2, (40, 3))
    points = (np.asarray(centre) + offsets).astype(np.float32)
    told = replace(
        actor,
        detections=box,
        points=points,
        point_frame=np.zeros(40, np.int32),
        inv_dist_std=np.zeros(40, np.float32),
        dist_std=np.zeros(40, np.float32),
    )
    return told, replace(box, inst_id=np.zeros(1, np.int32))
