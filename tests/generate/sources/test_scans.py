"""Real scans: cameras around an object, targets from the instances of a mesh, paths through surfaces."""

from __future__ import annotations

import base64
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rollbook.errors import ConfigurationError, InvalidMesh, InvalidTrajectory
from rollbook.generate.geometry.poses import centres, look_at
from rollbook.generate.raycast.scene_geometry import SceneGeometry
from rollbook.generate.sources.import_config import ImportConfig, RecordingImport, SceneImport
from rollbook.generate.sources.import_instances import objects_of
from rollbook.generate.sources.import_mesh import load_instances, load_mesh
from rollbook.generate.sources.import_source import ImportReport, import_source_store
from rollbook.generate.sources.reader import SourceRow, SourceStore
from rollbook.generate.sources.validation import validate_source_store
from rollbook.store.reader import RolloutZarrStoreReader
from tests.generate.tiny_source import tiny_config

trimesh: Any = importlib.import_module("trimesh")

OBJECTS = {
    "mug.001": ((0.1, 0.1, 0.12), (-0.3, 0.1, 0.06), 0.0),
    "mug.002": ((0.1, 0.1, 0.12), (0.4, -0.2, 0.06), 0.0),
    "book": ((0.3, 0.2, 0.05), (0.1, 0.15, 0.025), 0.5),
}
"""Extents, centre and yaw of each object on the table."""
TOP = ((1.4, 1.0, 0.04), (0.0, 0.0, -0.02), 0.0)


def table() -> Any:
    """A table top whose upper side is at height 0, with three objects on it. Each is a node of its own."""
    scene = trimesh.Scene()
    for name, (extents, centre, yaw) in {"top": TOP, **OBJECTS}.items():
        matrix = trimesh.transformations.rotation_matrix(yaw, [0, 0, 1])
        matrix[:3, 3] = centre
        scene.add_geometry(
            trimesh.creation.box(extents), node_name=name, geom_name=name, transform=matrix
        )
    return scene


def orbit(path: Path, *, radius: float = 1.2, height: float = 0.7, up: int = 0) -> str:
    """Twenty-four frames around the table that all look at its middle; with `up`, at the sky."""
    angle = np.linspace(0, 1.5 * np.pi, 24)
    eyes = np.stack([radius * np.cos(angle), radius * np.sin(angle), np.full(24, height)], axis=1)
    goals = np.where(up, eyes + np.array([0.01, 0, 5]), 0.0)
    return save_path(path, look_at(eyes, goals))


def save_path(path: Path, poses: NDArray[Any]) -> str:
    matrices = np.tile(np.eye(4), (len(poses), 1, 1))
    matrices[:, :3, :3], matrices[:, :3, 3] = poses[:, :9].reshape(-1, 3, 3), poses[:, 9:]
    path.write_text(json.dumps(matrices.tolist()))
    return str(path)


@pytest.fixture
def scan(tmp_path: Path) -> SceneImport:
    table().export(tmp_path / "table.glb")
    recording = RecordingImport(
        trajectory=orbit(tmp_path / "orbit.json"), size_px=(120, 90), root_frames=(12,)
    )
    return SceneImport(
        mesh=str(tmp_path / "table.glb"),
        recordings=(recording,),
        instances="nodes",
        outside_in=True,
        split="train",
    )


def imported(scan: SceneImport, out: Path) -> tuple[ImportReport, SourceRow]:
    report = import_source_store(out, ImportConfig(scenes=(scan,)))
    return report, SourceStore.open(out).row(0)


def changed(scan: SceneImport, **fields: Any) -> SceneImport:
    plain = {name: getattr(scan, name) for name in SceneImport.__struct_fields__}
    return SceneImport(**plain | fields)


# ------------------------------------------------------------------------------- cameras outside


