"""The picture of one rollout: the scene from above with all candidates, the target before and after, and the views."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.poses import centres, forwards
from rollbook.generate.oracle.oracle import OracleState
from rollbook.generate.oracle.surface import SurfaceSamples
from rollbook.generate.raycast.scene_geometry import SceneGeometry
from rollbook.generate.rollout.nodes import EvaluatedNode, Node, RolloutTask
from rollbook.generate.rollout.recipes import RolloutRecipeConfig
from rollbook.generate.sources.reader import SourceRow
from rollbook.generate.targets.selection import SelectedTarget
from rollbook.lazy import needs

Array = NDArray[np.float64]

_DPI = 110
_OVERHEAD_M = 0.25
"""The plan is cut at this height above the root camera, because higher surfaces would hide the rest."""
_AROUND_M = 0.6
_LEAST_SIDE_M = 4.0
_WAY_SHOWN_M = 1.5
"""Parts of the recorded path that are farther from the root do not widen the plan."""
_PLAN_ASPECT = 1.05
_VIEW_ELEVATION_DEG = 30.0
_PANEL_PT = 165.0
"""Approximate width of a target panel in points, from which the marker size of the samples is derived."""
_SHARE_IN_SCALE = 0.98
_STOP_SHARE = 0.035
"""Share of the plan's width below which the markers of two steps would overlap."""
_MOST_SHOWN = 7
"""Most images and table rows: of a longer chain the first ones and the last."""

_TRUE_BOX, SEEN_BOX_COLOUR = "#1a9641", "#f07f09"
_WAY, CHAIN_COLOUR, REJECTED_COLOUR, _NOTHING_HIT = "#1f5fbf", "#d7191c", "#777777", "#f2d6d6"
_BOX_EDGES = np.array([(a, b) for a in range(8) for b in (a ^ 1, a ^ 2, a ^ 4) if a < b])
FROM_ABOVE = [0, 2, 6, 4, 0]
"""Corners of an upright box in order around it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShownRollout:
    """One chain of one recipe, with its nodes."""

    row: SourceRow
    true_box: Boxes
    target: SelectedTarget
    recipe: RolloutRecipeConfig
    task: RolloutTask
    nodes: tuple[EvaluatedNode, ...]
    """The node of each step; only the root if there is no step."""
    taken: tuple[int, ...]
    """The shell index taken at each node."""
    end: Node
    chains: int
    """Number of kept chains, of which the one with the largest gain is shown."""

    @property
    def root(self) -> EvaluatedNode:
        return self.nodes[0]

    @property
    def gains(self) -> Array:
        """Gain of each step as a share of the target's error at the root."""
        return self._of_steps("target_root_gain")

    def _of_steps(self, label: str) -> Array:
        pairs = zip(self.nodes, self.taken, strict=False)
        return np.array([node.labels[label][index] for node, index in pairs], np.float64)

    @property
    def steps_in_words(self) -> str:
        return "1 step" if len(self.taken) == 1 else f"{len(self.taken)} steps"

    @property
    def unit(self) -> str:
        return "m²" if self.task.oracle.config.metric == "face_sq" else "m"

    def in_words(self) -> str:
        before, after = self.task.oracle_root.target, self.end.oracle.target
        parts = [
            f"{self.target.target_class_name} (rank {self.target.rank}) by {self.recipe.name}: "
            f"{self.root.num_valid} of {len(self.root.candidates)} candidates valid",
            f"target gain {self.gains.sum():.3f} in {self.steps_in_words}"
            + (f" ({' '.join(f'{gain:+.3f}' for gain in self.gains)})" if len(self.taken) else ""),
            f"error {before.error:.4f} -> {after.error:.4f} {self.unit}",
        ]
        if self.end.oracle.scene is not None:
            parts.append(f"scene gain {self._of_steps('scene_root_gain').sum():.3f}")
        return ", ".join(parts)


# ------------------------------------------------------------------------------------- the picture


