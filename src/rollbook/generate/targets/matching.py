"""Matching: finds the ground-truth object of a selected box. Labels depend on the match; the selection does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.reasons import TARGET_INVALID_REASON_CODES, VALID_BITSET
from rollbook.generate.geometry.boxes import Boxes


class GtMatchStatus(StrEnum):
    """The result of the search for a target's ground-truth object."""

    MATCHED = "matched"
    V0_GT_INPUT = "v0_gt_input"
    """The box is the ground truth itself."""
    UNMATCHED_GT = "unmatched_gt"
    AMBIGUOUS_GT = "ambiguous_gt"
    """Two objects match nearly equally well."""
    AMBIGUOUS_PRED_TO_GT = "ambiguous_pred_to_gt"
    """Two selected boxes match one object."""
    MISSING_GT = "missing_gt"
    NOT_REQUESTED = "not_requested"
    AMBIGUOUS_IDENTITY = "ambiguous_identity"
    """Oracle tasks: another ground-truth box lies in nearly the same place."""
    UNMATCHED_IDENTITY = "unmatched_identity"
    """Oracle tasks: the measured overlap of the box with itself is too small."""
    INVALID_GEOMETRY = "invalid_geometry"


_UNMATCHED = 1 << TARGET_INVALID_REASON_CODES["TARGET_GT_UNMATCHED"]
_AMBIGUOUS = 1 << TARGET_INVALID_REASON_CODES["TARGET_GT_AMBIGUOUS"]
_REASON_OF = {
    GtMatchStatus.UNMATCHED_GT: _UNMATCHED,
    GtMatchStatus.MISSING_GT: _UNMATCHED,
    GtMatchStatus.UNMATCHED_IDENTITY: _UNMATCHED,
    GtMatchStatus.AMBIGUOUS_GT: _AMBIGUOUS,
    GtMatchStatus.AMBIGUOUS_PRED_TO_GT: _AMBIGUOUS,
    GtMatchStatus.AMBIGUOUS_IDENTITY: _AMBIGUOUS,
}


@dataclass(frozen=True, slots=True)
class GtMatch:
    """The match of one selected box with a row of the ground truth."""

    status: GtMatchStatus
    row: int = -1
    """The best row, also if it is ambiguous; -1 if nothing matches."""
    iou: float | None = None
    """None if it could not be measured."""
    score: float | None = None
    """The value that is compared with the thresholds: the overlap or its substitute."""

    def joined(self, bitset: int) -> int:
        """A target's reasons together with the reason of this match."""
        reason = _REASON_OF.get(self.status, 0)
        return (bitset & ~VALID_BITSET) | reason if reason else bitset


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchRules:
    """Thresholds for a match."""

    min_iou: float
    min_score: float
    iou_samples: int
    ambiguity_margin: float


def match_boxes(selected: Boxes, truth: Boxes | None, rules: MatchRules) -> list[GtMatch]:
    """One match for each selected box, in their order."""
    if truth is None or not _comparable(truth).any():
        return [GtMatch(GtMatchStatus.MISSING_GT)] * len(selected)
    matches = [_match(selected.take([row]), truth, rules) for row in range(len(selected))]
    return _without_shared_rows(matches)


def _match(box: Boxes, truth: Boxes, rules: MatchRules) -> GtMatch:
    rows = np.flatnonzero(_comparable(truth) & (truth.sem_id == box.sem_id[0]))
    if not len(rows):
        return GtMatch(GtMatchStatus.UNMATCHED_GT)
    iou, score = _similarity(box, truth.take(rows), rules.iou_samples)
    order = np.argsort(-score, kind="stable")
    best = order[0]
    known_iou = None if np.isnan(iou[best]) else float(iou[best])
    measured = GtMatch(GtMatchStatus.UNMATCHED_GT, -1, known_iou, float(score[best]))
    if score[best] < max(rules.min_iou, rules.min_score):
        return measured
    found = replace(measured, status=GtMatchStatus.MATCHED, row=int(rows[best]))
    # the second need not reach the threshold: just below it, it may still be the right one
    if len(order) > 1 and score[best] - score[order[1]] <= rules.ambiguity_margin:
        return replace(found, status=GtMatchStatus.AMBIGUOUS_GT)
    return found


def _similarity(
    box: Boxes, truth: Boxes, samples: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The overlap with each box of the truth, NaN if it has no volume, and the score.

    A picture or a whiteboard is a flat box without volume. Its score is the closeness of the centres relative to the
    two diagonals.
    """
    iou = box.iou(0, truth, samples=samples)
    apart = np.linalg.norm(truth.centres - box.centres, axis=1)
    diagonals = np.linalg.norm(truth.extents.astype(np.float64), axis=1)
    own = np.linalg.norm(box.extents[0].astype(np.float64))
    near = np.clip(1 - apart / (diagonals + own), 0, 1)
    return iou, np.where(np.isnan(iou), near, iou)


def _comparable(truth: Boxes) -> NDArray[np.bool_]:
    """Boxes that are finite and have at least one side longer than 0; a flat box counts."""
    finite = np.isfinite(np.hstack([truth.pose_world_object, truth.extents])).all(axis=1)
    sized = (truth.extents >= 0).all(axis=1) & (truth.extents > 0).any(axis=1)
    return np.asarray(finite & sized)


def _without_shared_rows(matches: Sequence[GtMatch]) -> list[GtMatch]:
    """Marks matches that share a ground-truth row as ambiguous: training would use one label twice."""
    claims = Counter(match.row for match in matches if match.status is GtMatchStatus.MATCHED)
    return [
        replace(match, status=GtMatchStatus.AMBIGUOUS_PRED_TO_GT)
        if match.status is GtMatchStatus.MATCHED and claims[match.row] > 1
        else match
        for match in matches
    ]
