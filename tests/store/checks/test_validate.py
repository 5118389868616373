"""Validation finds whatever is wrong, says which, and never falls over. Each case changes one thing in a good store."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from rollbook.contracts.reasons import INVALID_REASON_CODES, reason_mask
from rollbook.store.checks.validate import CHECKS, validate_rollout_zarr_store
from rollbook.store.checks.violation import CODES, Violation
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.records import RolloutZarrRecord
from rollbook.store.repack import repack_store
from rollbook.store.schema import ROLLOUT_ZARR_SCHEMA_VERSION, TABLES
from rollbook.store.writer import write_rollout_zarr_store
from tests.store.synthetic import make_records, spec_fixture_records
from tests.store.tampering import (
    Array,
    Store,
    codes_of,
    copy_store,
    edit,
    edit_group,
    first,
    flip_bit,
    replace_file,
    restore_store,
    rewrite,
    rewrite_frames,
    sign,
    write_manifest,
)

ALL_CODES = {code for codes in CODES.values() for code in codes}
RICH: dict[str, Any] = {
    "horizon": 3,
    "candidates": (5, 9),
    "branching": True,
    "early_fraction": 0.3,
    "unmatched_fraction": 0.3,
    "unlabelled_fraction": 0.2,
    "depth": (12, 16),
    "features": 3,
    "crops": True,
}
KEPT: dict[str, Any] = {
    "selected_depth_height_px": 12,
    "selected_depth_width_px": 16,
    "target_eval_crops_enabled": True,
    "target_eval_crop_max_points": 40,
    "discount_gamma": 0.9,
}


@pytest.fixture(scope="session")
def rich_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With everything a store can hold."""
    place = tmp_path_factory.mktemp("validate") / "rich.zarr"
    write_rollout_zarr_store(place, make_records(14, **RICH), **KEPT)
    return place


@pytest.fixture(scope="session")
def workbench(rich_store: Path) -> Path:
    return copy_store(rich_store, rich_store.with_name("copy.zarr"))


@pytest.fixture
def store(rich_store: Path, workbench: Path) -> Iterator[Path]:
    """A copy to be changed."""
    yield workbench
    restore_store(workbench, rich_store)


def written(place: Path, records: Iterable[RolloutZarrRecord], **options: Any) -> Path:
    write_rollout_zarr_store(place, records, **{"selected_depth_enabled": False, **options})
    return place


# -------------------------------------------------------------------------------------- good stores


@pytest.mark.parametrize("deep", [False, True])
def test_a_good_store_has_no_violations(rich_store: Path, deep: bool) -> None:
    result = validate_rollout_zarr_store(rich_store, deep=deep)
    reader = RolloutZarrStoreReader(rich_store)
    assert (result.ok, result.errors, result.violations) == (True, [], ())
    assert result.store_dir == rich_store
    counts = (result.num_rollouts, result.num_steps, result.num_candidates)
    assert counts == (reader.num_rollouts, reader.num_steps, reader.num_candidates)
    assert reader.validate(deep=deep) == result


@pytest.mark.parametrize(
    ("records", "options"),
    [
        ({"count": 1, "horizon": 1, "candidates": 1}, {}),
        ({"count": 4, "valid_fraction": 1.0}, {"discount_gamma": 0.0}),
        ({"count": 6, "policies": ("learned",), "candidates": (2, 30)}, {}),
        ({"count": 3, "branching": True, "early_fraction": 0.9}, {"discount_gamma": 2}),
    ],
)
def test_other_good_stores(tmp_path: Path, records: dict[str, Any], options: Any) -> None:
    place = written(tmp_path / "s", make_records(**records), **options)
    assert validate_rollout_zarr_store(place, deep=True).errors == []


def test_an_archive_is_checked_like_the_store_it_was_made_from(
    rich_store: Path, store: Path, tmp_path: Path
) -> None:
    repack_store(rich_store, tmp_path / "good", "archive")
    assert validate_rollout_zarr_store(tmp_path / "good", deep=True).errors == []
    edit(store, "candidates/shell_index", swapped_rows)
    repack_store(store, tmp_path / "bad", "archive")
    assert codes_of(tmp_path / "bad") == {"wrong_index"}
    chunk = chunk_of(tmp_path / "good", "candidates/target_root_gain")
    replace_file(chunk, b"\0" * chunk.stat().st_size)
    assert codes_of(tmp_path / "good") == {"not_checked"}
    assert codes_of(tmp_path / "good", deep=True) == {"not_checked", "checksum_mismatch"}


