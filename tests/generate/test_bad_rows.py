"""Source rows on which nothing can be rolled out: each is counted under its reason, and the others go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rollbook.errors import NoRollouts
from rollbook.generate.boxes import Boxes
from rollbook.generate.poses import poses_of
from rollbook.generate.source_writer import SourceStoreWriter
from rollbook.generate.sources import ActorView, SourceStore
from rollbook.generate.splits import SplitConfig
from tests.generate.tiny_source import tiny_config, tiny_source


def a_store(path: Path, actor: ActorView, boxes: Boxes) -> dict[str, str]:
    """The first tiny row with another actor's side and other true boxes, as the `source` of a config."""
    row = SourceStore.open(tiny_source()).row(0)
    assert row.oracle is not None
    splits = SplitConfig(train=1, val=0, test=0)
    with SourceStoreWriter(path, config={}, splits=splits) as writer:
        writer.add_scene("scene", row.oracle.mesh, boxes)
        writer.add_row("scene", "row", actor, row.oracle.continuation, row.oracle.continuation_t_ns)
        writer.finish()
    return {"store_dir": str(path), "split": "train"}


def the_row() -> tuple[ActorView, Boxes]:
    row = SourceStore.open(tiny_source()).row(0)
    assert row.oracle is not None
    return row.actor, row.oracle.boxes


def skipped(tmp_path: Path, actor: ActorView, boxes: Boxes) -> str:
    source = a_store(tmp_path / "source", actor, boxes)
    with pytest.raises(NoRollouts) as caught:
        tiny_config(tmp_path / "x.zarr", source=source).setup_target().run()
    assert not (tmp_path / "x.zarr").exists()
    return caught.value.reasons


def in_thin_air(
    actor: ActorView,
) -> tuple[Boxes, np.ndarray[tuple[int, int], np.dtype[np.float32]]]:
    """A box a metre ahead of the root where nothing is, and points in it that nobody can have seen."""
    pose = actor.poses[-1].astype(np.float64)
    ahead = pose[9:] + 0.5 * pose[:9].reshape(3, 3)[:, 2]
    box = Boxes.build(
        poses_of(np.eye(3), ahead)[None], [[0.1, 0.1, 0.1]], [7], class_name=["ghost"]
    )
    offsets = np.random.default_rng(0).uniform(-0.05, 0.05, (40, 3))
    return box, (ahead + offsets).astype(np.float32)


def test_nothing_detected(tmp_path: Path) -> None:
    actor, boxes = the_row()
    blind = replace(actor, detections=Boxes.none())
    assert skipped(tmp_path, blind, boxes) == "1 no_actor_visible_targets"


def test_nothing_detected_well_enough(tmp_path: Path) -> None:
    actor, boxes = the_row()
    seen = actor.detections
    doubtful = replace(seen, confidence=np.full(len(seen), 0.01, np.float32))
    assert skipped(tmp_path, replace(actor, detections=doubtful), boxes) == "1 no_ranked_targets"


def test_a_class_that_the_scene_does_not_have(tmp_path: Path) -> None:
    actor, boxes = the_row()
    other = replace(actor.detections, sem_id=actor.detections.sem_id + 1000)
    assert "unmatched_gt" in skipped(tmp_path, replace(actor, detections=other), boxes)


def test_a_target_where_there_is_no_surface(tmp_path: Path) -> None:
    actor, _ = the_row()
    ghost, points = in_thin_air(actor)
    count = len(points)
    haunted = replace(
        actor,
        detections=ghost,
        points=points,
        point_frame=np.zeros(count, np.int32),
        inv_dist_std=np.zeros(count, np.float32),
        dist_std=np.zeros(count, np.float32),
    )
    truth = replace(ghost, inst_id=np.zeros(1, np.int32))
    assert skipped(tmp_path, haunted, truth) == "1 target_scorer:TARGET_CROP_EMPTY"


def test_a_scene_without_true_boxes(tmp_path: Path) -> None:
    actor, _ = the_row()
    assert "missing_gt" in skipped(tmp_path, actor, Boxes.none())
