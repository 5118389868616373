"""Source rows on which nothing can be rolled out: each is counted under its reason, and the others go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rollbook.contracts.reasons import VALID_BITSET
from rollbook.errors import NoRollouts
from rollbook.generate.geometry.boxes import Boxes
from rollbook.store.reader import RolloutZarrStoreReader
from tests.generate.changed_rows import a_store, ahead_of, the_row, told_of, with_box
from tests.generate.tiny_source import tiny_config


def skipped(tmp_path: Path, source: dict[str, str]) -> str:
    with pytest.raises(NoRollouts) as caught:
        tiny_config(tmp_path / "x.zarr", source=source).setup_target().run()
    assert not (tmp_path / "x.zarr").exists()
    return caught.value.reasons


def test_nothing_detected(tmp_path: Path) -> None:
    actor, oracle = the_row()
    blind = replace(actor, detections=Boxes.none())
    source = a_store(tmp_path / "source", blind, oracle.boxes)
    assert skipped(tmp_path, source) == "1 no_actor_visible_targets"


def test_nothing_detected_well_enough(tmp_path: Path) -> None:
    actor, oracle = the_row()
    seen = actor.detections
    doubtful = replace(seen, confidence=np.full(len(seen), 0.01, np.float32))
    source = a_store(tmp_path / "source", replace(actor, detections=doubtful), oracle.boxes)
    assert skipped(tmp_path, source) == "1 no_ranked_targets"


def test_a_class_that_the_scene_does_not_have(tmp_path: Path) -> None:
    actor, oracle = the_row()
    other = replace(actor.detections, sem_id=actor.detections.sem_id + 1000)
    source = a_store(tmp_path / "source", replace(actor, detections=other), oracle.boxes)
    assert "unmatched_gt" in skipped(tmp_path, source)


def test_a_target_where_there_is_no_surface(tmp_path: Path) -> None:
    haunted, ghost = told_of(the_row()[0], ahead_of(the_row()[0], 0.5), 0.1)
    source = a_store(tmp_path / "source", haunted, ghost)
    assert skipped(tmp_path, source) == "1 target_scorer:TARGET_CROP_EMPTY"


def test_a_scene_without_true_boxes(tmp_path: Path) -> None:
    source = a_store(tmp_path / "source", the_row()[0], Boxes.none())
    assert "missing_gt" in skipped(tmp_path, source)


@pytest.mark.slow
def test_a_root_inside_a_wall(tmp_path: Path) -> None:
    """Within a solid, as thick as a wall is: there is no way out that does not lead through its side."""
    actor, oracle = the_row()
    mesh = with_box(oracle.mesh, ahead_of(actor, 0.0), 0.3)
    source = a_store(tmp_path / "source", actor, oracle.boxes, mesh=mesh)
    said = skipped(tmp_path, source)
    assert "random:PATH_SEGMENT_COLLISION" in said
    assert "greedy:PATH_SEGMENT_COLLISION" in said


def test_a_recording_that_ends_at_the_root_cannot_be_followed(tmp_path: Path) -> None:
    """The other recipe goes on; no rollout without a step is written, as it would look like one that gained 0."""
    actor, oracle = the_row()
    nothing = np.zeros((0, 12), np.float32)
    recipes = [
        {"name": "random", "selection_policy": "random_valid"},
        {
            "name": "recorded",
            "selection_policy": "oracle_greedy",
            "scorer": "recorded_continuation",
        },
    ]
    for number, (later, rollouts) in enumerate(((nothing, 1), (oracle.continuation, 2))):
        source = a_store(tmp_path / f"{number}", actor, oracle.boxes, continuation=later)
        writer = tiny_config(
            tmp_path / f"{number}.zarr", source=source, recipes=recipes
        ).setup_target()
        assert writer.run().num_rollouts == rollouts
        assert writer.stats.rollout_invalid_skips == 2 - rollouts
        counted = writer.stats.skipped_reasons.get("recorded:no_candidate_scored", 0)
        assert counted == 2 - rollouts


def test_a_root_where_no_candidate_helps_is_stored_with_gains_of_zero(tmp_path: Path) -> None:
    """The target lies in a closed chest: it was seen once, and from nowhere around here it is seen again."""
    actor, oracle = the_row()
    centre = ahead_of(actor, 1.5)
    told, truth = told_of(actor, centre, 0.2)
    mesh = with_box(with_box(oracle.mesh, centre, 0.4), centre, 0.2)
    source = a_store(tmp_path / "source", told, truth, mesh=mesh)
    writer = tiny_config(tmp_path / "x.zarr", source=source).setup_target()
    reader = RolloutZarrStoreReader(writer.run().store_dir)
    assert writer.stats.skipped_reasons == {}
    valid = reader.array("candidates/invalid_reason_bitset") == VALID_BITSET
    assert valid.any()
    for gain in ("target_root_gain", "target_rri"):
        assert (reader.array(f"candidates/{gain}")[valid] == 0).all()
    assert (reader.array("candidates/scene_root_gain")[valid] > 0).any()
    np.testing.assert_array_equal(reader.array("candidates/q_train_mask"), valid)