def test_cameras_around_a_table_are_imported_and_rollouts_generated(
    scan: SceneImport, tmp_path: Path
) -> None:
    imported(scan, tmp_path / "source")
    assert validate_source_store(tmp_path / "source", deep=True).ok
    config = tiny_config(
        tmp_path / "x.zarr",
        source={"store_dir": str(tmp_path / "source")},
        max_targets_per_sample=3,
    )
    reader = RolloutZarrStoreReader(config.setup_target().run().store_dir)
    taken = reader.array("candidates/selected_mask")
    places = reader.array("candidates/pose_world_cam")[taken][:, 9:]
    assert len(places) >= 2
    assert (
        places[:, 2] > 0.12
    ).all()  # above everything that stands on the table: outside the mesh
    assert reader.array("candidates/target_root_gain")[taken].max() > 0


def test_the_space_for_candidates_grows_only_where_the_path_was_outside(tmp_path: Path) -> None:
    table().export(tmp_path / "table.glb")
    geometry = SceneGeometry(load_mesh(tmp_path / "table.glb"))
    low, high = geometry.bounds
    wide = geometry.widened([[0.0, 0.0, 1.0], [0.2, -0.9, 0.05]])
    assert wide.bounds.tolist() == [[low[0], pytest.approx(-1.4), low[2]], [high[0], high[1], 1.5]]
    assert geometry.bounds.tolist() == [low.tolist(), high.tolist()]
    assert geometry.widened([[0.0, 0.0, 0.1]]) is geometry


def test_without_the_option_they_are_refused_and_the_option_is_named(
    scan: SceneImport, tmp_path: Path
) -> None:
    with pytest.raises(InvalidTrajectory, match=r"100% of 24 frames lie outside.*--outside-in"):
        imported(changed(scan, outside_in=False), tmp_path / "source")


def test_a_camera_outside_that_does_not_see_the_mesh_is_refused(
    scan: SceneImport, tmp_path: Path
) -> None:
    away = RecordingImport(trajectory=orbit(tmp_path / "sky.json", up=1))
    with pytest.raises(InvalidTrajectory, match=r"outside the mesh and do not see it \(24\)"):
        imported(changed(scan, recordings=(away,)), tmp_path / "source")


def test_an_object_may_be_much_smaller_than_a_room(tmp_path: Path) -> None:
    trimesh.creation.icosphere(radius=0.05).export(tmp_path / "apple.ply")
    assert len(load_mesh(tmp_path / "apple.ply", one_object=True)) == 1280
    with pytest.raises(InvalidMesh, match=r"expected 0\.5 to 200 m"):
        load_mesh(tmp_path / "apple.ply")


# ------------------------------------------------------------------------------ targets from the mesh


def write_ply_with_ids(path: Path, *, of: str) -> None:
    """The table as one PLY whose faces or vertices have an `instance_id`, from 5 up in steps of 10."""
    lines, faces, start = [], [], 0
    nodes = ["top", *OBJECTS]
    scene = table()
    for number, node in enumerate(nodes):
        transform, name = scene.graph[node]
        part = scene.geometry[name].copy().apply_transform(transform)
        mark = f" {10 * number + 5}"
        lines += [f"{x} {y} {z}{mark * (of == 'vertex')}" for x, y, z in part.vertices]
        faces += [
            f"3 {a + start} {b + start} {c + start}{mark * (of == 'face')}"
            for a, b, c in part.faces
        ]
        start += len(part.vertices)
    owned = "property int instance_id\n"
    path.write_text(
        "ply\nformat ascii 1.0\n"
        f"element vertex {len(lines)}\nproperty float x\nproperty float y\nproperty float z\n"
        f"{owned * (of == 'vertex')}element face {len(faces)}\n"
        f"property list uchar int vertex_indices\n{owned * (of == 'face')}end_header\n"
        + "\n".join([*lines, *faces])
        + "\n"
    )