@dataclass(frozen=True, slots=True)
class Matplotlib:
    """The parts of matplotlib that are used; imported when a picture is drawn."""

    figure: Any
    agg: Any
    collections: Any
    colormaps: Any

    @classmethod
    def loaded(cls) -> Matplotlib:
        with needs("drawing a picture"):
            from matplotlib import collections, colormaps, figure
            from matplotlib.backends import backend_agg
        return cls(figure, backend_agg, collections, colormaps)


def picture_png(pictures: Matplotlib, shown: ShownRollout) -> bytes:
    """The picture as a PNG file. It is drawn without pyplot, which has global state."""
    figure = pictures.figure.Figure(figsize=(15.5, 10.0), dpi=_DPI, layout="constrained")
    canvas = pictures.agg.FigureCanvasAgg(figure)
    figure.suptitle(_title(shown), fontsize=12)
    upper, lower = figure.subfigures(2, 1, height_ratios=(2.9, 1))
    left, right = upper.subfigures(1, 2, width_ratios=(1.12, 1))
    _draw_plan(pictures, left, shown)
    _draw_target(right, shown)
    strip, table = lower.subfigures(1, 2, width_ratios=(1.7, 1))
    _draw_images(pictures, strip, shown)
    _write_numbers(table, shown)
    buffer = io.BytesIO()
    canvas.print_png(buffer)
    return buffer.getvalue()


def _title(shown: ShownRollout) -> str:
    recipe, target = shown.recipe, shown.target
    best = "" if shown.chains == 1 else f", best of {shown.chains} chains"
    return (
        f"{shown.row.sample_key}   target: {target.target_class_name} (rank {target.rank}, "
        f"ground truth: {target.gt_match_status})\n"
        f"recipe {recipe.name}: {recipe.selection_policy.value} by {recipe.stored_scorer_name}, "
        f"{len(shown.taken)} of {recipe.horizon} steps{best}"
    )


# ---------------------------------------------------------------------------------- scene from above


def _draw_plan(pictures: Matplotlib, place: Any, shown: ShownRollout) -> None:
    axes = place.subplots()
    low, high = _window(shown)
    draw_floor(axes, shown.task.geometry, low, high, float(shown.task.root_pose[11]))
    way = centres(shown.row.actor.poses)
    axes.plot(
        *way[:, :2].T, "o-", ms=3, lw=1.3, color=_WAY, alpha=0.8, label="recorded way to the root"
    )
    for box, colour, style, label in (
        (shown.true_box, _TRUE_BOX, "-", "target, ground truth"),
        (shown.target.box, SEEN_BOX_COLOUR, "--", "target, as the actor has it"),
    ):
        outline = box.corners()[0][FROM_ABOVE]
        axes.plot(*outline[:, :2].T, style, lw=2.2, color=colour, label=label)
    coloured = _draw_candidates(pictures, axes, shown)
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xlabel="x, m", ylabel="y, m")
    _draw_chain(axes, shown)
    axes.set_aspect("equal")
    valid, total = shown.root.num_valid, len(shown.root.candidates)
    axes.set_title(f"From above: {total} candidates of the first step, {valid} valid", fontsize=11)
    bar = place.colorbar(coloured, ax=axes, shrink=0.8, pad=0.01, format="{x:.1%}")
    bar.set_label("target gain of a candidate: share of the root's error it takes away", fontsize=9)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles,
        labels,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.075),
        ncols=3,
        fontsize=8.5,
        frameon=False,
    )


