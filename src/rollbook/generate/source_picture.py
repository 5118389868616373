"""The picture of a source row from above: floor and furniture, the path, the root, the points and the boxes."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.mesh import TriangleMesh
from rollbook.generate.geometry.poses import centres, forwards
from rollbook.generate.rollout_picture import FROM_ABOVE, Matplotlib
from rollbook.generate.sources.reader import SourceRow

_SAMPLES = 600_000
_SAMPLES_PER_CELL = 7
_SMALLEST_CELL_M = 0.02
_OVERHEAD_M = 0.25
"""Surfaces higher than this above the camera are left out: the ceiling would hide the rest."""
_MOST_POINTS = 8000


def preview_png(row: SourceRow, *, width_px: int = 1100) -> bytes:
    """The picture as a PNG file. A row of an actor-only store shows what the robot knows, without the scene."""
    matplotlib = Matplotlib.loaded()
    low, high = _extent(row)
    size = np.maximum(high - low, 0.5)
    inches = np.array([11.0, np.clip(11.0 * size[1] / size[0], 4.0, 14.0) + 0.8])
    figure = matplotlib.figure.Figure(figsize=inches, dpi=width_px / 11.0, layout="constrained")
    canvas = matplotlib.agg.FigureCanvasAgg(figure)
    axes: Any = figure.add_subplot()
    if row.oracle is not None:
        _draw_scene(axes, row.oracle.mesh, float(row.actor.root_pose[11]) + _OVERHEAD_M)
        _draw_boxes(axes, row.oracle.boxes, "#2a7f3f", "true box", named=True)
        _draw_way(axes, row.oracle.continuation, "#999999", "after the root")
    _draw_points(axes, row.actor.points)
    _draw_boxes(axes, row.actor.detections, "#d9822b", "detected box", named=False)
    _draw_way(axes, row.actor.poses, "#1f5fbf", "way to the root")
    _draw_root(axes, row.actor.root_pose)
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xlabel="x, m", ylabel="y, m")
    axes.set_aspect("equal")
    axes.set_title(f"{row.sample_key} ({row.split}): {_counted(row)}", fontsize=10)
    figure.legend(loc="outside lower center", ncols=6, fontsize=8, frameon=False)
    buffer = io.BytesIO()
    canvas.print_png(buffer)
    return buffer.getvalue()


def _counted(row: SourceRow) -> str:
    actor = row.actor
    parts = [
        f"{len(actor.poses)} frames",
        f"{len(actor.points):,} points",
        f"{len(actor.detections)} detections",
    ]
    if row.oracle is not None:
        parts.append(f"{len(row.oracle.boxes)} true boxes, {len(row.oracle.mesh):,} triangles")
    return ", ".join(parts)


def _extent(row: SourceRow) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if row.oracle is not None:
        path = (row.actor.poses[:, 9:11], row.oracle.continuation[:, 9:11])
        shown = np.concatenate([row.oracle.mesh.bounds[:, :2], *path])
    else:
        shown = np.concatenate([row.actor.points[:, :2], row.actor.poses[:, 9:11]])
    low, high = shown.min(axis=0).astype(np.float64), shown.max(axis=0).astype(np.float64)
    return low - 0.3, high + 0.3


def _draw_scene(axes: Any, mesh: TriangleMesh, below_m: float) -> None:
    """Draws the highest surface below `below_m` in every cell: darker for higher, darkest where there is none."""
    kept = np.flatnonzero(mesh.triangles[:, :, 2].min(axis=1) <= below_m)
    if not len(kept):
        return
    points = _surface(mesh, kept)
    points = points[points[:, 2] <= below_m]
    low, high = mesh.bounds[:, :2]
    cell = max(_SMALLEST_CELL_M, math.sqrt(_SAMPLES_PER_CELL * mesh.areas[kept].sum() / _SAMPLES))
    shape = np.maximum(np.ceil((high - low) / cell).astype(int), 1)
    height = np.full(shape, -np.inf)
    place = np.clip(((points[:, :2] - low) / cell).astype(int), 0, shape - 1)
    np.maximum.at(height, (place[:, 0], place[:, 1]), points[:, 2])
    end = low + shape * cell
    picture = axes.imshow(
        np.where(np.isfinite(height), height, np.nan).T,
        origin="lower",
        extent=(low[0], end[0], low[1], end[1]),
        cmap="Greys",
        vmin=float(mesh.bounds[0, 2]) - 0.25,
        vmax=below_m + 1.5,
        interpolation="nearest",
    )
    picture.set_cmap(picture.cmap.with_extremes(bad="#55585c"))


def _surface(mesh: TriangleMesh, faces: NDArray[np.intp]) -> NDArray[np.float32]:
    """Points spread evenly over these faces; always the same points."""
    rng = np.random.default_rng(0)
    ends = np.cumsum(mesh.areas[faces])
    face = faces[np.searchsorted(ends, (np.arange(_SAMPLES) + 0.5) * (ends[-1] / _SAMPLES))]
    u, v = rng.random((2, _SAMPLES, 1), dtype=np.float32)
    u, v = np.where(u + v > 1, 1 - u, u), np.where(u + v > 1, 1 - v, v)
    a, b, c = (mesh.triangles[face, k] for k in range(3))
    return np.asarray(a + u * (b - a) + v * (c - a))


def _draw_points(axes: Any, points: NDArray[np.float32]) -> None:
    kept = points[:: max(1, len(points) // _MOST_POINTS)]
    axes.scatter(
        kept[:, 0], kept[:, 1], s=1.6, c="#c0392b", alpha=0.5, linewidths=0, label="points"
    )


def _draw_boxes(axes: Any, boxes: Boxes, colour: str, label: str, *, named: bool) -> None:
    corners = boxes.corners()
    for row, name in enumerate(boxes.class_name):
        if not np.isfinite(corners[row]).all():
            continue
        outline = corners[row][FROM_ABOVE, :2]
        axes.plot(*outline.T, color=colour, lw=1.2, label=label if row == 0 else None)
        if named:
            axes.text(
                *outline[:4].mean(axis=0),
                name,
                fontsize=6,
                color=colour,
                ha="center",
                va="center",
                clip_on=True,
            )


def _draw_way(axes: Any, poses: NDArray[np.float32], colour: str, label: str) -> None:
    if len(poses):
        places = centres(poses)
        axes.plot(places[:, 0], places[:, 1], "o-", ms=2.5, lw=1.2, color=colour, label=label)


def _draw_root(axes: Any, pose: NDArray[np.float32]) -> None:
    place, ahead = centres(pose), forwards(pose)
    axes.plot(*place[:2], "*", ms=13, color="#1f5fbf", mec="white", label="root")
    axes.arrow(*place[:2], *(0.5 * ahead[:2]), width=0.03, color="#1f5fbf", zorder=5)
