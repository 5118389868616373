"""Import of user data: meshes, recorded trajectories and optional points and boxes become rows of a source store."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollbook.digest import Plain, digest_of
from rollbook.errors import ConfigurationError, InvalidTrajectory
from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.mesh import TriangleMesh
from rollbook.generate.geometry.poses import centres
from rollbook.generate.raycast.scene_geometry import SceneGeometry
from rollbook.generate.scenes.sensing import (
    Semidense,
    detections_of,
    semidense_points,
    visibility,
)
from rollbook.generate.sources.documents import SourceManifest
from rollbook.generate.sources.import_boxes import (
    ImportedBox,
    class_table,
    load_boxes,
    placed_boxes,
)
from rollbook.generate.sources.import_config import (
    ImportConfig,
    RecordingImport,
    SceneImport,
    camera_of,
    refuse_missing_files,
)
from rollbook.generate.sources.import_instances import (
    MeshObjects,
    objects_of,
    refuse_other_format,
)
from rollbook.generate.sources.import_mesh import load_instances, load_mesh
from rollbook.generate.sources.import_points import PointCloud, load_points, seeing_frames
from rollbook.generate.sources.import_trajectory import (
    Trajectory,
    TrajectoryFormat,
    load_pose,
    load_trajectory,
)
from rollbook.generate.sources.layout import checked_id
from rollbook.generate.sources.path_notes import crossing_note, crossings
from rollbook.generate.sources.reader import ActorView
from rollbook.generate.sources.row_checks import OUTSIDE
from rollbook.generate.sources.writer import SourceStoreWriter
from rollbook.notebook import shown_progress

_SEED_DOMAIN = "rollbook.import_seed.v1"
_NOT_SAFE = re.compile(r"[^A-Za-z0-9._+=-]+")
_IN_SURFACE_M = 0.01
_MOST_SIMULATED_VIEWS = 48
_LOOK_PX = 32
"""Pixels along the longer side of the image that shows whether a camera sees the mesh."""

Progress = Callable[[int, int], None]
Say = Callable[[str], None]
"""Receives a message about an assumption, omitted data, or a consequence."""


@dataclass(frozen=True, slots=True)
class ImportReport:
    manifest: SourceManifest
    messages: tuple[str, ...]
    """Messages for people about assumptions, omitted data and their consequences."""


def import_source_store(
    path: str | os.PathLike[str],
    config: ImportConfig,
    *,
    replace: bool = False,
    progress: Progress | None = None,
) -> ImportReport:
    """Imports all scenes into a new store. If anything is invalid, no store is written."""
    for each in config.scenes:
        refuse_missing_files(each)
    messages: list[str] = []
    scenes = [_Scene(each, config, messages.append) for each in config.scenes]
    scenes.sort(key=lambda scene: scene.scene_id)
    _refuse_twins("scene_id", [scene.scene_id for scene in scenes])
    classes = config.classes or class_table(
        (boxes for scene in scenes for boxes in (scene.truth, *scene.detected)),
        (name for scene in scenes for name in scene.object_classes),
    )
    with SourceStoreWriter(
        path,
        config=config.described() | {"classes": list(classes)},
        kind="import",
        splits=config.splits,
        split_of={scene.scene_id: scene.config.split for scene in scenes if scene.config.split},
        rows_per_shard=config.rows_per_shard,
        replace=replace,
    ) as writer:
        with shown_progress("importing scenes", progress) as shown:
            for done, scene in enumerate(scenes, 1):
                scene.write(writer, classes)
                shown(done, len(scenes))
        return ImportReport(writer.finish(), tuple(dict.fromkeys(messages)))


def _refuse_twins(field: str, names: Sequence[str]) -> None:
    twins = {name for name in names if names.count(name) > 1}
    if twins:
        message = f"import.{field}: {min(twins)!r} is given twice; give each a {field} of its own"
        raise ConfigurationError(message=message)


def _safe_stem(path: str) -> str:
    name = Path(path).name.split(".")[0]
    return _NOT_SAFE.sub("-", name).strip("-") or "unnamed"


@dataclass(frozen=True, slots=True, eq=False)
class _ImportedObjects:
    """What simulated detections are made from."""

    mesh: TriangleMesh
    boxes: Boxes
    class_names: Sequence[str]
    first_object_class: int = 0


class _Scene:
    """One scene during an import. Small files are read at once; the mesh is read when the scene is written.

    If its instances become targets, the mesh is read twice, because the store needs the names of all classes first.
    The mesh of a single scene is kept instead.
    """

    def __init__(self, config: SceneImport, whole: ImportConfig, say: Say) -> None:
        self.config = config
        self._say = say
        self.scene_id = checked_id(config.scene_id or _safe_stem(config.mesh), "scene_id")
        self.truth = load_boxes(config.boxes) if config.boxes else []
        self.recordings = [_Recording(self, each, whole, say) for each in config.recordings]
        _refuse_twins("name", [each.name for each in self.recordings])
        if config.boxes is None and config.instances is None:
            say(
                "there are no true boxes: targets have no labels, so no rollouts can be generated; "
                "instances take targets from the mesh"
            )
        self._kept: MeshObjects | None = None
        self.object_classes: tuple[str, ...] = ()
        if config.instances is not None:
            found = self._load_objects()
            self.object_classes = found.class_names
            self._kept = found if len(whole.scenes) == 1 else None

    @property
    def detected(self) -> list[list[ImportedBox]]:
        return [recording.detections for recording in self.recordings]

    def _mesh_options(self) -> dict[str, Any]:
        config = self.config
        return {
            "up": config.mesh_up or config.up,
            "scale": config.mesh_scale or config.scale,
            "weld": config.weld,
            "one_object": config.outside_in,
        }

    def _load_objects(self) -> MeshObjects:
        config = self.config
        assert config.instances is not None
        refuse_other_format(config.instances, config.mesh)
        found = load_instances(
            config.mesh,
            by_components=config.instances == "components",
            **self._mesh_options(),
        )
        return objects_of(found, least_m=config.least_object_m, most_share=config.most_object_share)

    def write(self, writer: SourceStoreWriter, classes: Sequence[str]) -> None:
        config = self.config
        if config.instances is None:
            mesh = load_mesh(config.mesh, **self._mesh_options())
            objects, truth = None, self.placed(self.truth, classes, "boxes")
        else:
            found = self._kept or self._load_objects()
            mesh, truth = found.mesh, found.boxes(classes, f"{self.scene_id} instances")
            objects = _ImportedObjects(mesh, truth, classes)
            self._kept = None
            left_out = f"; of the others, {found.left_out}" if found.left_out else ""
            self._say(f"{mesh.name}: {len(truth)} instances are targets{left_out}")
        if mesh.degenerate_faces:
            self._say(f"{mesh.name}: {mesh.degenerate_faces:,} triangles without area are left out")
        geometry = SceneGeometry(mesh)
        outside = [recording.check_places(geometry) for recording in self.recordings]
        points = {each.config.points is None for each in self.recordings}
        notes = {
            "points": "simulated" if all(points) else "recorded" if not any(points) else "mixed",
            "boxes": "given" if config.boxes else config.instances or "none",
            "renderer": geometry.backend,
        }
        if any(outside):
            notes["cameras"] = OUTSIDE
        paths = [recording.path_note(geometry) for recording in self.recordings]
        if any(paths):
            notes["paths"] = "; ".join(filter(None, paths))
        writer.add_scene(self.scene_id, mesh, truth, notes=notes)
        rows = [
            (each.snippet_id(root), root, each) for each in self.recordings for root in each.roots
        ]
        for snippet_id, root, recording in sorted(rows, key=lambda row: row[0]):
            recording.write(writer, snippet_id, root, geometry, classes, objects)

    def placed(self, boxes: list[ImportedBox], classes: Sequence[str], name: str) -> Boxes:
        where = f"{self.scene_id} {name}"
        return placed_boxes(boxes, classes, name=where, up=self.config.up, scale=self.config.scale)


class _Recording:
    """One trajectory through a scene. Every root frame becomes a row."""

    def __init__(
        self, scene: _Scene, config: RecordingImport, whole: ImportConfig, say: Say
    ) -> None:
        self.scene = scene
        self.config = config
        self.sensing, self.seed = whole.sensing, whole.seed
        self.name = checked_id(config.name or _safe_stem(config.trajectory), "name")
        self.camera = camera_of(config, whole.sensing)
        self._say = say
        self.detections = self._load_detections()
        self.trajectory = self._load_trajectory()
        self.roots = self._load_roots()
        if config.points is None:
            say("there are no points: they are simulated from depth rendered along the path")

    def snippet_id(self, root: int) -> str:
        return checked_id(f"{self.name}-{root:06d}", "name")

    # ---------------------------------------------------------------------------- small files

    def _load_detections(self) -> list[ImportedBox]:
        if self.config.detections is None:
            self._say(
                "there are no detections: targets can only come from the oracle's task sampler"
                if self.scene.config.instances is None
                else "there are no detections: they are simulated from the instances in view"
            )
            return []
        found = load_boxes(self.config.detections)
        if any(box.inst != -1 for box in found):
            self._say("inst of detections is ignored: a detection does not know its object")
        return [msgspec.structs.replace(box, inst=-1) for box in found]

    def _load_trajectory(self) -> Trajectory:
        config, scene = self.config, self.scene.config
        device = config.device_from_camera
        found = load_trajectory(
            config.trajectory,
            format=config.trajectory_format,
            device_from_camera=None if device is None else load_pose(device),
            frame_rate_hz=config.frame_rate_hz,
        )
        if not found.times_known:
            self._say(f"{self.name} has no times: its frames are {config.frame_rate_hz:g} a second")
        if found.format is TrajectoryFormat.ARIA and device is None:
            self._say(
                f"{self.name} holds poses of the device: without device_from_camera they are used as camera poses"
            )
        return found.every(config.every).in_world(scene.up, scene.scale)

    def _load_roots(self) -> list[int]:
        count = len(self.trajectory)
        if not self.config.root_frames:
            middle = count // 2
            self._say(
                f"{self.name}: no root frame was given, so it is the middle one, {middle} of {count}"
            )
            return [middle]
        lost = [each for each in self.config.root_frames if not -count <= each < count]
        if lost:
            message = f"root frame {lost[0]}: {self.name} has {count} frames, counted from 0"
            raise ConfigurationError(message=message)
        return sorted({each % count for each in self.config.root_frames})

    # ----------------------------------------------------------------------------------- rows

    def check_places(self, geometry: SceneGeometry) -> bool:
        """Refuses a trajectory with cameras in walls or outside the mesh: the two files do not match.

        With `outside_in` a camera may be outside if it sees the mesh. Returns whether one is.
        """
        places = centres(self.trajectory.poses)
        low, high = geometry.bounds
        outside = ((places < low) | (places > high)).any(axis=1)
        lost = outside.copy()
        if self.scene.config.outside_in:
            small = _at_most(self.camera, _LOOK_PX)
            seen = geometry.depth(self.trajectory.poses[outside].astype(np.float32), small)
            lost[outside] = ~seen.any(axis=(1, 2))
        near = geometry.distance(places.astype(np.float32), _IN_SURFACE_M) < _IN_SURFACE_M
        bad = np.flatnonzero(lost | near)
        in_root = np.intersect1d(bad, self.roots)
        if len(bad) <= self.config.most_bad_frames * len(places) and not len(in_root):
            return bool(outside.any())
        first = in_root[0] if len(in_root) else bad[0]
        if self.scene.config.outside_in:
            where, hint = "outside the mesh and do not see it", ""
        else:
            where = "outside the mesh"
            hint = " --outside-in (outside_in in TOML) allows cameras that look at the mesh from outside."
        detail = (
            f"{len(bad) / len(places):.0%} of {len(places)} frames lie {where} ({lost.sum()}) or "
            f"within 1 cm of a surface ({near.sum()}), such as frame {first} at {_format_place(places[first])}; "
            f"the mesh spans {_format_place(low)} to {_format_place(high)}. Do up and scale fit both files?{hint}"
        )
        raise InvalidTrajectory(record=Path(self.config.trajectory).name, detail=detail)

    def path_note(self, geometry: SceneGeometry) -> str | None:
        """A sentence about the frames at which the path passes through a surface; None if it passes through none."""
        note = crossing_note(self.name, crossings(geometry, self.trajectory.poses))
        if note is not None:
            self._say(note)
        return note

    def write(
        self,
        writer: SourceStoreWriter,
        snippet_id: str,
        root: int,
        geometry: SceneGeometry,
        classes: Sequence[str],
        objects: _ImportedObjects | None,
    ) -> None:
        config = self.config
        poses, times = self.trajectory.poses.astype(np.float32), self.trajectory.t_ns
        first = 0 if config.prefix_frames is None else max(0, root + 1 - config.prefix_frames)
        last = None if config.continuation_frames is None else root + 1 + config.continuation_frames
        prefix = poses[first : root + 1]
        if config.points is None:
            seen = self._simulated(geometry, prefix, root)
        else:
            seen = self._recorded(geometry, prefix, snippet_id)
        actor = ActorView(
            prefix,
            times[first : root + 1],
            self.camera,
            seen.points,
            seen.frame,
            seen.inv_dist_std,
            seen.dist_std,
            self._simulated_detections(objects, geometry, prefix, root)
            if objects is not None and config.detections is None
            else self.scene.placed(self.detections, classes, "detections"),
        )
        later = slice(root + 1, last)
        writer.add_row(self.scene.scene_id, snippet_id, actor, poses[later], times[later])

    @cached_property
    def _cloud(self) -> PointCloud:
        cloud = load_points(
            self.config.points or "",
            max_inv_dist_std=self.config.max_inv_dist_std,
            max_dist_std=self.config.max_dist_std,
            up=self.scene.config.up,
            scale=self.scene.config.scale,
        )
        if cloud.dropped:
            self._say(
                f"{self.name}: {cloud.dropped:,} points are left out because of their uncertainty"
            )
        return cloud

    def _recorded(
        self, geometry: SceneGeometry, prefix: NDArray[np.float32], snippet_id: str
    ) -> Semidense:
        cloud = self._cloud
        frame = seeing_frames(cloud.points, prefix, self.camera, geometry)
        kept = np.flatnonzero(frame >= 0)
        self._say(
            f"{snippet_id}: {len(kept):,} of {len(cloud):,} points were visible before the root"
        )
        chosen = cloud.take(kept)
        return Semidense(chosen.points, frame[kept], chosen.inv_dist_std, chosen.dist_std)

    def _simulated(
        self, geometry: SceneGeometry, prefix: NDArray[np.float32], root: int
    ) -> Semidense:
        """Points simulated as in procedural scenes, from frames spread evenly over the path."""
        frames, poses, camera = self._views(prefix)
        depth, face = geometry.depth_and_faces(poses, camera)
        normals = geometry.mesh.normals[np.maximum(face, 0)]
        seen = semidense_points(depth, normals, poses, camera, self.sensing, self._rng(root))
        return Semidense(seen.points, frames[seen.frame], seen.inv_dist_std, seen.dist_std)

    def _simulated_detections(
        self,
        objects: _ImportedObjects,
        geometry: SceneGeometry,
        prefix: NDArray[np.float32],
        root: int,
    ) -> Boxes:
        """Detections simulated as in procedural scenes: some objects are missed, and no box is exact."""
        _, poses, camera = self._views(prefix)
        depth, face = geometry.depth_and_faces(poses, camera)
        quality = visibility(objects, face, poses, camera, self.sensing.least_pixels)
        rng = self._rng(root, "detections")
        return detections_of(objects, quality, depth, poses, camera, self.sensing, rng)

    def _views(
        self, prefix: NDArray[np.float32]
    ) -> tuple[NDArray[np.int32], NDArray[np.float32], Camera]:
        """Frames spread evenly over the path, their poses, and the camera of simulated images."""
        spread = np.linspace(0, len(prefix) - 1, min(len(prefix), _MOST_SIMULATED_VIEWS))
        frames = np.unique(spread.round().astype(np.int32))
        return frames, prefix[frames], _at_most(self.camera, self.sensing.image_px)

    def _rng(self, root: int, *purpose: str) -> np.random.Generator:
        named: list[Plain] = [self.seed, self.scene.scene_id, self.name, root, *purpose]
        return np.random.default_rng(int(digest_of(_SEED_DOMAIN, named), 16))


def _at_most(camera: Camera, pixels: int) -> Camera:
    """The same view with at most `pixels` along each side."""
    scale = min(1.0, pixels / max(camera.width, camera.height))
    return camera.resized(max(1, round(camera.width * scale)), max(1, round(camera.height * scale)))


def _format_place(place: NDArray[np.float64]) -> str:
    return f"({', '.join(f'{value:.2f}' for value in place)})"
