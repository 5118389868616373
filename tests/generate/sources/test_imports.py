"""Files of one's own: what they mean is read right, and what is wrong with them is said, with the place it is at."""

from __future__ import annotations

import gzip
import importlib
import json
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.errors import (
    ConfigurationError,
    InvalidBoxes,
    InvalidMesh,
    InvalidPoints,
    InvalidTrajectory,
)
from rollbook.generate.geometry.mesh import TriangleMesh
from rollbook.generate.geometry.poses import (
    are_rigid,
    centres,
    compose,
    forwards,
    look_at,
    rotations,
)
from rollbook.generate.sources.import_boxes import class_table, load_boxes, placed_boxes
from rollbook.generate.sources.import_mesh import load_mesh
from rollbook.generate.sources.import_points import load_points
from rollbook.generate.sources.import_trajectory import (
    Trajectory,
    TrajectoryFormat,
    load_pose,
    load_trajectory,
)
from tests.generate.source_rows import room

trimesh: Any = importlib.import_module("trimesh")


def area(mesh: TriangleMesh) -> float:
    return float(mesh.areas.sum())


def box_mesh(size: tuple[float, float, float] = (4.0, 3.0, 2.5)) -> Any:
    mesh = room(size)
    return trimesh.Trimesh(mesh.vertices, mesh.faces, process=False)


# ----------------------------------------------------------------------------------------- meshes


@pytest.mark.parametrize("suffix", ["glb", "obj", "stl", "ply"])
def test_a_mesh_written_by_others_is_read_back(suffix: str, tmp_path: Path) -> None:
    box_mesh().export(tmp_path / f"room.{suffix}")
    mesh = load_mesh(tmp_path / f"room.{suffix}")
    assert len(mesh) == 12
    assert area(mesh) == pytest.approx(area(room()))
    assert mesh.bounds == pytest.approx(room().bounds)
    assert (mesh.inst_id == -1).all()


def test_y_up_becomes_z_up_without_mirroring(tmp_path: Path) -> None:
    """A room 2.5 high whose height is along y; a mark shows left from right."""
    turned = box_mesh()
    turned.vertices = turned.vertices @ np.array([[1, 0, 0], [0, 0, 1], [0, -1, 0]]).T
    turned.export(tmp_path / "y.glb")
    assert np.ptp(turned.vertices, axis=0) == pytest.approx([4, 2.5, 3])
    mesh = load_mesh(tmp_path / "y.glb", up="y")
    assert mesh.bounds == pytest.approx(room().bounds)
    volume = trimesh.Trimesh(mesh.vertices, mesh.faces).volume
    assert volume == pytest.approx(
        box_mesh().volume
    )  # of the same sign: faces still point the same way


def test_scale_is_metres_in_a_unit(tmp_path: Path) -> None:
    box_mesh((4000.0, 3000.0, 2500.0)).export(tmp_path / "mm.stl")
    with pytest.raises(InvalidMesh, match=r"--scale 0\.001 if it is in millimetres"):
        load_mesh(tmp_path / "mm.stl")
    assert load_mesh(tmp_path / "mm.stl", scale=0.001).bounds == pytest.approx(room().bounds)
    box_mesh((0.004, 0.003, 0.0025)).export(tmp_path / "km.stl")
    with pytest.raises(InvalidMesh, match="kilometres"):
        load_mesh(tmp_path / "km.stl")
    with pytest.raises(ConfigurationError, match="scale"):
        load_mesh(tmp_path / "km.stl", scale=0)


def test_the_parts_of_a_scene_stand_where_the_file_places_them(tmp_path: Path) -> None:
    scene = trimesh.Scene()
    scene.add_geometry(box_mesh((1.0, 1.0, 1.0)), node_name="a")
    turn = trimesh.transformations.rotation_matrix(np.pi / 2, [0, 0, 1], [0, 0, 0])
    scene.add_geometry(
        box_mesh((2.0, 1.0, 1.0)), node_name="b", transform=_moved(turn, (5.0, 0.0, 0.0))
    )
    scene.export(tmp_path / "two.glb")
    mesh = load_mesh(tmp_path / "two.glb")
    assert len(mesh) == 24
    assert mesh.bounds == pytest.approx(np.array([[0, 0, 0], [5, 2, 1]]))