def test_a_store_may_be_named_by_text_and_relatively(
    rich_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(rich_store.parent)
    assert validate_rollout_zarr_store(rich_store.name).store_dir == rich_store


# ------------------------------------------------------------------------------------- one column


class Case(NamedTuple):
    path: str
    change: Callable[[Array, Store], Any]
    codes: set[str]
    """All that is said: what was changed, and what no longer follows from it."""

    def __str__(self) -> str:
        return f"{self.path}-{'-'.join(sorted(self.codes))}"


def put(row: Any, value: Any) -> Callable[[Array, Store], Any]:
    def change(values: Array, _: Store) -> None:
        values[row] = value

    return change


def add(row: int, value: Any) -> Callable[[Array, Store], Any]:
    def change(values: Array, _: Store) -> None:
        values[row] += value

    return change


def at(mask: str, value: Any, expected: bool = True) -> Callable[[Array, Store], Any]:
    """Another value in the first row of a mask, or in the first that is not in it."""

    def change(values: Array, store: Store) -> None:
        values[first(store(mask) == expected)] = value

    return change


def select_another(values: Array, store: Store) -> None:
    """The first valid candidate of the first step that was not taken is taken too."""
    values[first(store("candidates/actor_action_mask") & ~store("candidates/selected_mask"))] = True


def select_an_invalid_one(values: Array, store: Store) -> None:
    step = int(store("candidates/step_row_id")[first(~store("candidates/actor_action_mask"))])
    shell = store("candidates/step_row_id") == step
    values[shell] = False
    values[first(shell & ~store("candidates/actor_action_mask"))] = True


def colliding_valid(values: Array, store: Store) -> None:
    values[first(store("candidates/actor_action_mask"))] = True


def unexplained_collision(values: Array, store: Store) -> None:
    bit = reason_mask("PATH_SEGMENT_COLLISION")
    others = (store("candidates/invalid_reason_bitset") & ~np.uint32(bit)) > 1
    row = first(store("candidate_diagnostics/path_collision_mask") & others)
    values[row] &= ~np.uint32(bit)


def same_target_for_all(values: Array, _: Store) -> None:
    values[:] = 0


def child_row(store: Store, fork: int = 0) -> int:
    return first(store("rollouts/fork_step_index") >= fork)


def foreign_parent(values: Array, store: Store) -> None:
    """Of the first chain, which has another target than the last."""
    values[np.flatnonzero(values >= 0)[-1]] = 0


def late_fork(values: Array, store: Store) -> None:
    child = child_row(store)
    values[child] = store("rollouts/num_steps")[child] + 1


def stray_fork(values: Array, store: Store) -> None:
    """One step later, although the chains differ from the old step on."""
    values[child_row(store)] += 1


def swapped_rows(values: Array, _: Store) -> None:
    values[[1, 2]] = values[[2, 1]]


def mirrored(values: Array, store: Store) -> None:
    values[first(store("candidates/actor_action_mask")), :3] *= -1


def stretched(values: Array, store: Store) -> None:
    values[first(store("candidates/actor_action_mask")), :9] *= 1.01


def another_rank(values: Array, store: Store) -> None:
    """Of one that was not taken, or the step's own copy of it would differ as well."""
    values[first(store(VALID) & ~store(TAKEN))] += 1


def halved_probabilities(values: Array, _: Store) -> None:
    values /= 2


def halved_logs(values: Array, store: Store) -> None:
    values[first(np.isfinite(values) & (values < -0.1))] /= 2


def unmatched(values: Array, store: Store) -> None:
    values[first(store("targets/gt_label_valid_mask"))] = -1


def padded_feature(values: Array, store: Store) -> None:
    values[first(store("q_h/candidate_row_id")[:, -1] < 0), -1] = 0


def beyond_the_crop(values: Array, store: Store) -> None:
    values[0, store("target_eval_crops/lengths")[0]] = 1


def other_step_of_crop(values: Array, store: Store) -> None:
    """A candidate, but of another step."""
    rows = np.flatnonzero(store("target_eval_crops/source_role_id") == 1)
    values[rows[0]] = values[rows[-1]]


NAN, INF = np.nan, np.inf
VALID = "candidates/actor_action_mask"
TAKEN = "candidates/selected_mask"
MATCHED = "targets/gt_label_valid_mask"
CANDIDATE_Q = {"q_h_differs"}

CASES = [
    # row ids and links
    Case("rollouts/rollout_row_id", swapped_rows, {"row_ids_not_dense"}),
    Case("lineage/rollout_row_id", add(1, 1), {"row_ids_not_dense"}),
    Case("targets/target_row_id", add(1, 1), {"row_ids_not_dense", "duplicate_target"}),
    Case("steps/step_row_id", add(1, 1), {"row_ids_not_dense"}),
    Case("candidates/candidate_row_id", add(5, 1), {"row_ids_not_dense", *CANDIDATE_Q}),
    Case("candidate_diagnostics/candidate_row_id", add(5, 1), {"row_ids_not_dense"}),
    Case("candidate_diagnostics/position_id", add(5, 1), {"diagnostics_differ"}),
    Case(
        "rollouts/num_steps",
        put(0, -1),
        {"negative_count", "counts_do_not_add_up", "not_checked", "wrong_fork"},
    ),
    Case(
        "steps/num_candidates",
        put(0, 10),
        {"counts_do_not_add_up", "not_checked", "wrong_attr"},
    ),
    Case("rollouts/step_offset", add(1, 1), {"wrong_offset"}),
    Case("steps/candidate_offset", add(3, -1), {"wrong_offset"}),
    Case("steps/rollout_row_id", add(4, 1), {"wrong_link"}),
    Case("steps/step_index", add(0, 1), {"wrong_index"}),
    Case("candidates/step_row_id", add(7, 1), {"wrong_link"}),
    Case("candidates/step_row_id", put(7, -1), {"wrong_link"}),
    Case("candidates/rollout_row_id", put(7, 10**12), {"wrong_link"}),
    Case("candidates/step_index", add(7, 1), {"wrong_index"}),
    Case("candidates/shell_index", swapped_rows, {"wrong_index"}),
    Case("sources/source_row_id", put(1, 0), {"duplicate_source", "unknown_source", "not_checked"}),
    Case(
        "rollouts/source_row_id",
        put(0, 99),
        {
            "unknown_source",
            "not_checked",
            "target_of_several_sources",
            "foreign_parent",
            *CANDIDATE_Q,
        },
    ),
    Case(
        "rollouts/target_row_id",
        put(0, 99),
        {"unknown_target", "not_checked", "foreign_parent", *CANDIDATE_Q},
    ),
    Case(
        "rollouts/target_row_id",
        same_target_for_all,
        {
            "target_of_several_sources",
            "foreign_target",
            "wrong_train_mask",
            *CANDIDATE_Q,
            "wrong_lineage_digest",
        },
    ),
    Case("rollouts/scene_id", put(0, -1), {"source_differs", "wrong_lineage_digest"}),
    Case(
        "rollouts/scene_id",
        put(0, 10**6),
        {"source_differs", "code_out_of_range", "wrong_lineage_digest"},
    ),
    Case("sources/scene_id", put(0, -2), {"source_differs", "code_out_of_range"}),
    Case("rollouts/parent_rollout_row_id", put(0, 0), {"wrong_parent"}),
    Case("rollouts/parent_rollout_row_id", put(0, 3), {"wrong_parent"}),
    Case("rollouts/fork_step_index", put(0, 1), {"wrong_parent"}),
    Case("rollouts/parent_rollout_row_id", foreign_parent, {"foreign_parent", "wrong_fork"}),
    Case("rollouts/fork_step_index", late_fork, {"wrong_fork"}),
    Case("rollouts/fork_step_index", stray_fork, {"wrong_fork"}),
    # where it came from
    Case("sources/source_shard_row", put(0, -1), {"missing_shard_row", "wrong_lineage_digest"}),
    Case("lineage/policy_revision_index", put(0, 7), {"code_out_of_range"}),
    Case("lineage/policy_revision_index", put(0, -2), {"code_out_of_range"}),
    Case("sources/source_shard_id", put(0, -1), {"missing_word", "wrong_lineage_digest"}),
    Case("sources/split_manifest_hash_id", put(0, -1), {"missing_word", "wrong_lineage_digest"}),
    Case("lineage/oracle_config_id", put(2, -1), {"missing_word", "wrong_lineage_digest"}),
    Case(
        "lineage/reason_code_version_id",
        put(2, 0),
        {"lineage_version_differs", "wrong_lineage_digest"},
    ),
    Case(
        "lineage/target_protocol_version_id",
        put(2, 0),
        {"lineage_version_differs", "wrong_lineage_digest"},
    ),
    Case("lineage/lineage_digest", put(1, 0), {"missing_lineage_digest"}),
    Case("rollouts/rollout_id", put(1, 0), {"duplicate_rollout", "wrong_lineage_digest"}),
    Case(
        "rollouts/split_id",
        put(0, -1),
        {"several_splits", "source_differs", "wrong_lineage_digest"},
    ),
    Case(
        "targets/target_valid_mask", at(MATCHED, False), {"wrong_target_mask", "wrong_train_mask"}
    ),
    Case(
        "targets/target_invalid_reason_bitset",
        at(MATCHED, 0),
        {"wrong_target_mask", "wrong_target_reasons", "wrong_lineage_digest"},
    ),
    Case(
        "targets/target_invalid_reason_bitset",
        at(MATCHED, 1 << 20),
        {
            "wrong_target_mask",
            "wrong_target_reasons",
            "wrong_target_primary_reason",
            "wrong_lineage_digest",
        },
    ),
    Case(
        "targets/target_primary_invalid_reason",
        put(0, 3),
        {"wrong_target_primary_reason", "wrong_lineage_digest"},
    ),
    Case(
        "targets/gt_label_valid_mask",
        at(MATCHED, False),
        {"wrong_gt_label_mask", "wrong_train_mask"},
    ),
    Case("targets/target_extents", add(0, 0.25), {"lineage_value_differs"}),
    Case(
        "targets/matched_gt_target_row_id",
        unmatched,
        {"wrong_gt_label_mask", "wrong_lineage_digest"},
    ),
    Case(
        "targets/gt_match_status_id",
        unmatched,
        {"wrong_gt_label_mask", "missing_word", "wrong_lineage_digest"},
    ),
    # what was taken
    Case("steps/num_valid_candidates", add(0, 1), {"wrong_valid_count"}),
    Case("candidates/compact_valid_index", another_rank, {"wrong_compact_index"}),
    Case("candidates/compact_valid_index", at(VALID, 0, False), {"wrong_compact_index"}),
    Case("candidates/selected_mask", select_another, {"not_one_selected", "not_checked"}),
    Case(
        "candidates/selected_mask",
        select_an_invalid_one,
        {"selected_invalid", "wrong_selected_id", "wrong_cumulative", "returns_differs"},
    ),
    Case(
        "steps/selected_candidate_row_id",
        put(0, -5),
        {"wrong_selected_id", "wrong_depth_link", *CANDIDATE_Q},
    ),
    Case("steps/selected_shell_index", add(0, 1), {"wrong_selected_id", "wrong_fork"}),
    Case("steps/selected_compact_valid_index", add(0, 1), {"wrong_selected_id"}),
    Case("candidates/strategy_id", at(VALID, -1), {"missing_provenance"}),
    Case("candidates/mixture_id", at(VALID, -1), {"missing_provenance"}),
    Case(
        "candidates/position_id",
        at(VALID, -1),
        {"missing_provenance", "diagnostics_differ", *CANDIDATE_Q},
    ),
    Case("candidates/sampler_probability", at(VALID, 0.0), {"missing_provenance"}),
    Case("candidates/sampler_probability", at(VALID, NAN), {"missing_provenance"}),
    Case("candidates/sampler_probability", at(VALID, INF), {"missing_provenance"}),
    Case(
        "candidates/selection_probabilities",
        at(VALID, -0.5),
        {"probability_out_of_range", "probability_sum", "log_probability_differs"},
    ),
    Case(
        "candidates/selection_probabilities",
        at(VALID, NAN),
        {"probability_out_of_range", "probability_sum", "log_probability_differs"},
    ),
    Case(
        "candidates/selection_probabilities",
        at(VALID, 0.25, False),
        {"probability_on_invalid", "log_probability_differs"},
    ),
    Case(
        "candidates/selection_probabilities",
        halved_probabilities,
        {"probability_sum", "log_probability_differs"},
    ),
    Case("candidates/selection_log_probabilities", halved_logs, {"log_probability_differs"}),
    Case(
        "candidates/selection_log_probabilities",
        at(VALID, -1.0, False),
        {"log_probability_differs"},
    ),
    Case("candidates/selection_log_probabilities", at(TAKEN, INF), {"log_probability_differs"}),
    Case("candidates/selection_log_probabilities", at(TAKEN, NAN), {"log_probability_differs"}),
    # reasons
    Case(
        "candidates/invalid_reason_bitset",
        at(VALID, 1 << 30, False),
        {"unknown_reason_bit", "wrong_primary_reason", *CANDIDATE_Q},
    ),
    Case(
        "candidates/invalid_reason_bitset",
        at(VALID, 0),
        {"reason_missing", "reason_contradicts_mask", *CANDIDATE_Q},
    ),
    Case(
        "candidates/invalid_reason_bitset",
        at(VALID, 1 | reason_mask("DEPTH_NO_HIT")),
        {"valid_with_reasons", "wrong_primary_reason", *CANDIDATE_Q},
    ),
    Case(
        "candidates/invalid_reason_bitset",
        unexplained_collision,
        {"collision_without_reason", "wrong_primary_reason", *CANDIDATE_Q},
    ),
    Case(
        "candidate_diagnostics/path_collision_mask",
        colliding_valid,
        {"collision_valid", "collision_without_reason"},
    ),
    Case("candidates/primary_invalid_reason", at(VALID, 3), {"wrong_primary_reason"}),
    Case("candidates/primary_invalid_reason", at(VALID, 0, False), {"wrong_primary_reason"}),
    # labels
    Case("candidates/scene_rri", at(VALID, 0.0, False), {"label_on_invalid"}),
    Case("candidates/target_root_gain", at(VALID, -INF, False), {"label_on_invalid"}),
    Case("candidates/target_candidate_support", at(VALID, 1.0, False), {"label_on_invalid"}),
    Case("candidates/selection_logits", at(VALID, 0.0, False), {"label_on_invalid"}),
    Case(
        "candidates/target_root_gain",
        at(TAKEN, 3.0),
        {"wrong_cumulative", "returns_differs", *CANDIDATE_Q},
    ),
    Case("candidates/scene_root_gain", at(TAKEN, 3.0), {"wrong_cumulative"}),
    Case("candidates/scene_rri", at(TAKEN, NAN), {"wrong_cumulative"}),
    Case(
        "candidates/oracle_label_mask",
        at("candidates/q_train_mask", False),
        {"wrong_label_mask", "wrong_train_mask"},
    ),
    Case("candidates/oracle_label_mask", at(VALID, True, False), {"wrong_label_mask"}),
    Case("candidates/q_train_mask", at(VALID, True, False), {"wrong_train_mask"}),
    Case(
        "candidates/q_train_mask",
        at("candidates/q_train_mask", False),
        {"wrong_train_mask", *CANDIDATE_Q},
    ),
    Case("steps/cumulative_target_rri", add(0, 0.01), {"wrong_cumulative"}),
    Case("steps/cumulative_scene_root_gain", put(0, NAN), {"wrong_cumulative"}),
    Case("rollouts/final_cumulative_scene_rri", add(0, 0.01), {"wrong_final"}),
    Case("rollouts/final_cumulative_target_root_gain", put(0, NAN), {"wrong_final"}),
    Case("rollouts/horizon", put(0, 0), {"wrong_horizon"}),
    Case("rollouts/termination_reason", put(0, -1), {"wrong_termination"}),
    # poses
    Case("rollouts/root_pose_world", put((0, 9), NAN), {"pose_not_finite"}),
    Case("rollouts/root_pose_world", put(0, 1.0), {"pose_not_rigid", "wrong_relative_pose"}),
    Case("candidates/pose_world_cam", at(VALID, INF), {"pose_not_finite"}),
    Case("candidates/pose_world_cam", mirrored, {"pose_not_rigid", "wrong_relative_pose"}),
    Case("candidates/pose_world_cam", stretched, {"pose_not_rigid", "wrong_relative_pose"}),
    Case("candidates/pose_world_cam", at(VALID, 1e37), {"pose_not_rigid", "wrong_relative_pose"}),
    Case("candidates/pose_relative_root", add(3, [0] * 11 + [1e-3]), {"wrong_relative_pose"}),
    Case("candidates/pose_relative_root", put(3, NAN), {"wrong_relative_pose"}),
    # derived views
    Case("q_h/candidate_row_id", put(0, -1), {"q_h_differs"}),
    Case("q_h/one_step_target_rri", put(0, 0.5), {"q_h_differs"}),
    Case("q_h/td_reward", put(0, NAN), {"q_h_differs"}),
    Case("q_h/actor_features", padded_feature, {"q_h_differs"}),
    Case("q_h/td_next_step_row_id", add(0, 1), {"q_h_differs"}),
    Case(
        "q_h/q_train_mask",
        put(0, True),
        {"q_h_differs", "train_on_invalid", "train_without_label"},
    ),
    Case("q_h/td_discount", put(slice(None), 0.9), {"q_h_differs", "terminal_with_discount"}),
    Case("returns/mc_return", add(0, 0.1), {"returns_differs"}),
    Case("returns/n_step_return", put(0, NAN), {"returns_differs"}),
    # images and points
    Case("selected_depth/step_row_id", swapped_rows, {"wrong_depth_link"}),
    Case("selected_depth/candidate_row_id", add(0, 1), {"wrong_depth_link"}),
    Case("selected_depth/focal_px", put(0, 0), {"wrong_depth_camera"}),
    Case("selected_depth/principal_point_px", put(0, NAN), {"wrong_depth_camera"}),
    Case("selected_depth/image_size_hw", put(0, 240), {"wrong_depth_camera"}),
    Case("selected_depth/depth_m", put((3, 5), INF), {"wrong_depth_pixel"}),
    Case("selected_depth/valid_mask", put((3, 5), False), {"wrong_depth_pixel"}),
    Case("target_eval_crops/crop_row_id", swapped_rows, {"row_ids_not_dense"}),
    Case("target_eval_crops/step_row_id", put(0, -1), {"wrong_crop_link"}),
    Case("target_eval_crops/candidate_row_id", put(0, 3), {"wrong_crop_link"}),
    Case("target_eval_crops/candidate_row_id", put(1, -1), {"wrong_crop_link"}),
    Case("target_eval_crops/candidate_row_id", other_step_of_crop, {"wrong_crop_link"}),
    Case("target_eval_crops/source_role_id", put(1, 2), {"wrong_crop_role"}),
    Case("target_eval_crops/lengths", put(1, 41), {"wrong_crop_length"}),
    Case("target_eval_crops/max_points", put(1, 41), {"wrong_crop_length"}),
    Case("target_eval_crops/mask", put((0, 0), False), {"wrong_crop_mask"}),
    Case("target_eval_crops/points_world", put((0, 0), NAN), {"wrong_crop_points"}),
    Case("target_eval_crops/points_world", beyond_the_crop, {"wrong_crop_points"}),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_changed_column_is_found(store: Path, case: Case) -> None:
    edit(store, case.path, case.change)
    assert codes_of(store) == case.codes


# ---------------------------------------------------------------------------------- groups and words


class Edit(NamedTuple):
    group: str
    change: Callable[[dict[str, Any]], Any]
    codes: set[str]

    def __str__(self) -> str:
        return f"{self.group}-{'-'.join(sorted(self.codes))}"


def repeat_a_word(attrs: dict[str, Any]) -> None:
    attrs["words"]["scene"].append(attrs["words"]["scene"][0])


def empty_the_configs(attrs: dict[str, Any]) -> None:
    attrs["words"]["source_shard"][0] = ""


EDITS = [
    Edit("dictionaries", repeat_a_word, {"duplicate_word"}),
    Edit("dictionaries", empty_the_configs, {"missing_word", "wrong_lineage_digest"}),
    Edit(
        "dictionaries",
        lambda attrs: attrs["words"].pop("policy"),
        {"unreadable_dictionary", "not_checked"},
    ),
    Edit(
        "dictionaries",
        lambda attrs: attrs["words"].update(split=[1]),
        {"unreadable_dictionary", "not_checked"},
    ),
    Edit("metadata", lambda attrs: attrs["reason_codes"].update(VALID=7), {"reason_codes_differ"}),
    Edit("metadata", lambda attrs: attrs["reason_codes"].pop("VALID"), {"reason_codes_differ"}),
    # an earlier release had fewer reasons
    Edit("metadata", lambda attrs: attrs["reason_codes"].pop([*INVALID_REASON_CODES][-1]), set()),
    Edit("q_h", lambda attrs: attrs.update(horizon=9), {"wrong_attr"}),
    Edit("q_h", lambda attrs: attrs.update(state_count=9), {"wrong_attr"}),
    Edit("q_h", lambda attrs: attrs.update(max_candidates=99), {"wrong_attr"}),
    Edit("q_h", lambda attrs: attrs.update(discount_gamma=0.5), {"wrong_attr"}),
    Edit("q_h", lambda attrs: attrs.update(td_semantics="all"), {"wrong_attr"}),
    Edit("q_h", lambda attrs: attrs.update(reward_metric="target_rri"), {"wrong_attr"}),
    Edit("q_h", lambda attrs: attrs.update(return_semantics=""), {"wrong_attr"}),
    Edit("returns", lambda attrs: attrs.pop("discount_gamma"), {"wrong_attr"}),
    Edit("selected_depth", lambda attrs: attrs.update(width_px=240), {"wrong_attr"}),
    Edit("target_eval_crops", lambda attrs: attrs.update(coordinate_frame="rig"), {"wrong_attr"}),
]


@pytest.mark.parametrize("case", EDITS, ids=str)
def test_changed_attributes_are_found(store: Path, case: Edit) -> None:
    edit_group(store, case.group, case.change)
    assert codes_of(store) == case.codes


@pytest.mark.parametrize(
    ("attrs", "codes"),
    [
        ({"source_offline_store_version": ""}, {"missing_attr"}),
        ({"split_manifest_hash": None}, {"missing_attr"}),
        ({"target_protocol_version": ""}, {"missing_attr", "lineage_version_differs"}),
        (
            {"reason_code_version": "rollout-invalidity-v2"},
            {"lineage_version_differs", "reason_codes_differ"},
        ),
        ({"return_semantics": "other"}, {"wrong_attr"}),
        ({"discount_gamma": "much"}, {"wrong_attr", "not_checked"}),
        ({"discount_gamma": 0.5}, {"wrong_attr", "q_h_differs", "returns_differs"}),
        ({"num_sources": 99}, {"count_mismatch", "wrong_row_count", "not_checked"}),
        ({"num_sources": -1}, {"count_mismatch", "wrong_row_count", "not_checked"}),
        ({"num_q_h_states": 5}, {"count_mismatch"}),
        ({"q_h_max_candidates": 5}, {"count_mismatch", "wrong_row_shape", "not_checked"}),
        ({"selected_depth_enabled": False}, {"disabled_but_kept", "wrong_attr"}),
        ({"target_eval_crops_enabled": False}, {"disabled_but_kept", "wrong_attr"}),
        ({"selected_depth_width_px": "wide"}, {"not_checked", "wrong_attr"}),
    ],
    ids=lambda given: "-".join(sorted(given)) if isinstance(given, set) else str(given),
)
def test_changed_root_attributes_are_found(
    store: Path, attrs: dict[str, Any], codes: set[str]
) -> None:
    sign(store, **attrs)
    assert codes_of(store) == codes


def test_counts_in_the_manifest_are_compared(store: Path) -> None:
    payload = json.loads((store / "manifest.json").read_bytes())
    payload["counts"]["steps"] += 1
    write_manifest(store, payload)
    assert codes_of(store) == {"count_mismatch"}


# ------------------------------------------------------------------------------------------ columns


def test_a_missing_column_is_named_and_the_other_checks_go_on(store: Path) -> None:
    edit(store, "candidates/shell_index", swapped_rows)
    shutil.rmtree(store / "candidates" / "actor_action_mask")
    sign(store)
    result = validate_rollout_zarr_store(store)
    found = {violation.code for violation in result.violations}
    assert found == {"missing_column", "not_checked", "wrong_index"}
    missing = [each for each in result.violations if each.code == "missing_column"]
    assert [each.table for each in missing] == ["candidates"]
    assert "actor_action_mask" in missing[0].message
    unchecked = [each.message for each in result.violations if each.code == "not_checked"]
    assert any(
        message.startswith("labels on invalid could not be checked") for message in unchecked
    )
    assert all("actor_action_mask" in message for message in unchecked)


def assert_can_be_missing(store: Path, table: str, name: str) -> None:
    column = TABLES[table].columns[name]
    shutil.rmtree(store / table / (column.packed or name))
    sign(store)
    expected = "missing_column"
    if column.optional:
        expected = "actor_features_in_one_table" if name == "actor_features" else "not_checked"
    assert expected in codes_of(store), name


@pytest.mark.parametrize("table", TABLES)
def test_a_column_of_any_table_can_be_missing(store: Path, table: str) -> None:
    assert_can_be_missing(store, table, next(iter(TABLES[table].columns)))


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_any_column_can_be_missing(store: Path, rich_store: Path, table: str) -> None:
    for name in TABLES[table].columns:
        assert_can_be_missing(store, table, name)
        restore_store(store, rich_store)


@pytest.mark.parametrize(
    ("path", "values", "code"),
    [
        ("steps/step_index", lambda old: old.astype(np.int32), "wrong_dtype"),
        ("candidates/pose_world_cam", lambda old: old[:, :9].copy(), "wrong_row_shape"),
        ("candidates/scene_rri", lambda old: old[:, None].copy(), "wrong_row_shape"),
        ("candidates/actor_features", lambda old: old[:, :2].copy(), "wrong_row_shape"),
        ("candidates/scene_rri", lambda old: old[:-1].copy(), "wrong_row_count"),
        ("q_h/td_reward", lambda old: np.append(old, old[:1]), "wrong_row_count"),
        ("selected_depth/step_row_id", lambda old: old[1:].copy(), "wrong_row_count"),
    ],
)
def test_a_column_of_another_kind_is_found(
    store: Path, path: str, values: Callable[[Array], Array], code: str
) -> None:
    rewrite(store, path, values(RolloutZarrStoreReader(store).array(path)))
    sign(store)
    assert code in codes_of(store)
    assert codes_of(store) <= {code, "not_checked"}


def test_columns_that_share_an_array_keep_their_order(store: Path) -> None:
    path = store / "targets" / "scores" / "zarr.json"
    metadata = json.loads(path.read_bytes())
    metadata["attributes"]["columns"].reverse()
    replace_file(path, json.dumps(metadata).encode())
    sign(store)
    assert codes_of(store) == {"wrong_row_shape", "not_checked"}


def test_a_column_the_schema_does_not_have(store: Path) -> None:
    shutil.copytree(store / "steps" / "step_index", store / "steps" / "transition_id")
    sign(store)
    assert codes_of(store) == {"unknown_column"}


@pytest.mark.parametrize("group", ["metadata", "dictionaries", "targets", "selected_depth"])
def test_a_missing_group(store: Path, group: str) -> None:
    shutil.rmtree(store / group)
    sign(store)
    assert "missing_group" in codes_of(store)


def test_metadata_of_a_column_that_is_no_json(store: Path) -> None:
    for damaged in (b"", b"[]", b"{}", b'{"shape": 3}', b"\xff"):
        replace_file(store / "steps" / "step_index" / "zarr.json", damaged)
        sign(store)
        assert codes_of(store) == {"unreadable_column", "not_checked"}


FREE = {
    *("root_time_ns", "root_trajectory_index", "root_frame_index", "chain_id", "branch_factor"),
    *("beam_width", "temperature", "random_seed", "sample_index", "rng_state_digest"),
    *("voxel_size_m", "lineage_digest"),
}
"""Facts that nothing else in a store follows from; only their checksums can tell."""


def is_free(table: str, name: str) -> bool:
    described = table in ("targets", "candidate_diagnostics") and name not in (
        *("target_row_id", "target_id", "target_valid_mask", "gt_label_valid_mask"),
        *("target_invalid_reason_bitset", "target_primary_invalid_reason", "gt_match_status_id"),
        *("matched_gt_target_row_id", "candidate_row_id", "position_id", "path_collision_mask"),
    )
    return name in FREE or (described and TABLES[table].columns[name].words is None)


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_garbage_in_any_column_is_found(store: Path, rich_store: Path, table: str) -> None:
    luck = np.random.default_rng(5)
    for name in TABLES[table].columns:
        path = f"{table}/{name}"
        values = RolloutZarrStoreReader(store).array(path)
        garbage = np.frombuffer(luck.bytes(values.nbytes), values.dtype).reshape(values.shape)
        if values.dtype == np.bool_:
            garbage = luck.random(values.shape) < 0.5
        edit(store, path, put(slice(None), garbage))
        found = codes_of(store)
        assert found <= ALL_CODES
        assert found or is_free(table, name), path
        restore_store(store, rich_store)


# -------------------------------------------------------------------------------------------- files


def chunk_of(store: Path, path: str) -> Path:
    return next(
        file
        for file in sorted((store / path).rglob("*"))
        if file.name != "zarr.json" and file.is_file()
    )


def test_a_missing_chunk(store: Path) -> None:
    chunk_of(store, "candidates/target_rri").unlink()
    assert "missing_file" in codes_of(store)


def test_a_truncated_chunk(store: Path) -> None:
    chunk = chunk_of(store, "candidates/target_rri")
    replace_file(chunk, chunk.read_bytes()[:-4])
    assert codes_of(store) == {"wrong_file_size", "unreadable_column", "not_checked"}


def test_a_truncated_image(store: Path) -> None:
    chunk = chunk_of(store, "selected_depth/depth_m")
    replace_file(chunk, chunk.read_bytes()[:100])
    assert codes_of(store) == {"wrong_file_size", "unreadable_depth"}


def test_a_file_that_does_not_belong(store: Path) -> None:
    (store / "candidates" / "notes.txt").write_text("mine")
    result = validate_rollout_zarr_store(store)
    assert [(each.code, each.table) for each in result.violations] == [
        ("unlisted_file", "candidates")
    ]
    assert "candidates/notes.txt" in result.errors[0]


def test_files_of_a_campaign_lie_beside_those_of_the_store(store: Path, tmp_path: Path) -> None:
    store = copy_store(store, tmp_path / "store")
    for name in ("_owner.json", "_SUCCESS.json"):
        (store / name).write_text("{}")
    assert validate_rollout_zarr_store(store, deep=True).ok
    (store / "candidates" / "_owner.json").write_text("{}")
    assert codes_of(store) == {"unlisted_file"}


def test_a_lost_folder_does_not_flood(store: Path) -> None:
    shutil.rmtree(store / "candidates")
    result = validate_rollout_zarr_store(store)
    missing = [each for each in result.violations if each.code == "missing_file"]
    assert len(missing) == 21
    files = json.loads((store / "manifest.json").read_bytes())["files"]
    lost = sum(1 for path in files if path.startswith("candidates/"))
    assert missing[-1].message == f"and {lost - 20} more files"


def test_a_symbolic_link_in_the_place_of_a_file_or_a_folder_is_not_followed(
    store: Path, tmp_path: Path
) -> None:
    """What it points to may change without the store."""
    store = copy_store(store, tmp_path / "store")
    chunk = chunk_of(store, "candidates/shell_index")
    chunk.rename(tmp_path / "elsewhere")
    chunk.symlink_to(tmp_path / "elsewhere")
    assert codes_of(store) == {"wrong_file_size"}
    (store / "targets").rename(tmp_path / "targets")
    (store / "targets").symlink_to(tmp_path / "targets")
    assert codes_of(store) >= {"missing_file", "unlisted_file"}


def test_a_manifest_of_another_kind(store: Path) -> None:
    payload = json.loads((store / "manifest.json").read_bytes())
    for change in ({"manifest_version": "v0"}, {"schema_id": "x"}, {"content_sha256": "0"}):
        write_manifest(store, {**payload, **change})
        assert codes_of(store) == {"manifest_field"}
    write_manifest(store, {**payload, "files": 3})
    assert codes_of(store) == {"manifest_unreadable"}
    write_manifest(store, {**payload, "files": {"zarr.json": 3}})
    said = " ".join(validate_rollout_zarr_store(store).errors)
    assert "manifest fields could not be checked: the manifest has no list of files" in said


def test_a_changed_chunk_is_found_by_its_checksum(store: Path) -> None:
    """A column that nothing else follows from: only its bytes can tell."""
    flip_bit(chunk_of(store, "candidate_diagnostics/mesh_distance_m"), 9)
    assert codes_of(store) == set()
    result = validate_rollout_zarr_store(store, deep=True)
    assert [(each.code, each.table) for each in result.violations] == [
        ("checksum_mismatch", "candidate_diagnostics")
    ]


def flips(store: Path, count: int, seed: int) -> list[tuple[str, int]]:
    """Some bit of some file of every kind, then any bits of any files."""
    luck = random.Random(seed)
    files = sorted(str(path.relative_to(store)) for path in store.rglob("*") if path.is_file())
    sizes = {name: (store / name).stat().st_size for name in files}
    kinds = ["manifest.json", "zarr.json", "q_h/zarr.json", "steps/step_row_id/zarr.json"]
    kinds += [name for name in files if name.startswith("selected_depth/depth_m/c/")][:1]
    kinds += luck.choices([name for name in files if sizes[name]], k=count)
    return [(name, luck.randrange(8 * sizes[name])) for name in kinds]


def assert_flips_are_found(store: Path, count: int, seed: int) -> None:
    for name, bit in flips(store, count, seed):
        kept = (store / name).read_bytes()
        flip_bit(store / name, bit)
        result = validate_rollout_zarr_store(store, deep=True)
        assert not result.ok, f"bit {bit} of {name}"
        assert {each.code for each in result.violations} <= ALL_CODES
        replace_file(store / name, kept)


def test_any_flipped_bit_is_found(store: Path) -> None:
    assert_flips_are_found(store, 20, 1)


@pytest.mark.slow
def test_very_many_flipped_bits_are_found(store: Path) -> None:
    assert_flips_are_found(store, 400, 2)


# ---------------------------------------------------------------------------- stores that do not open


def test_folders_that_are_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "zarr.json").write_text('{"node_type": "group", "attributes": {"a": 1}}')
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "zarr.json").write_text("{")
    (tmp_path / "empty").mkdir()
    for name in ("file", "full", "broken", "empty", "nothing"):
        result = validate_rollout_zarr_store(tmp_path / name, deep=True)
        assert [each.code for each in result.violations] == ["not_a_store"], name
        assert (result.num_rollouts, result.num_steps, result.num_candidates) == (0, 0, 0)
        assert str(tmp_path / name) in result.errors[0]


