"""Closed loop on a store: the candidate is rolled out from the very roots of the chains, and its return is measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.contracts.candidate_keys import FEATURES_KEY, SCORE_KEY
from rollbook.contracts.evals import EvalResult
from rollbook.errors import ConfigurationError
from rollbook.evals import StoreBaselines, replay_store, rollup_store
from rollbook.evals.options import ReplayOptions
from rollbook.evals.policies.policy import ReplayEpisode, StepContext
from rollbook.generate.environment import CounterfactualEnv
from rollbook.generate.sources.make_sources import MakeSourcesConfig, make_source_store
from tests.evals.generated.generated_stores import (
    SOURCE,
    Observation,
    Recorded,
    Widest,
    generated_store,
    never_valid,
    no_choice,
    out_of_range,
)
from tests.generate.tiny_source import tiny_config


@pytest.fixture(scope="module")
def chains() -> StoreBaselines:
    return StoreBaselines(generated_store())


def closed_loop(chains: StoreBaselines, policy: Any, **options: Any) -> list[EvalResult]:
    return replay_store(chains, policy, source=SOURCE(), **{"isolation": "thread"} | options)


def test_a_candidate_that_repeats_the_recorded_choices_has_the_recorded_returns(
    chains: StoreBaselines,
) -> None:
    results = closed_loop(chains, Recorded, trusted=True)
    stored = chains.reader.array("rollouts/final_cumulative_target_root_gain")[chains.rows]
    assert [each.status for each in results] == ["complete"] * len(chains)
    for result, cumulative in zip(results, stored, strict=True):
        assert result.metrics["evidence"]["reward_total"] == "closed_loop"
        assert result.metrics["reward_total_candidate"] == result.metrics["reward_total_baseline"]
        assert result.metrics["reward_total_candidate"] == pytest.approx(cumulative, rel=1e-6)
        assert result.metrics["repro"]["verified"] is True
        assert result.metrics["repro"]["env_changed"] == []


def test_a_store_with_crops_for_audits_was_made_in_the_same_world(tmp_path: Path) -> None:
    recipes = [{"name": "random", "selection_policy": "random_valid", "horizon": 1}]
    path = tmp_path / "crops.zarr"
    store = {"store_dir": str(path), "target_eval_crops_enabled": True}
    tiny_config(path, recipes=recipes, store=store).setup_target().run()
    [result, *_] = closed_loop(StoreBaselines(path, limit=1), Widest)
    assert result.metrics["repro"]["env_changed"] == []


def test_the_candidate_sees_what_it_would_see_in_the_recorded_states(
    chains: StoreBaselines,
) -> None:
    policy = Recorded()
    closed_loop(chains, policy, trusted=True)
    rolled_out, recorded = _first_and_second_half_of_each(chains, policy.seen)
    for here, there in zip(rolled_out, recorded, strict=True):
        assert here.keys() == there.keys()
        for key in here:
            assert np.asarray(here[key]).dtype == there[key].dtype
            np.testing.assert_array_equal(here[key], there[key])


def _first_and_second_half_of_each(
    chains: StoreBaselines, seen: list[Observation]
) -> tuple[list[Observation], list[Observation]]:
    """A policy acts in each chain twice: rolled out, and in the recorded states."""
    lengths = chains.reader.array("rollouts/num_steps")[chains.rows].tolist()
    first: list[Observation] = []
    second: list[Observation] = []
    for length in lengths:
        first, second = first + seen[:length], second + seen[length : 2 * length]
        seen = seen[2 * length :]
    return first, second


def test_the_returns_are_those_of_the_gymnasium_environment(chains: StoreBaselines) -> None:
    results = closed_loop(chains, Widest)
    environment = CounterfactualEnv(tiny_config(Path("unused")), horizon=3)
    for result, row in zip(results, chains.rows.tolist(), strict=True):
        about = chains.provenance(row)
        if about["recipe"] != "random":
            continue
        rank = int(chains.reader.array("targets/target_selection_rank")[about["target_row_id"]])
        place = {"row": about["source_row_id"], "target": rank, "candidate_seed": 5}
        observation, _ = environment.reset(options=place)
        earned, ended = 0.0, False
        while not ended:
            score = np.nansum(observation["candidate_features"], axis=-1)
            action = int(np.argmax(np.where(environment.action_masks(), score, -np.inf)))
            observation, reward, ended, _, _ = environment.step(action)
            earned += reward
        assert result.metrics["reward_total_candidate"] == earned


@pytest.mark.parametrize("policy", [never_valid, out_of_range, no_choice])
def test_instead_of_an_invalid_choice_the_worst_candidate_is_taken(
    chains: StoreBaselines, policy: Callable[[Observation], Any]
) -> None:
    result = closed_loop(StoreBaselines(generated_store(), limit=1), policy)[0]
    gains = chains.reader.array("q_h/one_step_target_root_gain")[0]
    worst = np.nanmin(gains[chains.reader.array("q_h/valid_action_mask")[0]])
    assert result.metrics["invalid_choices"] == result.metrics["step_count"] == 3
    assert worst <= result.metrics["reward_total_candidate"]
    assert result.metrics["reward_total_candidate"] <= result.metrics["reward_total_baseline"]


def test_an_error_of_the_policy_is_a_failed_result_and_the_other_chains_go_on(
    chains: StoreBaselines,
) -> None:
    def fails_late(observation: Observation, context: StepContext) -> Any:
        if context.step == 2:
            raise RuntimeError("lost")
        return {SCORE_KEY: observation[FEATURES_KEY][:, 0]}

    results = closed_loop(chains, fails_late)
    by_recipe = {
        chains.provenance(row)["recipe"]: result
        for row, result in zip(chains.rows.tolist(), results, strict=True)
    }
    assert by_recipe["random"].status == "failed"
    assert "RuntimeError: lost" in str(by_recipe["random"].error)
    assert by_recipe["greedy"].status == "complete"


def test_a_policy_that_fails_only_in_the_recorded_states_keeps_its_return() -> None:
    class FailsTheSecondTime(Widest):
        resets = 0

        def reset(self, episode: ReplayEpisode) -> None:
            self.resets += 1

        def act_batch(self, observations: Observation) -> Observation:
            if self.resets > 1:
                raise RuntimeError("only here")
            return super().act_batch(observations)

    result = closed_loop(StoreBaselines(generated_store(), limit=1), FailsTheSecondTime)[0]
    assert result.status == "complete"
    assert result.metrics["reward_total_candidate"] is not None
    assert "counterfactual" not in result.metrics


@pytest.mark.slow
def test_processes_and_threads_give_the_results_of_one_worker(chains: StoreBaselines) -> None:
    policy = "tests.evals.generated.generated_stores:Widest"
    alone = replay_store(chains, policy, source=SOURCE())
    for options in ({"workers": 2}, {"workers": 2, "parallel": "process"}):
        together = replay_store(chains, policy, source=SOURCE(), **options)
        assert [each.metrics for each in together] == [each.metrics for each in alone]


def test_a_store_without_chosen_chains_gives_no_results() -> None:
    assert closed_loop(StoreBaselines(generated_store(), limit=0), Widest) == []


def test_another_source_is_refused_before_the_policy_is_made(
    chains: StoreBaselines, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    make_source_store(other, MakeSourcesConfig(scenes=1, seed=4))
    with pytest.raises(ConfigurationError, match="give the source store that the rollouts were"):
        replay_store(chains, "no.such.module:policy", source=other)


def test_a_source_that_is_not_there_is_refused(chains: StoreBaselines, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="the source cannot be rolled out from"):
        replay_store(chains, Widest, source=tmp_path / "nowhere")


def test_a_source_without_a_store_is_refused(chains: StoreBaselines) -> None:
    with pytest.raises(ConfigurationError, match="give store= too"):
        ReplayOptions(policy_callable=Widest, source=SOURCE()).check()


def test_a_rollup_of_returns_knows_that_they_are_between_nothing_and_everything(
    chains: StoreBaselines,
) -> None:
    found = rollup_store(chains, closed_loop(chains, Widest))
    assert found.decision.gate.reward_range == (0.0, 1.0)
    assert found.reward_mean.evidence == "closed_loop"
    assert not [each for each in found.decision.reasons if "env" in each]
