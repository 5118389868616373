"""Anomalies put into good records are found, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from rollbook.contracts.reasons import reason_mask
from rollbook.store.audit import (
    RolloutSuspiciousQueryConfig,
    suspicious_counts,
    suspicious_rollout_rows,
)
from rollbook.store.records import RolloutStep, RolloutZarrRecord
from tests.store.audited import opened, written
from tests.store.synthetic import spec_fixture_records
from tests.store.tampering import copy_store, edit

Row = dict[str, Any]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fixture whose numbers are known in advance: 3 rollouts of 2 steps with 8 candidates, all valid."""
    folder = tmp_path_factory.mktemp("known")
    records = spec_fixture_records(depth=False)
    return written(folder / "known.zarr", records, selected_depth_enabled=False)


@pytest.fixture
def copied(known: Path, tmp_path: Path) -> Path:
    return copy_store(known, tmp_path / "copy.zarr")


def changed(step: RolloutStep, invalid: Iterable[int], **bits: int) -> RolloutStep:
    """The step with some candidates made invalid; the rest of it stays."""
    mask = np.ones(len(step.candidates), bool)
    mask[list(invalid)] = False
    reasons = np.where(mask, 1, bits.get("bits", reason_mask("COLLISION_MESH"))).astype(np.uint32)
    shell = replace(step.candidates, mask_valid=mask, invalid_reason_bitset=reasons)
    kept = np.flatnonzero(mask)
    chance = np.zeros(len(mask), np.float32)
    chance[kept] = 1 / len(kept)
    return replace(
        step,
        candidates=shell,
        selected_shell_index=int(kept[-1]),
        selection_probabilities=chance,
        selection_log_probabilities=np.log(np.maximum(chance, 1e-30)),
    )


def with_step(
    record: RolloutZarrRecord, index: int, change: Callable[[RolloutStep], RolloutStep]
) -> RolloutZarrRecord:
    chain = record.result.chains[0]
    steps = tuple(change(step) if at == index else step for at, step in enumerate(chain.steps))
    result = replace(record.result, chains=(replace(chain, steps=steps),))
    return replace(record, result=result)


def suspicious(path: Path, records: Iterable[RolloutZarrRecord], **thresholds: Any) -> list[Row]:
    config = RolloutSuspiciousQueryConfig(**thresholds) if thresholds else None
    return suspicious_rollout_rows(
        opened(written(path, records, selected_depth_enabled=False)), config=config
    )


def test_a_good_store_is_not_suspicious(known: Path) -> None:
    assert suspicious_rollout_rows(opened(known)) == []
    assert {row["count"] for row in suspicious_counts(opened(known))} == {0}


def test_a_step_without_a_choice_is_found(tmp_path: Path) -> None:
    first, *others = spec_fixture_records(depth=False)
    rows = suspicious(
        tmp_path / "s.zarr", [with_step(first, 1, lambda step: changed(step, range(6))), *others]
    )
    assert rows[0] == {
        "kind": "low_valid_fanout",
        "severity": "warning",
        "rollout_row_id": 0,
        "step_row_id": 1,
        "candidate_row_id": None,
        "message": "2 valid candidates, expected at least 3",
    }


def test_a_reason_that_rules_a_step_is_found(tmp_path: Path) -> None:
    first, *others = spec_fixture_records(depth=False)
    rows = suspicious(
        tmp_path / "s.zarr", [with_step(first, 0, lambda step: changed(step, range(4))), *others]
    )
    assert [row["kind"] for row in rows] == ["dominant_invalid_reason"]
    assert (rows[0]["rollout_row_id"], rows[0]["step_row_id"]) == (0, 0)
    assert rows[0]["message"] == "4 of 4 invalid candidates: COLLISION_MESH"