def test_a_deleted_manifest(store: Path) -> None:
    (store / "manifest.json").unlink()
    assert codes_of(store) == {"manifest_missing"}


def test_a_manifest_that_is_no_manifest(store: Path) -> None:
    replace_file(store / "manifest.json", b"{")
    assert codes_of(store) == {"manifest_unreadable"}


def test_an_edited_manifest(store: Path) -> None:
    text = (store / "manifest.json").read_bytes()
    replace_file(store / "manifest.json", text.replace(b"store_kind", b"store_kinds"))
    assert codes_of(store) == {"manifest_mismatch"}


def test_edited_root_attributes(store: Path) -> None:
    text = (store / "zarr.json").read_bytes()
    replace_file(
        store / "zarr.json", text.replace(b'"discount_gamma": 0.9', b'"discount_gamma": 0.8')
    )
    assert codes_of(store) == {"manifest_mismatch"}


@pytest.mark.parametrize("version", ["0.9-candidate-diagnostics", "99.0", None])
def test_a_version_this_release_does_not_read(store: Path, version: str | None) -> None:
    sign(store, schema_version=version)
    result = validate_rollout_zarr_store(store)
    assert [each.code for each in result.violations] == ["schema_version"]
    assert repr(version) in result.errors[0]
    assert repr(ROLLOUT_ZARR_SCHEMA_VERSION) in result.errors[0]
    assert result.num_candidates == 0