def _moved(matrix: Any, by: tuple[float, float, float]) -> Any:
    moved = np.array(matrix)
    moved[:3, 3] += by
    return moved


def test_quads_and_larger_polygons_are_cut_into_triangles(tmp_path: Path) -> None:
    square = "v 0 0 0\nv 1 0 0\nv 1 1 0\nv 0 1 0\nv -0.5 0.5 0\n"
    (tmp_path / "quad.obj").write_text(square + "f 1 2 3 4\n")
    (tmp_path / "house.obj").write_text(square + "f 1 2 3 4 5\n")
    assert area(load_mesh(tmp_path / "quad.obj")) == pytest.approx(1)
    assert area(load_mesh(tmp_path / "house.obj")) == pytest.approx(1.25)
    assert len(load_mesh(tmp_path / "house.obj")) == 3


def test_welding_joins_vertices_and_changes_no_surface(tmp_path: Path) -> None:
    box_mesh().export(tmp_path / "soup.stl")
    loose, welded = (load_mesh(tmp_path / "soup.stl", weld=weld) for weld in (False, True))
    assert len(loose.vertices) == 36
    assert len(welded.vertices) == 8
    assert area(welded) == pytest.approx(area(loose))


Faces = list[tuple[list[int], int]]
SQUARES: Faces = [([0, 1, 2, 3], 7), ([1, 4, 2], 8), ([0, 1, 4, 2, 3], 9)]


def write_ply(
    path: Path, faces: Faces, kind: str, *, ids: bool = True, count: str = "uchar"
) -> None:
    """Five vertices, and faces of any number of corners with an object id behind each."""
    vertices = [(0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 1, 0), (2, 0.5, 0)]
    header = (
        f"ply\nformat {kind} 1.0\ncomment by hand\nelement vertex 5\nproperty float x\nproperty float y\n"
        f"property float z\nproperty uchar red\nelement face {len(faces)}\n"
        f"property list {count} int vertex_indices\n"
        + ("property int object_id\n" if ids else "")
        + "end_header\n"
    )
    if kind == "ascii":
        lines = [f"{x} {y} {z} 1" for x, y, z in vertices]
        lines += [
            f"{len(corners)} {' '.join(map(str, corners))}" + (f" {number}" if ids else "")
            for corners, number in faces
        ]
        path.write_text(header + "\n".join(lines) + "\n")
        return
    mark = "<" if "little" in kind else ">"
    body = b"".join(struct.pack(f"{mark}3fB", *vertex, 1) for vertex in vertices)
    code = {"uchar": "B", "int": "i"}[count]
    for corners, number in faces:
        body += struct.pack(f"{mark}{code}{len(corners)}i", len(corners), *corners)
        body += struct.pack(f"{mark}i", number) if ids else b""
    path.write_bytes(header.encode() + body)


@pytest.mark.parametrize("kind", ["ascii", "binary_little_endian", "binary_big_endian"])
@pytest.mark.parametrize("count", ["uchar", "int"])
@pytest.mark.parametrize("faces", [SQUARES, SQUARES[:1], SQUARES[1:2]])
def test_ply_polygons_keep_their_object(
    kind: str, count: str, faces: Faces, tmp_path: Path
) -> None:
    write_ply(tmp_path / "p.ply", faces, kind, count=count)
    mesh = load_mesh(tmp_path / "p.ply")
    expected = [
        (corners[0], corners[k], corners[k + 1], number)
        for corners, number in faces
        for k in range(1, len(corners) - 1)
    ]
    found = [
        (*face, int(number)) for face, number in zip(mesh.faces.tolist(), mesh.inst_id, strict=True)
    ]
    assert found == expected


def test_ply_without_object_ids_has_none(tmp_path: Path) -> None:
    write_ply(tmp_path / "p.ply", SQUARES, "ascii", ids=False)
    assert (load_mesh(tmp_path / "p.ply").inst_id == -1).all()