def test_mixed_reasons_do_not_dominate_below_the_threshold(tmp_path: Path) -> None:
    def mixed(step: RolloutStep) -> RolloutStep:
        made = changed(step, range(4))
        assert made.candidates.invalid_reason_bitset is not None
        bits = made.candidates.invalid_reason_bitset.copy()
        bits[0] = reason_mask("DEPTH_NO_HIT")
        return replace(made, candidates=replace(made.candidates, invalid_reason_bitset=bits))

    first, *others = spec_fixture_records(depth=False)
    path = written(
        tmp_path / "s.zarr", [with_step(first, 0, mixed), *others], selected_depth_enabled=False
    )
    assert suspicious_rollout_rows(opened(path)) == []
    config = RolloutSuspiciousQueryConfig(dominant_invalid_fraction=0.75)
    rows = suspicious_rollout_rows(opened(path), config=config)
    assert [row["message"] for row in rows] == ["3 of 4 invalid candidates: COLLISION_MESH"]


def test_a_valid_candidate_without_a_label_is_an_error(tmp_path: Path) -> None:
    def unlabelled(step: RolloutStep) -> RolloutStep:
        gain = step.metric_vectors["target_root_gain"].copy()
        gain[2] = np.nan
        return replace(step, metric_vectors={**step.metric_vectors, "target_root_gain": gain})

    first, *others = spec_fixture_records(depth=False)
    rows = suspicious(tmp_path / "s.zarr", [with_step(first, 1, unlabelled), *others])
    assert rows == [
        {
            "kind": "valid_candidate_missing_label",
            "severity": "error",
            "rollout_row_id": 0,
            "step_row_id": 1,
            "candidate_row_id": 10,
            "message": "the actor could take it, but it has no oracle label",
        }
    ]


def test_a_label_that_is_no_number_is_an_error(copied: Path) -> None:
    def lost(values: Any, _: Any) -> None:
        values[5] = np.nan

    edit(copied, "candidates/target_root_gain", lost)
    rows = suspicious_rollout_rows(opened(copied))
    assert [(row["candidate_row_id"], row["severity"]) for row in rows] == [(5, "error")]
    assert rows[0]["message"].endswith("no finite target_root_gain")


def test_a_target_that_scored_high_without_ground_truth_is_found(tmp_path: Path) -> None:
    first, second, third = spec_fixture_records(depth=False)
    lost = msgspec.structs.replace(
        second.lineage,
        matched_gt_target_row_id=None,
        matched_gt_target_id=None,
        gt_match_status="unmatched_gt",
    )
    rows = suspicious(tmp_path / "s.zarr", [first, replace(second, lineage=lost), third])
    assert [row["kind"] for row in rows] == ["high_score_invalid_gt_target"]
    assert rows[0]["target_row_id"] == 1
    assert rows[0]["rollout_row_id"] is rows[0]["candidate_row_id"] is None


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("motion_step_length_m", 1.3, "step length 1.3 m over 1.25"),
        ("motion_height_delta_m", -0.7, "height change 0.7 m over 0.6"),
        ("motion_backward_step_m", 0.4, "backward step 0.4 m over 0.35"),
        ("motion_yaw_delta_deg", -90.0, "turn 90 ° over 85"),
    ],
)
def test_a_selected_move_beyond_a_threshold_is_found(
    copied: Path, column: str, value: float, said: str
) -> None:
    def moved(values: Any, store: Any) -> None:
        values[:] = value
        values[~store("candidates/selected_mask")] = np.nan
        values[np.flatnonzero(store("candidates/selected_mask"))[1:]] = np.inf

    edit(copied, f"candidate_diagnostics/{column}", moved)
    rows = suspicious_rollout_rows(opened(copied))
    assert [(row["kind"], row["message"]) for row in rows] == [("selected_motion_outlier", said)]
    assert rows[0]["candidate_row_id"] == 7


def test_thresholds_can_be_set_and_rows_be_limited_per_kind(known: Path) -> None:
    reader = opened(known)
    config = RolloutSuspiciousQueryConfig(max_step_distance_m=0.25, min_valid_candidates=9)
    rows = suspicious_rollout_rows(reader, config=config)
    assert [row["kind"] for row in rows] == ["low_valid_fanout"] * 6 + [
        "selected_motion_outlier"
    ] * 6
    limited = suspicious_rollout_rows(reader, config=config, limit=2)
    assert limited == [*rows[:2], *rows[6:8]]
    counts = {row["kind"]: row["count"] for row in suspicious_counts(reader, config=config)}
    assert (counts["low_valid_fanout"], counts["selected_motion_outlier"]) == (6, 6)
