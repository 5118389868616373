"""Inspection rows say what the records said, cost what was asked for, and find what is wrong."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from rollbook.contracts.reasons import (
    decode_invalid_reason,
    decode_position_id,
    decode_strategy_id,
)
from rollbook.errors import ConfigurationError, InvalidNumber
from rollbook.store.audit import (
    AUDIT_COLUMNS,
    candidate_audit_rows,
    candidate_group_summary_rows,
    candidate_result_diagnostic_counts,
    rollout_step_objective_rows,
    rollout_store_inventory_rows,
    rollout_tree_summary_rows,
    selected_depth_preview,
    selected_depth_summary_rows,
    suspicious_rollout_rows,
    target_audit_rows,
    validity_waterfall_rows,
)
from rollbook.store.audit.page import audit_page
from rollbook.store.manifest import RolloutStoreManifestContext
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.records import RolloutZarrRecord
from rollbook.store.repack import repack_store
from rollbook.store.writer import write_rollout_zarr_store
from tests.store.audited import COMPONENTS, opened, written
from tests.store.plain_rows import plain_rows
from tests.store.synthetic import make_records, spec_fixture_records
from tests.store.tampering import copy_store, edit, replace_file

Row = dict[str, Any]

AUDIT_NAMES = [
    "candidate_row_id",
    "rollout_row_id",
    "step_row_id",
    "step_index",
    "shell_index",
    "compact_valid_index",
    "scene",
    "split",
    "policy",
    "target_row_id",
    "selected",
    "actor_action",
    "oracle_label",
    "q_train",
    "strategy_id",
    "strategy",
    "position_id",
    "position",
    "mixture_id",
    "mixture",
    "sampler_probability",
    "invalid_reason",
    "invalid_reason_bitset",
    "target_rri",
    "target_root_gain",
    "target_log_error_gain",
    "target_pm_dist_before",
    "target_pm_dist_after",
    "scene_rri",
    "selection_probability",
    "center_x",
    "center_y",
    "center_z",
    "mesh_distance_m",
    "path_min_clearance_m",
    "path_collision",
    "free_space_margin_m",
    "motion_step_length_m",
    "motion_height_delta_m",
    "motion_backward_step_m",
    "motion_yaw_delta_deg",
    "target_distance_m",
    "target_bearing_yaw_deg",
]


class Made(NamedTuple):
    path: Path
    reader: RolloutZarrStoreReader
    tables: dict[str, list[Row]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    records = list(
        make_records(
            12,
            seed=3,
            horizon=3,
            candidates=(4, 9),
            branching=True,
            unlabelled_fraction=0.2,
            unmatched_fraction=0.3,
            early_fraction=0.3,
            depth=(12, 16),
        )
    )
    path = written(
        tmp_path_factory.mktemp("audit") / "rich.zarr",
        records,
        selected_depth_height_px=12,
        selected_depth_width_px=16,
    )
    return Made(path, RolloutZarrStoreReader(path), plain_rows(records))


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fixture whose numbers are known in advance: 3 rollouts of 2 steps with 8 candidates, all valid."""
    return written(tmp_path_factory.mktemp("known") / "known.zarr", spec_fixture_records())


@pytest.fixture
def copied(known: Path, tmp_path: Path) -> Path:
    return copy_store(known, tmp_path / "copy.zarr")


def told(value: Any) -> Any:
    """As an audit row has it: Python scalars, None for what is not finite."""
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def single(value: Any) -> Any:
    return told(np.float32(math.nan if value is None else value))


# ----------------------------------------------------------------------------------- candidates