@given(
    st.lists(
        st.lists(st.integers(0, 4), min_size=3, max_size=6, unique=True).filter(
            lambda c: len(c) <= 5
        ),
        min_size=1,
        max_size=6,
    ),
)
@settings(max_examples=30, deadline=None)
def test_binary_and_text_ply_agree(polygons: list[list[int]]) -> None:
    faces = [(corners, number) for number, corners in enumerate(polygons)]
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for kind in ("ascii", "binary_little_endian", "binary_big_endian"):
            write_ply(Path(folder) / "p.ply", faces, kind)
            try:
                mesh = load_mesh(Path(folder) / "p.ply")
                found.append((mesh.faces.tolist(), mesh.inst_id.tolist()))
            except InvalidMesh as error:
                found.append(([str(error)], []))
        assert found[0] == found[1] == found[2]


def cloud(path: Path) -> None:
    trimesh.PointCloud(np.random.default_rng(0).random((9, 3))).export(path)


def cut_ply(path: Path, kind: str, start: int | None, end: int | None, more: str = "") -> None:
    write_ply(path, SQUARES, kind)
    path.write_bytes(path.read_bytes()[start:end] + more.encode())


PLY = "ply\nformat ascii 1.0\n"
BAD_MESHES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "points alone, PLY": ("p.ply", cloud, "9 points and no faces: a point cloud"),
    "points alone, OBJ": ("p.obj", lambda p: p.write_text("v 0 0 0\nv 1 1 1\n"), "no faces"),
    "no file": ("p.glb", lambda p: None, "there is no file"),
    "no mesh": ("p.txt", lambda p: p.write_text("x"), "does not end in"),
    "nonsense GLB": ("p.glb", lambda p: p.write_bytes(b"nonsense" * 9), "cannot be read"),
    "nonsense STL": ("p.stl", lambda p: p.write_bytes(b"\0" * 20), "no faces"),
    "nonsense PLY": ("p.ply", lambda p: p.write_bytes(b"nonsense"), "PLY header"),
    "a cut PLY": (
        "p.ply",
        lambda p: cut_ply(p, "binary_little_endian", None, -9),
        "'face' is not as long",
    ),
    "a cut text PLY": (
        "p.ply",
        lambda p: cut_ply(p, "ascii", None, -20),
        "'face' is not as long",
    ),
    "words in a text PLY": (
        "p.ply",
        lambda p: cut_ply(p, "ascii", None, None, "word"),
        "not a number",
    ),
    "an unknown type": (
        "p.ply",
        lambda p: p.write_text(PLY + "element vertex 1\nproperty quad x\nend_header\n"),
        "property quad x",
    ),
    "strips": (
        "p.ply",
        lambda p: p.write_text(
            PLY + "element vertex 1\nproperty float x\nproperty float y\nproperty float z\n"
            "element tristrips 1\nproperty list int int vertex_indices\nend_header\n0 0 0\n1 0\n"
        ),
        "strips",
    ),
    "NaN": (
        "p.obj",
        lambda p: p.write_text("v nan 0 0\nv 1 0 0\nv 1 1 0\nf 1 2 3\n"),
        "not finite",
    ),
    "a face of vertices that are not there": (
        "p.ply",
        lambda p: write_ply(p, [([0, 1, 9], 0)], "ascii"),
        "vertex 9 of 5",
    ),
}


@pytest.mark.parametrize("bad", BAD_MESHES)
def test_bad_meshes_are_refused_with_the_reason(bad: str, tmp_path: Path) -> None:
    name, write, words = BAD_MESHES[bad]
    write(tmp_path / name)
    with pytest.raises(InvalidMesh, match=words):
        load_mesh(tmp_path / name)


# ----------------------------------------------------------------------------------- trajectories


