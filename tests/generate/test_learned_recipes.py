"""The folder of a training run as the scorer of a recipe: its policy counts, its path does not."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.play_learned_policy import main
from rollbook.errors import ChecksumMismatch, ConfigurationError, NotATrainingRun
from rollbook.generate.actor.features import FEATURES
from rollbook.generate.compare import compare_policies, recipe_for
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.generate.environment import CounterfactualEnv
from rollbook.generate.rollout.learned_scorers import learned_scorer
from rollbook.generate.rollout.recipes import RolloutRecipeConfig
from rollbook.learned import load_learned_policy
from rollbook.store.reader import RolloutZarrStoreReader
from tests.generate.tiny_source import tiny_config, tiny_source
from tests.learned.small_runs import small_run

NAMES = ("obb_area_frac", "view_novelty_rad", "remaining")
REVISION = "next-best-view-r1-small"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("runs") / "first", NAMES)


def recipe(run: Path | str, **fields: Any) -> RolloutRecipeConfig:
    given = {"name": "learned", "selection_policy": "oracle_greedy", "scorer": str(run)}
    return RolloutRecipeConfig(**(given | fields))


def one_recipe(out: Path, **fields: Any) -> RolloutDatasetWriterConfig:
    return tiny_config(out, selected_depth={"enabled": False}, recipes=[fields])


@pytest.fixture(scope="module")
def store(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Chains of the policy, of which one choice in five is left to chance."""
    out = tmp_path_factory.mktemp("store") / "learned.zarr"
    config = one_recipe(
        out, name="learned", selection_policy="epsilon_greedy", epsilon=0.2, scorer=str(run)
    )
    config.setup_target().run()
    return out


def test_the_policy_names_a_run_folder_wherever_it_is(run: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(run, tmp_path / "elsewhere" / "copy"))
    here, there = (
        one_recipe(tmp_path / "s.zarr", name="a", selection_policy="oracle_greedy", scorer=str(at))
        for at in (run, moved)
    )
    assert here.config_hash == there.config_hash
    assert here.rollout_config_hash(here.recipes[0]) == there.rollout_config_hash(there.recipes[0])
    assert here.recipes[0].scorer != there.recipes[0].scorer
    other = small_run(tmp_path / "other", ("view_novelty_rad", "obb_area_frac", "remaining"))
    assert here.recipes[0].decisive_values() != recipe(other, name="a").decisive_values()


def test_a_store_names_the_revision_and_no_path(run: Path, store: Path) -> None:
    reader = RolloutZarrStoreReader(store)
    policy = load_learned_policy(run)
    assert set(reader.decoded("rollouts", "policy_id")) == {f"epsilon_greedy:{REVISION}"}
    assert reader.policy_revisions == {policy.checkpoint_digest: policy.policy_revision}
    lineage = reader.lineage(0)
    assert lineage.policy_revision == policy.policy_revision
    assert lineage.model_checkpoint_hash == policy.checkpoint_digest
    named = [file for file in store.rglob("*") if file.is_file()]
    with_path = [file.name for file in named if str(run).encode() in file.read_bytes()]
    assert with_path == [
        "manifest.json"
    ]  # as the other paths of the run, and not in its content digest


def test_the_stored_chances_are_those_of_epsilon_greedy(run: Path, store: Path) -> None:
    reader = RolloutZarrStoreReader(store)
    policy = load_learned_policy(run)
    for state in range(reader.num_steps):
        valid = reader.array("q_h/valid_action_mask")[state].astype(bool)
        first = int(reader.array("steps/candidate_offset")[state])
        chances = reader.array("candidates/selection_probabilities")[first : first + len(valid)]
        scores = policy.score(reader.array("q_h/actor_features")[state], FEATURES, valid)
        best = valid & (scores == np.nanmax(scores))
        expected = valid * 0.2 / valid.sum() + best * 0.8 / best.sum()
        np.testing.assert_allclose(chances, expected, rtol=1e-6)


def test_an_episode_of_the_environment_is_the_chain_that_generation_makes(
    run: Path, tmp_path: Path
) -> None:
    config = one_recipe(
        tmp_path / "s.zarr", name="best", selection_policy="oracle_greedy", scorer=str(run)
    )
    result = config.setup_target().run()
    reader = RolloutZarrStoreReader(result.store_dir)
    policy, environment = load_learned_policy(run), CounterfactualEnv(config)
    for chain in range(reader.num_rollouts):
        row = reader.lineage(chain).source_row_id
        rank = reader.lineage(chain).target_selection_rank
        observation, _ = environment.reset(
            options={"row": row, "target": rank, "candidate_seed": 0}
        )
        start, steps = (
            int(reader.array(f"rollouts/{name}")[chain]) for name in ("step_offset", "num_steps")
        )
        for state in range(start, start + steps):
            valid = observation["candidate_valid_mask"].astype(bool)
            scores = policy.score(observation["candidate_features"], FEATURES, valid)
            best = np.flatnonzero(scores == np.nanmax(scores)).tolist()
            taken = int(reader.array("q_h/selected_candidate_index")[state])
            assert {taken, policy.choose(observation, FEATURES)} <= set(best)  # chance breaks ties
            observation, gain, ended, _, _ = environment.step(taken)
            assert np.float32(gain) == reader.array("q_h/td_reward")[state]
        assert ended