def test_a_version_is_named_even_when_the_manifest_does_not_fit(store: Path) -> None:
    text = (store / "zarr.json").read_bytes()
    replace_file(
        store / "zarr.json", text.replace(b"1.0-target-rollout-core", b"0.5-selected-depth")
    )
    assert codes_of(store) == {"schema_version", "manifest_mismatch"}


def test_another_schema(store: Path) -> None:
    sign(store, schema_id="someone.else")
    assert codes_of(store) == {"schema_id"}


# ------------------------------------------------------------------------------------- what is said


def test_every_code_is_provoked_here() -> None:
    """A check nobody can make fail might as well not be there."""
    source = Path(__file__).read_text()
    assert {code for code in ALL_CODES if f'"{code}"' not in source} == set()


def test_every_check_is_listed_once() -> None:
    assert len(set(CHECKS)) == len(CHECKS)
    assert all(check.__name__.startswith("check_") for check in CHECKS)


def test_codes_stand_once() -> None:
    assert sum(len(codes) for codes in CODES.values()) == len(ALL_CODES)


def test_a_violation_names_its_first_rows() -> None:
    few = Violation("c", "steps", "is wrong", (3,), 1)
    many = Violation("c", "", "is wrong", (1, 2), 40)
    assert str(few) == "steps: is wrong (row 3) [c]"
    assert str(many) == "is wrong (rows 1, 2 and 38 more) [c]"
    assert many.as_dict() == {
        "code": "c",
        "table": "",
        "rows": [1, 2],
        "count": 40,
        "message": "is wrong",
    }