def some_poses(count: int = 5, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    eyes = rng.uniform(0.5, 2, (count, 3))
    return look_at(eyes, eyes + rng.normal(size=(count, 3)))


def matrices(poses: Any) -> Any:
    whole = np.tile(np.eye(4), (len(poses), 1, 1))
    whole[:, :3, :3], whole[:, :3, 3] = rotations(poses), centres(poses)
    return whole


def quaternions(poses: Any) -> Any:
    """x y z w"""
    return np.array(
        [np.roll(trimesh.transformations.quaternion_from_matrix(m), -1) for m in matrices(poses)]
    )


def tum_text(poses: Any, times: list[str]) -> str:
    rows = np.column_stack([centres(poses), quaternions(poses)])
    return "# time x y z\n\n" + "\n".join(
        f"{time} {' '.join(f'{value:.9f}' for value in row)}"
        for time, row in zip(times, rows, strict=True)
    )


def aria_text(poses: Any, times_us: list[int]) -> str:
    header = (
        "graph_uid,tracking_timestamp_us,utc_timestamp_ns,tx_world_device,ty_world_device,tz_world_device,"
        "qx_world_device,qy_world_device,qz_world_device,qw_world_device,quality_score\n"
    )
    rows = np.column_stack([centres(poses), quaternions(poses)])
    return header + "".join(
        f"0a1b,{time},-1,{','.join(f'{value:.9f}' for value in row)},1.0\n"
        for time, row in zip(times_us, rows, strict=True)
    )


def nerf_text(poses: Any) -> str:
    flipped = matrices(poses) @ np.diag([1.0, -1.0, -1.0, 1.0])
    frames = [{"file_path": "x.png", "transform_matrix": each.tolist()} for each in flipped]
    return json.dumps({"camera_angle_x": 1.0, "frames": frames})


def test_all_formats_give_the_same_poses(tmp_path: Path) -> None:
    poses = some_poses()
    seconds = [f"1700000000.{number}00000001" for number in range(5)]
    texts = {
        TrajectoryFormat.TUM: tum_text(poses, seconds),
        TrajectoryFormat.ARIA: aria_text(poses, [100_000 * number for number in range(5)]),
        TrajectoryFormat.MATRICES: json.dumps(matrices(poses).tolist()),
        TrajectoryFormat.NERF: nerf_text(poses),
    }
    for kind, text in texts.items():
        (tmp_path / "plain").write_text(text)
        (tmp_path / "packed.gz").write_bytes(gzip.compress(text.encode()))
        for name in ("plain", "packed.gz"):
            for format in (None, kind):
                found = load_trajectory(tmp_path / name, format=format)
                assert found.format is kind
                assert found.poses == pytest.approx(poses, abs=1e-7)
                assert are_rigid(found.poses, 1e-9).all()
    assert found.t_ns.tolist() == [number * 100_000_000 for number in range(5)]
    assert not found.times_known
    tum = _loaded(tmp_path, texts[TrajectoryFormat.TUM])
    assert tum.t_ns[1] == 1_700_000_000_100_000_001  # to the nanosecond
    assert tum.times_known
    assert _loaded(tmp_path, texts[TrajectoryFormat.ARIA]).t_ns[2] == 200_000_000


def _loaded(folder: Path, text: str, **options: Any) -> Trajectory:
    (folder / "t").write_text(text)
    return load_trajectory(folder / "t", **options)


def test_the_camera_may_sit_elsewhere_on_the_device(tmp_path: Path) -> None:
    poses, mount = some_poses(), some_poses(1, seed=3)[0]
    (tmp_path / "mount.json").write_text(json.dumps(matrices(mount[None])[0].tolist()))
    found = _loaded(
        tmp_path,
        aria_text(poses, list(range(5))),
        device_from_camera=load_pose(tmp_path / "mount.json"),
    )
    assert found.poses == pytest.approx(compose(poses, mount), abs=1e-7)


def test_turning_the_world_turns_poses_and_points_alike(tmp_path: Path) -> None:
    """What a camera sees does not change: points and cameras of a y-up, centimetre world are moved together."""
    poses = some_poses()
    turn = np.array([[1, 0, 0], [0, 0, 1], [0, -1, 0]])  # z up to y up
    ours = matrices(poses)
    theirs = ours.copy()
    theirs[:, :3, :3], theirs[:, :3, 3] = turn @ ours[:, :3, :3], 100 * ours[:, :3, 3] @ turn.T
    found = _loaded(tmp_path, json.dumps(theirs.tolist())).in_world("y", 0.01)
    assert found.poses == pytest.approx(poses, abs=1e-9)
    assert forwards(found.poses) == pytest.approx(forwards(poses), abs=1e-9)
    points = np.random.default_rng(0).random((7, 3))
    np.save(tmp_path / "p.npy", 100 * points @ turn.T)
    cloud = load_points(tmp_path / "p.npy", up="y", scale=0.01)
    assert cloud.points == pytest.approx(points, abs=1e-6)


def test_frames_are_thinned_from_the_first_on(tmp_path: Path) -> None:
    found = _loaded(tmp_path, json.dumps(matrices(some_poses(7)).tolist()), frame_rate_hz=20)
    assert found.every(3).t_ns.tolist() == [0, 150_000_000, 300_000_000]
    assert len(found.every(10)) == 1
    with pytest.raises(ConfigurationError, match="frame_rate_hz"):
        load_trajectory(tmp_path / "t", frame_rate_hz=0)


def test_quaternions_and_rotations_off_by_rounding_are_put_right(tmp_path: Path) -> None:
    poses = some_poses()
    rows = np.column_stack([np.arange(5), centres(poses), quaternions(poses) * 1.005])
    text = "\n".join(" ".join(f"{value:.9f}" for value in row) for row in rows)
    assert _loaded(tmp_path, text).poses == pytest.approx(poses, abs=1e-7)
    bent = matrices(poses)
    bent[:, :3, :3] *= 1.005
    found = _loaded(tmp_path, json.dumps(bent.tolist())).poses
    assert are_rigid(found, 1e-9).all()
    assert found == pytest.approx(poses, abs=1e-7)


GOOD_LINE = "0 0 0 0 0 0 0 1"
BAD_TRAJECTORIES = {
    "empty": ("", "it is empty"),
    "comments alone": ("# nothing\n\n", "it is empty"),
    "no trajectory": ("hello world\n", "is none of tum"),
    "seven numbers": (f"{GOOD_LINE}\n1 0 0 0 0 0 1\n", "line 2: expected `t tx"),
    "a word": (f"# t\n{GOOD_LINE}\n1 0 0 zero 0 0 0 1\n", "line 3: expected `t tx"),
    "a pose of NaN": (f"{GOOD_LINE}\n1 nan 0 0 0 0 0 1\n", "line 2: a value is not finite"),
    "a time of NaN": (f"{GOOD_LINE}\nnan 0 0 0 0 0 0 1\n", "line 2"),
    "a long quaternion": (
        f"{GOOD_LINE}\n1 0 0 0 0 0 0 1.5\n",
        r"line 2: its quaternion has length 1\.5",
    ),
    "a quaternion of zero": (f"{GOOD_LINE}\n1 0 0 0 0 0 0 0\n", "line 2: its quaternion"),
    "time goes back": (f"{GOOD_LINE}\n5{GOOD_LINE[1:]}\n4{GOOD_LINE[1:]}\n", "line 3: its time"),
    "time stands still": (f"{GOOD_LINE}\n{GOOD_LINE}\n", "line 2: its time"),
    "Aria without rows": (aria_text(some_poses(1), [0]).splitlines()[0] + "\n", "no pose"),
    "Aria without a column": (
        "tracking_timestamp_us,tx_world_device\n1,2\n",
        "no column ty_world_device",
    ),
    "Aria with a word": (
        aria_text(some_poses(2), [0, 1]).replace("\n0a1b,1,-1,", "\n0a1b,1,-1,x"),
        "line 3: tx_world_device",
    ),
    "Aria out of order": (aria_text(some_poses(2), [5, 4]), "line 3: its time"),
    "Aria with a short row": (aria_text(some_poses(2), [0, 1]) + "0,2\n", "line 4: 2 cells"),
    "broken JSON": ("[[1, 2", "not JSON"),
    "an empty list": ("[]", "no pose"),
    "JSON of something else": ('{"poses": []}', "frames"),
    "matrices of the wrong size": ("[[[1, 0], [0, 1]]]", "frame 0 is not a 4x4"),
    "frames without a matrix": ('{"frames": [{}]}', "frame 0 is not a 4x4"),
    "a matrix that scales": (json.dumps([np.diag([2.0, 2, 2, 1]).tolist()]), "scales by 2"),
    "a matrix that mirrors": (json.dumps([np.diag([-1.0, 1, 1, 1]).tolist()]), "mirrors"),
    "a matrix of NaN": (
        "[[[NaN,0,0,0],[0,1,0,0],[0,0,1,0],[0,0,0,1]]]",
        "frame 0: a value is not finite",
    ),
}


@pytest.mark.parametrize("bad", BAD_TRAJECTORIES)
def test_bad_trajectories_are_refused_by_line_or_frame(bad: str, tmp_path: Path) -> None:
    text, words = BAD_TRAJECTORIES[bad]
    with pytest.raises(InvalidTrajectory, match=words):
        _loaded(tmp_path, text)


def test_a_trajectory_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidTrajectory, match="No such file"):
        load_trajectory(tmp_path / "nothing")
    (tmp_path / "t").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidTrajectory, match="not text"):
        load_trajectory(tmp_path / "t")
    (tmp_path / "t").write_bytes(gzip.compress(b"text" * 100)[:-9])
    with pytest.raises(InvalidTrajectory, match="cannot be read"):
        load_trajectory(tmp_path / "t")


