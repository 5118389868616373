"""Checks of the content of one source row. The writer refuses a row with a problem; validation reports it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.errors import (
    ConfigurationError,
    InvalidBoxes,
    InvalidTrajectory,
    InvalidValue,
    RollbookError,
)
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.poses import are_rigid
from rollbook.generate.sources.layout import CAMERA_FIELDS, Columns, Tree, tables_of

Bounds = NDArray[np.float64]

OUTSIDE = "outside"
"""The note `cameras` of a scene whose recordings look at the mesh from outside the box around it."""


class RowProblem(NamedTuple):
    code: str
    about: str
    """The table."""
    detail: str

    def as_error(self, sample_key: str) -> RollbookError:
        detail = f"{self.about}: {self.detail}"
        if self.about in ("frames", "continuation"):
            return InvalidTrajectory(record=sample_key, detail=detail)
        if self.about in ("detections", "boxes"):
            return InvalidBoxes(record=sample_key, detail=detail)
        return InvalidValue(
            record=sample_key, field=self.about, value=self.detail, expected="a row that holds"
        )


ROW_CODES = (
    *("wrong_column", "camera_invalid", "no_frames"),
    *("pose_not_rigid", "time_not_increasing", "continuation_before_root"),
    *("point_not_finite", "point_of_no_frame", "std_negative"),
    *("box_not_finite", "box_without_extent", "box_not_rigid"),
    "root_outside_mesh",
)


def camera_space(bounds: ArrayLike | None, notes: Mapping[str, str]) -> Bounds:
    """[2, 3]: where a root may be: in the box around the mesh, or anywhere if the scene was recorded from outside."""
    if bounds is None or notes.get("cameras") == OUTSIDE:
        return np.array([[-np.inf] * 3, [np.inf] * 3])
    return np.asarray(bounds, np.float64)


def actor_problems(tables: Mapping[str, Columns]) -> Iterator[RowProblem]:
    """Problems of the actor's tables. Detections may hold any numbers: target selection must cope with them."""
    wrong = list(_shape_problems("actor", tables))
    yield from wrong
    if wrong:
        return
    yield from _camera_problems(tables["camera"]["pinhole"][0].tolist())
    frames = tables["frames"]
    if not len(frames["pose"]):
        yield RowProblem("no_frames", "frames", "there is none; the last one is the root")
    yield from _pose_problems("frames", frames)
    yield from _point_problems(tables["points"], len(frames["pose"]))


def oracle_problems(
    tables: Mapping[str, Columns], actor: Mapping[str, Columns], bounds: Bounds
) -> Iterator[RowProblem]:
    """Problems of the oracle's tables. `bounds` are those in which the root must be."""
    wrong = list(_shape_problems("oracle", tables))
    yield from wrong
    if wrong or list(_shape_problems("actor", actor)):
        return
    continuation = tables["continuation"]
    yield from _pose_problems("continuation", continuation)
    yield from _box_problems(tables["boxes"])
    poses, times = actor["frames"]["pose"], actor["frames"]["t_ns"]
    if not len(poses):
        return
    later = continuation["t_ns"]
    if len(later) and later[0] <= times[-1]:
        detail = f"it starts at {later[0]} ns, the root is at {times[-1]} ns"
        yield RowProblem("continuation_before_root", "continuation", detail)
    root = poses[-1, 9:].astype(np.float64)
    if np.isfinite(root).all() and not ((root >= bounds[0]) & (root <= bounds[1])).all():
        detail = (
            f"the root at {_format_corner(root)} is outside the mesh, "
            f"which spans {_format_corner(bounds[0])} to {_format_corner(bounds[1])}"
        )
        yield RowProblem("root_outside_mesh", "frames", detail)


def _shape_problems(tree: Tree, tables: Mapping[str, Columns]) -> Iterator[RowProblem]:
    for table in tables_of(tree):
        columns = tables[table.name]
        lengths = {column.name: len(columns[column.name]) for column in table.columns}
        if len(set(lengths.values())) > 1:
            yield RowProblem("wrong_column", table.name, f"columns of lengths {lengths}")
        for column in table.columns:
            values = columns[column.name]
            if not column.fits(values.dtype.newbyteorder("<"), values.shape):
                detail = f"{column.name} is {values.dtype}{list(values.shape)}"
                yield RowProblem("wrong_column", table.name, detail)
            elif column.is_text and any("\0" in text for text in values.tolist()):
                yield RowProblem("wrong_column", table.name, f"{column.name} holds a zero byte")


def _camera_problems(pinhole: list[float]) -> Iterator[RowProblem]:
    width, height, *rest = pinhole
    fields: dict[str, Any] = dict(zip(CAMERA_FIELDS[2:], rest, strict=True))
    try:
        if not (width.is_integer() and height.is_integer()):
            raise ConfigurationError(message=f"camera: {width}x{height} pixels")
        Camera(width=int(width), height=int(height), **fields)
    except ConfigurationError as error:
        yield RowProblem("camera_invalid", "camera", str(error))


def _pose_problems(about: str, columns: Columns) -> Iterator[RowProblem]:
    poses, times = columns["pose"], columns["t_ns"]
    bad = np.flatnonzero(~are_rigid(poses)) if len(poses) else np.zeros(0, np.intp)
    if len(bad):
        yield RowProblem("pose_not_rigid", about, f"pose {bad[0]} is not rigid; {len(bad)} are not")
    back = np.flatnonzero(np.diff(times) <= 0)
    if len(back):
        detail = f"time {back[0] + 1} is not after the one before ({times[back[0] + 1]} ns)"
        yield RowProblem("time_not_increasing", about, detail)


def _point_problems(columns: Columns, frames: int) -> Iterator[RowProblem]:
    bad = np.flatnonzero(~np.isfinite(columns["xyz"]).all(axis=1))
    if len(bad):
        detail = f"point {bad[0]} is not finite; {len(bad)} are not"
        yield RowProblem("point_not_finite", "points", detail)
    lost = np.flatnonzero((columns["frame"] < -1) | (columns["frame"] >= frames))
    if len(lost):
        detail = f"point {lost[0]} was seen by frame {columns['frame'][lost[0]]} of {frames}"
        yield RowProblem("point_of_no_frame", "points", detail)
    for name in ("inv_dist_std", "dist_std"):
        negative = np.flatnonzero((columns[name] < 0) | np.isinf(columns[name]))
        if len(negative):
            detail = f"{name} {negative[0]} is {columns[name][negative[0]]}"
            yield RowProblem("std_negative", "points", detail)


def _box_problems(columns: Columns) -> Iterator[RowProblem]:
    poses, extents = columns["pose_world_object"], columns["extents"]
    if not len(poses):
        return
    finite = np.isfinite(poses).all(axis=1) & np.isfinite(extents).all(axis=1)
    finite &= np.isfinite(columns["confidence"])
    for code, good, what in (
        ("box_not_finite", finite, "is not finite"),
        ("box_without_extent", ~finite | (extents > 0).all(axis=1), "has an extent of 0 or less"),
        ("box_not_rigid", ~finite | are_rigid(poses), "has no rigid pose"),
    ):
        bad = np.flatnonzero(~good)
        if len(bad):
            yield RowProblem(code, "boxes", f"box {bad[0]} {what}; {len(bad)} of {len(poses)}")


def _format_corner(corner: Bounds) -> str:
    return f"({', '.join(f'{value:.2f}' for value in corner)})"
