"""One rollout for people: its camera and target, and the candidates of one step as columns, with their poses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.reasons import decode_invalid_reason, decode_position_id
from rollbook.errors import RollbookError
from rollbook.store.audit.candidates import AUDIT_COLUMNS
from rollbook.store.audit.rows import (
    Array,
    Coded,
    Row,
    candidate_span,
    dict_rows,
    gather,
    step_span,
    word_of,
)
from rollbook.store.schema import TABLES
from rollbook.store.views.store_view import ImageStoreView, StoreView


@dataclass(frozen=True, slots=True, eq=False)
class StepCandidates:
    """The shell of one step, in shell order."""

    rows: Array
    """[N]: their rows in the table candidates."""
    poses: Array
    """[N, 12]: world from camera. A damaged store may have values that are not finite."""
    gain: Array
    """[N]: root gain of the target, the reward; NaN without a label."""
    valid: Array
    taken: Array
    """[N]: true for the candidate that the policy took."""
    family: Coded
    reason: Coded
    """Why each is invalid; VALID if it is not."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def labelled(self) -> Array:
        """Valid candidates whose gain is known."""
        labelled: Array = self.valid & np.isfinite(self.gain)
        return labelled

    @property
    def random_gain(self) -> float | None:
        """What a choice among the labelled candidates earns on average, when each is as likely as the others."""
        known = self.gain[self.labelled]
        return float(known.mean(dtype=np.float64)) if len(known) else None

    def best_first(self) -> Array:
        """Positions in the shell: by gain, then valid ones without a label, then invalid ones."""
        known = np.where(self.labelled, self.gain, -np.inf)
        return np.lexsort([self.rows, ~self.valid, -known])


def step_candidates(reader: StoreView, step_row_id: int) -> StepCandidates:
    rows = candidate_span(reader, step_span(reader, None, step_row_id))

    def column(name: str) -> Array:
        return reader.array(f"candidates/{name}")[rows]

    own = column("candidate_row_id")
    chosen = gather(
        reader.array("steps/selected_candidate_row_id"), np.array([step_row_id]), fill=-1
    )
    return StepCandidates(
        rows=own,
        poses=column("pose_world_cam"),
        gain=column("target_root_gain"),
        valid=column("actor_action_mask"),
        taken=own == chosen,
        family=Coded(column("position_id"), decode_position_id),
        reason=Coded(column("primary_invalid_reason"), decode_invalid_reason),
    )


def candidate_rows(reader: StoreView, rows: Array) -> list[Row]:
    """Audit rows of these candidates, in this order."""
    return dict_rows({name: read(reader, rows) for name, read in AUDIT_COLUMNS.items()})


# --------------------------------------------------------------------------------------- rollouts


@dataclass(frozen=True, slots=True, eq=False)
class TargetBox:
    name: str
    class_name: str | None
    pose: Array
    """[12]: world from object."""
    extents: Array
    """[3]: side lengths."""

    @property
    def is_drawable(self) -> bool:
        return bool(np.isfinite(self.pose).all() and np.isfinite(self.extents).all())


def target_of(reader: StoreView, rollout_row_id: int) -> TargetBox | None:
    """The target of a rollout; None where the store does not name one."""
    row = int(reader.array("rollouts/target_row_id")[rollout_row_id])
    if not 0 <= row < reader.num_targets:
        return None

    def word(column: str) -> str | int | None:
        dictionary = TABLES["targets"].columns[column].words
        assert dictionary is not None
        code = int(reader.array(f"targets/{column}")[row])
        return word_of(reader.words(dictionary))(code)

    class_name = word("target_class_name_id")
    return TargetBox(
        name=str(word("target_id") or f"target {row}"),
        class_name=None if class_name is None else str(class_name),
        pose=reader.array("targets/target_pose_world_object")[row],
        extents=reader.array("targets/target_extents")[row],
    )


def poses_taken(reader: StoreView, rollout_row_id: int) -> Array:
    """[S, 12]: the pose that each step took; NaN where a step names no candidate."""
    steps = step_span(reader, rollout_row_id, None)
    chosen = reader.array("steps/selected_candidate_row_id")[steps]
    return gather(reader.array("candidates/pose_world_cam"), chosen, fill=np.nan)


def poses_considered(reader: StoreView, rollout_row_id: int) -> Array:
    """[N, 12]: the poses of all candidates of a rollout."""
    rows = candidate_span(reader, step_span(reader, rollout_row_id, None))
    return reader.array("candidates/pose_world_cam")[rows]


def points_seen(reader: ImageStoreView, rollout_row_id: int, most: int) -> NDArray[np.float32]:
    """[P, 3]: points in the world that the depth images of a rollout show, thinned out evenly to at most `most`."""
    steps = step_span(reader, rollout_row_id, None)
    poses = poses_taken(reader, rollout_row_id)
    seen = [
        _points(reader, step, pose)
        for step, pose in zip(range(steps.start, steps.stop), poses, strict=True)
    ]
    points = np.concatenate([np.zeros((0, 3), np.float32), *seen])
    return points[:: max(1, -(-len(points) // most))]


def _points(reader: ImageStoreView, step_row_id: int, pose: Array) -> NDArray[np.float32]:
    """The pixels of one depth image, in the world. A damaged image has none."""
    try:
        image = reader.selected_depth(step_row_id)
    except (RollbookError, RuntimeError, ValueError):
        image = None  # the page says for each image why it is missing
    if image is None or not np.isfinite(pose).all():
        return np.zeros((0, 3), np.float32)
    depth = image["depth_m"].astype(np.float64)
    rows, columns = np.nonzero(image["valid_mask"].astype(bool) & np.isfinite(depth))
    along = depth[rows, columns]
    pixels = np.stack([columns + 0.5, rows + 0.5], axis=1)
    across = (pixels - image["principal_point_px"]) / image["focal_px"] * along[:, None]
    rotation, place = pose[:9].astype(np.float64).reshape(3, 3), pose[9:]
    points = np.column_stack([across, along]) @ rotation.T + place
    return points[np.isfinite(points).all(axis=1)].astype(np.float32)