# ----------------------------------------------------------------------------------------- points

ARIA_POINTS = (
    "uid,graph_uid,px_world,py_world,pz_world,inv_dist_std,dist_std\n"
    "1,a,1.0,2.0,3.0,0.001,0.01\n2,a,4.0,5.0,6.0,0.9,0.01\n3,a,7.0,8.0,9.0,0.001,9.0\n"
)


def test_aria_points_are_cut_at_the_limits(tmp_path: Path) -> None:
    (tmp_path / "p.csv.gz").write_bytes(gzip.compress(ARIA_POINTS.encode()))
    cloud = load_points(tmp_path / "p.csv.gz")
    assert cloud.points.tolist() == [[1, 2, 3]]
    assert cloud.inv_dist_std[0] == pytest.approx(0.001)
    assert cloud.dropped == 2
    assert len(load_points(tmp_path / "p.csv.gz", max_inv_dist_std=1, max_dist_std=10)) == 3


def test_plain_points_do_not_know_how_sure_they_are(tmp_path: Path) -> None:
    points = np.random.default_rng(0).random((5, 3)).astype(np.float32)
    np.save(tmp_path / "p.npy", points)
    trimesh.PointCloud(points).export(tmp_path / "p.ply")
    (tmp_path / "p.csv").write_text("x,y,z\n" + "\n".join(",".join(map(str, p)) for p in points))
    for name in ("p.npy", "p.ply", "p.csv"):
        cloud = load_points(tmp_path / name)
        assert cloud.points == pytest.approx(points, abs=1e-6)
        assert np.isnan(cloud.inv_dist_std).all()
        assert np.isnan(cloud.dist_std).all()
        assert cloud.dropped == 0


