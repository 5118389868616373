"""What SceneGeometry promises, of both backends: the suite a third one would have to pass as well."""

from __future__ import annotations

import math
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from rollbook.errors import ConfigurationError, InvalidValue
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.mesh import TriangleMesh
from rollbook.generate.geometry.poses import IDENTITY, look_at, rotations
from rollbook.generate.raycast import bvh, bvh_nodes
from rollbook.generate.raycast import scene_geometry as raycast
from rollbook.generate.raycast.scene_geometry import SceneGeometry

Floats = NDArray[np.float32]
Name = Literal["embree", "bvh"]
CAMERA = Camera.square(24)
DOWN = look_at([0.1, 0.2, 2.0], [0.1, 0.2, 0.0])


@pytest.fixture(params=["embree", "bvh"])
def backend(request: pytest.FixtureRequest) -> Name:
    if request.param == "embree":
        pytest.importorskip("embreex")
        return "embree"
    return "bvh"


def sheet(columns: int, rows: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The unit square in (u, v), as triangles."""
    u, v = np.meshgrid(np.linspace(0, 1, columns + 1), np.linspace(0, 1, rows + 1), indexing="ij")
    index = np.arange(u.size).reshape(u.shape)
    a, b, c, d = index[:-1, :-1], index[1:, :-1], index[1:, 1:], index[:-1, 1:]
    faces = np.concatenate([np.stack([a, b, c], -1), np.stack([a, c, d], -1)]).reshape(-1, 3)
    return np.stack([u.ravel(), v.ravel()], axis=-1), faces


def floor(height: float = 0.0, size: float = 10.0) -> TriangleMesh:
    """Two triangles, face 0 where x > y."""
    corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * size
    vertices = np.column_stack([corners, np.full(4, height)])
    return TriangleMesh(vertices, [[0, 1, 2], [0, 2, 3]])


def closed_box(size: tuple[float, float, float], cells: int) -> TriangleMesh:
    """A room from the inside; its walls share the vertices of their edges."""
    flat, faces = sheet(cells, cells)
    vertices: list[NDArray[np.float64]] = []
    triangles: list[NDArray[np.int64]] = []
    for axis in range(3):
        for side in (0.0, 1.0):
            wall = np.insert(flat, axis, side, axis=1)
            triangles.append(faces + len(flat) * len(vertices))
            vertices.append(wall)
    welded, same = np.unique(np.concatenate(vertices), axis=0, return_inverse=True)
    return TriangleMesh(welded * size, same[np.concatenate(triangles)])


def bumpy(cells: int = 100) -> TriangleMesh:
    """Hills high enough to hide each other, 2 * cells² triangles."""
    flat, faces = sheet(cells, cells)
    rng = np.random.default_rng(0)
    x, y = flat.T * 6
    height = 0.6 * np.sin(2.1 * x) * np.cos(1.7 * y) + rng.normal(0, 0.05, len(flat))
    return TriangleMesh(np.column_stack([x, y, height]), faces)


# ------------------------------------------------------------------------------------------ rays


def test_a_ray_stops_at_a_plane_from_both_sides(backend: Name) -> None:
    geometry = SceneGeometry(floor(), backend=backend)
    t, face = geometry.cast(
        [[1, 0.5, 2], [0.5, 1, -3], [1, 0.5, 2]], np.array([[0, 0, -1], [0, 0, 1], [0, 0, 1]])
    )
    assert t.tolist() == [2, 3, math.inf]
    assert face.tolist() == [0, 1, -1]
    assert (t.dtype.name, face.dtype.name) == ("float32", "int32")


def test_the_parameter_counts_in_lengths_of_the_direction(backend: Name) -> None:
    geometry = SceneGeometry(floor(), backend=backend)
    scales = np.array([1e-6, 0.25, 1, 400, 1e6])
    t, _ = geometry.cast([[1, 0.5, 2]] * 5, scales[:, None] * [0.5, 0, -2])
    assert t == pytest.approx(1 / scales, rel=1e-5)


def test_every_ray_in_a_closed_room_ends_at_its_wall(backend: Name) -> None:
    size = np.array([4.0, 3.0, 2.5])
    geometry = SceneGeometry(closed_box((4.0, 3.0, 2.5), 6), backend=backend)
    rng = np.random.default_rng(1)
    origins, directions = rng.uniform(0.1, 0.9, (2000, 3)) * size, rng.normal(size=(2000, 3))
    directions[:6] = np.concatenate([np.eye(3), -np.eye(3)])
    with np.errstate(divide="ignore"):
        walls = np.where(directions > 0, (size - origins) / directions, -origins / directions)
        walls[directions == 0] = np.inf
    t, face = geometry.cast(origins, directions)
    assert t == pytest.approx(walls.min(axis=1), rel=1e-5)
    wall = geometry.mesh.triangles[face][np.arange(2000), :, walls.argmin(axis=1)]
    assert (wall == wall[:, :1]).all()  # all corners in the plane of the wall that is nearest


def test_rays_along_an_axis_may_start_in_line_with_the_mesh_itself(backend: Name) -> None:
    """There the sides of boxes pass through the ray, and 0 times infinity lies in wait."""
    size = 6.0
    geometry = SceneGeometry(closed_box((size, size, size), 6), backend=backend)
    origins = np.stack(np.meshgrid(*[np.arange(1.0, 6.0)] * 3), axis=-1).reshape(-1, 3)
    for axis in range(3):
        for way in (1.0, -1.0):
            t, _ = geometry.cast(origins, np.tile(way * np.eye(3)[axis], (len(origins), 1)))
            there = size - origins[:, axis] if way > 0 else origins[:, axis]
            assert t == pytest.approx(there, rel=1e-6)


def test_rays_aimed_at_edges_and_corners_do_not_slip_through(backend: Name) -> None:
    geometry = SceneGeometry(closed_box((7.5, 5.5, 2.6), 12), backend=backend)
    triangles = geometry.mesh.triangles
    share = np.random.default_rng(2).uniform(0, 1, (20, 1, 1))
    on_edges = triangles * share[:, None] + np.roll(triangles, 1, axis=1) * (1 - share[:, None])
    aims = np.concatenate([geometry.mesh.vertices, on_edges.reshape(-1, 3)]).astype(np.float32)
    eye = np.array([3.1, 2.2, 1.3], np.float32)
    _, face = geometry.cast(np.repeat(eye[None], len(aims), axis=0), aims - eye)
    lost = np.count_nonzero(face < 0)
    # Embree computes in float32, and lets a few through
    assert lost <= (len(aims) * 1e-4 if backend == "embree" else 0)


def test_rays_that_are_not_finite_or_have_no_direction_meet_nothing(backend: Name) -> None:
    geometry = SceneGeometry(closed_box((1, 1, 1), 2), backend=backend)
    origins, directions = np.full((9, 3), 0.4), np.tile([0.3, 0.2, 1.0], (9, 1))
    for row, bad in enumerate((math.nan, math.inf, -math.inf)):
        origins[row, row] = bad
        directions[3 + row, row] = bad
    directions[6:8] = 0
    t, face = geometry.cast(origins, directions)
    assert (face < 0).tolist() == [True] * 8 + [False]
    assert np.isinf(t[:8]).all()


def test_no_rays_have_no_hits(backend: Name) -> None:
    t, face = SceneGeometry(floor(), backend=backend).cast(np.zeros((0, 3)), np.zeros((0, 3)))
    assert (t.shape, face.shape) == ((0,), (0,))


# ---------------------------------------------------------------------------------------- images


def test_depth_is_along_z_so_that_a_wall_seen_squarely_is_the_same_everywhere(
    backend: Name,
) -> None:
    geometry = SceneGeometry(floor(size=30), backend=backend)
    depth, faces = geometry.depth_and_faces(DOWN[None], CAMERA)
    assert (depth.shape, depth.dtype.name) == ((1, 24, 24), "float32")
    assert (faces.shape, faces.dtype.name) == ((1, 24, 24), "int32")
    assert depth == pytest.approx(np.full((1, 24, 24), 2.0), rel=1e-6)
    points = CAMERA.points(depth[0], DOWN)
    assert (faces[0] == np.where(points[..., 0] > points[..., 1], 0, 1)).all()


def test_the_depth_of_a_tilted_plane_follows_its_formula(backend: Name) -> None:
    camera = Camera(width=31, height=17, fx=20.0, fy=24.0, cx=14.0, cy=9.0, far_m=100.0)
    pose = look_at([0.3, -0.4, 3.0], [6.0, 5.0, 1.0])
    depth = SceneGeometry(floor(size=1000), backend=backend).depth(pose[None], camera)[0]
    rays = camera.rays().reshape(17, 31, 3).astype(np.float64) @ rotations(pose).T
    with np.errstate(divide="ignore"):
        truth = np.where(rays[..., 2] < 0, 3.0 / -rays[..., 2], np.inf)
    assert depth == pytest.approx(np.where(truth <= 100, truth, 0), rel=1e-5)
    assert 0 < np.count_nonzero(depth == 0) < depth.size


def test_points_of_a_depth_image_lie_on_the_mesh(backend: Name) -> None:
    geometry = SceneGeometry(bumpy(30), backend=backend)
    pose = look_at([3.0, -1.0, 2.5], [3.0, 3.0, 0.0])
    depth = geometry.depth(pose[None], CAMERA)[0]
    points = CAMERA.points(depth, pose)[depth > 0]
    assert len(points) > 200
    assert geometry.distance(points).max() < 1e-5


def test_only_what_lies_between_near_and_far_is_seen(backend: Name) -> None:
    vertices = np.concatenate([floor(z).vertices for z in (0.0, 1.0)])
    mesh = TriangleMesh(vertices, np.concatenate([floor().faces, floor().faces + 4]))
    geometry = SceneGeometry(mesh, backend=backend)

    def seen(near_m: float, far_m: float) -> list[float]:
        camera = Camera.square(2, near_m=near_m, far_m=far_m)
        depth, faces = geometry.depth_and_faces(DOWN[None], camera)
        assert ((faces >= 0) == (depth > 0)).all()
        return [float(value) for value in np.unique(depth)]

    assert seen(0.05, 20) == [1]
    assert seen(1, 20) == [1]
    assert seen(0.05, 1) == [1]
    assert seen(0.05, 0.999) == [0]
    assert seen(1.001, 20) == [0]  # what is too near hides the floor behind it


def test_a_miss_is_zero_and_has_no_face(backend: Name) -> None:
    geometry = SceneGeometry(floor(), backend=backend)
    up = look_at([0.0, 0.0, 2.0], [0.0, 0.0, 5.0])
    depth, faces = geometry.depth_and_faces(np.stack([up, DOWN]), CAMERA)
    assert (depth[0] == 0).all()
    assert (faces[0] == -1).all()
    assert (depth[1] > 0).all()
    assert (geometry.depth(np.stack([up, DOWN]), CAMERA) == depth).all()


def test_no_poses_give_no_images_and_one_pixel_is_an_image(backend: Name) -> None:
    geometry = SceneGeometry(floor(), backend=backend, threads=2)
    depth, faces = geometry.depth_and_faces(np.zeros((0, 12)), CAMERA)
    assert depth.shape == faces.shape == geometry.depth(np.zeros((0, 12)), CAMERA).shape
    assert depth.shape == (0, 24, 24)
    one = geometry.depth(np.stack([DOWN, DOWN]), Camera.square(1))
    assert one.tolist() == [[[2.0]], [[2.0]]]


def test_a_pose_that_is_not_finite_is_refused_by_its_row(backend: Name) -> None:
    geometry = SceneGeometry(floor(), backend=backend)
    poses = np.stack([IDENTITY, IDENTITY])
    poses[1, 4] = math.nan
    with pytest.raises(InvalidValue, match=r"poses\[1\]"):
        geometry.depth(poses, CAMERA)
    with pytest.raises(InvalidValue, match=r"\[N, 12\]"):
        geometry.depth(IDENTITY, CAMERA)


def test_the_number_of_threads_changes_no_bit(backend: Name) -> None:
    rng = np.random.default_rng(5)
    mesh = bumpy(40)
    poses = look_at(rng.uniform([0, 0, 1.5], [6, 6, 3], (7, 3)), rng.uniform(0, 6, (7, 3)))
    origins, directions = rng.uniform(0, 6, (10_001, 3)), rng.normal(size=(10_001, 3))
    answers = []
    for threads in (1, 2, 3):
        geometry = SceneGeometry(mesh, backend=backend, threads=threads)
        answers.append(
            [
                *geometry.depth_and_faces(poses, CAMERA),
                geometry.depth(poses, CAMERA),
                *geometry.cast(origins, directions),
                geometry.distance(origins, 1.0),
                geometry.path_clearance([3, 3, 2], origins[:600], 16, 1.0),
                geometry.path_hits([3, 3, 2], origins),
            ]
        )
    for other in answers[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(answers[0], other, strict=True))


@pytest.mark.parametrize("every", [2, 5, 40])
def test_every_so_many_pixels_are_those_of_the_whole_image(backend: Name, every: int) -> None:
    rng = np.random.default_rng(7)
    poses = look_at(rng.uniform([0, 0, 1.5], [6, 6, 3], (5, 3)), rng.uniform(0, 6, (5, 3)))
    camera = Camera(width=31, height=24, fx=20.0, fy=24.0, cx=14.0, cy=9.0)
    geometry = SceneGeometry(bumpy(40), backend=backend)
    whole = geometry.depth(poses, camera)
    assert np.array_equal(geometry.depth(poses, camera, every=every), whole[:, ::every, ::every])


def test_several_threads_may_ask_one_geometry(backend: Name) -> None:
    geometry = SceneGeometry(bumpy(40), backend=backend)
    points = np.random.default_rng(6).uniform(0, 6, (500, 3))
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: geometry.distance(points), range(8)))
    assert all(np.array_equal(answers[0], other) for other in answers)


def test_both_backends_render_the_same_images() -> None:
    pytest.importorskip("embreex")
    mesh, camera = bumpy(), Camera.square(120)
    rng = np.random.default_rng(7)
    eyes = rng.uniform([-1, -1, 0.8], [7, 7, 2.0], (12, 3))
    poses = look_at(eyes, rng.uniform([1, 1, -0.3], [5, 5, 0.3], (12, 3)))
    depths, faces = zip(
        *(
            SceneGeometry(mesh, backend=name).depth_and_faces(poses, camera)
            for name in ("embree", "bvh")
        ),
        strict=True,
    )
    apart = np.abs(depths[0] - depths[1]) > 1e-4
    assert np.count_nonzero(depths[0]) > 0.3 * apart.size
    # only where a ray grazes an edge may one see past it: of 172,800 pixels no more than a few
    assert np.count_nonzero(apart) <= 5
    assert np.count_nonzero(faces[0] != faces[1]) <= 20


# ------------------------------------------------------------------------------------- distances


def test_distance_is_to_the_surface_and_stops_at_the_bound(backend: Name) -> None:
    geometry = SceneGeometry(floor(), backend=backend)
    points = [[0.0, 0.0, 3.0], [0.0, 0.0, -0.25], [13.0, 0.0, 4.0], [math.nan, 0.0, 0.0]]
    assert geometry.distance(points) == pytest.approx([3, 0.25, 5, math.nan], nan_ok=True)
    assert geometry.distance(points, 2.0) == pytest.approx([2, 0.25, 2, math.nan], nan_ok=True)
    assert geometry.distance(np.zeros((0, 3))).shape == (0,)


def test_clearance_is_the_least_on_the_way_but_not_at_its_start(backend: Name) -> None:
    geometry = SceneGeometry(floor(), backend=backend)
    ends = np.array([[0, 0, 4.0], [0, 0, -1.0], [0, 0, 0.1], [math.nan, 0, 0], [3.0, 0, 0.1]])
    clearance = geometry.path_clearance([0, 0, 0.1], ends, 11, 2.0)
    truth = [0.1 + 3.9 / 11, 0, 0.1, math.nan, 0.1]
    assert clearance == pytest.approx(truth, abs=1e-6, nan_ok=True)
    assert geometry.path_clearance([0, 0, 3], ends[:1], 1, 2.0).tolist() == [2.0]
    assert geometry.path_clearance([0, 0, 3], ends[:0], 4, 2.0).shape == (0,)
    with pytest.raises(InvalidValue, match="samples"):
        geometry.path_clearance([0, 0, 3], ends, 0, 2.0)


def test_a_way_hits_when_a_face_lies_across_it(backend: Name) -> None:
    geometry = SceneGeometry(floor(), backend=backend)
    ends = np.array(
        [
            [1.5, 0.5, -1.0],  # through the floor
            [1.5, 0.5, 0.001],  # just short of it
            [1.5, 0.5, -0.001],  # just through
            [1.0, 0.5, 2.0],  # nowhere
            [1.0, 0.5, 9.0],  # away from it
            [30.0, 0.5, -0.1],  # past its rim
            [math.nan, 0.5, -1.0],
        ]
    )
    hits = geometry.path_hits([1.0, 0.5, 2.0], ends)
    assert hits.dtype == np.bool_
    assert hits.tolist() == [True, False, True, False, False, False, False]
    assert geometry.path_hits([1.0, 0.5, 2.0], ends[:0]).shape == (0,)
    with pytest.raises(InvalidValue, match="start and ends"):
        geometry.path_hits([[1.0, 0.5, 2.0]], ends)


# ---------------------------------------------------------------------------------------- set up


def test_the_geometry_says_what_it_was_made_of(backend: Name) -> None:
    mesh = floor(0.5, 2.0)
    geometry = SceneGeometry(mesh, backend=backend, threads=3)
    assert (geometry.mesh, geometry.backend, geometry.threads) == (mesh, backend, 3)
    assert geometry.bounds.tolist() == [[-2, -2, 0.5], [2, 2, 0.5]]


def test_auto_is_embree_where_it_is_installed_and_our_own_where_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("embreex")
    assert SceneGeometry(floor()).backend == "embree"
    monkeypatch.setitem(sys.modules, "embreex.rtcore_scene", None)
    alone = SceneGeometry(floor())
    assert alone.backend == "bvh"
    assert alone.depth(DOWN[None], Camera.square(1)).tolist() == [[[2.0]]]
    with pytest.raises(ConfigurationError, match="use renderer bvh"):
        SceneGeometry(floor(), backend="embree")


def test_kernels_are_compiled_for_one_kind_of_array_whatever_is_given() -> None:
    """Each further kind would cost seconds when it is first used."""
    geometry = SceneGeometry(floor(), backend="bvh", threads=2)
    places = np.random.default_rng(8).uniform(-1, 1, (9000, 3))
    fixed, fixed_poses = places.astype(np.float32), np.stack([DOWN, DOWN])
    fixed.flags.writeable = fixed_poses.flags.writeable = False
    for given in (places, np.asfortranarray(places, np.float32), places[::-2], fixed):
        geometry.cast(given, given)
        geometry.distance(given)
        geometry.path_hits(given[0], given)
        geometry.path_clearance(given[0], given, 1, 1.0)
    for poses in (np.stack([DOWN, DOWN]), np.asfortranarray(fixed_poses, np.float32), fixed_poses):
        geometry.depth(poses, CAMERA)
        geometry.depth_and_faces(poses, CAMERA)
    kernels: list[Any] = [bvh._trace, bvh._distance, bvh_nodes.build_nodes, raycast._aim]
    assert [len(kernel.signatures) for kernel in kernels] == [1, 1, 1, 1]


def test_an_unknown_backend_and_no_threads_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="'optix'"):
        SceneGeometry(floor(), backend="optix")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="threads is 0"):
        SceneGeometry(floor(), threads=0)
