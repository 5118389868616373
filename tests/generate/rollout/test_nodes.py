"""Nodes: what of them the actor may know, and labels that are whole or not there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.contracts.reasons import reason_mask
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.oracle.oracle import Oracle, OracleState
from rollbook.generate.rollout.nodes import EvaluatedNode, NodeEvaluator, RolloutTask
from rollbook.generate.row_rollouts import RowRoller
from rollbook.generate.sources.reader import SourceStore
from tests.generate.changed_rows import a_store, ahead_of, the_row, with_box
from tests.generate.tiny_source import tiny_config, tiny_source


def tasks(tmp_path: Path, source: Path | None = None, **changes: Any) -> Iterator[RolloutTask]:
    path = source or tiny_source()
    config = tiny_config(tmp_path, source={"store_dir": str(path)}, **changes)
    opened = SourceStore.open(path)
    for row in range(len(opened)):
        yield from RowRoller(config, opened).tasks(row)


def evaluated(task: RolloutTask) -> EvaluatedNode:
    evaluator = NodeEvaluator(task, 0, 2)
    return evaluator.evaluate(evaluator.root())


def test_what_the_actor_knows_of_a_shell_owes_nothing_to_the_oracle(tmp_path: Path) -> None:
    """Two worlds that look the same up to the root. In the second a pillar stands in the way."""
    actor, oracle = the_row()
    pillar = with_box(oracle.mesh, ahead_of(actor, 0.6), 0.3)
    a_store(tmp_path / "first", actor, oracle.boxes)
    a_store(
        tmp_path / "second",
        actor,
        oracle.boxes,
        mesh=pillar,
        continuation=oracle.continuation[::-1].copy(),
    )
    one, other = (evaluated(next(tasks(tmp_path, tmp_path / name))) for name in ("first", "second"))
    shells = one.candidates, other.candidates
    for name in ("shell_poses", "actor_features", "strategy_id", "sampler_probability"):
        first, second = (getattr(shell, name) for shell in shells)
        assert first.tobytes() == second.tobytes()
    first, second = (shell.extras["valid_actor_mask"] for shell in shells)
    np.testing.assert_array_equal(first, second)
    # and yet they are two worlds
    assert one.num_valid > other.num_valid
    first, second = (each.labels["scene_root_gain"] for each in (one, other))
    assert not np.array_equal(first, second, equal_nan=True)


class _FailingOracle(Oracle):
    """One column of the second view comes out as no number."""

    def score(
        self, state: OracleState, depth: Any, poses: Any, camera: Camera
    ) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
        columns = super().score(state, depth, poses, camera)
        columns["scene_rri"][1] = np.inf
        return columns


def test_a_candidate_with_half_a_label_has_none_and_says_so(tmp_path: Path) -> None:
    task = next(tasks(tmp_path))
    whole = evaluated(task)
    failing = object.__new__(_FailingOracle)
    failing.__dict__.update(task.oracle.__dict__)
    broken = evaluated(replace(task, oracle=failing))
    row = whole.rendered[1]
    bits = broken.candidates.invalid_reason_bitset
    assert bits is not None
    assert bits[row] == reason_mask("ORACLE_DISTANCE_FAILED")
    assert broken.num_valid == whole.num_valid - 1
    for name, values in broken.labels.items():
        assert np.isnan(values[row])
        others = np.arange(len(values)) != row
        np.testing.assert_array_equal(values[others], whole.labels[name][others])


@pytest.mark.parametrize("stride", [1, 3])
def test_the_points_that_are_kept_are_those_that_were_counted(tmp_path: Path, stride: int) -> None:
    store = {"store_dir": str(tmp_path), "target_eval_crops_enabled": True}
    scorer = {"render_size_px": 40, "scene_samples": 500, "backprojection_stride": stride}
    for task in tasks(tmp_path, store=store, target_scorer=scorer):
        evaluator = NodeEvaluator(task, 0, 2)
        root = evaluator.evaluate(evaluator.root())
        best = int(np.nanargmax(root.labels["target_candidate_support"]))
        if root.labels["target_candidate_support"][best]:
            break
    after = evaluator.evaluate(evaluator.child(root, best))
    for node in (root, after):
        before, *views = node.crops
        support = node.labels["target_current_support"]
        assert (support[node.rendered] == len(before.points_world)).all()
        for crop in views:
            assert crop.shell_index is not None
            counted = node.labels["target_candidate_support"][crop.shell_index]
            assert counted == len(crop.points_world)
    assert len(after.crops[0].points_world) > len(root.crops[0].points_world)