BAD_POINTS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "other columns": ("p.csv", lambda p: p.write_text("a,b\n1,2\n"), "expected columns px_world"),
    "a word": ("p.csv", lambda p: p.write_text("x,y,z\n1,2,3\n1,b,3\n"), "line 3: y is 'b'"),
    "NaN": ("p.csv", lambda p: p.write_text("x,y,z\n1,nan,3\n"), "point 0 is not finite"),
    "none": ("p.csv", lambda p: p.write_text("x,y,z\n"), "no point in it"),
    "none left": (
        "p.csv",
        lambda p: p.write_text(ARIA_POINTS.replace("0.001", "1.0")),
        "no point of 3 is left",
    ),
    "a pickle": (
        "p.npy",
        lambda p: np.save(p, np.array([{}], object), allow_pickle=True),
        "cannot be read",
    ),
    "the wrong shape": ("p.npy", lambda p: np.save(p, np.zeros((3, 2))), r"float64\[3, 2\]"),
    "no vertices": (
        "p.ply",
        lambda p: p.write_text("ply\nformat ascii 1.0\nend_header\n"),
        "no vertices",
    ),
    "nothing": ("p.ply", lambda p: None, "No such file"),
}


@pytest.mark.parametrize("bad", BAD_POINTS)
def test_bad_points_are_refused_with_the_reason(bad: str, tmp_path: Path) -> None:
    name, write, words = BAD_POINTS[bad]
    write(tmp_path / name)
    with pytest.raises(InvalidPoints, match=words):
        load_points(tmp_path / name)


