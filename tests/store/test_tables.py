"""Records become rows: every column of a store is what a plain construction, one row at a time, says it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.contracts.reasons import TARGET_INVALID_REASON_CODES, has_reason, reason_mask
from rollbook.errors import InvalidNumber, InvalidValue
from rollbook.store.candidate_columns import relative_poses
from rollbook.store.records import RolloutChain, RolloutStep, RolloutZarrRecord
from rollbook.store.schema import TABLES
from rollbook.store.writer import write_rollout_zarr_store
from tests.store.plain_rows import (
    STORES,
    assert_table,
    plain_rows,
    relative,
    varied_records,
    with_lineage,
    with_steps,
    written,
)
from tests.store.synthetic import make_records, spec_fixture_records

# -------------------------------------------------------------------------------------- round trip


@pytest.mark.slow
@STORES
@given(varied_records())
def test_every_column_is_what_a_plain_construction_says(records: list[RolloutZarrRecord]) -> None:
    with written(records) as reader:
        rows = plain_rows(records)
        for table in rows:
            assert_table(reader, table, rows[table])


def test_depth_and_crops_are_what_a_plain_construction_says() -> None:
    records = list(
        make_records(
            5, horizon=3, candidates=(2, 6), branching=True, features=2, depth=(6, 10), crops=True
        )
    )
    options = {
        "selected_depth_enabled": True,
        "selected_depth_height_px": 6,
        "selected_depth_width_px": 10,
        "selected_depth_chunk_steps": 4,
        "target_eval_crops_enabled": True,
        "target_eval_crop_max_points": 12,
    }
    with written(records, **options) as reader:
        rows = plain_rows(records, crop_points=12)
        for table in rows:
            assert reader.column_names(table), table
            assert_table(reader, table, rows[table])


def test_rows_do_not_depend_on_where_blocks_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = list(make_records(12, candidates=(2, 9), branching=True, early_fraction=0.5))
    whole = write_rollout_zarr_store(tmp_path / "a", records, selected_depth_enabled=False)
    monkeypatch.setattr("rollbook.store.writer._BLOCK_ROWS", 1)
    apart = write_rollout_zarr_store(tmp_path / "b", records, selected_depth_enabled=False)
    assert whole.content_sha256 == apart.content_sha256


def test_words_are_coded_in_order_of_first_use() -> None:
    records = list(make_records(9, targets_per_source=1))
    with written(records) as reader:
        assert reader.words("policy")[0] == records[0].lineage.target_selection_policy
        assert reader.words("policy")[1:] == (
            "oracle_greedy",
            "random_valid",
            "temperature_softmax",
        )
        assert reader.array("rollouts/rollout_id").tolist() == list(range(9))
        for table, contents in TABLES.items():
            for name, column in contents.columns.items():
                if column.words is not None and reader.has(f"{table}/{name}"):
                    codes = reader.array(f"{table}/{name}")
                    assert codes.max(initial=-1) < len(reader.words(column.words))


def test_scores_of_targets_share_one_array() -> None:
    with written(spec_fixture_records(depth=False, crops=False)) as reader:
        packed = TABLES["targets"].packed()["scores"]
        scores = reader.array("targets/scores")
        assert scores.shape == (3, len(packed))
        assert reader.root["targets/scores"].attrs["columns"] == packed
        iou = scores[:, packed.index("gt_match_iou")]
        np.testing.assert_array_equal(reader.array("targets/gt_match_iou"), iou)


# ------------------------------------------------------------------------------- the known fixture


def test_three_records_of_two_steps_become_three_rollouts_and_six_steps() -> None:
    with written(spec_fixture_records(depth=False, crops=False)) as reader:
        assert (reader.num_rollouts, reader.num_steps, reader.num_candidates) == (3, 6, 48)
        assert reader.array("sources/source_row_id").tolist() == [0, 1, 2]
        assert reader.array("rollouts/root_pose_world").shape == (3, 12)
        assert np.isfinite(reader.array("rollouts/root_pose_world")).all()
        assert reader.array("rollouts/root_time_ns").tolist() == [0, 1000, 2000]
        assert reader.array("rollouts/root_frame_index").tolist() == [0, 1, 2]
        assert reader.attrs["source_split"] == "train"


def test_columns_of_older_schemas_are_not_there() -> None:
    gone = {
        *("candidate_valid_mask", "padded_mask", "heavy_diag_available_mask", "selection_entropy"),
        *("transition_id", "one_step_scene_rri", "bootstrap_next_step_row_id", "terminal_mask"),
        "discount",
    }
    with written(spec_fixture_records(depth=False, crops=False)) as reader:
        names = {path.name for path in reader.store_dir.glob("*/*") if path.is_dir()}
        assert not gone & names


def test_ownership_of_fields_is_kept_apart() -> None:
    rollouts, lineage = set(TABLES["rollouts"].columns), set(TABLES["lineage"].columns)
    assert rollouts & lineage == {"rollout_row_id"}
    both = {name for name in TABLES["targets"].columns if name in rollouts | lineage}
    assert both == {"target_row_id", "target_crop_policy_id"}


def test_lineage_and_source_codes_all_have_words() -> None:
    with written(spec_fixture_records(depth=False, crops=False)) as reader:
        for table in ("lineage", "sources"):
            for name, column in TABLES[table].columns.items():
                if column.words is not None and name != "model_checkpoint_id":
                    assert None not in reader.decoded(table, name), name


# ------------------------------------------------------------------------------- masks and labels


def test_invalid_candidates_keep_their_row_without_labels_or_probability() -> None:
    with written(list(make_records(6, valid_fraction=0.4))) as reader:
        candidates = reader.table("candidates")
        invalid = ~candidates["actor_action_mask"]
        assert invalid.any()
        assert (candidates["selection_probabilities"][invalid] == 0).all()
        assert np.isneginf(candidates["selection_log_probabilities"][invalid]).all()
        assert np.isnan(candidates["target_root_gain"][invalid]).all()
        assert not (candidates["selected_mask"] & invalid).any()
        assert not (candidates["q_train_mask"] & invalid).any()
        assert (candidates["compact_valid_index"][invalid] == -1).all()


def test_diagnostics_are_aligned_and_default_to_unknown() -> None:
    records = [
        with_steps(
            record, lambda step: replace(step, candidates=replace(step.candidates, extras={}))
        )
        for record in spec_fixture_records(depth=False, crops=False)
    ]
    with written(records) as reader:
        table = reader.table("candidate_diagnostics")
        np.testing.assert_array_equal(
            table["candidate_row_id"], reader.array("candidates/candidate_row_id")
        )
        assert not table["path_collision_mask"].any()
        assert not table["valid_actor_mask"].any()
        floats = [name for name, values in table.items() if values.dtype == np.float32]
        assert len(floats) == len(table) - 4
        for name in floats:
            assert np.isnan(table[name]).all()


def test_the_parts_of_an_error_are_kept_for_valid_candidates_only() -> None:
    def measured(step: RolloutStep) -> RolloutStep:
        shell = step.candidates
        mask = np.arange(len(shell)) != (step.selected_shell_index + 1) % len(shell)
        terms = np.arange(len(shell), dtype=np.float32)
        return replace(
            step,
            candidates=replace(
                shell,
                mask_valid=mask,
                extras={"valid_actor_mask": ~mask},
                invalid_reason_bitset=None,
            ),
            metric_vectors={"target_accuracy_after": terms, "scene_coverage_before": terms[mask]},
        )

    records = [
        with_steps(record, measured) for record in spec_fixture_records(depth=False, crops=False)
    ]
    with written(records) as reader:
        table = reader.table("candidate_diagnostics")
        valid = reader.array("candidates/actor_action_mask")
        shell_index = reader.array("candidates/shell_index")
        kept = np.where(valid, shell_index, np.nan).astype(np.float32)
        np.testing.assert_array_equal(table["target_accuracy_after"], kept)
        first = reader.array("candidates/step_row_id") == 0
        np.testing.assert_array_equal(
            table["scene_coverage_before"][first & valid], shell_index[first & valid]
        )
        assert np.isnan(table["target_coverage_after"]).all()
        np.testing.assert_array_equal(table["valid_actor_mask"], ~valid)


def test_colliding_paths_get_their_bit() -> None:
    def blocked(step: RolloutStep) -> RolloutStep:
        shell = step.candidates
        mask = np.arange(len(shell)) != (step.selected_shell_index + 1) % len(shell)
        return replace(
            step,
            candidates=replace(
                shell,
                mask_valid=mask,
                invalid_reason_bitset=None,
                extras={"path_collision_mask": ~mask},
            ),
        )

    records = [with_steps(r, blocked) for r in spec_fixture_records(depth=False, crops=False)]
    with written(records) as reader:
        bits = reader.array("candidates/invalid_reason_bitset")
        collides = reader.array("candidate_diagnostics/path_collision_mask")
        np.testing.assert_array_equal(has_reason(bits, "PATH_SEGMENT_COLLISION"), collides)
        assert not has_reason(bits, "SAMPLER_RULE_REJECTED").any()
        assert np.isnan(reader.array("candidates/target_rri")[collides]).all()
        assert {each.code for each in reader.validate().violations} <= {"probability_sum"}


def test_rejections_without_a_named_reason_count_as_the_samplers() -> None:
    records = [
        with_steps(
            record,
            lambda step: replace(
                step, candidates=replace(step.candidates, invalid_reason_bitset=None, extras={})
            ),
        )
        for record in make_records(3, valid_fraction=0.5)
    ]
    with written(records) as reader:
        valid = reader.array("candidates/actor_action_mask")
        bits = reader.array("candidates/invalid_reason_bitset")
        assert (bits[~valid] == reason_mask("SAMPLER_RULE_REJECTED")).all()
        assert (bits[valid] == 1).all()


def test_without_metrics_there_are_no_labels_but_still_logits() -> None:
    records = [
        with_steps(record, lambda step: replace(step, metric_vectors={}))
        for record in spec_fixture_records(depth=False, crops=False)
    ]
    with written(records) as reader:
        assert np.isnan(reader.array("candidates/target_root_gain")).all()
        assert not reader.array("candidates/oracle_label_mask").any()
        assert not reader.array("candidates/q_train_mask").any()
        assert not reader.array("q_h/q_train_mask").any()
        assert np.isfinite(reader.array("candidates/selection_logits")).all()
        assert np.isnan(reader.array("steps/cumulative_target_rri")).all()


def test_a_generic_rri_is_nobodys_label() -> None:
    def generic(step: RolloutStep) -> RolloutStep:
        return replace(step, metric_vectors={"rri": step.metric_vectors["target_rri"]})

    records = [with_steps(r, generic) for r in spec_fixture_records(depth=False, crops=False)]
    with written(records) as reader:
        assert np.isnan(reader.array("candidates/scene_rri")).all()
        assert np.isnan(reader.array("candidates/target_rri")).all()


def test_labels_of_an_unusable_target_are_kept_but_not_trained_on() -> None:
    bits = 1 << TARGET_INVALID_REASON_CODES["TARGET_GT_UNMATCHED"]
    records = [
        with_lineage(record, target_invalid_reason_bitset=bits, target_primary_invalid_reason=None)
        for record in spec_fixture_records(depth=False, crops=False)
    ]
    with written(records) as reader:
        assert reader.array("candidates/oracle_label_mask").all()
        assert not reader.array("candidates/q_train_mask").any()
        assert not reader.array("q_h/q_train_mask").any()
        assert not reader.array("targets/target_valid_mask").any()
        assert reader.array("targets/target_primary_invalid_reason").tolist() == [10, 10, 10]


def test_candidates_made_invalid_after_scoring_lose_their_labels() -> None:
    def withdrawn(step: RolloutStep) -> RolloutStep:
        mask = np.arange(len(step.candidates)) == step.selected_shell_index
        shell = replace(step.candidates, mask_valid=mask, invalid_reason_bitset=None)
        return replace(step, candidates=shell)

    records = [with_steps(r, withdrawn) for r in spec_fixture_records(depth=False, crops=False)]
    with written(records) as reader:
        withdrawn_rows = ~reader.array("candidates/selected_mask")
        for name in ("target_rri", "target_root_gain", "scene_root_gain", "target_pm_dist_after"):
            values = reader.array(f"candidates/{name}")
            assert np.isnan(values[withdrawn_rows]).all()
            assert np.isfinite(values[~withdrawn_rows]).all()
        assert (reader.array("q_h/valid_action_mask").sum(1) == 1).all()
        assert np.isnan(reader.array("q_h/one_step_target_rri")).sum() == withdrawn_rows.sum()


def test_actors_rows_have_their_provenance() -> None:
    with written(list(make_records(6))) as reader:
        actors = reader.array("candidates/actor_action_mask")
        assert (reader.array("candidates/strategy_id")[actors] >= 0).all()
        assert (reader.array("candidates/mixture_id")[actors] >= 0).all()
        assert np.isfinite(reader.array("candidates/sampler_probability")[actors]).all()


# -------------------------------------------------------------------------------- sources, targets


def test_targets_get_ids_of_the_store_and_keep_the_selectors() -> None:
    records = list(make_records(6, policies=("oracle_greedy",), targets_per_source=2))
    with written(records) as reader:
        assert reader.array("targets/target_row_id").tolist() == list(range(6))
        assert reader.array("targets/target_source_index").tolist() == [0, 1, 0, 1, 0, 1]
        assert reader.array("targets/target_selection_rank").tolist() == [0, 1, 0, 1, 0, 1]
        assert reader.array("rollouts/target_row_id").tolist() == list(range(6))
        assert reader.array("targets/gt_label_valid_mask").all()
        assert reader.decoded("targets", "gt_match_status_id") == ["matched"] * 6
        expected = [record.lineage.matched_gt_target_row_id for record in records]
        assert reader.array("targets/matched_gt_target_row_id").tolist() == expected


def test_rollouts_towards_one_target_share_its_row() -> None:
    with written(list(make_records(6, targets_per_source=1))) as reader:
        assert reader.array("rollouts/target_row_id").tolist() == [0, 0, 0, 1, 1, 1]
        assert reader.array("rollouts/source_row_id").tolist() == [0, 0, 0, 1, 1, 1]
        assert reader.num_targets == 2


def test_the_same_local_index_in_two_snippets_is_two_targets() -> None:
    first, second = spec_fixture_records(depth=False, crops=False)[:2]
    second = with_lineage(second, target_source_index=0, target_row_id=0, target_id="other")
    with written([first, second]) as reader:
        assert reader.array("targets/target_source_index").tolist() == [0, 0]
        assert reader.array("rollouts/target_row_id").tolist() == [0, 1]


def test_a_target_without_a_source_index_is_known_by_the_selectors_row() -> None:
    record = with_lineage(
        spec_fixture_records(depth=False, crops=False)[0], target_source_index=None, target_row_id=7
    )
    with written([record]) as reader:
        assert reader.array("targets/target_source_index").tolist() == [7]


def test_a_target_nobody_knows_anything_about_has_a_row_of_unknowns() -> None:
    fields = {
        name: None
        for name in spec_fixture_records()[0].lineage.__struct_fields__
        if name.startswith(("target_", "gt_match", "matched_gt"))
    }
    with written([with_lineage(spec_fixture_records(crops=False)[0], **fields)]) as reader:
        row = {name: values[0] for name, values in reader.table("targets").items()}
        assert reader.decoded("targets", "target_id") == ["unknown-target"]
        assert reader.decoded("targets", "gt_match_status_id") == ["not_requested"]
        assert row["target_valid_mask"]
        assert not row["gt_label_valid_mask"]
        assert row["target_source_index"] == row["target_sem_id"] == -1
        assert np.isnan(row["target_selection_score"])
        assert np.isnan(row["target_pose_world_object"]).all()


def test_conflicting_sources_are_refused() -> None:
    first, second = spec_fixture_records(depth=False, crops=False)[:2]
    second = with_lineage(second, source_row_id=0)
    with (
        pytest.raises(InvalidValue, match="source row 0: source lineage"),
        written([first, second]),
    ):
        pass


def test_conflicting_targets_are_refused() -> None:
    first = spec_fixture_records(depth=False, crops=False)[0]
    second = replace(with_lineage(first, gt_match_status="unmatched_gt"), rollout_id_prefix="again")
    with (
        pytest.raises(InvalidValue, match="gt_match_status is 'unmatched_gt'"),
        written([first, second]),
    ):
        pass


def test_a_source_row_without_any_id_is_refused() -> None:
    record = with_lineage(
        spec_fixture_records(depth=False, crops=False)[0],
        source_row_id=None,
        source_sample_index=None,
    )
    with pytest.raises(InvalidNumber, match="source_row_id"), written([record]):
        pass


def test_the_sample_index_stands_in_for_a_source_row_id() -> None:
    record = with_lineage(
        spec_fixture_records(depth=False, crops=False)[0], source_row_id=None, source_sample_index=9
    )
    with written([record]) as reader:
        assert reader.array("sources/source_row_id").tolist() == [9]
        assert reader.array("rollouts/source_row_id").tolist() == [9]


@pytest.mark.parametrize(
    ("splits", "named"), [((None, None), "unknown"), (("a", "b"), "mixed"), (("a", None), "mixed")]
)
def test_the_split_of_a_store_is_named_when_there_is_one(
    splits: tuple[str | None, ...], named: str
) -> None:
    records = spec_fixture_records(depth=False, crops=False)[:2]
    split = [with_lineage(r, split=s) for r, s in zip(records, splits, strict=True)]
    with written(split) as reader:
        assert reader.attrs["source_split"] == named
        assert reader.decoded("rollouts", "split_id") == list(splits)


# ------------------------------------------------------------------------------- chains and steps


def test_branches_name_the_chain_they_forked_from() -> None:
    with written(list(make_records(3, branching=True, horizon=3))) as reader:
        parents = reader.array("rollouts/parent_rollout_row_id")
        forks = reader.array("rollouts/fork_step_index")
        assert (parents >= 0).sum() == 9
        for row in np.flatnonzero(parents >= 0).tolist():
            own, parent = reader.rollout(row), reader.rollout(int(parents[row]))
            same = slice(0, int(forks[row]))
            at = int(forks[row])
            selected = "selected_shell_index"
            np.testing.assert_array_equal(
                own["steps"][selected][same], parent["steps"][selected][same]
            )
            assert own["steps"][selected][at] != parent["steps"][selected][at]


@pytest.mark.parametrize(
    ("steps", "early", "reason"),
    [(2, False, "fixed_horizon"), (1, False, "incomplete_rollout"), (2, True, "terminated_early")],
)
def test_a_chain_says_why_it_ended(steps: int, early: bool, reason: str) -> None:
    record = spec_fixture_records(depth=False, crops=False)[0]
    chain = RolloutChain(steps=record.result.chains[0].steps[:steps], terminated_early=early)
    record = replace(record, result=replace(record.result, chains=(chain,)))
    with written([record]) as reader:
        assert reader.decoded("rollouts", "termination_reason") == [reason]


def test_a_store_of_chains_without_steps_has_all_its_columns() -> None:
    record = spec_fixture_records()[0]
    record = replace(record, result=replace(record.result, chains=(RolloutChain(steps=()),)))
    options = {"selected_depth_enabled": True, "target_eval_crops_enabled": True}
    with written([record], **options) as reader:
        assert (reader.num_rollouts, reader.num_steps, reader.num_candidates) == (1, 0, 0)
        for table, contents in TABLES.items():
            required = [name for name, column in contents.columns.items() if not column.optional]
            assert set(required) <= set(reader.column_names(table)), table
        assert reader.q_h_view()["candidate_row_id"].shape == (0, 0)
        assert reader.validate(deep=True).ok


def test_huge_gains_of_one_chain_leave_the_sums_of_others_alone() -> None:
    def huge(step: RolloutStep) -> RolloutStep:
        gains = np.full(len(step.candidates), 1e30, np.float32)
        return replace(step, metric_vectors={"target_root_gain": gains})

    first, second = spec_fixture_records(depth=False, crops=False)[:2]
    with written([with_steps(first, huge), second]) as reader, written([second]) as alone:
        np.testing.assert_array_equal(
            reader.array("steps/cumulative_target_root_gain")[2:],
            alone.array("steps/cumulative_target_root_gain"),
        )


# ------------------------------------------------------------------------------------------- poses


@given(st.integers(0, 10_000), st.integers(0, 20))
def test_relative_poses_are_the_inverse_root_composed_with_the_pose(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    rotations = np.linalg.qr(rng.normal(size=(count + 1, 3, 3)))[0]
    poses = np.concatenate(
        [rotations.reshape(-1, 9), rng.normal(0, 5, (count + 1, 3))], axis=1
    ).astype(np.float32)
    root, others = poses[0], poses[1:]
    expected = np.array([relative(root, pose) for pose in others]).reshape(count, 12)
    np.testing.assert_allclose(relative_poses(root, others), expected, atol=1e-5)


def test_relative_poses_are_not_a_difference_of_components() -> None:
    with written(list(make_records(2))) as reader:
        pose = reader.array("candidates/pose_world_cam")
        root = reader.array("rollouts/root_pose_world")[reader.array("candidates/rollout_row_id")]
        assert np.abs(reader.array("candidates/pose_relative_root") - (pose - root)).max() > 0.1