def test_all_violations_are_collected(store: Path) -> None:
    edit(store, "candidates/shell_index", swapped_rows)
    edit(store, "steps/num_valid_candidates", add(0, 1))
    edit(store, "returns/mc_return", add(0, 1))
    assert codes_of(store) == {"wrong_index", "wrong_valid_count", "returns_differs"}
    wrong = validate_rollout_zarr_store(store).violations[0]
    assert (wrong.table, wrong.rows, wrong.count) == ("candidates", (1, 2), 2)


# ------------------------------------------------- what the reference's tests ask for, in our own words


def changed(record: RolloutZarrRecord, **lineage: Any) -> RolloutZarrRecord:
    return replace(record, lineage=msgspec.structs.replace(record.lineage, **lineage))


def test_three_records_of_two_steps(tmp_path: Path) -> None:
    place = written(tmp_path / "s", spec_fixture_records(), selected_depth_enabled=True)
    result = validate_rollout_zarr_store(place, deep=True)
    assert result.errors == []
    assert (result.num_rollouts, result.num_steps, result.num_candidates) == (3, 6, 48)


def test_diagnostics_may_be_unknown(tmp_path: Path) -> None:
    def bare(record: RolloutZarrRecord) -> RolloutZarrRecord:
        chains = tuple(
            replace(
                chain,
                steps=tuple(
                    replace(step, candidates=replace(step.candidates, extras={}))
                    for step in chain.steps
                ),
            )
            for chain in record.result.chains
        )
        return replace(record, result=replace(record.result, chains=chains))

    place = written(tmp_path / "s", map(bare, spec_fixture_records()))
    assert np.isnan(
        RolloutZarrStoreReader(place).array("candidate_diagnostics/mesh_distance_m")
    ).all()
    assert validate_rollout_zarr_store(place).ok