def plain_audit_row(tables: dict[str, list[Row]], row: int) -> Row:
    """One candidate, joined by hand."""
    own, extra = tables["candidates"][row], tables["candidate_diagnostics"][row]
    rollout = tables["rollouts"][own["rollout_row_id"]]
    mixture = own["mixture_id"]
    return {
        **{name: int(own[name]) for name in AUDIT_NAMES[:6]},
        "scene": rollout["scene_id"],
        "split": rollout["split_id"],
        "policy": rollout["policy_id"],
        "target_row_id": rollout["target_row_id"],
        "selected": bool(own["selected_mask"]),
        "actor_action": bool(own["actor_action_mask"]),
        "oracle_label": bool(own["oracle_label_mask"]),
        "q_train": bool(own["q_train_mask"]),
        "strategy_id": int(own["strategy_id"]),
        "strategy": decode_strategy_id(own["strategy_id"]),
        "position_id": int(own["position_id"]),
        "position": decode_position_id(own["position_id"]),
        "mixture_id": int(mixture),
        "mixture": COMPONENTS[mixture] if mixture < len(COMPONENTS) else f"component_{mixture}",
        "sampler_probability": single(own["sampler_probability"]),
        "invalid_reason": decode_invalid_reason(own["primary_invalid_reason"]),
        "invalid_reason_bitset": int(own["invalid_reason_bitset"]),
        **{name: single(own[name]) for name in AUDIT_NAMES if name.startswith("target_pm")},
        **{name: single(own[name]) for name in ("target_rri", "target_root_gain", "scene_rri")},
        "target_log_error_gain": single(own["target_log_error_gain"]),
        "selection_probability": single(own["selection_probabilities"]),
        **{
            f"center_{axis}": single(own["pose_world_cam"][9 + at]) for at, axis in enumerate("xyz")
        },
        "path_collision": bool(extra["path_collision_mask"]),
        **{name: single(extra[name]) for name in AUDIT_NAMES if name.endswith(("_m", "_deg"))},
    }


def test_audit_rows_are_the_records_joined_row_by_row(made: Made) -> None:
    rows = candidate_audit_rows(made.reader)
    assert [list(row) for row in rows[:1]] == [AUDIT_NAMES]
    assert rows == [plain_audit_row(made.tables, row) for row in range(len(rows))]
    assert len(rows) == made.reader.num_candidates
    json.dumps(rows, allow_nan=False)


def test_audit_rows_of_an_archive_are_those_of_the_store(made: Made, tmp_path: Path) -> None:
    archive = opened(repack_store(made.path, tmp_path / "archive.zarr", "archive"))
    assert candidate_audit_rows(archive) == candidate_audit_rows(made.reader)
    assert rollout_tree_summary_rows(archive) == rollout_tree_summary_rows(made.reader)


def test_the_first_audit_row_is_decoded(known: Path) -> None:
    first = candidate_audit_rows(opened(known), limit=1)[0]
    assert (first["scene"], first["position"], first["mixture"]) == (
        "fixture_box",
        "forward_local",
        "ahead",
    )
    assert first["target_root_gain"] != first["target_rri"]
    assert first["motion_step_length_m"] == 0.5


def test_filters_and_limits_are_slices_of_all_rows(made: Made) -> None:
    every = candidate_audit_rows(made.reader)
    for limit in (0, 1, 7, len(every), len(every) + 5):
        assert candidate_audit_rows(made.reader, limit=limit) == every[:limit]
    for rollout in range(made.reader.num_rollouts):
        mine = [row for row in every if row["rollout_row_id"] == rollout]
        assert candidate_audit_rows(made.reader, rollout_row_id=rollout) == mine
        assert candidate_audit_rows(made.reader, rollout_row_id=rollout, limit=3) == mine[:3]
    for step in range(made.reader.num_steps):
        mine = [row for row in every if row["step_row_id"] == step]
        owner = mine[0]["rollout_row_id"]
        assert candidate_audit_rows(made.reader, step_row_id=step) == mine
        assert candidate_audit_rows(made.reader, rollout_row_id=owner, step_row_id=step) == mine
        assert candidate_audit_rows(made.reader, rollout_row_id=owner + 1, step_row_id=step) == []


@pytest.mark.parametrize("row", [-1, 10**6])
def test_rows_nobody_has_are_no_rows(made: Made, row: int) -> None:
    assert candidate_audit_rows(made.reader, rollout_row_id=row) == []
    assert candidate_audit_rows(made.reader, step_row_id=row) == []
    assert rollout_step_objective_rows(made.reader, rollout_row_id=row) == []
    assert selected_depth_summary_rows(made.reader, rollout_row_id=row) == []


def test_a_negative_limit_is_refused(made: Made) -> None:
    with pytest.raises(InvalidNumber, match="limit is -1"):
        candidate_audit_rows(made.reader, limit=-1)