def _window(shown: ShownRollout) -> tuple[Array, Array]:
    """The part of the plan that contains everything shown, in the aspect ratio of the panel."""
    root = shown.task.root_pose[9:11]
    way = centres(shown.row.actor.poses)[:, :2]
    places = np.concatenate(
        [
            way[np.linalg.norm(way - root, axis=1) <= _WAY_SHOWN_M],
            centres(shown.root.candidates.shell_poses)[:, :2],
            shown.end.centres[:, :2],
            shown.true_box.corners()[0, :, :2],
            shown.target.box.corners()[0, :, :2],
        ]
    )
    places = places[np.isfinite(places).all(axis=1)]
    low, high = places.min(axis=0) - _AROUND_M, places.max(axis=0) + _AROUND_M
    size = np.maximum(high - low, _LEAST_SIDE_M)
    size = np.maximum(size, size[::-1] * (_PLAN_ASPECT, 1 / _PLAN_ASPECT))
    middle = (low + high) / 2
    return middle - size / 2, middle + size / 2


def draw_floor(
    axes: Any,
    geometry: SceneGeometry,
    low: Array,
    high: Array,
    eye_height: float,
    *,
    cells_across: int = 700,
) -> None:
    """Draws the surfaces seen from above: light floor, darker furniture, darkest walls and outside."""
    top = eye_height + _OVERHEAD_M
    height, solid = heights_below(geometry, low, high, top, cells_across=cells_across)
    known = np.isfinite(height)
    floor = float(np.nanquantile(height, 0.02)) if known.any() else 0.0
    rise = np.clip((height - floor) / max(eye_height - floor, 0.5), 0, 1)
    filled = np.where(known, height, floor)
    steps = np.maximum(np.abs(np.gradient(filled, axis=0)), np.abs(np.gradient(filled, axis=1)))
    grey = 0.97 - 0.28 * rise - 0.22 * (steps > 0.03)
    grey = np.where(known & ~solid, grey, 0.42)
    axes.imshow(
        grey,
        origin="lower",
        extent=(low[0], high[0], low[1], high[1]),
        cmap="gray",
        vmin=0,
        vmax=1,
        interpolation="antialiased",
    )


def heights_below(
    geometry: SceneGeometry, low: Array, high: Array, top: float, *, cells_across: int = 700
) -> tuple[Array, NDArray[np.bool_]]:
    """[y, x]: the height of the first surface below `top`, NaN for none, and where `top` is inside a solid.

    The grid spans from `low` to `high` in x and y, with `cells_across` cells along the longer side. Cutting the scene
    at `top` removes ceilings, which would hide it.
    """
    size = high - low
    across = np.maximum((size / size.max() * cells_across).astype(int), 1)
    x, y = (low[k] + (np.arange(across[k]) + 0.5) * size[k] / across[k] for k in (0, 1))
    places = np.full((len(y), len(x), 3), top, np.float32)
    places[..., 0], places[..., 1] = x, y[:, None]
    below, floors, backs = _cast_vertically(geometry, places, -1.0)
    _, ceilings, backs_above = _cast_vertically(geometry, places, 1.0)
    # inside a solid, rays hit the backs of faces; in a mesh with flipped faces they hit backs nearly everywhere
    inside_out = 2 * backs.sum() > floors.sum()
    solid = (floors & (backs != inside_out)) | (ceilings & (backs_above != inside_out))
    return np.where(floors & ~solid, top - below, np.nan), solid


def _cast_vertically(
    geometry: SceneGeometry, places: NDArray[np.float32], up: float
) -> tuple[Array, NDArray[np.bool_], NDArray[np.bool_]]:
    """Casts rays up or down from places [y, x, 3]: the distance, whether a face is hit, and whether at its back."""
    along = np.zeros_like(places)
    along[..., 2] = up
    far, face = geometry.cast(places.reshape(-1, 3), along.reshape(-1, 3))
    hit = face >= 0
    back = hit & (geometry.mesh.normals[face, 2] * up > 0)
    shape = places.shape[:2]
    return far.astype(np.float64).reshape(shape), hit.reshape(shape), back.reshape(shape)