def test_a_colliding_path_has_to_be_masked_and_named(store: Path) -> None:
    assert RolloutZarrStoreReader(store).array("candidate_diagnostics/path_collision_mask").any()
    edit(store, "candidates/invalid_reason_bitset", unexplained_collision)
    assert any(
        "PATH_SEGMENT_COLLISION" in error for error in validate_rollout_zarr_store(store).errors
    )


def test_images_that_were_promised_and_are_missing(store: Path) -> None:
    reader = RolloutZarrStoreReader(store)
    for name in (
        "step_row_id",
        "candidate_row_id",
        "focal_px",
        "principal_point_px",
        "image_size_hw",
    ):
        rewrite(store, f"selected_depth/{name}", reader.array(f"selected_depth/{name}")[:-1].copy())
    for name in ("depth_m", "valid_mask"):
        frames = reader.array(f"selected_depth/{name}")[:-1]
        rewrite_frames(store, f"selected_depth/{name}", frames)
    sign(store, num_selected_depths=reader.num_steps - 1)
    assert codes_of(store) == {"missing_depth", "count_mismatch"}


def test_without_metrics_there_are_no_labels_and_no_violations(tmp_path: Path) -> None:
    def unlabelled(record: RolloutZarrRecord) -> RolloutZarrRecord:
        chains = tuple(
            replace(chain, steps=tuple(replace(step, metric_vectors={}) for step in chain.steps))
            for chain in record.result.chains
        )
        return replace(record, result=replace(record.result, chains=chains))

    place = written(tmp_path / "s", map(unlabelled, spec_fixture_records()))
    reader = RolloutZarrStoreReader(place)
    assert not reader.array("candidates/q_train_mask").any()
    assert np.isnan(reader.array("steps/cumulative_target_rri")).all()
    assert validate_rollout_zarr_store(place).errors == []


