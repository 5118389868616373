"""The picture of an episode of the environment while it runs: the scene from above, and what the camera sees now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.generate.geometry.poses import centres
from rollbook.generate.rollout.nodes import RolloutTask
from rollbook.generate.rollout_picture import (
    CHAIN_COLOUR,
    FROM_ABOVE,
    REJECTED_COLOUR,
    SEEN_BOX_COLOUR,
    Matplotlib,
    ahead,
    draw_floor,
)
from rollbook.store.records import CandidateSamplingResult

Array = NDArray[np.float64]

_SIZE_INCHES, _DPI = (9.6, 5.4), 100
"""960 x 540 pixels: even numbers, as video formats want them."""
_PLAN, _VIEW = (0.01, 0.1, 0.48, 0.83), (0.51, 0.1, 0.48, 0.83)
"""Left, bottom, width and height of both panels, as shares of the picture."""
_CELLS_ACROSS = 240
_AROUND_M = 2.4
"""The plan shows this much around the root, and always the target: it stays the same during an episode."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShownEpisode:
    """One moment of an episode."""

    task: RolloutTask
    visited: Array
    """[moves + 1, 3]: visited camera centres, the root first."""
    pose: Array
    offered: CandidateSamplingResult | None
    """None after the last step."""
    steps: int
    horizon: int
    gain: float


def episode_picture(shown: ShownEpisode) -> NDArray[np.uint8]:
    """[540, 960, 3]: an RGB image. It shows nothing that the oracle alone knows, except the gain so far."""
    pictures = Matplotlib.loaded()
    figure = pictures.figure.Figure(figsize=_SIZE_INCHES, dpi=_DPI)
    canvas = pictures.agg.FigureCanvasAgg(figure)
    target = shown.task.target.target_class_name
    words = (
        f"step {shown.steps} of {shown.horizon}, target: {target}, gain so far {shown.gain:+.3f}"
    )
    figure.text(0.5, 0.955, words, ha="center", fontsize=13)
    plan = figure.add_axes(_PLAN)
    _draw_plan(plan, shown)
    _draw_view(figure.add_axes(_VIEW), shown)
    figure.text(0.75, 0.035, "what the camera sees: near is light", ha="center", fontsize=10)
    handles, labels = plan.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="center",
        bbox_to_anchor=(0.25, 0.05),
        ncols=2,
        fontsize=9,
        frameon=False,
    )
    canvas.draw()
    return np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3])


def _draw_plan(axes: Any, shown: ShownEpisode) -> None:
    task = shown.task
    root = task.root_pose[9:11]
    box = task.target.box.corners()[0][FROM_ABOVE][:, :2]
    low = np.minimum(root - _AROUND_M, box.min(axis=0) - 0.3)
    high = np.maximum(root + _AROUND_M, box.max(axis=0) + 0.3)
    draw_floor(
        axes, task.geometry, low, high, float(task.root_pose[11]), cells_across=_CELLS_ACROSS
    )
    plot = axes.plot
    plot(*box.T, "--", lw=2.2, color=SEEN_BOX_COLOUR, label="target, as the actor has it")
    if shown.offered is not None:
        places, valid = centres(shown.offered.shell_poses)[:, :2], shown.offered.mask_valid
        plot(*places[~valid].T, "x", ms=4, color=REJECTED_COLOUR, label="candidate, not valid")
        plot(*places[valid].T, "o", ms=5, mfc="white", mec="#333333", label="candidate")
    plot(*shown.visited[:, :2].T, "o-", lw=3, ms=6, color=CHAIN_COLOUR, label="way of the camera")
    tip = shown.pose[9:11] + 0.4 * ahead(shown.pose)
    axes.annotate(
        "",
        tip,
        shown.pose[9:11],
        arrowprops={"arrowstyle": "-|>", "color": CHAIN_COLOUR, "lw": 2.5},
    )
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal", xticks=[], yticks=[])


def _draw_view(axes: Any, shown: ShownEpisode) -> None:
    task = shown.task
    depth = task.geometry.depth(shown.pose[None], task.camera)[0].astype(np.float64)
    depth[~(np.isfinite(depth) & (depth > 0))] = np.nan
    axes.imshow(depth, cmap="magma_r", interpolation="nearest")
    axes.set(xticks=[], yticks=[])