@pytest.mark.parametrize("how", ["nodes", "ids of faces", "ids of vertices", "components"])
def test_every_kind_of_instance_gives_the_same_boxes(
    how: str, scan: SceneImport, tmp_path: Path
) -> None:
    mesh, instances = scan.mesh, how.split()[0]
    if how != "nodes":
        mesh = str(tmp_path / "table.ply")
        write_ply_with_ids(Path(mesh), of="vertex" if how == "ids of vertices" else "face")
    report, row = imported(changed(scan, mesh=mesh, instances=instances), tmp_path / "source")
    assert row.oracle is not None
    boxes, mesh_ids = row.oracle.boxes, row.oracle.mesh.inst_id
    expected = sorted((centre, extents) for extents, centre, _ in OBJECTS.values())
    found = sorted(
        zip(boxes.centres.tolist(), np.sort(boxes.extents)[:, ::-1].tolist(), strict=True)
    )
    for (centre, extents), (got_centre, got_extents) in zip(expected, found, strict=True):
        assert got_centre == pytest.approx(centre, abs=1e-5)
        assert got_extents == pytest.approx(sorted(extents, reverse=True), abs=1e-5)
    named = ("book", "mug", "mug") if how == "nodes" else ("object",) * 3
    assert sorted(boxes.class_name) == sorted(named)
    assert sorted(boxes.inst_id.tolist()) == [0, 1, 2]
    assert np.bincount(mesh_ids + 1).tolist() == [12, 12, 12, 12]  # the table top is no target
    assert any("3 instances are targets; of the others, 1 span" in each for each in report.messages)


def test_one_object_alone_is_the_target_and_dust_around_it_is_not(tmp_path: Path) -> None:
    statue = trimesh.creation.icosphere(radius=0.4)
    dust = [
        trimesh.creation.icosphere(radius=0.01).apply_translation([0.5, y, 0]) for y in (0, 0.1)
    ]
    trimesh.util.concatenate([statue, *dust]).export(tmp_path / "statue.stl")
    found = load_instances(tmp_path / "statue.stl", by_components=True)
    objects = objects_of(found, least_m=0.05, most_share=0.7)
    assert objects.extents.tolist() == [pytest.approx([0.8, 0.8, 0.8], abs=0.01)]
    assert objects.left_out == "2 are shorter than 0.05 m (least_object_m)"
    with pytest.raises(InvalidMesh, match="none of its 3 instances is 5 m long"):
        objects_of(found, least_m=5, most_share=0.7)


def write_two_materials(path: Path) -> None:
    """A glTF file with one node whose mesh has two primitives, as every object with two materials has."""
    corners = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], np.float32)
    halves = [np.array([0, 1, 2], np.uint32), np.array([0, 1, 3], np.uint32)]
    data = corners.tobytes() + b"".join(half.tobytes() for half in halves)
    encoded = base64.b64encode(data).decode()
    views = [(0, 48), (48, 12), (60, 12)]
    gltf = {
        "asset": {"version": "2.0"},
        "scenes": [{"nodes": [0]}],
        "nodes": [{"name": "lamp", "mesh": 0}],
        "meshes": [{"primitives": [{"attributes": {"POSITION": 0}, "indices": k} for k in (1, 2)]}],
        "accessors": [
            {
                "bufferView": 0,
                "componentType": 5126,
                "count": 4,
                "type": "VEC3",
                "min": [0, 0, 0],
                "max": [1, 1, 1],
            },
            *(
                {"bufferView": k, "componentType": 5125, "count": 3, "type": "SCALAR"}
                for k in (1, 2)
            ),
        ],
        "bufferViews": [
            {"buffer": 0, "byteOffset": start, "byteLength": size} for start, size in views
        ],
        "buffers": [
            {"byteLength": len(data), "uri": f"data:application/octet-stream;base64,{encoded}"}
        ],
    }
    path.write_text(json.dumps(gltf))