def _draw_candidates(pictures: Matplotlib, axes: Any, shown: ShownRollout) -> Any:
    """Draws all candidates of the first step; returns the artist with the colour scale."""
    shell = shown.root.candidates
    places, valid = centres(shell.shell_poses)[:, :2], shell.mask_valid
    axes.plot(
        *places[~valid].T,
        "x",
        ms=4,
        mew=1,
        color=REJECTED_COLOUR,
        label="candidate, not valid",
        zorder=3,
    )
    gains = shown.root.labels["target_root_gain"][valid].astype(np.float64)
    low = min(float(gains.min(initial=0.0)), 0.0)
    high = max(float(gains.max(initial=0.0)), low + 0.01)
    towards = ahead(shell.shell_poses[valid])
    ticks = np.stack([places[valid], places[valid] + 0.14 * towards], axis=1)
    casing = pictures.collections.LineCollection(ticks, colors="#333333", lw=2.8, zorder=4)
    lines = pictures.collections.LineCollection(
        ticks, cmap="viridis", array=gains, clim=(low, high), lw=1.6, zorder=4
    )
    axes.add_collection(casing)
    axes.add_collection(lines)
    return axes.scatter(
        *places[valid].T,
        c=gains,
        cmap="viridis",
        vmin=low,
        vmax=high,
        s=34,
        edgecolors="#333333",
        linewidths=0.7,
        label="candidate, with where it looks",
        zorder=5,
    )


def _draw_chain(axes: Any, shown: ShownRollout) -> None:
    way = shown.end.centres[:, :2]
    axes.plot(*way.T, "-", lw=6, color="white", zorder=6, solid_capstyle="round")
    axes.plot(
        *way.T,
        "-",
        lw=3.2,
        color=CHAIN_COLOUR,
        zorder=7,
        label="chosen steps",
        solid_capstyle="round",
    )
    for number, pose in enumerate([shown.task.root_pose, *_poses(shown)]):
        axes.annotate(
            "",
            pose[9:11] + 0.32 * ahead(pose),
            pose[9:11],
            zorder=8,
            arrowprops={
                "arrowstyle": "-|>",
                "color": CHAIN_COLOUR if number else _WAY,
                "lw": 2,
                "shrinkA": 0,
                "shrinkB": 0,
            },
        )
    for place, name in _named_stops(
        way[1:], _STOP_SHARE * (axes.get_xlim()[1] - axes.get_xlim()[0])
    ):
        axes.plot(*place, "o", ms=15, mfc="white", mec=CHAIN_COLOUR, mew=2, zorder=9)
        size = 9 if len(name) < 3 else 7
        axes.annotate(
            name, place, ha="center", va="center", weight="bold", fontsize=size, zorder=10
        )
    axes.plot(*way[0], "*", ms=19, color=_WAY, mec="white", label="root", zorder=9)


def _named_stops(places: Array, apart: float) -> list[tuple[Array, str]]:
    """Numbered places of the steps; steps to nearly the same place share one marker."""
    stops: list[tuple[Array, str]] = []
    for number, place in enumerate(places, start=1):
        near = [k for k, (stop, _) in enumerate(stops) if np.linalg.norm(stop - place) < apart]
        if near:
            stop, name = stops[near[0]]
            stops[near[0]] = stop, f"{name},{number}"
        else:
            stops.append((place, str(number)))
    return stops


def ahead(poses: NDArray[np.floating]) -> Array:
    """[..., 2]: unit view directions on the plan; 0 for a camera that looks straight up or down."""
    flat = forwards(poses)[..., :2]
    length = np.linalg.norm(flat, axis=-1, keepdims=True)
    return np.asarray(np.divide(flat, length, out=np.zeros_like(flat), where=length > 1e-6))


def _poses(shown: ShownRollout) -> Iterator[Array]:
    for node, index in zip(shown.nodes, shown.taken, strict=False):
        yield node.candidates.shell_poses[index].astype(np.float64)


# --------------------------------------------------------------------------- target, before and after


