"""Choices between equal scores. A scorer that reads no labels chooses the same, whatever the oracle says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from rollbook.generate.rollout.loop import RolloutEngine
from rollbook.generate.rollout.nodes import NodeEvaluator, RolloutTask
from rollbook.generate.rollout.policies import CounterfactualSelectionPolicy
from rollbook.generate.rollout.recipes import RolloutRecipeConfig
from rollbook.generate.rollout.scorers import Scorer
from rollbook.generate.row_rollouts import RowRoller
from rollbook.generate.sources.reader import SourceStore
from tests.generate.tiny_source import tiny_config, tiny_source

OFTEN_TIED = ("random_valid", "novelty", "target_area")
"""Scorers that give many candidates the same score: all of them, or those that do not show the target."""


def indifferent(features: Any, names: Any, valid: Any, context: Any) -> Any:
    """A policy to which all candidates are equal."""
    return np.zeros(len(features))


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> RolloutTask:
    source = SourceStore.open(tiny_source())
    config = tiny_config(tmp_path_factory.mktemp("ties"))
    return next(task for row in range(len(source)) for task in RowRoller(config, source).tasks(row))


@contextmanager
def other_labels(seed: int) -> Iterator[None]:
    """The oracle gives the labels of another candidate to each. Who is valid does not change."""
    labels = NodeEvaluator._labels

    def shuffled(self: NodeEvaluator, node: Any, proposal: Any, rows: Any, depth: Any) -> Any:
        found = labels(self, node, proposal, rows, depth)
        other = rows[np.random.default_rng([seed, len(node.path)]).permutation(len(rows))]
        for values in found.values():
            values[rows] = values[other]
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NodeEvaluator, "_labels", shuffled)
        yield


def choices(task: RolloutTask, scorer: str, **options: Any) -> list[list[int]]:
    recipe = RolloutRecipeConfig(
        name="tied",
        selection_policy=CounterfactualSelectionPolicy.ORACLE_GREEDY,
        scorer=scorer,
        **options,
    )
    result = RolloutEngine(task).run(recipe)
    return [[step.selected_shell_index for step in chain.steps] for chain in result.chains]


WIDE: dict[str, Any] = {"branch_factor": 3, "beam_width": 2, "horizon": 2}


@pytest.mark.parametrize("options", [{"horizon": 2}, WIDE], ids=["one chain", "a beam"])
@pytest.mark.parametrize("scorer", [f"{__name__}:indifferent", *OFTEN_TIED])
def test_an_actor_only_policy_chooses_the_same_whatever_the_oracle_says(
    task: RolloutTask, scorer: str, options: dict[str, Any]
) -> None:
    before = choices(task, scorer, **options)
    for seed in range(2):
        with other_labels(seed):
            assert choices(task, scorer, **options) == before


def test_the_oracle_would_have_chosen_otherwise(task: RolloutTask) -> None:
    """Otherwise the test above would show nothing."""
    before = choices(task, "rri_greedy_scene", **WIDE)
    with other_labels(0):
        assert choices(task, "rri_greedy_scene", **WIDE) != before


def test_a_scorer_that_reads_labels_settles_ties_by_the_gain_of_the_scene(
    task: RolloutTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat = Scorer("flat", "", lambda shell: np.zeros(len(shell.valid)), reads_labels=True)
    monkeypatch.setattr("rollbook.generate.rollout.recipes.scorer_named", lambda name: flat)
    evaluator = NodeEvaluator(task, 0, 1)
    root = evaluator.evaluate(evaluator.root())
    gains = np.where(root.candidates.mask_valid, root.labels["scene_root_gain"], -np.inf)
    best = np.argsort(-gains, kind="stable")
    for width in (1, 2, 3):
        kept = choices(task, "flat", horizon=1, branch_factor=4, beam_width=width)
        assert sorted(kept) == sorted([int(row)] for row in best[:width])
