"""TriangleMesh: what is refused, what is dropped and counted, and what its digest covers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trimesh
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.errors import InvalidMesh
from rollbook.generate.geometry.mesh import TriangleMesh

QUICK = settings(max_examples=40, deadline=None)
SEEDS = st.integers(0, 2**32 - 1)
CORNERS = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], np.float32)
FACES = np.array([[0, 1, 2], [0, 1, 3]])


def random_mesh(seed: int) -> TriangleMesh:
    spread = np.random.default_rng(seed)
    vertices = spread.normal(size=(12, 3))
    faces = np.array([spread.permutation(12)[:3] for _ in range(20)])
    return TriangleMesh(vertices, faces, spread.integers(0, 5, 20), spread.integers(0, 9, 20))


@QUICK
@given(SEEDS)
def test_areas_normals_and_bounds_are_those_of_the_triangles(seed: int) -> None:
    mesh = random_mesh(seed)
    peer = trimesh.Trimesh(mesh.vertices, mesh.faces, process=False)
    np.testing.assert_allclose(mesh.areas, peer.area_faces, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(np.linalg.norm(mesh.normals, axis=1), 1, atol=1e-6)
    edges = mesh.triangles[:, 1:] - mesh.triangles[:, :1]
    assert np.abs(np.einsum("fek,fk->fe", edges, mesh.normals)).max() < 1e-4
    np.testing.assert_array_equal(mesh.bounds[0], mesh.triangles.min(axis=(0, 1)))
    np.testing.assert_array_equal(mesh.bounds[1], mesh.triangles.max(axis=(0, 1)))


def test_a_face_turned_over_has_the_opposite_normal() -> None:
    mesh = TriangleMesh(CORNERS, [[0, 1, 2], [0, 2, 1]])
    np.testing.assert_array_equal(mesh.normals, [[0, 0, 1], [0, 0, -1]])


def test_triangles_without_area_are_dropped_with_their_ids_and_counted() -> None:
    line = np.array([[0, 0, 0], [1, 1, 1], [2, 2, 2], [0, 1, 0]])
    mesh = TriangleMesh(line, [[0, 1, 2], [0, 1, 3], [3, 3, 0]], [5, 6, 7], [50, 60, 70])
    assert (len(mesh), mesh.degenerate_faces) == (1, 2)
    assert (mesh.sem_id.tolist(), mesh.inst_id.tolist()) == ([6], [60])
    assert mesh.faces.tolist() == [[0, 1, 3]]
    with pytest.raises(InvalidMesh, match="area 0"):
        TriangleMesh(line, [[0, 1, 2]])


def test_a_mesh_is_its_own_and_does_not_change() -> None:
    vertices, faces = CORNERS.copy(), FACES.astype(np.int32)
    mesh = TriangleMesh(vertices, faces)
    before = mesh.sha256
    vertices[:] = 9
    faces[:] = 0
    np.testing.assert_array_equal(mesh.vertices, CORNERS)
    np.testing.assert_array_equal(mesh.faces, FACES)
    assert TriangleMesh(CORNERS, FACES).sha256 == before
    for array in (mesh.vertices, mesh.faces, mesh.sem_id, mesh.inst_id):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@QUICK
@given(SEEDS, st.sampled_from(["vertices", "faces", "sem_id", "inst_id"]))
def test_the_digest_covers_every_value_and_not_the_name(seed: int, changed: str) -> None:
    mesh = random_mesh(seed)
    parts: dict[str, Any] = {
        name: np.array(getattr(mesh, name)) for name in ("vertices", "faces", "sem_id", "inst_id")
    }
    assert TriangleMesh(**parts, name="other").sha256 == mesh.sha256
    if changed == "vertices":
        used = int(parts["faces"][0, 0])
        parts["vertices"][used] = np.nextafter(parts["vertices"][used], np.float32(99))
    elif changed == "faces":
        parts["faces"][0] = np.roll(parts["faces"][0], 1)
    else:
        parts[changed][3] += 1
    assert TriangleMesh(**parts).sha256 != mesh.sha256


def test_faces_without_ids_have_none() -> None:
    mesh = TriangleMesh(CORNERS, FACES)
    assert (mesh.sem_id.tolist(), mesh.inst_id.tolist()) == ([-1, -1], [-1, -1])
    assert len(mesh) == 2


def test_bounds_are_of_what_is_used() -> None:
    far = np.concatenate([CORNERS, [[90, 90, 90]]])
    np.testing.assert_array_equal(TriangleMesh(far, FACES).bounds, [[0, 0, 0], [1, 1, 1]])


@QUICK
@given(SEEDS)
def test_a_part_has_the_same_triangles_and_only_the_vertices_it_needs(seed: int) -> None:
    mesh = random_mesh(seed)
    kept = np.random.default_rng(seed).random(len(mesh)) < 0.4
    kept[0] = True
    part = mesh.part(kept)
    np.testing.assert_array_equal(part.triangles, mesh.triangles[kept])
    np.testing.assert_array_equal(part.sem_id, mesh.sem_id[kept])
    np.testing.assert_array_equal(part.inst_id, mesh.inst_id[kept])
    np.testing.assert_array_equal(np.unique(part.faces), np.arange(len(part.vertices)))
    with pytest.raises(InvalidMesh, match="no face is left"):
        mesh.part(np.zeros(len(mesh), np.bool_))


def test_a_mesh_whose_unit_is_not_the_metre_is_refused() -> None:
    with pytest.raises(InvalidMesh, match="unit is the metre"):
        TriangleMesh(CORNERS * 2e5, FACES)
    TriangleMesh(CORNERS * 9e4, FACES)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"vertices": CORNERS[:, :2]}, r"vertices are float32\[4, 2\]"),
        ({"vertices": CORNERS.astype(str)}, "vertices are <U"),
        ({"vertices": CORNERS * np.float32(np.nan)}, "vertex 0 is .* 4 are not finite"),
        ({"vertices": np.zeros((0, 3))}, "a face names vertex 3 of 0"),
        ({"faces": []}, "there are no faces; a point cloud"),
        ({"faces": [[0, 1, 2, 3]]}, "faces are"),
        ({"faces": [[0.0, 1.0, 2.0]]}, "faces are float64"),
        ({"faces": [[0, 1, 4]]}, "a face names vertex 4 of 4"),
        ({"faces": [[0, 1, -1]]}, "a face names vertex -1 of 4"),
        ({"sem_id": [1]}, r"ids are int64\[1\], expected int\[2\]"),
        ({"inst_id": [0.5, 1.5]}, "ids are float64"),
        ({"inst_id": [0, 2**31]}, "an id is 2147483648"),
        ({"sem_id": [0, -(2**31) - 1]}, "an id is -2147483649"),
    ],
)
def test_a_mesh_that_cannot_be_is_refused_by_name(changed: dict[str, Any], message: str) -> None:
    parts: dict[str, Any] = {"vertices": CORNERS, "faces": FACES}
    with pytest.raises(InvalidMesh, match=f"kitchen: {message}"):
        TriangleMesh(**{**parts, **changed}, name="kitchen")
