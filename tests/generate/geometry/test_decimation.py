"""A decimated mesh has no more triangles than asked for, and still looks like the mesh."""

from __future__ import annotations

import numpy as np
import pytest
import trimesh
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.generate.geometry.decimation import Faces, Vertices, decimated

QUICK = settings(max_examples=40, deadline=None)


def finely_cut_box(extents: tuple[float, float, float]) -> tuple[Vertices, Faces]:
    mesh = trimesh.creation.box(extents)
    for _ in range(5):
        mesh = mesh.subdivide()
    return mesh.vertices.astype(np.float32), mesh.faces.astype(np.int32)


def test_a_small_mesh_is_left_as_it_is() -> None:
    vertices, faces = finely_cut_box((1, 1, 1))
    same_vertices, same_faces = decimated(vertices, faces, len(faces))
    assert same_vertices is vertices
    assert same_faces is faces


@pytest.mark.parametrize("most", [4000, 500, 60])
def test_a_box_keeps_its_planes_its_edges_and_its_corners(most: int) -> None:
    vertices, faces = finely_cut_box((4, 3, 2))
    assert len(faces) > most
    fewer, joined = decimated(vertices, faces, most)
    assert most / 3 < len(joined) <= most
    half = np.array([2, 1.5, 1])
    outside = np.abs(np.abs(fewer) - half).min(axis=1)
    assert outside.max() < 1e-3  # every vertex lies on a side of the box
    corners = (np.abs(np.abs(fewer) - half) < 1e-3).all(axis=1)
    assert corners.sum() == 8
    left = trimesh.Trimesh(fewer, joined, process=False)
    assert left.area == pytest.approx(2 * (4 * 3 + 4 * 2 + 3 * 2), rel=0.05)


@QUICK
@given(st.integers(0, 2**32 - 1), st.integers(1, 60))
def test_any_mesh_gets_small_enough_and_its_vertices_stay_inside(seed: int, most: int) -> None:
    spread = np.random.default_rng(seed)
    vertices = (spread.normal(size=(50, 3)) * spread.uniform(0.01, 100, 3)).astype(np.float32)
    faces = np.array([spread.permutation(50)[:3] for _ in range(80)], np.int32)
    fewer, joined = decimated(vertices, faces, most)
    assert len(joined) <= most
    assert joined.size == 0 or (joined.min() >= 0 and joined.max() < len(fewer))
    assert len(np.unique(np.sort(joined, axis=1), axis=0)) == len(joined)
    assert np.isfinite(fewer).all()
    size = np.ptp(vertices, axis=0).max()
    assert (fewer >= vertices.min(axis=0) - 1e-3).all()
    assert (fewer <= vertices.max(axis=0) + 2 * size + 1e-3).all()


def test_the_same_mesh_always_gives_the_same_result() -> None:
    vertices, faces = finely_cut_box((4, 3, 2))
    first, second = (decimated(vertices, faces, 300) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
