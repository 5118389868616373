"""Heuristics that find suspicious rollouts. Each hit names the rows concerned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollbook.contracts.reasons import decode_invalid_reason
from rollbook.store.audit.rows import Array, Row, columns_of, limited
from rollbook.store.views.store_view import StoreView
from rollbook.store.zero_labels import REACH_ADVICE, ZeroLabels, find_zero_labels


@dataclass(frozen=True, slots=True)
class RolloutSuspiciousQueryConfig:
    """The thresholds of the heuristics."""

    min_valid_candidates: int = 3
    """A step with fewer valid candidates is reported."""
    dominant_invalid_fraction: float = 0.8
    """Share of the invalid candidates of a step from which one reason counts as dominant."""
    high_target_score: float = 0.5
    """Selection score from which a target without ground truth is reported."""
    max_step_distance_m: float = 1.25
    max_height_delta_m: float = 0.6
    max_backward_step_m: float = 0.35
    max_yaw_delta_deg: float = 85.0


@dataclass(frozen=True, slots=True, eq=False)
class _Hits:
    """All hits of one kind, as columns. A message is made when its row is read."""

    kind: str
    severity: str
    message: Callable[[int], str]
    size: int
    rollouts: Array | None = None
    steps: Array | None = None
    candidates: Array | None = None
    targets: Array | None = None

    def rows(self, most: int) -> Iterator[Row]:
        for at in range(most):
            row: Row = {
                "kind": self.kind,
                "severity": self.severity,
                "rollout_row_id": _at(self.rollouts, at),
                "step_row_id": _at(self.steps, at),
                "candidate_row_id": _at(self.candidates, at),
                "message": self.message(at),
            }
            if self.targets is not None:
                row["target_row_id"] = _at(self.targets, at)
            yield row


def _at(ids: Array | None, at: int) -> int | None:
    return None if ids is None else int(ids[at])


def suspicious_rollout_rows(
    reader: StoreView,
    *,
    config: RolloutSuspiciousQueryConfig | None = None,
    limit: int | None = None,
) -> list[Row]:
    """Suspicious rows by kind, the first `limit` of each kind. An `error` breaks a rule; a `warning` is unusual."""
    hits = _all_hits(reader, config or RolloutSuspiciousQueryConfig())
    return [row for each in hits for row in each.rows(limited(slice(0, each.size), limit).stop)]


def suspicious_counts(
    reader: StoreView, *, config: RolloutSuspiciousQueryConfig | None = None
) -> list[Row]:
    """The number of hits of each kind, including zeros, without making rows."""
    hits = _all_hits(reader, config or RolloutSuspiciousQueryConfig())
    return [{"kind": each.kind, "severity": each.severity, "count": each.size} for each in hits]


def _all_hits(reader: StoreView, config: RolloutSuspiciousQueryConfig) -> tuple[_Hits, ...]:
    return (
        _low_valid_fanout(reader, config),
        _dominant_invalid_reason(reader, config),
        _valid_candidate_missing_label(reader),
        _high_score_invalid_gt_target(reader, config),
        _selected_motion_outlier(reader, config),
        _root_without_gain(reader),
    )


def _low_valid_fanout(reader: StoreView, config: RolloutSuspiciousQueryConfig) -> _Hits:
    valid = reader.array("steps/num_valid_candidates")
    found = np.flatnonzero(valid < config.min_valid_candidates)
    return _of_steps(
        reader,
        "low_valid_fanout",
        found,
        lambda at: (
            f"{valid[found[at]]} valid candidates, expected at least {config.min_valid_candidates}"
        ),
    )


def _of_steps(reader: StoreView, kind: str, found: Array, message: Callable[[int], str]) -> _Hits:
    steps = columns_of(reader, "steps", ("rollout_row_id", "step_row_id"), found)
    return _Hits(
        kind,
        "warning",
        message,
        len(found),
        rollouts=steps["rollout_row_id"],
        steps=steps["step_row_id"],
    )


def _of_candidates(
    reader: StoreView,
    kind: str,
    severity: str,
    found: Array,
    message: Callable[[int], str],
) -> _Hits:
    names = ("rollout_row_id", "step_row_id", "candidate_row_id")
    rollouts, steps, rows = (reader.array(f"candidates/{name}")[found] for name in names)
    return _Hits(
        kind, severity, message, len(found), rollouts=rollouts, steps=steps, candidates=rows
    )


def _dominant_invalid_reason(reader: StoreView, config: RolloutSuspiciousQueryConfig) -> _Hits:
    """Counts every pair of step and reason at once. There are few reasons, so the table is small."""
    invalid = np.flatnonzero(~reader.array("candidates/actor_action_mask"))
    reasons = reader.array("candidates/primary_invalid_reason")[invalid].astype(np.int64)
    steps = reader.array("candidates/step_row_id")[invalid]
    there = (steps >= 0) & (steps < reader.num_steps)
    width = int(reasons.max()) + 1 if len(reasons) else 1
    pairs = steps[there] * width + reasons[there]
    counts = np.bincount(pairs, minlength=reader.num_steps * width).reshape(-1, width)
    totals = counts.sum(axis=1)
    most = counts.max(axis=1, initial=0)
    found = np.flatnonzero((totals > 0) & (most >= config.dominant_invalid_fraction * totals))

    def message(at: int) -> str:
        step = found[at]
        reason = decode_invalid_reason(int(counts[step].argmax()))
        return f"{most[step]} of {totals[step]} invalid candidates: {reason}"

    return _of_steps(reader, "dominant_invalid_reason", found, message)


def _valid_candidate_missing_label(reader: StoreView) -> _Hits:
    valid = reader.array("candidates/actor_action_mask")
    label = reader.array("candidates/oracle_label_mask")
    gain = reader.array("candidates/target_root_gain")
    found = np.flatnonzero(valid & ~(label & np.isfinite(gain)))

    def message(at: int) -> str:
        lacks = "oracle label" if not label[found[at]] else "finite target_root_gain"
        return f"the actor could take it, but it has no {lacks}"

    return _of_candidates(reader, "valid_candidate_missing_label", "error", found, message)


def _high_score_invalid_gt_target(reader: StoreView, config: RolloutSuspiciousQueryConfig) -> _Hits:
    score = reader.array("targets/target_selection_score")
    valid = reader.array("targets/gt_label_valid_mask")
    found = np.flatnonzero((score >= config.high_target_score) & ~valid)
    return _Hits(
        "high_score_invalid_gt_target",
        "warning",
        lambda at: (
            f"selected with score {score[found[at]]:.3g}, but no ground truth gives it labels"
        ),
        size=len(found),
        targets=reader.array("targets/target_row_id")[found],
    )


def _selected_motion_outlier(reader: StoreView, config: RolloutSuspiciousQueryConfig) -> _Hits:
    selected = np.flatnonzero(reader.array("candidates/selected_mask"))
    motions = (
        _Motion("step length", "motion_step_length_m", config.max_step_distance_m, "m"),
        _Motion(
            "height change", "motion_height_delta_m", config.max_height_delta_m, "m", signed=True
        ),
        _Motion("backward step", "motion_backward_step_m", config.max_backward_step_m, "m"),
        _Motion("turn", "motion_yaw_delta_deg", config.max_yaw_delta_deg, "°", signed=True),
    )
    values = [each.of(reader, selected) for each in motions]
    too_much = [each > motion.most for each, motion in zip(values, motions, strict=True)]
    hit = np.logical_or.reduce(too_much)
    found = np.flatnonzero(hit)

    def message(at: int) -> str:
        row = found[at]
        return ", ".join(
            f"{motion.name} {value[row]:.3g} {motion.unit} over {motion.most:g}"
            for motion, value, over in zip(motions, values, too_much, strict=True)
            if over[row]
        )

    return _of_candidates(reader, "selected_motion_outlier", "warning", selected[found], message)


def _root_without_gain(reader: StoreView) -> _Hits:
    found = zero_labels_of(reader)
    message = f"every labelled candidate has gain 0: {REACH_ADVICE}"
    return _of_steps(reader, "root_without_gain", found.steps, lambda _: message)


def zero_labels_of(reader: StoreView) -> ZeroLabels:
    names = ("steps/step_index", "candidates/step_row_id", "candidates/target_root_gain")
    return find_zero_labels(*(reader.array(name) for name in names))


@dataclass(frozen=True, slots=True)
class _Motion:
    name: str
    column: str
    most: float
    unit: str
    signed: bool = False

    def of(self, reader: StoreView, rows: Array) -> Any:
        """The values; those that are not finite are unknown and never exceed a limit."""
        values = reader.array(f"candidate_diagnostics/{self.column}")[rows]
        values = np.abs(values) if self.signed else values
        return np.where(np.isfinite(values), values, -np.inf)
