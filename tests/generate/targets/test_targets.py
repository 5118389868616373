"""Targets chosen by the actor: what it may look at, how boxes are gated, scored and drawn; what ground truth adds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rollbook.contracts.lineage import RolloutLineage
from rollbook.contracts.reasons import TARGET_INVALID_REASON_CODES
from rollbook.errors import ConfigurationError, InvalidBoxes, InvalidTrajectory, InvalidValue
from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.poses import IDENTITY, compose
from rollbook.generate.sources.reader import ActorView
from rollbook.generate.targets.config import RolloutTargetSource, TargetSelectorConfig
from rollbook.generate.targets.considered import support_counts
from rollbook.generate.targets.selection import ActorVisibleTargetSelector, TargetSelection
from tests.generate.target_views import (
    PLACE,
    boxes_at,
    placed,
    points_in,
    random_truth,
    random_view,
    rng,
    view_of,
)

NAN = float("nan")
SEEDS = st.integers(0, 2**32 - 1)
THREE = [[2.5, -1.5, 0.0], [2.5, 0.0, 0.0], [2.5, 1.5, 0.0]]
"""Side by side, and near enough that their visibility is 1."""


def select(
    view: ActorView, gt: Boxes | None = None, seed: int = 0, **config: Any
) -> TargetSelection:
    selector = ActorVisibleTargetSelector(msgspec.convert(config, TargetSelectorConfig))
    return selector.select(view, gt, rng=rng(seed), **PLACE)


def names(bitset: int) -> set[str]:
    return {name for name, bit in TARGET_INVALID_REASON_CODES.items() if bitset >> bit & 1}


def order(selection: TargetSelection) -> list[int]:
    return [target.target_source_index for target in selection.targets]


def supported(counts: list[int], **columns: Any) -> ActorView:
    """Three boxes side by side, with so many points in each."""
    detections = boxes_at(THREE[: len(counts)], **columns)
    return view_of(detections, points_in(detections, counts))


def statuses(selection: TargetSelection) -> list[str]:
    return [target.gt_match_status for target in selection.targets]


# ----------------------------------------------------------------------------------------- scores


def test_a_score_is_confidence_times_visibility_support_and_deficit() -> None:
    view = supported([2, 10, 200], confidence=[0.5, 0.8, 1.0])
    found = select(view, min_support_points=1, image_width_px=24, image_height_px=24).considered
    # the face of the middle box is 2 m away and 1 m wide; half of 24 pixels is 1 m at 1 m
    assert found.projected_area_pixels[1] == pytest.approx((12 / 2) ** 2)
    fraction = found.projected_area_pixels / 57_600
    share = np.clip(fraction / 0.05, 0, 1)
    np.testing.assert_allclose(found.projected_area_fraction, fraction)
    np.testing.assert_allclose(found.visibility_score, 3 * share**2 - 2 * share**3)
    np.testing.assert_array_equal(found.semidense_support_count, [2, 10, 200])
    np.testing.assert_allclose(found.support_score, [1, 1, 1])
    np.testing.assert_allclose(found.deficit_score, [1 - 2 / 128, 1 - 10 / 128, 0])
    expected = view.detections.confidence * found.visibility_score * found.deficit_score
    np.testing.assert_allclose(found.score, expected)


def test_the_area_is_that_of_the_frame_that_shows_most() -> None:
    near, far = boxes_at([[2.0, 0, 0]]), boxes_at([[6.0, 0, 0]])
    for boxes in (near, far):
        points = points_in(boxes, [5])
        one = select(view_of(boxes, points)).considered.projected_area_pixels
        three = select(view_of(boxes, points, frames=3)).considered.projected_area_pixels
        np.testing.assert_allclose(one, three)


def test_the_less_an_object_is_supported_the_earlier_it_comes() -> None:
    view = supported([90, 5, 40])
    assert order(select(view)) == order(select(view)) == [1, 2, 0]
    assert [target.target_selection_rank for target in select(view).targets] == [0, 1, 2]
    assert [target.target_selection_probability for target in select(view).targets] == [1.0] * 3


def test_equal_scores_keep_the_order_of_the_source() -> None:
    assert order(select(supported([200, 200, 200]))) == [0, 1, 2]


def test_no_more_than_k_are_selected() -> None:
    assert order(select(supported([90, 5, 40]), k=2)) == [1, 2]


def test_a_box_out_of_view_scores_low_unless_a_projection_is_required() -> None:
    detections = boxes_at([[3.0, 0, 0], [-3.0, 0, 0]])
    view = view_of(detections, points_in(detections, [5, 5]))
    found = select(view)
    assert order(found) == [0, 1]
    assert found.considered.visibility_score[1] == 0.35
    strict = select(view, require_projected_visibility=True)
    assert order(strict) == [0]
    assert names(int(strict.considered.reason_bitset[1])) == {
        "NO_PROJECTED_VISIBILITY",
        "PROJECTED_AREA_TOO_SMALL",
    }
    assert strict.considered.visibility_score[1] == 0
    assert np.isnan(strict.considered.score[1])


def test_a_small_projection_is_a_reason_only_where_one_is_required() -> None:
    view = supported([5])
    area = float(select(view).considered.projected_area_pixels[0])
    limits: dict[str, Any] = {"min_projected_area_pixels": area + 1}
    assert order(select(view, **limits)) == [0]
    strict = select(view, require_projected_visibility=True, **limits)
    assert names(int(strict.considered.reason_bitset[0])) == {"PROJECTED_AREA_TOO_SMALL"}


def test_low_support_is_a_reason_and_the_box_is_not_ranked() -> None:
    found = select(supported([2, 3, 40]))
    assert sorted(order(found)) == [1, 2]
    assert names(int(found.considered.reason_bitset[0])) == {"TARGET_SUPPORT_TOO_LOW"}
    assert np.isnan(found.considered.score[0])


def test_observed_voxels_count_as_support_with_their_weight() -> None:
    view = supported([1, 1, 1])
    voxels = points_in(view.detections, [0, 4, 8], seed=1)
    config = TargetSelectorConfig(evl_support_weight=0.5)
    found = ActorVisibleTargetSelector(config).select(
        view, None, rng=rng(), observed_voxels=voxels, **PLACE
    )
    np.testing.assert_array_equal(found.considered.evl_support_count, [0, 4, 8])
    np.testing.assert_array_equal(found.considered.effective_support_count, [1, 3, 5])
    assert order(found) == [1, 2]


def test_support_is_counted_in_the_scaled_box_over_the_first_points_only() -> None:
    detections = boxes_at([[3.0, 0, 0]])
    ring = np.array([[3.0, 0.6, 0.0]] * 4, np.float32)
    view = view_of(detections, ring)
    assert select(view).considered.semidense_support_count.tolist() == [0]
    grown = select(view, obb_support_scale=1.3)
    assert grown.considered.semidense_support_count.tolist() == [4]
    first = select(view, obb_support_scale=1.3, max_support_points=3)
    assert first.considered.semidense_support_count.tolist() == [3]


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.integers(0, 6), st.sampled_from([0.5, 1.0, 1.7]))
def test_sorting_points_first_counts_what_looking_at_all_of_them_counts(
    seed: int, count: int, scale: float
) -> None:
    boxes = random_truth(seed, count)
    points = rng(seed).uniform(-4, 6, (400, 3))
    points[:4] = [[NAN, 0, 0], [np.inf, 0, 0], [-np.inf, 0, 0], [0, NAN, 0]]
    plain = [int(boxes.contains(row, points, scale=scale).sum()) for row in range(count)]
    assert support_counts(boxes, points, scale) == plain


def test_points_that_are_not_finite_support_nothing() -> None:
    view = supported([5])
    spoiled = np.concatenate([view.points, [[NAN, 0, 0], [np.inf, 0, 0]]]).astype(np.float32)
    found = select(replace(view, points=spoiled))
    assert found.considered.semidense_support_count.tolist() == [5]


# ---------------------------------------------------------------------------------------- reasons


def test_every_reason_against_a_box_is_kept() -> None:
    poses = np.array([placed(centre) for centre in (*THREE, [3.0, 4, 0], [3.0, -4, 0])])
    extents = np.ones((5, 3))
    poses[0], extents[0] = 0, 0
    poses[1, 9] = np.inf
    extents[2, 1] = -1
    confidence = [0, 0.9, 0.1, NAN, 0.05]
    detections = Boxes.build(poses, extents, np.zeros(5, int), confidence=confidence)
    found = select(view_of(detections, points_in(boxes_at([[3, 4, 0]]), [9])))
    assert [names(int(bits)) for bits in found.considered.reason_bitset] == [
        {"PADDED_OBB", "OBB_EXTENT_INVALID", "CONFIDENCE_TOO_LOW", "TARGET_SUPPORT_TOO_LOW"},
        {"OBB_NONFINITE", "TARGET_SUPPORT_TOO_LOW"},
        {"OBB_EXTENT_INVALID", "CONFIDENCE_TOO_LOW", "TARGET_SUPPORT_TOO_LOW"},
        {"OBB_NONFINITE"},
        {"CONFIDENCE_TOO_LOW", "TARGET_SUPPORT_TOO_LOW"},
    ]
    assert found.targets == []
    assert found.skip_reason == "no_ranked_targets"
    assert np.isnan(found.considered.score).all()


def test_a_confidence_at_the_threshold_passes() -> None:
    assert order(select(supported([5], confidence=[0.7]), min_confidence=0.7)) == [0]


def test_no_detection_at_all_is_said_to_be_none() -> None:
    found = select(view_of(Boxes.none(), []))
    assert (found.targets, found.skip_reason) == ([], "no_actor_visible_targets")
    assert names(found.source_reason_bitset) == {"NO_ACTOR_VISIBLE_SOURCE"}
    assert len(found.considered) == 0


@pytest.mark.parametrize("spoiled", ["detected_obbs", "ground truth"])
def test_a_rotation_that_is_none_is_refused(spoiled: str) -> None:
    view = supported([5, 5])
    scaled = view.detections.pose_world_object.copy()
    scaled[1, :9] *= 2
    boxes = replace(view.detections, pose_world_object=scaled)
    seen = replace(view, detections=boxes) if spoiled == "detected_obbs" else view
    with pytest.raises(InvalidBoxes, match=f"{spoiled} of .* row 1: pose_world_object"):
        select(seen, None if seen is not view else boxes)


def test_without_a_trajectory_there_is_no_root() -> None:
    view = supported([5])
    with pytest.raises(InvalidTrajectory, match="no root"):
        select(replace(view, poses=view.poses[:0]))
    with pytest.raises(InvalidTrajectory, match="pose 0"):
        select(replace(view, poses=view.poses * np.float32(NAN)))


# ------------------------------------------------------------------------------------ ground truth


def test_ground_truth_in_the_place_of_detections_is_refused() -> None:
    truth = boxes_at(THREE, inst_id=[4, 5, 6])
    for handed in (
        truth,
        truth.take([1]),
        boxes_at(THREE, inst_id=[9, 9, 6], confidence=[0.3] * 3),
    ):
        with pytest.raises(InvalidValue, match="GT_SOURCE_DISALLOWED"):
            select(view_of(handed, points_in(truth, [5, 5, 5])), truth)


def test_ground_truth_is_not_taken_where_detections_are_missing() -> None:
    truth = boxes_at(THREE, inst_id=[4, 5, 6])
    found = select(view_of(Boxes.none(), points_in(truth, [5, 5, 5])), truth)
    assert (found.targets, found.skip_reason) == ([], "no_actor_visible_targets")
    assert names(found.source_reason_bitset) == {"NO_ACTOR_VISIBLE_SOURCE", "GT_SOURCE_DISALLOWED"}


def test_a_perfect_detector_is_not_taken_for_ground_truth() -> None:
    truth = boxes_at(THREE, inst_id=[4, 5, 6])
    view = view_of(boxes_at(THREE), points_in(truth, [5, 6, 7]))
    assert statuses(select(view, truth)) == ["matched"] * 3


def test_boxes_of_a_backbone_stand_in_for_missing_detections() -> None:
    first, second = boxes_at(THREE[:1]), boxes_at(THREE[1:])
    padding = Boxes.build(np.zeros((2, 12)), np.zeros((2, 3)), [0, 0])
    view = view_of(padding, points_in(boxes_at(THREE), [5, 5, 5]))
    selector = ActorVisibleTargetSelector()
    predictions = {"backbone.obb_pred": second, "backbone.obb_pred_viz": first}
    found = selector.select(view, None, rng=rng(), predictions=predictions, **PLACE)
    assert [target.target_source for target in found.targets] == ["backbone.obb_pred_viz"]
    seen = replace(view, detections=first)
    found = selector.select(seen, None, rng=rng(), predictions=predictions, **PLACE)
    assert [target.target_source for target in found.targets] == ["detected_obbs"]
    for name in ("gt_obbs_v0_sanity", "detected_obbs"):
        with pytest.raises(InvalidValue, match="predictions is"):
            selector.select(view, None, rng=rng(), predictions={name: first}, **PLACE)


def test_ground_truth_as_input_has_to_be_asked_for() -> None:
    truth = boxes_at(THREE, inst_id=[4, 5, 6])
    found = select(
        view_of(Boxes.none(), points_in(truth, [9, 5, 7])), truth, source_mode="v0_gt_input"
    )
    assert order(found) == [1, 2, 0]
    first = found.targets[0]
    assert first.target_source == "gt_obbs_v0_sanity"
    assert (first.gt_match_status, first.gt_match_iou, first.gt_box_row) == ("v0_gt_input", 1.0, 1)
    assert first.label_valid
    assert first.target_id == "flat-1:walk-2:gt_obbs_v0_sanity:sem=7:inst=5:idx=1"
    missing = select(view_of(Boxes.none(), []), None, source_mode="v0_gt_input")
    assert names(missing.source_reason_bitset) == {"NO_ACTOR_VISIBLE_SOURCE"}


def test_a_protocol_is_named_by_what_the_actor_is_given() -> None:
    assert TargetSelectorConfig().protocol == "v1_observed"
    assert (
        msgspec.convert({"source_mode": "v0_gt_input"}, TargetSelectorConfig).protocol
        == "v0_gt_input"
    )


def test_a_selected_box_is_matched_to_the_object_it_overlaps() -> None:
    truth = boxes_at(THREE, inst_id=[4, 5, 6]).take([2, 0, 1])
    shifted = np.array(THREE) + np.array([0.1, 0, 0])
    detections = boxes_at(shifted)
    found = select(view_of(detections, points_in(detections, [5, 9, 7])), truth)
    assert statuses(found) == ["matched"] * 3
    assert [target.gt_box_row for target in found.targets] == [1, 0, 2]
    first = found.targets[0]
    assert first.matched_gt_target_id == "flat-1:walk-2:gt_obbs_oracle:sem=7:inst=4:idx=1"
    assert first.gt_match_iou == pytest.approx(0.9 / 1.1, abs=0.1)
    assert first.gt_match_score == first.gt_match_iou
    assert all(target.label_valid for target in found.targets)


def unmatched(gt: Boxes | None, **config: Any) -> Any:
    [target] = select(supported([5]), gt, **config).targets
    return target


def test_a_class_that_ground_truth_does_not_have_is_unmatched() -> None:
    target = unmatched(boxes_at(THREE[:1], sem_id=[8]))
    assert (target.gt_match_status, target.gt_box_row, target.gt_match_iou) == (
        "unmatched_gt",
        -1,
        None,
    )
    assert names(target.reason_bitset) == {"TARGET_GT_UNMATCHED"}
    assert not target.label_valid


def test_too_little_overlap_is_unmatched_and_says_how_little() -> None:
    target = unmatched(boxes_at([[2.5, -1.5, 0.9]]))
    assert (target.gt_match_status, target.gt_box_row) == ("unmatched_gt", -1)
    assert 0 < target.gt_match_iou < 0.1
    assert target.gt_match_score == target.gt_match_iou


@pytest.mark.parametrize(
    "gt", [None, Boxes.none(), boxes_at([[NAN, 0, 0]]), boxes_at([[0, 0, 0]], 0)]
)
def test_without_ground_truth_it_is_missing(gt: Boxes | None) -> None:
    target = unmatched(gt)
    assert target.gt_match_status == "missing_gt"
    assert names(target.reason_bitset) == {"TARGET_GT_UNMATCHED"}


def test_a_match_that_was_not_asked_for_is_no_fault_and_no_label() -> None:
    target = unmatched(boxes_at(THREE[:1]), match_gt=False)
    assert target.gt_match_status == "not_requested"
    assert names(target.reason_bitset) == {"VALID"}
    assert not target.label_valid


def test_two_objects_that_fit_as_well_are_ambiguous() -> None:
    twice = boxes_at([THREE[0], THREE[0]], inst_id=[1, 2])
    target = unmatched(twice)
    assert target.gt_match_status == "ambiguous_gt"
    assert names(target.reason_bitset) == {"TARGET_GT_AMBIGUOUS"}
    assert not target.label_valid
    assert (
        unmatched(boxes_at([[2.5, -1.5, 0.2], [2.5, -1.5, -0.2]])).gt_match_status == "ambiguous_gt"
    )
    assert unmatched(boxes_at([[2.5, -1.5, 0.2], [2.5, -1.5, -0.5]])).gt_match_status == "matched"


def test_two_selected_boxes_on_one_object_are_both_ambiguous() -> None:
    detections = boxes_at([[3.0, 0, 0], [3.1, 0, 0], [3.0, 2, 0]])
    truth = boxes_at([[3.0, 0, 0], [3.0, 2, 0]])
    found = select(view_of(detections, points_in(detections, [5, 6, 7])), truth)
    by_row = {target.target_source_index: target for target in found.targets}
    assert {row: target.gt_match_status for row, target in by_row.items()} == {
        0: "ambiguous_pred_to_gt",
        1: "ambiguous_pred_to_gt",
        2: "matched",
    }
    assert names(by_row[0].reason_bitset) == {"TARGET_GT_AMBIGUOUS"}
    assert (by_row[0].gt_box_row, by_row[0].label_valid, by_row[2].label_valid) == (0, False, True)


def test_flat_ground_truth_is_matched_by_how_near_its_centre_is() -> None:
    flat = boxes_at([[2.5, -1.5, 0.1]], [1.0, 1.0, 0.0])
    target = unmatched(flat)
    assert (target.gt_match_status, target.gt_match_iou) == ("matched", None)
    assert target.gt_match_score == pytest.approx(1 - 0.1 / (3**0.5 + 2**0.5))
    assert unmatched(flat, min_gt_match_score=0.99).gt_match_status == "unmatched_gt"


@settings(max_examples=25, deadline=None)
@given(
    SEEDS,
    st.integers(1, 8),
    st.integers(0, 6),
    st.sampled_from(["greedy_top_k", "temperature_softmax_top_k"]),
)
def test_ground_truth_changes_nothing_about_what_is_selected(
    seed: int, count: int, objects: int, policy: str
) -> None:
    view = random_view(seed, count)
    alone = select(view, None, seed, policy=policy)
    for gt in (
        random_truth(seed, objects),
        random_truth(seed + 1, objects),
        replace(view.detections),
    ):
        found = select(view, gt, seed, policy=policy)
        assert order(found) == order(alone)
        for name in ("score", "reason_bitset", "projected_area_pixels"):
            np.testing.assert_array_equal(
                getattr(found.considered, name), getattr(alone.considered, name)
            )
        for one, other in zip(found.targets, alone.targets, strict=True):
            assert one.target_selection_score == other.target_selection_score
            assert one.target_selection_probability == other.target_selection_probability


# ------------------------------------------------------------------------------------------- draws


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.integers(2, 8), st.sampled_from(["greedy_top_k", "temperature_softmax_top_k"]))
def test_the_order_of_detections_does_not_matter(seed: int, count: int, policy: str) -> None:
    view = random_view(seed, count)
    plain = select(view, None, seed, policy=policy, temperature=0.05)
    eligible = plain.considered.score[np.isfinite(plain.considered.score)]
    assume(
        len(np.unique(eligible)) == len(eligible)
    )  # equal ones are told apart by their index alone
    turned = rng(seed).permutation(count)
    other = select(
        replace(view, detections=view.detections.take(turned)),
        None,
        seed,
        policy=policy,
        temperature=0.05,
    )
    assert turned[order(other)].tolist() == order(plain)
    np.testing.assert_array_equal(other.considered.score, plain.considered.score[turned])
    for one, two in zip(plain.targets, other.targets, strict=True):
        assert one.target_selection_probability == two.target_selection_probability


SOFTMAX = {"policy": "temperature_softmax_top_k", "temperature": 0.2}


def test_softmax_draws_are_distinct_and_follow_from_the_seed() -> None:
    view = supported([5, 40, 90])
    seen = {tuple(order(select(view, None, seed, **SOFTMAX))) for seed in range(40)}
    assert len(seen) > 1
    assert all(sorted(each) == [0, 1, 2] for each in seen)
    for seed in range(5):
        assert order(select(view, None, seed, **SOFTMAX)) == order(
            select(view, None, seed, **SOFTMAX)
        )


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(3, 120), min_size=1, max_size=3))
def test_chances_of_the_first_draw_sum_to_one(counts: list[int]) -> None:
    view = supported(counts)
    chances = {}
    for seed in range(60):
        [target] = select(view, None, seed, k=1, policy="temperature_softmax_top_k").targets
        chances[target.target_source_index] = target.target_selection_probability
    assert len(chances) == len(counts)
    assert sum(chances.values()) == pytest.approx(1)


def test_each_draw_keeps_the_chance_and_entropy_it_was_made_with() -> None:
    found = select(supported([5, 40, 90]), None, 3, **SOFTMAX)
    left = found.considered.score.copy()
    for target in found.targets:
        weights = np.exp(left[np.isfinite(left)] / 0.2)
        chances = weights / weights.sum()
        own = np.exp(left[target.target_source_index] / 0.2) / weights.sum()
        assert target.target_selection_probability == pytest.approx(own)
        assert target.log_probability == pytest.approx(np.log(own))
        assert target.entropy == pytest.approx(-(chances * np.log(chances)).sum())
        assert target.target_selection_temperature == 0.2
        left[target.target_source_index] = -np.inf
    assert found.targets[-1].target_selection_probability == 1


def test_a_temperature_near_zero_draws_the_best() -> None:
    view = supported([90, 5, 40])
    for temperature in (1e-9, 1e-300):
        found = select(view, None, 1, policy="temperature_softmax_top_k", temperature=temperature)
        assert order(found) == [1, 2, 0]


def test_as_many_are_drawn_as_their_chances_say() -> None:
    view = supported([5, 40, 90])
    drawn = [select(view, None, seed, k=1, **SOFTMAX).targets[0] for seed in range(300)]
    share = np.bincount([target.target_source_index for target in drawn], minlength=3) / 300
    for target in drawn:
        spread = 5 * (target.target_selection_probability / 300) ** 0.5
        assert abs(share[target.target_source_index] - target.target_selection_probability) < spread


# ----------------------------------------------------------------------------------------- lineage


def test_a_target_fills_its_part_of_the_lineage() -> None:
    detections = boxes_at(THREE, class_name=["chair", "table", "lamp"])
    truth = boxes_at([THREE[0]], inst_id=[3])
    found = select(view_of(detections, points_in(detections, [5, 6, 7]), frames=2), truth)
    for target in found.targets:
        fields = target.lineage_fields()
        lineage = RolloutLineage(rollout_id="r", **fields)
        assert lineage.label_valid == target.label_valid
        assert (lineage.target_row_id, lineage.target_source_index) == (
            target.target_source_index,
        ) * 2
        assert lineage.target_reason_code_version == "target-selection-invalidity-v1"
    first = found.targets[0].lineage_fields()
    assert set(first) == {
        name
        for name in RolloutLineage.__struct_fields__
        if name.startswith(("target_", "matched_gt_", "gt_match_"))
        and name not in ("target_protocol_version", "target_crop_policy")
    }
    assert first["target_id"] == "flat-1:walk-2:detected_obbs:sem=7:inst=-1:idx=0"
    assert first["target_class_name"] == "chair"
    assert first["target_selection_temperature"] is None
    assert found.targets[0].label_valid
    assert [target.label_valid for target in found.targets[1:]] == [False, False]


@settings(max_examples=15, deadline=None)
@given(SEEDS)
def test_the_relative_pose_is_the_object_seen_from_the_root(seed: int) -> None:
    view = random_view(seed, 4)
    for target in select(view).targets:
        relative = np.array(target.target_relative_pose_reference_object)
        np.testing.assert_allclose(
            compose(view.root_pose, relative), target.target_pose_world_object, atol=1e-5
        )
        np.testing.assert_array_equal(
            target.box.pose_world_object[0], target.target_pose_world_object
        )
        assert len(target.box) == 1
    assert not np.allclose(view.root_pose, IDENTITY)


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.integers(0, 8), st.integers(0, 8))
def test_every_selection_makes_a_lineage_that_agrees_about_labels(
    seed: int, count: int, objects: int
) -> None:
    found = select(
        random_view(seed, count), random_truth(seed, objects), seed, k=8, min_gt_iou=0.01
    )
    assert (found.skip_reason is None) == bool(found.targets)
    for target in found.targets:
        lineage = RolloutLineage(**target.lineage_fields())
        assert lineage.label_valid == target.label_valid == (target.gt_match_status == "matched")
        assert lineage.target_valid == (target.reason_bitset == 1)


# ------------------------------------------------------------------------------------------ config


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("k", 0),
        ("temperature", 0.0),
        ("temperature", NAN),
        ("min_confidence", 1.5),
        ("min_support_points", 0),
        ("support_saturation_points", 0),
        ("projected_area_normalizer_pixels", 0.0),
        ("obb_support_scale", np.inf),
        ("min_projected_area_pixels", -1.0),
        ("evl_support_weight", NAN),
        ("gt_iou_samples", 0),
        ("gt_ambiguity_margin", -0.1),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(field: str, value: float) -> None:
    settings: dict[str, Any] = {field: value}
    with pytest.raises(ConfigurationError, match=f"target_selector.{field} is {value}"):
        TargetSelectorConfig(**settings)


def test_a_config_is_plain_values_both_ways() -> None:
    config = msgspec.convert({"k": 2, "policy": "temperature_softmax_top_k"}, TargetSelectorConfig)
    plain = msgspec.to_builtins(config)
    assert plain["policy"] == "temperature_softmax_top_k"
    assert msgspec.convert(plain, TargetSelectorConfig) == config
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.convert({"top_k": 2}, TargetSelectorConfig)
    assert [source.value for source in RolloutTargetSource] == [
        "oracle_target_task_sampler",
        "actor_visible_selector",
    ]
