"""Candidate columns: every value of which there is one per candidate, computed for many records at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.reasons import (
    INVALID_REASON_CODES,
    VALID_BITSET,
    primary_reasons,
    reason_mask,
)
from rollbook.store.record_checks import feature_count, invalid_value
from rollbook.store.records import POSE, RolloutStep, RolloutZarrRecord
from rollbook.store.schema import CANDIDATES, DIAGNOSTICS

Columns = dict[str, NDArray[Any]]

METRIC_NAMES: Mapping[str, tuple[str, ...]] = {
    "scene_rri": ("scene_rri", "oracle_scene_rri"),
    "target_rri": ("target_rri", "oracle_target_rri"),
    "scene_root_gain": ("scene_root_gain",),
    "target_root_gain": ("target_root_gain", "root_gain"),
    "scene_log_error_gain": ("scene_log_error_gain",),
    "target_log_error_gain": ("target_log_error_gain", "log_error_gain"),
    "scene_pm_dist_before": ("scene_pm_dist_before",),
    "scene_pm_dist_after": ("scene_pm_dist_after",),
    "target_pm_dist_before": ("target_pm_dist_before",),
    "target_pm_dist_after": ("target_pm_dist_after",),
    "target_current_support": ("target_current_support",),
    "target_candidate_support": ("target_candidate_support",),
}
"""Label column → names of the metric vectors it can come from; the first one found is used. A plain `rri` is none."""

ORACLE_TERMS = tuple(DIAGNOSTICS.packed()["oracle_terms"])
"""Diagnostics that are given as metric vectors, because they are labels."""

_SCORED = (
    *METRIC_NAMES,
    "selection_logits",
    "selection_probabilities",
    "selection_log_probabilities",
)
_REJECTED = np.uint32(reason_mask("SAMPLER_RULE_REJECTED"))
_NONFINITE = np.uint32(reason_mask("POSE_NONFINITE"))
_COLLIDES = np.uint32(reason_mask("PATH_SEGMENT_COLLISION"))


@dataclass(frozen=True, slots=True, eq=False)
class Shells:
    """All shells of a record, end to end: the parts that are checked before it is accepted."""

    valid: NDArray[np.bool_]
    poses: NDArray[np.float32]
    bitset: NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False)
class AddedRecord:
    """A record whose rows have ids."""

    record: RolloutZarrRecord
    steps: list[RolloutStep]
    shells: Shells
    counts: NDArray[np.int64]
    """Candidates of each step."""
    source_row_id: int
    target_row_id: int
    first_rollout: int
    first_step: int
    offsets: NDArray[np.int64]
    """First candidate row of each step."""


def joined_shells(record: RolloutZarrRecord, steps: Sequence[RolloutStep]) -> Shells:
    shells = [step.candidates for step in steps]
    valid = joined((shell.mask_valid for shell in shells), np.bool_)
    poses = joined((shell.shell_poses for shell in shells), np.float32, (POSE,))
    bitset = _bitsets(steps, valid, poses)
    _check_bits(record, valid, bitset)
    return Shells(valid, poses, bitset)


def _bitsets(
    steps: Sequence[RolloutStep], valid: NDArray[np.bool_], poses: NDArray[np.float32]
) -> NDArray[np.uint32]:
    """The given reason bits, with bits for non-finite poses and colliding paths added."""
    shells = [step.candidates for step in steps]
    bitset: NDArray[np.uint32] = joined(
        (
            np.where(shell.mask_valid, np.uint32(VALID_BITSET), np.uint32(0))
            if shell.invalid_reason_bitset is None
            else shell.invalid_reason_bitset
            for shell in shells
        ),
        np.uint32,
    )
    collides = joined(
        (_filled(shell.extras.get("path_collision_mask"), False, len(shell)) for shell in shells),
        np.bool_,
    )
    finite = np.isfinite(poses).all(axis=1)
    bitset[~finite] |= _NONFINITE
    bitset[collides] |= _COLLIDES
    unnamed = np.repeat(
        [shell.invalid_reason_bitset is None for shell in shells], [len(shell) for shell in shells]
    ).astype(np.bool_)
    bitset[unnamed & (bitset == 0)] = _REJECTED
    return bitset


def _check_bits(
    record: RolloutZarrRecord, valid: NDArray[np.bool_], bitset: NDArray[np.uint32]
) -> None:
    contradicting = np.flatnonzero((valid != (bitset == VALID_BITSET)) | (bitset == 0))
    if not len(contradicting):
        return
    row = int(contradicting[0])
    bits = [name for name, bit in INVALID_REASON_CODES.items() if int(bitset[row]) >> bit & 1]
    raise invalid_value(
        f"record {record.rollout_id_prefix!r}, candidate {row}",
        "invalid_reason_bitset",
        f"{', '.join(bits) or 'no bit'} where mask_valid is {bool(valid[row])}",
        "VALID alone for a valid candidate, at least one reason for another",
    )


def shell_columns(added: Sequence[AddedRecord]) -> Columns:
    """The columns that follow from the shells alone, for all steps of these records."""
    steps = [step for each in added for step in each.steps]
    valid = joined((each.shells.valid for each in added), np.bool_)
    scored = _scored_columns(steps, valid)
    labelled = valid & np.isfinite(scored["target_root_gain"])
    trainable = np.repeat(
        [each.record.lineage.label_valid for each in added],
        [len(each.shells.valid) for each in added],
    )
    return {
        **_place_columns(added, steps, valid),
        **_provenance_columns(steps),
        **scored,
        "oracle_label_mask": labelled,
        "q_train_mask": labelled & trainable,
    }


def _place_columns(
    added: Sequence[AddedRecord], steps: Sequence[RolloutStep], valid: NDArray[np.bool_]
) -> Columns:
    """The place of candidates in their shell and in the world, and the reasons why some are invalid."""
    counts = joined((each.counts for each in added), np.int64)
    begins = np.cumsum(counts) - counts
    starts = np.repeat(begins, counts)
    before: NDArray[np.intp] = np.cumsum(valid) - valid
    bitset = joined((each.shells.bitset for each in added), np.uint32)
    selected = np.zeros(len(valid), np.bool_)
    selected[begins + np.array([step.selected_shell_index for step in steps], np.int64)] = True
    return {
        "shell_index": np.arange(len(valid)) - starts,
        "compact_valid_index": np.where(valid, before - before[starts], -1),
        "pose_world_cam": joined((each.shells.poses for each in added), np.float32, (POSE,)),
        "pose_relative_root": np.concatenate(
            [
                relative_poses(each.record.result.root_pose_world, each.shells.poses)
                for each in added
            ]
        ),
        "actor_action_mask": valid,
        "selected_mask": selected,
        "invalid_reason_bitset": bitset,
        "primary_invalid_reason": primary_reasons(bitset),
    }


def _provenance_columns(steps: Sequence[RolloutStep]) -> Columns:
    shells = [step.candidates for step in steps]
    columns: Columns = {}
    for name in ("strategy_id", "position_id", "mixture_id", "sampler_probability"):
        column = CANDIDATES.columns[name]
        parts = (_filled(getattr(shell, name), column.fill, len(shell)) for shell in shells)
        columns[name] = joined(parts, column.numpy)
    width = feature_count(steps[0]) if steps else 0
    if width:
        features = (shell.actor_features for shell in shells)
        columns["actor_features"] = joined(features, np.float32, (width,))
    return columns


def _scored_columns(steps: Sequence[RolloutStep], valid: NDArray[np.bool_]) -> Columns:
    """Labels and selections. A vector over the valid candidates only is expanded to its shell."""
    fills = np.array([[CANDIDATES.columns[name].fill] for name in _SCORED], np.float32)
    table = np.repeat(fills, len(valid), axis=1)
    start = 0
    with np.errstate(
        over="ignore"
    ):  # a label too large for float32 becomes infinite, and is then not a label
        for step in steps:
            count = len(step.candidates)
            among_valid = start + np.flatnonzero(step.candidates.mask_valid)
            for row, values in enumerate(_vectors(step)):
                if values is not None and len(values) == count:
                    table[row, start : start + count] = values
                elif values is not None:
                    table[row, among_valid] = values
            start += count
    return dict(zip(_SCORED, np.where(valid, table, fills), strict=True))


def _vectors(step: RolloutStep) -> list[NDArray[Any] | None]:
    """The vectors of a step, in the order of `_SCORED`."""
    metrics = step.metric_vectors
    return [
        *(
            next((metrics[name] for name in sources if name in metrics), None)
            for sources in METRIC_NAMES.values()
        ),
        step.selection_logits,
        step.selection_probabilities,
        step.selection_log_probabilities,
    ]


def diagnostic_columns(added: Sequence[AddedRecord]) -> Columns:
    """The diagnostics that any of these records has. The other columns hold their fill value."""
    steps = [step for each in added for step in each.steps]
    shells = [step.candidates for step in steps]
    columns = {
        name: joined(
            (_filled(s.extras.get(name), column.fill, len(s)) for s in shells), column.numpy
        )
        for name, column in DIAGNOSTICS.columns.items()
        if any(name in shell.extras for shell in shells)
    }
    terms = [name for name in ORACLE_TERMS if any(name in each.metric_vectors for each in steps)]
    for name in terms:
        columns[name] = joined((_expanded(step, name) for step in steps), np.float32)
    return columns


def _expanded(step: RolloutStep, name: str) -> NDArray[Any]:
    """A metric of one step for its whole shell; NaN where a candidate is not valid."""
    mask = step.candidates.mask_valid
    values = step.metric_vectors.get(name)
    expanded = np.full(len(mask), np.nan, np.float32)
    if values is not None:
        expanded[mask] = values[mask] if len(values) == len(mask) else values
    return expanded


def joined(parts: Iterator[Any], dtype: Any, row_shape: tuple[int, ...] = ()) -> NDArray[Any]:
    """Arrays end to end; an empty array if there are none."""
    with np.errstate(
        over="ignore"
    ):  # a pose too large for float32 becomes infinite, which is checked
        return np.concatenate([np.zeros((0, *row_shape), dtype), *parts]).astype(dtype, copy=False)


def _filled(values: NDArray[Any] | None, fill: Any, count: int) -> NDArray[Any]:
    return np.full(count, fill) if values is None else values


def relative_poses(root: NDArray[np.float32], poses: NDArray[np.float32]) -> NDArray[np.float32]:
    """Poses relative to the root: inverse(root) composed with each pose."""
    stored = np.asarray(root, np.float32).astype(np.float64)  # rounded as it is stored
    rotation, position = stored[:9].reshape(3, 3).T, stored[9:]
    count = len(poses)
    # all rotations side by side, so that one matrix product rotates all of them
    side_by_side = poses[:, :9].reshape(count, 3, 3).transpose(1, 0, 2).reshape(3, 3 * count)
    with np.errstate(invalid="ignore", over="ignore"):  # invalid candidates may have any pose
        turned = (rotation @ side_by_side).reshape(3, count, 3).transpose(1, 0, 2).reshape(count, 9)
        moved = (poses[:, 9:] - position) @ rotation.T
        return np.concatenate([turned, moved], axis=1).astype(np.float32)