def _draw_target(place: Any, shown: ShownRollout) -> None:
    """Draws the target's surface from two sides, coloured by the distance to the nearest known point."""
    points, area = _target_surface(shown)
    centre = shown.true_box.centres[0]
    corners = shown.true_box.corners()[0] - centre
    reach = 1.05 * float(np.linalg.norm(corners, axis=1).max())
    states = (shown.task.oracle_root, shown.end.oracle)
    apart = [np.sqrt(state.target.d2.astype(np.float64)) for state in states]
    most = max(_largest_shown(apart[0]), 2 * shown.task.oracle.config.coverage_radius_m)
    size = (_PANEL_PT / (2 * reach)) ** 2 * 5 * area / len(points)
    towards = np.arctan2(*(shown.task.root_pose[9:11] - centre[:2])[::-1])
    axes = place.subplots(2, 2, sharex=True, sharey=True)
    for column, (state, distances) in enumerate(zip(states, apart, strict=True)):
        axes[0, column].set_title(_measured(shown, state, before=column == 0), fontsize=10)
        for panel, turn in zip(axes[:, column], (0.0, np.pi), strict=True):
            view = _view_axes(towards + turn)
            # far samples first, so that near ones cover them
            seen = (points - centre) @ view.T
            order = np.argsort(seen[:, 2], kind="stable")
            drawn = panel.scatter(
                *seen[order, :2].T,
                c=distances[order],
                s=float(np.clip(size, 2, 150)),
                cmap="plasma",
                vmin=0,
                vmax=most,
                linewidths=0,
            )
            for edge in corners[_BOX_EDGES]:
                panel.plot(*(edge @ view[:2].T).T, "-", lw=0.8, color=_TRUE_BOX, zorder=0)
            panel.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
            panel.tick_params(labelsize=8)
    for panel, side in zip(axes[:, 0], ("from the root's side", "from behind"), strict=True):
        panel.set_ylabel(f"{side}, m", fontsize=10)
    bar = place.colorbar(drawn, ax=axes, shrink=0.8, extend="max", pad=0.02)
    bar.set_label("from the target's surface to the nearest known point, m", fontsize=9)


def _target_surface(shown: ShownRollout) -> tuple[Array, float]:
    """[S, 3]: the places where distances are measured, and the area that they represent."""
    surface = shown.task.oracle.surfaces["target"]
    if isinstance(surface, SurfaceSamples):
        return surface.points.astype(np.float64), surface.area_m2
    a, b, c = np.swapaxes(surface.corners.reshape(-1, 3, 3).astype(np.float64), 0, 1)
    area = np.linalg.norm(np.cross(b - a, c - a), axis=1).sum() / 2
    return (a + b + c) / 3, float(area)


def _largest_shown(values: NDArray[np.floating]) -> float:
    """The upper end of a colour scale; larger values get its last colour."""
    known = values[np.isfinite(values)]
    return float(np.quantile(known, _SHARE_IN_SCALE)) if len(known) else 1.0


def _measured(shown: ShownRollout, state: OracleState, *, before: bool) -> str:
    region, radius = state.target, shown.task.oracle.config.coverage_radius_m
    when = "Target at the root" if before else f"after {shown.steps_in_words}"
    gained = "" if before else f" (gain {shown.gains.sum():+.1%})"
    return (
        f"{when}\nerror {region.error:.4f} {shown.unit}{gained}\n"
        f"{region.coverage:.0%} within {100 * radius:g} cm"
    )


def _view_axes(azimuth: float) -> Array:
    """Rows right, up and towards the viewer, for a viewer who looks at the target from this side and from above."""
    tilt = np.radians(_VIEW_ELEVATION_DEG)
    eye = np.array([np.cos(tilt) * np.cos(azimuth), np.cos(tilt) * np.sin(azimuth), np.sin(tilt)])
    right = np.array([-np.sin(azimuth), np.cos(azimuth), 0.0])
    return np.stack([right, np.cross(eye, right), eye])


# ---------------------------------------------------------------------------------------- views