def test_two_sources_may_not_share_a_target(store: Path) -> None:
    edit(store, "rollouts/target_row_id", same_target_for_all)
    assert any("source_row_id" in error for error in validate_rollout_zarr_store(store).errors)


def test_a_difference_of_components_is_no_relative_pose(store: Path) -> None:
    reader = RolloutZarrStoreReader(store)
    roots = reader.array("rollouts/root_pose_world")[reader.array("candidates/rollout_row_id")]
    rewrite(
        store, "candidates/pose_relative_root", reader.array("candidates/pose_world_cam") - roots
    )
    sign(store)
    assert codes_of(store) == {"wrong_relative_pose"}


def test_a_store_has_one_split(tmp_path: Path) -> None:
    one, two, three = spec_fixture_records()
    place = written(tmp_path / "s", [one, changed(two, split="val"), three])
    result = validate_rollout_zarr_store(place)
    assert [each.code for each in result.violations] == ["several_splits"]
    assert "exactly one split" in result.errors[0]


def test_a_source_without_its_shard(tmp_path: Path) -> None:
    records = [
        changed(record, source_shard_id=None, source_shard_row=None)
        for record in spec_fixture_records()
    ]
    assert codes_of(written(tmp_path / "s", records)) == {"missing_word", "missing_shard_row"}


def test_a_target_that_may_not_be_trained_on(tmp_path: Path) -> None:
    records = [
        changed(
            record,
            target_invalid_reason_bitset=1 << 9,
            target_primary_invalid_reason=9,
        )
        for record in spec_fixture_records()
    ]
    place = written(tmp_path / "s", records)
    reader = RolloutZarrStoreReader(place)
    assert reader.array("candidates/oracle_label_mask").all()
    assert not reader.array("candidates/q_train_mask").any()
    assert validate_rollout_zarr_store(place).ok


def test_a_lineage_of_another_protocol(tmp_path: Path) -> None:
    place = written(tmp_path / "s", spec_fixture_records(), target_protocol_version="v0_gt_input")
    assert codes_of(place) == {"lineage_version_differs"}


def test_a_target_id_that_names_another_snippet(tmp_path: Path) -> None:
    records = spec_fixture_records()
    records[1] = changed(records[1], snippet_id="another")
    assert codes_of(written(tmp_path / "s", records)) == {"foreign_target"}


def test_an_empty_source_version(tmp_path: Path) -> None:
    place = written(tmp_path / "s", spec_fixture_records(), source_offline_store_version="")
    assert codes_of(place) == {"missing_attr"}
