"""Oracle target tasks: which ground-truth boxes are one object and no other, and how they are drawn."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.contracts.lineage import RolloutLineage
from rollbook.contracts.reasons import TARGET_INVALID_REASON_CODES
from rollbook.errors import ConfigurationError, InvalidBoxes, InvalidTrajectory
from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.targets.tasks import (
    OracleTargetSelection,
    OracleTargetTaskSampler,
    OracleTargetTaskSamplerConfig,
    identities_of,
)
from tests.generate.target_views import PLACE, boxes_at, points_in, random_truth, rng, view_of

NAN = float("nan")
SEEDS = st.integers(0, 2**32 - 1)
APART = [[2.0 * x, 0.0, 0.0] for x in range(1, 6)]


def select(gt: Boxes | None, seed: int = 0, **config: Any) -> OracleTargetSelection:
    sampler = OracleTargetTaskSampler(OracleTargetTaskSamplerConfig(**config))
    return sampler.select(view_of(Boxes.none(), []), gt, rng=rng(seed), **PLACE)


def order(selection: OracleTargetSelection) -> list[int]:
    return [target.target_source_index for target in selection.targets]


def names(bitset: int) -> set[str]:
    return {name for name, bit in TARGET_INVALID_REASON_CODES.items() if bitset >> bit & 1}


def test_a_task_is_its_own_ground_truth() -> None:
    gt = boxes_at(APART, inst_id=[5, 6, 7, 8, 9], class_name=list("abcde"))
    found = select(gt)
    assert found.skip_reason is None
    assert len(found.targets) == 3
    for rank, target in enumerate(found.targets):
        row = target.target_source_index
        name = f"flat-1:walk-2:gt_obbs_oracle:sem=7:inst={row + 5}:idx={row}"
        assert target.target_id == target.matched_gt_target_id == name
        assert target.gt_box_row == target.target_row_id == row
        np.testing.assert_array_equal(target.box.pose_world_object[0], gt.pose_world_object[row])
        assert (target.target_source, target.gt_match_status) == ("gt_obbs_oracle", "matched")
        assert target.target_selection_policy == "oracle_identity_valid_uniform"
        assert (target.rank, target.target_selection_score, target.gt_match_iou) == (rank, 1.0, 1.0)
        scores = target.target_visibility_score, target.target_support_score
        assert (*scores, target.target_deficit_score) == (1.0, 1.0, 0.0)
        assert target.target_selection_probability == 3 / 5
        assert (target.target_selection_temperature, target.entropy) == (None, None)
        lineage = RolloutLineage(**target.lineage_fields())
        assert lineage.label_valid
        assert target.label_valid


def test_what_the_actor_knows_of_a_task_is_recorded_and_decides_nothing() -> None:
    gt = boxes_at([[3.0, 0, 0], [-3.0, 0, 0]])
    sampler = OracleTargetTaskSampler()
    points, voxels = points_in(gt, [40, 0]), points_in(gt, [2, 1])
    empty = sampler.select(view_of(Boxes.none(), []), gt, rng=rng(1), **PLACE)
    found = sampler.select(
        view_of(Boxes.none(), points), gt, rng=rng(1), observed_voxels=voxels, **PLACE
    )
    assert order(found) == order(empty)
    seen = found.considered
    assert seen.semidense_support_count.tolist() == [40, 0]
    assert seen.evl_support_count.tolist() == [2, 1]
    assert seen.effective_support_count.tolist() == [42, 1]
    assert seen.projected_area_pixels[0] > 0
    assert seen.projected_area_pixels[1] == 0
    assert seen.reason_bitset.tolist() == [1, 1]


def test_boxes_in_one_place_are_ambiguous_whatever_their_class() -> None:
    gt = boxes_at([[1, 0, 0], [1, 0, 0], [5, 0, 0]], sem_id=[1, 2, 1])
    found = select(gt)
    assert [status.value for status in found.identities.status] == [
        "ambiguous_identity",
        "ambiguous_identity",
        "matched",
    ]
    assert order(found) == [2]
    assert found.targets[0].target_selection_probability == 1
    assert names(int(found.considered.reason_bitset[0])) == {"TARGET_GT_AMBIGUOUS"}


def test_the_gap_decides_how_much_overlap_is_too_much() -> None:
    gt = boxes_at([[0.0, 0, 0], [0.125, 0, 0]])
    second = select(gt).identities.second_iou
    np.testing.assert_allclose(second, 7 / 9)
    assert len(order(select(gt, identity_ambiguity_gap=0.2))) == 2
    assert order(select(gt, identity_ambiguity_gap=float(1 - second[0]))) == []
    assert (
        select(gt, identity_ambiguity_gap=0.5).skip_reason
        == "no_identity_valid_oracle_target_tasks"
    )


def test_boxes_without_a_sound_shape_are_no_tasks() -> None:
    poses = boxes_at(APART).pose_world_object.copy()
    extents = np.ones((5, 3))
    poses[0], extents[0] = 0, 0
    poses[1, 10] = NAN
    extents[2, 0] = 0
    gt = Boxes.build(poses, extents, np.zeros(5, int), confidence=[1, 1, 1, NAN, 1])
    found = select(gt)
    assert [status.value for status in found.identities.status] == ["invalid_geometry"] * 4 + [
        "matched"
    ]
    assert [names(int(bits)) for bits in found.considered.reason_bitset] == [
        {"PADDED_OBB", "OBB_EXTENT_INVALID"},
        {"OBB_NONFINITE"},
        {"OBB_EXTENT_INVALID"},
        {"OBB_NONFINITE"},
        {"VALID"},
    ]
    assert np.isnan(found.identities.best_iou[:4]).all()
    assert order(found) == [4]


def test_a_box_finer_than_its_coordinates_is_unmatched() -> None:
    found = select(boxes_at([[1000.0, 1000, 1000]], 2e-13))
    assert [status.value for status in found.identities.status] == ["unmatched_identity"]
    assert names(int(found.considered.reason_bitset[0])) == {"TARGET_GT_UNMATCHED"}
    assert found.skip_reason == "no_identity_valid_oracle_target_tasks"


@pytest.mark.parametrize("gt", [None, Boxes.none()])
def test_without_ground_truth_there_are_no_tasks(gt: Boxes | None) -> None:
    found = select(gt)
    assert (found.targets, found.skip_reason) == ([], "no_oracle_target_tasks")


def test_draws_follow_from_the_seed_and_are_even() -> None:
    gt = boxes_at(APART)
    assert order(select(gt, 3)) == order(select(gt, 3))
    drawn = [order(select(gt, seed, max_targets_per_sample=2)) for seed in range(300)]
    assert all(len(set(rows)) == 2 for rows in drawn)
    share = np.bincount(np.ravel(drawn), minlength=5) / 300
    np.testing.assert_allclose(share, 2 / 5, atol=0.12)
    first = np.bincount([rows[0] for rows in drawn], minlength=5) / 300
    np.testing.assert_allclose(first, 1 / 5, atol=0.1)


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.integers(1, 12))
def test_skipping_far_boxes_gives_what_comparing_all_pairs_gives(seed: int, count: int) -> None:
    gt = random_truth(seed, count)
    config = OracleTargetTaskSamplerConfig(identity_iou_samples=4)
    found = identities_of(gt, config)
    pairs = np.array([gt.iou(row, gt, samples=4) for row in range(count)])
    np.testing.assert_array_equal(found.best_iou, np.diag(pairs))
    np.fill_diagonal(pairs, 0)
    np.testing.assert_array_equal(found.second_iou, pairs.max(axis=1))
    gate = (found.best_iou >= 0.25) & (found.best_iou - found.second_iou > 0.05)
    assert [status == "matched" for status in found.status] == gate.tolist()


def test_other_thresholds_are_tried_beside_the_one_in_use() -> None:
    found = select(
        boxes_at([[0.0, 0, 0], [0.0, 0, 0], [5.0, 0, 0], [5.02, 0, 0], [9.0, 0, 0]])
    ).identities
    assert [(row.min_iou, row.gap) for row in found.sweep] == [
        (iou, gap) for iou in (0.1, 0.25, 0.5) for gap in (0.0, 0.05, 0.1)
    ]
    in_use = next(row.tasks for row in found.sweep if (row.min_iou, row.gap) == (0.25, 0.05))
    assert in_use == [status.value for status in found.status].count("matched")
    tasks = [row.tasks for row in found.sweep[:3]]
    assert tasks == sorted(tasks, reverse=True)


def test_bad_input_is_named() -> None:
    gt = boxes_at(APART[:2])
    gt.pose_world_object[1, :9] *= 3
    with pytest.raises(InvalidBoxes, match="row 1"):
        select(gt)
    view = view_of(Boxes.none(), [], frames=0)
    with pytest.raises(InvalidTrajectory, match="no root"):
        OracleTargetTaskSampler().select(view, boxes_at(APART), rng=rng(), **PLACE)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_targets_per_sample", 0),
        ("min_identity_iou", 1.1),
        ("identity_ambiguity_gap", NAN),
        ("identity_iou_samples", 0),
        ("sweep_gaps", (0.1, -0.1)),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"oracle_target_task_sampler.{field} is"):
        OracleTargetTaskSamplerConfig(**{field: value})


def test_a_config_is_plain_values_both_ways() -> None:
    config = OracleTargetTaskSamplerConfig(max_targets_per_sample=1)
    assert msgspec.convert(msgspec.to_builtins(config), OracleTargetTaskSamplerConfig) == config