def _draw_images(pictures: Matplotlib, place: Any, shown: ShownRollout) -> None:
    """Draws the depth at the root and at every step, with the outline of the target's true box."""
    camera = shown.task.depth_camera or shown.task.camera
    numbers = _some_of(len(shown.taken) + 1)
    poses = np.stack([shown.task.root_pose, *_poses(shown)])[numbers]
    images = shown.task.geometry.depth(poses, camera)
    far = _largest_shown(images[images > 0])
    colours = pictures.colormaps["bone_r"].with_extremes(bad=_NOTHING_HIT)
    axes = place.subplots(1, len(numbers), squeeze=False)[0]
    for panel, number, pose, image in zip(axes, numbers, poses, images, strict=True):
        masked = np.ma.masked_equal(image, 0)
        drawn = panel.imshow(masked, cmap=colours, vmin=0, vmax=far, interpolation="nearest")
        _draw_outline(pictures, panel, shown.true_box, pose, camera)
        panel.set(xticks=[], yticks=[])
        panel.set_title(f"seen at {number}" if number else "seen at the root", fontsize=10)
    bar = place.colorbar(drawn, ax=axes, shrink=0.9, extend="max", pad=0.01)
    bar.set_label("depth, m (pink: nothing hit)", fontsize=9)


def _some_of(count: int) -> list[int]:
    """All numbers, or the first ones and the last if there are too many."""
    numbers = list(range(count))
    return numbers if count <= _MOST_SHOWN else [*numbers[: _MOST_SHOWN - 1], count - 1]


def _draw_outline(pictures: Matplotlib, axes: Any, box: Boxes, pose: Array, camera: Camera) -> None:
    """Draws the edges of a box in short pieces, without those behind the camera."""
    ends = box.corners()[0][_BOX_EDGES]
    parts = np.linspace(0, 1, 24)[None, :, None]
    pixels, depth = camera.project(ends[:, :1] * (1 - parts) + ends[:, 1:] * parts, pose)
    ahead = (depth >= camera.near_m)[:, :-1] & (depth >= camera.near_m)[:, 1:]
    pieces = np.stack([pixels[:, :-1], pixels[:, 1:]], axis=2)[ahead]
    lines = pictures.collections.LineCollection(pieces, colors=_TRUE_BOX, lw=1.3, capstyle="round")
    axes.add_collection(lines, autolim=False)


def _write_numbers(place: Any, shown: ShownRollout) -> None:
    """Writes a table with a row for the root and for each step."""
    axes = place.subplots()
    axes.set_axis_off()
    radius = 100 * shown.task.oracle.config.coverage_radius_m
    head = [
        "at",
        "valid",
        "target\ngain",
        "scene\ngain",
        f"error,\n{shown.unit}",
        f"within\n{radius:g} cm",
    ]
    lines = [["root", "", "", "", *_error_and_coverage(shown.task.oracle_root)]]
    ends = [*(node.node for node in shown.nodes[1:]), shown.end]
    for number, gain in enumerate(shown.gains):
        node = shown.nodes[number]
        scene = node.labels.get("scene_root_gain")
        lines.append(
            [
                str(number + 1),
                f"{node.num_valid} of {len(node.candidates)}",
                f"{gain:+.1%}",
                "" if scene is None else f"{scene[shown.taken[number]]:+.1%}",
                *_error_and_coverage(ends[number].oracle),
            ]
        )
    shown_lines = [lines[number] for number in _some_of(len(lines))]
    table = axes.table(shown_lines, colLabels=head, loc="center", cellLoc="center")
    table.auto_set_font_size(False)
    table.set_fontsize(10)
    table.scale(1, 1.4)
    for column in range(len(head)):
        table[0, column].set(height=1.7 * table[0, column].get_height(), facecolor="#eeeeee")


def _error_and_coverage(state: OracleState) -> list[str]:
    return [f"{state.target.error:.4f}", f"{state.target.coverage:.0%}"]