# ------------------------------------------------------------------------------------------ boxes


def test_boxes_are_placed_and_numbered_by_class(tmp_path: Path) -> None:
    poses = some_poses(2)
    given = [
        {
            "T_world_object": matrices(poses)[0].tolist(),
            "extents": [1, 2, 3],
            "class": "table",
            "confidence": 0.5,
            "inst": 4,
        },
        {"pose12": poses[1].tolist(), "extents": [1, 1, 1], "class": "chair"},
    ]
    (tmp_path / "b.json").write_text(json.dumps(given))
    loaded = load_boxes(tmp_path / "b.json")
    classes = class_table([loaded])
    assert classes == ("chair", "table")
    boxes = placed_boxes(loaded, classes, name="b")
    assert boxes.pose_world_object == pytest.approx(poses, abs=1e-6)
    assert boxes.sem_id.tolist() == [1, 0]
    assert boxes.inst_id.tolist() == [4, -1]
    assert boxes.confidence.tolist() == [0.5, 1]
    assert boxes.class_name == ("table", "chair")
    halved = placed_boxes(loaded, classes, name="b", scale=0.5)
    assert halved.extents[0].tolist() == [0.5, 1, 1.5]
    assert halved.centres == pytest.approx(boxes.centres / 2, abs=1e-6)
    turned = placed_boxes(loaded, classes, name="b", up="y")
    assert turned.centres[:, 2] == pytest.approx(boxes.centres[:, 1], abs=1e-6)
    assert len(placed_boxes([], (), name="b")) == 0


POSE = [1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]
BAD_BOXES: dict[str, tuple[Any, str]] = {
    "no list": ({}, "list|array"),
    "no extents": ([{"pose12": POSE}], "extents"),
    "an unknown field": ([{"pose12": POSE, "extents": [1, 1, 1], "sizes": 1}], "sizes"),
    "no pose": ([{"extents": [1, 1, 1]}], "box 0: give T_world_object or pose12"),
    "two poses": (
        [{"pose12": POSE, "T_world_object": np.eye(4).tolist(), "extents": [1, 1, 1]}],
        "one of them",
    ),
    "a 2x2 matrix": ([{"T_world_object": [[1, 0], [0, 1]], "extents": [1, 1, 1]}], "not a 4x4"),
    "a bent pose": (
        [{"pose12": [2.0, *POSE[1:]], "extents": [1, 1, 1]}],
        "box 0 has no rigid pose",
    ),
    "flat": ([{"pose12": POSE, "extents": [1, 0, 1]}], "box 0 has extents"),
    "a class that is not in the list": (
        [{"pose12": POSE, "extents": [1, 1, 1], "class": "unicorn"}],
        "box 0 is a 'unicorn'",
    ),
}


@pytest.mark.parametrize("bad", BAD_BOXES)
def test_bad_boxes_are_refused_by_their_position(bad: str, tmp_path: Path) -> None:
    given, words = BAD_BOXES[bad]
    (tmp_path / "b.json").write_text(json.dumps(given))
    with pytest.raises(InvalidBoxes, match=words):
        placed_boxes(load_boxes(tmp_path / "b.json"), ("unknown",), name="b")