def test_a_node_of_several_materials_is_one_instance_and_always_the_same(tmp_path: Path) -> None:
    write_two_materials(tmp_path / "lamp.gltf")
    found = load_instances(tmp_path / "lamp.gltf", by_components=False)
    assert found.names == {0: "lamp"}
    assert found.mesh.inst_id.tolist() == [0, 0]
    assert len({load_mesh(tmp_path / "lamp.gltf").sha256 for _ in range(8)}) == 1


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"mesh": "table.ply", "instances": "nodes"}, r"need a file that ends in \.glb or \.gltf"),
        ({"mesh": "plain.ply", "instances": "ids"}, "have a property object_id, .* try components"),
        ({"boxes": "boxes.json"}, "both name the targets"),
        ({"instances": "nodes", "least_object_m": 9.0}, "give a smaller least_object_m"),
    ],
)
def test_instances_that_are_not_there_are_refused_with_the_reason(
    scan: SceneImport, tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    write_ply_with_ids(tmp_path / "table.ply", of="face")
    write_ply_with_ids(tmp_path / "plain.ply", of="nothing")
    if "mesh" in fields:
        fields = fields | {"mesh": str(tmp_path / fields["mesh"])}
    with pytest.raises((InvalidMesh, ConfigurationError), match=said):
        imported(changed(scan, **fields), tmp_path / "source")


# ----------------------------------------------------------------------------------- detections


def test_detections_of_instances_are_simulated_inexact_and_the_same_every_time(
    scan: SceneImport, tmp_path: Path
) -> None:
    report, row = imported(scan, tmp_path / "source")
    again, _ = imported(scan, tmp_path / "again")
    assert "they are simulated from the instances in view" in " ".join(report.messages)
    assert row.oracle is not None
    detections, truth = row.actor.detections, row.oracle.boxes
    assert len(detections) >= 2
    assert (detections.inst_id == -1).all()
    off = np.linalg.norm(detections.centres[:, None] - truth.centres[None], axis=2).min(axis=1)
    assert 0 < np.median(off) < 0.2
    assert report.manifest.content_sha256 == again.manifest.content_sha256


def test_given_detections_are_used_as_they_are(scan: SceneImport, tmp_path: Path) -> None:
    box = {"pose12": [1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0.1], "extents": [1, 1, 1], "class": "mug"}
    (tmp_path / "seen.json").write_text(json.dumps([box]))
    given = RecordingImport(
        trajectory=scan.recordings[0].trajectory, detections=str(tmp_path / "seen.json")
    )
    _, row = imported(changed(scan, recordings=(given,)), tmp_path / "source")
    assert row.actor.detections.extents.tolist() == [[1, 1, 1]]


# --------------------------------------------------------------------------- paths through surfaces


def test_a_path_through_a_surface_is_noted_with_its_frames(
    scan: SceneImport, tmp_path: Path
) -> None:
    """From above the table to below it, and up again; the frames themselves are all in free air."""
    height = np.array([0.6, 0.3, -0.3, -0.5, 0.4, 0.5])
    eyes = np.stack([np.full(6, 0.6), np.linspace(-0.4, 0.4, 6), height], axis=1)
    path = save_path(tmp_path / "dive.json", look_at(eyes, np.zeros((6, 3))))
    dive = RecordingImport(trajectory=path, root_frames=(0,))
    report, row = imported(changed(scan, recordings=(dive,)), tmp_path / "source")
    assert centres(row.actor.poses)[0].tolist() == pytest.approx(eyes[0].tolist())
    note = "dive: the path passes through a surface between frames 1-2, 3-4"
    assert note in report.messages
    checked = validate_source_store(tmp_path / "source")
    assert checked.ok
    assert checked.notes == (f"scene table: {note}",)
    deep = validate_source_store(tmp_path / "source", deep=True)
    assert deep.ok
    assert deep.notes == (note.replace("dive:", "table/dive-000000:"),)


def test_a_path_through_free_air_has_no_note(scan: SceneImport, tmp_path: Path) -> None:
    report, _ = imported(scan, tmp_path / "source")
    assert not [each for each in report.messages if "passes through" in each]
    assert validate_source_store(tmp_path / "source", deep=True).notes == ()