def test_a_config_file_names_a_run_folder_beside_it_or_in_the_working_folder(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    shutil.copytree(run, tmp_path / "project" / "runs" / "first")
    text = """
        [source]
        store_dir = "sources"
        [store]
        store_dir = "out.zarr"
        [[recipes]]
        name = "learned"
        selection_policy = "epsilon_greedy"
        scorer = "runs/first"
    """
    (tmp_path / "project" / "config.toml").write_text(text)
    (tmp_path / "config.toml").write_text(text)
    beside = RolloutDatasetWriterConfig.from_toml(tmp_path / "project" / "config.toml")
    monkeypatch.chdir(tmp_path / "project")
    working = RolloutDatasetWriterConfig.from_toml(tmp_path / "config.toml")
    for found in (beside, working):
        assert found.recipes[0].scorer == str(tmp_path / "project" / "runs" / "first")
        assert found.recipes[0].loaded_scorer().policy_revision is not None
    assert beside.config_hash == working.config_hash


def test_a_store_can_be_read_as_a_config_after_its_run_folder_is_gone(
    run: Path, tmp_path: Path
) -> None:
    lent = Path(shutil.copytree(run, tmp_path / "lent"))
    config = one_recipe(
        tmp_path / "s.zarr", name="a", selection_policy="oracle_greedy", scorer=str(lent)
    )
    config.setup_target().run()
    shutil.rmtree(lent)
    again = RolloutDatasetWriterConfig.from_manifest(tmp_path / "s.zarr")
    assert again.config_hash == config.config_hash
    learned_scorer.cache_clear()  # as in a new process
    with pytest.raises(NotATrainingRun, match="there is no such folder"):
        again.setup_target().rows()


def test_a_run_folder_that_was_changed_is_refused(run: Path, tmp_path: Path) -> None:
    lent = Path(shutil.copytree(run, tmp_path / "lent"))
    made = recipe(lent)
    model = lent / "checkpoint" / "head-01.txt"
    model.write_bytes(model.read_bytes().replace(b"tree", b"Tree", 1))
    with pytest.raises(ChecksumMismatch, match=r"head-01\.txt"):
        made.loaded_scorer()
    shutil.rmtree(lent)
    small_run(lent, ("view_novelty_rad", "obb_area_frac", "remaining"))
    with pytest.raises(ConfigurationError, match=r"is now .* the recipe was made with"):
        made.loaded_scorer()
    assert recipe(lent).loaded_scorer().checkpoint != load_learned_policy(run).checkpoint_digest


def test_a_training_that_has_not_finished_is_no_scorer(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "training.json").write_text("{}")
    with pytest.raises(NotATrainingRun, match="train resume"):
        recipe(tmp_path / "run")
    with pytest.raises(ConfigurationError, match="the folder of a finished training run"):
        recipe(tmp_path / "nowhere").loaded_scorer()


@pytest.mark.parametrize(
    "fields",
    [
        {"scorer": "novelty", "scorer_policy": "r1@" + "0" * 64},
        {"scorer": None, "scorer_policy": "r1@" + "0" * 64},
        {"scorer": "runs/first", "scorer_policy": "r1"},
    ],
)
def test_a_policy_is_named_only_for_a_run_folder(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="scorer_policy is 'r1"):
        recipe("unused", **fields)


def test_policies_of_run_folders_are_compared_from_the_same_roots(
    run: Path, tmp_path: Path
) -> None:
    policies = ("random", str(run))
    config = dataclasses.replace(
        one_recipe(tmp_path / "s.zarr", name="unused", selection_policy="random_valid"),
        recipes=tuple(recipe_for(each, 2) for each in policies),
    )
    source, rows = config.setup_target().rows()
    compared = compare_policies(config, source, rows, policies)
    assert [each.policy for each in compared.results("random")] == list(policies)
    moved = Path(shutil.copytree(run, tmp_path / "moved"))
    assert recipe_for(str(moved), 2).name == config.recipes[1].name


def test_the_example_lets_the_policy_and_chance_play_from_the_same_roots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = small_run(tmp_path / "run", FEATURES)
    (tmp_path / "config.toml").write_text(
        f"""
        target_source = "actor_visible_selector"
        [source]
        store_dir = "{tiny_source()}"
        [store]
        store_dir = "not-written"
        [target_scorer]
        render_size_px = 40
        scene_samples = 1000
        target_samples = 400
        """
    )
    main([str(run), str(tmp_path / "config.toml"), "--split", "train", "--episodes", "2"])
    assert re.search(r"mean of 2: learned 0\.\d+, chance 0\.\d+", capsys.readouterr().out)