def plain_groups(rows: list[Row], key: str) -> list[Row]:
    """Grouped with a dict, one row after the other."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row[key]].append(row)
    found = []
    for name in sorted(groups, key=lambda each: (each is None, each if each is not None else 0)):
        mine = groups[name]
        gains = [row["target_root_gain"] for row in mine if row["target_root_gain"] is not None]
        valid = sum(row["actor_action"] for row in mine)
        found.append(
            {
                key: name,
                "total": len(mine),
                "actor_valid": valid,
                "actor_valid_fraction": valid / len(mine),
                "q_train": sum(row["q_train"] for row in mine),
                "selected": sum(row["selected"] for row in mine),
                "mean_target_root_gain": pytest.approx(sum(gains) / len(gains)) if gains else None,
            }
        )
    return found


@pytest.mark.parametrize("key", AUDIT_NAMES)
def test_a_group_summary_is_the_audit_rows_grouped(made: Made, key: str) -> None:
    rows = candidate_audit_rows(made.reader)
    assert candidate_group_summary_rows(made.reader, group_by=key) == plain_groups(rows, key)


def test_a_group_summary_has_these_numbers(known: Path) -> None:
    assert candidate_group_summary_rows(opened(known), group_by="position") == [
        {
            "position": "forward_local",
            "total": 48,
            "actor_valid": 48,
            "actor_valid_fraction": 1.0,
            "q_train": 48,
            "selected": 6,
            "mean_target_root_gain": pytest.approx(10.95),
        }
    ]


def test_grouping_by_what_is_no_audit_column_names_one_that_is(known: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"no audit column 'positon'; did you mean position"
    ):
        candidate_group_summary_rows(opened(known), group_by="positon")


def test_every_audit_column_can_be_grouped_by() -> None:
    assert list(AUDIT_COLUMNS) == AUDIT_NAMES


def test_the_waterfall_falls_from_the_full_shell_to_what_was_taken(made: Made) -> None:
    rows = validity_waterfall_rows(made.reader)
    every = candidate_audit_rows(made.reader)
    counts = [
        len(every),
        *(sum(row[key] for row in every) for key in ("actor_action", "oracle_label", "q_train")),
        made.reader.num_steps,
    ]
    assert [row["count"] for row in rows] == counts
    assert [row["stage"] for row in rows] == [
        "full shell",
        "actor-valid",
        "oracle-label",
        "q-train",
        "selected",
    ]
    assert [row["fraction_of_full"] for row in rows] == [count / len(every) for count in counts]


def test_a_shell_in_memory_is_counted_by_family_and_reason() -> None:
    shell = (
        next(iter(make_records(1, candidates=40, horizon=1))).result.chains[0].steps[0].candidates
    )
    counts = candidate_result_diagnostic_counts(shell)
    assert sum(row["total"] for row in counts["position"]) == 40
    assert sum(row["valid"] for row in counts["position"]) == shell.mask_valid.sum()
    assert all(row["total"] == row["valid"] + row["invalid"] for row in counts["position"])
    reasons = {row["invalid_reason"]: row["count"] for row in counts["invalid_reason"]}
    assert reasons["VALID"] == shell.mask_valid.sum()
    assert sum(reasons.values()) == 40


def test_a_shell_without_families_or_reasons_is_counted_too() -> None:
    shell = (
        next(iter(make_records(1, candidates=8, horizon=1))).result.chains[0].steps[0].candidates
    )
    valid = np.array([True] * 5 + [False] * 3)
    bare = replace(shell, mask_valid=valid, position_id=None, invalid_reason_bitset=None)
    assert candidate_result_diagnostic_counts(bare) == {
        "position": [{"position": "unknown", "total": 8, "valid": 5, "invalid": 3}],
        "invalid_reason": [
            {"invalid_reason": "SAMPLER_RULE_REJECTED", "count": 3},
            {"invalid_reason": "VALID", "count": 5},
        ],
    }


@pytest.mark.parametrize(
    "config",
    [None, {}, {"candidate_mixture": None}, {"candidate_mixture": {"components": [1, {}]}}],
)
def test_a_config_that_names_no_components_leaves_them_numbered(
    tmp_path: Path, config: Any
) -> None:
    context = RolloutStoreManifestContext(writer_config=config)
    write_rollout_zarr_store(
        tmp_path / "s.zarr",
        spec_fixture_records(depth=False),
        manifest_context=context,
        selected_depth_enabled=False,
    )
    rows = candidate_group_summary_rows(opened(tmp_path / "s.zarr"), group_by="mixture")
    assert [row["mixture"] for row in rows] == ["component_0", "component_1"]


# -------------------------------------------------------------------------------------- targets


def test_targets_are_decoded(known: Path) -> None:
    rows = target_audit_rows(opened(known))
    assert len(rows) == 3
    assert rows[1] == {
        "target_row_id": 1,
        "target_id": "fixture_box:smoke:detected_obbs:sem=1:inst=1:idx=1",
        "source": "detected_obbs",
        "source_index": 1,
        "class": "box",
        "sem_id": 1,
        "inst_id": 1,
        "confidence": pytest.approx(0.9),
        "selection_rank": 0,
        "selection_score": 0.5,
        "selection_probability": 1.0,
        "target_valid": True,
        "target_invalid_reason": "VALID",
        "gt_label_valid": True,
        "gt_match_status": "matched",
        "gt_match_iou": pytest.approx(0.9),
        "gt_match_score": pytest.approx(0.9),
        "projected_area_pixels": None,
        "projected_area_fraction": None,
        "semidense_support": None,
        "evl_support": None,
        "effective_support": 12.0,
        "visibility_score": pytest.approx(0.8),
        "support_score": None,
        "deficit_score": None,
    }


# ---------------------------------------------------------------------------------------- steps


def plain_entropy(made: Made, step: int) -> float | None:
    weights = [
        float(row["selection_probabilities"])
        for row in made.tables["candidates"]
        if row["step_row_id"] == step and row["actor_action_mask"]
    ]
    weights = [weight for weight in weights if weight > 0]
    if not weights:
        return None
    shares = [weight / sum(weights) for weight in weights]
    return -sum(share * math.log(share) for share in shares)


def test_step_objectives_are_the_records_step_by_step(made: Made) -> None:
    rows = rollout_step_objective_rows(made.reader)
    candidates = candidate_audit_rows(made.reader)
    assert [row["step_row_id"] for row in rows] == list(range(made.reader.num_steps))
    before: Row = {}
    for row, own in zip(rows, made.tables["steps"], strict=True):
        rollout = made.tables["rollouts"][own["rollout_row_id"]]
        chosen = candidates[own["selected_candidate_row_id"]]
        same = before.get("rollout_row_id") == row["rollout_row_id"]
        first = before["cumulative_target_rri"] or 0 if same else 0
        assert row["policy"] == rollout["policy_id"]
        assert row["horizon"] == rollout["horizon"]
        assert row["beam_width"] == (rollout["beam_width"] if rollout["beam_width"] else None)
        assert row["temperature"] == single(rollout["temperature"])
        assert row["cumulative_target_root_gain"] == single(own["cumulative_target_root_gain"])
        invalid = own["num_candidates"] - own["num_valid_candidates"]
        assert row["invalid_fraction"] == invalid / own["num_candidates"]
        assert row["selected_target_rri"] == chosen["target_rri"]
        assert row["selected_target_root_gain"] == chosen["target_root_gain"]
        assert row["selected_probability"] == chosen["selection_probability"]
        assert row["selected_sampler_probability"] == chosen["sampler_probability"]
        assert row["selected_position"] == chosen["position"]
        assert row["selected_mixture"] == chosen["mixture"]
        assert row["selected_invalid_reason"] == chosen["invalid_reason"]
        assert row["selected_entropy"] == pytest.approx(plain_entropy(made, row["step_row_id"]))
        if row["cumulative_target_rri"] is None:
            assert row["marginal_target_rri"] is None
        else:
            marginal = row["cumulative_target_rri"] - first
            assert row["marginal_target_rri"] == pytest.approx(marginal, abs=1e-6)
        before = row


def test_one_rollout_has_these_objectives(known: Path) -> None:
    rows = rollout_step_objective_rows(opened(known), rollout_row_id=0)
    assert [row["step_index"] for row in rows] == [0, 1]
    assert rows[0]["marginal_target_rri"] == rows[0]["cumulative_target_rri"]
    sums = [row["cumulative_target_rri"] for row in rows]
    assert rows[1]["marginal_target_rri"] == pytest.approx(sums[1] - sums[0])
    assert all(row["selected_sampler_probability"] == 1 / row["num_candidates"] for row in rows)
    assert [row["selected_entropy"] for row in rows] == [0.0, 0.0]
    assert list(rows[0])[:8] == [
        "rollout_row_id",
        "step_row_id",
        "step_index",
        "chain_id",
        "scene",
        "split",
        "policy",
        "target_row_id",
    ]


def test_objectives_of_one_rollout_are_a_slice_of_all(made: Made) -> None:
    every = rollout_step_objective_rows(made.reader)
    for rollout in range(made.reader.num_rollouts):
        mine = [row for row in every if row["rollout_row_id"] == rollout]
        assert rollout_step_objective_rows(made.reader, rollout_row_id=rollout) == mine


def test_a_step_that_names_no_candidate_has_no_values(copied: Path) -> None:
    def unset(values: Any, _: Any) -> None:
        values[0] = -1

    edit(copied, "steps/selected_candidate_row_id", unset)
    row = rollout_step_objective_rows(opened(copied))[0]
    assert row["selected_candidate_row_id"] == -1
    for name in ("target_rri", "target_root_gain", "probability", "invalid_reason"):
        assert row[f"selected_{name}"] is None
    assert row["selected_position"] == "unknown"


TREE_KEYS = (
    "policy",
    "horizon",
    "branch_factor",
    "beam_width",
    "temperature",
    "step_index",
    "selected_position",
    "selected_strategy",
    "selected_mixture",
)


def test_tree_rows_are_the_step_objectives_grouped(made: Made) -> None:
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rollout_step_objective_rows(made.reader):
        groups[tuple(row[key] for key in TREE_KEYS)].append(row)
    rows = rollout_tree_summary_rows(made.reader)
    assert sum(row["selected_steps"] for row in rows) == made.reader.num_steps
    assert len(rows) == len(groups)
    for row in rows:
        mine = groups[tuple(row[key] for key in TREE_KEYS)]
        gains = [each["selected_target_root_gain"] for each in mine]
        gains = [gain for gain in gains if gain is not None]
        fanout = [each["num_valid_candidates"] for each in mine]
        assert row["selected_steps"] == len(mine)
        assert row["step_label"] == f"step {row['step_index']}"
        assert row["mean_valid_fanout"] == pytest.approx(sum(fanout) / len(fanout))
        assert row["mean_selected_target_root_gain"] == (
            pytest.approx(sum(gains) / len(gains)) if gains else None
        )
    assert [row["policy"] for row in rows] == sorted(row["policy"] for row in rows)


# ---------------------------------------------------------------------------------------- depth


def test_depth_summaries_are_bounded_and_exact(known: Path) -> None:
    reader = opened(known)
    rows = selected_depth_summary_rows(reader, limit=4)
    assert [row["step_row_id"] for row in rows] == [0, 1, 2, 3]
    assert rows[1] == {
        "rollout_row_id": 0,
        "step_row_id": 1,
        "step_index": 1,
        "selected_candidate_row_id": 15,
        "candidate_row_id": 15,
        "available": True,
        "valid_pixels": 57600,
        "finite_pixels": 57600,
        "pixel_count": 57600,
        "valid_fraction": 1.0,
        "finite_fraction": 1.0,
        "depth_min_m": 2.0,
        "depth_mean_m": 2.0,
        "depth_max_m": 2.0,
        "image_height": 240,
        "image_width": 240,
        "focal_x_px": 120.0,
        "focal_y_px": 120.0,
        "principal_x_px": 120.0,
        "principal_y_px": 120.0,
        "warning": None,
        "selected_position": "forward_local",
        "selected_strategy": "target_point",
        "selected_mixture": "bearing",
        "selected_target_root_gain": pytest.approx(11.8),
        "selected_target_rri": pytest.approx(1.8),
    }
    assert selected_depth_summary_rows(reader, step_row_id=3, limit=None) == rows[3:4]
    assert selected_depth_summary_rows(reader, rollout_row_id=1) == rows[2:4]


def test_depth_statistics_leave_out_what_was_not_seen(made: Made) -> None:
    image = made.reader.selected_depth(0)
    assert image is not None
    seen = image["depth_m"][image["valid_mask"]].astype(np.float64)
    row = selected_depth_summary_rows(made.reader, step_row_id=0)[0]
    assert 0 < row["valid_pixels"] < row["pixel_count"]
    assert (row["depth_min_m"], row["depth_max_m"]) == (seen.min(), seen.max())
    assert row["depth_mean_m"] == pytest.approx(seen.mean())
    assert row["valid_fraction"] == row["valid_pixels"] / 192


def test_a_store_without_depth_says_so(tmp_path: Path) -> None:
    path = written(
        tmp_path / "s.zarr", spec_fixture_records(depth=False), selected_depth_enabled=False
    )
    rows = selected_depth_summary_rows(opened(path))
    assert len(rows) == 6
    assert {row["available"] for row in rows} == {False}
    assert rows[0]["warning"] == "selected depth is disabled in this store"
    assert rows[0]["depth_mean_m"] is None
    preview = selected_depth_preview(opened(path), step_row_id=0)
    assert (preview["available"], preview["depth_m"]) == (False, None)


def test_depth_that_does_not_fit_its_step_says_why(copied: Path, tmp_path: Path) -> None:
    def other_candidate(values: Any, _: Any) -> None:
        values[0] += 1

    def no_row(values: Any, _: Any) -> None:
        values[1] = 0

    def other_size(values: Any, _: Any) -> None:
        values[2] = (10, 10)

    edit(copied, "selected_depth/candidate_row_id", other_candidate)
    edit(copied, "selected_depth/image_size_hw", other_size)
    rows = selected_depth_summary_rows(opened(copied))
    assert rows[0]["warning"] == "rendered at candidate 8, the step took 7"
    assert rows[0]["candidate_row_id"] == 8
    assert "image_size_hw (10, 10)" in rows[2]["warning"]
    assert rows[1]["available"]
    edit(copied, "selected_depth/step_row_id", no_row)
    rows = selected_depth_summary_rows(opened(copied))
    assert rows[0]["warning"] == "selected_depth has 2 rows for this step, expected one"
    assert rows[1]["warning"] == "selected_depth has 0 rows for this step, expected one"


def test_depth_files_that_are_gone_or_damaged_say_so(copied: Path) -> None:
    shard = copied / "selected_depth/depth_m/c.0.0.0"
    replace_file(shard, b"\x01" * shard.stat().st_size)
    assert "cannot be read" in selected_depth_summary_rows(opened(copied))[0]["warning"]
    shard.unlink()
    assert "cannot be read" in selected_depth_summary_rows(opened(copied))[0]["warning"]
    (copied / "selected_depth/depth_m/zarr.json").unlink()
    warning = selected_depth_summary_rows(opened(copied))[0]["warning"]
    assert "depth_m/zarr.json is incomplete" in warning


def test_a_preview_is_every_nth_pixel(known: Path) -> None:
    preview = selected_depth_preview(opened(known), step_row_id=1, max_size=24)
    assert preview["depth_m"].shape == preview["valid_mask"].shape == (24, 24)
    assert preview["depth_m"].dtype == np.float32
    assert (preview["stride"], preview["image_size_hw"]) == (10, (240, 240))
    assert (preview["focal_px"], preview["principal_point_px"]) == ((120.0, 120.0), (120.0, 120.0))
    assert (preview["depth_m"] == 2).all()


def test_a_preview_has_nan_where_nothing_was_seen(made: Made) -> None:
    preview = selected_depth_preview(made.reader, step_row_id=0, max_size=16)
    assert preview["stride"] == 1
    assert (np.isnan(preview["depth_m"]) == ~preview["valid_mask"]).all()
    assert not preview["valid_mask"].all()


def test_a_preview_of_no_step_or_no_size_is_refused_or_unavailable(made: Made) -> None:
    preview = selected_depth_preview(made.reader, step_row_id=10**6)
    assert (preview["available"], preview["warning"][:22]) == (False, "there is no step 10000")
    with pytest.raises(InvalidNumber, match="max_size is 0"):
        selected_depth_preview(made.reader, step_row_id=0, max_size=0)


# ------------------------------------------------------------------------------- nothing to show


def test_a_store_whose_chains_took_no_step_can_be_looked_at(tmp_path: Path) -> None:
    def without_steps(record: RolloutZarrRecord) -> RolloutZarrRecord:
        chain = replace(record.result.chains[0], steps=())
        return replace(record, result=replace(record.result, chains=(chain,)))

    records = map(without_steps, spec_fixture_records(depth=False))
    reader = opened(written(tmp_path / "s.zarr", records, selected_depth_enabled=False))
    assert [row["count"] for row in validity_waterfall_rows(reader)] == [0] * 5
    assert {row["fraction_of_full"] for row in validity_waterfall_rows(reader)} == {None}
    assert candidate_audit_rows(reader) == suspicious_rollout_rows(reader) == []
    assert candidate_group_summary_rows(reader, group_by="position") == []
    assert candidate_group_summary_rows(reader, group_by="target_rri") == []
    assert rollout_step_objective_rows(reader) == rollout_tree_summary_rows(reader) == []
    assert selected_depth_summary_rows(reader) == []
    assert len(target_audit_rows(reader)) == 3
    row = rollout_store_inventory_rows([reader.store_dir])[0]
    assert (row["observed_steps"], row["actor_action_fraction"]) == (0, None)
    assert "Waterfall" in audit_page(reader)
