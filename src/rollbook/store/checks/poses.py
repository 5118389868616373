"""Checks of the poses: finite, rigid and consistent with the root. They are large, so they are read in blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.reasons import has_reason
from rollbook.store.checks.columns import Array, Mask, StoreColumns
from rollbook.store.checks.violation import Violation, violations_at

_BLOCK = 1 << 14
_RIGID = 1e-3
_RELATIVE = 1e-4
_AXES = ((0, 1), (0, 2), (1, 2))

Parts = NDArray[np.float32]
"""[12, n]: one array per number of a pose, so that arithmetic works on whole columns."""


def check_root_poses(columns: StoreColumns) -> Iterator[Violation]:
    poses = columns["rollouts/root_pose_world"]
    yield from violations_at(
        "pose_not_finite",
        "rollouts",
        ~np.isfinite(poses),
        "root_pose_world has a number that is not finite",
    )
    yield from violations_at(
        "pose_not_rigid",
        "rollouts",
        _not_rigid(_parts(poses)),
        "the rotation in root_pose_world is not orthonormal and right-handed",
    )


def check_candidate_poses(columns: StoreColumns) -> Iterator[Violation]:
    poses = columns["candidates/pose_world_cam"]
    bits = columns["candidates/invalid_reason_bitset"]
    infinite = np.zeros(len(poses), np.bool_)
    bent = np.zeros(len(poses), np.bool_)
    for rows in _blocks(len(poses)):
        parts = _parts(poses[rows])
        infinite[rows] = _not_finite(parts)
        bent[rows] = _not_rigid(parts)
    yield from violations_at(
        "pose_not_finite",
        "candidates",
        infinite & ~has_reason(bits, "POSE_NONFINITE"),
        "pose_world_cam has a number that is not finite, and POSE_NONFINITE does not say so",
    )
    yield from violations_at(
        "pose_not_rigid",
        "candidates",
        bent,
        "the rotation in pose_world_cam is not orthonormal and right-handed",
    )


def check_relative_poses(columns: StoreColumns) -> Iterator[Violation]:
    poses = columns["candidates/pose_world_cam"]
    relative = columns["candidates/pose_relative_root"]
    roots = columns["rollouts/root_pose_world"]
    chain = columns.chains.owner
    wrong = np.zeros(len(poses), np.bool_)
    for rows in _blocks(len(poses)):
        root = _parts(roots[chain[columns.shells.owner[rows]]])
        wrong[rows] = _not_from_root(root, _parts(poses[rows]), _parts(relative[rows]))
    yield from violations_at(
        "wrong_relative_pose",
        "candidates",
        wrong,
        "pose_relative_root is not inverse(root_pose_world) composed with pose_world_cam",
    )


def _blocks(rows: int) -> Iterator[slice]:
    return (slice(start, start + _BLOCK) for start in range(0, rows, _BLOCK))


def _parts(poses: Array) -> Parts:
    return np.ascontiguousarray(poses.T)


def _not_finite(parts: Parts) -> Mask:
    # a sum is finite only if every term is; a sum that overflows is not a pose either
    return np.asarray(~np.isfinite(parts.sum(axis=0)))


def _not_rigid(parts: Parts) -> Mask:
    """Rows whose axes are not orthonormal and right-handed. Rows that are not finite are left out."""
    axes = parts[:9].reshape(3, 3, -1)
    worst = np.zeros(parts.shape[1], np.float32)
    for axis in axes:
        np.maximum(worst, np.abs(_dot(axis, axis) - 1), out=worst)
    for one, other in _AXES:
        np.maximum(worst, np.abs(_dot(axes[one], axes[other])), out=worst)
    np.maximum(worst, np.abs(_dot(_cross(axes[0], axes[1]), axes[2]) - 1), out=worst)
    # an overflow leaves a NaN, which is not within the tolerance either
    return ~(worst <= _RIGID) & ~_not_finite(parts)


def _not_from_root(root: Parts, pose: Parts, relative: Parts) -> Mask:
    """Rows where inverse(root) ∘ pose differs. Row i of the inverse rotation is column i of the rotation."""
    turns = root[:9].reshape(3, 3, -1)
    moved = pose[9:] - root[9:]
    worst = np.zeros(pose.shape[1], np.float32)
    for i in range(3):
        column = turns[:, i]
        for j in range(3):
            expected = _dot(column, pose[j:9:3])
            np.maximum(worst, np.abs(expected - relative[3 * i + j]), out=worst)
        expected = _dot(column, moved)
        # float32 has fewer digits far from the root
        far = np.maximum(np.abs(relative[9 + i]), 1)
        np.maximum(worst, np.abs(expected - relative[9 + i]) / far, out=worst)
    return ~(worst <= _RELATIVE) & ~_not_finite(pose) & ~_not_finite(root)


def _dot(one: Sequence[Array] | Array, other: Array) -> Array:
    total: Array = one[0] * other[0]
    total += one[1] * other[1]
    total += one[2] * other[2]
    return total


def _cross(one: Array, other: Array) -> tuple[Array, Array, Array]:
    return (
        one[1] * other[2] - one[2] * other[1],
        one[2] * other[0] - one[0] * other[2],
        one[0] * other[1] - one[1] * other[0],
    )
