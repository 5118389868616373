"""Policies side by side, from the same roots."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from rollbook.errors import ConfigurationError, GenerationFailed, NoRollouts
from rollbook.generate.compare import (
    DEFAULT_POLICIES,
    Comparison,
    compare_policies,
    paired_interval,
    recipe_for,
)
from rollbook.generate.rollout.policies import CounterfactualSelectionPolicy
from rollbook.generate.rollout.scorers import scorer_named
from rollbook.generate.row_rollouts import RolloutDatasetWriterStats
from rollbook.generate.scenes.scene import SceneConfig
from rollbook.generate.sources.make_sources import MakeSourcesConfig, make_source_store
from rollbook.generate.sources.reader import SourceStore
from rollbook.generate.sources.splits import SplitConfig
from tests.generate.tiny_source import tiny_config, tiny_source


def test_the_interval_is_students() -> None:
    differences = np.random.default_rng(0).normal(0.1, 0.3, 24)
    low, mean, high = paired_interval(differences)
    expected = stats.ttest_1samp(differences, 0.0).confidence_interval(0.95)
    assert mean == pytest.approx(differences.mean())
    assert (low, high) == pytest.approx((expected.low, expected.high))


def test_one_pair_says_nothing_about_the_spread() -> None:
    assert paired_interval(np.array([0.4])) == (-np.inf, 0.4, np.inf)


def test_every_policy_of_the_default_has_a_scorer() -> None:
    for policy in DEFAULT_POLICIES:
        name = recipe_for(policy, 2).scorer_name
        assert scorer_named(name).name == name


def test_lookahead_keeps_a_beam_and_a_scorer_is_taken_greedily() -> None:
    ahead, area = recipe_for("lookahead", 3), recipe_for("target_area", 3)
    assert (ahead.branch_factor, ahead.beam_width, ahead.scorer) == (4, 4, None)
    assert area.selection_policy is CounterfactualSelectionPolicy.ORACLE_GREEDY
    assert (area.branch_factor, area.scorer) == (1, "target_area")
    assert recipe_for("my.module:policy", 1).name == "my-module-policy"


def test_policies_are_compared_root_by_root(tmp_path: Path) -> None:
    policies = ("random", "greedy", "lookahead")
    config = dataclasses.replace(
        tiny_config(tmp_path / "x.zarr", selected_depth={"enabled": False}),
        recipes=tuple(recipe_for(policy, 2) for policy in policies),
    )
    done: list[int] = []
    compared = compare_policies(
        config,
        SourceStore.open(tiny_source()),
        [0, 1],
        policies,
        on_row=lambda row, _: done.append(row),
    )
    random, greedy, ahead = compared.results("random")
    assert done == [1, 2]
    assert random.roots == 2
    assert random.difference is None
    assert greedy.target_gain >= random.target_gain
    assert ahead.target_gain >= greedy.target_gain - 1e-6
    assert greedy.difference == pytest.approx(greedy.target_gain - random.target_gain)
    bounds = (greedy.low, greedy.difference, greedy.high)
    low, mean, high = (float(each) for each in bounds if each is not None)
    assert low <= mean <= high


def test_wins_are_counted_per_root() -> None:
    endpoint = np.zeros((3, 2, 3))
    endpoint[:, 1, 0] = [0.1, -0.2, 0.3]
    compared = Comparison(("a", "b"), endpoint, RolloutDatasetWriterStats())
    assert compared.results()[1].wins == 2
    with pytest.raises(ConfigurationError, match="versus is 'c'"):
        compared.results("c")


def test_every_scene_counts_once_whatever_its_number_of_roots() -> None:
    endpoint = np.zeros((5, 2, 3))
    endpoint[:, 1, 0] = [0.2, 0.4, 0.6, 0.1, 0.2]
    scenes = ("flat-1", "flat-1", "flat-1", "flat-2", "flat-3")
    compared = Comparison(("a", "b"), endpoint, RolloutDatasetWriterStats(), scenes)
    result = compared.results()[1]
    assert (result.roots, result.scenes, result.wins) == (5, 3, 5)
    low, mean, high = paired_interval(np.array([0.4, 0.1, 0.2]))
    assert (result.low, result.difference, result.high) == pytest.approx((low, mean, high))
    assert result.target_gain == pytest.approx(mean)


def test_several_targets_of_rows_of_several_splits_are_compared_in_one_go(tmp_path: Path) -> None:
    path = tmp_path / "sources"
    easy = SceneConfig.of_difficulty("easy", max_edge_m=1.0)
    shares = SplitConfig(train=0.5, val=0.5, test=0.0)
    make_source_store(path, MakeSourcesConfig(scenes=2, seed=3, scene=easy, splits=shares))
    config = tiny_config(
        tmp_path / "x.zarr",
        source={"store_dir": str(path)},
        max_targets_per_sample=2,
        selected_depth={"enabled": False},
    )
    config = dataclasses.replace(
        config, recipes=tuple(recipe_for(policy, 1) for policy in ("random", "greedy"))
    )
    with pytest.raises(ConfigurationError, match="the rows are of train, val"):
        config.setup_target().rows()
    source, rows = config.setup_target().rows(one_split=False)
    assert [source.index[row].split for row in rows] == ["train", "val"]
    compared = compare_policies(config, source, rows, ("random", "greedy"))
    result = compared.results()[0]
    assert result.scenes == 2
    assert result.roots == 4
    one = dataclasses.replace(config, max_targets_per_sample=1)
    alone = compare_policies(one, source, rows, ("random", "greedy"))
    np.testing.assert_array_equal(alone.endpoint, compared.endpoint[::2])


def test_what_is_not_known_is_none(tmp_path: Path) -> None:
    """One root has no spread, and without the scene there is no gain of it. Neither is a number in JSON."""
    scorer = {"render_size_px": 40, "target_samples": 400, "include_scene": False}
    config = tiny_config(tmp_path / "x.zarr", target_scorer=scorer)
    compared = compare_policies(config, SourceStore.open(tiny_source()), [0], ("random", "greedy"))
    random, greedy = compared.results()
    assert (random.scene_gain, greedy.scene_gain) == (None, None)
    assert (greedy.low, greedy.high) == (None, None)
    assert greedy.difference == pytest.approx(greedy.target_gain - random.target_gain)


def failing_policy(features: Any, names: Any, valid: Any, context: Any) -> Any:
    raise KeyError("weights")


def test_a_policy_that_fails_is_an_error_that_names_the_row(tmp_path: Path) -> None:
    policies = ("random", f"{__name__}:failing_policy")
    config = dataclasses.replace(
        tiny_config(tmp_path / "x.zarr"),
        recipes=tuple(recipe_for(policy, 1) for policy in policies),
    )
    source = SourceStore.open(tiny_source())
    with pytest.raises(GenerationFailed, match="KeyError: 'weights'") as caught:
        compare_policies(config, source, [0], policies)
    assert caught.value.sample_key == source.row(0).sample_key


def test_rows_without_a_root_to_start_from_are_said(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "x.zarr", min_valid_root_candidates=61)
    with pytest.raises(NoRollouts, match="low_valid_root_candidates"):
        compare_policies(config, SourceStore.open(tiny_source()), [0], ("random", "greedy"))
