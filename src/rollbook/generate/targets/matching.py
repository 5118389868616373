"""Matches: which ground-truth object a selected box is about. Only labels hang on it, never the selection."""

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
    """How the search for a target's ground-truth object ended."""

    MATCHED = "matched"
    V0_GT_INPUT = "v0_gt_input"
    """The box is the ground truth itself."""
    UNMATCHED_GT = "unmatched_gt"
    AMBIGUOUS_GT = "ambiguous_gt"
    """Two objects fit nearly as well."""
    AMBIGUOUS_PRED_TO_GT = "ambiguous_pred_to_gt"
    """Two selected boxes are about one object."""
    MISSING_GT = "missing_gt"
    NOT_REQUESTED = "not_requested"
    AMBIGUOUS_IDENTITY = "ambiguous_identity"
    """Oracle tasks: another ground-truth box lies in nearly the same place."""
    UNMATCHED_IDENTITY = "unmatched_identity"
    """Oracle tasks: the box does not overlap even with itself."""
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
    """One selected box, and the ground-truth row it is about."""

    status: GtMatchStatus
    row: int = -1
    """The best row; kept where it is ambiguous, for whoever wants to look; -1 where nothing fits."""
    iou: float | None = None
    """None where it could not be measured."""
    score: float | None = None
    """What was compared with the thresholds: the overlap, or what stands in for it."""

    def joined(self, bitset: int) -> int:
        """A target's reasons with this match's own among them."""
        reason = _REASON_OF.get(self.status, 0)
        return (bitset & ~VALID_BITSET) | reason if reason else bitset


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchRules:
    """When a box counts as being about an object."""

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
    # the second need not reach the threshold: one just below it is as likely to be the right one
    if len(order) > 1 and score[best] - score[order[1]] <= rules.ambiguity_margin:
        return replace(found, status=GtMatchStatus.AMBIGUOUS_GT)
    return found


def _similarity(
    box: Boxes, truth: Boxes, samples: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Overlap with each, NaN where it fails, and the score.

    The overlap fails for ground truth without volume: a picture or a whiteboard drawn as a flat box. There the score
    is how near the centres are, measured by the two diagonals.
    """
    iou = box.iou(0, truth, samples=samples)
    apart = np.linalg.norm(truth.centres - box.centres, axis=1)
    diagonals = np.linalg.norm(truth.extents.astype(np.float64), axis=1)
    own = np.linalg.norm(box.extents[0].astype(np.float64))
    near = np.clip(1 - apart / (diagonals + own), 0, 1)
    return iou, np.where(np.isnan(iou), near, iou)


def _comparable(truth: Boxes) -> NDArray[np.bool_]:
    """Boxes that are somewhere and of some size; a flat one is."""
    finite = np.isfinite(np.hstack([truth.pose_world_object, truth.extents])).all(axis=1)
    sized = (truth.extents >= 0).all(axis=1) & (truth.extents > 0).any(axis=1)
    return np.asarray(finite & sized)


def _without_shared_rows(matches: Sequence[GtMatch]) -> list[GtMatch]:
    """Two boxes on one object would train on one label twice, and nobody knows which of them is meant."""
    claims = Counter(match.row for match in matches if match.status is GtMatchStatus.MATCHED)
    return [
        replace(match, status=GtMatchStatus.AMBIGUOUS_PRED_TO_GT)
        if match.status is GtMatchStatus.MATCHED and claims[match.row] > 1
        else match
        for match in matches
    ]
